//! The GPUs of a machine and the matrix of what connects them.

use crate::discover::{self, driver, nvml};
use crate::{Device, Link, LinkKind, Result};

/// The GPUs that this process can use, and what connects each to each.
///
/// Printed, it looks much like `nvidia-smi topo -m`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    devices: Vec<Device>,
    /// Row by row: `links[from * devices.len() + to]`.
    links: Vec<Link>,
    source: Source,
    notes: Vec<String>,
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
}

impl Topology {
    /// Asks this machine: the CUDA driver for the devices and for peer access, NVML for the connections.
    ///
    /// Device `i` is the CUDA driver's device `i`, so `CUDA_VISIBLE_DEVICES` applies. The two are joined by
    /// PCI address. Where one of the two does not answer, what the other says stands, and
    /// [`notes`](Topology::notes) say what is missing. Nothing here creates a CUDA context or allocates on a
    /// GPU, but the CUDA driver is initialised, so call it after a fork, not before.
    ///
    /// # Errors
    /// [`Error::NoDriver`](crate::Error::NoDriver) where neither answers and
    /// [`Error::NoDevice`](crate::Error::NoDevice) where there is no GPU for this process:
    /// [`Error::is_no_gpu`](crate::Error::is_no_gpu) holds for both.
    pub fn discover() -> Result<Topology> {
        discover::combine(driver::probe(), nvml::probe())
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
        notes: Vec<String>,
        mut devices: Vec<Device>,
        mut link: impl FnMut(usize, usize) -> Link,
    ) -> Topology {
        let count = devices.len();
        for (ordinal, device) in devices.iter_mut().enumerate() {
            device.ordinal = ordinal;
        }
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let links = pairs.map(|(from, to)| if from == to { Link::local() } else { link(from, to) }).collect();
        Topology { devices, links, source, notes }
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

    /// What could not be found out, and why: one sentence each. Empty for presets and descriptions.
    pub fn notes(&self) -> &[String] {
        &self.notes
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
    use crate::P2pStatus;

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
