//! When each chunk moves: what a rank's transfer stream has done in its last call, if somebody wants to know.

use crate::link::Link;
use crate::{Chunk, DataTransfer, Result};
use flux_memory::{Address, Device, Stamp};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The last call's chunks on one transfer stream. All memory is allocated when it is made.
#[derive(Debug)]
pub struct TransferLog {
    /// Before and after each copy.
    stamps: Vec<[Stamp; 2]>,
    moved: Mutex<Vec<Moved>>,
}

/// A chunk on its way, as it is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The rank that it comes from.
    pub from: usize,
    /// The rank that it goes to.
    pub to: usize,
    /// Its size.
    pub bytes: usize,
    /// The number of the signal, among the receiver's gates, that is raised after it; none if nobody waits for it alone.
    pub signal: Option<usize>,
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

    /// Shows `each` chunk that the last call has moved, with the stamps of its begin and its end, in the order of the
    /// stream. The stream has done all it was given.
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

    fn moved(&self) -> MutexGuard<'_, Vec<Moved>> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// Moves `chunk` on the transfer stream, as `transfer` does it, and logs it where there is a log.
    ///
    /// # Safety
    /// As for [`DataTransfer::move_chunk`].
    pub(crate) unsafe fn move_chunk(
        &self,
        transfer: &dyn DataTransfer,
        chunk: &Chunk,
        epoch: u32,
        (from, to, signal): (usize, usize, Option<usize>),
    ) -> Result<()> {
        let moved = Moved { from, to, bytes: chunk.bytes, signal };
        let Some([begin, end]) = self.log.as_ref().and_then(|log| log.next(moved)) else {
            // SAFETY: the caller's promise.
            return unsafe { transfer.move_chunk(&self.transfers, chunk, epoch) };
        };
        // The signal by itself, after the end was noted: nobody is to see it before.
        let silent = Chunk { signal: Address::NULL, ..*chunk };
        begin.note(&self.transfers)?;
        // SAFETY: the caller's promise.
        unsafe { transfer.move_chunk(&self.transfers, &silent, epoch)? };
        end.note(&self.transfers)?;
        if !chunk.signal.is_null() {
            // SAFETY: the caller's promise.
            unsafe { self.transfers.write_values(&[(chunk.signal, epoch)])? };
        }
        Ok(())
    }
}
