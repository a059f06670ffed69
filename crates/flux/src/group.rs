//! A group of ranks, and the devices that they live on.

use crate::{Error, Result};
use flux_launch::Launcher;
use flux_memory::{Backend, Device, FaultLog, Placement, Stream, WaitSite};
use flux_transport::{Members, SignalLoss};
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// Which backend a group is to run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BackendChoice {
    /// GPUs where there are any, else the host.
    #[default]
    Auto,
    /// The host.
    Host,
    /// GPUs; an error where there are none.
    Cuda,
}

/// How a group is formed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GroupConfig {
    /// Which backend.
    pub backend: BackendChoice,
    /// Where what crosses between ranks lies: in device memory, or in pinned host memory, through which one GPU's ranks
    /// really send their traffic over PCIe, and GPUs without peer access can exchange at all. AllGather is then best
    /// pulled: pushed rows stay in host memory, and the GEMM reads them over PCIe.
    pub peer_memory: Placement,
    /// How long a wait for a peer may last. It begins when the wait does, however much is queued before it. A wait for a
    /// peer that may itself be waiting (for the shards that [`crate::GemmAr`] gathers) may last twice as long.
    pub wait_budget: Duration,
    /// The most SMs of a GPU that the GEMMs of all its ranks together may use; by default all, less what copies between ranks
    /// of one GPU need.
    pub sm_budget: Option<NonZeroU32>,
    /// Whether calls note when each tile and each transfer happened ([`crate::AgGemm::traces`] and its like). For looking,
    /// not for measuring: calls are slower by little, operations take 104 bytes more for each tile, on GPUs only bf16 can be
    /// traced, and calls cannot be captured into CUDA graphs.
    pub trace: bool,
    /// A fault to rehearse: all data signals of one rank to another are lost. For tests.
    pub signal_loss: Option<SignalLoss>,
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self {
            backend: BackendChoice::default(),
            peer_memory: Placement::Device,
            wait_budget: Duration::from_secs(10),
            sm_budget: None,
            trace: false,
            signal_loss: None,
        }
    }
}

/// Far more than one process can use.
const MAX_RANKS: usize = 1024;

/// A group of ranks that all live in this process. Cloning gives another handle to the same group.
#[derive(Clone, Debug)]
pub struct Group(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: GroupConfig,
    members: Members,
    launchers: Vec<Arc<Launcher>>,
    op_names: Mutex<Vec<String>>,
    turns: Turns,
}

/// Whose turn it is to enqueue: calls of one rank, of whatever operation, come one after the other, each whole.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Held for reading by a call of one rank, for writing by a call of all.
    pub(crate) all: RwLock<()>,
    /// Rank r's is held by a call of that rank alone.
    pub(crate) ranks: Vec<Mutex<()>>,
}

impl Group {
    /// `world_size` ranks in this process, on all GPUs where there are any, else on the host. Ranks that outnumber the
    /// GPUs share them: each has its own buffers, streams, and a share of the SMs.
    pub fn local(world_size: usize) -> Result<Self> {
        Self::local_with(world_size, GroupConfig::default())
    }

    /// As [`Group::local`], with a say in everything.
    pub fn local_with(world_size: usize, config: GroupConfig) -> Result<Self> {
        if world_size == 0 {
            return Err(flux_swizzle::Error::NoRanks.into());
        }
        if world_size > MAX_RANKS {
            return Err(Error::TooManyRanks { world_size, max: MAX_RANKS });
        }
        if let Some(SignalLoss { from, to }) = config.signal_loss {
            let rank = from.max(to);
            if rank >= world_size {
                return Err(Error::NoSuchRank { rank, world_size });
            }
        }
        let devices = devices(world_size, config.backend)?;
        if config.peer_memory == Placement::Device {
            Device::enable_peer_access(&devices)?;
        }
        let launchers = Launcher::sharing(&devices, config.sm_budget.map(NonZeroU32::get))?;
        let log = |(rank, device): (usize, &Device)| {
            FaultLog::new(device, u32::try_from(rank).unwrap_or(u32::MAX), config.wait_budget)
        };
        let faults = devices.iter().enumerate().map(log).collect::<Result<_, _>>()?;
        let mut members = Members::new(devices, faults)?;
        members.trace = config.trace;
        let turns =
            Turns { all: RwLock::default(), ranks: (0..world_size).map(|_| Mutex::default()).collect() };
        tracing::debug!(world_size, backend = %members.devices[0].backend(), "formed a group");
        Ok(Self(Arc::new(Inner { config, members, launchers, op_names: Mutex::default(), turns })))
    }

    /// Ranks in all.
    pub fn world_size(&self) -> usize {
        self.0.members.world_size()
    }

    /// The ranks that live in this process.
    pub fn local_ranks(&self) -> Range<usize> {
        0..self.world_size()
    }

    /// What the ranks run on.
    pub fn backend(&self) -> Backend {
        self.0.members.devices[0].backend()
    }

    /// How the group was formed.
    pub fn config(&self) -> &GroupConfig {
        &self.0.config
    }

    /// The device of `rank`.
    pub fn device(&self, rank: usize) -> Result<&Device> {
        self.check_rank(rank)?;
        Ok(&self.0.members.devices[rank])
    }

    /// A new stream on the device of `rank`.
    pub fn stream(&self, rank: usize) -> Result<Stream> {
        Ok(self.device(rank)?.stream()?)
    }

    /// Reports the first wait of any rank that expired. Looks only at host memory: cheap, and final for everything that
    /// a synchronised stream has done.
    pub fn check(&self) -> Result<()> {
        match self.0.members.faults.iter().find_map(|log| log.fault()) {
            None => Ok(()),
            Some(fault) => {
                let names = self.0.op_names.lock().unwrap_or_else(PoisonError::into_inner);
                Err(Error::WaitExpired {
                    op: names.get(fault.op as usize).cloned().unwrap_or_default(),
                    rank: fault.rank as usize,
                    peer: fault.peer as usize,
                    tile: (fault.tile != WaitSite::NO_TILE)
                        .then_some((fault.tile >> 16, fault.tile & 0xffff)),
                    signal: fault.signal,
                    seen: fault.seen,
                    wanted: fault.wanted,
                    budget: self.0.config.wait_budget,
                })
            }
        }
    }

    pub(crate) fn check_rank(&self, rank: usize) -> Result<()> {
        let world_size = self.world_size();
        if rank < world_size { Ok(()) } else { Err(Error::NoSuchRank { rank, world_size }) }
    }

    /// Whether `rank` may be called by itself: not if others share its GPU.
    pub(crate) fn check_alone(&self, rank: usize) -> Result<()> {
        let device = self.device(rank)?;
        if self.is_alone(rank) {
            Ok(())
        } else {
            Err(Error::SharedDevice { rank, device: device.to_string() })
        }
    }

    /// Whether no other rank runs on `rank`'s GPU.
    pub(crate) fn is_alone(&self, rank: usize) -> bool {
        let gpu = |device: &Device| device.as_cuda().map(|gpu| gpu.ordinal());
        let devices = &self.0.members.devices;
        let own = devices.get(rank).and_then(gpu);
        own.is_none() || devices.iter().filter(|&device| gpu(device) == own).count() < 2
    }

    pub(crate) fn turns(&self) -> &Turns {
        &self.0.turns
    }

    pub(crate) fn members(&self) -> &Members {
        &self.0.members
    }

    pub(crate) fn launcher(&self, rank: usize) -> &Launcher {
        &self.0.launchers[rank]
    }

    /// Numbers an operation, so that a fault can name it.
    pub(crate) fn register(&self, name: String) -> u32 {
        let mut names = self.0.op_names.lock().unwrap_or_else(PoisonError::into_inner);
        names.push(name);
        u32::try_from(names.len() - 1).unwrap_or(u32::MAX)
    }
}

/// The device of each rank: one GPU each where there are enough, else neighbouring ranks share one.
fn devices(world_size: usize, choice: BackendChoice) -> Result<Vec<Device>> {
    let gpus = match choice {
        BackendChoice::Host => 0,
        BackendChoice::Auto => Device::cuda_count().unwrap_or(0),
        BackendChoice::Cuda => match Device::cuda_count()? {
            0 => return Err(Error::NoGpu),
            count => count,
        },
    };
    if gpus == 0 {
        return Ok(vec![Device::host(); world_size]);
    }
    let used: Vec<_> = (0..gpus.min(world_size)).map(Device::cuda).collect::<Result<_, _>>()?;
    Ok((0..world_size).map(|rank| used[rank * used.len() / world_size].clone()).collect())
}
