//! What a trace must show, on any backend: every unit once, in order, after what it waited for.

use crate::data::{Fill, matrix, product, relative_error};
use flux::{
    AgGemm, CallTrace, DType, Direction, GemmAr, GemmRs, Group, OpSpec, Operation, Path, PathPreference,
    UnitTrace, Whole,
};
use half::bf16;
use std::collections::{BTreeMap, BTreeSet};

/// What is multiplied: rows and columns are no multiples of a tile.
const SHAPE: [usize; 3] = [1100, 328, 136];

/// Checks the traces of all operations, in every way, pushed and pulled. `tolerance_ns` is how far the clocks of kernels and
/// of transfers may disagree. The group is traced.
pub fn check(group: &Group, tolerance_ns: u64) {
    let [m, n, k] = SHAPE;
    for path in
        [PathPreference::Fused, PathPreference::Unfused, PathPreference::Chunked, PathPreference::Auto]
    {
        for (direction, chunk_rows) in [(Direction::Push, Some(37)), (Direction::Pull, None)] {
            let mut spec = OpSpec::new(n, k, m, DType::Bf16);
            (spec.path, spec.direction, spec.chunk_rows) = (path, Some(direction), chunk_rows);
            check_op(group, &AgGemm::new(group, spec.clone()).unwrap(), tolerance_ns);
            check_op(group, &GemmRs::new(group, spec.clone()).unwrap(), tolerance_ns);
            for one_shot_rows in [0, m] {
                spec.one_shot_rows = Some(one_shot_rows);
                check_op(group, &GemmAr::new(group, spec.clone()).unwrap(), tolerance_ns);
            }
        }
    }
    check_communication_only(group);
}

/// Two calls with other numbers of rows, each correct and traced for itself.
fn check_op<Op: Operation>(group: &Group, op: &Op, tolerance_ns: u64) {
    let [most, n, k] = SHAPE;
    let (a, b) = (matrix::<bf16>(most * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    for m in [most, 300] {
        let whole = Whole::place(group, op, &a[..m * k], &b, m).unwrap();
        let path = whole.enqueue().unwrap().path;
        let error = relative_error(&whole.result().unwrap(), &product(&a[..m * k], &b, m, n, k));
        let traces = op.traces().unwrap();
        let what = format!("{path} {:?}, m {m}, {} ranks", op.spec(), group.world_size());
        assert!(error < 4e-3, "{what}: {error:e}");
        assert_eq!(traces.len(), group.world_size(), "{what}");
        for (rank, trace) in traces.iter().enumerate() {
            assert_eq!(trace.rank, rank);
            let ([_, b_part, c_part], world_size) = (op.parts(rank, m), group.world_size());
            // A GEMM by shards of rows has a launch for each; otherwise there is one.
            let launches = if path == Path::Chunked { world_size } else { 1 };
            check_units(trace, launches, m * b_part.rows.len(), &what);
            assert!(c_part.rows.len() <= m);
            check_order(trace, &what);
            check_transfers(trace, tolerance_ns, &what);
            check_gates(trace, &traces, tolerance_ns, &what);
        }
        check_signals(&traces, path, &what);
    }
}

/// Every unit is there once; the tiles of a call cover as many elements as its result has, each once.
fn check_units(trace: &CallTrace, launches: usize, elements: usize, what: &str) {
    let mut by_launch: BTreeMap<usize, Vec<&UnitTrace>> = BTreeMap::new();
    trace.units.iter().for_each(|unit| by_launch.entry(unit.launch).or_default().push(unit));
    assert!(by_launch.len() <= launches, "{what}: {} launches", by_launch.len());
    let mut covered = 0;
    for units in by_launch.values() {
        let mut parts: BTreeMap<(u32, u32), BTreeSet<u32>> = BTreeMap::new();
        for (index, unit) in units.iter().enumerate() {
            assert_eq!(unit.index, index, "{what}");
            assert!(parts.entry(unit.tile).or_default().insert(unit.part), "{what}: {unit:?} twice");
            covered += if unit.part == 0 { unit.rows.len() * unit.columns.len() } else { 0 };
        }
        for unit in units {
            assert_eq!(parts[&unit.tile].len(), unit.parts as usize, "{what}: {unit:?}");
        }
        let mut areas: Vec<_> = units
            .iter()
            .filter(|unit| unit.part == 0)
            .map(|unit| (unit.rows.start, unit.columns.start))
            .collect();
        areas.sort_unstable();
        let all = areas.len();
        areas.dedup();
        assert_eq!(areas.len(), all, "{what}: tiles begin at the same element");
    }
    assert_eq!(covered, elements, "{what}");
}

fn check_order(trace: &CallTrace, what: &str) {
    for unit in &trace.units {
        let what = format!("{what}: {unit:?}");
        let in_order = |times: &[u64]| assert!(times[0] > 0 && times.is_sorted(), "{what}");
        in_order(&[unit.gate_begin_ns, unit.gate_end_ns]);
        in_order(&[unit.multiply_begin_ns, unit.multiply_end_ns, unit.handed_over_ns]);
        in_order(&[unit.multiply_end_ns, unit.stored_ns, unit.signal_ns.unwrap_or(u64::MAX)]);
        // Who loads waits before; who stores waits before storing.
        in_order(&[unit.gate_end_ns, if unit.scatters { unit.stored_ns } else { unit.multiply_begin_ns }]);
    }
    // One thread multiplies one unit at a time; of two warpgroups one may be a little ahead.
    let mut by_block: BTreeMap<(usize, u32), Vec<&UnitTrace>> = BTreeMap::new();
    trace.units.iter().for_each(|unit| by_block.entry((unit.launch, unit.block)).or_default().push(unit));
    for units in by_block.values() {
        for pair in units.windows(2) {
            assert!(pair[0].multiply_begin_ns < pair[1].multiply_end_ns, "{what}: {pair:?}");
            assert_eq!(pair[0].sm, pair[1].sm, "{what}");
        }
    }
}

/// Transfers of a stream come one after the other.
fn check_transfers(trace: &CallTrace, tolerance_ns: u64, what: &str) {
    for transfer in &trace.transfers {
        assert!(0 < transfer.begin_ns && transfer.begin_ns <= transfer.end_ns, "{what}: {transfer:?}");
        assert!(
            transfer.bytes > 0 && [transfer.from, transfer.to].contains(&trace.rank),
            "{what}: {transfer:?}"
        );
    }
    for pair in trace.transfers.windows(2).filter(|pair| pair[0].stream == pair[1].stream) {
        assert!(pair[0].end_ns <= pair[1].begin_ns + tolerance_ns, "{what}: {pair:?}");
    }
}

/// What a tile waited for before it was loaded had arrived.
fn check_gates(trace: &CallTrace, all: &[CallTrace], tolerance_ns: u64, what: &str) {
    for unit in trace.units.iter().filter(|unit| !unit.scatters) {
        for signal in unit.gate.clone() {
            let arrives = |transfer: &&flux::TransferTrace| {
                transfer.to == trace.rank && transfer.signal == Some(signal as usize)
            };
            let mut arrivals = all.iter().flat_map(|trace| &trace.transfers).filter(arrives);
            let transfer =
                arrivals.next().unwrap_or_else(|| panic!("{what}: nothing raises {signal} of {unit:?}"));
            assert!(arrivals.next().is_none() && transfer.shard == unit.peer as usize, "{what}: {unit:?}");
            assert!(
                unit.gate_end_ns + tolerance_ns >= transfer.end_ns,
                "{what}: {unit:?} before {transfer:?}"
            );
        }
    }
}

/// Fused tiles that go to other ranks raise signals, the last of each block of rows; others do not.
fn check_signals(traces: &[CallTrace], path: Path, what: &str) {
    let units = || traces.iter().flat_map(|trace| &trace.units);
    let raised = units().filter(|unit| unit.signal_ns.is_some()).count();
    let scatters = units().any(|unit| unit.scatters);
    assert_eq!(raised > 0, scatters, "{what}");
    assert!(!scatters || path == Path::Fused, "{what}");
    let transfers = traces.iter().map(|trace| trace.transfers.len()).sum::<usize>();
    assert!(path != Path::Local || transfers == 0, "{what}");
}

/// Without a GEMM there are transfers only: nothing of the call before is left.
fn check_communication_only(group: &Group) {
    let [m, n, k] = SHAPE;
    let mut spec = OpSpec::new(n, k, m, DType::Bf16);
    spec.path = PathPreference::CommunicationOnly;
    let op = AgGemm::new(group, spec).unwrap();
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    let whole = Whole::place(group, &op, &a, &b, m).unwrap();
    for _ in 0..2 {
        whole.enqueue().unwrap();
    }
    let traces = op.traces().unwrap();
    assert!(traces.iter().all(|trace| trace.units.is_empty()));
    let bytes: usize = traces.iter().flat_map(|trace| &trace.transfers).map(|transfer| transfer.bytes).sum();
    assert_eq!(bytes, m * k * 2 * (group.world_size() - 1), "every row comes to every other rank once");
}
