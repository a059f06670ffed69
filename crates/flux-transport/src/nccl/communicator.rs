//! A NCCL communicator that waits for nothing without a limit.
//!
//! It does not block (`blocking = 0`): each call returns at once, and is asked after until it has ended, or its time is up. The
//! stream marks in host memory when it begins a step and when it has passed it, so that a step that peers do not take part in is
//! noticed ([`super::watch`]); aborting the communicator ends its kernels.

use super::nccl_error;
use crate::{Error, Result};
use flux_memory::cuda::CudaDevice;
use flux_memory::{Address, Buffer, Device, ExchangeFailure, FaultLog, Placement, Stream};
use nccl_sys::{
    Library, NCCL_CONFIG_INITIALIZER, cudaStream_t, ncclComm_t, ncclConfig_t, ncclResult_t, ncclUniqueId,
};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Enqueued steps whose budgets are kept apart: those of an operation that reduces and then gathers differ. A rank's steps come one
/// after the other, so that of more than these only the budget may be that of a later one.
const MARKS: usize = 64;

/// How long the host spins while it asks after a launch, before it gives the core away: a launch takes 10 µs or so.
const SPIN: Duration = Duration::from_micros(50);

/// One rank's handle, and where its steps are.
#[derive(Debug)]
pub(super) struct Communicator {
    nccl: &'static Library,
    device: Arc<CudaDevice>,
    /// None once it has been aborted. Held while NCCL is called: a communicator is not for several threads at once.
    raw: Mutex<Option<Raw>>,
    /// Of each kept step its number, when the stream begins it, and again when it has passed it.
    marks: Buffer,
    /// How long each kept step may take, in milliseconds.
    budgets: [AtomicU64; MARKS],
    steps: AtomicU32,
}

#[derive(Debug)]
struct Raw(ncclComm_t);

// SAFETY: a communicator may be used from any thread, by one at a time.
unsafe impl Send for Raw {}

/// What a call within a group, or one that goes on by itself, returns if nothing is wrong.
pub(super) fn accepted(nccl: &Library, result: ncclResult_t) -> Result<(), nccl_sys::Error> {
    match nccl.check(result) {
        Err(error) if error.is_in_progress() => Ok(()),
        other => other,
    }
}

/// Bounded in its SMs, and without clusters of blocks: those would need neighbouring SMs to be free at the same time, which
/// beside a GEMM nobody can promise.
fn config() -> ncclConfig_t {
    ncclConfig_t {
        blocking: 0,
        cgaClusterSize: 0,
        minCTAs: 1,
        maxCTAs: c_int::try_from(super::SMS_FOR_NCCL).unwrap_or(1),
        ..NCCL_CONFIG_INITIALIZER
    }
}

impl Communicator {
    /// Joins communicator `id`, which all ranks do at the same time.
    pub(super) fn new(
        nccl: &'static Library,
        device: &Device,
        id: ncclUniqueId,
        (rank, world_size): (usize, usize),
        limit: Duration,
    ) -> Result<Self> {
        const WHAT: &str = "join a communicator";
        let Some(gpu) = device.as_cuda() else {
            return Err(flux_memory::Error::BackendMismatch { what: "an exchange by NCCL" }.into());
        };
        let marks = Buffer::allocate(device, 2 * MARKS * size_of::<u32>(), Placement::PinnedHost)?;
        gpu.bind()?; // NCCL takes the device of the thread's context
        let mut raw = std::ptr::null_mut();
        let number = |value: usize| c_int::try_from(value).unwrap_or(c_int::MAX);
        let mut config = config();
        // SAFETY: places for the result and the configuration, which outlive the call.
        let begun = unsafe {
            let (ranks, rank) = (number(world_size), number(rank));
            (nccl.ncclCommInitRankConfig)(&raw mut raw, ranks, id, rank, &raw mut config)
        };
        let communicator = Self {
            nccl,
            device: Arc::clone(gpu),
            raw: Mutex::new((!raw.is_null()).then_some(Raw(raw))),
            marks,
            budgets: std::array::from_fn(|_| AtomicU64::new(0)),
            steps: AtomicU32::new(0),
        };
        accepted(nccl, begun).map_err(|error| nccl_error(WHAT, error))?;
        // SAFETY: a communicator of this library; should this fail, the drop aborts it.
        let ended = unsafe { await_end(nccl, raw, limit) };
        match ended {
            Ok(true) => Ok(communicator),
            Ok(false) => {
                Err(Error::Nccl { what: WHAT, reason: format!("not all ranks came within {limit:?}") })
            }
            Err(error) => Err(nccl_error(WHAT, error)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Raw>> {
        self.raw.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues on `stream` what `calls` asks NCCL for, as one group, between marks. An error aborts the communicator, and is left
    /// in `log`, too.
    ///
    /// # Safety
    /// What `calls` names is live, and free of conflicting accesses, until the stream has done it.
    pub(super) unsafe fn enqueue(
        &self,
        stream: &Stream,
        log: &FaultLog,
        calls: impl FnOnce(&Library, ncclComm_t, cudaStream_t) -> Result<(), nccl_sys::Error>,
    ) -> Result<()> {
        let Stream::Cuda(cuda) = stream else {
            return Err(flux_memory::Error::BackendMismatch { what: "an exchange by NCCL" }.into());
        };
        let mut lock = self.lock();
        let Some(&Raw(raw)) = lock.as_ref() else {
            let reason =
                log.exchange_failure().map_or("it was aborted".into(), |failure| failure.reason.clone());
            return Err(Error::Nccl { what: "use a communicator", reason });
        };
        let number = self.steps.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let slot = number as usize % MARKS;
        let budget = u64::try_from(log.budget().as_millis()).unwrap_or(u64::MAX);
        self.budgets[slot].store(budget, Ordering::Relaxed);
        self.device.bind()?;
        // SAFETY: the marks live as long as this, which outlives what is enqueued; the rest is the caller's promise.
        let launched = unsafe {
            stream.write_values(&[(self.mark(slot, 0), number)])?;
            self.group(log, |nccl| calls(nccl, raw, cuda.raw().cast()), raw)
        };
        if let Err(reason) = launched {
            self.abort_locked(&mut lock);
            log.fail_exchange(ExchangeFailure { peer: None, reason: reason.clone() })?;
            return Err(Error::Nccl { what: "send and receive", reason });
        }
        // SAFETY: as above.
        unsafe { stream.write_values(&[(self.mark(slot, 1), number)]) }.map_err(Error::from)
    }

    /// # Safety
    /// As for [`Communicator::enqueue`]; `raw` is this communicator.
    unsafe fn group(
        &self,
        log: &FaultLog,
        calls: impl FnOnce(&Library) -> Result<(), nccl_sys::Error>,
        raw: ncclComm_t,
    ) -> Result<(), String> {
        let nccl = self.nccl;
        let text = |error: nccl_sys::Error| error.to_string();
        // SAFETY: begins a group on this thread, which is ended below whatever happens.
        accepted(nccl, unsafe { (nccl.ncclGroupStart)() }).map_err(text)?;
        let called = calls(nccl);
        // SAFETY: ends the group.
        let ended = accepted(nccl, unsafe { (nccl.ncclGroupEnd)() });
        called.and(ended).map_err(text)?;
        // What follows on the stream must come behind the launch, which another thread of NCCL's may still be about to make.
        // SAFETY: the caller's promise.
        match unsafe { await_end(nccl, raw, log.budget()) } {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("NCCL did not launch within {:?}", log.budget())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// What the communicator has noticed by itself, if nobody uses it at this moment.
    pub(super) fn asynchronous_error(&self) -> Option<nccl_sys::Error> {
        let lock = self.raw.try_lock().ok()?;
        let Raw(raw) = lock.as_ref()?;
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: the communicator is alive; a place for the result.
        let asked = unsafe { (self.nccl.ncclCommGetAsyncError)(*raw, &raw mut state) };
        accepted(self.nccl, asked).and_then(|()| accepted(self.nccl, state)).err()
    }

    /// The steps that the stream has begun and not passed: where their marks are, their numbers, and how long each may take.
    pub(super) fn steps_in_progress(&self) -> impl Iterator<Item = (usize, u32, Duration)> {
        (0..MARKS).filter_map(|slot| {
            // SAFETY: words of the marks, written by streams with single 32-bit stores.
            let [begun, passed] = [0, 1].map(|which| unsafe {
                AtomicU32::from_ptr(self.mark(slot, which).as_ptr()).load(Ordering::Acquire)
            });
            let budget = Duration::from_millis(self.budgets[slot].load(Ordering::Relaxed));
            (begun != passed).then_some((slot, begun, budget))
        })
    }

    fn mark(&self, slot: usize, which: usize) -> Address {
        self.marks.address().add((2 * slot + which) * size_of::<u32>())
    }

    /// Ends the communicator, and its kernels: nothing is enqueued on it any more. False if somebody uses it at this moment.
    pub(super) fn abort(&self) -> bool {
        self.raw.try_lock().map(|mut lock| self.abort_locked(&mut lock)).is_ok()
    }

    fn abort_locked(&self, raw: &mut Option<Raw>) {
        let Some(Raw(raw)) = raw.take() else { return };
        // SAFETY: taken: nobody uses it from here on.
        let aborted = self.device.bind().map(|()| unsafe { (self.nccl.ncclCommAbort)(raw) });
        let aborted = aborted.map(|result| accepted(self.nccl, result));
        if let Ok(Err(error)) = &aborted {
            tracing::warn!(%error, "a NCCL communicator could not be aborted");
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // Not `ncclCommDestroy`, which waits for the peers'. Nothing is under way: operations wait for their streams before they
        // are dropped, and ranks leave a group together.
        let mut raw = self.lock();
        self.abort_locked(&mut raw);
    }
}

/// Whether what goes on in communicator `raw` has ended within `limit`.
///
/// # Safety
/// `raw` is a live communicator that no other thread uses.
unsafe fn await_end(nccl: &Library, raw: ncclComm_t, limit: Duration) -> Result<bool, nccl_sys::Error> {
    let begin = Instant::now();
    loop {
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: the caller's promise; a place for the result.
        nccl.check(unsafe { (nccl.ncclCommGetAsyncError)(raw, &raw mut state) })?;
        match nccl.check(state) {
            Err(error) if error.is_in_progress() => {}
            other => return other.map(|()| true),
        }
        match begin.elapsed() {
            elapsed if elapsed > limit => return Ok(false),
            elapsed if elapsed > SPIN => std::thread::sleep(Duration::from_micros(20)),
            _ => std::hint::spin_loop(),
        }
    }
}
