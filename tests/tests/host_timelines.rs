//! The same schedule twice: simulated on a machine of some class, and run on the host backend. What happens must happen in the same
//! order: per rank and lane what is sent, per rank which shard's tiles are computed when, and nothing before what it waits for.

use flux::{
    AgGemm, BackendChoice, CallTrace, DType, Direction, GemmRs, Group, GroupConfig, Levels, OpSpec,
    Operation, Order, PathPreference, Shards, Whole,
};
use flux_sim::{Activity, Machine, Op, Path, Plan, Problem, Style, simulate};
use flux_swizzle::{Chunks, Collective, PanelCut, Schedule, Transfer};
use flux_tests::data::{Fill, matrix};
use flux_tests::machines::{in_words, of_every_class};
use half::bf16;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;

/// Chunks of each shard.
const CHUNKS: usize = 2;

/// Times are sums: they are equal up to this.
const ROUNDED: f64 = 1e-6;

/// What is to be sent by whom to whom: source, destination, shard and chunk.
type Key = (usize, usize, usize, usize);

/// When things happened, in whatever unit.
#[derive(Debug)]
struct Timeline {
    /// When each transfer began, and when it ended.
    transfers: BTreeMap<Key, (f64, f64)>,
    /// By rank: the shards whose tiles it computed, in order, when it began with each, and when it ended.
    groups: Vec<Vec<(usize, f64, f64)>>,
}

/// Source and lane, and, where both ends take part, destination.
type Link = (usize, usize, Option<usize>);

/// What must be the same in both.
#[derive(Debug, PartialEq, Eq)]
struct OrderOfEvents {
    /// What was sent.
    sent: BTreeMap<Link, Vec<Key>>,
    /// By rank: whose tiles were computed.
    groups: Vec<Vec<usize>>,
}

impl Timeline {
    /// `sent` are source, destination, shard, begin and end of all transfers. Those of a shard between two ranks are its chunks.
    fn new(mut sent: Vec<(usize, usize, usize, f64, f64)>, groups: Vec<Vec<(usize, f64, f64)>>) -> Self {
        sent.sort_by(|a, b| a.3.total_cmp(&b.3));
        let mut counts: BTreeMap<(usize, usize, usize), usize> = BTreeMap::new();
        let keyed = sent.into_iter().map(|(source, destination, shard, begin, end)| {
            let chunk = counts.entry((source, destination, shard)).or_default();
            *chunk += 1;
            ((source, destination, shard, *chunk - 1), (begin, end))
        });
        Self { transfers: keyed.collect(), groups }
    }

    fn simulated(machine: &Machine, op: Op, path: Path) -> Self {
        // Large enough that all SMs are busy, of as many chunks as what is run.
        let rows = 1024;
        let problem = Problem { op, m: rows * machine.gpus(), n: 8192, k: 1024, element_bytes: 2 };
        // What is run: in one level, on however many nodes, and by whole rows.
        let style = Style { sums_in_nodes: false, panels: PanelCut::NONE, ..Style::FLUX };
        let plan = Plan { chunk_rows: Some(rows / CHUNKS), timeline: true, style, ..Plan::new(path) };
        let outcome = simulate(machine, &problem, &plan).unwrap();
        let spans = || outcome.timeline.iter();
        let sent = spans().filter(|span| span.activity == Activity::Transfer).map(|span| {
            (span.rank, span.destination.unwrap(), span.shard.unwrap(), span.begin_us, span.end_us)
        });
        let mut groups = vec![Vec::new(); machine.gpus()];
        for span in spans().filter(|span| span.activity == Activity::Multiply) {
            let of_rank: &mut Vec<(usize, f64, f64)> = &mut groups[span.rank];
            extend(of_rank, (span.shard.unwrap(), span.begin_us, span.end_us));
        }
        Self::new(sent.collect(), groups)
    }

    /// Of a call with `rows` rows of each rank. A GEMM by shards has a launch for each, in `order` of the rank.
    #[allow(clippy::cast_precision_loss)] // nanoseconds since the process began
    fn run(traces: &[CallTrace], rows: usize, launches: Option<&Schedule>) -> Self {
        let sent = traces.iter().flat_map(|trace| &trace.transfers).filter(|moved| moved.from != moved.to);
        let sent =
            sent.map(|moved| (moved.from, moved.to, moved.shard, moved.begin_ns as f64, moved.end_ns as f64));
        let groups = traces.iter().enumerate().map(|(rank, trace)| {
            let mut units: Vec<_> = trace.units.iter().collect();
            units.sort_by_key(|unit| (unit.launch, unit.index));
            let order = launches.map(|schedule| schedule.shard_order(rank));
            let mut groups = Vec::new();
            for unit in units {
                let shard = order.as_ref().map_or(unit.rows.start / rows, |order| order[unit.launch]);
                extend(&mut groups, (shard, unit.multiply_begin_ns as f64, unit.stored_ns as f64));
            }
            groups
        });
        Self::new(sent.collect(), groups.collect())
    }

    /// What must be the same; `exchanges(source, destination)`: both ends take part, and one's clock says little of the other's.
    fn order(&self, schedule: &Schedule, exchanges: &dyn Fn(usize, usize) -> bool) -> OrderOfEvents {
        let mut sent: BTreeMap<Link, Vec<(f64, Key)>> = BTreeMap::new();
        for transfer in schedule.transfers() {
            let (begin, _) = self.transfers[&key(transfer)];
            let &Transfer { source, destination, lane, .. } = transfer;
            let apart = Some(destination).filter(|_| exchanges(source, destination));
            sent.entry((source, lane, apart)).or_default().push((begin, key(transfer)));
        }
        let in_order = |(link, mut sent): (_, Vec<(f64, Key)>)| {
            sent.sort_by(|a, b| a.0.total_cmp(&b.0));
            (link, sent.into_iter().map(|(_, key)| key).collect())
        };
        let groups = self.groups.iter().map(|groups| groups.iter().map(|group| group.0).collect());
        OrderOfEvents { sent: sent.into_iter().map(in_order).collect(), groups: groups.collect() }
    }

    /// All that the schedule has is there, and nothing else; and nothing happened before what it waits for.
    fn check(&self, schedule: &Schedule, exchanges: &dyn Fn(usize, usize) -> bool, fused: bool, what: &str) {
        assert_eq!(self.transfers.len(), schedule.transfers().len(), "{what}");
        let is_exchanged = |transfer: &Transfer| exchanges(transfer.source, transfer.destination);
        for transfer in schedule.transfers() {
            let (begin, end) = self.transfers[&key(transfer)];
            // A receiver may be ready long before its sender is.
            let begins = if is_exchanged(transfer) { end } else { begin };
            for first in schedule.waits_for(transfer) {
                let (_, arrived) = self.transfers[&key(first)];
                assert!(arrived <= begins + ROUNDED, "{what}: {transfer:?} before {first:?}");
            }
            let after = transfer.after.map(|after| &schedule.transfers()[after]);
            if let Some(before) = after.filter(|before| !is_exchanged(before)) {
                let (_, done) = self.transfers[&key(before)];
                assert!(done <= begins + ROUNDED, "{what}: {transfer:?} before {before:?}");
            }
            let group = |rank: usize| self.groups[rank].iter().find(|group| group.0 == transfer.shard);
            match schedule.collective() {
                Collective::AllGather if fused && transfer.chunk == 0 => {
                    let (_, computed, _) = group(transfer.destination).unwrap();
                    assert!(end <= computed + ROUNDED, "{what}: computed before {transfer:?}");
                }
                Collective::Scatter => {
                    let (_, _, computed) = group(transfer.source).unwrap();
                    assert!(*computed <= begins + ROUNDED, "{what}: {transfer:?} before it was computed");
                }
                _ => {}
            }
        }
    }
}

fn key(transfer: &Transfer) -> Key {
    (transfer.source, transfer.destination, transfer.shard, transfer.chunk)
}

/// The tiles of a shard are a group, which comes where the first of them does: some may wait while others' are computed already.
fn extend(groups: &mut Vec<(usize, f64, f64)>, (shard, begin, end): (usize, f64, f64)) {
    match groups.iter_mut().find(|group| group.0 == shard) {
        Some(group) => (group.1, group.2) = (group.1.min(begin), group.2.max(end)),
        None => groups.push((shard, begin, end)),
    }
}

fn traced<O: Operation>(group: &Group, op: &O, m: usize) -> Vec<CallTrace> {
    let (n, k) = (op.spec().n, op.spec().k);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    let whole = Whole::place(group, op, &a, &b, m).unwrap();
    for _ in 0..2 {
        whole.enqueue().unwrap(); // the last call is shown
    }
    whole.synchronize().unwrap();
    op.traces().unwrap()
}

fn group(world_size: usize, fake_nodes: usize) -> Group {
    let mut config = GroupConfig::default();
    (config.backend, config.trace) = (BackendChoice::Host, true);
    config.fake_nodes = NonZeroUsize::new(fake_nodes);
    Group::local_with(world_size, config).unwrap()
}

/// Runs and simulates both operations on a machine, on ranks that address each other or, between nodes, do not.
fn compare(machine: &Machine, apart: bool) {
    let (world_size, nodes) = (machine.gpus(), machine.nodes());
    let group = group(world_size, if apart { nodes } else { 0 });
    let each = world_size / nodes;
    let exchanges = move |a: usize, b: usize| apart && a / each != b / each;
    let what = format!("{}, {}", in_words(machine), if apart { "apart" } else { "together" });
    let (n, k, rows) = (16 * world_size, 16, 32);
    let m = rows * world_size;
    let mut spec = OpSpec::new(n, k, m, DType::Bf16);
    (spec.order, spec.chunk_rows) = (Order::Of(machine.pattern()), Some(rows / CHUNKS));
    spec.levels = Levels::One; // as the schedule has it
    let chunks = Chunks::new(Shards::new(m, world_size).unwrap(), rows / CHUNKS).unwrap();
    let schedule =
        |collective| Schedule::new(collective, &machine.pattern(), |shard| chunks.count(shard)).unwrap();

    let gathered = schedule(Collective::AllGather);
    spec.path = PathPreference::Fused;
    let run = Timeline::run(&traced(&group, &AgGemm::new(&group, spec.clone()).unwrap(), m), rows, None);
    let simulated = Timeline::simulated(machine, Op::AgGemm, Path::Fused);
    run.check(&gathered, &exchanges, true, &format!("ag-gemm run on {what}"));
    simulated.check(&gathered, &exchanges, true, &format!("ag-gemm simulated on {what}"));
    let orders = [&run, &simulated].map(|timeline| timeline.order(&gathered, &exchanges));
    assert_eq!(orders[0], orders[1], "ag-gemm on {what}");

    // Pulled, the receiver says when: but nothing is fetched before it is there.
    spec.direction = Some(Direction::Pull);
    let pulled = Timeline::run(&traced(&group, &AgGemm::new(&group, spec.clone()).unwrap(), m), rows, None);
    assert_eq!(pulled.order(&gathered, &exchanges).groups, orders[0].groups, "pulled ag-gemm on {what}");
    for transfer in gathered.transfers() {
        let (begin, end) = pulled.transfers[&key(transfer)];
        let begins = if exchanges(transfer.source, transfer.destination) { end } else { begin };
        let mut before = gathered.waits_for(transfer).map(|first| pulled.transfers[&key(first)].1);
        assert!(before.all(|arrived| arrived <= begins), "pulled ag-gemm on {what}: {transfer:?}");
    }
    spec.direction = Some(Direction::Push);

    let scattered = schedule(Collective::Scatter);
    spec.path = PathPreference::Chunked;
    let op = GemmRs::new(&group, spec.clone()).unwrap();
    let run = Timeline::run(&traced(&group, &op, m), rows, Some(&scattered));
    let simulated = Timeline::simulated(machine, Op::GemmRs, Path::Chunked);
    run.check(&scattered, &exchanges, false, &format!("gemm-rs run on {what}"));
    simulated.check(&scattered, &exchanges, false, &format!("gemm-rs simulated on {what}"));
    let orders = [&run, &simulated].map(|timeline| timeline.order(&scattered, &exchanges));
    assert_eq!(orders[0], orders[1], "gemm-rs on {what}");
    // Fused, tiles come in the same order.
    spec.path = PathPreference::Fused;
    let fused = traced(&group, &GemmRs::new(&group, spec).unwrap(), m);
    let fused = Timeline::run(&fused, rows, None).groups;
    let simulated = Timeline::simulated(machine, Op::GemmRs, Path::Fused).groups;
    for (rank, (run, simulated)) in fused.iter().zip(&simulated).enumerate() {
        let shards = |groups: &[(usize, f64, f64)]| groups.iter().map(|group| group.0).collect::<Vec<_>>();
        assert_eq!(shards(run), shards(simulated), "fused gemm-rs on {what}, rank {rank}");
    }
}

#[test]
fn what_is_run_happens_in_the_order_that_is_simulated() {
    for machine in (2..=8).flat_map(of_every_class) {
        compare(&machine, false);
        if machine.nodes() > 1 {
            compare(&machine, true);
        }
    }
}
