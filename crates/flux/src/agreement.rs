//! What all ranks must agree on, so that ranks that disagree get an error instead of each other's rows.

use crate::{Error, Result};
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

/// The terms of recent calls.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    recent: Mutex<[(u32, Terms); Self::CALLS]>,
}

impl Agreement {
    /// Ranks further apart than this many calls are not compared.
    const CALLS: usize = 32;

    /// The ranks and epochs of `calls` make calls on `terms`: all are compared before any is noted.
    pub(crate) fn check(
        &self,
        calls: impl Iterator<Item = (usize, u32)> + Clone,
        terms: Terms,
    ) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_disagree_are_told() {
        let agreement = Agreement::default();
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
