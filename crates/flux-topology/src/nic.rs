//! One port of a network card.

use crate::{LinkKind, PciAddress};

/// One port of a network card, as far as it is known. A card with two ports is there twice, with one address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nic {
    /// The name: `mlx5_0`, `eth0`, or the PCI address where a file names none.
    pub name: String,
    /// Where it sits on PCI; a software bridge is nowhere.
    pub pci: Option<PciAddress>,
    /// The PCI bridges above it, from the root down; empty where they are not known.
    pub bridges: Vec<PciAddress>,
    /// The host's NUMA node that is nearest.
    pub numa_node: Option<u32>,
    /// Which machine it is in; 0 where there is one.
    pub host: usize,
    /// The number of its port on its card.
    pub port: Option<u32>,
    /// Its speed in 10⁶ bits per second.
    pub megabits_per_s: Option<u64>,
    /// How far each GPU is, by the GPU's index.
    pub to_gpus: Vec<LinkKind>,
}

impl Nic {
    /// A port of which nothing but the name is known.
    pub fn new(name: impl Into<String>) -> Self {
        Nic {
            name: name.into(),
            pci: None,
            bridges: Vec::new(),
            numa_node: None,
            host: 0,
            port: None,
            megabits_per_s: None,
            to_gpus: Vec::new(),
        }
    }

    /// The GPUs that share a PCI switch with it ([`LinkKind::PcieSwitch`] or [`LinkKind::PcieSwitches`]): what
    /// they send it passes no CPU.
    pub fn near(&self) -> Vec<usize> {
        let shares_a_switch = |kind| matches!(kind, LinkKind::PcieSwitch | LinkKind::PcieSwitches);
        let near = self.to_gpus.iter().enumerate().filter(|&(_, &kind)| shares_a_switch(kind));
        near.map(|(index, _)| index).collect()
    }
}
