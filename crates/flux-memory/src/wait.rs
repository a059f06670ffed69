//! Every wait is bounded.
//!
//! The first wait of a rank that outlives its budget leaves a [`Fault`] in the rank's [`FaultLog`] and raises its flag;
//! all other waits of that rank then give up at once, so that everything enqueued ends, with a wrong result and a
//! recorded reason. Kernels and host threads watch the budget themselves; for a wait of a GPU's stream, which has no
//! time limit, the [watchdog](crate::watchdog) does.

use crate::cuda::CudaStream;
use crate::cuda::stream::Priority;
use crate::{Address, Buffer, Device, Placement, Result, watchdog};
use bytemuck::{Pod, Zeroable};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// A wait that was not satisfied in time. Laid out as in `kernels/params.cuh`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Fault {
    /// 0: none, 1: written.
    pub state: u32,
    /// The rank that waited.
    pub rank: u32,
    /// The rank it waited for.
    pub peer: u32,
    /// The number of the operation.
    pub op: u32,
    /// Row tile in the upper half, column tile in the lower; [`WaitSite::NO_TILE`] if a stream waited.
    pub tile: u32,
    /// Index of the signal.
    pub signal: u32,
    /// What the signal showed.
    pub seen: u32,
    /// What it was waited to reach.
    pub wanted: u32,
}

/// What a kernel needs to bound its waits. Laid out as in `kernels/params.cuh`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct WaitBound {
    /// A [`Fault`] in host memory that the device can write.
    pub record: Address,
    /// A word of the device, non-zero once a wait of this rank has expired and is recorded; the word behind it elects who
    /// records.
    pub flag: Address,
    /// How long a wait may last, in nanoseconds.
    pub budget_ns: u64,
    /// The rank that waits.
    pub rank: u32,
    /// The number of the operation, for the record.
    pub op: u32,
}

/// Who is waited for, and for what: the words of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitSite {
    /// The rank that raises the signal.
    pub peer: u32,
    /// Row tile in the upper half, column tile in the lower.
    pub tile: u32,
    /// Index of the signal.
    pub signal: u32,
}

impl WaitSite {
    /// The wait is of a stream, not of a tile.
    pub const NO_TILE: u32 = u32::MAX;
}

/// What was to be sent to a peer, or received from it, and was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeFailure {
    /// The peer, if it is known which.
    pub peer: Option<usize>,
    /// What happened, for people.
    pub reason: String,
}

/// One rank's record of its first expired wait.
#[derive(Debug)]
pub struct FaultLog {
    rank: u32,
    budget: Duration,
    record: Arc<Record>,
}

/// What all handles to a log share.
#[derive(Debug)]
struct Record {
    /// A [`Fault`] that kernels write, and one word of scratch for the watchdog.
    fault: Buffer,
    /// The flag, and behind it the word by which one writer of the record is elected.
    flag: Buffer,
    from_watchdog: Mutex<Option<Fault>>,
    /// A rank whose process has gone: nothing is waited for any more.
    lost: OnceLock<usize>,
    /// Nothing more can be sent to peers and received from them: likewise.
    exchange_failed: OnceLock<ExchangeFailure>,
    /// Where the watchdog reads and writes signals while the rank's other streams are stuck.
    rescue: Option<CudaStream>,
}

impl FaultLog {
    /// A log for `rank`, whose waits may each last `budget`.
    pub fn new(device: &Device, rank: u32, budget: Duration) -> Result<Arc<Self>> {
        let record = Buffer::allocate(device, size_of::<Fault>() + size_of::<u32>(), Placement::PinnedHost)?;
        let flag = Buffer::allocate(device, 2 * size_of::<u32>(), Placement::Device)?;
        let rescue = device.as_cuda().map(|gpu| CudaStream::new(gpu, Priority::Rescue)).transpose()?;
        let record = Record {
            fault: record,
            flag,
            from_watchdog: Mutex::new(None),
            lost: OnceLock::new(),
            exchange_failed: OnceLock::new(),
            rescue,
        };
        Ok(Arc::new(Self { rank, budget, record: Arc::new(record) }))
    }

    /// The same log, for waits that may each last `budget`. Who waits for a rank that may itself be waiting is to be more
    /// patient than that one: then the fault names the signal that was lost, not what its loss held up.
    pub fn with_budget(&self, budget: Duration) -> Arc<Self> {
        Arc::new(Self { rank: self.rank, budget, record: Arc::clone(&self.record) })
    }

    /// What operation `op`'s kernels need to bound their waits.
    pub fn bound(&self, op: u32) -> WaitBound {
        WaitBound {
            record: self.record.fault.address(),
            flag: self.record.flag.address(),
            budget_ns: u64::try_from(self.budget.as_nanos()).unwrap_or(u64::MAX),
            rank: self.rank,
            op,
        }
    }

    /// How long a wait may last.
    pub const fn budget(&self) -> Duration {
        self.budget
    }

    /// The first wait that expired, if one has. Looks only at host memory.
    pub fn fault(&self) -> Option<Fault> {
        let record: *mut Fault = self.record.fault.address().as_ptr();
        // SAFETY: the record is host memory of this log; whoever writes it stores `state` last, with release, and
        // writes it once, so after the acquire it does not change any more.
        let from_kernel = unsafe {
            (AtomicU32::from_ptr(&raw mut (*record).state).load(Ordering::Acquire) != 0)
                .then(|| record.read_volatile())
        };
        from_kernel.or_else(|| *self.record.from_watchdog.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The rank that was found to be lost, if one was: all waits of this rank have given up, or will at once.
    pub fn lost_rank(&self) -> Option<usize> {
        self.record.lost.get().copied()
    }

    /// What could not be sent or received, if something could not: all waits of this rank have given up, or will at once.
    pub fn exchange_failure(&self) -> Option<&ExchangeFailure> {
        self.record.exchange_failed.get()
    }

    /// Whether nothing is waited for any more: a wait has expired, a rank is lost, or an exchange has failed.
    pub fn has_given_up(&self) -> bool {
        self.lost_rank().is_some() || self.exchange_failure().is_some() || self.fault().is_some()
    }

    /// Ends all waits of this rank, now and later, because the process of `lost` has gone. Only the first loss counts.
    pub fn give_up(&self, lost: usize) -> Result<()> {
        if self.record.lost.set(lost).is_err() {
            return Ok(());
        }
        self.raise_flag()
    }

    /// Ends all waits of this rank, now and later, because of `failure`. Only the first one counts.
    pub fn fail_exchange(&self, failure: ExchangeFailure) -> Result<()> {
        if self.record.exchange_failed.set(failure).is_err() {
            return Ok(());
        }
        self.raise_flag()
    }

    fn raise_flag(&self) -> Result<()> {
        let flag = self.record.flag.address();
        match &self.record.rescue {
            // SAFETY: the flag belongs to this log.
            Some(stream) => unsafe { stream.write_values(&[(flag, 1)]) },
            None => {
                // SAFETY: as above; on the host, flags are only ever accessed as atomics.
                unsafe { AtomicU32::from_ptr(flag.as_ptr()) }.store(1, Ordering::Release);
                Ok(())
            }
        }
    }

    /// A place in a stream that waits for `signals`. It is to be dropped before the signals are.
    pub fn wait_point(
        self: &Arc<Self>,
        op: u32,
        signals: Vec<(Address, WaitSite)>,
    ) -> Result<Arc<WaitPoint>> {
        let mut marks = self.marks(1)?;
        self.wait_point_with(op, signals, marks.pop())
    }

    /// As [`FaultLog::wait_point`], a place for each element of `signals`: pinned memory takes long to allocate, and this
    /// allocates it once.
    pub fn wait_points(
        self: &Arc<Self>,
        op: u32,
        signals: Vec<Vec<(Address, WaitSite)>>,
    ) -> Result<Vec<Arc<WaitPoint>>> {
        let marks = self.marks(signals.len())?;
        let mut marks = marks.into_iter();
        signals.into_iter().map(|signals| self.wait_point_with(op, signals, marks.next())).collect()
    }

    /// Marks for `count` places; none on the host, which needs none.
    fn marks(&self, count: usize) -> Result<Vec<Marks>> {
        let Some(stream) = self.record.rescue.as_ref().filter(|_| count > 0) else { return Ok(Vec::new()) };
        let device = Device::Cuda(Arc::clone(stream.device()));
        let bytes = count.saturating_mul(Marks::BYTES);
        let memory = Arc::new(Buffer::allocate(&device, bytes, Placement::PinnedHost)?);
        let one = |index: usize| {
            let before = memory.address().add(index * Marks::BYTES);
            Marks { before, after: before.add(size_of::<u32>()), _memory: Arc::clone(&memory) }
        };
        Ok((0..count).map(one).collect())
    }

    fn wait_point_with(
        self: &Arc<Self>,
        op: u32,
        signals: Vec<(Address, WaitSite)>,
        marks: Option<Marks>,
    ) -> Result<Arc<WaitPoint>> {
        let watched = marks.is_some();
        let place = Arc::new(WaitPlace { log: Arc::clone(self), op, signals, marks });
        if watched {
            watchdog::watch(&place)?;
        }
        Ok(Arc::new(WaitPoint { place, watched }))
    }

    pub(crate) fn rescue(&self) -> Option<(&CudaStream, Address, Address)> {
        let scratch = self.record.fault.address().add(size_of::<Fault>());
        self.record.rescue.as_ref().map(|stream| (stream, scratch, self.record.flag.address()))
    }

    pub(crate) fn report(&self, fault: Fault) {
        self.record.from_watchdog.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault);
    }
}

/// A place in a stream where it waits, call after call, for the same signals.
#[derive(Debug)]
pub struct WaitPoint {
    place: Arc<WaitPlace>,
    watched: bool,
}

impl WaitPoint {
    /// The signals, and what to say if one is not raised.
    pub fn signals(&self) -> &[(Address, WaitSite)] {
        &self.place.signals
    }

    pub(crate) fn place(&self) -> &WaitPlace {
        &self.place
    }
}

impl Drop for WaitPoint {
    fn drop(&mut self) {
        // Afterwards the watchdog neither touches the signals nor owns any of the memory.
        if self.watched {
            watchdog::forget(&self.place);
        }
    }
}

/// What the watchdog needs of a wait point.
#[derive(Debug)]
pub(crate) struct WaitPlace {
    log: Arc<FaultLog>,
    op: u32,
    pub(crate) signals: Vec<(Address, WaitSite)>,
    marks: Option<Marks>,
}

/// Two words of host memory in which a GPU's stream leaves what it is about to wait for, and what it has passed.
#[derive(Debug)]
pub(crate) struct Marks {
    pub(crate) before: Address,
    pub(crate) after: Address,
    /// What they lie in.
    _memory: Arc<Buffer>,
}

impl Marks {
    const BYTES: usize = 2 * size_of::<u32>();
}

impl WaitPlace {
    pub(crate) fn bound(&self) -> WaitBound {
        self.log.bound(self.op)
    }

    pub(crate) fn log(&self) -> &FaultLog {
        &self.log
    }

    pub(crate) const fn marks(&self) -> Option<&Marks> {
        self.marks.as_ref()
    }

    /// What the stream waits for at this moment; `None` if it is not at this point.
    pub(crate) fn waiting_for(&self) -> Option<u32> {
        let marks = self.marks()?;
        // SAFETY: the marks are host memory of this place, written by the stream with single 32-bit stores.
        let (before, after) = unsafe {
            let after = AtomicU32::from_ptr(marks.after.as_ptr()).load(Ordering::Acquire);
            (AtomicU32::from_ptr(marks.before.as_ptr()).load(Ordering::Acquire), after)
        };
        (before != after).then_some(before)
    }
}
