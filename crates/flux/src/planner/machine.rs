//! A machine as the simulator takes it, from what a topology or a group says.

use super::model::Model;
use crate::{Error, Order, Result};
use flux_sim::{Gpu, Machine, Node};
use flux_swizzle::Pattern;
use flux_topology::{Device, LinkKind, Topology};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What is assumed of a connection that nobody describes: PCIe 4.0 x16, between sockets, and a 100 Gbit/s card, in GB/s.
const PCIE_GB_PER_S: f64 = 24.0;
const NUMA_GB_PER_S: f64 = 24.0;
const NIC_GB_PER_S: f64 = 12.0;
/// What copies between ranks of one GPU move, all together, in GB/s: they run on the four SMs that GEMMs leave free (measured on an
/// H200: 370, `docs/measurements.md`).
const WITHIN_GPU_GB_PER_S: f64 = 370.0;
/// SMs that GEMMs of ranks that share a GPU leave free.
const FREE_SMS: usize = 4;
/// What a GPU moves to or from pinned host memory, in GB/s (measured on an H200, PCIe 5).
const HOST_MEMORY_GB_PER_S: f64 = 54.0;

/// A machine in numbers. Made by one rank, and the same on all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) name: String,
    /// The GPU's name, as its driver gives it, and its SMs and generation, if they are known.
    pub(crate) gpu: String,
    pub(crate) sms: Option<usize>,
    pub(crate) generation: Option<u32>,
    /// GPUs of a node.
    pub(crate) gpus: usize,
    pub(crate) nodes: usize,
    /// Ranks on each GPU.
    pub(crate) share: usize,
    /// What crosses between ranks goes through pinned host memory.
    pub(crate) through_host: bool,
    pub(crate) nvswitch_gb_per_s: Option<f64>,
    pub(crate) bridges: Vec<(usize, usize, f64)>,
    pub(crate) pcie_gb_per_s: f64,
    pub(crate) numa: Vec<usize>,
    pub(crate) nics: usize,
    pub(crate) nic_gb_per_s: f64,
    /// The orders that fit the topology, as text: what `flux topo` says is the first.
    pub(crate) orders: Vec<String>,
}

/// A topology as the simulator takes it, with one rank on each GPU.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimMachine {
    /// GPUs, and the links between them.
    pub machine: Machine,
    /// The orders that fit them; the first is what `flux topo` says.
    pub orders: Vec<Pattern>,
    /// Whether the GPUs are known to the simulator; else they are taken for those of their generation, or of Ampere's.
    pub knows_gpu: bool,
}

impl From<Machine> for SimMachine {
    fn from(machine: Machine) -> Self {
        let mut orders = vec![machine.pattern()];
        add_plain(&mut orders, machine.node().gpus, machine.nodes());
        Self { machine, orders, knows_gpu: true }
    }
}

/// The topology as the simulator takes it: as it is, or the first so many GPUs of its first machine, each time so many times over.
/// `name` is for people. Machines must have the same number of GPUs; those that NVLink joins count as one.
pub fn machine_of(
    (name, topology): (&str, &Topology),
    gpus: Option<usize>,
    times: usize,
) -> Result<SimMachine> {
    let description = Description::of(name, topology, gpus, times)?;
    let (machine, orders) = (description.machine()?, description.orders());
    Ok(SimMachine { machine, orders, knows_gpu: Gpu::named(&description.gpu).is_some() })
}

/// The orders that need nothing of a topology: all to all within nodes, all to all, one ring.
fn add_plain(orders: &mut Vec<Pattern>, gpus: usize, nodes: usize) {
    let ranks = gpus.saturating_mul(nodes);
    let within = Pattern::nodes(nodes, &Pattern::full_mesh(gpus));
    for order in [within, Pattern::full_mesh(ranks), Pattern::ring(ranks)] {
        if !orders.contains(&order) {
            orders.push(order);
        }
    }
}

impl Description {
    /// The topology as it is, or the first `gpus` GPUs of its first machine, `times` times.
    pub(crate) fn of(name: &str, topology: &Topology, gpus: Option<usize>, times: usize) -> Result<Self> {
        // What NVLink joins is one machine here.
        let domains = topology.domains();
        let of_machine = domains.first().map_or(0, Vec::len);
        let machines = domains.len();
        if gpus.is_none() && domains.iter().any(|domain| domain.len() != of_machine) {
            let reason = "its machines differ in how many GPUs they have; describe one of them";
            return Err(Error::NoMachine { reason: reason.into() });
        }
        if !domains.iter().flatten().copied().eq(0..topology.device_count()) {
            let reason = "its GPUs are not numbered machine by machine; describe one of them";
            return Err(Error::NoMachine { reason: reason.into() });
        }
        let nodes = if gpus.is_none() { machines.saturating_mul(times) } else { times };
        let is_whole = gpus.is_none_or(|gpus| gpus >= topology.device_count());
        let gpus = gpus.unwrap_or(of_machine).min(of_machine);
        let Some(first) = topology.devices().first().filter(|_| gpus > 0) else {
            return Err(Error::NoMachine { reason: "it has no GPUs".into() });
        };
        let nvlink = |from, to| {
            let link = topology.link(from, to).filter(|link| link.kind == LinkKind::NvLink)?;
            // Where nobody says how fast a link is, as fast as Ampere's.
            Some(topology.nvlink_gb_per_s(from, to).unwrap_or(20.0 * f64::from(link.nvlinks.max(1))))
        };
        let pairs = || (0..gpus).flat_map(|from| (from + 1..gpus).map(move |to| (from, to)));
        let bridges: Vec<_> = pairs().filter_map(|(a, b)| Some((a, b, nvlink(a, b)?))).collect();
        let all = bridges.len() == pairs().count() && topology.nvswitch() != Some(false);
        let nvswitch_gb_per_s = bridges.first().filter(|_| all).map(|bridge| bridge.2);
        // Without peer access each byte goes to the host, and from there.
        let denied =
            pairs().any(|(a, b)| topology.link(a, b).is_some_and(|link| link.p2p.access.is_denied()));
        let numa = topology.numa_groups().groups.into_iter();
        let numa: Vec<usize> = numa.map(|group| group.iter().filter(|&&gpu| gpu < gpus).count()).collect();
        let hosts: BTreeSet<usize> = topology.devices().iter().take(gpus).map(|device| device.host).collect();
        let cards: Vec<f64> = topology
            .nics()
            .iter()
            .filter(|nic| hosts.contains(&nic.host))
            .filter_map(|nic| nic.megabits_per_s)
            .map(|megabits| f64::from(u32::try_from(megabits).unwrap_or(u32::MAX)) / 8000.0)
            .collect();
        let mut described = Self {
            name: name.to_owned(),
            gpu: first.name.clone(),
            sms: first.sm_count.and_then(|sms| usize::try_from(sms).ok()),
            generation: generation(first),
            gpus,
            nodes,
            share: 1,
            through_host: false,
            nvswitch_gb_per_s,
            bridges: if all { Vec::new() } else { bridges },
            pcie_gb_per_s: first.pcie.map_or(PCIE_GB_PER_S, |pcie| pcie.gb_per_s())
                / if denied { 2.0 } else { 1.0 },
            numa: numa.into_iter().filter(|&size| size > 0).collect(),
            nics: cards.len().max(1),
            nic_gb_per_s: cards.iter().copied().reduce(f64::min).unwrap_or(NIC_GB_PER_S),
            orders: Vec::new(),
        };
        let whole = is_whole.then(|| topology.replicated(times)).transpose();
        let whole = whole.map_err(|error| Error::NoMachine { reason: error.to_string() })?;
        described.orders = described.fitting(whole.as_ref())?.iter().map(ToString::to_string).collect();
        Ok(described)
    }

    /// The orders that fit, of one rank on each GPU: what `flux topo` says of the whole, the simulator's own word, and those that
    /// need no topology.
    fn fitting(&self, whole: Option<&Topology>) -> Result<Vec<Pattern>> {
        let ranks = self.gpus.saturating_mul(self.nodes);
        let mut orders = Vec::new();
        if let Some(choice) = whole.map(Topology::order) {
            let strongest = choice.strongest_ring.clone().map(|ring| Pattern::Ring(vec![ring]));
            let said = choice.argument().parse::<Order>().ok().map(|order| order.given(ranks));
            orders.extend(said.transpose()?.flatten().into_iter().chain(strongest));
        }
        let own = self.machine()?.pattern();
        if !orders.contains(&own) {
            orders.push(own);
        }
        add_plain(&mut orders, self.gpus, self.nodes);
        orders.retain(|order| order.world_size() == Ok(ranks));
        Ok(orders)
    }

    /// The orders that fit, the best guess first; none where ranks share GPUs, or what they exchange goes through the host.
    pub(crate) fn orders(&self) -> Vec<Pattern> {
        if self.share > 1 || self.through_host {
            return Vec::new();
        }
        self.orders.iter().filter_map(|order| order.parse().ok()).collect()
    }

    /// The simulator's machine with one rank on each GPU, or on each share of one.
    fn machine(&self) -> Result<Machine> {
        match self.model()? {
            Model::Gpus { machine, .. } => Ok(*machine),
            Model::Host(_) => Err(Error::NoMachine { reason: "it has no GPUs".into() }),
        }
    }

    /// GPUs of which only the name and the SMs are known: those that are sold with NVLink are taken for connected by it.
    pub(crate) fn unknown(gpu: &str, sms: usize, gpus: usize, nodes: usize) -> Self {
        let has_nvlink =
            ["H200", "H100", "H800", "A100", "A800", "B200"].iter().any(|name| gpu.contains(name))
                && !gpu.contains("PCIe");
        Self {
            name: gpu.to_owned(),
            gpu: gpu.to_owned(),
            sms: Some(sms),
            generation: None,
            gpus,
            nodes,
            share: 1,
            through_host: false,
            nvswitch_gb_per_s: has_nvlink.then_some(240.0),
            bridges: Vec::new(),
            pcie_gb_per_s: PCIE_GB_PER_S,
            numa: vec![gpus],
            nics: 1,
            nic_gb_per_s: NIC_GB_PER_S,
            orders: Vec::new(),
        }
    }

    /// The model of one rank on each GPU, or on each share of one.
    pub(crate) fn model(&self) -> Result<Model> {
        let gpu = self.gpu();
        let (whole, share) = (gpu.sms, self.share.max(1));
        let ranks = self.gpus.saturating_mul(share);
        let parts = |of: usize| f64::from(u32::try_from(of).unwrap_or(u32::MAX));
        let of_gpu = if share > 1 { whole.saturating_sub(FREE_SMS).max(1) } else { whole };
        let sms = (of_gpu / share).max(1);
        let gpu = Gpu {
            sms,
            tflops: gpu.tflops * parts(sms) / parts(whole.max(1)),
            memory_gb_per_s: gpu.memory_gb_per_s / parts(share),
            ..gpu
        };
        let memory_gb_per_s = gpu.memory_gb_per_s;
        let over = |gb_per_s: Option<f64>| {
            let node = Node {
                gpu: gpu.clone(),
                gpus: ranks,
                nvswitch_gb_per_s: gb_per_s,
                bridges: if share > 1 || self.through_host { Vec::new() } else { self.bridges.clone() },
                pcie_gb_per_s: self.pcie_gb_per_s,
                numa: self.numa.iter().map(|size| size * share).collect(),
                numa_gb_per_s: NUMA_GB_PER_S,
                nics: self.nics,
                nic_gb_per_s: self.nic_gb_per_s,
            };
            Ok::<_, Error>(Box::new(Machine::new(self.name.clone(), node, self.nodes)?))
        };
        let copies = match (self.through_host, share > 1) {
            (true, _) => Some(HOST_MEMORY_GB_PER_S / parts(share)),
            (false, true) => Some(WITHIN_GPU_GB_PER_S / parts(share)),
            (false, false) => self.nvswitch_gb_per_s,
        };
        let within = (share > 1 && !self.through_host).then(|| over(Some(memory_gb_per_s))).transpose()?;
        Ok(Model::Gpus { machine: over(copies)?, within })
    }

    /// The simulator's constants for this GPU; of one that it does not know, those of its generation, scaled by SMs.
    fn gpu(&self) -> Gpu {
        let found = Gpu::named(&self.gpu);
        let base = found.unwrap_or(match self.generation {
            Some(10..) => Gpu::B200,
            Some(9) => Gpu::H100,
            _ => Gpu::A100,
        });
        let sms = self.sms.filter(|&sms| sms > 0).unwrap_or(base.sms);
        let part = |of: usize| f64::from(u32::try_from(of).unwrap_or(u32::MAX));
        Gpu { sms, tflops: base.tflops * part(sms) / part(base.sms), ..base }
    }
}

fn generation(device: &Device) -> Option<u32> {
    device.compute_capability.map(|capability| capability.major)
}
