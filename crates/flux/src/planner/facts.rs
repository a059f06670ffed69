//! What a plan is made of that ranks could see differently, and how they agree on it.

use super::host::HostModel;
use super::kind::Layer;
use super::machine::Description;
use super::model::Model;
use crate::tuner::{Entry, Key};
use crate::{Error, Group, Result};
use flux_memory::{Backend, Placement};
use flux_topology::{Source, Topology};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Where ranks run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Place {
    Host {
        model: HostModel,
        /// The order that fits the topology that the group was given, as text.
        order: Option<String>,
    },
    Gpus(Description),
}

impl Place {
    pub(crate) fn model(&self) -> Result<Model> {
        match self {
            Place::Host { model, .. } => Ok(Model::Host(*model)),
            Place::Gpus(description) => description.model(),
        }
    }
}

/// What all ranks of a group reckon with: what rank 0 has found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) machine: Place,
    /// What was measured of the layer.
    pub(crate) tuned: Vec<Entry>,
}

/// What a process finds out of its machine, once.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings {
    pub(crate) machine: Place,
    /// The GPU, or the processor.
    pub(crate) gpu: String,
    pub(crate) driver: String,
}

impl Facts {
    /// Rank 0's facts, on all ranks. Among processes it is a step that all take together.
    pub(crate) fn agreed(group: &Group, layer: &Layer) -> Result<Self> {
        let find = || Ok(Self { machine: group.surroundings()?.machine.clone(), tuned: group.tuned(layer)? });
        let Some(peers) = group.members().space.peers() else { return find() };
        let own = if peers.rank() == 0 { find().map(Some) } else { Ok(None) };
        let said = match &own {
            Ok(own) => Ok(own.as_ref().and_then(|own| serde_json::to_vec(own).ok()).unwrap_or_default()),
            Err(error) => Err(flux_memory::Error::Failed {
                what: "find out what calls are planned for".into(),
                reason: error.to_string(),
            }),
        };
        let all = peers.exchange("agree on how to plan", said)?;
        own?;
        let of_first = all.first().map(Vec::as_slice).unwrap_or_default();
        serde_json::from_slice(of_first).map_err(|error| Error::NoMachine { reason: error.to_string() })
    }

    /// Whether there is more than one rank on a GPU.
    pub(crate) const fn share_gpus(&self) -> bool {
        matches!(&self.machine, Place::Gpus(Description { share: 2.., .. }))
    }

    pub(crate) const fn through_host(&self) -> bool {
        matches!(&self.machine, Place::Gpus(Description { through_host: true, .. }))
    }
}

impl Surroundings {
    /// What this process can find out of its machine.
    pub(crate) fn find(group: &Group) -> Result<Self> {
        match group.device(group.local_ranks().start)?.as_cuda() {
            None => Self::host(group.config().topology.as_deref()),
            Some(gpu) => {
                let sms = usize::try_from(gpu.multiprocessors()).unwrap_or(0);
                Self::gpus(group, gpu.name(), gpu.ordinal(), sms)
            }
        }
    }

    fn host(given: Option<&Topology>) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split(':').nth(1));
        let name = name.map_or("a processor", str::trim);
        let order = given.map(|topology| Description::of("topology", topology, None, 1)).transpose()?;
        let order = order.and_then(|description| description.orders.into_iter().next());
        Ok(Self {
            machine: Place::Host { model: HostModel::new(cores), order },
            gpu: format!("{name}, {cores} cores"),
            driver: "none".into(),
        })
    }

    fn gpus(group: &Group, name: &str, ordinal: usize, sms: usize) -> Result<Self> {
        let (nodes, ranks) = (group.nodes().len(), group.world_size());
        let gpus = group.devices().div_ceil(nodes).max(1);
        // Nodes of unequal size are taken for equal ones if the ranks come out, else for one.
        let (gpus, nodes) = if ranks.is_multiple_of(gpus * nodes) { (gpus, nodes) } else { (ranks, 1) };
        let share = (ranks / (gpus * nodes)).max(1);
        let topology =
            Topology::discover().inspect_err(|error| tracing::debug!(%error, "planning without a topology"));
        let driver = topology.as_ref().ok().and_then(|topology| match topology.source() {
            Source::Discovered { driver, .. } => driver.clone(),
            _ => None,
        });
        // Processes may each see their own GPU alone: then what connects them is not known.
        let sees_all =
            |topology: &&Topology| topology.device_count() >= gpus && topology.device_count() > ordinal;
        let found = topology.as_ref().ok().filter(sees_all);
        let described = match group.config().topology.as_deref() {
            // It has a GPU for each rank.
            Some(given) if share == 1 => Some(Description::of(name, given, None, 1)?),
            _ => found.and_then(|found| Description::of(name, found, Some(gpus), nodes).ok()),
        };
        let mut machine = described.unwrap_or_else(|| Description::unknown(name, sms, gpus, nodes));
        // The devices that ranks run on are of one kind; the driver's word on which counts.
        (machine.gpu, machine.sms, machine.share) = (name.to_owned(), Some(sms), share);
        machine.through_host = group.config().peer_memory == Placement::PinnedHost;
        Ok(Self {
            machine: Place::Gpus(machine),
            gpu: name.to_owned(),
            driver: driver.unwrap_or_else(|| "unknown".into()),
        })
    }

    /// The key of what is measured of `layer` in calls of `m` rows.
    pub(crate) fn key(&self, group: &Group, layer: &Layer, m: usize) -> Key {
        let machine = match &self.machine {
            Place::Host { order, .. } => order.clone().unwrap_or_default(),
            Place::Gpus(description) => format!("{description:?}"),
        };
        let config = group.config();
        let ways = (config.peer_memory, config.transport, config.sm_budget, group.local_ranks().len());
        let kernels = match group.backend() {
            Backend::Host => env!("CARGO_PKG_VERSION").to_owned(),
            Backend::Cuda => digest(flux_launch::manifest()),
        };
        let Layer { op, n, k, dtype, world_size, asked, .. } = *layer;
        let topology = format!("{machine} {:?} {ways:?} {asked:x}", group.nodes());
        Key {
            gpu: self.gpu.clone(),
            driver: self.driver.clone(),
            topology: digest(&topology),
            kernels,
            op,
            dtype: dtype.to_string(),
            n,
            k,
            world_size,
            m,
        }
    }
}

/// The first 64 bits of a text's SHA-256.
pub(crate) fn number(text: &str) -> u64 {
    Sha256::digest(text.as_bytes()).iter().take(8).fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// The first 16 of a text's SHA-256's hexadecimal digits.
pub(crate) fn digest(text: &str) -> String {
    format!("{:016x}", number(text))
}
