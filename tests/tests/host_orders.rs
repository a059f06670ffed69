//! Every order on the host backend: machines of every class, of 2 to 8 ranks, whose patterns are forced on ranks that are connected
//! otherwise. (`host_timelines.rs` looks at what happens when.)

use flux::{
    AgGemm, BackendChoice, DType, Delivery, Direction, Error, GemmAr, GemmRs, Group, GroupConfig, Levels,
    OpSpec, Order, Path, PathPreference, Pattern, Placement, Push, SignalLoss, Whole,
};
use flux_tests::data::{Fill, matrix, product, relative_error};
use flux_tests::machines::{in_words, of_every_class};
use flux_tests::meeting::on_threads;
use flux_tests::run;
use half::bf16;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

fn config(fake_nodes: usize) -> GroupConfig {
    let mut config = GroupConfig::default();
    config.backend = BackendChoice::Host;
    config.fake_nodes = NonZeroUsize::new(fake_nodes);
    config
}

/// The whole problem: shards that differ, and some that are less than a tile.
const N: usize = 24;
const K: usize = 16;

struct Data {
    m: usize,
    a: Vec<bf16>,
    b: Vec<bf16>,
    reference: Vec<f64>,
}

impl Data {
    fn new(m: usize) -> Self {
        let (a, b) = (matrix::<bf16>(m * K, Fill::Normal, 1), matrix::<bf16>(N * K, Fill::Normal, 2));
        Self { m, reference: product(&a, &b, m, N, K), a, b }
    }
}

/// The bits of all operations in one order, called three times, with other numbers of rows in between, in one way.
fn bits(group: &Group, spec: &OpSpec, data: &Data, what: &str) -> [Vec<u16>; 3] {
    let ops = (
        AgGemm::new(group, spec.clone()).unwrap(),
        GemmRs::new(group, spec.clone()).unwrap(),
        GemmAr::new(group, spec.clone()).unwrap(),
    );
    let mut first: Option<[Vec<u16>; 3]> = None;
    for rows in [data.m, 3, data.m] {
        let a = &data.a[..rows * K];
        let outcomes = [
            run::ag_gemm(group, &ops.0, rows, a, &data.b),
            run::gemm_rs(group, &ops.1, rows, a, &data.b),
            run::gemm_ar(group, &ops.2, rows, a, &data.b),
        ];
        let outcomes = outcomes.map(|outcome| outcome.unwrap_or_else(|error| panic!("{what}: {error}")).c);
        for c in &outcomes {
            let error = relative_error(c, &data.reference[..rows * N]);
            assert!(error < 4e-3, "{what}, {rows} rows: error {error:e}");
        }
        let bits = outcomes.map(|c| c.into_iter().map(bf16::to_bits).collect::<Vec<_>>());
        if rows == data.m {
            assert!(*first.get_or_insert_with(|| bits.clone()) == bits, "{what}: the next call differs");
        }
    }
    first.unwrap()
}

/// All ways through all operations in one order, pushed and pulled, by chunks and by whole shards.
fn check_ways(
    group: &Group,
    (order, levels): (&Pattern, Levels),
    data: &Data,
    expected: &mut Option<[Vec<u16>; 3]>,
    what: &str,
) {
    for (path, delivery, direction, chunk_rows) in [
        (PathPreference::Fused, Delivery::Relayed, Direction::Push, Some(2)),
        (PathPreference::Fused, Delivery::Direct, Direction::Pull, Some(3)),
        (PathPreference::Chunked, Delivery::Auto, Direction::Push, None),
        (PathPreference::Unfused, Delivery::Auto, Direction::Pull, Some(2)),
    ] {
        let mut spec = OpSpec::new(N, K, data.m, DType::Bf16);
        (spec.path, spec.delivery, spec.direction, spec.chunk_rows) =
            (path, delivery, Some(direction), chunk_rows);
        (spec.order, spec.one_shot_rows, spec.levels) = (Order::Of(order.clone()), Some(0), levels);
        // What is a rank's own by kernel, what it passes on by copies.
        spec.push = if path == PathPreference::Chunked { Push::Kernel } else { Push::Auto };
        let what = format!("{what}, {path:?} {delivery} {direction} {chunk_rows:?}");
        let bits = bits(group, &spec, data, &what);
        assert!(*expected.get_or_insert_with(|| bits.clone()) == bits, "{what}: other bits");
    }
}

/// The same bits in every order, on ranks that all address each other, and on nodes between which they do not.
#[test]
fn every_class_is_right_in_every_way() {
    for world_size in 2..=8 {
        let data = Data::new(5 * world_size + 3);
        let mut expected = None;
        let together = Group::local_with(world_size, config(0)).unwrap();
        for machine in of_every_class(world_size) {
            let (order, what) = (machine.pattern(), in_words(&machine));
            let way = (&order, Levels::One);
            check_ways(&together, way, &data, &mut expected, &what);
            if machine.nodes() > 1 {
                let apart = Group::local_with(world_size, config(machine.nodes())).unwrap();
                check_ways(&apart, way, &data, &mut expected, &format!("{what}, apart"));
            }
        }
    }
}

/// An order need not know what the ranks are connected by: what is out of reach is sent and received, and sums stay the same; in two
/// levels, those of as many nodes.
#[test]
fn any_order_goes_over_any_nodes() {
    let data = Data::new(37);
    let mut expected = None;
    for nodes in [2, 3] {
        let group = Group::local_with(6, config(nodes)).unwrap();
        let mut in_two_levels = None;
        for order in [
            Pattern::ring(6),
            Pattern::two_level(&[4, 2]),
            Pattern::islands(&[1, 2, 3]),
            Pattern::Ring(vec![vec![5, 0, 3], vec![1, 4, 2]]),
        ] {
            let what = format!("{order} over {nodes} nodes");
            check_ways(&group, (&order, Levels::One), &data, &mut expected, &what);
            check_ways(&group, (&order, Levels::Two), &data, &mut in_two_levels, &what);
        }
        // Nodes of unequal size take two levels by themselves.
        let uneven = Group::local_with(5, config(nodes)).unwrap();
        let op = AgGemm::new(&uneven, OpSpec::new(N, K, data.m, DType::Bf16)).unwrap();
        assert!(matches!(op.pattern(), Pattern::Nested(parts) if parts.len() == nodes));
        let c = run::ag_gemm(&uneven, &op, data.m, &data.a, &data.b).unwrap().c;
        assert!(relative_error(&c, &data.reference) < 4e-3);
    }
}

#[test]
fn every_order_is_right_among_processes() {
    for (world_size, nodes, order) in [
        (4, 0, Pattern::ring(4)),
        (5, 0, Pattern::two_level(&[2, 3])),
        (4, 0, Pattern::islands(&[2, 2])),
        (4, 2, Pattern::nodes(2, &Pattern::ring(2))),
        (6, 2, Pattern::nodes(2, &Pattern::two_level(&[1, 2]))),
    ] {
        on_threads(world_size, |end| {
            let group = Group::with_bootstrap(end, config(nodes)).unwrap();
            check_ways(
                &group,
                (&order, Levels::Auto),
                &Data::new(29),
                &mut None,
                &format!("{order} among processes"),
            );
        });
    }
}

#[test]
fn orders_that_cannot_be_are_refused() {
    let group = Group::local_with(4, config(0)).unwrap();
    let spec = |order| {
        let mut spec = OpSpec::new(N, K, 16, DType::Bf16);
        spec.order = order;
        spec
    };
    let of_three = GemmRs::new(&group, spec(Order::Of(Pattern::ring(3)))).unwrap_err();
    assert!(matches!(of_three, Error::OtherOrder { ranks: 3, world_size: 4, .. }), "{of_three}");
    // Through pinned host memory nothing is passed on, but sums go straight to their owners in any order.
    let mut through_host = config(0);
    through_host.peer_memory = Placement::PinnedHost;
    let through_host = Group::local_with(4, through_host).unwrap();
    let refused = AgGemm::new(&through_host, spec(Order::Ring)).unwrap_err().to_string();
    assert!(refused.contains("pinned host memory") && refused.contains("full-mesh"), "{refused}");
    GemmRs::new(&through_host, spec(Order::Ring)).unwrap();
    // Ranks that do not agree about it are told.
    on_threads(2, |end| {
        let order = if flux::Bootstrap::rank(&*end) == 0 { Order::Ring } else { Order::FullMesh };
        let group = Group::with_bootstrap(end, config(0)).unwrap();
        let error = AgGemm::new(&group, spec(order)).unwrap_err().to_string();
        assert!(error.contains("all ranks must build the same operations"), "{error}");
    });
}

/// What is lost on its way round a ring is an expired wait that names the rank whose rows did not come, and nobody waits for ever. (Rank
/// 0 waits for what rank 1 would pass on: who began to wait first reports first.)
#[test]
fn a_lost_signal_in_a_ring_is_named() {
    for (path, direction) in [
        (PathPreference::Fused, Direction::Push),
        (PathPreference::Unfused, Direction::Push),
        (PathPreference::Fused, Direction::Pull),
    ] {
        let mut config = config(0);
        config.wait_budget = Duration::from_millis(500);
        config.signal_loss = Some(SignalLoss { from: 3, to: 1 });
        let group = Group::local_with(4, config).unwrap();
        let data = Data::new(64);
        let mut spec = OpSpec::new(N, K, data.m, DType::Bf16);
        (spec.path, spec.direction, spec.order) = (path, Some(direction), Order::Ring);
        let op = AgGemm::new(&group, spec).unwrap();
        let whole = Whole::place(&group, &op, &data.a, &data.b, data.m).unwrap();
        let begin = Instant::now();
        assert!(matches!(whole.enqueue().unwrap().path, Path::Fused | Path::Unfused));
        let error = whole.synchronize().unwrap_err();
        assert!(
            matches!(error, Error::WaitExpired { rank: 0 | 1, peer: 3, .. }),
            "{path:?} {direction}: {error}"
        );
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    }
}

/// A rank that does not come holds up the whole ring, until it is lost: then all waits end, and name it.
#[test]
fn a_lost_rank_ends_all_waits_of_a_ring() {
    let mut config = config(0);
    config.wait_budget = Duration::from_secs(60);
    on_threads(4, |end| {
        let group = Group::with_bootstrap(end.clone(), config.clone()).unwrap();
        let data = Data::new(40);
        let mut spec = OpSpec::new(N, K, data.m, DType::Bf16);
        spec.order = Order::Ring;
        let op = AgGemm::new(&group, spec).unwrap();
        let whole = Whole::place(&group, &op, &data.a, &data.b, data.m).unwrap();
        if group.local_ranks().start == 2 {
            std::thread::sleep(Duration::from_millis(100));
            end.lose(2);
            return;
        }
        let begin = Instant::now();
        whole.enqueue().unwrap();
        let error = whole.synchronize().unwrap_err();
        assert!(matches!(error, Error::RankLost { lost: 2, .. }), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    });
}
