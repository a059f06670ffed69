//! What is planned, on machines at hand and others.

use super::host::HostModel;
use super::machine::Description;
use super::model::Model;
use super::*;
use crate::tuner::{Key, Measured};
use crate::{BackendChoice, DType, Delivery, Direction, GroupConfig, Order, explain_on, machine_of};
use flux_sim::Machine;
use flux_swizzle::Pattern;
use flux_topology::Topology;
use std::time::{Duration, Instant};

fn on_host(world_size: usize) -> Group {
    let config = GroupConfig { backend: BackendChoice::Host, ..GroupConfig::default() };
    Group::local_with(world_size, config).unwrap()
}

fn spec(n: usize, k: usize, max_m: usize) -> OpSpec {
    OpSpec::new(n, k, max_m, DType::Bf16)
}

fn preset(name: &str) -> SimMachine {
    Machine::preset(name, 1).unwrap().into()
}

const OPS: [OpKind; 3] = [OpKind::AgGemm, OpKind::GemmRs, OpKind::GemmAr];

/// Every call is planned, whatever is asked for; what is asked for is done; the explanation names what is done, and each candidate
/// has its reason.
#[test]
fn wishes_win_and_explanations_say_what_is_done() {
    let group = on_host(3);
    let paths = [
        PathPreference::Auto,
        PathPreference::Fused,
        PathPreference::Unfused,
        PathPreference::Chunked,
        PathPreference::CommunicationOnly,
    ];
    for (op, path) in OPS.into_iter().flat_map(|op| paths.map(|path| (op, path))) {
        for direction in [None, Some(Direction::Push), Some(Direction::Pull)] {
            for delivery in [Delivery::Auto, Delivery::Direct, Delivery::Relayed] {
                for (chunk_rows, one_shot_rows) in [(None, None), (Some(7), Some(0)), (None, Some(40))] {
                    let wished =
                        OpSpec { path, direction, delivery, chunk_rows, one_shot_rows, ..spec(96, 64, 200) };
                    let planner = Planner::new(&group, op, &wished).unwrap();
                    let built = planner.built();
                    assert!(direction.is_none_or(|direction| direction == built.direction));
                    assert!(delivery == Delivery::Auto || delivery == built.delivery.delivery());
                    assert!(
                        chunk_rows.is_none_or(|rows| [0, 1, 200].iter().all(|&m| rows == built.chunks.of(m)))
                    );
                    assert!(
                        op != OpKind::GemmAr || one_shot_rows.is_none_or(|rows| rows == built.one_shot_rows)
                    );
                    for m in [0, 1, 39, 41, 200] {
                        let (chosen, explain) = (planner.choose(m).unwrap(), planner.explain(m).unwrap());
                        let what = format!("{op} {path:?} {direction:?} {delivery} {m}: {explain}");
                        assert_eq!(
                            (chosen.path, chosen.source),
                            (explain.chosen.path, explain.source),
                            "{what}"
                        );
                        let one_shot = op == OpKind::GemmAr && m <= built.one_shot_rows;
                        assert_eq!(
                            explain.chosen.one_shot,
                            one_shot || explain.chosen.one_shot && m == 0,
                            "{what}"
                        );
                        let taken = match path {
                            PathPreference::Auto => explain.chosen.path,
                            PathPreference::Chunked if explain.chosen.one_shot => Path::Unfused,
                            _ => planner.wishes.taken(),
                        };
                        assert_eq!(explain.chosen.path, taken, "{what}");
                        let is_chosen = |of: &&Candidate| of.verdict == Verdict::Chosen;
                        assert!(explain.candidates.iter().filter(is_chosen).count() <= 1, "{what}");
                        assert!(explain.candidates.len() > 3, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn one_rank_has_nothing_to_plan() {
    let planner = Planner::new(&on_host(1), OpKind::AgGemm, &spec(64, 64, 100)).unwrap();
    let explain = planner.explain(100).unwrap();
    assert_eq!((planner.choose(100).unwrap().path, explain.chosen.path), (Path::Local, Path::Local));
    assert!(explain.to_string().contains("one rank"), "{explain}");
}

/// On the host nothing is hidden, and each shard of a fused call widens the weight anew: that pays where waits are most of a call.
/// Each of these was the fastest by measurement, or within 5 % of it.
#[test]
fn the_host_fuses_where_waits_are_most_of_a_call() {
    let model = || Model::Host(HostModel::new(2));
    for (op, n, k, m, path) in [
        (OpKind::GemmRs, 768, 1536, 1, Path::Fused),
        (OpKind::GemmRs, 768, 1536, 16, Path::Unfused),
        (OpKind::GemmRs, 768, 1536, 512, Path::Unfused),
        (OpKind::AgGemm, 1536, 768, 16, Path::Unfused),
        (OpKind::AgGemm, 1536, 768, 512, Path::Unfused),
    ] {
        let explain = Planner::on((model(), &[]), op, &spec(n, k, 512), 4).unwrap().explain(m).unwrap();
        assert_eq!(explain.chosen.path, path, "{explain}");
    }
    // Where each rank has a core to itself.
    for (op, m, n, k, path, delivery) in [
        (OpKind::AgGemm, 1, 896, 512, Path::Fused, None),
        (OpKind::AgGemm, 256, 896, 512, Path::Unfused, None),
        (OpKind::GemmRs, 1, 512, 448, Path::Fused, Some(Delivery::Direct)),
        (OpKind::GemmRs, 256, 512, 462, Path::Unfused, None),
    ] {
        let explain = Planner::on((model(), &[]), op, &spec(n, k, m), 2).unwrap().explain(m).unwrap();
        assert_eq!((explain.chosen.path, explain.chosen.delivery), (path, delivery), "{explain}");
    }
    let explain =
        Planner::on((model(), &[]), OpKind::GemmRs, &spec(768, 1536, 512), 4).unwrap().explain(512).unwrap();
    let relayed = explain.candidates.iter().find(|of| of.plan.delivery == Some(Delivery::Relayed)).unwrap();
    assert!(matches!(relayed.verdict, Verdict::Slower { by } if by > 0.0), "{explain}");
}

/// What was measured on GPUs: `docs/measurements.md`. Where one way was faster by more than 5 %, it is the one that is planned.
#[test]
fn on_gpus_what_was_measured_to_be_faster_is_planned() {
    let two = preset("2xh200");
    for (op, m, n, k, path, delivery) in [
        (OpKind::AgGemm, 512, 14336, 8192, Path::Fused, None),
        (OpKind::AgGemm, 2048, 14336, 8192, Path::Fused, None),
        (OpKind::AgGemm, 8192, 14336, 8192, Path::Fused, None),
        (OpKind::GemmRs, 512, 8192, 14336, Path::Fused, Some(Delivery::Relayed)),
        (OpKind::GemmRs, 2048, 8192, 14336, Path::Fused, Some(Delivery::Relayed)),
        (OpKind::GemmRs, 8192, 8192, 14336, Path::Fused, Some(Delivery::Relayed)),
        (OpKind::GemmAr, 64, 8192, 14336, Path::Fused, Some(Delivery::Direct)),
        (OpKind::GemmAr, 2048, 8192, 14336, Path::Fused, Some(Delivery::Relayed)),
    ] {
        let (n, k) = if op == OpKind::AgGemm { (2 * n, k) } else { (n, 2 * k) };
        let explain = explain_on(&two, op, &spec(n, k, 8192), m).unwrap();
        assert_eq!((explain.chosen.path, explain.chosen.delivery), (path, delivery), "{explain}");
        let whole = m.div_ceil(2) * if op == OpKind::AgGemm { 2 * k } else { 2 * n } <= 32 << 20;
        assert!(explain.chosen.one_shot || !whole || explain.chosen.chunk_rows >= m / 2, "{explain}");
        assert_eq!(explain.chosen.direction, Direction::Push, "{explain}");
    }
    // Shards of fewer rows than half a tile would be padding.
    for (op, n, k) in [(OpKind::AgGemm, 2 * 14336, 8192), (OpKind::GemmRs, 8192, 2 * 14336)] {
        for m in [1, 16, 64, 126] {
            let explain = explain_on(&two, op, &spec(n, k, 8192), m).unwrap();
            assert_eq!(explain.chosen.path, Path::Unfused, "{explain}");
            assert!(explain.to_string().contains("half a tile"), "{explain}");
        }
    }
}

/// Ranks that share a GPU, as measured on one H200 with eight.
#[test]
fn ranks_of_one_gpu_are_planned_as_measured() {
    let shared = Description { share: 8, ..Description::unknown("NVIDIA H200", 132, 1, 1) };
    for (op, m, n, k, path) in [
        (OpKind::AgGemm, 2048, 7168, 4096, Path::Fused),
        (OpKind::AgGemm, 8192, 7168, 4096, Path::Fused),
        (OpKind::GemmRs, 2048, 7168, 4096, Path::Fused),
        (OpKind::GemmRs, 8192, 7168, 4096, Path::Fused),
    ] {
        let (n, k) = if op == OpKind::AgGemm { (8 * n, k) } else { (n, 8 * k) };
        let spec = OpSpec { delivery: Delivery::Direct, ..spec(n, k, 8192) };
        let explain = Planner::on((shared.model().unwrap(), &[]), op, &spec, 8).unwrap().explain(m).unwrap();
        assert_eq!(explain.chosen.path, path, "{explain}");
    }
}

/// On machines where links differ, what is planned is what `flux topo` says, and by how much all others are slower is said, too.
#[test]
fn orders_fit_what_connects_the_ranks() {
    for (name, nodes, order) in [
        ("8xl20-pcie", 1, "ring:0-3/4-7"),
        ("8xl20-pcie", 2, "ring:0-3/4-7+ring:8-11/12-15"),
        ("dgx-h100", 1, "mesh:0-7"),
        ("dgx-h100", 2, "mesh:0-7+mesh:8-15"),
    ] {
        let topology = Topology::preset(name).unwrap();
        let machine = machine_of((name, &topology), None, nodes).unwrap();
        let ranks = 8 * nodes;
        let asked = spec(ranks * 1024, 8192, 8192);
        let explain = explain_on(&machine, OpKind::AgGemm, &asked, 8192).unwrap();
        assert_eq!(explain.order.to_string(), order, "{explain}");
        assert_eq!(explain.chosen.order, explain.order);
        let orders: Vec<&Pattern> = explain.candidates.iter().map(|of| &of.plan.order).collect();
        for expected in [Pattern::ring(ranks), Pattern::full_mesh(ranks)] {
            assert!(orders.contains(&&expected), "{explain}");
        }
        // Whatever is asked for is done.
        let asked = OpSpec { order: Order::Ring, ..asked };
        let forced = explain_on(&machine, OpKind::AgGemm, &asked, 8192).unwrap();
        assert_eq!(forced.order, Pattern::ring(ranks));
        assert!(forced.candidates.iter().all(|of| of.plan.order == forced.order), "{forced}");
        let asked = OpSpec { order: Order::FullMesh, ..asked };
        let mesh = explain_on(&machine, OpKind::AgGemm, &asked, 8192).unwrap();
        let slower = mesh.predicted_us.unwrap() > 1.05 * explain.predicted_us.unwrap();
        assert!((order == "mesh:0-7") != slower, "{mesh}\n{explain}");
    }
    // Bridged pairs: each shard crosses PCIe once.
    let pairs =
        explain_on(&preset("4xa100-nvlink-pairs"), OpKind::AgGemm, &spec(4096, 8192, 8192), 8192).unwrap();
    assert_eq!(pairs.order, Pattern::islands(&[2, 2]), "{pairs}");
}

/// An order that was measured to be the best is what the operation is built for, on all ranks.
#[test]
fn a_tuned_order_is_built() {
    let (group, spec) = (on_host(4), spec(128, 64, 256));
    for (op, name) in [(OpKind::AgGemm, "ring:0-3"), (OpKind::GemmAr, "ring:0-3")] {
        let before = Planner::new(&group, op, &spec).unwrap();
        assert_eq!(before.built().order, Pattern::full_mesh(4));
        let plan = before.explain(256).unwrap().candidates.into_iter();
        let plan = plan.map(|of| of.plan).find(|plan| plan.order == Pattern::ring(4)).unwrap();
        let key = group.surroundings().unwrap().key(&group, &Layer::new(op, &spec, 4), 256);
        group.learn(&Entry::new(key, vec![Measured::new(&plan, 64, 10.0, 0.0)]));
        let planner = Planner::new(&group, op, &spec).unwrap();
        assert_eq!(planner.built().order.to_string(), name);
        let explain = planner.explain(256).unwrap();
        assert_eq!(
            (explain.order.to_string().as_str(), explain.source),
            (name, PlanSource::Tuned),
            "{explain}"
        );
        assert_eq!(planner.choose(256).unwrap().order, "ring");
        let one_shot = planner.explain(1).unwrap();
        assert!(op != OpKind::GemmAr || one_shot.chosen.one_shot, "{one_shot}");
    }
    let op = crate::AgGemm::new(&group, spec.clone()).unwrap();
    assert_eq!(op.pattern(), &Pattern::ring(4));
}

/// What is asked for is cut, what was measured with another tile than the kernels' own choice is cut into that, and the explanation
/// says who decided.
#[test]
fn tiles_are_asked_for_or_measured() {
    let (group, spec) = (on_host(2), spec(256, 64, 256));
    let tile = group.any_launcher().tile(DType::Bf16).unwrap();
    let decided = |planner: &Planner| {
        let explain = planner.explain(256).unwrap();
        (planner.choose(256).unwrap().tile, explain.tile_source)
    };
    let planner = |spec: &OpSpec| Planner::new(&group, OpKind::GemmRs, spec);
    assert_eq!(decided(&planner(&spec).unwrap()), (None, PlanSource::Model));
    let asked = OpSpec { tile: Some(tile), ..spec.clone() };
    assert_eq!(decided(&planner(&asked).unwrap()), (Some(tile), PlanSource::Forced));
    let other = OpSpec { tile: Some(TileShape { rows: 1, ..tile }), ..spec.clone() };
    let refused = crate::GemmRs::new(&group, other).unwrap_err();
    assert!(
        matches!(&refused, crate::Error::NoSuchTile { possible, .. } if possible == &[tile]),
        "{refused}"
    );
    let before = planner(&spec).unwrap().explain(256).unwrap();
    let key = group.surroundings().unwrap().key(&group, &Layer::new(OpKind::GemmRs, &spec, 2), 256);
    let measured = Measured::new(&before.chosen, 128, 10.0, 0.0).cut_into(Some(tile));
    group.learn(&Entry::new(key, vec![measured]));
    let tuned = planner(&spec).unwrap();
    assert_eq!(decided(&tuned), (Some(tile), PlanSource::Tuned));
    assert!(tuned.explain(256).unwrap().to_string().contains("tile 64x128 (tuned: "));
    // What was measured says nothing of calls of which something else is decided.
    assert_eq!(decided(&planner(&asked).unwrap()), (Some(tile), PlanSource::Forced));
    // The model reckons with what is asked for.
    let explain_with = |tile| {
        let spec = OpSpec { tile, ..OpSpec::new(8192, 8 * 3584, 4096, DType::Bf16) };
        explain_on(&preset("hgx-h200"), OpKind::GemmRs, &spec, 4096).unwrap()
    };
    let low = explain_with(Some(TileShape { rows: 64, columns: 128 }));
    assert_eq!(
        (low.chosen.tile, low.tile_source),
        (Some(TileShape { rows: 64, columns: 128 }), PlanSource::Forced)
    );
    assert!(low.predicted_us.unwrap() > 1.2 * explain_with(None).predicted_us.unwrap(), "{low}");
}

/// Calls of fewer rows than the most are cut by themselves: as was measured of them, or is expected.
#[test]
fn chunks_are_decided_for_each_number_of_rows() {
    let (group, spec) = (on_host(2), OpSpec { path: PathPreference::Fused, ..spec(32, 8192, 512) });
    let layer = Layer::new(OpKind::AgGemm, &spec, 2);
    let auto = OpSpec { path: PathPreference::Auto, ..spec.clone() };
    let free = Layer::new(OpKind::AgGemm, &auto, 2);
    assert_ne!(layer.asked, free.asked);
    // A row has 16 KiB: of a shard of 128 rows there may be two chunks.
    for (m, chunk_rows) in [(512, 256), (256, 64)] {
        let explain = Planner::new(&group, OpKind::AgGemm, &auto).unwrap().explain(m).unwrap();
        let plan = Plan { chunk_rows, path: Path::Fused, delivery: None, ..explain.chosen };
        let key = group.surroundings().unwrap().key(&group, &free, m);
        group.learn(&Entry::new(key, vec![Measured::new(&plan, m / 2, 10.0, 0.0)]));
    }
    let op = crate::AgGemm::new(&group, auto).unwrap();
    let unfused = OpSpec { path: PathPreference::Unfused, ..spec };
    let unfused = crate::AgGemm::new(&group, unfused).unwrap();
    let number = |index: usize| half::bf16::from_f32(f32::from(u8::try_from(index % 7).unwrap()) - 3.0);
    let a: Vec<_> = (0..512 * 8192).map(|index| number(index + index / 8192)).collect();
    let b: Vec<_> = (0..32 * 8192).map(|index| number(index / 3)).collect();
    for (m, chunk_rows) in [(512, 256), (256, 64), (512, 256), (200, 64)] {
        let explain = op.explain(m).unwrap();
        let rows = explain.chosen.chunk_rows.min(m.div_ceil(2));
        assert_eq!((rows, explain.source), (chunk_rows, PlanSource::Tuned), "{m}: {explain}");
        let result = |op: &crate::AgGemm| {
            let whole = crate::Whole::place(&group, op, &a[..m * 8192], &b, m).unwrap();
            let path = whole.enqueue().unwrap().path;
            (path, whole.result().unwrap())
        };
        let ((path, c), (_, expected)) = (result(&op), result(&unfused));
        assert!(path == Path::Fused && c == expected, "{m}");
    }
}

/// As tests are built 2 to 5 s each on a core; the limit leaves room for other programs.
#[test]
fn a_thousand_ranks_are_planned_in_seconds() {
    let machine: SimMachine = Machine::preset("dgx-h100", 128).unwrap().into();
    for (op, n, k) in [(OpKind::AgGemm, 1024 * 6144, 12288), (OpKind::GemmRs, 12288, 1024 * 6144)] {
        let begin = Instant::now();
        // Shards of unlike length, too.
        let explain = explain_on(&machine, op, &spec(n, k, 5000), 5000).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(25), "{op}: {:?}", begin.elapsed());
        assert!(explain.predicted_us.is_some() && explain.order == machine.machine.pattern(), "{explain}");
    }
}

#[test]
fn planning_takes_no_longer_than_a_call() {
    for (name, n, k) in [("hgx-h200", 8 * 6144, 12288), ("8xl20-pcie", 8 * 7168, 8192)] {
        let machine = Machine::preset(name, 1).unwrap();
        let found = SimMachine::from(machine.clone());
        let model = Model::Gpus { machine: Box::new(machine), within: None };
        let planner = Planner::on((model, &found.orders), OpKind::AgGemm, &spec(n, k, 8192), 8).unwrap();
        let times = [1, 100, 1000, 2000, 4000, 5000, 6000, 8192].map(|m| {
            let begin = Instant::now();
            planner.choose(m).unwrap();
            begin.elapsed()
        });
        let again = Instant::now();
        (0..10_000).for_each(|_| assert!(planner.choose(4000).is_ok()));
        // Unoptimised, beside other tests: far from what is aimed at, but not what a loop over all candidates would take.
        let median = {
            let mut times = times;
            times.sort();
            times[times.len() / 2]
        };
        assert!(median < Duration::from_millis(20), "{name}: {times:?}");
        assert!(again.elapsed() < Duration::from_millis(200), "{:?}", again.elapsed());
    }
}

fn measured(plans: &[(&str, &str, Option<&str>, f64)], m: usize, key: &Key) -> Entry {
    let of = |&(path, direction, delivery, us): &(&str, &str, Option<&str>, f64)| Measured {
        path: path.into(),
        one_shot: false,
        direction: direction.into(),
        delivery: delivery.map(Into::into),
        chunks_per_shard: 1,
        order: "mesh:0-3".into(),
        tile: None,
        us,
        spread: 0.01,
    };
    Entry::new(Key { m, ..key.clone() }, plans.iter().map(of).collect())
}

#[test]
fn what_was_measured_goes_before_the_model() {
    let (group, spec) = (on_host(4), spec(1536, 768, 512));
    let layer = Layer::new(OpKind::AgGemm, &spec, 4);
    let key = group.surroundings().unwrap().key(&group, &layer, 1);
    group.learn(&measured(&[("chunked", "pull", None, 10.0), ("fused", "pull", None, 20.0)], 512, &key));
    group.learn(&measured(&[("unfused", "push", None, 5.0), ("fused", "pull", None, 6.0)], 64, &key));
    let planner = Planner::new(&group, OpKind::AgGemm, &spec).unwrap();
    // As the largest calls were measured to be the best.
    assert_eq!(planner.built().direction, Direction::Pull);
    for (m, path, source) in [
        (512, Path::Chunked, PlanSource::Tuned),
        (400, Path::Chunked, PlanSource::Tuned),
        // What was the best there is not what the operation was built for; the next one is.
        (100, Path::Fused, PlanSource::Tuned),
        (64, Path::Fused, PlanSource::Tuned),
        (32, Path::Fused, PlanSource::Tuned),
        (1, Path::Fused, PlanSource::Model),
    ] {
        let explain = planner.explain(m).unwrap();
        assert_eq!((explain.chosen.path, explain.source), (path, source), "{explain}");
        assert_eq!((planner.choose(m).unwrap().path, planner.choose(m).unwrap().source), (path, source));
        let chosen_us = explain.candidates[0].measured_us;
        assert_eq!(chosen_us.is_some(), source == PlanSource::Tuned, "{explain}");
    }
    let asked = OpSpec { path: PathPreference::Unfused, ..spec };
    let asked = Planner::new(&group, OpKind::AgGemm, &asked).unwrap().explain(512).unwrap();
    assert_eq!((asked.chosen.path, asked.source), (Path::Unfused, PlanSource::Forced));
}

#[test]
fn explanations_are_json_too() {
    let machine = preset("8xl20-pcie");
    let explain = explain_on(&machine, OpKind::GemmRs, &spec(12288, 8 * 6144, 8192), 4096).unwrap();
    let json = serde_json::to_value(&explain).unwrap();
    assert_eq!(
        (&json["op"], &json["source"], &json["dtype"]),
        (&"gemm-rs".into(), &"model".into(), &"bf16".into())
    );
    assert!(json["predicted_us"].as_f64().unwrap() > 0.0 && json["chosen"]["order"] == "two-level ring");
    assert_eq!(json["order"], "ring:0-3/4-7");
    let candidates = json["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), explain.candidates.len());
    assert!(candidates.iter().all(|of| of["verdict"]["is"].is_string()), "{json}");
    assert!(explain.to_string().contains("chosen") && explain.to_string().contains("slower by"), "{explain}");
    let refused = explain_on(&machine, OpKind::GemmRs, &spec(12288, 8 * 6144, 100), 101);
    assert!(matches!(refused, Err(crate::Error::TooManyRows { m: 101, max_m: 100 })));
}

/// What an operation refuses is not planned either, here and on other machines.
#[test]
fn what_is_refused_is_not_planned() {
    use crate::{Activation, Error, Levels, explain};
    let group = on_host(3);
    let on = |op, spec: &OpSpec| {
        let three = SimMachine::from(Machine::preset("2xh200", 1).unwrap());
        [explain(&group, op, spec, 1), explain_on(&three, op, spec, 1)].map(Result::unwrap_err)
    };
    let swiglu = OpSpec { activation: Activation::SwiGlu, ..spec(7, 64, 8) };
    assert!(on(OpKind::AgGemm, &swiglu).iter().all(|error| matches!(error, Error::UnpairedRows { n: 7 })));
    for op in [OpKind::GemmRs, OpKind::GemmAr] {
        let gelu = OpSpec { activation: Activation::Gelu, ..spec(64, 64, 8) };
        let refused = on(op, &gelu);
        assert!(refused.iter().all(|error| matches!(error, Error::ActivationAfterSum { .. })), "{refused:?}");
        let two = OpSpec { levels: Levels::Two, ..spec(64, 64, 8) };
        assert!(on(op, &two).iter().all(|error| error.to_string().contains("there is one node")));
    }
    let many = explain(&group, OpKind::AgGemm, &spec(64, 64, 1 << 23), 1).unwrap_err().to_string();
    assert!(many.contains("65,536"), "{many}");
}

/// Of what the model cannot reckon with nobody says that it is the fastest.
#[test]
fn what_the_model_cannot_reckon_with_is_said() {
    let rows = (1 << 24) + 1;
    let explain = explain_on(&preset("dgx-h100"), OpKind::GemmRs, &spec(8, 64, rows), rows).unwrap();
    assert!(explain.why.contains("cannot reckon") && explain.why.contains("16777217"), "{explain}");
    assert!(explain.predicted_us.is_none() && !explain.to_string().contains("expected to be"), "{explain}");
}
