//! Groups of real processes on the host backend, one rank each: this program, started once for each rank with torchrun's
//! variables.

use flux::{
    AgGemm, BackendChoice, DType, GemmAr, GemmRs, Group, GroupConfig, OpSpec, Operation, PathPreference,
    Whole,
};
use flux_tests::data::{Fill, matrix};
use flux_tests::launch::{PART, Processes};
use flux_tests::table::{CASES, Case, EDGES, check_bf16};
use half::bf16;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What a rank may take, at most, on a machine that is busy with other things.
const LIMIT: Duration = Duration::from_secs(300);

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
                if case.world_size == world_size && case.m < 4000 {
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
        "ag-gemm" => forever(&group, &AgGemm::new(&group, spec()).unwrap()),
        "gemm-rs" => forever(&group, &GemmRs::new(&group, spec()).unwrap()),
        "gemm-ar" => forever(&group, &GemmAr::new(&group, spec()).unwrap()),
        other => panic!("{other}"),
    }
}

const fn case(m: usize, n: usize, k: usize, world_size: usize) -> Case {
    Case { m, n, k, world_size }
}

fn spec() -> OpSpec {
    let mut spec = OpSpec::new(64, 64, 200, DType::Bf16);
    (spec.path, spec.one_shot_rows) = (PathPreference::Fused, Some(100));
    spec
}

/// Calls `op` until that fails, and says so; the file `called-R` shows that rank R has begun.
fn forever(group: &Group, op: &impl Operation) {
    let rank = group.local_ranks().start;
    let OpSpec { n, k, max_m, .. } = *op.spec();
    let (a, b) = (matrix::<bf16>(max_m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
    let calls = [max_m, 50].map(|m| Whole::place(group, op, &a[..m * k], &b, m).unwrap());
    let once = || calls.iter().try_for_each(|call| call.enqueue().and_then(|_| call.synchronize()));
    once().unwrap();
    std::fs::write(std::env::temp_dir().join(format!("called-{rank}")), "").unwrap();
    loop {
        if let Err(error) = once() {
            eprintln!("rank {rank} ends: {error}");
            std::process::exit(3);
        }
    }
}

/// Every case of the table of its number of processes, every operation in every way, and nothing is left behind.
#[test]
fn every_way_is_right() {
    for world_size in [1, 2, 3, 4, 8] {
        let folder = TempDir::new().unwrap();
        let processes = Processes::start(world_size, "rank", "table", folder.path(), |_| "");
        for (rank, ended) in processes.wait(LIMIT).into_iter().enumerate() {
            assert!(ended.success, "rank {rank} of {world_size}: {}", ended.errors);
        }
        assert_eq!(left_in(folder.path()), [""; 0], "{world_size} ranks");
    }
}

/// When a process is killed, the others end at once, name it, and leave nothing behind: whichever it is, and whatever it did.
#[test]
fn a_killed_rank_ends_the_others() {
    let shared = left_in(Path::new("/dev/shm"));
    for (part, killed) in [("ag-gemm", 1), ("gemm-rs", 2), ("gemm-ar", 0)] {
        let folder = TempDir::new().unwrap();
        let mut processes = Processes::start(3, "rank", part, folder.path(), |_| "");
        let begin = Instant::now();
        let called = |rank: usize| folder.path().join(format!("called-{rank}"));
        while !(0..3).all(|rank| called(rank).exists()) {
            assert!(begin.elapsed() < LIMIT, "{part}: the ranks do not begin");
            std::thread::sleep(Duration::from_millis(10));
        }
        processes.kill(killed);
        for (rank, ended) in processes.wait(LIMIT).into_iter().enumerate().filter(|&(rank, _)| rank != killed)
        {
            assert!(!ended.success && ended.after < BUDGET / 4, "{part}, rank {rank}: {ended:?}");
            assert!(ended.errors.contains(&format!("rank {killed} is lost")), "{part}: {}", ended.errors);
        }
        (0..3).for_each(|rank| std::fs::remove_file(called(rank)).unwrap());
        assert_eq!(left_in(folder.path()), [""; 0], "{part}");
    }
    assert_eq!(left_in(Path::new("/dev/shm")), shared);
}

/// A rank that runs out of memory is an error on all ranks, and the group goes on.
#[test]
fn a_rank_without_memory_is_an_error_on_all() {
    let folder = TempDir::new().unwrap();
    // Enough for what is mapped before, but not for 2 · 512 MiB more.
    let limit = |rank| if rank == 1 { "ulimit -v 1400000;" } else { "" };
    let processes = Processes::start(2, "rank", "memory", folder.path(), limit);
    for (rank, ended) in processes.wait(LIMIT).into_iter().enumerate() {
        assert!(ended.success, "rank {rank}: {}", ended.errors);
    }
}

/// The names in a folder, in order.
fn left_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
