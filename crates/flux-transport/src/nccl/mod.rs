//! Sending and receiving by NCCL: how ranks on GPUs exchange with those whose memory they cannot address.
//!
//! A step is a group of `ncclSend` and `ncclRecv` on the exchange's stream: one kernel, which runs on at most
//! [`SMS_FOR_NCCL`] SMs and spins until its peers' kernels run. GEMMs leave that many free, or the kernel that they wait for would
//! never begin.
//!
//! All connections are made while a group is formed, by a first step with all peers: NCCL makes them when they are first used, and
//! both ends have to be there for that. Afterwards a call only launches.

mod communicator;
mod watch;

use crate::{Error, Exchange, Message, Result};
use communicator::Communicator;
use flux_memory::{Address, Buffer, Device, FaultLog, Peers, PerRank, Placement, Reach, Stream};
use nccl_sys::{Library, ncclDataType_t, ncclUniqueId};
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;
use watch::Watch;

/// How many SMs NCCL's kernels of a rank take, at most (`maxCTAs`): a power of two, for NCCL rounds its channels up to one. A few
/// saturate a network card of 400 Gbit/s, by NCCL's documentation of `maxCTAs` and its channels' rates; not measured here.
pub const SMS_FOR_NCCL: u32 = 4;

/// The first version that puts several ranks on one GPU.
const SHARES_GPUS: nccl_sys::Version = nccl_sys::Version::new(2, 30, 0);

/// How long it may take to make a communicator, and its connections.
const FORMING_LIMIT: Duration = Duration::from_secs(120);

/// One rank's NCCL communicator with all ranks of its group.
#[derive(Debug)]
pub struct NcclExchange {
    /// First, so that it ends first.
    _watch: Watch,
    communicator: Arc<Communicator>,
    /// All ranks enqueue by themselves: what NCCL prepares when it is first asked for a collective, it can prepare then.
    has_collectives: bool,
}

fn library() -> Result<&'static Library> {
    Library::load().map_err(|error| Error::Nccl {
        what: "ranks that cannot address each other's memory need NCCL",
        reason: error.to_string(),
    })
}

fn unique_id(nccl: &Library) -> Result<ncclUniqueId> {
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: a place for the result.
    let made = nccl.check(unsafe { (nccl.ncclGetUniqueId)(&raw mut id) });
    made.map(|()| id).map_err(|error| nccl_error("make a unique id", error))
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
        let ordinals: Vec<_> =
            devices.iter().filter_map(|device| device.as_cuda().map(|gpu| gpu.ordinal())).collect();
        let doubled = ordinals.iter().enumerate().any(|(rank, gpu)| ordinals[..rank].contains(gpu));
        if doubled || ordinals.len() != devices.ranks().len() {
            // One rank's kernel waits for another's, which may be queued behind it: the hardware's queues are of the process.
            let reason = "ranks that share a GPU and exchange by NCCL must be processes of their own; start them with `flux \
                          launch`, torchrun or mpirun";
            return Err(Error::Nccl { what: "ranks of one process share a GPU", reason: reason.into() });
        }
        if faults.ranks() != devices.ranks() {
            let [devices, logs] = [devices.ranks(), faults.ranks()].map(|of| of.len());
            return Err(Error::IncompleteMembers { devices, logs, events: devices });
        }
        let nccl = library()?;
        let id = unique_id(nccl)?;
        // Each rank's communicator waits for the others'.
        std::thread::scope(|scope| {
            let start = |(rank, device): (usize, &'_ Device)| {
                let (device, log, world_size) = (device.clone(), Arc::clone(&faults[rank]), ordinals.len());
                let thread = std::thread::Builder::new().name("flux-nccl-init".into());
                thread
                    .spawn_scoped(scope, move || {
                        Self::new(nccl, &device, id, (rank, world_size), &log, reach)
                    })
                    .map_err(|error| flux_memory::Error::NoThread { reason: error.to_string() })
            };
            let threads: Vec<_> = devices.pairs().map(start).collect::<Result<_, _>>()?;
            let panicked =
                || Error::Nccl { what: "make a communicator", reason: "its thread panicked".into() };
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
        })
    }

    /// Of this process's rank, on `device`, among `peers`. Collective: it fails on all ranks if it fails on one.
    pub fn among(peers: &Peers, device: &Device, log: &Arc<FaultLog>, reach: &Reach) -> Result<Self> {
        let failed = |error: Error| flux_memory::Error::Failed {
            what: "exchange by NCCL".into(),
            reason: error.to_string(),
        };
        let own = library().and_then(|nccl| {
            let gpu = device.as_cuda().map(|gpu| gpu.uuid()).transpose()?.unwrap_or_default();
            Ok((nccl, gpu))
        });
        let said = own.as_ref().map(|(nccl, gpu)| [&gpu[..], nccl.version().to_string().as_bytes()].concat());
        let all = peers.exchange("say which NCCL they have", said.map_err(|error| failed(error.clone())))?;
        let (nccl, gpu) = own?;
        let version = nccl.version();
        let theirs =
            |bytes: &[u8]| String::from_utf8_lossy(bytes.get(gpu.len()..).unwrap_or_default()).into_owned();
        if let Some(other) = all.iter().position(|said| theirs(said) != version.to_string()) {
            let reason = format!(
                "rank {other} has NCCL {}, this rank {version} ({}); install the same on all nodes",
                theirs(&all[other]),
                nccl.path().display()
            );
            return Err(Error::Nccl { what: "ranks have different versions", reason });
        }
        let shares = all.iter().enumerate().any(|(rank, said)| {
            all[..rank].iter().any(|other| other.get(..gpu.len()) == said.get(..gpu.len()))
        });
        if shares && version < SHARES_GPUS {
            let reason = format!(
                "that takes NCCL {SHARES_GPUS} or newer, this is {version}; give each rank its own GPU"
            );
            return Err(Error::Nccl { what: "ranks share a GPU", reason });
        }
        let (rank, world_size) = (peers.rank(), peers.world_size());
        let id = if rank == 0 { Some(unique_id(nccl)) } else { None };
        let said = match &id {
            Some(Ok(id)) => Ok(id.internal.map(|byte| byte.cast_unsigned()).to_vec()),
            Some(Err(error)) => Err(failed(error.clone())),
            None => Ok(Vec::new()),
        };
        let bytes = peers.exchange("agree on a communicator", said)?.swap_remove(0);
        let bytes: [u8; 128] = bytes.try_into().map_err(|_| flux_memory::Error::BadPeer {
            rank: 0,
            reason: "it told no id of a communicator".into(),
        })?;
        let id = ncclUniqueId { internal: bytes.map(|byte| byte.cast_signed()) };
        let mut made = Self::new(nccl, device, id, (rank, world_size), log, reach).map_err(|error| match error {
            Error::Nccl { what, reason } if shares => {
                let hint = "several ranks on one GPU take NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment of each";
                Error::Nccl { what, reason: format!("{reason}; {hint}") }
            }
            other => other,
        });
        if let Ok(made) = &mut made {
            made.has_collectives = true;
        }
        peers.share("make a communicator", made.as_ref().map(drop).map_err(|error| failed(error.clone())))?;
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
        let communicator = Arc::new(Communicator::new(nccl, device, id, (rank, world_size), FORMING_LIMIT)?);
        let exchange =
            Self { _watch: Watch::start(&communicator, log)?, communicator, has_collectives: false };
        exchange.connect(device, (rank, world_size), log, reach)?;
        tracing::debug!(rank, world_size, version = %nccl.version(), path = %nccl.path().display(), "joined a NCCL communicator");
        Ok(exchange)
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
            self.communicator.enqueue(stream, log, |nccl, raw, stream| {
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
            self.communicator.enqueue(stream, log, |nccl, raw, stream| {
                let (own, all) = (own.as_ptr::<()>().cast_const().cast(), all.as_ptr::<()>().cast());
                communicator::accepted(nccl, (nccl.ncclAllGather)(own, all, bytes, byte, raw, stream))
            })?;
        }
        Ok(true)
    }
}
