//! What one is told where there is no NCCL, or no NVSHMEM, by whoever needs it.

#[path = "../../flux-dylib/tests/support/child.rs"]
mod child;

use child::in_a_child;
use flux_memory::{Bootstrap, BootstrapError, Device, FaultLog, Peers, PerRank, Reach};
use flux_transport::{NcclExchange, Nvshmem};
use std::sync::Arc;
use std::time::Duration;

/// A group of one, which hears only itself.
#[derive(Debug)]
struct Alone;

impl Bootstrap for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        Ok(vec![bytes.to_vec()])
    }
}

/// Test `name`, where `variable` names a library that is not there: `error` must say what `needed` is, and both of these.
fn check(name: &str, variable: &str, needed: &str, error: impl FnOnce(&Peers) -> flux_transport::Error) {
    const NOWHERE: &str = "/nonexistent/library.so";
    in_a_child(name, variable, NOWHERE, || {
        let error = error(&Peers::connect(Arc::new(Alone)).unwrap()).to_string();
        for part in [needed, variable, NOWHERE] {
            assert!(error.contains(part), "{part:?} is not in\n{error}");
        }
    });
}

#[test]
fn without_nccl_the_error_says_what_to_do() {
    check("without_nccl_the_error_says_what_to_do", "FLUX_NCCL_LIBRARY", "need NCCL", |peers| {
        let log = FaultLog::new(&Device::host(), 0, Duration::from_secs(1)).unwrap();
        NcclExchange::among(peers, &Device::host(), &log, &Reach::one_node(1)).unwrap_err()
    });
}

#[test]
fn without_nvshmem_the_error_says_what_to_do() {
    check("without_nvshmem_the_error_says_what_to_do", "FLUX_NVSHMEM_LIBRARY", "need NVSHMEM", |peers| {
        Nvshmem::join(peers, &Device::host()).unwrap_err()
    });
}

#[test]
fn ranks_of_one_process_need_a_gpu_each() {
    let devices = PerRank::from(vec![Device::host(), Device::host()]);
    let log = |rank| FaultLog::new(&Device::host(), rank, Duration::from_secs(1)).unwrap();
    let faults = PerRank::from(vec![log(0), log(1)]);
    let error = NcclExchange::here(&devices, &faults, &Reach::split(2, 2)).unwrap_err().to_string();
    assert!(error.contains("processes of their own"), "{error}");
}
