//! What is true of every simulation.
#![allow(clippy::print_stderr)] // what was compared

use flux_sim::{
    Activity, Baseline, Error, Gpu, Machine, Node, Op, Path, Plan, Problem, Style, TileRate, compare,
    simulate,
};
use flux_swizzle::PanelCut;
use proptest::prelude::*;

const OPS: [Op; 3] = [Op::AgGemm, Op::GemmRs, Op::GemmAr];
const PATHS: [Path; 3] = [Path::Fused, Path::Chunked, Path::Unfused];

fn presets() -> impl Strategy<Value = &'static str> {
    prop::sample::select(Machine::presets().collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn any_problem_on_any_machine(
        preset in presets(), nodes in 1usize..4, m in 0usize..9000, n in 0usize..9000, k in 0usize..9000,
        op in prop::sample::select(&OPS[..]), path in prop::sample::select(&PATHS[..]),
        original in any::<[bool; 7]>(), chunk_rows in prop::option::of(0usize..3000),
        panels in 1usize..6,
    ) {
        prop_assume!(preset != "gb200-nvl72" || nodes == 1);
        let machine = Machine::preset(preset, nodes).unwrap();
        let [straddles, pads_shards, own_first, stores, starves, nccl, sums_on_the_way] = original;
        let baseline = if nccl { Baseline::Nccl } else { Baseline::Copies };
        let panels = PanelCut::always(panels);
        let style = Style { straddles, pads_shards, own_first, stores, starves, baseline, sums_on_the_way, panels, ..Style::FLUX };
        let plan = Plan { style, timeline: true, chunk_rows, ..Plan::new(path) };
        let problem = Problem { op, m, n, k, element_bytes: 2 };
        let outcome = simulate(&machine, &problem, &plan).unwrap();
        // The same again, to the last bit.
        prop_assert_eq!(&outcome, &simulate(&machine, &problem, &plan).unwrap());
        prop_assert!(outcome.total_us.is_finite() && outcome.done_us.len() == machine.gpus());
        // No link carries more than it can.
        for carried in &outcome.links {
            let link = machine.links().iter().find(|link| link.name == carried.name).unwrap();
            let least_us = carried.bytes / (link.gb_per_s * 1e3);
            prop_assert!(least_us <= outcome.total_us * (1.0 + 1e-6) + 1e-3, "{carried:?} in {} us", outcome.total_us);
        }
        for span in &outcome.timeline {
            prop_assert!(span.begin_us >= 0.0 && span.end_us <= outcome.total_us + 1e-3, "{span:?} of {}", outcome.total_us);
        }
        if op == Op::AgGemm && !(nccl && path == Path::Unfused) {
            // All shards but its own come to each rank.
            let sent = outcome.timeline.iter().filter(|span| span.activity == Activity::Transfer).count();
            prop_assert!(sent >= (machine.gpus() - 1) * machine.gpus().min(m));
        }
    }
}

#[test]
fn bytes_are_those_of_the_algorithm() {
    let machine = Machine::preset("hgx-h200", 1).unwrap();
    let problem = Problem { op: Op::AgGemm, m: 4096, n: 6144, k: 12288, element_bytes: 2 };
    let outcome = simulate(&machine, &problem, &Plan::new(Path::Fused)).unwrap();
    let each = 4096.0 * 12288.0 * 2.0 * 7.0 / 8.0;
    assert_eq!(outcome.links.len(), 16);
    assert!(outcome.links.iter().all(|link| (link.bytes - each).abs() < 1.0), "{:?}", outcome.links);
    // Over PCIe, what goes between the sockets is the half.
    let machine = Machine::preset("8xl20-pcie", 1).unwrap();
    let outcome = simulate(&machine, &problem, &Plan::new(Path::Fused)).unwrap();
    let across = outcome.links.iter().filter(|link| link.name.contains("numa"));
    let across: Vec<f64> = across.map(|link| link.bytes).collect();
    assert_eq!(across, [4096.0 * 12288.0 * 2.0 / 2.0; 2]);
}

/// What is summed in its node leaves it once, and not once for each of its GPUs; on one node there is nothing to sum.
#[test]
fn sums_in_nodes_send_less() {
    let problem = Problem { op: Op::GemmRs, m: 8192, n: 12288, k: 3072, element_bytes: 2 };
    for (nodes, times) in [(1, 1.0), (2, 8.0), (3, 8.0)] {
        let machine = Machine::preset("hgx-h200", nodes).unwrap();
        let [one, two] = [false, true].map(|sums_in_nodes| {
            let style = Style { sums_in_nodes, ..Style::FLUX };
            simulate(&machine, &problem, &Plan { style, ..Plan::new(Path::Fused) }).unwrap()
        });
        let network = |outcome: &flux_sim::Outcome| {
            let links = outcome.links.iter().filter(|link| link.name.contains("nic"));
            links.map(|link| link.bytes).sum::<f64>()
        };
        assert!((network(&one) - times * network(&two)).abs() <= 1.0, "{one:?} {two:?}");
        assert_eq!(nodes > 1, two.total_us < one.total_us);
    }
}

#[test]
fn overlap_is_bounded_by_its_parts() {
    for preset in Machine::presets() {
        let machine = Machine::preset(preset, 1).unwrap();
        for op in OPS {
            let problem = Problem { op, m: 8192, n: 4096, k: 4096, element_bytes: 2 };
            let all = compare(&machine, &problem, &Plan::new(Path::Fused)).unwrap();
            assert!(all.fused.total_us >= all.gemm_us, "{preset} {op:?}");
            assert!(all.unfused_us >= all.gemm_us + all.communication_us - 1e-3, "{preset} {op:?}");
            assert!(all.efficiency() <= 1.0, "{preset} {op:?}");
        }
    }
}

#[test]
fn one_gpu_has_nothing_to_wait_for() {
    let node = Node { gpus: 1, numa: vec![1], ..Machine::preset("dgx-h100", 1).unwrap().node().clone() };
    let machine = Machine::new("one", node, 1).unwrap();
    for op in OPS {
        let problem = Problem { op, m: 4096, n: 4096, k: 4096, element_bytes: 2 };
        let all = compare(&machine, &problem, &Plan::new(Path::Fused)).unwrap();
        assert!((all.fused.total_us - all.gemm_us).abs() < 0.05 * all.gemm_us && all.fused.links.is_empty());
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let node = Machine::preset("8xl20-pcie", 1).unwrap().node().clone();
    let new = |node: Node, nodes: usize| Machine::new("x", node, nodes);
    assert!(matches!(new(node.clone(), 0), Err(Error::Gpus { gpus: 0, .. })));
    let too_many = new(node.clone(), usize::MAX).unwrap_err();
    assert!(matches!(too_many, Error::Gpus { .. }) && too_many.to_string().starts_with("so many GPUs"));
    assert!(matches!(new(Node { numa: vec![usize::MAX, 9], ..node.clone() }, 1), Err(Error::Node { .. })));
    assert!(matches!(new(Node { bridges: vec![(0, 8, 1.0)], ..node.clone() }, 1), Err(Error::Node { .. })));
    assert!(matches!(
        new(Node { pcie_gb_per_s: f64::NAN, ..node.clone() }, 1),
        Err(Error::NotPositive { .. })
    ));
    let slow = Gpu { tflops: 0.0, ..Gpu::L20 };
    assert!(matches!(new(Node { gpu: slow, ..node }, 1), Err(Error::Constants { .. })));
    assert!(Machine::preset("h300", 1).unwrap_err().to_string().contains("dgx-h100"));
    let machine = Machine::preset("2xh200", 1).unwrap();
    let huge = Problem { op: Op::AgGemm, m: usize::MAX, n: 1, k: 1, element_bytes: 2 };
    assert!(matches!(simulate(&machine, &huge, &Plan::new(Path::Fused)), Err(Error::TooLarge { .. })));
    let problem = Problem { m: 8, ..huge };
    let none = TileRate { rows: 0, columns: 1, efficiency: 1.0 };
    for style in [
        Style { first_us: f64::NAN, ..Style::FLUX },
        Style { sleep_us: -1.0, ..Style::FLUX },
        Style { tiles: Some(Box::leak(Box::new([none]))), ..Style::FLUX },
    ] {
        let plan = Plan { style, ..Plan::new(Path::Fused) };
        assert!(matches!(simulate(&machine, &problem, &plan), Err(Error::Constants { .. })));
    }
    let no_tiles = Plan { style: Style { tiles: Some(&[]), ..Style::FLUX }, ..Plan::new(Path::Fused) };
    assert!(simulate(&machine, &problem, &no_tiles).is_ok());
    let many = Plan { chunk_rows: Some(1), ..Plan::new(Path::Fused) };
    let rows = Problem { m: Problem::MOST, n: 1, k: 1, ..problem };
    let nodes = Machine::preset("2xh200", 2).unwrap();
    assert!(matches!(simulate(&nodes, &rows, &many), Err(Error::TooLarge { .. })));
    let pattern = Some(flux_swizzle::Pattern::ring(3));
    let other = Plan { pattern, ..Plan::new(Path::Fused) };
    assert!(matches!(simulate(&machine, &problem, &other), Err(Error::OtherRanks { ranks: 3, gpus: 2 })));
}

/// As tests are built 2 to 4 s each; the limit leaves room for other programs.
#[test]
fn a_thousand_ranks_take_seconds() {
    for (name, op, m) in [
        ("hgx-h200", Op::AgGemm, 131_072),
        ("hgx-h200", Op::GemmRs, 131_072),
        // Ranks do not divide these.
        ("8xa100-pcie", Op::AgGemm, 8200),
        ("8xa100-pcie", Op::GemmRs, 131_073),
    ] {
        let machine = Machine::preset(name, 128).unwrap();
        let begin = std::time::Instant::now();
        let problem = Problem { op, m, n: 1024, k: 8192, element_bytes: 2 };
        let outcome = simulate(&machine, &problem, &Plan::new(Path::Fused)).unwrap();
        eprintln!("{name} {}: {:.0} µs, simulated in {:?}", op.name(), outcome.total_us, begin.elapsed());
        assert!(begin.elapsed().as_secs() < 20);
        assert_eq!(outcome.rounded, !m.is_multiple_of(1024));
    }
}
