//! Sending and receiving between ranks that cannot address each other's memory.
//!
//! Where a rank can address its peer's memory, one side alone moves a chunk ([`crate::DataTransfer`]), and has to know when the
//! other is done with what was there before. Here both sides take part: in each *step* a rank sends to some peers, receives from
//! some into its own memory, and raises its own signals for what has come. All of that is enqueued on one stream of its own,
//! behind whatever read the memory before; so no acknowledgements are needed.
//!
//! # Why no rank waits for ever
//!
//! All ranks take the steps of one schedule ([`flux_swizzle::Schedule`]) in the same order, by phase and step, and in a step each
//! rank receives exactly what its peers send to it in the same step of theirs. A step begins when the rank's stream has come to
//! it, which takes: the step before; the rank's own calls before; where a GEMM computes what is to be sent, that GEMM's tiles,
//! which wait for nothing but the acknowledgements of the call before; and, where what is sent has come from a third rank, its
//! arrival, which the schedule has in an earlier step, be it a copy or an exchange. Copies wait for acknowledgements of the call
//! before, and for what is earlier in the schedule, too. So the earliest transfer of the schedule that has not ended can begin on
//! all ranks that take part, and ends: sends and receives of a step go on at the same time. By induction so do all. What does not
//! come in time, for a peer has gone, is bounded by the rank's budget ([`FaultLog`]).
//!
//! Where a rank can put into a peer's memory without its help, the receiver still says in each step that its memory is free
//! ([`crate::PutExchange`]): so all that is said here holds there too.

use crate::link::raise_words;
use crate::trace::Moved;
use crate::{Put, Result, TransferLog};
use flux_memory::{Address, Device, Event, FaultLog, Stream};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What goes to a peer, or comes from it, in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The peer.
    pub peer: usize,
    /// Where it is, or is to be, in the rank's own memory.
    pub memory: Address,
    /// Of what is sent: the place in the rank's own symmetric memory that corresponds to where it goes in the peer's. By this the
    /// sender alone knows where that is. Of what comes: as `memory`.
    pub place: Address,
    /// Its size, the same at both ends.
    pub bytes: usize,
}

/// One rank's way to send to peers, and to receive from them.
pub trait Exchange: Debug + Send + Sync {
    /// Enqueues a step on `stream`: all `sends` and all `receives`, at the same time. Messages between two ranks come in the order
    /// in which they were given, in a step and from step to step. A message of no bytes is none.
    ///
    /// It is bounded by the budget of `log`, and ends at once when that [has given up](FaultLog::has_given_up); what goes wrong
    /// later, when the stream gets there, is left in `log`.
    ///
    /// # Safety
    /// The memory is live, reachable by the stream's device, and free of conflicting accesses until the stream has done this. All
    /// ranks take the same steps in the same order.
    unsafe fn step(
        &self,
        stream: &Stream,
        log: &Arc<FaultLog>,
        sends: &[Message],
        receives: &[Message],
    ) -> Result<()>;

    /// What it puts by, if it does: then only symmetric memory can be sent from.
    fn put(&self) -> Option<&Arc<dyn Put>> {
        None
    }

    /// Enqueues, as one operation that is made for it: every rank's `bytes` bytes at `own`, one behind the other in rank order, at
    /// `all` of every rank. False, with nothing done, if there is no such operation; that is the same on all ranks.
    ///
    /// # Safety
    /// As for [`Exchange::step`].
    unsafe fn all_gather(
        &self,
        _stream: &Stream,
        _log: &Arc<FaultLog>,
        _own: Address,
        _all: Address,
        _bytes: usize,
    ) -> Result<bool> {
        Ok(false)
    }
}

/// A rank's exchange in an operation, on a stream of its own.
#[derive(Debug)]
pub(crate) struct ExchangeLink {
    pub(crate) with: Arc<dyn Exchange>,
    pub(crate) stream: Stream,
    /// The end of a call's steps.
    pub(crate) end: Event,
    pub(crate) faults: Arc<FaultLog>,
    /// A step, while it is put together: a call allocates nothing.
    step: Mutex<Step>,
}

/// All that goes and comes at the same time.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) sends: Vec<Message>,
    pub(crate) receives: Vec<Message>,
    /// What a trace says of it.
    pub(crate) moved: Vec<Moved>,
    /// The signals that are raised behind it.
    pub(crate) raised: Vec<Address>,
}

impl ExchangeLink {
    pub(crate) fn new(device: &Device, with: &Arc<dyn Exchange>, faults: &Arc<FaultLog>) -> Result<Self> {
        Ok(Self {
            with: Arc::clone(with),
            stream: device.transfer_stream()?,
            end: Event::new(device)?,
            faults: Arc::clone(faults),
            step: Mutex::default(),
        })
    }

    /// An empty step, with the room that steps took before.
    pub(crate) fn next(&self) -> MutexGuard<'_, Step> {
        let mut step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        step.sends.clear();
        step.receives.clear();
        step.moved.clear();
        step.raised.clear();
        step
    }

    /// Takes `step`, notes it in `log`, if there is one, and raises its signals to `epoch`.
    ///
    /// # Safety
    /// As for [`Exchange::step`]; the signals live until the stream has done this.
    pub(crate) unsafe fn take(&self, step: &Step, log: Option<&TransferLog>, epoch: u32) -> Result<()> {
        let all = || step.sends.iter().chain(&step.receives);
        if all().any(|message| message.bytes > 0) {
            let noted = log.map_or(0, TransferLog::count);
            let stamps =
                || log.into_iter().flat_map(|log| (noted..log.count()).filter_map(|at| log.stamps(at)));
            for [begin, _] in
                log.into_iter().flat_map(|log| step.moved.iter().filter_map(|&moved| log.next(moved)))
            {
                begin.note(&self.stream)?;
            }
            // SAFETY: the caller's promise.
            unsafe { self.with.step(&self.stream, &self.faults, &step.sends, &step.receives)? };
            stamps().try_for_each(|[_, end]| end.note(&self.stream))?;
        }
        // SAFETY: as above.
        unsafe { raise_words(&self.stream, step.raised.iter().copied(), epoch) }
    }
}
