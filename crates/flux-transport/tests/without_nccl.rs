//! What one is told where there is no NCCL, by whoever needs it.

use flux_memory::{Bootstrap, BootstrapError, Device, FaultLog, Peers, PerRank, Reach};
use flux_transport::NcclExchange;
use std::process::Command;
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

/// In a process of its own, for what the environment says of NCCL.
#[test]
fn the_error_says_what_to_do() {
    if std::env::var_os("FLUX_NCCL_CHILD").is_some() {
        let log = FaultLog::new(&Device::host(), 0, Duration::from_secs(1)).unwrap();
        let (peers, reach) = (Peers::connect(Arc::new(Alone)).unwrap(), Reach::one_node(1));
        let error = NcclExchange::among(&peers, &Device::host(), &log, &reach).unwrap_err().to_string();
        for part in ["need NCCL", "FLUX_NCCL_LIBRARY", "/nonexistent/libnccl.so.2"] {
            assert!(error.contains(part), "{part:?} is not in\n{error}");
        }
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_error_says_what_to_do"])
        .env("FLUX_NCCL_CHILD", "1")
        .env("FLUX_NCCL_LIBRARY", "/nonexistent/libnccl.so.2")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "the child ran another test");
}

#[test]
fn ranks_of_one_process_need_a_gpu_each() {
    let devices = PerRank::from(vec![Device::host(), Device::host()]);
    let log = |rank| FaultLog::new(&Device::host(), rank, Duration::from_secs(1)).unwrap();
    let faults = PerRank::from(vec![log(0), log(1)]);
    let error = NcclExchange::here(&devices, &faults, &Reach::split(2, 2)).unwrap_err().to_string();
    assert!(error.contains("processes of their own"), "{error}");
}
