//! Groups of real processes on the host backend, one rank each: this program, started once for each rank with torchrun's
//! variables.

use flux::{AgGemm, BackendChoice, DType, Group, GroupConfig, OpSpec};
use flux_tests::launch::{LIMIT, PART, Processes, call_forever, check_killed, check_passed, names_in};
use flux_tests::table::{CASES, Case, EDGES, check_bf16};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// How long a wait may last in the tests in which a rank is lost: much longer than its loss may go unnoticed.
const BUDGET: Duration = Duration::from_secs(120);

/// What the processes run: the part that they are told.
#[test]
#[ignore = "the other tests run it as the ranks of a group"]
fn rank() {
    let part = std::env::var(PART).unwrap();
    let mut config = GroupConfig::default();
    (config.backend, config.wait_budget) = (BackendChoice::Host, BUDGET);
    let group = Group::from_env_with(config).unwrap();
    match part.as_str() {
        "table" => {
            let world_size = group.world_size();
            let more = [case(133, 40, 24, world_size), case(300, 20, 16, world_size)];
            for case in CASES.into_iter().chain(EDGES).chain(more) {
                if case.world_size == world_size {
                    check_bf16(case, &|_| group.clone());
                }
            }
        }
        "memory" => {
            let spec = OpSpec::new(8, 4096, 65_536, DType::Bf16);
            let error = AgGemm::new(&group, spec).unwrap_err();
            let rank = group.local_ranks().start;
            let text = error.to_string();
            assert!(
                text.contains("out of memory") && (rank == 1) != text.contains("rank 1 could not"),
                "{text}"
            );
            AgGemm::new(&group, OpSpec::new(8, 8, 64, DType::Bf16)).unwrap();
        }
        op => call_forever(&group, op),
    }
}

const fn case(m: usize, n: usize, k: usize, world_size: usize) -> Case {
    Case { m, n, k, world_size }
}

/// Every case of the table of its number of processes, every operation in every way, and nothing is left behind.
#[test]
fn every_way_is_right() {
    for world_size in [1, 2, 3, 4, 8] {
        check_passed("", world_size, "rank", "table");
    }
}

/// When a process is killed, the others end at once, name it, and leave nothing behind: whichever it is, and whatever it did.
#[test]
fn a_killed_rank_ends_the_others() {
    let shared = names_in(Path::new("/dev/shm"));
    for (part, killed) in [("ag-gemm", 1), ("gemm-rs", 2), ("gemm-ar", 0)] {
        check_killed(3, "rank", part, killed, BUDGET / 4);
    }
    assert_eq!(names_in(Path::new("/dev/shm")), shared);
}

/// A rank that runs out of memory is an error on all ranks, and the group goes on.
#[test]
fn a_rank_without_memory_is_an_error_on_all() {
    let folder = TempDir::new().unwrap();
    // Enough for what is mapped before, on machines with many cores too, but not for 2 · 512 MiB more.
    let limit = |rank| if rank == 1 { "export MALLOC_ARENA_MAX=1; ulimit -v 900000;" } else { "" };
    let processes = Processes::start(2, "rank", "memory", folder.path(), limit);
    for (rank, ended) in processes.wait(LIMIT).into_iter().enumerate() {
        assert!(ended.success, "rank {rank}: {}", ended.errors);
    }
}

#[test]
fn without_a_launcher_there_is_a_hint() {
    let error = Group::from_env().unwrap_err().to_string();
    assert!(error.contains("flux launch") && error.contains("Group::local"), "{error}");
}
