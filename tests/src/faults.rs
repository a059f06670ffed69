//! A lost signal ends in an error that names everything, within its budget, and a new group works: on any backend.

use crate::data::{Fill, matrix};
use crate::run;
use flux::{
    AgGemm, BackendChoice, DType, Direction, Error, GemmRs, Group, GroupConfig, OpSpec, PathPreference,
    SignalLoss,
};
use half::bf16;
use std::time::{Duration, Instant};

/// Long enough that a busy machine does not fake a lost peer.
const BUDGET: Duration = Duration::from_secs(1);

fn group(backend: BackendChoice, signal_loss: Option<SignalLoss>) -> Group {
    let mut config = GroupConfig::default();
    config.backend = backend;
    config.wait_budget = BUDGET;
    config.signal_loss = signal_loss;
    Group::local_with(4, config).unwrap()
}

/// Loses the signals from rank 3 to rank 1, in both operations, in every way, pushed and pulled.
pub fn check_lost_signals(backend: BackendChoice) {
    let (m, n, k) = (300, 130, 40);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    for path in [PathPreference::Fused, PathPreference::Unfused, PathPreference::Chunked] {
        for direction in [Direction::Push, Direction::Pull] {
            let mut spec = OpSpec::new(n, k, m, DType::Bf16);
            (spec.path, spec.direction) = (path, direction);
            let broken = group(backend, Some(SignalLoss { from: 3, to: 1 }));
            for op_name in ["ag-gemm", "gemm-rs"] {
                let begin = Instant::now();
                let broken = if op_name == "ag-gemm" {
                    broken.clone()
                } else {
                    group(backend, broken.config().signal_loss)
                };
                let result = if op_name == "ag-gemm" {
                    run::ag_gemm(&broken, &AgGemm::new(&broken, spec.clone()).unwrap(), m, &a, &b)
                } else {
                    run::gemm_rs(&broken, &GemmRs::new(&broken, spec.clone()).unwrap(), m, &a, &b)
                };
                let took = begin.elapsed();
                let Err(Error::WaitExpired { op, rank, peer, tile, seen, wanted, .. }) = result.map(|_| ())
                else {
                    panic!("{op_name} {path:?} {direction}: no expired wait was reported");
                };
                assert!(op.starts_with(op_name), "{op}");
                assert_eq!((rank, peer, seen, wanted), (1, 3, 0, 1), "{op_name} {path:?} {direction}");
                let in_a_kernel = path == PathPreference::Fused || op_name == "gemm-rs";
                assert_eq!(tile.is_some(), in_a_kernel, "{op_name} {path:?} {direction}");
                assert!(took < 10 * BUDGET, "{took:?}");
                assert!(matches!(broken.check(), Err(Error::WaitExpired { .. })), "the fault stays");
            }
            let fresh = group(backend, None);
            run::ag_gemm(&fresh, &AgGemm::new(&fresh, spec.clone()).unwrap(), m, &a, &b).unwrap();
            run::gemm_rs(&fresh, &GemmRs::new(&fresh, spec).unwrap(), m, &a, &b).unwrap();
        }
    }
}

/// A call after a fault is refused at once.
pub fn check_refusal_after_a_fault(backend: BackendChoice) {
    let broken = group(backend, Some(SignalLoss { from: 0, to: 2 }));
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
