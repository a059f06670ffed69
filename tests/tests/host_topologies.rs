//! Groups that are told what connects their ranks, on the host backend: the order is chosen from that, for every class of topology
//! and 2 to 8 ranks, and the results are right.

use flux::{AgGemm, BackendChoice, DType, Error, GemmAr, GemmRs, Group, GroupConfig, OpSpec, Order, Pattern};
use flux_tests::data::{Fill, matrix, product, relative_error};
use flux_tests::meeting::on_threads;
use flux_tests::run;
use flux_topology::{CommunicationOrder, Topology};
use half::bf16;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

const N: usize = 24;
const K: usize = 16;

fn config(topology: &Topology) -> GroupConfig {
    let mut config = GroupConfig::default();
    (config.backend, config.topology) = (BackendChoice::Host, Some(Arc::new(topology.clone())));
    config
}

fn spec(max_m: usize) -> OpSpec {
    OpSpec::new(N, K, max_m, DType::Bf16)
}

fn fitting(topology: &Topology) -> Pattern {
    let order: Order = topology.order().argument().parse().unwrap();
    order.given(topology.device_count()).unwrap().unwrap()
}

/// All files of 2 to 8 GPUs, and all presets of so many, one machine or several.
fn topologies() -> Vec<(String, Topology)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/flux-topology/tests/cases");
    let paths = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let files = paths.filter_map(|path| Some((path.display().to_string(), Topology::read(&path).ok()?)));
    let times = |name| (1..=8).map(move |times| (name, times));
    let presets = Topology::presets().flat_map(times).filter_map(|(name, times)| {
        let topology = Topology::preset(name).unwrap().replicated(times).ok()?;
        Some((format!("{times} x {name}"), topology))
    });
    let all = files.chain(presets).filter(|(_, topology)| (2..=8).contains(&topology.device_count()));
    let mut all: Vec<_> = all.collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn ranks_exchange_as_fits_the_topology_that_they_are_told() {
    let mut classes: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for (name, topology) in topologies() {
        let world_size = topology.device_count();
        let order = fitting(&topology);
        classes.entry(topology.order().order.name()).or_default().insert(world_size);
        let group = Group::local_with(world_size, config(&topology)).unwrap();
        let m = 5 * world_size + 3;
        let ops = (
            AgGemm::new(&group, spec(m)).unwrap_or_else(|error| panic!("{name}: {error}")),
            GemmRs::new(&group, spec(m)).unwrap(),
            GemmAr::new(&group, spec(m)).unwrap(),
        );
        for pattern in [ops.0.pattern(), ops.1.pattern(), ops.2.pattern()] {
            assert_eq!(pattern, &order, "{name}");
        }
        let (a, b) = (matrix::<bf16>(m * K, Fill::Normal, 1), matrix::<bf16>(N * K, Fill::Normal, 2));
        let reference = product(&a, &b, m, N, K);
        for outcome in [
            run::ag_gemm(&group, &ops.0, m, &a, &b),
            run::gemm_rs(&group, &ops.1, m, &a, &b),
            run::gemm_ar(&group, &ops.2, m, &a, &b),
        ] {
            let error = relative_error(&outcome.unwrap().c, &reference);
            assert!(error < 4e-3, "{name}: error {error:e}");
        }
    }
    for (class, world_sizes) in [
        (CommunicationOrder::FullMesh, &[2, 4, 8][..]),
        (CommunicationOrder::Ring, &[2, 3, 4, 5, 6, 8]),
        (CommunicationOrder::TwoLevel, &[2, 3, 4, 5, 6, 7, 8]),
    ] {
        let had = world_sizes.iter().all(|world_size| classes[class.name()].contains(world_size));
        assert!(had, "{class}: {classes:?}");
    }
}

#[test]
fn a_topology_is_of_all_ranks_and_the_same_on_all() {
    let topology = Topology::preset("4xl40s-pcie").unwrap();
    let other = Group::local_with(3, config(&topology)).unwrap_err();
    assert!(matches!(other, Error::OtherTopology { gpus: 4, world_size: 3 }), "{other}");
    // An order that the caller has decided stays.
    let group = Group::local_with(4, config(&topology)).unwrap();
    let mut ring = spec(16);
    ring.order = Order::Ring;
    assert_eq!(AgGemm::new(&group, ring).unwrap().pattern(), &Pattern::ring(4));
    let mesh = Topology::preset("4xh100-nvlink").unwrap();
    for disagree in [false, true] {
        on_threads(4, |end| {
            let own = if disagree && flux::Bootstrap::rank(&*end) == 2 { &mesh } else { &topology };
            match Group::with_bootstrap(end, config(own)) {
                Ok(group) => {
                    assert!(!disagree);
                    assert_eq!(AgGemm::new(&group, spec(16)).unwrap().pattern(), &fitting(&topology));
                }
                Err(error) => {
                    assert!(disagree && error.to_string().contains("topology"), "{error}");
                }
            }
        });
    }
}
