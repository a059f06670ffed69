//! What connects one GPU to another.

use std::fmt;

/// What connects one GPU to another, seen from the first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// The nearest connection there is.
    pub kind: LinkKind,
    /// How many active NVLinks lie between the two, directly or through switches. 0 where there are none,
    /// and also where [`kind`](Link::kind) is [`LinkKind::NvLink`] but nobody could count them.
    pub nvlinks: u32,
    /// What the first may do with the memory of the second.
    pub p2p: P2p,
}

impl Link {
    /// From a GPU to itself.
    pub fn local() -> Self {
        let p2p = P2p {
            access: P2pStatus::Ok,
            read: P2pStatus::Ok,
            write: P2pStatus::Ok,
            atomics: P2pStatus::Ok,
            nvlink: P2pStatus::NotSupported,
            performance_rank: None,
        };
        Link { kind: LinkKind::Local, nvlinks: 0, p2p }
    }

    /// Of which nothing is known.
    pub fn unknown() -> Self {
        Link { kind: LinkKind::Unknown, nvlinks: 0, p2p: P2p::default() }
    }

    /// So many NVLinks, with peer access and atomics.
    pub fn nvlink(nvlinks: u32) -> Self {
        let p2p = P2p { nvlink: P2pStatus::Ok, ..Link::local().p2p };
        Link { kind: LinkKind::NvLink, nvlinks, p2p }
    }

    /// Over PCIe or further, with this answer to every question about peer access; no atomics in any case.
    pub fn pcie(kind: LinkKind, access: P2pStatus) -> Self {
        let p2p = P2p {
            access,
            read: access,
            write: access,
            atomics: P2pStatus::NotSupported,
            nvlink: P2pStatus::NotSupported,
            performance_rank: None,
        };
        Link { kind, nvlinks: 0, p2p }
    }

    /// Over PCIe or further, by a source that does not say whether peer access is possible.
    pub(crate) fn distance(kind: LinkKind) -> Self {
        Link { kind, ..Link::unknown() }
    }

    /// The cell of the link matrix: `X`, `NV18`, `NV?` where nobody could count, `PIX`, `SYS`, ….
    pub fn symbol(&self) -> String {
        match self.kind {
            LinkKind::NvLink if self.nvlinks > 0 => format!("NV{}", self.nvlinks),
            LinkKind::NvLink => "NV?".to_owned(),
            kind => kind.symbol().to_owned(),
        }
    }
}

/// How near two GPUs are, in the words of `nvidia-smi topo`; nearer ones compare as less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LinkKind {
    /// `X`: the same GPU (LOC in NCCL's words).
    Local,
    /// `NV#`: NVLink, directly or through NVSwitch.
    NvLink,
    /// `PIX`: at most one PCIe bridge between them.
    PcieSwitch,
    /// `PXB`: several PCIe bridges, and no host bridge.
    PcieSwitches,
    /// `PHB`: a PCIe host bridge, typically the CPU.
    HostBridge,
    /// `NODE`: several PCIe host bridges of one NUMA node.
    NumaNode,
    /// `SYS`: the interconnect between NUMA nodes.
    System,
    /// `NET`: the network between machines.
    Network,
    /// `?`: nobody could tell. Treat it as the furthest.
    Unknown,
}

impl LinkKind {
    /// As `nvidia-smi topo -m` writes it, without the number of NVLinks.
    pub fn symbol(self) -> &'static str {
        match self {
            LinkKind::Local => "X",
            LinkKind::NvLink => "NV",
            LinkKind::PcieSwitch => "PIX",
            LinkKind::PcieSwitches => "PXB",
            LinkKind::HostBridge => "PHB",
            LinkKind::NumaNode => "NODE",
            LinkKind::System => "SYS",
            LinkKind::Network => "NET",
            LinkKind::Unknown => "?",
        }
    }

    /// What the symbol means.
    pub fn meaning(self) -> &'static str {
        match self {
            LinkKind::Local => "the GPU itself",
            LinkKind::NvLink => "NVLinks, as many as the number says",
            LinkKind::PcieSwitch => "at most one PCIe bridge",
            LinkKind::PcieSwitches => "several PCIe bridges, no host bridge",
            LinkKind::HostBridge => "a PCIe host bridge",
            LinkKind::NumaNode => "several host bridges of one NUMA node",
            LinkKind::System => "the interconnect between NUMA nodes",
            LinkKind::Network => "the network between machines",
            LinkKind::Unknown => "not known",
        }
    }
}

/// What one GPU may do with the memory of another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct P2p {
    /// Whether peer access can be enabled. The CUDA driver's word where it answers, else read and write
    /// together as NVML has them.
    pub access: P2pStatus,
    /// NVML: reading.
    pub read: P2pStatus,
    /// NVML: writing.
    pub write: P2pStatus,
    /// Native atomics. The CUDA driver's word where it answers, else NVML's.
    pub atomics: P2pStatus,
    /// NVML: whether the access goes over NVLink.
    pub nvlink: P2pStatus,
    /// The CUDA driver's ranking of the pairs: 0 is the fastest.
    pub performance_rank: Option<i32>,
}

/// A yes, or the reason for the no.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum P2pStatus {
    /// `OK`.
    Ok,
    /// `CNS`: the chipset does not support it.
    ChipsetNotSupported,
    /// `GNS`: the GPU does not support it.
    GpuNotSupported,
    /// `TNS`: not across this PCIe topology.
    TopologyNotSupported,
    /// `DR`: disabled by a setting of the kernel driver.
    DisabledBySetting,
    /// `NS`: not supported, without a reason.
    NotSupported,
    /// `U`: nobody could tell.
    #[default]
    Unknown,
}

impl P2pStatus {
    /// Whether it is a yes.
    pub fn is_ok(self) -> bool {
        self == P2pStatus::Ok
    }

    /// Whether it is a no, as opposed to a yes or to not knowing.
    pub fn is_denied(self) -> bool {
        !matches!(self, P2pStatus::Ok | P2pStatus::Unknown)
    }

    /// In the manner of `nvidia-smi topo -p2p`.
    pub fn symbol(self) -> &'static str {
        match self {
            P2pStatus::Ok => "OK",
            P2pStatus::ChipsetNotSupported => "CNS",
            P2pStatus::GpuNotSupported => "GNS",
            P2pStatus::TopologyNotSupported => "TNS",
            P2pStatus::DisabledBySetting => "DR",
            P2pStatus::NotSupported => "NS",
            P2pStatus::Unknown => "U",
        }
    }

    /// What the symbol means.
    pub fn meaning(self) -> &'static str {
        match self {
            P2pStatus::Ok => "possible",
            P2pStatus::ChipsetNotSupported => "the chipset does not support it",
            P2pStatus::GpuNotSupported => "the GPU does not support it",
            P2pStatus::TopologyNotSupported => "not supported across this PCIe topology",
            P2pStatus::DisabledBySetting => "disabled by a setting of the kernel driver",
            P2pStatus::NotSupported => "not supported",
            P2pStatus::Unknown => "not known",
        }
    }
}

impl fmt::Display for P2pStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.meaning())
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.symbol())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearer_is_less() {
        use LinkKind::*;
        let order = [Local, NvLink, PcieSwitch, PcieSwitches, HostBridge, NumaNode, System, Network, Unknown];
        assert!(order.is_sorted());
    }

    #[test]
    fn symbols() {
        assert_eq!(Link::local().to_string(), "X");
        assert_eq!(Link::nvlink(18).to_string(), "NV18");
        assert_eq!(Link::nvlink(0).to_string(), "NV?");
        assert_eq!(Link::unknown().to_string(), "?");
        assert_eq!(Link::pcie(LinkKind::HostBridge, P2pStatus::Ok).to_string(), "PHB");
    }
}
