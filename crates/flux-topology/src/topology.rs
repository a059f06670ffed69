//! The GPUs of a machine and the matrix of what connects them.

use std::path::Path;

use crate::discover::{self, driver, nvml, sysfs};
use crate::nccl::Element;
use crate::{Device, Error, FileFormat, Link, LinkKind, Nic, P2pStatus, PciAddress, Result};

/// The GPUs that this process can use, and what connects each to each.
///
/// Printed, it looks much like `nvidia-smi topo -m`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    devices: Vec<Device>,
    /// Row by row: `links[from * devices.len() + to]`.
    links: Vec<Link>,
    nvswitch: Option<bool>,
    nics: Vec<Nic>,
    unclassified: Vec<Unclassified>,
    source: Source,
    warnings: Vec<String>,
    /// The NCCL topology file that this was read from, so that nothing of it is lost when it is written again.
    nccl: Option<Element>,
}

/// A PCI device of a topology file that does not say what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unclassified {
    /// Where it sits on PCI.
    pub pci: PciAddress,
    /// The host's NUMA node that is nearest.
    pub numa_node: Option<u32>,
}

/// Where a topology comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// This machine said so.
    Discovered {
        /// The CUDA version that the CUDA driver offers, as it writes it (13000 is 13.0); `None` where it
        /// did not answer, and the ordinals are NVML's instead.
        cuda: Option<u32>,
        /// The version of the kernel driver; `None` where NVML did not answer.
        driver: Option<String>,
    },
    /// [`Topology::preset`] of this name.
    Preset(&'static str),
    /// [`Topology::new`] under this name.
    Described(String),
    /// A text of this format: [`Topology::parse`], [`Topology::read`].
    File(FileFormat),
}

impl Topology {
    /// Asks this machine: the CUDA driver for the devices and for peer access, NVML for the connections, and the
    /// operating system's `/sys` for network cards, CPUs, and what the other two left open.
    ///
    /// Device `i` is the CUDA driver's device `i`, so `CUDA_VISIBLE_DEVICES` applies. The three are joined by
    /// PCI address. Where one of the libraries does not answer, what the other says stands, and
    /// [`warnings`](Topology::warnings) say what is missing, and where sources disagree. Nothing here creates a CUDA context or allocates on a
    /// GPU, but the CUDA driver is initialised, so call it after a fork, not before.
    ///
    /// # Errors
    /// [`Error::NoDriver`](crate::Error::NoDriver) where neither answers and
    /// [`Error::NoDevice`](crate::Error::NoDevice) where there is no GPU for this process:
    /// [`Error::is_no_gpu`](crate::Error::is_no_gpu) holds for both.
    pub fn discover() -> Result<Topology> {
        Topology::discover_below(Path::new("/sys"))
    }

    /// [`discover`](Topology::discover) with the operating system's answers from another folder than `/sys`.
    ///
    /// # Errors
    /// As for [`discover`](Topology::discover).
    pub fn discover_below(sys: &Path) -> Result<Topology> {
        discover::combine(driver::probe(), nvml::probe(), sysfs::probe(sys))
    }

    /// A machine that is described rather than found, for planning and for simulation.
    ///
    /// Device `i` gets ordinal `i`; `link(from, to)` is asked for every two different devices.
    pub fn new(
        name: impl Into<String>,
        devices: Vec<Device>,
        link: impl FnMut(usize, usize) -> Link,
    ) -> Topology {
        Topology::with_source(Source::Described(name.into()), Vec::new(), devices, link)
    }

    pub(crate) fn with_source(
        source: Source,
        warnings: Vec<String>,
        mut devices: Vec<Device>,
        mut link: impl FnMut(usize, usize) -> Link,
    ) -> Topology {
        let count = devices.len();
        for (ordinal, device) in devices.iter_mut().enumerate() {
            device.ordinal = ordinal;
        }
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let links = pairs.map(|(from, to)| if from == to { Link::local() } else { link(from, to) }).collect();
        Topology {
            devices,
            links,
            nvswitch: None,
            nics: Vec::new(),
            unclassified: Vec::new(),
            source,
            warnings,
            nccl: None,
        }
    }

    /// The same with these network cards. Each one's [`to_gpus`](Nic::to_gpus) is made as long as there are
    /// GPUs: what is missing is not known.
    #[must_use]
    pub fn with_nics(mut self, nics: Vec<Nic>) -> Topology {
        self.nics = nics;
        for nic in &mut self.nics {
            nic.to_gpus.resize(self.devices.len(), LinkKind::Unknown);
        }
        self
    }

    /// The same with this answer to whether its NVLinks go through NVSwitches.
    #[must_use]
    pub fn with_nvswitch(mut self, nvswitch: Option<bool>) -> Topology {
        self.nvswitch = nvswitch;
        self
    }

    pub(crate) fn with_unclassified(mut self, unclassified: Vec<Unclassified>) -> Topology {
        self.unclassified = unclassified;
        self
    }

    pub(crate) fn with_more_warnings(mut self, warnings: Vec<String>) -> Topology {
        self.warnings.extend(warnings);
        self
    }

    pub(crate) fn with_nccl(mut self, system: Element) -> Topology {
        self.nccl = Some(system);
        self
    }

    pub(crate) fn nccl(&self) -> Option<&Element> {
        self.nccl.as_ref()
    }

    /// As many GPUs as a file may describe, or several machines have together; the simulator takes as many.
    pub const MOST_GPUS: usize = 4096;

    pub(crate) fn check_count(gpus: usize) -> Result<()> {
        let most = Self::MOST_GPUS;
        if gpus > most { Err(Error::TooManyGpus { gpus, most }) } else { Ok(()) }
    }

    /// So many machines like this one, joined by a network: the GPUs of the first come first.
    ///
    /// # Errors
    /// [`Error::NoMachines`] for none, [`Error::TooManyGpus`] for more than [`MOST_GPUS`](Topology::MOST_GPUS).
    pub fn replicated(&self, machines: usize) -> Result<Topology> {
        let count = self.devices.len();
        match machines {
            0 => return Err(Error::NoMachines),
            1 => return Ok(self.clone()),
            _ => Self::check_count(count.saturating_mul(machines))?,
        }
        let hosts = self.host_count();
        let copies = |machine: usize| {
            self.devices
                .iter()
                .map(move |device| Device { host: device.host + machine * hosts, ..device.clone() })
        };
        let devices = (0..machines).flat_map(copies).collect();
        let link = |from: usize, to: usize| match from / count == to / count {
            true => self.link(from % count, to % count).cloned().unwrap_or_else(Link::unknown),
            false => Link::pcie(LinkKind::Network, P2pStatus::NotSupported),
        };
        let nic = |machine: usize, nic: &Nic| {
            let mut to_gpus = vec![LinkKind::Network; count * machines];
            let own = to_gpus.iter_mut().skip(machine * count).zip(&nic.to_gpus);
            own.for_each(|(to, &kind)| *to = kind);
            Nic { host: nic.host + machine * hosts, to_gpus, ..nic.clone() }
        };
        let nics = (0..machines).flat_map(|machine| self.nics.iter().map(move |card| nic(machine, card)));
        let topology = Topology::with_source(self.source.clone(), self.warnings.clone(), devices, link);
        Ok(topology.with_nvswitch(self.nvswitch).with_nics(nics.collect()))
    }

    /// The GPUs; the index is the CUDA driver's ordinal.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// How many GPUs there are.
    pub fn device_count(&self) -> usize {
        self.devices.len()
    }

    /// Where this comes from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// What could not be found out and why, where sources disagree and whose word was taken, what was odd about a
    /// file and how it was understood: one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether the NVLinks go through NVSwitches, so that a GPU has the bandwidth of all its links to any one
    /// peer, and shares it among all. `Some(false)` where links are direct or there are none; `None` where it
    /// is not known.
    pub fn nvswitch(&self) -> Option<bool> {
        self.nvswitch
    }

    /// The network cards, port by port.
    pub fn nics(&self) -> &[Nic] {
        &self.nics
    }

    /// Devices of a topology file that does not say what they are, and so may be GPUs or network cards.
    pub fn unclassified(&self) -> &[Unclassified] {
        &self.unclassified
    }

    /// How many machines the GPUs are in: 1, but for described clusters.
    pub fn host_count(&self) -> usize {
        let hosts = self.devices.iter().map(|device| device.host).chain(self.nics.iter().map(|nic| nic.host));
        hosts.max().map_or(1, |last| last.saturating_add(1))
    }

    /// What connects `from` to `to`; `None` where there is no such device.
    pub fn link(&self, from: usize, to: usize) -> Option<&Link> {
        let count = self.devices.len();
        if from >= count || to >= count {
            return None;
        }
        self.links.get(from * count + to)
    }

    /// Whether `from` can address the memory of `to`. Always true from a device to itself; false where it is
    /// not known or where there is no such device.
    pub fn can_access(&self, from: usize, to: usize) -> bool {
        self.link(from, to).is_some_and(|link| link.p2p.access.is_ok())
    }

    /// Whether every device can address the memory of every other. True for a single device.
    pub fn all_p2p(&self) -> bool {
        self.links.iter().all(|link| link.p2p.access.is_ok())
    }

    /// Whether every two devices are connected by NVLink, directly or through switches, and can address each
    /// other: then all can talk to all at once. True for a single device.
    pub fn is_full_mesh(&self) -> bool {
        self.all_p2p() && self.links.iter().all(|link| link.kind <= LinkKind::NvLink)
    }

    /// What the NVLinks from `from` to `to` carry one way, in GB/s (10⁹ bytes): their number, times
    /// [`ComputeCapability::nvlink_gb_per_s`](crate::ComputeCapability::nvlink_gb_per_s) of the slower end.
    /// Through switches a device has this once for all its peers together.
    ///
    /// `None` where there is no NVLink, or where their number or rate is not known.
    pub fn nvlink_gb_per_s(&self, from: usize, to: usize) -> Option<f64> {
        let link = self.link(from, to).filter(|link| link.nvlinks > 0)?;
        let rate = |ordinal: usize| self.devices.get(ordinal)?.compute_capability?.nvlink_gb_per_s();
        Some(f64::from(link.nvlinks) * rate(from)?.min(rate(to)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(count: usize, link: impl FnMut(usize, usize) -> Link) -> Topology {
        Topology::new("test", vec![Device::new("GPU"); count], link)
    }

    #[test]
    fn one_missing_access_is_no_mesh() {
        let mesh = described(3, |_, _| Link::nvlink(4));
        assert!(mesh.is_full_mesh() && mesh.all_p2p());
        let holed = described(3, |from, to| match (from, to) {
            (2, 0) => Link::pcie(LinkKind::System, P2pStatus::ChipsetNotSupported),
            _ => Link::nvlink(4),
        });
        assert!(!holed.is_full_mesh() && !holed.all_p2p());
        assert!(holed.can_access(0, 2) && !holed.can_access(2, 0));
    }

    #[test]
    fn pcie_with_access_is_p2p_but_no_mesh() {
        let pcie = described(2, |_, _| Link::pcie(LinkKind::PcieSwitch, P2pStatus::Ok));
        assert!(pcie.all_p2p() && !pcie.is_full_mesh());
        assert_eq!(pcie.nvlink_gb_per_s(0, 1), None);
    }

    #[test]
    fn few_devices_and_none() {
        for count in [0, 1] {
            let few = described(count, |_, _| Link::unknown());
            assert!(few.all_p2p() && few.is_full_mesh());
        }
        assert!(described(1, |_, _| Link::unknown()).can_access(0, 0));
    }

    #[test]
    fn no_such_device() {
        let two = described(2, |_, _| Link::nvlink(1));
        for (from, to) in [(0, 2), (2, 0), (usize::MAX, usize::MAX), (0, usize::MAX)] {
            assert_eq!(two.link(from, to), None);
            assert!(!two.can_access(from, to));
            assert_eq!(two.nvlink_gb_per_s(from, to), None);
        }
    }

    #[test]
    fn unknown_access_is_no_access() {
        let two = described(2, |_, _| Link::unknown());
        assert!(!two.can_access(0, 1) && !two.all_p2p());
    }
}
