//! What all ranks must agree on, so that ranks that disagree get an error instead of each other's rows.

use crate::{Error, Result};
use flux_memory::{Placement, SymmetricBuffer, SymmetricSpace};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What the parts of a call must have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Rows of the whole A, or C.
    pub(crate) m: usize,
    /// Whether scales travel with the rows.
    pub(crate) row_scales: bool,
}

impl Terms {
    /// These are of `rank`, `other` of another one.
    pub(crate) fn check(self, rank: usize, other: Self) -> Result<()> {
        if self.m != other.m {
            return Err(Error::DifferentRows { rank, m: self.m, other: other.m });
        }
        if self.row_scales != other.row_scales {
            return Err(Error::DifferentScales { rank, has: self.row_scales });
        }
        Ok(())
    }
}

/// The terms of recent calls. Ranks on different nodes, and ranks that are more than [`Agreement::CALLS`] calls apart, are not
/// compared: if such ranks disagree, the waits of one expire, as they do if a rank makes another call than its peers. Nothing is
/// written outside of the operation's memory either way: each rank's call was checked against what that has room for.
#[derive(Debug)]
pub(crate) struct Agreement {
    recent: Mutex<[(u32, Terms); Self::CALLS]>,
    /// Only among processes.
    board: Option<Board>,
}

impl Agreement {
    const CALLS: usize = 32;

    /// For calls of the ranks of `space`; collective, as is every allocation in it.
    pub(crate) fn new(space: &SymmetricSpace) -> Result<Self> {
        let board = space.peers().map(|peers| Board::new(space, peers.rank())).transpose()?;
        Ok(Self { recent: Mutex::default(), board })
    }

    /// The ranks and epochs of `calls` make calls on `terms`: all are compared before any is noted.
    pub(crate) fn check(
        &self,
        calls: impl Iterator<Item = (usize, u32)> + Clone,
        terms: Terms,
    ) -> Result<()> {
        if let Some(board) = &self.board {
            return calls.into_iter().try_for_each(|(_, epoch)| board.post(epoch, terms));
        }
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        for (rank, epoch) in calls.clone() {
            let (seen, other) = recent[epoch as usize % Self::CALLS];
            if seen == epoch {
                terms.check(rank, other)?;
            }
        }
        for (_, epoch) in calls {
            let entry = &mut recent[epoch as usize % Self::CALLS];
            if epoch > entry.0 {
                *entry = (epoch, terms);
            }
        }
        Ok(())
    }
}

/// Where each process puts up the terms of its rank's recent calls, for its peers to read. In memory of the host, whatever the
/// ranks run on.
#[derive(Debug)]
struct Board {
    /// Of each rank, a word for each call: the epoch in its upper half, the terms in its lower.
    words: SymmetricBuffer,
    rank: usize,
    world_size: usize,
}

impl Board {
    fn new(space: &SymmetricSpace, rank: usize) -> Result<Self> {
        let bytes = Agreement::CALLS * size_of::<u64>();
        let words = SymmetricBuffer::allocate(space.on_host(), bytes, Placement::Device)?;
        Ok(Self { words, rank, world_size: space.world_size() })
    }

    /// Puts up the terms of this rank's call `epoch`, unless a peer has put up others: then the call is not made.
    fn post(&self, epoch: u32, terms: Terms) -> Result<()> {
        // Up first: of two that put up their terms at the same time, at least one sees the other's.
        let Some(own) = self.word(self.rank, epoch) else { return Ok(()) };
        own.store(encoded(epoch, terms), Ordering::SeqCst);
        for peer in (0..self.world_size).filter(|&peer| peer != self.rank) {
            // Ranks of other nodes cannot be looked at.
            let Some(word) = self.word(peer, epoch) else { continue };
            let (seen, theirs) = decoded(word.load(Ordering::SeqCst));
            if seen == epoch
                && let Err(refused) = terms.check(self.rank, theirs)
            {
                own.store(0, Ordering::SeqCst);
                return Err(refused);
            }
        }
        Ok(())
    }

    fn word(&self, rank: usize, epoch: u32) -> Option<&AtomicU64> {
        let words = Some(self.words.address(rank)).filter(|words| !words.is_null())?;
        let word = words.add(epoch as usize % Agreement::CALLS * size_of::<u64>());
        // SAFETY: an aligned word of the board, which lives as long as this, and is only ever accessed as atomics.
        Some(unsafe { AtomicU64::from_ptr(word.as_ptr()) })
    }
}

/// Extents are such as the kernels can count: 31 bits.
fn encoded(epoch: u32, terms: Terms) -> u64 {
    u64::from(epoch) << 32 | (terms.m as u64 & 0x7fff_ffff) << 1 | u64::from(terms.row_scales)
}

#[allow(clippy::cast_possible_truncation)] // each half is a word of its own
fn decoded(word: u64) -> (u32, Terms) {
    ((word >> 32) as u32, Terms { m: (word as u32 >> 1) as usize, row_scales: word & 1 != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_fit_into_a_word() {
        for (epoch, m, row_scales) in
            [(0, 0, false), (1, 7, true), (i32::MAX.cast_unsigned(), i32::MAX as usize, true)]
        {
            let terms = Terms { m, row_scales };
            assert_eq!(decoded(encoded(epoch, terms)), (epoch, terms));
        }
    }

    #[test]
    fn ranks_that_disagree_are_told() {
        let agreement = Agreement::new(&SymmetricSpace::here(&[])).unwrap();
        let check = |rank, epoch, m| {
            agreement.check(std::iter::once((rank, epoch)), Terms { m, row_scales: m % 2 == 0 })
        };
        for epoch in 1..100 {
            check(0, epoch, epoch as usize).unwrap();
        }
        check(1, 99, 99).unwrap();
        assert!(matches!(check(1, 98, 7), Err(Error::DifferentRows { rank: 1, m: 7, other: 98 })));
        let unscaled = Terms { m: 98, row_scales: false };
        let refused = agreement.check(std::iter::once((1, 98)), unscaled);
        assert!(matches!(refused, Err(Error::DifferentScales { rank: 1, has: false })));
        check(1, 2, 7).unwrap(); // too long ago to compare
        // One of several disagrees: none is noted.
        let several = [(0, 100), (1, 98)].into_iter();
        let terms = Terms { m: 7, row_scales: false };
        assert!(matches!(agreement.check(several, terms), Err(Error::DifferentRows { rank: 1, .. })));
        check(0, 100, 8).unwrap();
    }
}
