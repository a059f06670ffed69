//! A group of ranks, and the devices that they live on.

use crate::formation::{self, Formed};
use crate::planner::{Layer, Surroundings};
use crate::tuner::{Cache, Entry};
use crate::{Error, OpSpec, Result, Transport};
use flux_launch::Launcher;
use flux_memory::{
    Backend, Bootstrap, Device, ExchangeFailure, Fault, FaultLog, PerRank, Placement, Sharing, Stream,
    WaitSite,
};
use flux_topology::Topology;
use flux_transport::{Members, Nvshmem, SignalLoss};
use std::num::{NonZeroU32, NonZeroUsize};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
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
    /// of one GPU need. Where some are left free, the portable GEMM has one block on an SM instead of two.
    pub sm_budget: Option<NonZeroU32>,
    /// One rank per process, on GPUs: how a process gets at its peers' device memory.
    pub sharing: Sharing,
    /// What goes between ranks goes how.
    pub transport: Transport,
    /// Makes one machine look like so many nodes, for tests: ranks of different ones do not address each other's memory. If the
    /// ranks cannot be shared out evenly, the first nodes have one more.
    pub fake_nodes: Option<NonZeroUsize>,
    /// The one GPU that the ranks of this process use. By default all GPUs where all ranks live in one process; where each has
    /// its own, the process's number among the machine's, counted around the GPUs that the driver shows. The only thing here in
    /// which processes may differ.
    pub gpu: Option<usize>,
    /// What connects the ranks, one GPU for each, instead of what is discovered: [`crate::Order::Auto`] is by this. On the host
    /// backend it decides the order, as `flux topo` names it for these GPUs; on GPUs it is what plans are made by, unless ranks
    /// share them. Among processes rank 0's counts, and all must come to the same order.
    pub topology: Option<Arc<Topology>>,
    /// Whether calls note when each tile and each transfer happened ([`crate::AgGemm::traces`] and its like). For looking,
    /// not for measuring: calls are slower by little, operations take 104 bytes more for each tile, and on GPUs only bf16 can be
    /// traced.
    pub trace: bool,
    /// The file that says how calls go best, as far as that was measured, and that [`crate::tune`] adds to; without one, what is
    /// measured is known to this group alone. Among processes, rank 0's counts. What is wrong with it is a warning, never a failure.
    pub tuning: Option<PathBuf>,
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
            sharing: Sharing::Auto,
            transport: Transport::Auto,
            fake_nodes: None,
            gpu: None,
            topology: None,
            trace: false,
            tuning: None,
            signal_loss: None,
        }
    }
}

/// Far more than one machine can use.
const MAX_RANKS: usize = 1024;

/// A group of ranks: all of this process, or one here and each of its peers in a process of its own. Cloning gives another
/// handle to the same group.
///
/// Among processes, all ranks build the same operations in the same order, and make the same sequence of calls.
#[derive(Clone, Debug)]
pub struct Group(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: GroupConfig,
    formed: Formed,
    ops: Mutex<Vec<Registered>>,
    turns: Turns,
    surroundings: OnceLock<Surroundings>,
    /// What was measured; read when it is first asked for.
    cache: Mutex<Option<Arc<Cache>>>,
}

/// What a fault says of an operation.
#[derive(Clone, Debug)]
struct Registered {
    name: String,
    /// Where slots are not numbered by rank: how many signals all of them have, which are the first, and the rank that each of a rank's
    /// first slots is of.
    slots: Option<(usize, PerRank<Vec<usize>>)>,
}

impl Registered {
    /// The rank that `fault` waited for: a tile that waits for a slot knows only the slot's number.
    fn peer(&self, fault: &Fault) -> usize {
        let of_slot = self.slots.as_ref().and_then(|(signals, sources)| {
            let is_of_slot = fault.tile != WaitSite::NO_TILE && (fault.signal as usize) < *signals;
            sources.get(fault.rank as usize).filter(|_| is_of_slot)?.get(fault.peer as usize).copied()
        });
        of_slot.unwrap_or(fault.peer as usize)
    }
}

/// Whose turn it is to enqueue: calls of one rank, of whatever operation, come one after the other, each whole.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Held for reading by a call of one rank, for writing by a call of all.
    pub(crate) all: RwLock<()>,
    /// Rank r's is held by a call of that rank alone.
    pub(crate) ranks: PerRank<Mutex<()>>,
}

impl Group {
    /// `world_size` ranks in this process, on all GPUs where there are any, else on the host. Ranks that outnumber the
    /// GPUs share them: each has its own buffers, streams, and a share of the SMs.
    pub fn local(world_size: usize) -> Result<Self> {
        Self::local_with(world_size, GroupConfig::default())
    }

    /// As [`Group::local`], with a say in everything.
    pub fn local_with(world_size: usize, config: GroupConfig) -> Result<Self> {
        check(world_size, &config)?;
        let formed = formation::here(world_size, &config)?;
        Ok(Self::of(config, formed))
    }

    /// This process as one rank of a group of processes, on one machine or several, that `bootstrap` connects. Collective: every
    /// rank calls it, with the same configuration; ranks that disagree all get an error.
    ///
    /// All processes are to keep the group until their peers have what they need of them: a process that ends before, without
    /// dropping its group, is a lost rank to those that still wait.
    pub fn with_bootstrap(bootstrap: Arc<dyn Bootstrap>, config: GroupConfig) -> Result<Self> {
        check(bootstrap.world_size(), &config)?;
        let formed = formation::among_processes(bootstrap, &config)?;
        Ok(Self::of(config, formed))
    }

    fn of(config: GroupConfig, formed: Formed) -> Self {
        let turns = Turns {
            all: RwLock::default(),
            ranks: PerRank::new(formed.members.local_ranks(), |_| Mutex::default()),
        };
        let group = Self(Arc::new(Inner {
            config,
            formed,
            ops: Mutex::default(),
            turns,
            surroundings: OnceLock::new(),
            cache: Mutex::default(),
        }));
        tracing::debug!(
            world_size = group.world_size(),
            local_ranks = ?group.local_ranks(),
            backend = %group.backend(),
            "formed a group"
        );
        group
    }

    /// Ranks in all.
    pub fn world_size(&self) -> usize {
        self.members().world_size()
    }

    /// The ranks that live in this process.
    pub fn local_ranks(&self) -> Range<usize> {
        self.members().local_ranks()
    }

    /// The ranks of each node, in order: ranks count up node by node.
    pub fn nodes(&self) -> &[Range<usize>] {
        self.members().space.reach().nodes()
    }

    /// What the ranks run on.
    pub fn backend(&self) -> Backend {
        self.0.formed.backend
    }

    /// On how many GPUs the ranks live, all ranks' together; 1 on the host.
    pub fn devices(&self) -> usize {
        self.0.formed.gpus
    }

    /// How the group was formed.
    pub fn config(&self) -> &GroupConfig {
        &self.0.config
    }

    /// The device of `rank`, which lives in this process.
    pub fn device(&self, rank: usize) -> Result<&Device> {
        self.check_rank(rank)?;
        Ok(&self.members().devices[rank])
    }

    /// A new stream on the device of `rank`.
    pub fn stream(&self, rank: usize) -> Result<Stream> {
        Ok(self.device(rank)?.stream()?)
    }

    /// Reports a lost rank, or else what could not be sent or received, or else the first wait of any rank of this process that
    /// expired. Looks only at host memory: cheap, and final for everything that a synchronised stream has done.
    pub fn check(&self) -> Result<()> {
        let faults = &self.members().faults;
        if let Some((rank, lost)) = faults.pairs().find_map(|(rank, log)| Some((rank, log.lost_rank()?))) {
            return Err(Error::RankLost { rank, lost });
        }
        let failure = |(rank, log): (usize, &Arc<FaultLog>)| Some((rank, log.exchange_failure()?.clone()));
        if let Some((rank, ExchangeFailure { peer, reason })) = faults.pairs().find_map(failure) {
            return Err(Error::ExchangeFailed { rank, peer, reason });
        }
        match faults.iter().find_map(|log| log.fault()) {
            None => Ok(()),
            Some(fault) => {
                let ops = self.0.ops.lock().unwrap_or_else(PoisonError::into_inner);
                let op = ops.get(fault.op as usize);
                Err(Error::WaitExpired {
                    op: op.map_or("an exchange of ranks", |op| &op.name).to_owned(),
                    rank: fault.rank as usize,
                    peer: op.map_or(fault.peer as usize, |op| op.peer(&fault)),
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

    /// Returns when all processes of the group have called it; at once where all ranks live in this one. Not needed between
    /// calls, which keep apart by themselves: for what a program does beside them.
    pub fn barrier(&self) -> Result<()> {
        match self.members().space.peers() {
            None => Ok(()),
            Some(peers) => Ok(peers.exchange("meet at a barrier", Ok(Vec::new())).map(drop)?),
        }
    }

    /// What each process has brought, in rank order; where all ranks live in this process, only `own`. For a few bytes, beside
    /// calls: measurements, names.
    pub fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        match self.members().space.peers() {
            None => Ok(vec![own.to_vec()]),
            Some(peers) => Ok(peers.exchange("gather a few bytes", Ok(own.to_vec()))?),
        }
    }

    pub(crate) fn check_rank(&self, rank: usize) -> Result<()> {
        let (world_size, here) = (self.world_size(), self.local_ranks());
        match rank {
            _ if here.contains(&rank) => Ok(()),
            _ if rank < world_size => Err(Error::NotHere { rank, here: here.start }),
            _ => Err(Error::NoSuchRank { rank, world_size }),
        }
    }

    /// Whether `rank` may be called by itself: not if others of this process share its GPU.
    pub(crate) fn check_alone(&self, rank: usize) -> Result<()> {
        let device = self.device(rank)?;
        if self.is_alone(rank) {
            Ok(())
        } else {
            Err(Error::SharedDevice { rank, device: device.to_string() })
        }
    }

    /// Whether no other rank of this process runs on `rank`'s GPU. Ranks of other processes may: those take turns on it, each
    /// with all of it, and wait for nothing that this process has queued.
    pub(crate) fn is_alone(&self, rank: usize) -> bool {
        let gpu = |device: &Device| device.as_cuda().map(|gpu| gpu.ordinal());
        let devices = &self.members().devices;
        let own = devices.get(rank).and_then(gpu);
        own.is_none() || devices.iter().filter(|&device| gpu(device) == own).count() < 2
    }

    pub(crate) fn turns(&self) -> &Turns {
        &self.0.turns
    }

    pub(crate) fn members(&self) -> &Members {
        &self.0.formed.members
    }

    /// What ranks put by, if that is the group's transport.
    pub(crate) fn nvshmem(&self) -> Option<&Arc<Nvshmem>> {
        self.0.formed.nvshmem()
    }

    pub(crate) fn launcher(&self, rank: usize) -> &Launcher {
        &self.0.formed.launchers[rank]
    }

    /// For what is the same for all ranks.
    pub(crate) fn any_launcher(&self) -> &Launcher {
        self.launcher(self.local_ranks().start)
    }

    /// Builds operation `name` for `spec`, on all ranks or on none.
    pub(crate) fn together<T>(
        &self,
        name: &str,
        spec: &OpSpec,
        build: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        match self.members().space.peers() {
            None => build(),
            Some(peers) => peers.together(&format!("build {name} of {spec:?}"), build),
        }
    }

    /// What this process knows of its machine: found out once.
    pub(crate) fn surroundings(&self) -> Result<&Surroundings> {
        if let Some(found) = self.0.surroundings.get() {
            return Ok(found);
        }
        let found = Surroundings::find(self)?;
        Ok(self.0.surroundings.get_or_init(|| found))
    }

    /// What was measured.
    pub(crate) fn cache(&self) -> Arc<Cache> {
        let mut cache = self.0.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let read = || Arc::new(self.0.config.tuning.as_deref().map(Cache::read).unwrap_or_default());
        Arc::clone(cache.get_or_insert_with(read))
    }

    /// What was measured of a layer.
    pub(crate) fn tuned(&self, layer: &Layer) -> Result<Vec<Entry>> {
        let key = self.surroundings()?.key(self, layer, 0);
        Ok(self.cache().of_layer(&key))
    }

    /// Keeps what was measured: rank 0's process also in the file. One that cannot be written to costs a warning, and is not lost
    /// to this group.
    pub(crate) fn learn(&self, entry: &Entry) {
        let mut written = Cache::default();
        if let Some(path) = self.0.config.tuning.as_deref().filter(|_| self.local_ranks().start == 0) {
            match Cache::write(path, std::slice::from_ref(entry)) {
                Ok(all) => written = all,
                Err(error) => tracing::warn!(%error, "what was measured is known to this group alone"),
            }
        }
        let _read_first = self.cache();
        let mut cache = self.0.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = cache.as_deref().cloned().unwrap_or_default();
        written.into_entries().for_each(|entry| known.add(entry));
        known.add(entry.clone());
        *cache = Some(Arc::new(known));
    }

    /// Numbers an operation, so that a fault can name it.
    pub(crate) fn register(&self, name: String) -> u32 {
        self.push_op(Registered { name, slots: None })
    }

    /// Another number for a part of operation `op`, by the same name.
    pub(crate) fn register_again(&self, op: u32) -> u32 {
        let known = self.0.ops.lock().unwrap_or_else(PoisonError::into_inner).get(op as usize).cloned();
        known.map_or(op, |known| self.push_op(known))
    }

    fn push_op(&self, op: Registered) -> u32 {
        let mut ops = self.0.ops.lock().unwrap_or_else(PoisonError::into_inner);
        ops.push(op);
        u32::try_from(ops.len() - 1).unwrap_or(u32::MAX)
    }

    /// Operation `op` sums slots that are not numbered by rank, but of the ranks `sources`, and whose `signals` are the first.
    pub(crate) fn number_slots(&self, op: u32, signals: usize, sources: PerRank<Vec<usize>>) {
        let mut ops = self.0.ops.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(op) = ops.get_mut(op as usize) {
            op.slots = Some((signals, sources));
        }
    }
}

/// What can be wrong with a group's configuration.
fn check(world_size: usize, config: &GroupConfig) -> Result<()> {
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
    match config.topology.as_ref().map(|topology| topology.device_count()) {
        Some(gpus) if gpus != world_size => Err(Error::OtherTopology { gpus, world_size }),
        _ => Ok(()),
    }
}
