//! A topology as text, in the manner of `nvidia-smi topo -m`.

use std::collections::BTreeSet;
use std::fmt;

use crate::{Device, Link, LinkKind, Nic, P2pStatus, Source, Topology};

/// As many GPUs or cards are shown one by one: more make lines that nobody can read.
pub(crate) const MOST_SHOWN: usize = 64;
/// Of more, the first so many.
const SHOWN_OF_MANY: usize = 16;

/// How many of so many devices tables show.
fn shown(count: usize) -> usize {
    if count > MOST_SHOWN { SHOWN_OF_MANY } else { count }
}

/// A line that says how many of them are left out.
fn write_left_out(f: &mut fmt::Formatter<'_>, count: usize, what: &str) -> fmt::Result {
    match count - shown(count) {
        0 => Ok(()),
        more => writeln!(f, "… and {more} more {what}; the JSON has all of them"),
    }
}

impl fmt::Display for Topology {
    /// The devices, the matrix of links, who can access whom, and the notes. Rows are where an access
    /// comes from, columns where it goes. Of more than 64 GPUs, and of more than 64 cards, the first 16 are shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.source())?;
        writeln!(f)?;
        let count = self.device_count();
        let header =
            ["GPU", "name", "PCI", "sm", "SMs", "memory", "NUMA", "CPUs"].map(str::to_owned).to_vec();
        let mut rows: Vec<Vec<String>> =
            std::iter::once(header).chain(self.devices().iter().take(shown(count)).map(device_row)).collect();
        if self.devices().iter().all(|device| device.cpus.is_none()) {
            rows.iter_mut().for_each(|row| row.truncate(row.len().saturating_sub(1)));
        }
        write_columns(f, rows.into_iter())?;
        write_left_out(f, count, "GPUs")?;
        if count > 1 || !self.nics().is_empty() {
            write_links(f, self)?;
        }
        if count > 1 {
            write_access(f, self)?;
        }
        if !self.warnings().is_empty() {
            writeln!(f)?;
        }
        self.warnings().iter().try_for_each(|warning| writeln!(f, "warning: {warning}"))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Discovered { cuda, driver } => {
                f.write_str("this machine")?;
                if let Some(version) = cuda {
                    write!(f, ", CUDA {}.{}", version / 1000, version % 1000 / 10)?;
                }
                driver.iter().try_for_each(|version| write!(f, ", driver {version}"))
            }
            Source::Preset(name) => write!(f, "preset {name}"),
            Source::Described(name) => f.write_str(name),
            Source::File(format) => write!(f, "{format}"),
        }
    }
}

fn device_row(device: &Device) -> Vec<String> {
    fn known(value: Option<impl fmt::Display>) -> String {
        value.map_or_else(|| "?".to_owned(), |value| value.to_string())
    }
    // 10⁹ bytes, as data sheets count.
    let memory =
        device.memory_bytes.map(|bytes| format!("{} GB", bytes.saturating_add(500_000_000) / 1_000_000_000));
    vec![
        device.ordinal.to_string(),
        device.name.clone(),
        known(device.pci),
        known(device.compute_capability),
        known(device.sm_count),
        known(memory),
        known(device.numa_node),
        device.cpus.as_ref().map(ToString::to_string).unwrap_or_default(),
    ]
}

fn write_links(f: &mut fmt::Formatter<'_>, topology: &Topology) -> fmt::Result {
    writeln!(f)?;
    write_matrix(f, topology, topology.nics(), Link::symbol)?;
    let to_cards = topology.nics().iter().flat_map(|nic| nic.to_gpus.iter().copied());
    let kinds: BTreeSet<LinkKind> = links(topology).map(|(_, _, link)| link.kind).chain(to_cards).collect();
    let legend: Vec<String> = kinds
        .into_iter()
        .map(|kind| match kind {
            LinkKind::NvLink => format!("NV# = {}", kind.meaning()),
            _ => format!("{} = {}", kind.symbol(), kind.meaning()),
        })
        .collect();
    writeln!(f, "{}", legend.join("; "))?;
    if topology.nics().is_empty() {
        return Ok(());
    }
    writeln!(f)?;
    let count = topology.nics().len();
    let mut nics = topology.nics().iter().take(shown(count)).enumerate();
    nics.try_for_each(|(index, nic)| writeln!(f, "NIC{index}: {}", card(nic)))?;
    write_left_out(f, count, "cards")
}

/// A card in a line: its name, its speed, what is near.
fn card(nic: &Nic) -> String {
    let mut text = nic.name.clone();
    if let Some(megabits) = nic.megabits_per_s {
        text += &format!(", {} Gb/s", megabits / 1000);
    }
    if nic.host > 0 {
        text += &format!(", machine {}", nic.host);
    }
    let near = nic.near();
    let names: Vec<String> = near.iter().take(shown(near.len())).map(|gpu| format!("GPU{gpu}")).collect();
    match near.len() - names.len() {
        _ if near.is_empty() => text + ", near no GPU",
        0 => text + ", near " + &names.join(" "),
        more => format!("{text}, near {} and {more} more", names.join(" ")),
    }
}

fn write_access(f: &mut fmt::Formatter<'_>, topology: &Topology) -> fmt::Result {
    writeln!(f)?;
    if topology.all_p2p() {
        return writeln!(f, "peer access: every GPU to every other");
    }
    if matches!(topology.source(), Source::File(_)) {
        return writeln!(f, "peer access: the file does not say; NVLink implies it, PCIe does not");
    }
    writeln!(f, "peer access, from row to column")?;
    write_matrix(f, topology, &[], |link| match link.kind {
        LinkKind::Local => link.symbol(),
        _ => link.p2p.access.symbol().to_owned(),
    })?;
    let mut answers: Vec<P2pStatus> = Vec::new();
    for (_, _, link) in links(topology).filter(|(from, to, _)| from != to) {
        if !answers.contains(&link.p2p.access) {
            answers.push(link.p2p.access);
        }
    }
    let entry = |access: &P2pStatus| format!("{} = {}", access.symbol(), access.meaning());
    writeln!(f, "{}", answers.iter().map(entry).collect::<Vec<_>>().join("; "))
}

/// Every cell of the matrix, row by row.
fn links(topology: &Topology) -> impl Iterator<Item = (usize, usize, &Link)> {
    let count = topology.device_count();
    let pairs = (0..count).flat_map(move |from| (0..count).map(move |to| (from, to)));
    pairs.filter_map(|(from, to)| Some((from, to, topology.link(from, to)?)))
}

fn write_matrix(
    f: &mut fmt::Formatter<'_>,
    topology: &Topology,
    nics: &[Nic],
    cell: impl Fn(&Link) -> String,
) -> fmt::Result {
    let count = shown(topology.device_count());
    let nics = nics.get(..shown(nics.len())).unwrap_or_default();
    let label = |ordinal: usize| format!("GPU{ordinal}");
    let cards = (0..nics.len()).map(|index| format!("NIC{index}"));
    let header = std::iter::once(String::new()).chain((0..count).map(label)).chain(cards).collect();
    let row = |from: usize| {
        let cells = (0..count).filter_map(|to| topology.link(from, to)).map(&cell);
        let to_card = |nic: &Nic| nic.to_gpus.get(from).map_or("?", |kind| kind.symbol()).to_owned();
        std::iter::once(label(from)).chain(cells).chain(nics.iter().map(to_card)).collect()
    };
    write_columns(f, std::iter::once(header).chain((0..count).map(row)))?;
    write_left_out(f, topology.device_count(), "GPUs")
}

/// Writes rows so that columns line up, two spaces apart, with nothing after the last one.
fn write_columns(f: &mut fmt::Formatter<'_>, rows: impl Iterator<Item = Vec<String>>) -> fmt::Result {
    let rows: Vec<Vec<String>> = rows.collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        writeln!(f, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProbeFailure;
    use crate::discover::{DriverDevice, DriverFacts, SysfsFacts, combine};

    #[test]
    fn two_h200() {
        let want = "\
preset h200-2-nvlink

GPU  name         PCI  sm   SMs  memory  NUMA
0    NVIDIA H200  ?    9.0  132  141 GB  0
1    NVIDIA H200  ?    9.0  132  141 GB  0

      GPU0  GPU1
GPU0  X     NV18
GPU1  NV18  X
X = the GPU itself; NV# = NVLinks, as many as the number says

peer access: every GPU to every other
";
        assert_eq!(Topology::preset("h200-2-nvlink").unwrap().to_string(), want);
    }

    #[test]
    fn one_h200() {
        let want = "\
preset single-h200

GPU  name         PCI  sm   SMs  memory  NUMA
0    NVIDIA H200  ?    9.0  132  141 GB  0
";
        assert_eq!(Topology::preset("single-h200").unwrap().to_string(), want);
    }

    #[test]
    fn pcie_says_why_not() {
        let mut devices = vec![Device::new("A"), Device::new("Größe"), Device::new("C")];
        devices[0].pci = "0000:4e:00.0".parse().ok();
        let topology = Topology::new("a sketch", devices, |from, to| match (from, to) {
            (0, 1) | (1, 0) => Link::pcie(LinkKind::PcieSwitch, P2pStatus::Ok),
            (2, 0) => Link::unknown(),
            _ => Link::pcie(LinkKind::System, P2pStatus::ChipsetNotSupported),
        });
        let want = "\
a sketch

GPU  name   PCI           sm  SMs  memory  NUMA
0    A      0000:4e:00.0  ?   ?    ?       ?
1    Größe  ?             ?   ?    ?       ?
2    C      ?             ?   ?    ?       ?

      GPU0  GPU1  GPU2
GPU0  X     PIX   SYS
GPU1  PIX   X     SYS
GPU2  ?     SYS   X
X = the GPU itself; PIX = at most one PCIe bridge; SYS = the interconnect between NUMA nodes; ? = not known

peer access, from row to column
      GPU0  GPU1  GPU2
GPU0  X     OK    CNS
GPU1  OK    X     CNS
GPU2  U     CNS   X
OK = possible; CNS = the chipset does not support it; U = not known
";
        assert_eq!(topology.to_string(), want);
    }

    #[test]
    fn many_are_abbreviated() {
        let rack = Topology::preset("gb200-nvl72").unwrap();
        for (topology, gpus) in [(rack.replicated(2).unwrap(), 144), (rack, 72)] {
            let text = topology.report();
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest < 400, "{widest}\n{text}");
            assert_eq!(
                text.matches(&format!("… and {} more GPUs", gpus - 16)).count(),
                if gpus == 72 { 2 } else { 3 }
            );
            assert!(text.contains(&format!("… and {} more cards", gpus - 16)), "{text}");
            assert!(text.contains("GPU15") && !text.contains("GPU16 "), "{text}");
        }
        // As many as one can read are all there.
        let devices =
            |count: usize| Topology::new("test", vec![Device::new("A"); count], |_, _| Link::nvlink(1));
        assert!(devices(64).report().contains("GPU63") && !devices(65).report().contains("GPU64"));
    }

    #[test]
    fn what_is_missing_is_noted() {
        let device = DriverDevice { name: Some("NVIDIA H200".to_owned()), ..DriverDevice::default() };
        let driver = DriverFacts { version: Some(12080), devices: vec![device], ..DriverFacts::default() };
        let nvml = ProbeFailure { what: "NVML", tried: vec!["libx.so".into()], reason: "cannot open".into() };
        let want = "\
this machine, CUDA 12.8

GPU  name         PCI  sm  SMs  memory  NUMA
0    NVIDIA H200  ?    ?   ?    ?       ?

warning: NVML: cannot open (tried libx.so); what connects the GPUs is not known, only who can access whom
";
        assert_eq!(combine(Ok(driver), Err(nvml), SysfsFacts::default()).unwrap().to_string(), want);
    }
}
