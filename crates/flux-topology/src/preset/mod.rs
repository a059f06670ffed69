//! Machines by name, for planning and simulation where they are not at hand.

mod gpu;
mod machine;

use machine::{ALIASES, Connection, MACHINES, Machine, Pcie};

use crate::{Error, Link, LinkKind, Nic, Result, Source, Topology};

impl Topology {
    /// A machine by name; [`presets`](Topology::presets) lists them.
    ///
    /// GPUs, NVLinks, sockets and cards are those of NVIDIA's data sheets, architecture papers and user guides, or of
    /// the cloud's topology file; memory is nominal, in 10⁹ bytes. What differs from server to server (PCIe
    /// slots, cards) is a common choice. GB/s of a link: [`bandwidths`](Topology::bandwidths).
    ///
    /// # Errors
    /// [`Error::UnknownPreset`], which names them all.
    pub fn preset(name: &str) -> Result<Topology> {
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
        let canonical = Self::preset_name(name);
        let Some(machine) = MACHINES.iter().find(|machine| Some(machine.name) == canonical) else {
            let known = Self::presets().chain(ALIASES.iter().map(|(alias, _)| *alias)).collect();
            return Err(Error::UnknownPreset { name: name.to_owned(), known });
        };
        Ok(build(machine, alias.map_or(machine.name, |(alias, _)| alias)))
    }

    /// The names that [`preset`](Topology::preset) knows, without other names of the same.
    pub fn presets() -> impl Iterator<Item = &'static str> {
        MACHINES.iter().map(|machine| machine.name)
    }

    /// The first name of the machine of that name, which is one of [`presets`](Topology::presets): `8xh100` is a
    /// `dgx-h100`. `None` where there is none.
    pub fn preset_name(name: &str) -> Option<&'static str> {
        let first = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, first)| first);
        Self::presets().find(|known| *known == first)
    }

    /// Other names of the machine of that first name.
    pub fn preset_aliases(name: &str) -> impl Iterator<Item = &'static str> {
        ALIASES.iter().filter(move |(_, first)| *first == name).map(|(alias, _)| *alias)
    }

    /// What the machine of that first name is, in a few words.
    pub fn preset_in_words(name: &str) -> Option<&'static str> {
        MACHINES.iter().find(|machine| machine.name == name).map(|machine| machine.words)
    }
}

fn build(machine: &Machine, name: &'static str) -> Topology {
    let node = |index: usize| index % machine.per_host / machine.per_numa;
    let device = |index: usize| {
        let mut device = machine.gpu.device();
        device.numa_node = u32::try_from(node(index)).ok();
        device.host = index / machine.per_host;
        device
    };
    let devices = (0..machine.count).map(device).collect();
    let over_pcie = |pcie: &Pcie, from: usize, to: usize| {
        let kind = match (from / pcie.per_switch == to / pcie.per_switch, node(from) == node(to)) {
            (true, _) => LinkKind::PcieSwitch,
            (false, true) => pcie.near,
            (false, false) => LinkKind::System,
        };
        Link::pcie(kind, pcie.access)
    };
    let link = |from: usize, to: usize| match &machine.connection {
        Connection::NvLink(nvlinks, _) => Link::nvlink(*nvlinks),
        Connection::Some(nvlinks, pcie) => match nvlinks(from, to) {
            0 => over_pcie(pcie, from, to),
            nvlinks => Link::nvlink(nvlinks),
        },
        Connection::Pcie(pcie) => over_pcie(pcie, from, to),
    };
    let nvswitch = match machine.connection {
        Connection::NvLink(_, nvswitch) => nvswitch,
        Connection::Some(..) | Connection::Pcie(_) => Some(false),
    };
    let topology = Topology::with_source(Source::Preset(name), Vec::new(), devices, link);
    topology.with_nvswitch(nvswitch).with_nics(nics(machine, node))
}

/// The cards of each host, spread evenly over its GPUs.
fn nics(machine: &Machine, node: impl Fn(usize) -> usize) -> Vec<Nic> {
    let (per_host, nics) = (machine.per_host, &machine.nics);
    let hosts = machine.count / per_host;
    let card = |host: usize, index: usize| {
        // The first GPU of those that the card is beside.
        let first = host * per_host + index * per_host / nics.count;
        let first = if nics.gpus > 1 { first / nics.gpus * nics.gpus } else { first };
        let to_gpu = |gpu: usize| match () {
            () if gpu / per_host != host => LinkKind::Network,
            () if (first..first + nics.gpus).contains(&gpu) => nics.near,
            () if node(gpu) != node(first) => LinkKind::System,
            // A card that is near no GPU is as far from all as they say.
            () if nics.gpus == 0 => nics.near,
            () => LinkKind::NumaNode,
        };
        Nic {
            host,
            numa_node: u32::try_from(node(first)).ok(),
            port: Some(1),
            megabits_per_s: Some(nics.gigabits_per_s * 1000),
            to_gpus: (0..machine.count).map(to_gpu).collect(),
            ..Nic::new(format!("mlx5_{index}"))
        }
    };
    (0..hosts)
        .flat_map(|host| (0..nics.count).map(move |index| (host, index)))
        .map(|(h, i)| card(h, i))
        .collect()
}

#[cfg(test)]
mod tests;
