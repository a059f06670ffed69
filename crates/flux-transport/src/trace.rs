//! When each chunk moves: what a rank's transfer streams have done in its last call, if somebody wants to know.

use crate::link::Link;
use crate::{Chunk, DataTransfer, Result};
use flux_memory::{Address, Device, Stamp, Stream};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The last call's chunks on a rank's transfer streams. All memory is allocated when it is made.
#[derive(Debug)]
pub struct TransferLog {
    /// Before and after each copy.
    stamps: Vec<[Stamp; 2]>,
    moved: Mutex<Vec<Moved>>,
}

/// A chunk on its way, as it is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The rank that it comes from: whose rows they are, or one that passes them on.
    pub from: usize,
    /// The rank that it goes to.
    pub to: usize,
    /// The shard that it is a chunk of.
    pub shard: usize,
    /// Which of the rank's streams moves it: one of those that copy, or [`Moved::EXCHANGED`].
    pub lane: usize,
    /// Its size.
    pub bytes: usize,
    /// The number of the signal, among the receiver's gates, that is raised after it; none if nobody waits for it alone.
    pub signal: Option<usize>,
}

impl Moved {
    /// The stream on which a rank sends and receives.
    pub const EXCHANGED: usize = usize::MAX;
}

impl TransferLog {
    /// Room for calls that move at most `chunks` chunks.
    pub(crate) fn new(device: &Device, chunks: usize) -> Result<Self> {
        let pair = |_| Ok([Stamp::new(device)?, Stamp::new(device)?]);
        let stamps = (0..chunks).map(pair).collect::<Result<_>>()?;
        Ok(Self { stamps, moved: Mutex::new(Vec::with_capacity(chunks)) })
    }

    /// A call begins: what the one before has moved is forgotten.
    pub fn begin(&self) {
        self.moved().clear();
    }

    /// Shows `each` chunk that the last call has moved, with the stamps of its begin and its end, in the order of each
    /// stream. The streams have done all they were given.
    pub fn each(&self, mut each: impl FnMut(&Moved, &Stamp, &Stamp)) {
        for (moved, [begin, end]) in self.moved().iter().zip(&self.stamps) {
            each(moved, begin, end);
        }
    }

    /// The stamps of the next chunk; none if there are more than there is room for.
    pub(crate) fn next(&self, moved: Moved) -> Option<&[Stamp; 2]> {
        let mut all = self.moved();
        let stamps = self.stamps.get(all.len())?;
        all.push(moved);
        Some(stamps)
    }

    /// How many chunks have been noted.
    pub(crate) fn count(&self) -> usize {
        self.moved().len()
    }

    /// The stamps of a chunk that has been noted.
    pub(crate) fn stamps(&self, index: usize) -> Option<&[Stamp; 2]> {
        self.stamps.get(index)
    }

    fn moved(&self) -> MutexGuard<'_, Vec<Moved>> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// Moves `chunk` on the stream of its lane, as `transfer` does it, and logs it where there is a log.
    ///
    /// # Safety
    /// As for [`DataTransfer::move_chunk`].
    pub(crate) unsafe fn move_chunk(
        &self,
        transfer: &dyn DataTransfer,
        chunk: &Chunk,
        epoch: u32,
        moved: Moved,
    ) -> Result<()> {
        let stream = self.lane(moved.lane);
        if self.log.is_none() {
            // SAFETY: the caller's promise.
            return unsafe { transfer.move_chunk(stream, chunk, epoch) };
        }
        // The signal by itself, after the end was noted: nobody is to see it before.
        let silent = Chunk { signal: Address::NULL, ..*chunk };
        // SAFETY: the caller's promise.
        self.logged(moved, |stream| unsafe { transfer.move_chunk(stream, &silent, epoch) })?;
        if !chunk.signal.is_null() {
            // SAFETY: the caller's promise.
            unsafe { stream.write_values(&[(chunk.signal, epoch)])? };
        }
        Ok(())
    }

    /// Has `copy` enqueued on the stream of its lane, and logs when that begins and ends where there is a log.
    pub(crate) fn logged(&self, moved: Moved, copy: impl FnOnce(&Stream) -> Result<()>) -> Result<()> {
        let stream = self.lane(moved.lane);
        let Some([begin, end]) = self.log.as_ref().and_then(|log| log.next(moved)) else {
            return copy(stream);
        };
        begin.note(stream)?;
        copy(stream)?;
        Ok(end.note(stream)?)
    }
}
