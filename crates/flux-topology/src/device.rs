//! One GPU.

use std::fmt;

use crate::PciAddress;

/// One GPU, as far as it is known: a field that nobody could tell is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// The CUDA driver's ordinal in this process, after `CUDA_VISIBLE_DEVICES`; also the index in
    /// [`Topology::devices`](crate::Topology::devices) and in the link matrix.
    pub ordinal: usize,
    /// The product's name.
    pub name: String,
    /// NVML's identifier, `GPU-…`: the same in every process and after a reboot.
    pub uuid: Option<String>,
    /// Where it sits on PCI.
    pub pci: Option<PciAddress>,
    /// What its instructions are: 9.0 for Hopper.
    pub compute_capability: Option<ComputeCapability>,
    /// How many streaming multiprocessors it has.
    pub sm_count: Option<u32>,
    /// How much memory it has, in bytes.
    pub memory_bytes: Option<u64>,
    /// The host's NUMA node that is nearest. In a virtual machine it is often unknown.
    pub numa_node: Option<u32>,
}

impl Device {
    /// A GPU of which nothing but the name is known. Fill in the public fields that are.
    pub fn new(name: impl Into<String>) -> Self {
        Device {
            ordinal: 0,
            name: name.into(),
            uuid: None,
            pci: None,
            compute_capability: None,
            sm_count: None,
            memory_bytes: None,
            numa_node: None,
        }
    }
}

/// The generation of a GPU's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// 8 for Ampere and Ada, 9 for Hopper, 10 for Blackwell.
    pub major: u32,
    /// Within the generation: 8.0 is A100, 8.9 is Ada.
    pub minor: u32,
}

impl ComputeCapability {
    /// One direction of one NVLink, in GB/s (10⁹ bytes) of payload: what its whole use can reach.
    ///
    /// 20.0 for A100 (8.0), 20.6 for Hopper (9.x), 40.1 for Blackwell (10.x): the constants by which NCCL
    /// ranks paths (`src/graph/topo.h`). `None` for others. Beside that, measured between two H200s: a link's
    /// raw rate is 26.6 GB/s; with all 18, the SMs store and load at 371 GB/s (20.6 each), and the copy
    /// engine moves copies of 256 MiB at 395 GB/s (21.9 each).
    pub fn nvlink_gb_per_s(self) -> Option<f64> {
        match (self.major, self.minor) {
            (8, 0) => Some(20.0),
            (9, _) => Some(20.6),
            (10, _) => Some(40.1),
            _ => None,
        }
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
