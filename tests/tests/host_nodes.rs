//! Groups on several nodes, of which one machine plays all, on the host backend: between nodes, ranks send and receive over
//! sockets. In one process, and in one per rank (`node_processes.rs` has real ones).

use flux::{
    AgGemm, BackendChoice, Bootstrap, BootstrapError, DType, Delivery, Direction, Error, GemmAr, GemmRs,
    Group, GroupConfig, Levels, OpSpec, PathPreference, Push, SignalLoss, Transport, Whole,
};
use flux_tests::data::{Fill, matrix};
use flux_tests::meeting::{Thread, on_threads};
use flux_tests::run;
use flux_tests::table::{Case, check_bf16, check_bits, check_e4m3};
use half::bf16;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn config(transport: Transport, fake_nodes: usize) -> GroupConfig {
    let mut config = GroupConfig::default();
    config.backend = BackendChoice::Host;
    (config.transport, config.fake_nodes) = (transport, NonZeroUsize::new(fake_nodes));
    config
}

/// Every operation in every way: nodes of equal size, which gather in two levels; of one rank, and of unequal size, which do not;
/// and no two ranks that address each other.
#[test]
fn every_way_is_right_in_one_process() {
    for (world_size, transport, nodes) in [
        (4, Transport::Auto, 2),
        (6, Transport::Auto, 2),
        (6, Transport::Auto, 3),
        (5, Transport::Auto, 2),
        (3, Transport::Auto, 3),
        (1, Transport::Sockets, 1),
        (5, Transport::Sockets, 0),
    ] {
        let group = Group::local_with(world_size, config(transport, nodes)).unwrap();
        assert_eq!(group.nodes().len(), nodes.max(1));
        check_bf16(Case { m: 67, n: 40, k: 24, world_size }, &|_| group.clone());
    }
}

/// More rows than a block of signals has, and fewer than ranks.
#[test]
fn blocks_and_empty_shards_travel() {
    let group = Group::local_with(4, config(Transport::Auto, 2)).unwrap();
    for m in [1100, 3] {
        check_bf16(Case { m, n: 24, k: 16, world_size: 4 }, &|_| group.clone());
    }
    check_e4m3(Case { m: 40, n: 24, k: 32, world_size: 4 }, &|_| group.clone());
}

#[test]
fn every_way_is_right_among_processes() {
    for (world_size, nodes) in [(4, 2), (6, 2)] {
        on_threads(world_size, |end| {
            let group = Group::with_bootstrap(end, config(Transport::Auto, nodes)).unwrap();
            assert_eq!(group.nodes().len(), nodes);
            check_bf16(Case { m: 37, n: 24, k: 16, world_size }, &|_| group.clone());
        });
    }
}

/// Call after call, with other numbers of rows in between.
#[test]
fn all_ways_give_the_same_bits() {
    for (world_size, nodes) in [(4, 2), (6, 3)] {
        let group = Group::local_with(world_size, config(Transport::Auto, nodes)).unwrap();
        check_bits(Case { m: 130, n: 96, k: 40, world_size }, 3, &|_| group.clone());
    }
}

/// However they are connected, ranks compute the same bits.
#[test]
fn all_transports_give_the_same_bits() {
    let (m, n, k, world_size) = (133, 40, 56, 6);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    let mut first: Option<Vec<Vec<u16>>> = None;
    for (transport, nodes) in [
        (Transport::P2p, 0),
        (Transport::Sockets, 0),
        (Transport::Auto, 2),
        (Transport::Auto, 3),
        (Transport::Auto, 6),
        (Transport::Auto, 4),
    ] {
        let group = Group::local_with(world_size, config(transport, nodes)).unwrap();
        for (delivery, direction) in
            [(Delivery::Direct, Direction::Push), (Delivery::Relayed, Direction::Pull)]
        {
            let mut spec = OpSpec::new(n, k, m, DType::Bf16);
            (spec.path, spec.delivery, spec.direction) = (PathPreference::Fused, delivery, Some(direction));
            (spec.push, spec.chunk_rows) = (Push::Kernel, Some(16)); // within a node
            spec.levels = Levels::One; // two: `host_levels.rs`
            let gathered = AgGemm::new(&group, spec.clone()).unwrap();
            let scattered = GemmRs::new(&group, spec.clone()).unwrap();
            let [one_shot, in_two_steps] = [m, 0].map(|rows| {
                let mut spec = spec.clone();
                spec.one_shot_rows = Some(rows);
                GemmAr::new(&group, spec).unwrap()
            });
            let outcomes = [
                run::ag_gemm(&group, &gathered, m, &a, &b),
                run::gemm_rs(&group, &scattered, m, &a, &b),
                run::gemm_ar(&group, &one_shot, m, &a, &b),
                run::gemm_ar(&group, &in_two_steps, m, &a, &b),
            ];
            let bits = outcomes.map(|outcome| outcome.unwrap().c.into_iter().map(bf16::to_bits).collect());
            let bits = bits.to_vec();
            let same = *first.get_or_insert_with(|| bits.clone()) == bits;
            assert!(same, "{transport}, {nodes} nodes, {delivery}, {direction}");
        }
    }
}

/// What comes from another node, and what is passed on, is in a traced call's record.
#[test]
fn traces_show_what_moves_between_nodes() {
    let mut config = config(Transport::Auto, 2);
    config.trace = true;
    let group = Group::local_with(4, config).unwrap();
    let (m, n, k) = (64, 16, 16);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
    let mut spec = OpSpec::new(n, k, m, DType::Bf16);
    spec.path = PathPreference::Fused;
    let op = AgGemm::new(&group, spec).unwrap();
    let whole = Whole::place(&group, &op, &a, &b, m).unwrap();
    whole.enqueue().unwrap();
    whole.synchronize().unwrap();
    // Its own shard to its node's other rank; one that it receives, and passes on.
    for (rank, trace) in op.traces().unwrap().iter().enumerate() {
        let mut routes: Vec<_> =
            trace.transfers.iter().map(|moved| (moved.shard, moved.from, moved.to)).collect();
        routes.sort_unstable();
        let (neighbour, mirror) = (rank ^ 1, rank ^ 2);
        let mut expected = [(rank, rank, neighbour), (mirror, mirror, rank), (mirror, rank, neighbour)];
        expected.sort_unstable();
        assert_eq!(routes, expected, "rank {rank}");
    }
}

/// A signal that is lost between nodes is an expired wait of the rank that should have seen it.
#[test]
fn a_lost_signal_is_named() {
    for path in [PathPreference::Fused, PathPreference::Unfused] {
        let mut config = config(Transport::Auto, 2);
        config.wait_budget = Duration::from_millis(200);
        config.signal_loss = Some(SignalLoss { from: 2, to: 0 });
        let group = Group::local_with(4, config).unwrap();
        let (m, n, k) = (64, 16, 16);
        let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
        let mut spec = OpSpec::new(n, k, m, DType::Bf16);
        spec.path = path;
        let op = AgGemm::new(&group, spec).unwrap();
        let whole = Whole::place(&group, &op, &a, &b, m).unwrap();
        whole.enqueue().unwrap();
        let error = whole.synchronize().unwrap_err();
        assert!(matches!(error, Error::WaitExpired { rank: 0, peer: 2, .. }), "{path:?}: {error}");
    }
}

/// A rank of another node that makes no call is an error within the budget, and names it.
#[test]
fn a_rank_that_does_not_come_is_an_error_in_time() {
    let mut config = config(Transport::Auto, 2);
    config.wait_budget = Duration::from_millis(300);
    let errors = on_threads(2, |end| {
        let group = Group::with_bootstrap(end, config.clone()).unwrap();
        let (m, n, k) = (30, 8, 8);
        let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
        let op = AgGemm::new(&group, OpSpec::new(n, k, m, DType::Bf16)).unwrap();
        let whole = Whole::place(&group, &op, &a, &b, m).unwrap();
        let begin = Instant::now();
        if group.local_ranks().start == 1 {
            std::thread::sleep(Duration::from_secs(1));
            return None;
        }
        whole.enqueue().unwrap();
        let error = whole.synchronize().unwrap_err();
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        Some(error.to_string())
    });
    let error = errors[0].as_ref().unwrap();
    assert!(error.contains("rank 1") && error.contains("300ms"), "{error}");
}

/// The last rank's channel: with its `dies_at`th step it ends, as a process that is killed does, before it has heard of the others'.
#[derive(Debug)]
struct Mortal {
    end: Arc<Thread>,
    dies_at: usize,
    steps: AtomicUsize,
}

impl Bootstrap for Mortal {
    fn rank(&self) -> usize {
        self.end.rank()
    }

    fn world_size(&self) -> usize {
        self.end.world_size()
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let heard = self.end.all_gather(bytes);
        let dies = self.steps.fetch_add(1, Ordering::Relaxed) + 1 == self.dies_at;
        if !dies || self.rank() + 1 < self.world_size() {
            return heard;
        }
        self.end.lose(self.rank());
        Err("killed".into())
    }

    fn lost_rank(&self) -> Option<usize> {
        self.end.lost_rank()
    }
}

/// Whenever a rank ends while a group is formed, the others do not wait for what it would have done next, and name it.
#[test]
fn a_rank_that_ends_while_a_group_is_formed_is_named_in_time() {
    let form = |dies_at| {
        on_threads(3, |end| {
            let (begin, bootstrap) = (Instant::now(), Mortal { end, dies_at, steps: AtomicUsize::new(0) });
            let formed = Group::with_bootstrap(Arc::new(bootstrap), config(Transport::Auto, 3));
            assert!(begin.elapsed() < Duration::from_secs(10), "step {dies_at}: {:?}", begin.elapsed());
            formed.map(|group| group.local_ranks().start).map_err(|error| error.to_string())
        })
    };
    let outcomes: Vec<_> = (1..40).map(form).take_while(|outcomes| outcomes[2].is_err()).collect();
    assert!((8..39).contains(&outcomes.len()), "{} steps", outcomes.len());
    for (step, outcomes) in (1..).zip(outcomes) {
        for outcome in &outcomes[..2] {
            // With the last steps the group is formed; then its loss is noticed later.
            let named = outcome.as_ref().err().is_some_and(|error| error.contains("rank 2"));
            assert!(named || outcome.is_ok() && step > 8, "step {step}: {outcomes:?}");
        }
    }
}

/// Ranks of different nodes do not see what the others were called with: what they send each other tells them.
#[test]
fn ranks_that_disagree_across_nodes_are_told() {
    let mut config = config(Transport::Auto, 2);
    config.wait_budget = Duration::from_millis(500);
    let errors = on_threads(2, |end| {
        let group = Group::with_bootstrap(end, config.clone()).unwrap();
        let (n, k, m) = (8, 8, 16 + 2 * group.local_ranks().start);
        let op = GemmRs::new(&group, OpSpec::new(n, k, 32, DType::Bf16)).unwrap();
        let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
        let whole = Whole::place(&group, &op, &a, &b, m).unwrap();
        whole.enqueue().and_then(|_| whole.synchronize()).unwrap_err().to_string()
    });
    let told = errors.iter().filter(|error| error.contains("the same rows")).count();
    assert!(told > 0, "{errors:?}");
}

#[test]
fn what_cannot_be_is_refused() {
    for (transport, nodes, expected) in [
        (Transport::P2p, 2, "different nodes cannot address"),
        (Transport::Nccl, 0, "runs on the host"),
        (Transport::Nvshmem, 0, "NVSHMEM connects GPUs"),
        (Transport::Auto, 5, "5 nodes are more than 4 ranks"),
    ] {
        let error = Group::local_with(4, config(transport, nodes)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let errors = on_threads(2, |end| {
        let nodes = 1 + flux::Bootstrap::rank(&*end);
        Group::with_bootstrap(end, config(Transport::Auto, nodes)).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("fake nodes")), "{errors:?}");
}
