//! Groups of processes whose memory is NVSHMEM's, on GPUs: where it gives addresses ranks write there by themselves, and where it
//! is not asked for any, between nodes, of which one machine plays all, it puts. Where there are fewer GPUs than ranks, processes
//! take turns on them. The tests fail where there is no NVSHMEM.

use crate::nodes::{BUDGET, run_part};
use flux::{BackendChoice, Group, GroupConfig, Transport};
use flux_tests::launch::{check_killed_after, check_passed};

const THIS: &str = "nvshmem::rank";

/// One machine, without what spans its GPUs' switch; and a heap that leaves other processes theirs.
const ON_ONE_MACHINE: &str = "export NVSHMEM_DISABLE_NVLS=1 NVSHMEM_REMOTE_TRANSPORT=none \
    NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=lo NVSHMEM_SYMMETRIC_SIZE=512M;";

/// As [`crate::nodes`]'s.
#[test]
#[ignore = "the other tests run it as the ranks of a group"]
fn rank() {
    run_part();
}

fn check(world_size: usize, part: &str) {
    check_passed(ON_ONE_MACHINE, world_size, THIS, part);
}

/// With the addresses that it gives, as on one node.
#[test]
fn two_processes_write_to_its_memory() {
    check(2, "nvshmem 0 table");
}

#[test]
fn four_processes_write_to_its_memory() {
    check(4, "nvshmem 0 table");
}

/// Each on a node of its own: no addresses are asked for.
#[test]
fn two_processes_put() {
    check(2, "nvshmem 2 table");
}

#[test]
fn four_processes_put() {
    check(4, "nvshmem 4 table");
}

#[test]
fn two_nodes_of_two_put() {
    check(4, "nvshmem 2 table");
}

#[test]
fn putting_gives_the_same_bits() {
    check(2, "nvshmem 2 bits");
    check(4, "nvshmem 2 bits");
    check(2, "nvshmem 0 bits");
}

#[test]
fn a_rank_that_does_not_come_is_an_error_in_time() {
    check(2, "nvshmem 2 late");
}

#[test]
fn a_killed_process_ends_the_others() {
    for (world_size, part, killed) in
        [(2, "nvshmem 2 ag-gemm", 1), (2, "nvshmem 2 gemm-rs", 0), (4, "nvshmem 2 gemm-rs", 3)]
    {
        check_killed_after(ON_ONE_MACHINE, world_size, THIS, part, killed, BUDGET / 2);
    }
}

#[test]
fn ranks_of_one_process_are_refused() {
    let mut config = GroupConfig::default();
    (config.backend, config.transport) = (BackendChoice::Cuda, Transport::Nvshmem);
    let error = Group::local_with(2, config).unwrap_err().to_string();
    assert!(error.contains("one rank in each process"), "{error}");
}
