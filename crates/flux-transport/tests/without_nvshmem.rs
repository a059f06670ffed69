//! What one is told where there is no NVSHMEM, by whoever needs it.

use flux_memory::{Bootstrap, BootstrapError, Device, Peers};
use flux_transport::Nvshmem;
use std::process::Command;
use std::sync::Arc;

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

/// In a process of its own, for what the environment says of NVSHMEM.
#[test]
fn the_error_says_what_to_do() {
    if std::env::var_os("FLUX_NVSHMEM_CHILD").is_some() {
        let peers = Peers::connect(Arc::new(Alone)).unwrap();
        let error = Nvshmem::join(&peers, &Device::host()).unwrap_err().to_string();
        for part in ["need NVSHMEM", "FLUX_NVSHMEM_LIBRARY", "/nonexistent/libnvshmem_host.so.3"] {
            assert!(error.contains(part), "{part:?} is not in\n{error}");
        }
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_error_says_what_to_do"])
        .env("FLUX_NVSHMEM_CHILD", "1")
        .env("FLUX_NVSHMEM_LIBRARY", "/nonexistent/libnvshmem_host.so.3")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "the child ran another test");
}
