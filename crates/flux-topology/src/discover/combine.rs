//! One topology out of what the CUDA driver, NVML and the operating system say.

use std::collections::BTreeMap;

use super::disagree::{self, Sides};
use super::{DriverDevice, DriverFacts, DriverPair, NvLinkEnd, NvmlDevice, NvmlFacts, NvmlPair};
use super::{SysfsDevice, SysfsFacts};
use crate::{Device, Error, Link, LinkKind, Nic, P2p, P2pStatus, PciAddress, ProbeFailure, Result};
use crate::{Source, Topology};

/// Makes a topology of the facts.
///
/// The CUDA driver decides which devices there are and in which order, and whether peer access is possible:
/// it is the one that will be asked to do it. NVML decides what connects them. A device is found in NVML by its
/// PCI address, never by its index: NVML counts all GPUs of the machine, in another order. Without the CUDA
/// driver, NVML's devices stand in its own order. `/sys` says which network cards and CPUs are near, and how far
/// GPUs are apart where NVML does not. Where sources disagree, the driver's word goes first and NVML's second, and
/// a warning says so.
///
/// # Errors
/// [`Error::NoDriver`] where both failed, [`Error::NoDevice`] where the one that decides shows no device.
pub fn combine(
    driver: Result<DriverFacts, ProbeFailure>,
    nvml: Result<NvmlFacts, ProbeFailure>,
    sysfs: SysfsFacts,
) -> Result<Topology> {
    let mut notes = Vec::new();
    let in_machine = nvml.as_ref().ok().map(|facts| facts.devices.len());
    let (driver, nvml) = match (driver, nvml) {
        (Err(driver), Err(nvml)) => {
            return Err(Error::NoDriver { driver: Box::new(driver), nvml: Box::new(nvml) });
        }
        (Ok(driver), Ok(nvml)) => (Some(driver), nvml),
        (Ok(driver), Err(failure)) => {
            notes.push(format!("{failure}; what connects the GPUs is not known, only who can access whom"));
            (Some(driver), NvmlFacts::default())
        }
        (Err(failure), Ok(nvml)) => {
            notes.push(format!(
                "{failure}; the GPUs are numbered as NVML does, and CUDA_VISIBLE_DEVICES is not applied"
            ));
            (None, nvml)
        }
    };
    let source = Source::Discovered {
        cuda: driver.as_ref().and_then(|facts| facts.version),
        driver: nvml.driver_version.clone(),
    };
    let nvml_answers = in_machine.is_some();

    let (devices, driver_pairs, nvml_index) = match driver {
        Some(facts) => {
            notes.extend(facts.notes);
            let nvml_index = facts.devices.iter().map(|device| find(&nvml, device)).collect();
            (facts.devices, facts.pairs, nvml_index)
        }
        None => {
            let devices = vec![DriverDevice::default(); nvml.devices.len()];
            let nvml_index: Vec<Option<usize>> = (0..devices.len()).map(Some).collect();
            (devices, BTreeMap::new(), nvml_index)
        }
    };
    if devices.is_empty() {
        return Err(Error::NoDevice { in_machine });
    }
    notes.extend(nvml.notes.iter().cloned());
    for (ordinal, index) in nvml_index.iter().enumerate() {
        if nvml_answers && index.is_none() {
            notes.push(format!("GPU {ordinal} is not among NVML's by PCI address; its links are not known"));
        }
    }

    let pci_of = |ordinal: usize| {
        let nvml_pci =
            nvml_index.get(ordinal).copied().flatten().and_then(|index| nvml.devices.get(index)?.pci);
        devices.get(ordinal).and_then(|device: &DriverDevice| device.pci).or(nvml_pci)
    };
    let pci: Vec<Option<PciAddress>> = (0..devices.len()).map(pci_of).collect();
    let sides =
        Sides { nvml: &nvml, nvml_index: &nvml_index, driver_pairs: &driver_pairs, sysfs: &sysfs, pci: &pci };
    notes.extend(disagree::numa_nodes(&sides, &devices));
    let merged: Vec<Device> = devices
        .into_iter()
        .enumerate()
        .map(|(ordinal, device)| merge(device, sides.nvml_device(ordinal), sides.sysfs_device(ordinal)))
        .collect();
    let count = merged.len();
    let nvswitch = if nvml_answers { sides.nvswitch(count) } else { None };
    let topology = Topology::with_source(source, notes, merged, |from, to| sides.link(from, to));
    let warnings = disagree::pairs(&sides, &topology);
    let nics = sysfs.nics.iter().map(|nic| sides.nic(nic, count)).collect();
    Ok(topology.with_nvswitch(nvswitch).with_nics(nics).with_more_warnings(warnings))
}

fn find(nvml: &NvmlFacts, device: &DriverDevice) -> Option<usize> {
    let wanted = device.pci?;
    nvml.devices.iter().position(|candidate| candidate.pci == Some(wanted))
}

/// What the driver says of a device is what this process gets of it, so it goes first.
fn merge(driver: DriverDevice, nvml: Option<&NvmlDevice>, sysfs: Option<&SysfsDevice>) -> Device {
    let unknown = NvmlDevice::default();
    let nvml = nvml.unwrap_or(&unknown);
    Device {
        cpus: sysfs.and_then(|device| device.cpus.clone()),
        bridges: sysfs.map(SysfsDevice::switches).unwrap_or_default(),
        pcie: sysfs.and_then(|device| device.pcie),
        uuid: nvml.uuid.clone(),
        pci: driver.pci.or(nvml.pci),
        compute_capability: driver.compute_capability.or(nvml.compute_capability),
        sm_count: driver.sm_count.or(nvml.sm_count),
        memory_bytes: driver.memory_bytes.or(nvml.memory_bytes),
        numa_node: driver.numa_node.or(nvml.numa_node).or_else(|| sysfs?.numa_node),
        ..Device::new(driver.name.or_else(|| nvml.name.clone()).unwrap_or_else(|| "unnamed GPU".to_owned()))
    }
}

impl Sides<'_> {
    fn link(&self, from: usize, to: usize) -> Link {
        let (there, back) = (self.nvml_pair(from, to), self.nvml_pair(to, from));
        // A wire has two ends: what one of them says about it holds for both.
        let over_nvlink = either(there.nvlink, back.nvlink);
        let nvlinks = match (self.nvml_device(from), self.nvml_device(to)) {
            (Some(a), Some(b)) => nvlinks_between(a, b, over_nvlink),
            _ => 0,
        };
        let kind = if nvlinks > 0 || over_nvlink.is_ok() {
            LinkKind::NvLink
        } else {
            let seen = there.ancestor.max(back.ancestor);
            seen.or_else(|| self.sysfs_distance(from, to)).unwrap_or(LinkKind::Unknown)
        };
        let driver = self.driver_pairs.get(&(from, to)).cloned().unwrap_or_default();
        Link { kind, nvlinks, p2p: p2p(&driver, &there) }
    }

    /// Whether NVLinks lead to switches. Where far ends are hidden, more links to all peers together than there
    /// are on the GPU must be the same ones.
    fn nvswitch(&self, count: usize) -> Option<bool> {
        let ends: Vec<NvLinkEnd> = (0..count)
            .filter_map(|ordinal| self.nvml_device(ordinal))
            .flat_map(|device| device.nvlinks.iter().copied())
            .collect();
        if ends.contains(&NvLinkEnd::Switch) {
            return Some(true);
        }
        if !ends.contains(&NvLinkEnd::Hidden) {
            return Some(false);
        }
        let shared = (0..count).any(|from| {
            let links: u32 = (0..count).filter(|&to| to != from).map(|to| self.link(from, to).nvlinks).sum();
            self.nvml_device(from).is_some_and(|device| links as usize > device.nvlinks.len())
        });
        shared.then_some(true)
    }

    fn nic(&self, nic: &super::SysfsNic, count: usize) -> Nic {
        let device = nic.pci.and_then(|pci| self.sysfs.devices.get(&pci));
        let to_gpu = |ordinal: usize| {
            let ends = device.zip(self.sysfs_device(ordinal));
            ends.map_or(LinkKind::Unknown, |(nic, gpu)| nic.distance(gpu))
        };
        Nic {
            pci: nic.pci,
            bridges: device.map(SysfsDevice::switches).unwrap_or_default(),
            numa_node: device.and_then(|device| device.numa_node),
            port: nic.port,
            megabits_per_s: nic.megabits_per_s,
            to_gpus: (0..count).map(to_gpu).collect(),
            ..Nic::new(&nic.name)
        }
    }
}

/// One answer of two that should agree: a no beats a yes, and a yes beats not knowing.
fn either(there: P2pStatus, back: P2pStatus) -> P2pStatus {
    if there.is_denied() || back == P2pStatus::Unknown { there } else { back }
}

/// Active NVLinks between two devices.
///
/// Direct ones are counted at the end that sees more of them. Switches connect every link to every link, so
/// the end with fewer links to switches decides; links whose far end NVML hides count like those to a switch,
/// but only where NVML says that the two do talk over NVLink.
fn nvlinks_between(a: &NvmlDevice, b: &NvmlDevice, over_nvlink: P2pStatus) -> u32 {
    let count = |device: &NvmlDevice, matches: &dyn Fn(&NvLinkEnd) -> bool| {
        u32::try_from(device.nvlinks.iter().filter(|end| matches(end)).count()).unwrap_or(u32::MAX)
    };
    let direct = |from: &NvmlDevice, to: &NvmlDevice| {
        to.pci.map_or(0, |to| count(from, &|end| *end == NvLinkEnd::Gpu(to)))
    };
    let switched = |device: &NvmlDevice| match over_nvlink {
        P2pStatus::Ok => count(device, &|end| matches!(end, NvLinkEnd::Switch | NvLinkEnd::Hidden)),
        P2pStatus::Unknown => count(device, &|end| *end == NvLinkEnd::Switch),
        _ => 0,
    };
    direct(a, b).max(direct(b, a)).saturating_add(switched(a).min(switched(b)))
}

fn p2p(driver: &DriverPair, nvml: &NvmlPair) -> P2p {
    let nvml_access = both(nvml.read, nvml.write);
    P2p {
        access: decide(driver.can_access.or(driver.access_supported), nvml_access),
        read: nvml.read,
        write: nvml.write,
        atomics: decide(driver.native_atomics, nvml.atomics),
        nvlink: nvml.nvlink,
        performance_rank: driver.performance_rank,
    }
}

/// Both are needed: a no of either is a no.
fn both(read: P2pStatus, write: P2pStatus) -> P2pStatus {
    if read.is_denied() || write.is_ok() { read } else { write }
}

/// The driver's word where it has one; NVML then still gives the reason for a no.
fn decide(driver: Option<bool>, nvml: P2pStatus) -> P2pStatus {
    match driver {
        Some(true) => P2pStatus::Ok,
        Some(false) if nvml.is_denied() => nvml,
        Some(false) => P2pStatus::NotSupported,
        None => nvml,
    }
}

#[cfg(test)]
#[path = "combine_tests.rs"]
mod tests;
