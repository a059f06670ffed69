//! A topology out of NCCL's topology file.

use std::collections::{BTreeMap, BTreeSet};

use super::classify::{Found, FoundGpu};
use super::element::{self, Element};
use super::place::Place;
use crate::{CpuList, Device, Error, FileFormat, Link, Nic, PciAddress, Result, Source, Topology};

/// Reads the text of a topology file.
pub(crate) fn read(text: &str) -> Result<Topology> {
    let system = element::parse(text)?;
    if system.name != "system" {
        return Err(Error::NotATopology { found: system.name });
    }
    let mut found = find(&system)?;
    if found.gpus.is_empty() && found.unclassified.is_empty() {
        return Err(Error::NoGpuInFile);
    }
    Topology::check_count(found.gpus.len())?;
    let mut warnings = std::mem::take(&mut found.warnings);
    number(&mut found, &mut warnings)?;

    let ends = nvlinks(&found.gpus, &mut warnings)?;
    warn_of_links(&ends, &mut warnings);
    let nvswitch = match found.gpus.iter().any(|gpu| gpu.tag.is_some()) {
        true => Some(ends.iter().any(|end| end.to_switches > 0)),
        false => None,
    };
    let places: Vec<Place> = found.gpus.iter().map(|gpu| gpu.place.clone()).collect();
    let link = |from: usize, to: usize| {
        let nvlinks = ends.get(from).zip(ends.get(to)).map_or(0, |(a, b)| {
            let direct = |end: &NvLinks, to: usize| end.direct.get(&to).copied().unwrap_or(0);
            let direct = direct(a, to).max(direct(b, from));
            direct.saturating_add(a.to_switches.min(b.to_switches))
        });
        match (nvlinks, places.get(from).zip(places.get(to))) {
            (0, Some((a, b))) => Link::distance(a.distance(b)),
            (0, None) => Link::unknown(),
            _ => Link::nvlink(nvlinks),
        }
    };
    let nics = found.nics.into_iter().map(|(nic, place)| nic_at(nic, &place, &places)).collect();
    let devices = found.gpus.into_iter().map(device).collect();
    let topology = Topology::with_source(Source::File(FileFormat::NcclXml), warnings, devices, link);
    Ok(topology
        .with_nvswitch(nvswitch)
        .with_nics(nics)
        .with_unclassified(found.unclassified)
        .with_nccl(system))
}

fn find(system: &Element) -> Result<Found<'_>> {
    let mut found = Found::default();
    let mut hosts: Vec<&str> = Vec::new();
    for (index, cpu) in system.children.iter().enumerate() {
        if cpu.name != "cpu" {
            let reason =
                format!("<{}> stands outside of any <cpu>; put it into the one that it hangs on", cpu.name);
            return Err(cpu.error(reason));
        }
        // Files of several machines tell them apart by this; others have none.
        let hash = cpu.get("host_hash").unwrap_or_default();
        let host = hosts.iter().position(|known| *known == hash).unwrap_or(hosts.len());
        if host == hosts.len() {
            hosts.push(hash);
        }
        // A node that is not known is -1.
        let number = cpu.whole_number("numaid")?.filter(|&number| number >= 0);
        let too_large = |_| cpu.error("numaid is larger than any NUMA node's".to_owned());
        let numa_node = number.map(u32::try_from).transpose().map_err(too_large)?;
        let place = Place { host, cpu: index, numa_node, bridges: Vec::new() };
        let first = found.gpus.len();
        for child in &cpu.children {
            found.visit(child, &place)?;
        }
        let mask = cpu.get("affinity");
        let cpus = mask.and_then(CpuList::parse_mask);
        // A mask of zeros says that nobody knows.
        if let Some(mask) =
            mask.filter(|mask| cpus.is_none() && mask.contains(|sign| !matches!(sign, '0' | ',')))
        {
            found.warnings.push(format!(
                "line {}, column {}: the affinity {mask:?} is no mask of CPUs, and is passed over",
                cpu.at.line, cpu.at.column
            ));
        }
        found.gpus.iter_mut().skip(first).for_each(|gpu| gpu.device.cpus.clone_from(&cpus));
    }
    Ok(found)
}

/// Puts the GPUs into the driver's order, where the file knows it.
fn number(found: &mut Found<'_>, warnings: &mut Vec<String>) -> Result<()> {
    for tag in found.gpus.iter().filter_map(|gpu| gpu.tag) {
        tag.whole_number("dev")?;
    }
    let dev = |gpu: &FoundGpu<'_>| gpu.tag.and_then(|tag| tag.number::<u32>("dev"));
    let tagged = found.gpus.iter().filter(|gpu| gpu.tag.is_some()).count();
    if tagged == 0 && !found.gpus.is_empty() {
        warnings.push(
            "the file has no <gpu>, as is usual for NCCL_TOPO_FILE: it cannot say which GPUs NVLink connects, nor \
             how the driver numbers them; they are numbered in the order of the file"
                .to_owned(),
        );
    } else if tagged < found.gpus.len() {
        warnings.push(format!(
            "{} GPUs of the file have no <gpu>: they are numbered after the others, and their NVLinks are not known",
            found.gpus.len() - tagged
        ));
    }
    found.gpus.sort_by_key(|gpu| (gpu.place.host, dev(gpu).unwrap_or(u32::MAX)));
    let mut last = None;
    let mut expected = 0;
    for gpu in found.gpus.iter().filter(|gpu| gpu.tag.is_some()) {
        let (host, number) = (gpu.place.host, dev(gpu));
        if last.is_some_and(|(last_host, _)| last_host != host) {
            expected = 0;
        }
        if last == Some((host, number)) {
            warnings.push(format!("two GPUs have the same dev, {}", number.unwrap_or_default()));
        } else if number != Some(expected) {
            let dev = number.map_or_else(|| "no dev".to_owned(), |number| format!("dev {number}"));
            warnings
                .push(format!("a GPU has {dev} where {expected} comes next; it is numbered by its place"));
        }
        last = Some((host, number));
        expected = number.unwrap_or(expected).saturating_add(1);
    }
    if !found.unclassified.is_empty() {
        let list: Vec<String> = found
            .unclassified
            .iter()
            .map(|device| match device.numa_node {
                Some(node) => format!("{} on NUMA node {node}", device.pci),
                None => device.pci.to_string(),
            })
            .collect();
        warnings.push(format!(
            "the file does not say what these {} devices are, only where; NCCL finds out on the machine: {}",
            list.len(),
            list.join(", ")
        ));
    }
    Ok(())
}

/// Where the NVLinks of a GPU lead.
#[derive(Default)]
struct NvLinks {
    to_switches: u32,
    /// To other GPUs of the machine, by their index.
    direct: BTreeMap<usize, u32>,
    to_itself: bool,
    xgmi: bool,
}

/// Those of each GPU.
fn nvlinks(gpus: &[FoundGpu<'_>], warnings: &mut Vec<String>) -> Result<Vec<NvLinks>> {
    let mut by_address: BTreeMap<(usize, PciAddress), usize> = BTreeMap::new();
    for (index, gpu) in gpus.iter().enumerate() {
        by_address.extend(gpu.device.pci.map(|pci| ((gpu.place.host, pci), index)));
    }
    let mut all = Vec::new();
    for (index, gpu) in gpus.iter().enumerate() {
        let mut ends = NvLinks::default();
        let links = gpu.tag.map(|tag| tag.children.as_slice()).unwrap_or_default();
        for link in links.iter().filter(|link| matches!(link.name.as_str(), "nvlink" | "xgmi")) {
            let count = match link.whole_number("count")? {
                Some(count) => u32::try_from(count)
                    .map_err(|_| link.error(format!("count is {count}, and no number of links")))?,
                None => 1,
            };
            let target = link.get("target").unwrap_or("nothing");
            let to_gpu = target.parse().ok().and_then(|pci| by_address.get(&(gpu.place.host, pci)));
            match to_gpu {
                Some(&to) if to == index => ends.to_itself = true,
                Some(&to) => {
                    let links = ends.direct.entry(to).or_default();
                    *links = links.saturating_add(count);
                    ends.xgmi |= link.name == "xgmi";
                }
                None if is_switch(link) => ends.to_switches = ends.to_switches.saturating_add(count),
                None if is_cpu(link) => {}
                None => warnings.push(format!(
                    "line {}, column {}: NVLinks of GPU {index} lead to {target}, and the file has no such GPU; they are \
                     passed over",
                    link.at.line, link.at.column
                )),
            }
        }
        all.push(ends);
    }
    Ok(all)
}

/// By NCCL's table of classes, a CPU with NVLinks.
fn is_cpu(link: &Element) -> bool {
    link.get("tclass") == Some("0x068001")
}

fn is_switch(link: &Element) -> bool {
    /// How NCCL writes a switch that is there but cannot be seen.
    const HIDDEN: &str = "fffffff:ff:ff.0";
    match link.get("tclass") {
        Some(class) => class.starts_with("0x0680") && !is_cpu(link),
        None => link.get("target") == Some(HIDDEN),
    }
}

fn warn_of_links(ends: &[NvLinks], warnings: &mut Vec<String>) {
    let list = |matches: &dyn Fn(&NvLinks) -> bool| {
        let matching = ends.iter().enumerate().filter(|(_, end)| matches(end));
        matching.map(|(index, _)| index.to_string()).collect::<Vec<_>>().join(", ")
    };
    let to_itself = list(&|end| end.to_itself);
    if !to_itself.is_empty() {
        warnings.push(format!("NVLinks that lead from a GPU to itself are passed over: GPU {to_itself}"));
    }
    if ends.iter().any(|end| end.xgmi) {
        warnings
            .push("the links are AMD's xGMI; they are shown as NV#, as their like of NVIDIA's".to_owned());
    }
    let count = |from: usize, to: usize| ends.get(from).and_then(|end| end.direct.get(&to)).copied();
    // Pairs with a link either way, the smaller index first.
    let ways = ends.iter().enumerate().flat_map(|(from, end)| end.direct.keys().map(move |&to| (from, to)));
    let pairs: BTreeSet<(usize, usize)> = ways.map(|(a, b)| (a.min(b), a.max(b))).collect();
    for (from, to) in pairs {
        let (there, back) = (count(from, to).unwrap_or(0), count(to, from).unwrap_or(0));
        if there != back {
            warnings.push(format!(
                "the file has {there} links from GPU {from} to GPU {to} and {back} back; the larger is taken"
            ));
        }
    }
}

fn nic_at(nic: Nic, place: &Place, gpus: &[Place]) -> Nic {
    // Software bridges have no place on PCI: they are where their CPU is.
    let to_gpus = gpus.iter().map(|gpu| place.distance(gpu)).collect();
    Nic { numa_node: place.numa_node, host: place.host, bridges: place.bridges.clone(), to_gpus, ..nic }
}

fn device(gpu: FoundGpu<'_>) -> Device {
    Device { numa_node: gpu.place.numa_node, host: gpu.place.host, bridges: gpu.place.bridges, ..gpu.device }
}
