//! What the CUDA driver, NVML and the operating system each say, unjudged. A field that could not be read is `None`.

use std::collections::BTreeMap;

use crate::{ComputeCapability, CpuList, LinkKind, P2pStatus, PciAddress, PcieRate};

/// What the CUDA driver says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverFacts {
    /// The CUDA version it offers: 13000 is 13.0.
    pub version: Option<u32>,
    /// Its devices by ordinal.
    pub devices: Vec<DriverDevice>,
    /// What it says of pairs of ordinals, `(from, to)`.
    pub pairs: BTreeMap<(usize, usize), DriverPair>,
    /// What went wrong on the way, one sentence each.
    pub notes: Vec<String>,
}

/// What the CUDA driver says of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverDevice {
    /// The product's name.
    pub name: Option<String>,
    /// Where it sits on PCI.
    pub pci: Option<PciAddress>,
    /// The generation of its instructions.
    pub compute_capability: Option<ComputeCapability>,
    /// How many streaming multiprocessors this process sees.
    pub sm_count: Option<u32>,
    /// How much memory this process sees.
    pub memory_bytes: Option<u64>,
    /// The nearest NUMA node of the host. Older drivers cannot tell.
    pub numa_node: Option<u32>,
}

/// What the CUDA driver says of one device's access to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverPair {
    /// Whether peer access can be enabled.
    pub can_access: Option<bool>,
    /// The same as an attribute of the pair, asked in case the other call fails.
    pub access_supported: Option<bool>,
    /// Whether atomics work natively across the link.
    pub native_atomics: Option<bool>,
    /// The rank among the links of the machine: 0 is the fastest.
    pub performance_rank: Option<i32>,
}

/// What NVML says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvmlFacts {
    /// The version of the kernel driver, as in "580.159.04".
    pub driver_version: Option<String>,
    /// Its devices, in its order: all of the machine, in whatever order CUDA counts them.
    pub devices: Vec<NvmlDevice>,
    /// What it says of pairs of indices into `devices`, `(from, to)`.
    pub pairs: BTreeMap<(usize, usize), NvmlPair>,
    /// What went wrong on the way, one sentence each.
    pub notes: Vec<String>,
}

/// What NVML says of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvmlDevice {
    /// The product's name.
    pub name: Option<String>,
    /// The device's identifier, `GPU-…`.
    pub uuid: Option<String>,
    /// Where it sits on PCI.
    pub pci: Option<PciAddress>,
    /// The generation of its instructions.
    pub compute_capability: Option<ComputeCapability>,
    /// How many streaming multiprocessors it has.
    pub sm_count: Option<u32>,
    /// How much memory it has.
    pub memory_bytes: Option<u64>,
    /// The nearest NUMA node of the host.
    pub numa_node: Option<u32>,
    /// The far end of each active NVLink; empty where there is none or it could not be asked.
    pub nvlinks: Vec<NvLinkEnd>,
}

/// What is at the far end of an active NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvLinkEnd {
    /// Another GPU, at this address.
    Gpu(PciAddress),
    /// An NVSwitch.
    Switch,
    /// Something else: the CPU, on some machines.
    Other,
    /// NVML would not tell, as in some virtual machines.
    Hidden,
}

/// What NVML says of one device's way to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvmlPair {
    /// How far up PCIe the two meet.
    pub ancestor: Option<LinkKind>,
    /// Reading the other's memory.
    pub read: P2pStatus,
    /// Writing the other's memory.
    pub write: P2pStatus,
    /// Atomics on the other's memory.
    pub atomics: P2pStatus,
    /// Whether that goes over NVLink.
    pub nvlink: P2pStatus,
}

/// What Linux shows below `/sys`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SysfsFacts {
    /// All PCI devices of the machine, or of what a container shows of it.
    pub devices: BTreeMap<PciAddress, SysfsDevice>,
    /// The network cards.
    pub nics: Vec<SysfsNic>,
}

/// What Linux shows of one PCI device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SysfsDevice {
    /// The host bridge, as in `pci0000:16`.
    pub host_bridge: String,
    /// All bridges above it, from the root down.
    pub bridges: Vec<PciAddress>,
    /// What it is: 0x030200 for most GPUs.
    pub class: Option<u32>,
    /// Whose it is: 0x10de for NVIDIA.
    pub vendor: Option<u32>,
    /// The nearest NUMA node. In a virtual machine it is often unknown.
    pub numa_node: Option<u32>,
    /// The nearest CPUs.
    pub cpus: Option<CpuList>,
    /// The fastest that its connection can be.
    pub pcie: Option<PcieRate>,
}

/// What Linux shows of one port of a network card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SysfsNic {
    /// `mlx5_0`, `eth0`; with `:` and its number where a device has several ports.
    pub name: String,
    /// Where it sits on PCI.
    pub pci: Option<PciAddress>,
    /// The number of the port.
    pub port: Option<u32>,
    /// Its speed in 10⁶ bits per second.
    pub megabits_per_s: Option<u64>,
}
