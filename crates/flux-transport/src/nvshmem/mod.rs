//! NVSHMEM: memory that all ranks allocate together, and puts into that of peers that have no address here.
//!
//! Each process is one PE, and a rank's number is its PE's. Device memory of a group comes from NVSHMEM's heap. Where
//! `nvshmem_ptr` gives an address of a peer's, kernels and copies write there by themselves, and NVSHMEM has no part in it; to the
//! others a [`PutExchange`](crate::PutExchange) puts.
//!
//! Of its calls on streams only those are used that launch no kernel to a peer within the machine: `putmem_signal` with
//! `NVSHMEM_SIGNAL_SET` is a copy and a write of 64 bits there, `signal_op` with it the write alone. (`NVSHMEM_SIGNAL_ADD` and
//! `signal_wait_until` launch one: a signal is waited for by the driver's own wait.) To other machines each is a kernel of one block,
//! for which GEMMs leave SMs free, as for NCCL's.
//!
//! What waits for all ranks (starting, allocating, freeing, ending) runs on a thread of its own, with a limit, after all ranks
//! have said that they are there.

mod worker;

use crate::put_exchange::Put;
use crate::{Error, Message, Result};
use flux_memory::cuda::CudaDevice;
use flux_memory::{
    Address, Device, Error as MemoryError, Peers, Reach, Stream, SymmetricBuffer, SymmetricHeap,
};
use nvshmem_sys::{
    DeviceCode, Library, NVSHMEMX_INIT_ATTR_INITIALIZER, NVSHMEMX_UNIQUEID_INITIALIZER, flags,
    nvshmemx_init_status_t, nvshmemx_signal_op_t, nvshmemx_uniqueid_t,
};
use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use worker::Worker;

/// How long a step of all ranks may take: NVSHMEM starts in half a second on one machine.
const LIMIT: Duration = Duration::from_secs(120);

/// How long somebody who enqueues waits for somebody who is in a step of all ranks, at most.
const TURN_LIMIT: Duration = Duration::from_secs(130);

/// This process as a PE. A process is one at most: groups that it forms one after the other, or at the same time, share it.
#[derive(Debug)]
pub struct Nvshmem(Arc<Pe>);

#[derive(Debug)]
struct Pe {
    nvshmem: &'static Library,
    device: Arc<CudaDevice>,
    worker: Worker,
    /// NVSHMEM's functions are called by one thread at a time.
    turn: Arc<Mutex<()>>,
    /// Not if somebody else in this process has started NVSHMEM.
    started: bool,
    /// How many groups use it, under [`PES`].
    groups: Mutex<usize>,
}

/// The process's PE, if it has been started by a group that has not left.
static PES: Mutex<Option<Arc<Pe>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(what: &'static str, reason: impl Into<String>) -> Error {
    Error::Nvshmem { what, reason: reason.into() }
}

fn told(error: &Error) -> MemoryError {
    MemoryError::Failed { what: "use NVSHMEM".into(), reason: error.to_string() }
}

fn number(value: usize) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// What each rank says before NVSHMEM is started.
fn introduce(nvshmem: &Library) -> String {
    // SAFETY: only reads a variable of the library's.
    let status = unsafe { (nvshmem.nvshmemx_init_status)() }.cast_unsigned();
    let started = status >= nvshmemx_init_status_t::NVSHMEM_STATUS_IS_INITIALIZED.0
        && status != nvshmemx_init_status_t::NVSHMEM_STATUS_INVALID.0;
    format!("{}{}", nvshmem.version(), if started { ", started already" } else { "" })
}

impl Nvshmem {
    /// Makes this process, whose rank runs on `device`, the PE of its rank among `peers`. Collective: it fails on all ranks if it
    /// fails on one. If NVSHMEM runs in this process already, its PEs must be the ranks; it is then not ended either.
    pub fn join(peers: &Peers, device: &Device) -> Result<Self> {
        let missing = |error: nvshmem_sys::LoadError| {
            failed("ranks that are to put into each other's memory need NVSHMEM", error.to_string())
        };
        let no_gpu = || MemoryError::BackendMismatch { what: "NVSHMEM" }.into();
        let own = Library::load()
            .map_err(missing)
            .and_then(|nvshmem| device.as_cuda().map(|gpu| (nvshmem, gpu)).ok_or_else(no_gpu));
        let said = own.as_ref().map(|(nvshmem, _)| introduce(nvshmem).into_bytes()).map_err(told);
        let all = peers.exchange("say which NVSHMEM they have", said)?;
        let (nvshmem, gpu) = own?;
        let (rank, world_size, ours) = (peers.rank(), peers.world_size(), introduce(nvshmem));
        if let Some(other) = all.iter().position(|said| *said != ours.as_bytes()) {
            let theirs = String::from_utf8_lossy(&all[other]);
            let path = nvshmem.path().display();
            let reason = format!(
                "rank {other} has NVSHMEM {theirs}, this rank {ours} ({path}); install the same on all nodes, and start it \
                 on all ranks or on none"
            );
            return Err(failed("ranks have different versions", reason));
        }
        let mut shared = lock(&PES);
        let pe = match shared.as_ref() {
            Some(pe) => Ok(Arc::clone(pe)),
            None => Self::start(nvshmem, gpu, peers, ours.ends_with("already")),
        };
        let pe = pe.and_then(|pe| {
            // SAFETY: NVSHMEM has been started.
            let numbers = unsafe { ((nvshmem.nvshmem_my_pe)(), (nvshmem.nvshmem_n_pes)()) };
            let wanted = (number(rank), number(world_size));
            if numbers != wanted {
                let reason =
                    format!("this process is {numbers:?} of NVSHMEM's, and {wanted:?} of the group's");
                return Err(failed("a PE's number and how many there are", reason));
            }
            if pe.device.ordinal() != gpu.ordinal() {
                let reason = format!("it runs on GPU {}, the rank on {}", pe.device.ordinal(), gpu.ordinal());
                return Err(failed("use NVSHMEM on another GPU", reason));
            }
            Ok(pe)
        });
        peers.share("start NVSHMEM", pe.as_ref().map(drop).map_err(told))?;
        let pe = pe?;
        *lock(&pe.groups) += 1;
        *shared = Some(Arc::clone(&pe));
        let path = nvshmem.path().display();
        tracing::debug!(rank, world_size, version = %nvshmem.version(), %path, "this process is a PE of NVSHMEM");
        Ok(Self(pe))
    }

    fn start(
        nvshmem: &'static Library,
        gpu: &Arc<CudaDevice>,
        peers: &Peers,
        running: bool,
    ) -> Result<Arc<Pe>> {
        const WHAT: &str = "start NVSHMEM";
        let worker = Worker::start(peers.bootstrap())?;
        let pe = |worker, started| {
            Arc::new(Pe {
                nvshmem,
                device: Arc::clone(gpu),
                worker,
                turn: Arc::default(),
                started,
                groups: Mutex::new(0),
            })
        };
        if running {
            return Ok(pe(worker, false));
        }
        let mut id = NVSHMEMX_UNIQUEID_INITIALIZER;
        let made = if peers.rank() == 0 {
            // SAFETY: a place for the result.
            match unsafe { (nvshmem.nvshmemx_get_uniqueid)(&raw mut id) } {
                0 => Ok(to_bytes(&id).to_vec()),
                status => Err(failed("make a unique id", status_text(status))),
            }
        } else {
            Ok(Vec::new())
        };
        let said = made.map_err(|error| told(&error));
        let id = from_bytes(&peers.exchange("agree on an id for NVSHMEM", said)?.swap_remove(0))?;
        let (rank, world_size, gpu) = (peers.rank(), peers.world_size(), Arc::clone(gpu));
        let status = worker.run(WHAT, LIMIT, move || {
            gpu.bind()?; // NVSHMEM takes the GPU of the thread's context
            let mut attr = NVSHMEMX_INIT_ATTR_INITIALIZER;
            // SAFETY: places of the right types, which outlive the calls.
            Ok::<_, Error>(unsafe {
                let (rank, ranks) = (number(rank), number(world_size));
                match (nvshmem.nvshmemx_set_attr_uniqueid_args)(rank, ranks, &raw const id, &raw mut attr) {
                    0 => {
                        let with_id = flags::NVSHMEMX_INIT_WITH_UNIQUEID.0.cast_unsigned();
                        (nvshmem.nvshmemx_hostlib_init_attr)(with_id, &raw mut attr)
                    }
                    status => status,
                }
            })
        })??;
        if status != 0 {
            return Err(failed(WHAT, status_text(status)));
        }
        Ok(pe(worker, true))
    }

    /// The same nodes, whose ranks address each other's memory only if NVSHMEM gives an address of each for each; `own` is memory
    /// of its heap. Collective.
    pub fn reach(&self, peers: &Peers, reach: Reach, own: &SymmetricBuffer) -> Result<Reach> {
        let (rank, own) = (peers.rank(), own.address(peers.rank()));
        let all = reach.of_rank(rank).all(|peer| !self.address(own, peer).is_null());
        let said = peers.exchange("say whose memory they address", Ok(vec![u8::from(all)]))?;
        let everywhere = said.iter().all(|said| said.as_slice() == [1]);
        if !everywhere {
            tracing::debug!(rank, "NVSHMEM gives no addresses of all ranks of a node");
        }
        Ok(if everywhere { reach } else { reach.without_addresses() })
    }

    /// The group leaves, and with the last one NVSHMEM ends in this process, if a group has started it. Collective, after the last
    /// use of its memory; bounded.
    pub fn leave(&self) -> Result<()> {
        let mut shared = lock(&PES);
        let pe = &self.0;
        let mut groups = lock(&pe.groups);
        *groups = groups.saturating_sub(1);
        if *groups > 0 {
            return Ok(());
        }
        *shared = None;
        if !pe.started || pe.worker.is_stuck() {
            return Ok(());
        }
        // SAFETY: nothing of NVSHMEM's is used any more.
        pe.in_turn("end NVSHMEM", |nvshmem| unsafe { (nvshmem.nvshmemx_hostlib_finalize)() })
    }

    /// What a kernel calls to raise a signal to a value.
    pub const SIGNAL_SET: u32 = nvshmemx_signal_op_t::NVSHMEM_SIGNAL_SET.0;

    /// Prepares a module that has NVSHMEM's device code, of the same version as the library.
    ///
    /// # Safety
    /// `module` is a loaded `CUmodule` of this rank's GPU.
    pub unsafe fn init_module(&self, module: *mut c_void) -> Result<()> {
        // SAFETY: the caller's promise.
        self.0.call("prepare a module", |nvshmem| unsafe { (nvshmem.nvshmemx_cumodule_init)(module.cast()) })
    }

    /// Says that the module is about to be unloaded.
    ///
    /// # Safety
    /// It was [prepared](Nvshmem::init_module), and none of its kernels runs.
    pub unsafe fn finalize_module(&self, module: *mut c_void) -> Result<()> {
        // SAFETY: the caller's promise.
        self.0
            .call("leave a module", |nvshmem| unsafe { (nvshmem.nvshmemx_cumodule_finalize)(module.cast()) })
    }

    /// NVSHMEM's device code, which lies beside the library.
    pub fn device_code(&self) -> Result<PathBuf> {
        let path = self.0.nvshmem.device_code(DeviceCode::Archive);
        path.map_err(|error| failed("link kernels with NVSHMEM", error.to_string()))
    }
}

impl Pe {
    /// A step of all ranks.
    fn in_turn<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&'static Library) -> T + Send + 'static,
    ) -> Result<T> {
        let (device, turn, nvshmem) = (Arc::clone(&self.device), Arc::clone(&self.turn), self.nvshmem);
        self.worker.run(what, LIMIT, move || {
            let _turn = lock(&turn);
            device.bind()?;
            Ok::<_, Error>(work(nvshmem))
        })?
    }

    /// A call that enqueues on `stream`.
    fn enqueue(&self, stream: &Stream, call: impl FnOnce(&'static Library, *mut c_void)) -> Result<()> {
        let Stream::Cuda(stream) = stream else {
            return Err(MemoryError::BackendMismatch { what: "NVSHMEM" }.into());
        };
        let _turn = self.take_turn()?;
        call(self.nvshmem, stream.raw().cast());
        Ok(())
    }

    /// A call that waits for nobody.
    fn call(&self, what: &'static str, call: impl FnOnce(&'static Library) -> c_int) -> Result<()> {
        let _turn = self.take_turn()?;
        match call(self.nvshmem) {
            0 => Ok(()),
            status => Err(failed(what, format!("NVSHMEM returned {status}"))),
        }
    }

    /// NVSHMEM is called by this thread, with its GPU's context, until the result is dropped.
    fn take_turn(&self) -> Result<MutexGuard<'_, ()>> {
        self.device.bind()?;
        let begin = Instant::now();
        loop {
            match self.turn.try_lock() {
                Ok(turn) => return Ok(turn),
                Err(TryLockError::Poisoned(turn)) => return Ok(turn.into_inner()),
                Err(TryLockError::WouldBlock) if begin.elapsed() < TURN_LIMIT && !self.worker.is_stuck() => {
                    std::thread::sleep(Duration::from_micros(20));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(failed("call NVSHMEM", "another call of it does not come back"));
                }
            }
        }
    }
}

impl SymmetricHeap for Nvshmem {
    fn allocate(&self, bytes: usize) -> flux_memory::Result<Address> {
        let bytes = bytes.max(1);
        let allocate = move |nvshmem: &'static Library| {
            // SAFETY: a size; the rest is NVSHMEM's.
            let pointer = unsafe { (nvshmem.nvshmem_malloc)(bytes) };
            Address::from(pointer.cast::<u8>())
        };
        match self.0.in_turn("allocate symmetric memory", allocate).map_err(|error| told(&error))? {
            address if address.is_aligned_to(256) && !address.is_null() => Ok(address),
            address => Err(MemoryError::Failed {
                what: format!("allocate {bytes} bytes of symmetric memory"),
                reason: format!(
                    "NVSHMEM gave {address}; NVSHMEM_SYMMETRIC_SIZE sets how much there is where its heap does not grow"
                ),
            }),
        }
    }

    fn address(&self, own: Address, peer: usize) -> Address {
        let Ok(_turn) = self.0.take_turn() else { return Address::NULL };
        // SAFETY: looks the address up.
        let pointer = unsafe { (self.0.nvshmem.nvshmem_ptr)(own.as_ptr::<c_void>(), number(peer)) };
        Address::from(pointer.cast::<u8>())
    }

    unsafe fn free(&self, own: Address) -> flux_memory::Result<()> {
        // SAFETY: allocated by this, freed once; the rest is the caller's promise.
        let free = move |nvshmem: &'static Library| unsafe { (nvshmem.nvshmem_free)(own.as_ptr()) };
        self.0.in_turn("free symmetric memory", free).map_err(|error| told(&error))
    }
}

impl Put for Nvshmem {
    unsafe fn put(&self, stream: &Stream, message: &Message, signal: Address, value: u32) -> Result<()> {
        let &Message { peer, memory, place, bytes } = message;
        let set = number(nvshmemx_signal_op_t::NVSHMEM_SIGNAL_SET.0 as usize);
        self.0.enqueue(stream, |nvshmem, stream| {
            let (to, from) = (place.as_ptr(), memory.as_ptr::<c_void>().cast_const());
            let (word, value) = (signal.as_ptr(), u64::from(value));
            // SAFETY: the caller's promise; the stream is alive.
            unsafe {
                (nvshmem.nvshmemx_putmem_signal_on_stream)(
                    to,
                    from,
                    bytes,
                    word,
                    value,
                    set,
                    number(peer),
                    stream,
                );
            }
        })
    }

    unsafe fn signal(&self, stream: &Stream, peer: usize, signal: Address, value: u32) -> Result<()> {
        let set = number(nvshmemx_signal_op_t::NVSHMEM_SIGNAL_SET.0 as usize);
        self.0.enqueue(stream, |nvshmem, stream| {
            let (word, value) = (signal.as_ptr(), u64::from(value));
            // SAFETY: as above.
            unsafe { (nvshmem.nvshmemx_signal_op_on_stream)(word, value, set, number(peer), stream) };
        })
    }
}

fn status_text(status: c_int) -> String {
    format!(
        "NVSHMEM returned {status}, and says why on standard error (more with NVSHMEM_DEBUG=INFO); if ranks do not find each \
         other, NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME names the network interface"
    )
}

fn to_bytes(id: &nvshmemx_uniqueid_t) -> [u8; size_of::<nvshmemx_uniqueid_t>()] {
    let mut bytes = [0; size_of::<nvshmemx_uniqueid_t>()];
    bytes[..4].copy_from_slice(&id.version.to_ne_bytes());
    bytes.iter_mut().skip(4).zip(id.internal).for_each(|(byte, of)| *byte = of as u8);
    bytes
}

fn from_bytes(bytes: &[u8]) -> Result<nvshmemx_uniqueid_t> {
    let no_id = || MemoryError::BadPeer { rank: 0, reason: "it told no id for NVSHMEM".into() };
    let bytes: &[u8; size_of::<nvshmemx_uniqueid_t>()] = bytes.try_into().map_err(|_| no_id())?;
    let (version, internal) = bytes.split_first_chunk().ok_or_else(no_id)?;
    let mut id = NVSHMEMX_UNIQUEID_INITIALIZER;
    id.version = c_int::from_ne_bytes(*version);
    id.internal.iter_mut().zip(internal).for_each(|(of, &byte)| *of = byte as _);
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_travels_whole() {
        let mut id = NVSHMEMX_UNIQUEID_INITIALIZER;
        id.internal.iter_mut().zip(0_u8..).for_each(|(byte, value)| *byte = value as _);
        let read = from_bytes(&to_bytes(&id)).unwrap();
        assert_eq!((read.version, read.internal), (id.version, id.internal));
        assert!(from_bytes(&[0; 127]).is_err());
    }
}
