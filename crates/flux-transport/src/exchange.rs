//! Sending and receiving between ranks that cannot address each other's memory.
//!
//! Where a rank can address its peer's memory, one side alone moves a chunk ([`crate::DataTransfer`]), and has to know when the
//! other is done with what was there before. Here both sides take part: in each *step* a rank sends to some peers, receives from
//! some into its own memory, and raises its own signals for what has come. All of that is enqueued on one stream of its own,
//! behind whatever read the memory before; so no acknowledgements are needed.
//!
//! # Why no rank waits for ever
//!
//! All ranks take the same steps of the same calls in the same order, and in a step each rank receives exactly what its peers
//! send to it in the same step of theirs. A step begins when the rank's stream has come to it, which takes: the step before;
//! the rank's own calls before; and, where a GEMM computes what is to be sent, that GEMM's tiles, which wait for nothing but the
//! acknowledgements of the call before. No step waits for a copy to or from a peer that is addressed; such copies may wait for a
//! step (what has come from another node is passed on within this one), on a stream of their own. So the earliest step that has
//! not ended on all ranks can begin on all of them, and ends: sends and receives of a step go on at the same time. By induction
//! so do all. What does not come in time, for a peer has gone, is bounded by the rank's budget ([`FaultLog`]).
//!
//! Where a rank can put into a peer's memory without its help, the receiver still says in each step that its memory is free
//! ([`crate::PutExchange`]): so all that is said here holds there too.

use crate::trace::Moved;
use crate::{Put, Result, TransferLog};
use flux_memory::{Address, Device, Event, FaultLog, Stream};
use std::fmt::Debug;
use std::sync::Arc;

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
    /// What came in the last step may be passed on.
    pub(crate) came: Event,
    pub(crate) faults: Arc<FaultLog>,
}

impl ExchangeLink {
    pub(crate) fn new(device: &Device, with: &Arc<dyn Exchange>, faults: &Arc<FaultLog>) -> Result<Self> {
        Ok(Self {
            with: Arc::clone(with),
            stream: device.transfer_stream()?,
            end: Event::new(device)?,
            came: Event::new(device)?,
            faults: Arc::clone(faults),
        })
    }

    /// Takes a step, which `log`, if there is one, notes as `moved`.
    ///
    /// # Safety
    /// As for [`Exchange::step`].
    pub(crate) unsafe fn step(
        &self,
        (log, moved): (Option<&TransferLog>, Option<Moved>),
        sends: &[Message],
        receives: &[Message],
    ) -> Result<()> {
        if sends.iter().chain(receives).all(|message| message.bytes == 0) {
            return Ok(());
        }
        let stamps = log.zip(moved).and_then(|(log, moved)| log.next(moved));
        if let Some([begin, _]) = stamps {
            begin.note(&self.stream)?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.with.step(&self.stream, &self.faults, sends, receives)? };
        if let Some([_, end]) = stamps {
            end.note(&self.stream)?;
        }
        Ok(())
    }
}
