//! Small machines of every class, for orders that are tried on the host backend as if it were one of them.

use flux::Pattern;
use flux_sim::{Gpu, Machine, Node};

/// So many GPUs on one machine, on NUMA nodes of these sizes, pairs of which are bridged, or that NVSwitch connects.
fn node(numa: &[usize], bridges: &[(usize, usize)], nvswitch: bool) -> Node {
    Node {
        gpu: Gpu::H200,
        gpus: numa.iter().sum(),
        nvswitch_gb_per_s: nvswitch.then_some(400.0),
        bridges: bridges.iter().map(|&(a, b)| (a, b, 100.0)).collect(),
        pcie_gb_per_s: 50.0,
        numa: numa.to_vec(),
        numa_gb_per_s: 30.0,
        nics: numa.iter().sum(),
        nic_gb_per_s: 40.0,
    }
}

/// Machines of `gpus` GPUs in all: full mesh, ring, two levels by NUMA node, islands joined by PCIe, several nodes with NVLink, and
/// several nodes on PCIe.
pub fn of_every_class(gpus: usize) -> Vec<Machine> {
    let (half, rest) = (gpus / 2, gpus - gpus / 2);
    let one = |name: &str, node: Node| Machine::new(name, node, 1).unwrap();
    let pairs: Vec<_> = (0..half).map(|pair| (2 * pair, 2 * pair + 1)).collect();
    let mut machines = vec![
        one("NVSwitch", node(&[gpus], &[], true)),
        one("PCIe", node(&[gpus], &[], false)),
        one("PCIe, two NUMA nodes", node(&[half, rest], &[], false)),
        one("bridged pairs", node(&[half, rest], &pairs, false)),
    ];
    if gpus > 4 {
        let uneven = [gpus / 3, 1, gpus - gpus / 3 - 1];
        machines.push(one("PCIe, three NUMA nodes", node(&uneven, &[], false)));
        let all = |range: std::ops::Range<usize>| {
            range.clone().flat_map(move |a| (a + 1..range.end).map(move |b| (a, b))).collect::<Vec<_>>()
        };
        let cube = [all(0..half), all(half..gpus)].concat();
        machines.push(one("two islands", node(&[half, rest], &cube, false)));
    }
    for nodes in (2..=gpus / 2).filter(|&nodes| gpus.is_multiple_of(nodes)) {
        let each = gpus / nodes;
        let several = |name: &str, node: Node| Machine::new(name, node, nodes).unwrap();
        machines.push(several("nodes with NVLink", node(&[each], &[], true)));
        machines.push(several("nodes on PCIe", node(&[each / 2, each - each / 2], &[], false)));
    }
    machines
}

/// What a machine is, in a line.
pub fn in_words(machine: &Machine) -> String {
    let pattern: Pattern = machine.pattern();
    format!("{} GPUs, {} nodes, {}: {pattern}", machine.gpus(), machine.nodes(), machine.name())
}
