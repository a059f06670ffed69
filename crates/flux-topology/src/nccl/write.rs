//! A topology as NCCL's topology file.
//!
//! What was read from such a file is written as it was. Everything else is built here from what is known: a
//! `<cpu>` for each NUMA node, PCI switches where devices share one, the GPUs with their NVLinks, the cards.

use std::collections::{BTreeMap, BTreeSet};

use super::element::{self, Element};
use crate::{LinkKind, Nic, PciAddress, PcieRate, Topology};

/// How a switch is written that nobody has seen.
const HIDDEN_SWITCH: &str = "fffffff:ff:ff.0";

impl Topology {
    /// The XML that NCCL reads from `NCCL_TOPO_FILE`.
    ///
    /// A topology that was read from such a file is written with all that the file held. What the format has no
    /// word for gets lost: it knows one distance, `PHB`, for all that is on one NUMA node and shares no switch, and
    /// nothing of the PCIe way between GPUs that NVLink connects. Devices without a PCI address get made-up
    /// ones, and a comment says so: NCCL finds devices by their address. A file is for one machine: of several,
    /// the first is written.
    pub fn to_nccl_xml(&self) -> String {
        if let Some(system) = self.nccl() {
            return element::write(system);
        }
        let mut comments = Vec::new();
        if self.host_count() > 1 {
            comments.push("The first of several machines: each needs a file of its own.");
        }
        if self.devices().iter().any(|device| device.host == 0 && device.pci.is_none()) {
            comments.push(
                "Bus ids of GPUs are made up: put in those of the machine, or NCCL will not find the devices.",
            );
        }
        let mut text: String = comments.iter().map(|comment| format!("<!-- {comment} -->\n")).collect();
        text.push_str(&element::write(&Builder::new(self).system()));
        text
    }
}

/// Devices with addresses and the switches above them.
struct Builder<'a> {
    topology: &'a Topology,
    /// The GPUs of the first machine, by index: their address, and their switches from the root down.
    gpus: BTreeMap<usize, (PciAddress, Vec<PciAddress>)>,
    /// Its cards with a place on PCI: ports by address, and the switches.
    nics: BTreeMap<PciAddress, (Vec<usize>, Vec<PciAddress>)>,
    /// Its ports without.
    bare_nics: Vec<usize>,
    /// The NUMA node of each GPU, of all machines.
    node_of_gpu: Vec<Node>,
    /// The GPUs that a card is near.
    near_a_nic: BTreeSet<usize>,
    /// What switches and cards are written with, of whose links nothing is known: they are not to be narrower than the GPUs'.
    fastest: Option<PcieRate>,
}

impl<'a> Builder<'a> {
    fn new(topology: &'a Topology) -> Builder<'a> {
        let made_up = switches(topology);
        let mut taken: BTreeSet<PciAddress> =
            topology.devices().iter().filter_map(|device| device.pci).collect();
        taken.extend(topology.nics().iter().filter_map(|nic| nic.pci));
        let mut free = (0u16..)
            .map(|number| address(u32::from(number >> 8), number))
            .filter(move |a| !taken.contains(a));
        // Bus 0 is where host bridges are.
        let _ = free.next();
        let mut fresh = || free.next().unwrap_or(address(u32::MAX, 0));

        let mut gpus = BTreeMap::new();
        for device in topology.devices().iter().filter(|device| device.host == 0) {
            let above =
                if device.bridges.is_empty() { made_up.gpu(device.ordinal) } else { device.bridges.clone() };
            gpus.insert(device.ordinal, (device.pci.unwrap_or_else(&mut fresh), above));
        }
        let mut nics: BTreeMap<PciAddress, (Vec<usize>, Vec<PciAddress>)> = BTreeMap::new();
        let mut bare_nics = Vec::new();
        for (index, nic) in topology.nics().iter().enumerate().filter(|(_, nic)| nic.host == 0) {
            let above = if nic.bridges.is_empty() { made_up.nic(index) } else { nic.bridges.clone() };
            let pci = nic.pci.or_else(|| (!above.is_empty()).then(&mut fresh));
            match pci {
                Some(pci) => nics.entry(pci).or_insert((Vec::new(), above)).0.push(index),
                None => bare_nics.push(index),
            }
        }
        let mut node_of_gpu = vec![Node::Inferred(0); topology.device_count()];
        for (number, group) in topology.numa_groups().groups.iter().enumerate() {
            group.iter().for_each(|&gpu| node_of_gpu[gpu] = Node::Inferred(number));
        }
        for (node, device) in node_of_gpu.iter_mut().zip(topology.devices()) {
            *node = device.numa_node.map_or(*node, Node::Stated);
        }
        let near_a_nic = topology.nics().iter().flat_map(Nic::near).collect();
        let rates = topology.devices().iter().filter_map(|device| device.pcie);
        let fastest = rates.max_by(|a, b| a.gb_per_s().total_cmp(&b.gb_per_s()));
        Builder { topology, gpus, nics, bare_nics, node_of_gpu, near_a_nic, fastest }
    }

    fn system(&self) -> Element {
        let nodes = self.nodes();
        let mut cpus: Vec<Element> = nodes.values().map(|&(number, first)| self.cpu(number, first)).collect();
        let mut add = |place: Option<usize>, above: &[PciAddress], element: Element| {
            if let Some(cpu) = cpus.get_mut(place.unwrap_or(0)) {
                descend(cpu, above, self.fastest).children.push(element);
            }
        };
        for (&index, (pci, above)) in &self.gpus {
            add(self.cpu_of_gpu(&nodes, index), above, self.gpu(index, pci));
        }
        for (pci, (ports, above)) in &self.nics {
            let card = pci_element(pci, "0x020000", self.fastest);
            let place = ports.first().and_then(|&port| self.cpu_of_nic(&nodes, port));
            add(place, above, Element { children: vec![self.nic(ports)], ..card });
        }
        for &port in &self.bare_nics {
            add(self.cpu_of_nic(&nodes, port), &[], self.nic(&[port]));
        }
        Element { children: cpus, ..Element::new("system").with("version", 1) }
    }

    /// The NUMA nodes: stated ones by number, else one for each group that can be inferred. Each with the number
    /// that is written and its first GPU.
    fn nodes(&self) -> BTreeMap<Node, (i64, Option<usize>)> {
        let mut nodes = BTreeMap::new();
        for &index in self.gpus.keys() {
            let node = self.node_of_gpu(index);
            nodes.entry(node).or_insert((node.number(), Some(index)));
        }
        let stated = self.topology.nics().iter().filter(|nic| nic.host == 0).filter_map(|nic| nic.numa_node);
        for node in stated.map(Node::Stated) {
            nodes.entry(node).or_insert((node.number(), None));
        }
        nodes
    }

    fn node_of_gpu(&self, index: usize) -> Node {
        self.node_of_gpu.get(index).copied().unwrap_or(Node::Inferred(0))
    }

    fn cpu_of_gpu(&self, nodes: &BTreeMap<Node, (i64, Option<usize>)>, index: usize) -> Option<usize> {
        let node = self.node_of_gpu(index);
        nodes.keys().position(|&other| other == node)
    }

    /// The stated node, else that of the nearest GPU.
    fn cpu_of_nic(&self, nodes: &BTreeMap<Node, (i64, Option<usize>)>, index: usize) -> Option<usize> {
        let nic = self.topology.nics().get(index)?;
        if let Some(stated) = nic.numa_node {
            return nodes.keys().position(|&other| other == Node::Stated(stated));
        }
        let nearest = nic.to_gpus.iter().enumerate().filter(|(gpu, _)| self.gpus.contains_key(gpu));
        let (gpu, _) = nearest.min_by_key(|&(_, &kind)| kind)?;
        self.cpu_of_gpu(nodes, gpu)
    }

    fn cpu(&self, number: i64, first: Option<usize>) -> Element {
        let cpu = Element::new("cpu").with("numaid", number);
        let near = first.and_then(|first| self.topology.devices().get(first)?.cpus.as_ref());
        near.map_or(cpu.clone(), |near| cpu.with("affinity", near.mask()))
    }

    fn gpu(&self, index: usize, pci: &PciAddress) -> Element {
        let Some(device) = self.topology.devices().get(index) else {
            return pci_element(pci, "0x030200", None);
        };
        let card = pci_element(pci, "0x030200", device.pcie);
        let mut gpu = Element::new("gpu").with("dev", index);
        if let Some(sm) = device.compute_capability {
            gpu = gpu.with("sm", u64::from(sm.major) * 10 + u64::from(sm.minor));
        }
        gpu = gpu.with("rank", index).with("gdr", u8::from(self.near_a_nic.contains(&index)));
        gpu.children = self.nvlinks(index);
        Element { children: vec![gpu], ..card }
    }

    fn nvlinks(&self, from: usize) -> Vec<Element> {
        let link = |to: usize| self.topology.link(from, to).filter(|link| link.kind == LinkKind::NvLink);
        let nvlink = |target: String, count: u32, class: &str| {
            Element::new("nvlink").with("target", target).with("count", count).with("tclass", class)
        };
        if self.topology.nvswitch() == Some(true) {
            // Peers in other machines count as well: the switch is the same.
            let most = (0..self.topology.device_count()).filter_map(link).map(|link| link.nvlinks).max();
            return most
                .map(|count| nvlink(HIDDEN_SWITCH.to_owned(), count, "0x068000"))
                .into_iter()
                .collect();
        }
        let peers = self.gpus.iter().filter_map(|(&to, (pci, _))| Some((pci, link(to)?)));
        peers.map(|(pci, link)| nvlink(pci.to_string(), link.nvlinks.max(1), "0x030200")).collect()
    }

    fn nic(&self, ports: &[usize]) -> Element {
        let net = |&index: &usize| -> Option<Element> {
            let nic = self.topology.nics().get(index)?;
            let speed = nic.megabits_per_s.map(|speed| speed.to_string());
            Some(
                Element::new("net")
                    .with("name", &nic.name)
                    .with("dev", index)
                    .with("speed", speed.unwrap_or_else(|| "10000".to_owned()))
                    .with("port", nic.port.unwrap_or(1))
                    .with("latency", "0.000000")
                    .with("guid", format!("{index:#x}"))
                    .with("maxconn", 131_072)
                    .with("gdr", u8::from(!nic.near().is_empty())),
            )
        };
        Element { children: ports.iter().filter_map(net).collect(), ..Element::new("nic") }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Stated(u32),
    Inferred(usize),
}

impl Node {
    fn number(self) -> i64 {
        match self {
            Node::Stated(node) => node.into(),
            // One node of which nothing is known is written as Linux does.
            Node::Inferred(0) => -1,
            Node::Inferred(group) => i64::try_from(group).unwrap_or(-1),
        }
    }
}

/// The element for the innermost of these switches, made where it is not there yet.
fn descend<'a>(cpu: &'a mut Element, switches: &[PciAddress], link: Option<PcieRate>) -> &'a mut Element {
    let mut at = cpu;
    for switch in switches {
        let busid = switch.to_string();
        let position = at.children.iter().position(|child| child.get("busid") == Some(&busid));
        let position = position.unwrap_or_else(|| {
            at.children.push(pci_element(switch, "0x060400", link));
            at.children.len() - 1
        });
        at = &mut at.children[position];
    }
    at
}

/// NCCL refuses a PCI element without a link. One that it could not find out itself it writes like this, and takes for 16 lanes of
/// PCIe 3.0.
fn pci_element(pci: &PciAddress, class: &str, link: Option<PcieRate>) -> Element {
    let speed = |rate: PcieRate| format!("{:.1} GT/s PCIe", f64::from(rate.megatransfers_per_s) / 1000.0);
    Element::new("pci")
        .with("busid", pci)
        .with("class", class)
        .with("link_speed", link.map(speed).unwrap_or_default())
        .with("link_width", link.map_or(0, |rate| rate.lanes))
}

fn address(domain: u32, bus: u16) -> PciAddress {
    let [_, bus] = bus.to_be_bytes();
    PciAddress { domain, bus, device: 0, function: 0 }
}

/// Made-up switches for devices of which only the distance is known.
struct Switches {
    gpus: BTreeMap<usize, Vec<PciAddress>>,
    nics: BTreeMap<usize, Vec<PciAddress>>,
}

impl Switches {
    fn gpu(&self, index: usize) -> Vec<PciAddress> {
        self.gpus.get(&index).cloned().unwrap_or_default()
    }

    fn nic(&self, index: usize) -> Vec<PciAddress> {
        self.nics.get(&index).cloned().unwrap_or_default()
    }
}

/// Devices that are `PIX` or `PXB` apart share an outer switch; within it, those that are `PIX` apart share an
/// inner one.
fn switches(topology: &Topology) -> Switches {
    let gpus: Vec<usize> = topology.devices().iter().filter(|d| d.host == 0).map(|d| d.ordinal).collect();
    let nics: Vec<(usize, &Nic)> =
        topology.nics().iter().enumerate().filter(|(_, nic)| nic.host == 0).collect();
    let count = gpus.len();
    // GPUs first, then cards.
    let kind = |a: usize, b: usize| -> LinkKind {
        let (low, high) = (a.min(b), a.max(b));
        match (gpus.get(low), gpus.get(high)) {
            (Some(&from), Some(&to)) => topology.link(from, to).map_or(LinkKind::Unknown, |link| link.kind),
            (Some(&gpu), None) => {
                let nic = high.checked_sub(count).and_then(|nic| nics.get(nic));
                nic.and_then(|(_, nic)| nic.to_gpus.get(gpu).copied()).unwrap_or(LinkKind::Unknown)
            }
            // How far cards are from each other is not known.
            _ => LinkKind::Unknown,
        }
    };
    let everything = count + nics.len();
    let outer =
        labels(everything, |a, b| matches!(kind(a, b), LinkKind::PcieSwitch | LinkKind::PcieSwitches));
    let inner = labels(everything, |a, b| kind(a, b) == LinkKind::PcieSwitch);
    let mut next = 0u16;
    let mut made: BTreeMap<(bool, usize), PciAddress> = BTreeMap::new();
    let mut switch = |is_outer: bool, label: usize| {
        *made.entry((is_outer, label)).or_insert_with(|| {
            next = next.saturating_add(1);
            address(0xffff, next)
        })
    };
    let sizes = |labels: &[usize]| {
        let mut sizes = vec![0usize; labels.len()];
        labels.iter().for_each(|&label| sizes[label] += 1);
        sizes
    };
    let (outer_sizes, inner_sizes) = (sizes(&outer), sizes(&inner));
    let mut result = Switches { gpus: BTreeMap::new(), nics: BTreeMap::new() };
    for (member, (&outer_label, &inner_label)) in outer.iter().zip(&inner).enumerate() {
        let above = match (outer_sizes[outer_label], inner_sizes[inner_label]) {
            (1, _) => continue,
            (outer_size, inner_size) if outer_size == inner_size => vec![switch(false, inner_label)],
            _ => vec![switch(true, outer_label), switch(false, inner_label)],
        };
        match gpus.get(member) {
            Some(&gpu) => result.gpus.insert(gpu, above),
            None => member
                .checked_sub(count)
                .and_then(|nic| nics.get(nic))
                .and_then(|&(nic, _)| result.nics.insert(nic, above)),
        };
    }
    result
}

/// A label for each member, the same for all that are joined in one or several steps.
fn labels(count: usize, joined: impl Fn(usize, usize) -> bool) -> Vec<usize> {
    let mut labels: Vec<usize> = (0..count).collect();
    for a in 0..count {
        for b in a + 1..count {
            let (from, to) = (labels[b], labels[a]);
            if from != to && joined(a, b) {
                labels.iter_mut().filter(|label| **label == from).for_each(|label| *label = to);
            }
        }
    }
    labels
}
