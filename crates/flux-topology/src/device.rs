//! One GPU.

use std::fmt;

use crate::{CpuList, PciAddress};

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
    /// The CPUs that are near.
    pub cpus: Option<CpuList>,
    /// Which machine it is in; 0 where there is one.
    pub host: usize,
    /// The PCI bridges above it, from the root down; empty where they are not known.
    pub bridges: Vec<PciAddress>,
    /// Its own connection to PCIe.
    pub pcie: Option<PcieRate>,
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
            cpus: None,
            host: 0,
            bridges: Vec::new(),
            pcie: None,
        }
    }
}

/// How fast a PCIe connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcieRate {
    /// Each lane's rate in 10⁶ transfers per second: 16000 for PCIe 4.0.
    pub megatransfers_per_s: u32,
    /// How many lanes.
    pub lanes: u32,
}

impl PcieRate {
    /// Reads `16 GT/s`, `16.0 GT/s PCIe` and `2.5 GT/s`, as Linux and NCCL write a lane's rate.
    pub(crate) fn parse(speed: &str, lanes: &str) -> Option<PcieRate> {
        let gigatransfers: f64 = speed.split_whitespace().next()?.parse().ok()?;
        let lanes: u32 = lanes.trim().parse().ok().filter(|&lanes| lanes > 0 && lanes <= 32)?;
        // The range keeps what a damaged file says within a u32.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let megatransfers_per_s = (gigatransfers > 0.0 && gigatransfers < 1000.0)
            .then(|| (gigatransfers * 1000.0).round() as u32)?;
        Some(PcieRate { megatransfers_per_s, lanes })
    }

    /// One direction of payload, in GB/s (10⁹ bytes): 12 for PCIe 3.0 x16, 24 for 4.0, 48 for 5.0, as NCCL
    /// reckons (`src/graph/topo.h`: `PCI_BW`; `topo.cc` scales it by lanes and generation).
    pub fn gb_per_s(self) -> f64 {
        12.0 * f64::from(self.megatransfers_per_s) / 8000.0 * f64::from(self.lanes) / 16.0
    }
}

impl fmt::Display for PcieRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GT/s x{}", f64::from(self.megatransfers_per_s) / 1000.0, self.lanes)
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
    /// 18.0 for P100 (6.0), 20.0 for V100 (7.0) and A100 (8.0), 12.0 for Ampere's workstation cards (8.6), 20.6
    /// for Hopper (9.x), 40.1 for Blackwell (10.x): the constants by which NCCL ranks paths
    /// (`src/graph/topo.h`). `None` for others. Beside that, measured between two H200s: a link's
    /// raw rate is 26.6 GB/s; with all 18, the SMs store and load at 371 GB/s (20.6 each), and the copy
    /// engine moves copies of 256 MiB at 395 GB/s (21.9 each).
    pub fn nvlink_gb_per_s(self) -> Option<f64> {
        match (self.major, self.minor) {
            (6, 0) => Some(18.0),
            (7, 0) | (8, 0) => Some(20.0),
            (8, 6) => Some(12.0),
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
