//! What each source says of the same thing, and where they do not say the same.

use std::collections::BTreeMap;

use super::{DriverDevice, DriverPair, NvmlDevice, NvmlFacts, NvmlPair, SysfsDevice, SysfsFacts};
use crate::{LinkKind, P2pStatus, PciAddress, Topology};

/// All sources' facts, addressed by ordinal.
pub(crate) struct Sides<'a> {
    pub(crate) nvml: &'a NvmlFacts,
    pub(crate) nvml_index: &'a [Option<usize>],
    pub(crate) driver_pairs: &'a BTreeMap<(usize, usize), DriverPair>,
    pub(crate) sysfs: &'a SysfsFacts,
    pub(crate) pci: &'a [Option<PciAddress>],
}

impl Sides<'_> {
    pub(crate) fn nvml_device(&self, ordinal: usize) -> Option<&NvmlDevice> {
        self.nvml.devices.get((*self.nvml_index.get(ordinal)?)?)
    }

    pub(crate) fn nvml_pair(&self, from: usize, to: usize) -> NvmlPair {
        let index = |ordinal: usize| self.nvml_index.get(ordinal).copied().flatten();
        let key = index(from).zip(index(to));
        key.and_then(|key| self.nvml.pairs.get(&key)).cloned().unwrap_or_default()
    }

    pub(crate) fn sysfs_device(&self, ordinal: usize) -> Option<&SysfsDevice> {
        self.sysfs.devices.get(&(*self.pci.get(ordinal)?)?)
    }

    pub(crate) fn sysfs_distance(&self, from: usize, to: usize) -> Option<LinkKind> {
        Some(self.sysfs_device(from)?.distance(self.sysfs_device(to)?))
    }
}

/// GPUs whose NUMA node is another by `/sys` than by the driver or NVML.
pub(crate) fn numa_nodes(sides: &Sides<'_>, devices: &[DriverDevice]) -> Vec<String> {
    let differs = |(ordinal, device): (usize, &DriverDevice)| {
        let (theirs, who) = match device.numa_node {
            Some(node) => (node, "the CUDA driver"),
            None => (sides.nvml_device(ordinal)?.numa_node?, "NVML"),
        };
        let ours = sides.sysfs_device(ordinal)?.numa_node?;
        (ours != theirs).then(|| {
            format!(
                "GPU {ordinal} is on NUMA node {theirs} by {who} and on {ours} by /sys; {who}'s word is taken"
            )
        })
    };
    devices.iter().enumerate().filter_map(differs).collect()
}

/// Pairs of which sources say different things: one warning for each kind of difference, with the pairs.
pub(crate) fn pairs(sides: &Sides<'_>, topology: &Topology) -> Vec<String> {
    let count = topology.device_count();
    let (mut allowed, mut denied, mut idle, mut distance) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))).filter(|(a, b)| a != b)
    {
        let nvml = sides.nvml_pair(from, to);
        let driver =
            sides.driver_pairs.get(&(from, to)).and_then(|pair| pair.can_access.or(pair.access_supported));
        let refused = |status: P2pStatus| status.is_denied();
        match driver {
            Some(true) if refused(nvml.read) || refused(nvml.write) => allowed.push((from, to)),
            Some(false) if nvml.read.is_ok() && nvml.write.is_ok() => denied.push((from, to)),
            _ => {}
        }
        let link = topology.link(from, to);
        if driver == Some(false) && link.is_some_and(|link| link.kind == LinkKind::NvLink) {
            idle.push((from, to));
        }
        let seen = nvml.ancestor.max(sides.nvml_pair(to, from).ancestor);
        let differs = seen.zip(sides.sysfs_distance(from, to)).is_some_and(|(a, b)| !alike(a, b));
        if from < to && differs {
            distance.push((from, to));
        }
    }
    let table = [
        (allowed, "the CUDA driver grants peer access, NVML denies it; the driver's word is taken"),
        (denied, "NVML grants peer access, the CUDA driver denies it; the driver's word is taken"),
        (idle, "NVLink connects them, and the CUDA driver denies peer access: it cannot be used"),
        (distance, "how far they are apart is another thing by /sys than by NVML; NVML's word is taken"),
    ];
    table
        .into_iter()
        .filter(|(pairs, _)| !pairs.is_empty())
        .map(|(pairs, what)| warning(&pairs, what))
        .collect()
}

/// Whether two distances can be of one pair: a host bridge or several of a node is a matter of counting.
fn alike(a: LinkKind, b: LinkKind) -> bool {
    let within_a_node = |kind| matches!(kind, LinkKind::HostBridge | LinkKind::NumaNode);
    a == b || (within_a_node(a) && within_a_node(b))
}

fn warning(pairs: &[(usize, usize)], what: &str) -> String {
    const SHOWN: usize = 6;
    let shown = pairs.iter().take(SHOWN).map(|(from, to)| format!("{from} to {to}"));
    let shown = shown.collect::<Vec<_>>().join(", ");
    let more = pairs.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more pairs") } else { String::new() };
    format!("GPU {shown}{more}: {what}")
}
