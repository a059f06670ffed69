//! Machines: GPUs, and the links that what they exchange goes over.

use crate::{Error, Gpu, Result};
use flux_swizzle::Pattern;

/// One node of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its GPUs, all of one kind.
    pub gpu: Gpu,
    /// How many GPUs there are.
    pub gpus: usize,
    /// What each GPU sends, and receives, over NVLink through switches, in GB/s, if there are any.
    pub nvswitch_gb_per_s: Option<f64>,
    /// Pairs of GPUs that NVLinks connect directly, and what these carry each way, in GB/s.
    pub bridges: Vec<(usize, usize, f64)>,
    /// What each GPU sends, and receives, over PCIe, in GB/s.
    pub pcie_gb_per_s: f64,
    /// How many GPUs each NUMA node has, in order.
    pub numa: Vec<usize>,
    /// What goes from one NUMA node to another, each way, in GB/s.
    pub numa_gb_per_s: f64,
    /// Network cards, shared evenly by the GPUs.
    pub nics: usize,
    /// What a card sends, and receives, in GB/s.
    pub nic_gb_per_s: f64,
}

/// A link in one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// What it is, like `gpu 3 nvlink out`.
    pub name: String,
    /// What it carries, in GB/s (10⁹ bytes).
    pub gb_per_s: f64,
}

/// GPUs, numbered as the ranks that run on them, and their links.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    name: String,
    node: Node,
    nodes: usize,
    links: Vec<Link>,
    bridge_links: Vec<((usize, usize), usize)>,
}

impl Machine {
    /// More ranks are not simulated.
    pub const MOST_GPUS: usize = 4096;

    /// `nodes` nodes of one kind.
    pub fn new(name: impl Into<String>, node: Node, nodes: usize) -> Result<Self> {
        let gpus = node.gpus.saturating_mul(nodes);
        if gpus == 0 || gpus > Self::MOST_GPUS {
            return Err(Error::Gpus { gpus, most: Self::MOST_GPUS });
        }
        let numa: usize = node.numa.iter().fold(0, |sum, &size| sum.saturating_add(size));
        let known = |&(a, b, _): &(usize, usize, f64)| a < node.gpus && b < node.gpus && a != b;
        if numa != node.gpus || !node.bridges.iter().all(known) {
            return Err(Error::Node { gpus: node.gpus, numa });
        }
        if !node.gpu.is_valid() {
            return Err(Error::Constants { what: "the GPU" });
        }
        let speeds = [node.pcie_gb_per_s, node.numa_gb_per_s, node.nic_gb_per_s];
        let nvlinks = node.bridges.iter().map(|bridge| bridge.2).chain(node.nvswitch_gb_per_s);
        if !speeds.into_iter().chain(nvlinks).all(|speed| speed.is_finite() && speed > 0.0) {
            return Err(Error::NotPositive { what: "the speed of a link" });
        }
        let mut machine =
            Self { name: name.into(), node, nodes, links: Vec::new(), bridge_links: Vec::new() };
        machine.connect();
        Ok(machine)
    }

    fn connect(&mut self) {
        let node = &self.node;
        let mut links = Vec::new();
        let mut push = |name: String, gb_per_s: f64| links.push(Link { name, gb_per_s });
        for gpu in 0..node.gpus * self.nodes {
            for way in ["out", "in"] {
                push(format!("gpu {gpu} pcie {way}"), node.pcie_gb_per_s);
            }
            for way in ["out", "in"] {
                push(format!("gpu {gpu} nvlink {way}"), node.nvswitch_gb_per_s.unwrap_or(f64::MIN_POSITIVE));
            }
        }
        for of in 0..self.nodes {
            for nic in 0..node.nics.max(1) {
                for way in ["out", "in"] {
                    push(format!("node {of} nic {nic} {way}"), node.nic_gb_per_s);
                }
            }
            for (from, _) in node.numa.iter().enumerate() {
                for (to, _) in node.numa.iter().enumerate() {
                    push(format!("node {of} numa {from} to {to}"), node.numa_gb_per_s);
                }
            }
        }
        for of in 0..self.nodes {
            for &(a, b, gb_per_s) in &node.bridges {
                for (from, to) in [(a, b), (b, a)] {
                    let (from, to) = (of * node.gpus + from, of * node.gpus + to);
                    self.bridge_links.push(((from, to), links.len()));
                    links.push(Link { name: format!("bridge {from} to {to}"), gb_per_s });
                }
            }
        }
        self.bridge_links.sort_unstable();
        self.links = links;
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What a node is.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// How many GPUs there are in all.
    pub fn gpus(&self) -> usize {
        self.node.gpus * self.nodes
    }

    /// All links; routes are made of their indices.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// What goes from one GPU to another occupies these links at once; empty where there is no such GPU.
    pub fn route(&self, from: usize, to: usize) -> Vec<usize> {
        if from >= self.gpus() || to >= self.gpus() || from == to {
            return Vec::new();
        }
        let size = self.node.gpus;
        let (from_node, to_node) = (from / size, to / size);
        let [pcie_out, pcie_in] = [4 * from, 4 * to + 1];
        if from_node == to_node {
            if self.node.nvswitch_gb_per_s.is_some() {
                return vec![4 * from + 2, 4 * to + 3];
            }
            if let Ok(bridge) = self.bridge_links.binary_search_by_key(&(from, to), |bridge| bridge.0) {
                return vec![self.bridge_links[bridge].1];
            }
            let (a, b) = (self.numa_of(from % size), self.numa_of(to % size));
            if a == b {
                return vec![pcie_out, pcie_in];
            }
            let across = self.nics_end(from_node) + a * self.node.numa.len() + b;
            return vec![pcie_out, across, pcie_in];
        }
        let nics = self.node.nics.max(1);
        let nic = |gpu: usize| (gpu % size) * nics / size;
        let out = self.nics_begin(from_node) + 2 * nic(from);
        let into = self.nics_begin(to_node) + 2 * nic(to) + 1;
        vec![pcie_out, out, into, pcie_in]
    }

    /// The link of the first node that is there what this one is in its node.
    pub(crate) fn in_first_node(&self, link: usize) -> usize {
        let (nics, bridges) = (self.nics_begin(0), self.nics_begin(self.nodes));
        match link {
            _ if link < nics => link % (4 * self.node.gpus),
            _ if link < bridges => nics + (link - nics) % (self.nics_begin(1) - nics),
            _ => bridges + (link - bridges) % (2 * self.node.bridges.len()).max(1),
        }
    }

    fn nics_begin(&self, node: usize) -> usize {
        4 * self.gpus() + node * (2 * self.node.nics.max(1) + self.node.numa.len() * self.node.numa.len())
    }

    fn nics_end(&self, node: usize) -> usize {
        self.nics_begin(node) + 2 * self.node.nics.max(1)
    }

    fn numa_of(&self, gpu: usize) -> usize {
        let ends = self.node.numa.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        });
        ends.take_while(|&end| end <= gpu).count()
    }

    /// How ranks should exchange their shards here.
    pub fn pattern(&self) -> Pattern {
        let node = &self.node;
        let within = if node.nvswitch_gb_per_s.is_some() || self.is_mesh(&(0..node.gpus).collect::<Vec<_>>())
        {
            Pattern::full_mesh(node.gpus)
        } else if !node.bridges.is_empty() {
            Pattern::Nested(self.islands().into_iter().map(Pattern::Mesh).collect())
        } else {
            Pattern::two_level(&node.numa)
        };
        Pattern::nodes(self.nodes, &within)
    }

    fn is_bridged(&self, a: usize, b: usize) -> bool {
        self.node.bridges.iter().any(|&(from, to, _)| (from, to) == (a, b) || (from, to) == (b, a))
    }

    fn is_mesh(&self, gpus: &[usize]) -> bool {
        gpus.iter().all(|&a| gpus.iter().all(|&b| a == b || self.is_bridged(a, b)))
    }

    /// GPUs that are all connected to all, each taken with the first ones that it fits to.
    fn islands(&self) -> Vec<Vec<usize>> {
        let mut islands: Vec<Vec<usize>> = Vec::new();
        for gpu in 0..self.node.gpus {
            let fits = |island: &&mut Vec<usize>| island.iter().all(|&other| self.is_bridged(gpu, other));
            match islands.iter_mut().find(fits) {
                Some(island) => island.push(gpu),
                None => islands.push(vec![gpu]),
            }
        }
        islands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_exchange_as_fits_the_machine() {
        let pattern = |name: &str, nodes: usize| Machine::preset(name, nodes).unwrap().pattern();
        assert_eq!(pattern("hgx-h200", 1), Pattern::full_mesh(8));
        assert_eq!(pattern("8xl20-numa-3-5", 1), Pattern::two_level(&[3, 5]));
        assert_eq!(pattern("4xa100-nvlink-pairs", 1), Pattern::islands(&[2, 2]));
        assert_eq!(pattern("dgx-1-v100", 1), Pattern::islands(&[4, 4]));
        assert_eq!(pattern("dgx-h100", 2), Pattern::nodes(2, &Pattern::full_mesh(8)));
        assert_eq!(pattern("8xa100-pcie", 3), Pattern::nodes(3, &Pattern::two_level(&[4, 4])));
    }

    #[test]
    fn routes_are_made_of_links_that_there_are() {
        let names = |name: &str, nodes: usize, from: usize, to: usize| -> Vec<String> {
            let machine = Machine::preset(name, nodes).unwrap();
            machine.route(from, to).into_iter().map(|link| machine.links()[link].name.clone()).collect()
        };
        assert_eq!(names("hgx-h200", 2, 8, 15), ["gpu 8 nvlink out", "gpu 15 nvlink in"]);
        assert_eq!(names("8xl20-pcie", 1, 5, 6), ["gpu 5 pcie out", "gpu 6 pcie in"]);
        assert_eq!(
            names("8xl20-pcie", 2, 11, 12),
            ["gpu 11 pcie out", "node 1 numa 0 to 1", "gpu 12 pcie in"]
        );
        assert_eq!(names("dgx-1-v100", 2, 9, 13), ["bridge 9 to 13"]);
        assert_eq!(
            names("dgx-a100", 2, 3, 14),
            ["gpu 3 pcie out", "node 0 nic 3 out", "node 1 nic 6 in", "gpu 14 pcie in"]
        );
        for preset in ["dgx-1-v100", "8xl20-numa-3-5", "dgx-a100"] {
            let machine = Machine::preset(preset, 3).unwrap();
            let gpus = machine.node().gpus;
            for (from, to) in (0..gpus).flat_map(|from| (0..gpus).map(move |to| (from, to))) {
                for node in 0..3 {
                    let first = |link| machine.in_first_node(link);
                    let moved = machine.route(from + node * gpus, to + node * gpus).into_iter().map(first);
                    assert_eq!(moved.collect::<Vec<_>>(), machine.route(from, to));
                }
            }
        }
        assert_eq!(names("dgx-a100", 1, 3, 8), Vec::<String>::new());
        assert_eq!(names("dgx-a100", 1, usize::MAX, 0), Vec::<String>::new());
    }
}
