//! Groups of processes whose memory is NVSHMEM's, on GPUs: where it gives addresses ranks write there by themselves, and where it
//! is not asked for any, between nodes, of which one machine plays all, it puts. Where there are fewer GPUs than ranks, processes
//! take turns on them. The tests fail where there is no NVSHMEM.

use crate::nodes::{BUDGET, run_part, told};
use flux::{
    BackendChoice, Delivery, Element, GemmAr, GemmRs, Group, GroupConfig, OpSpec, Operation, PathPreference,
    Transport, Whole,
};
use flux_tests::data::{Fill, matrix, product, relative_error};
use flux_tests::launch::{check_killed_after, check_passed};
use half::{bf16, f16};

const THIS: &str = "nvshmem::rank";

/// One machine, without what spans its GPUs' switch; and a heap that leaves other processes theirs.
const ON_ONE_MACHINE: &str = "export NVSHMEM_DISABLE_NVLS=1 NVSHMEM_REMOTE_TRANSPORT=none \
    NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=lo NVSHMEM_SYMMETRIC_SIZE=512M;";

/// As [`crate::nodes`]'s.
#[test]
#[ignore = "the other tests run it as the ranks of a group"]
fn rank() {
    match told() {
        (config, what) if what == "puts" => {
            let group = Group::from_env_with(config).unwrap();
            puts::<bf16>(&group, 4e-3);
            puts::<f16>(&group, 6e-4);
            group.barrier().unwrap();
        }
        _ => run_part(),
    }
}

/// GEMMs that put what goes out of reach by themselves: calls that follow each other at once, with more rows and fewer, operands
/// that can be loaded 16 bytes at a time and others.
fn puts<E: Element>(group: &Group, bound: f64) {
    for (n, k, max_m) in [(384, 512, 1100), (200, 60, 700)] {
        let mut spec = OpSpec::new(n, k, max_m, E::DTYPE);
        (spec.path, spec.delivery) = (PathPreference::Fused, Delivery::Direct);
        spec.one_shot_rows = Some(0);
        let scattered = GemmRs::new(group, spec.clone()).unwrap();
        let reduced = GemmAr::new(group, spec).unwrap();
        for (seed, m) in [(1, max_m), (2, 1), (3, 300), (4, max_m - 1), (5, 513)] {
            let (a, b) =
                (matrix::<E>(m * k, Fill::Normal, seed), matrix::<E>(n * k, Fill::Normal, seed + 10));
            let reference = product(&a, &b, m, n, k);
            for _ in 0..3 {
                check_puts(group, &scattered, (&a, &b, m), &reference, bound);
                check_puts(group, &reduced, (&a, &b, m), &reference, bound);
            }
        }
    }
}

fn check_puts<E: Element>(
    group: &Group,
    op: &impl Operation,
    (a, b, m): (&[E], &[E], usize),
    reference: &[f64],
    bound: f64,
) {
    let whole = Whole::place(group, op, a, b, m).unwrap();
    for _ in 0..4 {
        let choice = whole.enqueue().unwrap();
        assert!(choice.why.contains("the GEMM itself puts"), "{choice:?}");
    }
    let error = relative_error(&whole.result().unwrap(), reference);
    assert!(error < bound, "{m} rows: error {error:e}");
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

/// The epilogue puts, with NVSHMEM's device library linked in.
#[test]
fn gemms_put_by_themselves() {
    check(2, "nvshmem 2 puts");
    check(4, "nvshmem 4 puts");
    check(4, "nvshmem 2 puts");
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
