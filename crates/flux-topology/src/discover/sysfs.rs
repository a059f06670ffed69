//! Reads what Linux shows of PCI and network devices below `/sys`.
//!
//! The links there hold the whole tree: `/sys/bus/pci/devices/0000:19:00.0` leads to
//! `../../../devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0`, a host bridge and then every
//! bridge down to the device. So links are read and never followed, and any folder can stand for `/sys`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{SysfsDevice, SysfsFacts, SysfsNic};
use crate::{CpuList, LinkKind, PciAddress, PcieRate};

/// Reads what is there; what is not is left out.
pub(crate) fn probe(root: &Path) -> SysfsFacts {
    let mut facts = SysfsFacts::default();
    for folder in entries(&root.join("bus/pci/devices")) {
        let Some((host_bridge, mut path)) = tree(&folder) else { continue };
        let Some(pci) = path.pop() else { continue };
        facts.devices.insert(pci, device(&folder, host_bridge, path));
    }
    let mut cards = BTreeSet::new();
    for folder in entries(&root.join("class/infiniband")) {
        let pci = card(&folder);
        cards.extend(pci);
        ports(&folder, pci, &mut facts.nics);
    }
    for folder in entries(&root.join("class/net")) {
        // The network's face of a card that is there already; and what is no device at all: loopback, bridges.
        let Some(pci) = card(&folder).filter(|pci| !cards.contains(pci)) else { continue };
        // A link that is down has the speed -1, or none that can be read.
        let megabits_per_s = text(&folder.join("speed")).and_then(|speed| speed.parse().ok());
        facts.nics.push(SysfsNic { name: name(&folder), pci: Some(pci), port: None, megabits_per_s });
    }
    facts
}

/// The entries of a folder in the order of their names, numbers in that of their size.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort_by_cached_key(|path| {
        let name = name(path);
        let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (stem, number) = name.split_at(digits);
        (stem.to_owned(), number.parse::<u64>().unwrap_or(0), name.clone())
    });
    entries
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn text(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

/// The host bridge and the PCI devices from there to the last one, out of where a link leads.
fn tree(link: &Path) -> Option<(String, Vec<PciAddress>)> {
    let target = fs::read_link(link).ok()?;
    let mut host_bridge = String::new();
    let mut path = Vec::new();
    for part in target.iter().map(|part| part.to_string_lossy()) {
        // The functions of a device have a point; `pci0000:16`, the name of a host bridge, has none.
        match part.parse().ok().filter(|_| part.contains('.')) {
            Some(address) => path.push(address),
            None if path.is_empty() && part.starts_with("pci") => host_bridge = part.into_owned(),
            None => {}
        }
    }
    (!path.is_empty()).then_some((host_bridge, path))
}

fn device(folder: &Path, host_bridge: String, bridges: Vec<PciAddress>) -> SysfsDevice {
    let read = |file: &str| text(&folder.join(file));
    let hexadecimal = |file: &str| u32::from_str_radix(read(file)?.trim_start_matches("0x"), 16).ok();
    SysfsDevice {
        host_bridge,
        bridges,
        class: hexadecimal("class"),
        vendor: hexadecimal("vendor"),
        // A node that is not known is -1.
        numa_node: read("numa_node").and_then(|node| node.parse().ok()),
        cpus: read("local_cpulist").and_then(|list| CpuList::parse(&list)),
        pcie: read("max_link_speed")
            .zip(read("max_link_width"))
            .and_then(|(speed, width)| PcieRate::parse(&speed, &width)),
    }
}

/// The PCI device of an entry of a class.
fn card(folder: &Path) -> Option<PciAddress> {
    if let Some((_, mut path)) = tree(folder) {
        return path.pop();
    }
    // Copies of the tree may have folders where links were.
    let target = fs::read_link(folder.join("device")).ok()?;
    name(&target).parse().ok()
}

fn ports(folder: &Path, pci: Option<PciAddress>, nics: &mut Vec<SysfsNic>) {
    let ports = entries(&folder.join("ports"));
    let several = ports.len() > 1;
    let device = name(folder);
    if ports.is_empty() {
        nics.push(SysfsNic { name: device, pci, port: None, megabits_per_s: None });
        return;
    }
    for port in ports {
        let number = name(&port);
        // `400 Gb/sec (4X NDR)`.
        let gigabits: Option<f64> =
            text(&port.join("rate")).and_then(|rate| rate.split_whitespace().next()?.parse().ok());
        // The range keeps what a strange file says within a u64.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let megabits_per_s =
            gigabits.filter(|rate| *rate > 0.0 && *rate < 1e6).map(|rate| (rate * 1000.0).round() as u64);
        let name = if several { format!("{device}:{number}") } else { device.clone() };
        nics.push(SysfsNic { name, pci, port: number.parse().ok(), megabits_per_s });
    }
}

impl SysfsDevice {
    /// The switches above it, each once. A switch is two bridges or more, one up and one down to each device; as
    /// NCCL does, every second one is left out, counted from the device: what remains is the switch's upper side.
    pub(crate) fn switches(&self) -> Vec<PciAddress> {
        let mut switches: Vec<PciAddress> = self.bridges.iter().rev().skip(1).step_by(2).copied().collect();
        switches.reverse();
        switches
    }

    /// How far two devices are apart, by the tree and the NUMA nodes.
    pub(crate) fn distance(&self, other: &SysfsDevice) -> LinkKind {
        let shared = self.bridges.iter().zip(&other.bridges).take_while(|(a, b)| a == b).count();
        // Below the bridge that they share, one more on either side is the same switch's.
        let below = (self.bridges.len() - shared).max(other.bridges.len() - shared);
        let one_host_bridge = self.host_bridge == other.host_bridge;
        match (self.numa_node, other.numa_node) {
            _ if one_host_bridge && shared > 0 && below <= 1 => LinkKind::PcieSwitch,
            _ if one_host_bridge && shared > 0 => LinkKind::PcieSwitches,
            _ if one_host_bridge => LinkKind::HostBridge,
            (Some(a), Some(b)) if a == b => LinkKind::NumaNode,
            // Without nodes, as in many virtual machines, the further is the safe one.
            _ => LinkKind::System,
        }
    }
}

#[cfg(test)]
#[path = "sysfs_tests.rs"]
mod tests;
