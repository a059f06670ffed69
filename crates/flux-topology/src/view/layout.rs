//! Where things stand in a drawing: NUMA nodes side by side; in each its GPUs by switch, its cards below.

use std::collections::BTreeMap;

use crate::{LinkKind, Topology};

/// Sizes in pixels.
pub(super) const GPU_WIDTH: usize = 96;
pub(super) const GPU_HEIGHT: usize = 40;
pub(super) const NIC_HEIGHT: usize = 22;
pub(super) const GAP: usize = 12;
/// Between NUMA nodes, with room for a label.
pub(super) const NODE_GAP: usize = 56;
/// Between two lines of NVLink.
pub(super) const LANE: usize = 18;

/// A machine's place.
pub(super) struct Layout {
    pub(super) nodes: Vec<Node>,
    pub(super) width: usize,
    /// The most rows of cards below any switch, and below any CPU.
    pub(super) near_rows: usize,
    pub(super) far_rows: usize,
    pub(super) lines: Vec<Line>,
    pub(super) lanes: usize,
}

/// A NUMA node.
pub(super) struct Node {
    pub(super) x: usize,
    pub(super) width: usize,
    pub(super) title: String,
    pub(super) clusters: Vec<Cluster>,
    /// Cards that are near no GPU.
    pub(super) nics: Vec<usize>,
}

/// GPUs and cards behind one switch, or one GPU without.
pub(super) struct Cluster {
    pub(super) x: usize,
    pub(super) width: usize,
    /// `None` where nothing is shared.
    pub(super) switch: Option<&'static str>,
    pub(super) gpus: Vec<usize>,
    pub(super) nics: Vec<usize>,
}

/// A direct NVLink as a line: up from one GPU, along a lane, down to the other.
pub(super) struct Line {
    pub(super) from_x: usize,
    pub(super) to_x: usize,
    pub(super) lane: usize,
    pub(super) nvlinks: u32,
}

impl Cluster {
    pub(super) fn columns(&self) -> usize {
        self.gpus.len().max(1)
    }

    pub(super) fn gpu_x(&self, place: usize) -> usize {
        self.x + GAP / 2 + place * (GPU_WIDTH + GAP)
    }
}

/// How wide so many GPUs or cards are, side by side.
fn columns_width(columns: usize) -> usize {
    columns * (GPU_WIDTH + GAP)
}

pub(super) fn layout(topology: &Topology, host: usize, left: usize) -> Layout {
    let of_host = |gpu: &usize| topology.devices().get(*gpu).is_some_and(|device| device.host == host);
    let groups = topology.numa_groups().groups;
    let groups: Vec<Vec<usize>> = groups.into_iter().filter(|group| group.iter().any(of_host)).collect();
    let mut far: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, nic) in topology.nics().iter().enumerate().filter(|(_, nic)| nic.host == host) {
        if nic.near().is_empty() {
            far.entry(group_of(topology, &groups, index)).or_default().push(index);
        }
    }
    let mut x = left;
    let mut nodes = Vec::new();
    for (place, group) in groups.iter().enumerate() {
        let start = x;
        let mut at = x + GAP;
        let mut clusters = Vec::new();
        for (gpus, nics) in clustered(topology, host, group) {
            let width = columns_width(gpus.len());
            let switch = switch_of(topology, &gpus, &nics);
            clusters.push(Cluster { x: at, width, switch, gpus, nics });
            at += width + GAP;
        }
        let width = at - start;
        let nics = far.remove(&place).unwrap_or_default();
        nodes.push(Node { x: start, width, title: title(topology, group), clusters, nics });
        x = start + width + NODE_GAP;
    }
    if let Some(nics) = far.remove(&groups.len()) {
        let width = columns_width(1) + 2 * GAP;
        nodes.push(Node { x, width, title: "elsewhere".to_owned(), clusters: Vec::new(), nics });
        x += width + NODE_GAP;
    }
    let near_rows =
        nodes.iter().flat_map(|node| &node.clusters).map(|c| c.nics.len().div_ceil(c.columns())).max();
    let far_rows = nodes.iter().map(|node| node.nics.len().div_ceil(far_columns(node))).max();
    let (lines, lanes) = lines(topology, &nodes);
    Layout {
        width: x.saturating_sub(NODE_GAP),
        near_rows: near_rows.unwrap_or(0),
        far_rows: far_rows.unwrap_or(0),
        nodes,
        lines,
        lanes,
    }
}

/// How many cards stand side by side below a CPU.
pub(super) fn far_columns(node: &Node) -> usize {
    (node.width.saturating_sub(GAP) / (GPU_WIDTH + GAP)).max(1)
}

/// The group whose NUMA node a card is on, or that it is nearest to; a place behind the last where it is as far from
/// all.
fn group_of(topology: &Topology, groups: &[Vec<usize>], nic: usize) -> usize {
    let Some(nic) = topology.nics().get(nic) else { return 0 };
    let node = |group: &Vec<usize>| topology.devices().get(*group.first()?)?.numa_node;
    if let Some(place) =
        groups.iter().position(|group| nic.numa_node.is_some() && node(group) == nic.numa_node)
    {
        return place;
    }
    let distance = |group: &Vec<usize>| {
        group.iter().filter_map(|&gpu| nic.to_gpus.get(gpu)).min().copied().unwrap_or(LinkKind::Unknown)
    };
    let nearest = groups.iter().map(distance).enumerate().min_by_key(|&(_, distance)| distance);
    match nearest {
        Some((place, distance)) if distance < LinkKind::System || groups.len() == 1 => place,
        _ => groups.len(),
    }
}

/// A node's GPUs by switch, with the cards that are near them.
fn clustered(topology: &Topology, host: usize, group: &[usize]) -> Vec<(Vec<usize>, Vec<usize>)> {
    let behind_one = |a: usize, b: usize| {
        let pcie = |kind| matches!(kind, LinkKind::PcieSwitch | LinkKind::PcieSwitches);
        topology.link(a, b).is_some_and(|link| pcie(link.kind))
            || topology.nics().iter().any(|nic| {
                nic.host == host
                    && [a, b].iter().all(|&gpu| nic.to_gpus.get(gpu).is_some_and(|&kind| pcie(kind)))
            })
    };
    let mut clusters: Vec<Vec<usize>> = Vec::new();
    for &gpu in group {
        let (mut joined, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut clusters)
            .into_iter()
            .partition(|cluster: &Vec<usize>| cluster.iter().any(|&other| behind_one(gpu, other)));
        joined.push(vec![gpu]);
        clusters = rest;
        let mut merged = joined.concat();
        merged.sort_unstable();
        clusters.push(merged);
    }
    clusters.sort();
    let with_nics = |cluster: Vec<usize>| {
        let near = |nic: &crate::Nic| nic.near().iter().any(|gpu| cluster.contains(gpu));
        let nics = topology.nics().iter().enumerate().filter(|(_, nic)| near(nic)).map(|(index, _)| index);
        let nics = nics.collect();
        (cluster, nics)
    };
    clusters.into_iter().map(with_nics).collect()
}

fn switch_of(topology: &Topology, gpus: &[usize], nics: &[usize]) -> Option<&'static str> {
    if gpus.len() < 2 && nics.is_empty() {
        return None;
    }
    let between_gpus = gpus.iter().flat_map(|&a| gpus.iter().filter_map(move |&b| topology.link(a, b)));
    let cards = nics.iter().filter_map(|&nic| topology.nics().get(nic));
    let to_cards = cards.flat_map(|nic| gpus.iter().filter_map(|&gpu| nic.to_gpus.get(gpu).copied()));
    let several =
        between_gpus.map(|link| link.kind).chain(to_cards).any(|kind| kind == LinkKind::PcieSwitches);
    Some(if several { "PCIe switches" } else { "PCIe switch" })
}

fn title(topology: &Topology, group: &[usize]) -> String {
    let first = group.first().and_then(|&gpu| topology.devices().get(gpu));
    let node = first.and_then(|device| device.numa_node).map(|node| format!("NUMA node {node}"));
    let cpus = first.and_then(|device| device.cpus.as_ref()).map(|cpus| format!("CPUs {cpus}"));
    match (node, cpus) {
        (Some(node), Some(cpus)) => format!("{node}, {cpus}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "CPU".to_owned(),
    }
}

/// Direct NVLinks. Each GPU's top edge has a place for each of its links, and no two lines of one lane touch.
fn lines(topology: &Topology, nodes: &[Node]) -> (Vec<Line>, usize) {
    if topology.nvswitch() == Some(true) {
        return (Vec::new(), 0);
    }
    let mut left_edges: Vec<(usize, usize)> = Vec::new();
    for cluster in nodes.iter().flat_map(|node| &node.clusters) {
        left_edges.extend(cluster.gpus.iter().enumerate().map(|(place, &gpu)| (gpu, cluster.gpu_x(place))));
    }
    let nvlinks = |a: usize, b: usize| {
        topology.link(a, b).filter(|link| link.kind == LinkKind::NvLink).map(|link| link.nvlinks)
    };
    // Where on its top edge the link of a GPU to another begins: peers from left to right.
    let port = |&(gpu, edge): &(usize, usize), peer: usize| {
        let peers: Vec<usize> = left_edges
            .iter()
            .map(|&(other, _)| other)
            .filter(|&o| o != gpu && nvlinks(gpu, o).is_some())
            .collect();
        let place = peers.iter().position(|&other| other == peer).unwrap_or(0);
        edge + GPU_WIDTH * (place + 1) / (peers.len() + 1)
    };
    let mut lines: Vec<Line> = Vec::new();
    for (place, from) in left_edges.iter().enumerate() {
        for to in left_edges.iter().skip(place + 1) {
            if let Some(nvlinks) = nvlinks(from.0, to.0) {
                lines.push(Line { from_x: port(from, to.0), to_x: port(to, from.0), lane: 0, nvlinks });
            }
        }
    }
    // Short ones first, and so lowest: long ones pass above them.
    lines.sort_by_key(|line| (line.to_x - line.from_x, line.from_x));
    // Room for the label of a line that is shorter than its label.
    const PADDING: usize = 16;
    let mut lanes: Vec<Vec<(usize, usize)>> = Vec::new();
    for line in &mut lines {
        let (start, end) = (line.from_x.saturating_sub(PADDING), line.to_x + PADDING);
        let free = |lane: &Vec<(usize, usize)>| lane.iter().all(|&(from, to)| end < from || to < start);
        line.lane = lanes.iter().position(free).unwrap_or(lanes.len());
        match lanes.get_mut(line.lane) {
            Some(lane) => lane.push((start, end)),
            None => lanes.push(vec![(start, end)]),
        }
    }
    (lines, lanes.len())
}
