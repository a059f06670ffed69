//! GEMMs whose shards are swept one by one or together, as they were measured on an H200 (docs/measurements.md), and as they are simulated.
#![allow(clippy::print_stderr)] // what was compared

use flux_sim::{Machine, Node, Op, Path, Plan, Problem, Style, simulate};
use flux_swizzle::Sweeps;

/// Of a rank's GEMM m, n and k, its time in µs, and that over those of the same one behind an AllGather whose shards are all there,
/// swept one by one and otherwise.
struct Row([usize; 3], f64, f64, (u8, f64));

const ROWS: [Row; 12] = [
    Row([512, 7168, 4096], 50.4, 0.620, (3, 0.743)),
    Row([1024, 7168, 4096], 87.6, 0.938, (1, 0.952)),
    Row([2048, 7168, 4096], 166.1, 0.945, (1, 0.964)),
    Row([4096, 7168, 4096], 318.3, 0.984, (0, 0.980)),
    Row([512, 12288, 6144], 109.8, 0.470, (2, 0.721)),
    Row([1024, 12288, 6144], 201.3, 0.761, (2, 0.938)),
    Row([2048, 12288, 6144], 385.3, 0.939, (1, 0.957)),
    Row([4096, 12288, 6144], 768.2, 0.961, (1, 0.980)),
    Row([512, 14336, 8192], 164.4, 0.401, (3, 0.683)),
    Row([1024, 14336, 8192], 313.7, 0.803, (u8::MAX, 0.933)),
    Row([2048, 14336, 8192], 614.2, 0.921, (1, 0.964)),
    Row([4096, 14336, 8192], 1209.3, 0.966, (1, 0.984)),
];

fn fused_us(machine: &Machine, problem: &Problem, sweeps: Option<Sweeps>) -> (f64, Sweeps) {
    let style = Style { first_us: 0.0, ..Style::FLUX };
    let outcome = simulate(machine, problem, &Plan { style, sweeps, ..Plan::new(Path::Fused) }).unwrap();
    (outcome.total_us, outcome.sweeps)
}

#[test]
fn a_weight_that_is_read_again_takes_what_was_measured() {
    let h200 = Machine::preset("hgx-h200", 1).unwrap();
    // All shards are there at once.
    let gpu = flux_sim::Gpu { copy_us: 0.0, signal_us: 0.0, ..h200.node().gpu.clone() };
    let node = Node { nvswitch_gb_per_s: Some(1e9), gpu, ..h200.node().clone() };
    let machine = Machine::new("all there", node, 1).unwrap();
    let mut worst: f64 = 0.0;
    for Row([m, n, k], gemm_us, one_by_one, (growth, other)) in ROWS {
        let problem = Problem { op: Op::AgGemm, m, n, k, element_bytes: 2 };
        for (growth, ratio) in [(0, one_by_one), (growth, other)] {
            let (simulated, measured) =
                (fused_us(&machine, &problem, Some(Sweeps::growing(growth))).0, gemm_us / ratio);
            eprintln!("{m} {n} {k}, {growth}: simulated {simulated:.0}, measured {measured:.0}");
            worst = worst.max((simulated / measured - 1.0).abs());
        }
    }
    assert!(worst < 0.15, "off by {worst:.2}");
}

#[test]
fn shards_of_few_rows_are_swept_together_where_they_come_fast() {
    let [fast, slow] = ["hgx-h200", "8xa100-pcie"].map(|name| Machine::preset(name, 1).unwrap());
    for op in [Op::AgGemm, Op::GemmRs] {
        let of = |machine: &Machine, m: usize, sweeps: Option<Sweeps>| {
            fused_us(machine, &Problem { op, m, n: 14336, k: 8192, element_bytes: 2 }, sweeps)
        };
        for (machine, m, together) in
            [(&fast, 512, true), (&fast, 1024, true), (&fast, 8192, false), (&slow, 8192, false)]
        {
            let (us, sweeps) = of(machine, m, None);
            assert_eq!(sweeps != Sweeps::ONE_BY_ONE, together, "{op:?} {m} on {}: {sweeps}", machine.name());
            // What is chosen is as fast as it is when it is asked for, and not slower than one by one.
            assert!((us - of(machine, m, Some(sweeps)).0).abs() < 1e-9);
            assert!(us <= of(machine, m, Some(Sweeps::ONE_BY_ONE)).0);
        }
        // Where all is late, waiting for the last of many is worse than reading the weight again.
        assert!(of(&slow, 8192, Some(Sweeps::TWO)).0 > of(&slow, 8192, None).0, "{op:?}");
    }
}

#[test]
fn sweeps_that_are_asked_for_are_those_that_are_simulated() {
    let machine = Machine::preset("hgx-h200", 1).unwrap();
    for op in [Op::AgGemm, Op::GemmRs, Op::GemmAr] {
        let problem = Problem { op, m: 1024, n: 14336, k: 8192, element_bytes: 2 };
        for (path, swept) in [
            (Path::Fused, Sweeps::growing(2)),
            (Path::Unfused, Sweeps::ONE_BY_ONE),
            (Path::Chunked, Sweeps::ONE_BY_ONE),
        ] {
            let (sweeps, one_shot) = (Some(Sweeps::growing(2)), Some(false));
            let outcome =
                simulate(&machine, &problem, &Plan { sweeps, one_shot, ..Plan::new(path) }).unwrap();
            assert_eq!(outcome.sweeps, swept, "{op:?} {path:?}");
        }
    }
}
