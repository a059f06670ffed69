//! ReduceScatter in two levels on the host backend: what goes to another node is summed in its own before.

use flux::{
    BackendChoice, DType, Delivery, Direction, Error, GemmAr, GemmRs, Group, GroupConfig, Levels, OpSpec,
    PathPreference, SignalLoss, Summation, Transport, Whole,
};
use flux_tests::data::{Fill, matrix};
use flux_tests::meeting::on_threads;
use flux_tests::run;
use flux_tests::table::{Case, check_bf16};
use half::bf16;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// Ranks and nodes.
const LAYOUTS: [(usize, usize); 4] = [(4, 2), (6, 2), (6, 3), (8, 2)];

fn config(nodes: usize) -> GroupConfig {
    let mut config = GroupConfig::default();
    (config.backend, config.fake_nodes) = (BackendChoice::Host, NonZeroUsize::new(nodes));
    config
}

fn group(world_size: usize, nodes: usize) -> Group {
    Group::local_with(world_size, config(nodes)).unwrap()
}

fn spec((m, n, k): (usize, usize, usize), levels: Levels) -> OpSpec {
    let mut spec = OpSpec::new(n, k, m, DType::Bf16);
    (spec.levels, spec.one_shot_rows) = (levels, Some(0));
    spec
}

/// All ways that a ReduceScatter can go.
fn ways(spec: &OpSpec) -> Vec<OpSpec> {
    let mut ways = Vec::new();
    for delivery in [Delivery::Direct, Delivery::Relayed] {
        for summation in [Summation::Separate, Summation::Folded] {
            let mut way = spec.clone();
            (way.path, way.delivery, way.summation) = (PathPreference::Fused, delivery, summation);
            ways.push(way);
        }
    }
    for path in [PathPreference::Unfused, PathPreference::Chunked] {
        for direction in [Direction::Push, Direction::Pull] {
            let mut way = spec.clone();
            (way.path, way.direction, way.chunk_rows) = (path, Some(direction), Some(5));
            ways.push(way);
        }
    }
    ways
}

fn bits(c: &[bf16]) -> Vec<u16> {
    c.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_way_is_right() {
    // The other layouts: `host_nodes.rs`.
    check_bf16(Case { m: 67, n: 24, k: 40, world_size: 8 }, &|world_size| group(world_size, 2));
    check_bf16(Case { m: 1700, n: 8, k: 12, world_size: 6 }, &|world_size| group(world_size, 3));
}

#[test]
fn every_way_is_right_among_processes() {
    on_threads(6, |end| {
        let group = Group::with_bootstrap(end, config(3)).unwrap();
        check_bf16(Case { m: 37, n: 24, k: 18, world_size: 6 }, &|_| group.clone());
    });
}

/// Integers of which no sum is rounded in fp32, and many are in bf16.
fn integers(len: usize, seed: usize) -> Vec<bf16> {
    (0..len).map(|index| bf16::from_f32(((index * 7919 + seed * 104_729) % 27) as f32 - 11.0)).collect()
}

/// The ranks' partial sums, and from there what is documented: of one level, or of two.
fn expected(
    (m, n, k): (usize, usize, usize),
    a: &[bf16],
    b: &[bf16],
    (ranks, nodes): (usize, usize),
) -> Vec<bf16> {
    let shards = |total| flux::Shards::new(total, ranks).unwrap();
    let per_node = ranks / nodes;
    let mut c = Vec::new();
    for (row, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column))) {
        let part = |rank: usize| {
            let depth = shards(k).range(rank);
            let exact = depth.map(|at| a[row * k + at].to_f32() * b[column * k + at].to_f32()).sum::<f32>();
            bf16::from_f32(exact).to_f32()
        };
        let owner = (0..ranks).find(|&rank| shards(m).range(rank).contains(&row)).unwrap();
        let mut sum = 0.0_f32;
        for node in 0..nodes {
            let parts = (node * per_node..(node + 1) * per_node).map(part);
            if owner / per_node == node {
                parts.for_each(|part| sum += part);
            } else {
                sum += bf16::from_f32(parts.fold(0.0, |sum, part| sum + part)).to_f32();
            }
        }
        c.push(bf16::from_f32(sum));
    }
    c
}

/// Bit by bit, in every way; and one level is as one node.
#[test]
fn sums_are_the_documented_ones() {
    let (m, n, k) = (29, 10, 240);
    let (a, b) = (integers(m * k, 1), integers(n * k, 2));
    for (world_size, nodes) in LAYOUTS {
        let group = group(world_size, nodes);
        let [one, two] = [1, nodes].map(|nodes| expected((m, n, k), &a, &b, (world_size, nodes)));
        assert!(bits(&one) != bits(&two), "nothing was rounded");
        for (levels, expected) in [(Levels::One, &one), (Levels::Two, &two), (Levels::Auto, &two)] {
            for spec in ways(&spec((m, n, k), levels)) {
                let op = GemmRs::new(&group, spec.clone()).unwrap();
                assert_eq!(op.levels() == Levels::One, levels == Levels::One);
                let c = run::gemm_rs(&group, &op, m, &a, &b).unwrap().c;
                assert!(bits(&c) == bits(expected), "{world_size} ranks, {nodes} nodes: {spec:?}");
            }
        }
        let reduced = GemmAr::new(&group, spec((m, n, k), Levels::Auto)).unwrap();
        assert!(bits(&run::gemm_ar(&group, &reduced, m, &a, &b).unwrap().c) == bits(&two));
    }
}

/// Call after call, with fewer rows in between.
#[test]
fn bits_are_the_same_in_every_call() {
    let (m, n, k) = (300, 24, 48);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    for (world_size, nodes) in LAYOUTS {
        let group = group(world_size, nodes);
        let mut first: Option<Vec<u16>> = None;
        for spec in ways(&spec((m, n, k), Levels::Two)) {
            let op = GemmRs::new(&group, spec.clone()).unwrap();
            let whole = Whole::place(&group, &op, &a, &b, m).unwrap();
            for call in 0..20 {
                whole.enqueue().unwrap();
                if call % 4 == 3 {
                    let c = bits(&whole.result().unwrap());
                    assert!(*first.get_or_insert_with(|| c.clone()) == c, "call {call}: {spec:?}");
                    let fewer = m * call / 50;
                    run::gemm_rs(&group, &op, fewer, &a[..fewer * k], &b).unwrap();
                }
            }
        }
    }
}

/// What comes from other nodes, of all ranks together, in bytes.
fn bytes_between_nodes(group: &Group, spec: OpSpec, (m, n, k): (usize, usize, usize)) -> usize {
    let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
    let op = GemmRs::new(group, spec).unwrap();
    let whole = Whole::place(group, &op, &a, &b, m).unwrap();
    whole.enqueue().unwrap();
    whole.synchronize().unwrap();
    let node = |rank| group.nodes().iter().position(|node| node.contains(&rank));
    let traces = op.traces().unwrap();
    let moved = traces.iter().flat_map(|trace| &trace.transfers);
    moved.filter(|moved| node(moved.from) != node(moved.to)).map(|moved| moved.bytes).sum()
}

#[test]
fn fewer_bytes_travel_between_nodes() {
    let (m, n, k) = (48, 16, 24);
    for (world_size, nodes) in LAYOUTS {
        let mut config = config(nodes);
        config.trace = true;
        let group = Group::local_with(world_size, config).unwrap();
        for path in [PathPreference::Fused, PathPreference::Unfused, PathPreference::Chunked] {
            let bytes = [Levels::One, Levels::Two].map(|levels| {
                let mut spec = spec((m, n, k), levels);
                spec.path = path;
                bytes_between_nodes(&group, spec, (m, n, k))
            });
            // Each rank's rows come from each other node: once, or once from each of its ranks.
            let shards = world_size * (nodes - 1) * (m / world_size * n * 2);
            assert_eq!(bytes, [shards * (world_size / nodes), shards], "{world_size} {nodes} {path:?}");
        }
    }
}

/// A lost signal is told by the rank that should have seen it, and names the rank that raised it: to a delegate, and from one.
#[test]
fn a_lost_signal_is_named() {
    let (m, n, k) = (60, 16, 24);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
    for (from, to) in [(1, 0), (5, 4), (1, 4), (4, 1)] {
        for path in [PathPreference::Fused, PathPreference::Unfused, PathPreference::Chunked] {
            for summation in [Summation::Folded, Summation::Separate] {
                let mut config = config(2);
                config.wait_budget = Duration::from_millis(150);
                config.signal_loss = Some(SignalLoss { from, to });
                let group = Group::local_with(6, config).unwrap();
                let mut spec = spec((m, n, k), Levels::Two);
                (spec.path, spec.summation) = (path, summation);
                let op = GemmRs::new(&group, spec).unwrap();
                let whole = Whole::place(&group, &op, &a, &b, m).unwrap();
                whole.enqueue().unwrap();
                let begin = Instant::now();
                let error = whole.synchronize().unwrap_err();
                assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
                let what = format!("{from} to {to}, {path:?}, {summation}: {error}");
                match error {
                    Error::WaitExpired { rank, peer, .. } if from / 3 != to / 3 => {
                        assert_eq!((rank, peer), (to, from), "{what}");
                    }
                    // Those who wait for what that rank makes of it may say so first.
                    Error::WaitExpired { .. } | Error::ExchangeFailed { .. } => {}
                    _ => panic!("{what}"),
                }
            }
        }
    }
}

/// Where two levels cannot be, they are refused, and not chosen.
#[test]
fn what_cannot_be_is_refused() {
    for (world_size, nodes, transport, expected) in [
        (5, 2, Transport::Auto, "different numbers of ranks"),
        (3, 3, Transport::Auto, "one rank each"),
        (4, 0, Transport::Auto, "there is one node"),
        (4, 2, Transport::Sockets, "do not address"),
    ] {
        let mut config = config(nodes);
        config.transport = transport;
        let group = Group::local_with(world_size, config).unwrap();
        let of = |levels| spec((16, 8, 16), levels);
        for error in [
            GemmRs::new(&group, of(Levels::Two)).map(drop).unwrap_err(),
            GemmAr::new(&group, of(Levels::Two)).map(drop).unwrap_err(),
        ] {
            let error = error.to_string();
            assert!(error.contains(expected) && error.contains("use one level"), "{error}");
        }
        assert_eq!(GemmRs::new(&group, of(Levels::Auto)).unwrap().levels(), Levels::One);
    }
}
