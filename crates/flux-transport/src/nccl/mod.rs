//! Sending and receiving by NCCL: how ranks on GPUs exchange with those whose memory they cannot address.
//!
//! A step is a group of `ncclSend` and `ncclRecv` on the exchange's stream: one kernel, which runs on at most
//! [`SMS_FOR_NCCL`] SMs and spins until its peers' kernels run. GEMMs leave that many free, or the kernel that they wait for would
//! never begin.
//!
//! All connections are made while a group is formed, by a first step with all peers: NCCL makes them when they are first used, and
//! both ends have to be there for that. Afterwards a call only launches.

mod collectives;
mod communicator;
mod forming;
mod watch;

pub use collectives::{NcclCollectives, SummandType};

use crate::{Error, Exchange, Message, Result};
use communicator::{Communicator, Extent, Member};
use flux_memory::{Address, Buffer, Device, FaultLog, Peers, PerRank, Placement, Reach, Stream};
use forming::Agreed;
use nccl_sys::{Library, ncclDataType_t, ncclUniqueId};
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;
use watch::Watch;

/// How many SMs NCCL's kernels of a rank take, at most (`maxCTAs`): a power of two, for NCCL rounds its channels up to one. Four
/// move 55 GB/s over NVLink (two H200s, NCCL 2.28): a network card of 400 Gbit/s takes 50.
pub const SMS_FOR_NCCL: u32 = 4;

/// How long it may take to make a communicator, and its connections.
const FORMING_LIMIT: Duration = Duration::from_secs(120);

/// What needs it, and what it does.
const WHY: &str = "ranks that cannot address each other's memory need NCCL";
const WHAT: &str = "send and receive";

/// One rank's NCCL communicator with all ranks of its group.
#[derive(Debug)]
pub struct NcclExchange {
    /// First, so that it ends first.
    _watch: Watch,
    communicator: Arc<Communicator>,
    /// All ranks enqueue by themselves: what NCCL prepares when it is first asked for a collective, it can prepare then.
    has_collectives: bool,
}

fn nccl_error(what: &'static str, error: nccl_sys::Error) -> Error {
    Error::Nccl { what, reason: error.to_string() }
}

impl NcclExchange {
    /// Of ranks that all live in this process, each on a GPU of its own, rank r on `devices[r]`: one for each.
    pub fn here(
        devices: &PerRank<Device>,
        faults: &PerRank<Arc<FaultLog>>,
        reach: &Reach,
    ) -> Result<Vec<Self>> {
        if !forming::have_own_gpus(devices) {
            // One rank's kernel waits for another's, which may be queued behind it: the hardware's queues are of the process.
            let reason = "ranks that share a GPU and exchange by NCCL must be processes of their own; start them with `flux \
                          launch`, torchrun or mpirun";
            return Err(Error::Nccl { what: "ranks of one process share a GPU", reason: reason.into() });
        }
        if faults.ranks() != devices.ranks() {
            let [devices, logs] = [devices.ranks(), faults.ranks()].map(|of| of.len());
            return Err(Error::IncompleteMembers { devices, logs, events: devices });
        }
        let nccl = forming::library(WHY)?;
        let (id, world_size) = (forming::unique_id(nccl)?, devices.ranks().len());
        forming::on_threads(devices, |rank, device| {
            Self::new(nccl, device, id, (rank, world_size), &faults[rank], reach)
        })
    }

    /// Of this process's rank, on `device`, among `peers`. Collective: it fails on all ranks if it fails on one.
    pub fn among(peers: &Peers, device: &Device, log: &Arc<FaultLog>, reach: &Reach) -> Result<Self> {
        let Agreed { nccl, id, shares } = forming::agree(peers, device, WHY)?;
        let place = (peers.rank(), peers.world_size());
        let made = Self::new(nccl, device, id, place, log, reach);
        let mut made = made.map_err(|error| forming::hint(error, shares));
        if let Ok(made) = &mut made {
            made.has_collectives = true;
        }
        peers.share("make a communicator", made.as_ref().map(drop).map_err(forming::failed))?;
        made
    }

    fn new(
        nccl: &'static Library,
        device: &Device,
        id: ncclUniqueId,
        (rank, world_size): (usize, usize),
        log: &Arc<FaultLog>,
        reach: &Reach,
    ) -> Result<Self> {
        let place = (rank, world_size);
        let communicator = Communicator::new(nccl, device, id, place, Extent::BesideGemms, FORMING_LIMIT)?;
        let communicator = Arc::new(communicator);
        let watch = Watch::start(&communicator, log, None)?;
        let exchange = Self { _watch: watch, communicator, has_collectives: false };
        exchange.connect(device, (rank, world_size), log, reach)?;
        tracing::debug!(rank, world_size, version = %nccl.version(), path = %nccl.path().display(), "joined a NCCL communicator");
        Ok(exchange)
    }

    fn member<'a>(&'a self, stream: &'a Stream, log: &'a FaultLog) -> Member<'a> {
        Member { communicator: &self.communicator, stream, log }
    }

    /// A first step with all peers out of reach, which makes the connections.
    fn connect(
        &self,
        device: &Device,
        (rank, world_size): (usize, usize),
        log: &Arc<FaultLog>,
        reach: &Reach,
    ) -> Result<()> {
        const EACH: usize = 16;
        let memory = Buffer::allocate(device, 2 * world_size * EACH, Placement::Device)?;
        let stream = device.transfer_stream()?;
        let messages = |first: usize| -> Vec<_> {
            let peers = (0..world_size).filter(|&peer| !reach.has(rank, peer));
            let at = |peer: usize| memory.address().add((first + peer) * EACH);
            peers.map(|peer| Message { peer, memory: at(peer), place: at(peer), bytes: EACH }).collect()
        };
        // Peers may still be about to make their communicators.
        let log = log.with_budget(FORMING_LIMIT);
        // SAFETY: the memory lives until the stream has done this: see below.
        let enqueued = unsafe { self.step(&stream, &log, &messages(0), &messages(world_size)) };
        // Bounded: the communicator is watched.
        let ended = stream.synchronize();
        enqueued?;
        ended?;
        match log.exchange_failure() {
            Some(failure) => {
                Err(Error::Nccl { what: "connect with the other ranks", reason: failure.reason.clone() })
            }
            None => Ok(()),
        }
    }
}

impl Exchange for NcclExchange {
    unsafe fn step(
        &self,
        stream: &Stream,
        log: &Arc<FaultLog>,
        sends: &[Message],
        receives: &[Message],
    ) -> Result<()> {
        let byte = ncclDataType_t::ncclUint8;
        // SAFETY: the caller's promise for the memory; the communicator and the stream are alive.
        unsafe {
            communicator::enqueue(&[self.member(stream, log)], WHAT, |_, nccl, raw, stream| {
                let here = |message: &&Message| message.bytes > 0;
                for Message { peer, memory, bytes, .. } in sends.iter().filter(here) {
                    let peer = c_int::try_from(*peer).unwrap_or(c_int::MAX);
                    let sent = (nccl.ncclSend)(memory.as_ptr::<()>().cast(), *bytes, byte, peer, raw, stream);
                    communicator::accepted(nccl, sent)?;
                }
                for Message { peer, memory, bytes, .. } in receives.iter().filter(here) {
                    let peer = c_int::try_from(*peer).unwrap_or(c_int::MAX);
                    let received =
                        (nccl.ncclRecv)(memory.as_ptr::<()>().cast(), *bytes, byte, peer, raw, stream);
                    communicator::accepted(nccl, received)?;
                }
                Ok(())
            })
        }
    }

    unsafe fn all_gather(
        &self,
        stream: &Stream,
        log: &Arc<FaultLog>,
        own: Address,
        all: Address,
        bytes: usize,
    ) -> Result<bool> {
        if !self.has_collectives {
            return Ok(false);
        }
        let byte = ncclDataType_t::ncclUint8;
        // SAFETY: as for `step`.
        unsafe {
            communicator::enqueue(&[self.member(stream, log)], WHAT, |_, nccl, raw, stream| {
                let (own, all) = (own.as_ptr::<()>().cast_const().cast(), all.as_ptr::<()>().cast());
                communicator::accepted(nccl, (nccl.ncclAllGather)(own, all, bytes, byte, raw, stream))
            })?;
        }
        Ok(true)
    }
}
