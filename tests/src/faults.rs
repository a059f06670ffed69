//! A lost signal ends in an error that names everything, within its budget, and a new group works: on any backend.

use crate::data::{Fill, matrix};
use crate::run;
use flux::{
    AgGemm, BackendChoice, DType, Delivery, Direction, Error, GemmAr, GemmRs, Group, GroupConfig, OpSpec,
    PathPreference, Placement, SignalLoss, Summation,
};
use half::bf16;
use std::time::{Duration, Instant};

/// Long enough that a busy machine does not fake a lost peer.
const BUDGET: Duration = Duration::from_secs(1);

fn group(backend: BackendChoice, peer_memory: Placement, signal_loss: Option<SignalLoss>) -> Group {
    let mut config = GroupConfig::default();
    (config.backend, config.peer_memory) = (backend, peer_memory);
    config.wait_budget = BUDGET;
    config.signal_loss = signal_loss;
    Group::local_with(4, config).unwrap()
}

/// Loses the signals from rank 3 to rank 1, in all operations, in every way, pushed and pulled, delivered directly and relayed, summed in the GEMM and after it.
/// In a GEMM+AllReduce in two
/// steps, other ranks wait for rank 1 meanwhile: the fault is rank 1's nevertheless. Where ranks meet in pinned host memory, only the ways
/// that differ there.
pub fn check_lost_signals(backend: BackendChoice, peer_memory: Placement) {
    let (m, n, k) = (300, 1032, 64); // Hopper's kernel takes these, and so can fold; two panels
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    let ways = [
        (PathPreference::Fused, Delivery::Direct, Summation::Folded, 1),
        (PathPreference::Fused, Delivery::Direct, Summation::Separate, 1),
        (PathPreference::Fused, Delivery::Relayed, Summation::Folded, 1),
        (PathPreference::Fused, Delivery::Relayed, Summation::Folded, 2),
        (PathPreference::Fused, Delivery::Relayed, Summation::Separate, 2),
        (PathPreference::Unfused, Delivery::Auto, Summation::Auto, 1),
        (PathPreference::Chunked, Delivery::Auto, Summation::Auto, 1),
    ];
    let through_host = peer_memory == Placement::PinnedHost;
    let differs = |&(path, _, summation, panels): &(PathPreference, Delivery, Summation, usize)| {
        path != PathPreference::Chunked && summation != Summation::Folded && panels == 1
    };
    for (path, delivery, summation, panels) in ways.into_iter().filter(|way| !through_host || differs(way)) {
        for direction in [Direction::Push, Direction::Pull] {
            let mut spec = OpSpec::new(n, k, m, DType::Bf16);
            (spec.path, spec.direction, spec.delivery) = (path, Some(direction), delivery);
            (spec.summation, spec.panels) = (summation, Some(panels));
            let run_op = |group: &Group, op_name: &str, one_shot_rows: usize| {
                let mut spec = spec.clone();
                spec.one_shot_rows = Some(one_shot_rows);
                match op_name {
                    "ag-gemm" => run::ag_gemm(group, &AgGemm::new(group, spec).unwrap(), m, &a, &b),
                    "gemm-rs" => run::gemm_rs(group, &GemmRs::new(group, spec).unwrap(), m, &a, &b),
                    _ => run::gemm_ar(group, &GemmAr::new(group, spec).unwrap(), m, &a, &b),
                }
            };
            let ops = [("ag-gemm", 0), ("gemm-rs", 0), ("gemm-ar", m), ("gemm-ar", 0)];
            // In panels, sources send, whoever moves the rest.
            let in_panels =
                |&(op, rows): &(&str, usize)| op != "ag-gemm" && rows == 0 && direction == Direction::Push;
            for (op_name, one_shot_rows) in ops.into_iter().filter(|op| panels == 1 || in_panels(op)) {
                let broken = group(backend, peer_memory, Some(SignalLoss { from: 3, to: 1 }));
                let begin = Instant::now();
                let result = run_op(&broken, op_name, one_shot_rows);
                let took = begin.elapsed();
                let what = format!(
                    "{op_name} {path:?} {delivery} {summation} {direction}, one-shot up to {one_shot_rows} rows"
                );
                let Err(Error::WaitExpired { op, rank, peer, tile, seen, wanted, .. }) = result.map(|_| ())
                else {
                    panic!("{what}: no expired wait was reported");
                };
                assert!(op.starts_with(op_name), "{op}");
                assert_eq!((rank, peer, seen, wanted), (1, 3, 0, 1), "{what}");
                // Slots in the host's memory are fetched by a stream, which waits for them.
                let in_a_kernel = match op_name {
                    "ag-gemm" => path == PathPreference::Fused,
                    _ => !through_host,
                };
                assert_eq!(tile.is_some(), in_a_kernel, "{what}");
                assert!(took < 10 * BUDGET, "{took:?}");
                assert!(matches!(broken.check(), Err(Error::WaitExpired { .. })), "the fault stays");
            }
            let fresh = group(backend, peer_memory, None);
            for (op_name, one_shot_rows) in ops {
                run_op(&fresh, op_name, one_shot_rows).unwrap();
            }
        }
    }
}

/// A call after a fault is refused at once.
pub fn check_refusal_after_a_fault(backend: BackendChoice) {
    let broken = group(backend, Placement::Device, Some(SignalLoss { from: 0, to: 2 }));
    let (m, n, k) = (256, 64, 16);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    let mut spec = OpSpec::new(n, k, m, DType::Bf16);
    spec.path = PathPreference::Fused;
    let op = AgGemm::new(&broken, spec).unwrap();
    assert!(run::ag_gemm(&broken, &op, m, &a, &b).is_err());
    let begin = Instant::now();
    assert!(matches!(run::ag_gemm(&broken, &op, m, &a, &b).map(|_| ()), Err(Error::WaitExpired { .. })));
    assert!(begin.elapsed() < BUDGET, "refused at once");
}
