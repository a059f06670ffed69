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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
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

/// What a communicator's kernels may take.
#[derive(Clone, Copy, Debug)]
pub(super) enum Extent {
    /// Bounded in its SMs, and without clusters of blocks: those would need neighbouring SMs to be free at the same time, which
    /// beside a GEMM nobody can promise.
    BesideGemms,
    /// All that NCCL wants: nothing runs beside.
    Alone,
}

impl Extent {
    fn config(self) -> ncclConfig_t {
        let config = ncclConfig_t { blocking: 0, ..NCCL_CONFIG_INITIALIZER };
        match self {
            Extent::BesideGemms => ncclConfig_t {
                cgaClusterSize: 0,
                minCTAs: 1,
                maxCTAs: c_int::try_from(super::SMS_FOR_NCCL).unwrap_or(1),
                ..config
            },
            Extent::Alone => config,
        }
    }
}

/// One rank's part in what several ranks of this process enqueue together.
#[derive(Clone, Copy)]
pub(super) struct Member<'a> {
    pub(super) communicator: &'a Communicator,
    pub(super) stream: &'a Stream,
    pub(super) log: &'a FaultLog,
}

impl Communicator {
    /// Joins communicator `id`, which all ranks do at the same time.
    pub(super) fn new(
        nccl: &'static Library,
        device: &Device,
        id: ncclUniqueId,
        (rank, world_size): (usize, usize),
        extent: Extent,
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
        let mut config = extent.config();
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

    /// Begins a step on `stream`: notes its budget, and has the stream mark that it has come to it. The step's slot and number.
    fn begin_step(&self, stream: &Stream, budget: Duration) -> Result<(usize, u32)> {
        let number = self.steps.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let slot = number as usize % MARKS;
        let budget = u64::try_from(budget.as_millis()).unwrap_or(u64::MAX);
        self.budgets[slot].store(budget, Ordering::Relaxed);
        self.device.bind()?;
        // SAFETY: the marks live as long as this, which outlives what is enqueued.
        unsafe { stream.write_values(&[(self.mark(slot, 0), number)])? };
        Ok((slot, number))
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Option<Raw>>> {
        match self.raw.try_lock() {
            Ok(lock) => Some(lock),
            Err(TryLockError::Poisoned(lock)) => Some(lock.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// What the communicator has noticed by itself, if nobody uses it at this moment.
    pub(super) fn asynchronous_error(&self) -> Option<nccl_sys::Error> {
        let lock = self.try_lock()?;
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
        self.try_lock().map(|mut lock| self.abort_locked(&mut lock)).is_some()
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

/// Enqueues what `call` asks NCCL for, for each of `members` in turn, as one group: nobody waits for a peer of the same thread. On
/// each stream it goes between marks. An error aborts all of the communicators, and is left in the logs, too.
///
/// # Safety
/// What `call` names is live, and free of conflicting accesses, until the streams have done it.
pub(super) unsafe fn enqueue(
    members: &[Member<'_>],
    what: &'static str,
    mut call: impl FnMut(usize, &Library, ncclComm_t, cudaStream_t) -> Result<(), nccl_sys::Error>,
) -> Result<()> {
    let mut locks: Vec<_> = members.iter().map(|member| member.communicator.lock()).collect();
    let mut targets = Vec::with_capacity(members.len());
    for (Member { stream, log, .. }, lock) in members.iter().zip(&locks) {
        let Stream::Cuda(cuda) = stream else {
            return Err(flux_memory::Error::BackendMismatch { what: "an exchange by NCCL" }.into());
        };
        let Some(Raw(raw)) = **lock else {
            let reason =
                log.exchange_failure().map_or("it was aborted".into(), |failure| failure.reason.clone());
            return Err(Error::Nccl { what: "use a communicator", reason });
        };
        targets.push((raw, cuda.raw().cast()));
    }
    let mut steps = Vec::with_capacity(members.len());
    for Member { communicator, stream, log } in members {
        steps.push(communicator.begin_step(stream, log.budget())?);
    }
    let Some(Member { communicator: Communicator { nccl, .. }, .. }) = members.first() else { return Ok(()) };
    let calls = |nccl: &Library| {
        let mut of_member = targets.iter().enumerate();
        of_member.try_for_each(|(index, &(raw, stream))| call(index, nccl, raw, stream))
    };
    let limit = members.iter().map(|member| member.log.budget()).max().unwrap_or_default();
    // SAFETY: the caller's promise; the communicators are locked.
    if let Err(reason) = unsafe { group(nccl, targets.iter().map(|&(raw, _)| raw), limit, calls) } {
        let failure = ExchangeFailure { peer: None, reason: reason.clone() };
        let told = members.iter().map(|member| member.log.fail_exchange(failure.clone()));
        let told: Vec<_> = told.collect();
        for (Member { communicator, .. }, lock) in members.iter().zip(&mut locks) {
            communicator.abort_locked(lock);
        }
        told.into_iter().collect::<Result<(), _>>()?;
        return Err(Error::Nccl { what, reason });
    }
    for (Member { communicator, stream, .. }, (slot, number)) in members.iter().zip(steps) {
        // SAFETY: as in `begin_step`.
        unsafe { stream.write_values(&[(communicator.mark(slot, 1), number)])? };
    }
    Ok(())
}

/// Makes `calls` as one group, and waits until NCCL has launched it.
///
/// # Safety
/// As for [`enqueue`]; `communicators` are those that are called, and no other thread uses them.
unsafe fn group(
    nccl: &Library,
    mut communicators: impl Iterator<Item = ncclComm_t>,
    limit: Duration,
    calls: impl FnOnce(&Library) -> Result<(), nccl_sys::Error>,
) -> Result<(), String> {
    let text = |error: nccl_sys::Error| error.to_string();
    // SAFETY: begins a group on this thread, which is ended below whatever happens.
    accepted(nccl, unsafe { (nccl.ncclGroupStart)() }).map_err(text)?;
    let called = calls(nccl);
    // SAFETY: ends the group.
    let ended = accepted(nccl, unsafe { (nccl.ncclGroupEnd)() });
    called.and(ended).map_err(text)?;
    // What follows on the stream must come behind the launch, which another thread of NCCL's may still be about to make.
    // SAFETY: the caller's promise.
    communicators.try_for_each(|raw| match unsafe { await_end(nccl, raw, limit) } {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("NCCL did not launch within {limit:?}")),
        Err(error) => Err(error.to_string()),
    })
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
