//! Where in a topology file a device is, and so how far two of them are apart.

use crate::{LinkKind, PciAddress};

/// Where in the tree of a topology file a device is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// The machine.
    pub(crate) host: usize,
    /// Which `<cpu>` of the file; each is a NUMA node.
    pub(crate) cpu: usize,
    pub(crate) numa_node: Option<u32>,
    /// The bridges above it, from the root down.
    pub(crate) bridges: Vec<PciAddress>,
}

impl Place {
    /// How far two devices are apart. The file has no level of host bridges, so `PHB` stands for `NODE` too.
    pub(crate) fn distance(&self, other: &Place) -> LinkKind {
        if self.host != other.host {
            return LinkKind::Network;
        }
        if self.cpu != other.cpu {
            return LinkKind::System;
        }
        match (self.bridges.last(), other.bridges.last()) {
            (Some(a), Some(b)) if a == b => LinkKind::PcieSwitch,
            // Two bridges that share one further up share the first.
            _ if self.bridges.first().is_some_and(|a| other.bridges.first() == Some(a)) => {
                LinkKind::PcieSwitches
            }
            _ => LinkKind::HostBridge,
        }
    }
}
