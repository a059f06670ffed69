//! How a group comes about: which device each rank gets, what its processes must agree on, and what they share.

use crate::transport::{self, Membership};
use crate::{BackendChoice, Error, GroupConfig, Result};
use flux_launch::{Launcher, SMS_FOR_COPIES};
use flux_memory::{Backend, Bootstrap, Device, FaultLog, PeerWatch, Peers, PerRank, Reach, SymmetricSpace};
use flux_transport::{Members, Nvshmem, SMS_FOR_NCCL};
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

/// What a group consists of, when it has come about.
#[derive(Debug)]
pub(crate) struct Formed {
    /// First, so that it is dropped first: afterwards nobody else holds what connects the processes.
    _watch: Option<PeerWatch>,
    /// Whether it has come about on all ranks.
    everywhere: bool,
    pub(crate) members: Members,
    pub(crate) launchers: PerRank<Arc<Launcher>>,
    pub(crate) backend: Backend,
    /// How many GPUs the ranks live on, all ranks' together; 1 on the host.
    pub(crate) gpus: usize,
    /// Last: whatever else is dropped may be NVSHMEM's.
    nvshmem: Option<Membership>,
}

impl Formed {
    pub(crate) fn nvshmem(&self) -> Option<&Arc<Nvshmem>> {
        self.nvshmem.as_ref().map(|membership| &membership.nvshmem)
    }
}

impl Drop for Formed {
    /// Ranks leave together: one that went before would look lost to those that still wait, or take the channel's middle away.
    /// Where something has gone wrong already, nobody is waited for.
    fn drop(&mut self) {
        let fine = |log: &Arc<FaultLog>| !log.has_given_up();
        if let Some(peers) = self.members.space.peers()
            && self.everywhere
            && !std::thread::panicking()
            && self.members.faults.iter().all(fine)
        {
            match peers.exchange("leave the group", Ok(Vec::new())) {
                Ok(_) => self.nvshmem.iter_mut().for_each(|membership| membership.together = true),
                Err(error) => tracing::warn!(%error, "this rank leaves the group alone"),
            }
        }
    }
}

/// All ranks in this process.
pub(crate) fn here(world_size: usize, config: &GroupConfig) -> Result<Formed> {
    let devices = devices(world_size, config)?;
    let machine = 0..world_size;
    let reach = transport::reach(std::slice::from_ref(&machine), config, devices[0].backend())?;
    transport::enable_peer_access(&devices, &reach, config)?;
    let launchers = Launcher::sharing(&devices, sms(&devices, config, &reach, 0))?.into();
    let gpus: BTreeSet<_> = devices.iter().map(|device| device.as_cuda().map(|gpu| gpu.ordinal())).collect();
    let (space, backend) = (SymmetricSpace::here(&devices).with_reach(reach), devices[0].backend());
    let mut members = members(space, devices.into(), config)?;
    members.exchanges = transport::exchanges_here(
        config.transport,
        &members.devices,
        members.space.reach(),
        &members.faults,
    )?;
    let gpus = gpus.len();
    Ok(Formed { _watch: None, everywhere: true, members, launchers, backend, gpus, nvshmem: None })
}

/// One rank in this process, its peers in others.
pub(crate) fn among_processes(bootstrap: Arc<dyn Bootstrap>, config: &GroupConfig) -> Result<Formed> {
    let (rank, world_size) = (bootstrap.rank(), bootstrap.world_size());
    if rank >= world_size {
        return Err(Error::NoSuchRank { rank, world_size });
    }
    let peers = Peers::connect(bootstrap)?;
    let mut formed = peers.together("form a group", || among(&peers, config))?;
    formed.everywhere = true;
    Ok(formed)
}

fn among(peers: &Arc<Peers>, config: &GroupConfig) -> Result<Formed> {
    let rank = peers.rank();
    agree(peers, &terms(config, peers.world_size()))?;
    let device = device(peers, config)?;
    let kind = match device.as_cuda() {
        None => "the host".to_owned(),
        Some(gpu) => format!("{} with {} SMs", gpu.name(), gpu.multiprocessors()),
    };
    // How calls are cut depends on the GPU: ranks on different ones would not understand each other.
    agree(peers, &[("device", kind)])?;
    let own = device.as_cuda().map(|gpu| gpu.uuid()).transpose()?;
    let gpus =
        peers.exchange("tell each other their GPUs", Ok(own.map_or_else(Vec::new, |id| id.to_vec())))?;
    let gpus = gpus.into_iter().collect::<BTreeSet<_>>().len();

    // Processes that share a GPU take turns on it, each with all of it: none needs room beside another's kernels. But copies
    // within a GPU run on SMs, and a GEMM may wait for what its own process copies: there must be room for those. As on all
    // ranks, so that all cut their calls alike.
    let for_copies = if gpus < peers.world_size() { SMS_FOR_COPIES } else { 0 };
    let reach = transport::reach(peers.machines(), config, device.backend())?;
    let space = SymmetricSpace::among(peers, &device, config.sharing)?.with_reach(reach);
    let (space, nvshmem) = transport::join_nvshmem(space, peers, &device, config)?;
    let budget = sms(std::slice::from_ref(&device), config, space.reach(), for_copies);
    let living_here = match &device {
        Device::Cuda(_) => 1,
        // A share of the cores, as if all ranks of this machine lived here.
        Device::Host(_) => peers.machine().len(),
    };
    let launcher = Launcher::sharing(&vec![device.clone(); living_here], budget)?;
    let launchers =
        PerRank::new(rank..rank + 1, |_| Arc::clone(&launcher[peers.local_rank() % launcher.len()]));
    let backend = device.backend();
    let mut members = members(space, PerRank::new(rank..rank + 1, |_| device.clone()), config)?;
    let watch = PeerWatch::new(&members.faults[rank], peers.bootstrap())?;
    let (nvshmem, words) = nvshmem.unzip();
    let puts = nvshmem.as_ref().map(|membership| &membership.nvshmem).zip(words);
    let (reach, log) = (members.space.reach(), &members.faults[rank]);
    let exchange = transport::exchange_among(peers, &device, reach, log, puts)?;
    members.exchanges = PerRank::new(rank..rank + 1, |_| exchange.clone());
    Ok(Formed { _watch: Some(watch), everywhere: false, members, launchers, backend, gpus, nvshmem })
}

/// The SMs that GEMMs may use, if not all: what the caller leaves, less `for_copies`, and less those that kernels of NCCL's
/// or NVSHMEM's need. These wait for peers, and a GEMM waits for them: one that had all SMs would wait for ever. So it is whether or not ranks
/// share a GPU.
fn sms(devices: &[Device], config: &GroupConfig, reach: &Reach, for_copies: u32) -> Option<u32> {
    let asked = config.sm_budget.map(NonZeroU32::get);
    let for_exchange = if reach.is_complete() { 0 } else { SMS_FOR_NCCL };
    let least = devices.iter().filter_map(Device::as_cuda).map(|gpu| gpu.multiprocessors()).min();
    let Some(all) = least.filter(|_| for_copies + for_exchange > 0) else { return asked };
    let free = all.saturating_sub(for_copies + for_exchange).max(1);
    Some(asked.map_or(free, |asked| asked.min(free)))
}

fn members(space: SymmetricSpace, devices: PerRank<Device>, config: &GroupConfig) -> Result<Members> {
    let faults = PerRank::try_new(devices.ranks(), |rank| {
        FaultLog::new(&devices[rank], u32::try_from(rank).unwrap_or(u32::MAX), config.wait_budget)
    })?;
    let mut members = Members::of(space, devices, faults)?;
    members.trace = config.trace;
    Ok(members)
}

/// What all ranks must have in common, in words.
fn terms(config: &GroupConfig, world_size: usize) -> Vec<(&'static str, String)> {
    let GroupConfig {
        backend,
        peer_memory,
        wait_budget,
        sm_budget,
        sharing,
        transport,
        fake_nodes,
        gpu: _,
        topology,
        trace,
        tuning: _, // rank 0's counts
        signal_loss,
    } = config;
    vec![
        ("flux version", env!("CARGO_PKG_VERSION").to_owned()),
        ("world size", world_size.to_string()),
        ("backend", format!("{backend:?}")),
        ("peer memory", peer_memory.to_string()),
        ("wait budget", format!("{wait_budget:?}")),
        ("SM budget", format!("{sm_budget:?}")),
        ("way of sharing", sharing.to_string()),
        ("transport", transport.to_string()),
        ("fake nodes", format!("{fake_nodes:?}")),
        (
            "topology",
            format!("{:?}", topology.as_ref().map(|topology| topology.order().argument().to_owned())),
        ),
        ("trace", trace.to_string()),
        ("signal loss", format!("{signal_loss:?}")),
    ]
}

/// Compares `ours` with all ranks' terms, one to a line.
fn agree(peers: &Peers, ours: &[(&'static str, String)]) -> Result<()> {
    let text: Vec<_> = ours.iter().map(|(what, value)| format!("{what}\t{value}")).collect();
    let all = peers.exchange("compare how they are configured", Ok(text.join("\n").into_bytes()))?;
    for (rank, theirs) in all.iter().enumerate() {
        let theirs = String::from_utf8_lossy(theirs);
        let mut theirs = theirs.lines();
        for (what, ours) in ours {
            let line = theirs.next().unwrap_or_default();
            let value = line.strip_prefix(what).and_then(|rest| rest.strip_prefix('\t'));
            if value != Some(ours) {
                return Err(Error::Disagreement {
                    rank,
                    here: peers.rank(),
                    what: (*what).to_owned(),
                    theirs: value.unwrap_or(line).to_owned(),
                    ours: ours.clone(),
                });
            }
        }
    }
    Ok(())
}

/// How many GPUs are to be used: none for the host.
fn visible_gpus(choice: BackendChoice) -> Result<usize> {
    match choice {
        BackendChoice::Host => Ok(0),
        BackendChoice::Auto => Ok(Device::cuda_count().unwrap_or(0)),
        BackendChoice::Cuda => match Device::cuda_count()? {
            0 => Err(Error::NoGpu),
            count => Ok(count),
        },
    }
}

/// The device of each rank: one GPU each where there are enough, else neighbouring ranks share one.
fn devices(world_size: usize, config: &GroupConfig) -> Result<Vec<Device>> {
    let gpus = visible_gpus(config.backend)?;
    if gpus == 0 {
        return Ok((0..world_size).map(|rank| Device::host_of_rank(rank, world_size)).collect());
    }
    if let Some(gpu) = config.gpu {
        return Ok(vec![Device::cuda(gpu)?; world_size]);
    }
    let used: Vec<_> = (0..gpus.min(world_size)).map(Device::cuda).collect::<Result<_, _>>()?;
    Ok((0..world_size).map(|rank| used[rank * used.len() / world_size].clone()).collect())
}

/// The device of this process: on each machine the first one has its first GPU, and so on.
fn device(peers: &Peers, config: &GroupConfig) -> Result<Device> {
    match visible_gpus(config.backend)? {
        0 => Ok(Device::host_of_rank(peers.local_rank(), peers.machine().len())),
        count => Ok(Device::cuda(config.gpu.unwrap_or(peers.local_rank() % count))?),
    }
}
