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
    /// By a name that `flux sim` or `flux topo` knows, in this order; else of a file.
    pub(crate) fn new(preset: Option<&str>, file: Option<&Path>) -> Result<Option<Self>, Error> {
        Ok(match (preset, file) {
            (Some(name), _) => Some(match Machine::preset(name, 1) {
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
                let of_first = topology.devices().iter().filter(|device| device.host == 0).count();
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
