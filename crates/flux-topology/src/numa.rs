//! Which GPUs hang on the same NUMA node, stated or inferred.

use std::collections::BTreeMap;

use crate::{LinkKind, Topology};

/// The GPUs by NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NumaGroups {
    /// The GPUs of each node, ascending; the nodes by machine and then by number, or by their first GPU where the
    /// numbers are not known.
    pub groups: Vec<Vec<usize>>,
    /// How it is known.
    pub basis: NumaBasis,
}

/// How it is known which GPUs share a NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NumaBasis {
    /// Every GPU's node is known.
    Stated,
    /// GPUs that are near the same CPUs are taken for one node's.
    CpuLists,
    /// GPUs that are not [`LinkKind::System`] apart are taken for one node's.
    Distance,
    /// Nothing says anything about nodes: all GPUs of a machine are taken for one node's.
    Unknown,
}

impl Topology {
    /// The GPUs by NUMA node: as stated where that is known of every GPU, else inferred from the CPUs that they
    /// are near, else from which of them are [`LinkKind::System`] apart.
    pub fn numa_groups(&self) -> NumaGroups {
        if let Some(groups) = group_by(self, |index| self.devices().get(index)?.numa_node) {
            return NumaGroups { groups, basis: NumaBasis::Stated };
        }
        if let Some(mut groups) = group_by(self, |index| self.devices().get(index)?.cpus.as_ref()) {
            groups.sort_by_key(|group| group.first().copied());
            return NumaGroups { groups, basis: NumaBasis::CpuLists };
        }
        let (groups, basis) = match self.is_anything_far() {
            true => (not_system_apart(self), NumaBasis::Distance),
            false => (group_by(self, |_| Some(0)).unwrap_or_default(), NumaBasis::Unknown),
        };
        NumaGroups { groups, basis }
    }

    fn is_anything_far(&self) -> bool {
        let indices = 0..self.device_count();
        indices.clone().any(|a| indices.clone().any(|b| kind(self, a, b) == LinkKind::System))
    }
}

/// The GPUs by machine and key; `None` where a GPU has no key.
fn group_by<K: Ord>(topology: &Topology, key: impl Fn(usize) -> Option<K>) -> Option<Vec<Vec<usize>>> {
    let mut groups: BTreeMap<(usize, K), Vec<usize>> = BTreeMap::new();
    for (index, device) in topology.devices().iter().enumerate() {
        groups.entry((device.host, key(index)?)).or_default().push(index);
    }
    Some(groups.into_values().collect())
}

/// The largest sets of GPUs of a machine that are connected by pairs nearer than [`LinkKind::System`]. NVLink
/// does not count where it can be left out: cards of two sockets may be bridged.
fn not_system_apart(topology: &Topology) -> Vec<Vec<usize>> {
    let by_pcie = components(topology, |kind| kind > LinkKind::NvLink && kind < LinkKind::System);
    // Where NVLink hides how far all the others are, it is all there is to go by.
    let alone = |group: &Vec<usize>| group.len() == 1;
    if by_pcie.iter().all(alone) { components(topology, |kind| kind < LinkKind::System) } else { by_pcie }
}

fn components(topology: &Topology, joins: impl Fn(LinkKind) -> bool) -> Vec<Vec<usize>> {
    let count = topology.device_count();
    let mut group_of: Vec<Option<usize>> = vec![None; count];
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for first in 0..count {
        if group_of.get(first).copied().flatten().is_some() {
            continue;
        }
        let mut group = Vec::new();
        let mut reached = vec![first];
        while let Some(index) = reached.pop() {
            let Some(slot) = group_of.get_mut(index).filter(|slot| slot.is_none()) else { continue };
            *slot = Some(groups.len());
            group.push(index);
            reached.extend((0..count).filter(|&other| other != index && joins(kind(topology, index, other))));
        }
        group.sort_unstable();
        groups.push(group);
    }
    groups
}

fn kind(topology: &Topology, from: usize, to: usize) -> LinkKind {
    topology.link(from, to).map_or(LinkKind::Unknown, |link| link.kind)
}
