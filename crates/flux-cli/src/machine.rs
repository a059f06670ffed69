//! Machines that need not be at hand: by name, or as a file describes them.

use crate::error::Error;
use crate::topo;
use flux::{SimMachine, machine_of};
use flux_sim::{Gpu, Machine};
use flux_topology::Topology;
use std::path::Path;

/// A machine, before it is said how much of it counts.
pub(crate) enum Described {
    /// One of the simulator's own, with measured constants.
    Known(Box<Machine>),
    /// One of `flux topo`, or a file's, and what it is called.
    Topology(String, Box<Topology>),
}

impl Described {
    /// By a name that `flux sim` or `flux topo` knows, in this order, other names of a machine resolved first; else of a file.
    pub(crate) fn new(preset: Option<&str>, file: Option<&Path>) -> Result<Option<Self>, Error> {
        Ok(match (preset, file) {
            (Some(name), _) => Some(match Machine::preset(Topology::preset_name(name).unwrap_or(name), 1) {
                Ok(machine) => Self::Known(Box::new(machine)),
                Err(_) => {
                    let unknown = |_| Error::NoMachine { name: name.to_owned() };
                    Self::Topology(name.to_owned(), Box::new(Topology::preset(name).map_err(unknown)?))
                }
            }),
            (None, Some(path)) => {
                Some(Self::Topology(path.display().to_string(), Box::new(topo::read(path)?)))
            }
            (None, None) => None,
        })
    }

    /// All of it, so many times, with other GPUs if that is said.
    pub(crate) fn times(&self, times: usize, gpu: Option<Gpu>) -> Result<SimMachine, Error> {
        let mut found = match self {
            Self::Known(machine) => {
                SimMachine::from(Machine::new(machine.name(), machine.node().clone(), times)?)
            }
            Self::Topology(name, topology) => machine_of((name, topology), None, times)?,
        };
        if let Some(gpu) = gpu {
            let node = flux_sim::Node { gpu, ..found.machine.node().clone() };
            found.machine = Machine::new(found.machine.name(), node, found.machine.nodes())?;
            found.knows_gpu = true;
        }
        Ok(found)
    }

    /// As much of it as makes so many ranks: its first GPUs, or several of it.
    pub(crate) fn of_ranks(&self, ranks: Option<usize>) -> Result<SimMachine, Error> {
        let Some(ranks) = ranks else { return self.times(1, None) };
        match self {
            Self::Known(machine) => {
                let (gpus, times) = machines(ranks, machine.gpus())?;
                let mut node = machine.node().clone();
                node.gpus = gpus;
                node.bridges.retain(|&(a, b, _)| a < gpus && b < gpus);
                let mut left = gpus;
                for size in &mut node.numa {
                    *size = (*size).min(left);
                    left -= *size;
                }
                node.numa.retain(|&size| size > 0);
                Ok(Machine::new(machine.name(), node, times)?.into())
            }
            Self::Topology(name, topology) => {
                let of_first = topology.domains().first().map_or(0, Vec::len);
                let (gpus, times) = machines(ranks, of_first)?;
                Ok(machine_of((name, topology), Some(gpus), times)?)
            }
        }
    }
}

/// How many GPUs of each machine, and how many machines, make so many ranks.
fn machines(ranks: usize, gpus: usize) -> Result<(usize, usize), Error> {
    match ranks {
        _ if ranks <= gpus => Ok((ranks, 1)),
        _ if gpus > 0 && ranks.is_multiple_of(gpus) => Ok((gpus, ranks / gpus)),
        _ => Err(Error::NotWholeMachines { ranks, gpus }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flux::{Order, Pattern};
    use std::collections::BTreeMap;

    /// The machines that the simulator and `flux topo` both know, by all of their names.
    fn known_to_both() -> Vec<(&'static str, &'static str)> {
        let both = Machine::presets().filter(|name| Topology::preset_name(name) == Some(*name));
        let both: Vec<_> = both.collect();
        assert!(both.len() > 10, "{both:?}");
        both.into_iter()
            .flat_map(|first| Topology::preset_aliases(first).chain([first]).map(move |name| (name, first)))
            .collect()
    }

    #[test]
    fn topo_and_sim_say_the_same_order() {
        for ((name, _), nodes) in known_to_both().into_iter().flat_map(|names| [(names, 1), (names, 2)]) {
            let topology = Topology::preset(name).unwrap().replicated(nodes).unwrap();
            let order: Order = topology.order().argument().parse().unwrap();
            let topo = order.given(topology.device_count()).unwrap().unwrap();
            let sim = Described::new(Some(name), None).unwrap().unwrap().times(nodes, None).unwrap();
            let as_text = |pattern: &Pattern| pattern.to_string();
            assert_eq!(sim.orders.first().map(as_text), Some(as_text(&topo)), "{name}, {nodes} nodes");
            // And so it is if the topology comes from a file.
            let read = machine_of((name, &topology), None, 1).unwrap();
            assert_eq!(read.orders.first(), Some(&topo), "{name}, {nodes} nodes");
            assert_eq!((read.machine.gpus(), read.machine.nodes()), (sim.machine.gpus(), nodes), "{name}");
        }
    }

    /// What the simulator has measured constants for is connected as `flux topo` says.
    #[test]
    fn topo_and_sim_say_the_same_structure() {
        for (name, first) in known_to_both() {
            let Some(Described::Known(own)) = Described::new(Some(name), None).unwrap() else {
                panic!("{name} is none of the simulator's");
            };
            assert_eq!(own.name(), first);
            let shown = machine_of((name, &Topology::preset(name).unwrap()), None, 1).unwrap().machine;
            let (own, shown) = (own.node(), shown.node());
            assert_eq!((own.gpus, &own.numa), (shown.gpus, &shown.numa), "{name}");
            assert_eq!(own.nvswitch_gb_per_s.is_some(), shown.nvswitch_gb_per_s.is_some(), "{name}");
            let bridges = |node: &flux_sim::Node| -> BTreeMap<(usize, usize), String> {
                node.bridges
                    .iter()
                    .map(|&(a, b, rate)| ((a.min(b), a.max(b)), format!("{rate:.1}")))
                    .collect()
            };
            assert_eq!(bridges(own), bridges(shown), "{name}");
            assert_eq!(own.gpu.name, shown.gpu.name, "{name}");
            // 12 GB/s of payload are 12.5 raw. Where `flux topo` knows no card, both assume one of 100 Gbit/s.
            assert_eq!(own.nics, shown.nics, "{name}");
            assert!((own.nic_gb_per_s / shown.nic_gb_per_s - 1.0).abs() < 0.05, "{name}");
        }
    }

    #[test]
    fn racks_are_cut_by_domain() {
        let racks = Described::new(Some("gb200-nvl72"), None).unwrap().unwrap();
        let topology = Topology::preset("gb200-nvl72").unwrap().replicated(2).unwrap();
        let read = Described::Topology("two racks".to_owned(), Box::new(topology));
        for described in [racks, read] {
            let found = described.of_ranks(Some(144)).unwrap().machine;
            assert_eq!((found.node().gpus, found.nodes()), (72, 2));
            let part = described.of_ranks(Some(8)).unwrap().machine;
            assert_eq!((part.node().gpus, part.nodes()), (8, 1));
        }
    }
}
