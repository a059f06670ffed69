//! Groups of processes that exchange by NCCL, on GPUs: all of them, or those of different nodes, of which one machine plays
//! all. Where there are fewer GPUs than ranks, processes take turns on them, which takes NCCL 2.30 or newer. The tests fail
//! where there is no NCCL.

use flux::{
    AgGemm, BackendChoice, DType, Delivery, GemmAr, GemmRs, Group, GroupConfig, Levels, OpSpec, Operation,
    PathPreference, Summation, Transport, Whole,
};
use flux_tests::data::{Fill, matrix, relative_error};
use flux_tests::launch::{PART, call_forever, check_killed_after, check_passed};
use flux_tests::table::{Case, check_bf16};
use half::bf16;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

const THIS: &str = "nodes::rank";

/// Several ranks on one GPU are something that NCCL has to be asked for.
const SHARE_GPUS: &str = "export NCCL_MULTI_RANK_GPU_ENABLE=1;";

/// How long a wait may last where a rank is lost: much longer than its loss may go unnoticed.
pub(crate) const BUDGET: Duration = Duration::from_secs(120);

/// What the processes run: the part that they are told, `TRANSPORT NODES WHAT`.
#[test]
#[ignore = "the other tests run it as the ranks of a group"]
fn rank() {
    run_part();
}

/// Runs the part that this process is told.
pub(crate) fn run_part() {
    let (mut config, what) = told();
    match what.as_str() {
        "late" => config.wait_budget = Duration::from_secs(2),
        "bits" => return same_bits(&config),
        "levels" => return two_levels(&config),
        _ => {}
    }
    let group = Group::from_env_with(config).unwrap();
    match what.as_str() {
        "table" => {
            let world_size = group.world_size();
            // Processes that share a GPU take turns on it in every step of an exchange: few chunks, and fewer cases for more ranks.
            let cases = [(64, 1000, 1000), (600, 384, 512), (3, 64, 64), (7, 8, 8), (40, 96, 20)];
            for (m, n, k) in cases.into_iter().take(if world_size > 2 { 2 } else { cases.len() }) {
                check_bf16(Case { m, n, k, world_size }, &|_| group.clone());
            }
        }
        "late" => late(&group),
        op => call_forever(&group, op),
    }
}

/// How the part's group is formed, and what it does.
pub(crate) fn told() -> (GroupConfig, String) {
    let part = std::env::var(PART).unwrap();
    let words: Vec<_> = part.split(' ').collect();
    let [transport, nodes, what] = words[..] else { panic!("{part}") };
    let mut config = GroupConfig::default();
    (config.backend, config.wait_budget) = (BackendChoice::Cuda, BUDGET);
    config.transport = transport.parse().unwrap();
    config.fake_nodes = nodes.parse().ok().and_then(NonZeroUsize::new);
    (config, what.to_owned())
}

/// A rank that makes no call is an error of the other within the budget.
fn late(group: &Group) {
    let (m, n, k) = (64, 64, 64);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
    let op = AgGemm::new(group, OpSpec::new(n, k, m, DType::Bf16)).unwrap();
    let whole = Whole::place(group, &op, &a, &b, m).unwrap();
    if group.local_ranks().start == 1 {
        std::thread::sleep(Duration::from_secs(10));
        return;
    }
    let begin = std::time::Instant::now();
    let error = whole.enqueue().and_then(|_| whole.synchronize()).unwrap_err().to_string();
    assert!(begin.elapsed() < Duration::from_secs(9), "{:?}", begin.elapsed());
    assert!(error.contains("2s"), "{error}");
}

/// Ranks that exchange compute what ranks that address each other do, bit by bit; on as many SMs, for how tiles are split along
/// K may depend on that.
fn same_bits(config: &GroupConfig) {
    let mut config = config.clone();
    config.sm_budget = NonZeroU32::new(64);
    let mut addressed = config.clone();
    (addressed.transport, addressed.fake_nodes) = (Transport::P2p, None);
    let [one, other] = [config, addressed].map(|config| {
        let group = Group::from_env_with(config).unwrap();
        let results = bits(&group);
        group.barrier().unwrap();
        results
    });
    assert!(one == other);
}

fn bits(group: &Group) -> Vec<Vec<u16>> {
    let (m, n, k) = (300, 192, 256);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    let run = |op: &dyn Fn() -> Vec<bf16>| op().into_iter().map(bf16::to_bits).collect();
    fn result<Op: Operation>(group: &Group, op: &Op, a: &[bf16], b: &[bf16], m: usize) -> Vec<bf16> {
        let whole = Whole::place(group, op, a, b, m).unwrap();
        whole.enqueue().unwrap();
        whole.result().unwrap()
    }
    let mut all = Vec::new();
    for path in [PathPreference::Fused, PathPreference::Unfused] {
        let mut spec = OpSpec::new(n, k, m, DType::Bf16);
        (spec.path, spec.one_shot_rows, spec.levels) = (path, Some(100), Levels::One);
        let gathered = AgGemm::new(group, spec.clone()).unwrap();
        let scattered = GemmRs::new(group, spec.clone()).unwrap();
        let reduced = GemmAr::new(group, spec).unwrap();
        all.push(run(&|| result(group, &gathered, &a, &b, m)));
        all.push(run(&|| result(group, &scattered, &a, &b, m)));
        all.push(run(&|| result(group, &reduced, &a, &b, m)));
        all.push(run(&|| result(group, &reduced, &a[..96 * k], &b, 96)));
    }
    all
}

/// Sums in two levels are the same bits in every way and call, in both ways of delivery and of summing, and close to those of one.
fn two_levels(config: &GroupConfig) {
    let mut config = config.clone();
    config.sm_budget = NonZeroU32::new(64);
    let group = Group::from_env_with(config).unwrap();
    let (m, n, k) = (1300, 192, 256);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    let result = |levels, path, delivery, summation| {
        let mut spec = OpSpec::new(n, k, m, DType::Bf16);
        (spec.levels, spec.path, spec.delivery, spec.summation) = (levels, path, delivery, summation);
        let op = GemmRs::new(&group, spec).unwrap();
        assert_eq!(op.levels(), levels);
        let whole = Whole::place(&group, &op, &a, &b, m).unwrap();
        let results: Vec<Vec<bf16>> = (0..5)
            .map(|_| {
                whole.enqueue().unwrap();
                whole.result().unwrap()
            })
            .collect();
        assert!(results.iter().all(|c| *c == results[0]), "{levels} {path:?} {delivery} {summation}");
        results.into_iter().next().unwrap()
    };
    let (fused, unfused) = (PathPreference::Fused, PathPreference::Unfused);
    let two = result(Levels::Two, fused, Delivery::Relayed, Summation::Separate);
    for (path, delivery, summation) in [
        (fused, Delivery::Relayed, Summation::Auto),
        (fused, Delivery::Direct, Summation::Separate),
        (fused, Delivery::Direct, Summation::Auto),
        (unfused, Delivery::Auto, Summation::Auto),
        (PathPreference::Chunked, Delivery::Auto, Summation::Auto),
    ] {
        assert!(result(Levels::Two, path, delivery, summation) == two, "{path:?} {delivery} {summation}");
    }
    let one = result(Levels::One, unfused, Delivery::Auto, Summation::Auto);
    let one: Vec<f64> = one.into_iter().map(f64::from).collect();
    assert!(relative_error(&two, &one) < 4e-3);
}

fn check(world_size: usize, part: &str) {
    check_passed(SHARE_GPUS, world_size, THIS, part);
}

#[test]
fn two_processes_exchange_by_nccl() {
    check(2, "nccl 0 table");
}

#[test]
fn four_processes_exchange_by_nccl() {
    check(4, "nccl 0 table");
}

#[test]
fn two_nodes_of_two_exchange_by_nccl() {
    check(4, "auto 2 table");
}

#[test]
fn exchanging_gives_the_same_bits() {
    check(2, "nccl 0 bits");
    check(4, "auto 2 bits");
}

#[test]
fn two_nodes_of_two_sum_in_two_levels() {
    check(4, "auto 2 levels");
}

#[test]
fn a_rank_that_does_not_come_is_an_error_in_time() {
    check(2, "nccl 0 late");
}

#[test]
fn a_killed_process_ends_the_others_on_all_nodes() {
    for (world_size, part, killed) in
        [(2, "nccl 0 ag-gemm", 1), (2, "nccl 0 gemm-rs", 0), (4, "auto 2 gemm-rs", 3)]
    {
        check_killed_after(SHARE_GPUS, world_size, THIS, part, killed, BUDGET / 2);
    }
}

/// In one process, ranks that exchange by NCCL need a GPU each; the error says what to do instead.
#[test]
fn ranks_of_one_process_do_not_share_a_gpu() {
    let mut config = GroupConfig::default();
    (config.backend, config.transport, config.gpu) = (BackendChoice::Cuda, Transport::Nccl, Some(0));
    let error = Group::local_with(2, config).unwrap_err().to_string();
    assert!(error.contains("processes of their own"), "{error}");
}
