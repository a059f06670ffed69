//! NCCL's own collectives, on the caller's streams: what an unfused call is made of elsewhere, to measure beside.
//!
//! Their communicator is another one than the exchange's: nothing runs beside a collective, so it may take as many SMs as NCCL
//! wants. It has fault logs of its own: when a collective fails, the group goes on.

use super::communicator::{self, Communicator, Extent, Member};
use super::watch::Watch;
use super::{FORMING_LIMIT, forming};
use crate::{Error, Result};
use flux_memory::{Address, Buffer, Device, FaultLog, Peers, PerRank, Placement, Stream};
use nccl_sys::{
    Library, Version, cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};
use std::ffi::c_void;
use std::sync::Arc;

const WHY: &str = "the collectives are NCCL's";
const WHAT: &str = "enqueue a collective";

/// What is summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SummandType {
    /// Rounded to bf16 after every addition, unless a switch adds.
    Bf16,
    /// Likewise to f16.
    F16,
}

impl SummandType {
    const fn nccl(self) -> ncclDataType_t {
        match self {
            SummandType::Bf16 => ncclDataType_t::ncclBfloat16,
            SummandType::F16 => ncclDataType_t::ncclFloat16,
        }
    }

    const fn bytes(self) -> usize {
        match self {
            SummandType::Bf16 | SummandType::F16 => 2,
        }
    }
}

/// The collectives of a group's ranks, of those that live in this process. All ranks make the same calls in the same order.
///
/// A call has for each rank of this process, in rank order, an address that it reads from, one that it writes to, and a stream.
/// Each call is bounded by the budget of the logs that this was made with, and ends when those give up.
#[derive(Debug)]
pub struct NcclCollectives {
    ranks: PerRank<Rank>,
    version: Version,
}

#[derive(Debug)]
struct Rank {
    /// First, so that it ends first.
    _watch: Watch,
    communicator: Arc<Communicator>,
    log: Arc<FaultLog>,
}

impl NcclCollectives {
    /// Of ranks that all live in this process, each on a GPU of its own, rank r on `devices[r]`, with log `logs[r]`.
    pub fn here(devices: &PerRank<Device>, logs: &PerRank<Arc<FaultLog>>) -> Result<Self> {
        on_gpus(devices.iter())?;
        if !forming::have_own_gpus(devices) {
            let reason = "in one process, each rank needs a GPU of its own";
            return Err(Error::Nccl { what: "ranks share a GPU", reason: reason.into() });
        }
        if logs.ranks() != devices.ranks() {
            let [devices, logs] = [devices.ranks(), logs.ranks()].map(|of| of.len());
            return Err(Error::IncompleteMembers { devices, logs, events: devices });
        }
        let nccl = forming::library(WHY)?;
        let (id, world_size) = (forming::unique_id(nccl)?, devices.ranks().len());
        let ranks = forming::on_threads(devices, |rank, device| {
            Rank::new(nccl, device, id, (rank, world_size), &logs[rank])
        })?;
        Self::connected(ranks.into(), devices, nccl)
    }

    /// Of this process's rank, on `device`, among `peers`, with log `log`. Collective: it fails on all ranks if it fails on one.
    pub fn among(peers: &Peers, device: &Device, log: &Arc<FaultLog>) -> Result<Self> {
        on_gpus(std::iter::once(device))?; // as on all ranks
        let forming::Agreed { nccl, id, shares } = forming::agree(peers, device, WHY)?;
        let rank = peers.rank();
        let made = Rank::new(nccl, device, id, (rank, peers.world_size()), log).and_then(|own| {
            let mut own = Some(own);
            let missing = || Error::Nccl { what: WHAT, reason: "the communicator is gone".into() };
            let ranks = PerRank::try_new(rank..rank + 1, |_| own.take().ok_or_else(missing))?;
            Self::connected(ranks, &PerRank::new(rank..rank + 1, |_| device.clone()), nccl)
        });
        let made = made.map_err(|error| forming::hint(error, shares));
        peers.share("make a communicator", made.as_ref().map(drop).map_err(forming::failed))?;
        made
    }

    /// With a first collective, which makes connections: it may last longer than those that follow.
    fn connected(ranks: PerRank<Rank>, devices: &PerRank<Device>, nccl: &Library) -> Result<Self> {
        let collectives = Self { ranks, version: nccl.version() };
        let place = |rank| Buffer::allocate(&devices[rank], SummandType::F16.bytes(), Placement::Device);
        let memory = PerRank::try_new(devices.ranks(), place)?;
        let streams = PerRank::try_new(devices.ranks(), |rank| devices[rank].stream())?;
        let places: Vec<_> = memory.iter().map(|buffer| (buffer.address(), buffer.address())).collect();
        let logs: Vec<_> = collectives.ranks.iter().map(|rank| rank.log.with_budget(FORMING_LIMIT)).collect();
        let members = collectives.ranks.iter().zip(streams.iter()).zip(&logs);
        let members: Vec<_> = members.map(|((rank, stream), log)| rank.member(stream, log)).collect();
        // SAFETY: the memory lives until the streams have done this: see below.
        let enqueued = unsafe { all_reduce(&members, SummandType::F16, 1, &places) };
        // Bounded: the communicators are watched.
        let ended = streams.iter().try_for_each(Stream::synchronize);
        enqueued?;
        ended?;
        collectives.check()?;
        tracing::debug!(version = %nccl.version(), path = %nccl.path().display(), "made communicators for collectives");
        Ok(collectives)
    }

    /// Of NCCL.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The first failure of a collective of this process's ranks, in NCCL's words. Final for all that a synchronised stream has done.
    pub fn check(&self) -> Result<()> {
        match self.ranks.iter().find_map(|rank| rank.log.exchange_failure()) {
            None => Ok(()),
            Some(failure) => {
                Err(Error::Nccl { what: "a collective has failed", reason: failure.reason.clone() })
            }
        }
    }

    /// `ncclAllGather`: every rank's `bytes` bytes, one behind the other in rank order, to every rank.
    ///
    /// # Safety
    /// A rank reads `bytes` bytes and writes `bytes` times the ranks; what it reads may be its own part of what it writes. That
    /// memory is live, reachable by the stream's device, and free of conflicting accesses until the stream has done this.
    pub unsafe fn all_gather(
        &self,
        bytes: usize,
        places: &[(Address, Address)],
        streams: &[&Stream],
    ) -> Result<()> {
        let members = self.members(places, streams)?;
        let call = |index: usize, nccl: &Library, raw, stream| {
            let (from, to) = pointers(places[index]);
            // SAFETY: the caller's promise; the communicator and the stream are alive.
            accept(nccl, unsafe {
                (nccl.ncclAllGather)(from, to, bytes, ncclDataType_t::ncclUint8, raw, stream)
            })
        };
        // SAFETY: the caller's promise.
        unsafe { communicator::enqueue(&members, WHAT, call) }
    }

    /// `ncclReduceScatter`: rank r gets the sum of all ranks' r-th `elements` elements.
    ///
    /// # Safety
    /// As for [`NcclCollectives::all_gather`]: a rank reads `elements` times the ranks, and writes `elements` elements.
    pub unsafe fn reduce_scatter(
        &self,
        (of, elements): (SummandType, usize),
        places: &[(Address, Address)],
        streams: &[&Stream],
    ) -> Result<()> {
        let members = self.members(places, streams)?;
        let call = |index: usize, nccl: &Library, raw, stream| {
            let (from, to) = pointers(places[index]);
            let (of, sum) = (of.nccl(), ncclRedOp_t::ncclSum);
            // SAFETY: as in `all_gather`.
            accept(nccl, unsafe { (nccl.ncclReduceScatter)(from, to, elements, of, sum, raw, stream) })
        };
        // SAFETY: the caller's promise.
        unsafe { communicator::enqueue(&members, WHAT, call) }
    }

    /// `ncclAllReduce`: every rank gets the sum of all ranks' `elements` elements.
    ///
    /// # Safety
    /// As for [`NcclCollectives::all_gather`]: a rank reads and writes `elements` elements, maybe in one place.
    pub unsafe fn all_reduce(
        &self,
        (of, elements): (SummandType, usize),
        places: &[(Address, Address)],
        streams: &[&Stream],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { all_reduce(&self.members(places, streams)?, of, elements, places) }
    }

    /// This process's ranks with their streams: as many as there are places.
    fn members<'a>(
        &'a self,
        places: &[(Address, Address)],
        streams: &[&'a Stream],
    ) -> Result<Vec<Member<'a>>> {
        let ranks = self.ranks.ranks().len();
        if places.len() != ranks || streams.len() != ranks {
            let reason = format!(
                "{} places and {} streams were given for {ranks} ranks; give one for each rank of this process",
                places.len(),
                streams.len()
            );
            return Err(Error::Nccl { what: WHAT, reason });
        }
        self.check()?;
        Ok(self.ranks.iter().zip(streams).map(|(rank, stream)| rank.member(stream, &rank.log)).collect())
    }
}

impl Rank {
    /// `of_group` is the log of whoever this belongs to: when that gives up, so does this.
    fn new(
        nccl: &'static Library,
        device: &Device,
        id: ncclUniqueId,
        place: (usize, usize),
        of_group: &Arc<FaultLog>,
    ) -> Result<Self> {
        let log = FaultLog::new(device, u32::try_from(place.0).unwrap_or(u32::MAX), of_group.budget())?;
        let communicator = Communicator::new(nccl, device, id, place, Extent::Alone, FORMING_LIMIT)?;
        let communicator = Arc::new(communicator);
        Ok(Self { _watch: Watch::start(&communicator, &log, Some(of_group))?, communicator, log })
    }

    fn member<'a>(&'a self, stream: &'a Stream, log: &'a FaultLog) -> Member<'a> {
        Member { communicator: &self.communicator, stream, log }
    }
}

/// # Safety
/// As for [`NcclCollectives::all_reduce`].
unsafe fn all_reduce(
    members: &[Member<'_>],
    of: SummandType,
    elements: usize,
    places: &[(Address, Address)],
) -> Result<()> {
    let call = |index: usize, nccl: &Library, raw: ncclComm_t, stream: cudaStream_t| {
        let (from, to) = pointers(places[index]);
        let (of, sum) = (of.nccl(), ncclRedOp_t::ncclSum);
        // SAFETY: the caller's promise; the communicator and the stream are alive.
        accept(nccl, unsafe { (nccl.ncclAllReduce)(from, to, elements, of, sum, raw, stream) })
    };
    // SAFETY: the caller's promise.
    unsafe { communicator::enqueue(members, WHAT, call) }
}

fn accept(nccl: &Library, result: ncclResult_t) -> Result<(), nccl_sys::Error> {
    communicator::accepted(nccl, result)
}

fn pointers((from, to): (Address, Address)) -> (*const c_void, *mut c_void) {
    (from.as_ptr::<c_void>().cast_const(), to.as_ptr())
}

fn on_gpus<'a>(mut devices: impl Iterator<Item = &'a Device>) -> Result<()> {
    if devices.all(|device| device.as_cuda().is_some()) {
        return Ok(());
    }
    let reason = "NCCL connects GPUs, and these ranks run on the host";
    Err(Error::Nccl { what: "there are no collectives", reason: reason.into() })
}
