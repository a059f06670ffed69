//! How many shards are swept together.

use alloc::vec::Vec;
use core::ops::Range;
use core::{fmt, str::FromStr};

/// How many shards a GEMM sweeps together: all their rows by the first columns, then all by the next ones.
///
/// A sweep reads the whole weight once, from memory if that is larger than the L2 cache: of eight shards that are swept one by one, each
/// so low that a multiplication hardly takes longer than reading the weight, every one pays for it. But what is swept together has to
/// have come, or leaves when all of it is complete. So the sweeps of an AllGather begin with the rank's own shard, and grow while others
/// come: each takes as many shards as all before it, times [`growth`](Self::growth), and at least one. Those of a ReduceScatter are the same
/// backwards: the rank's own shard is last, by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sweeps {
    growth: u8,
}

impl Sweeps {
    /// Each shard by itself.
    pub const ONE_BY_ONE: Self = Self::growing(0);

    /// The rank's own shard, then all others together.
    pub const TWO: Self = Self::growing(u8::MAX);

    /// Each sweep takes as many shards as all before it, times this, and at least one.
    pub const fn growing(growth: u8) -> Self {
        Self { growth }
    }

    /// How many times as many shards as all before it a sweep takes.
    pub const fn growth(self) -> u8 {
        self.growth
    }

    /// The sweeps of so many shards, as ranges of their places in the order of an AllGather: 0 is the rank's own.
    pub fn of(self, shards: usize) -> impl Iterator<Item = Range<usize>> + Clone {
        let from = move |begin: usize| {
            let more = begin.saturating_mul(usize::from(self.growth)).max(1);
            (begin < shards).then(|| begin..begin.saturating_add(more).min(shards))
        };
        core::iter::successors(from(0), move |last| from(last.end))
    }

    /// The same as places in the order of a ReduceScatter, whose last is the rank's own.
    pub fn backwards(self, shards: usize) -> impl Iterator<Item = Range<usize>> + Clone {
        let mut all: Vec<_> =
            self.of(shards).map(|places| shards - places.end..shards - places.start).collect();
        all.reverse();
        all.into_iter()
    }
}

/// As [`Sweeps::growth`], or `two`.
impl fmt::Display for Sweeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::TWO { f.write_str("two") } else { write!(f, "{}", self.growth) }
    }
}

/// What is neither a number up to 255 nor `two`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSweeps;

impl fmt::Display for NoSweeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "sweeps are a number, of how many times as many shards as all before it each takes (0 to 255; 0: one by one), or `two`, the \
             own shard and all others",
        )
    }
}

impl core::error::Error for NoSweeps {}

impl FromStr for Sweeps {
    type Err = NoSweeps;

    fn from_str(text: &str) -> Result<Self, NoSweeps> {
        if text == "two" {
            return Ok(Self::TWO);
        }
        text.parse().map(Self::growing).map_err(|_| NoSweeps)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::{string::ToString, vec};

    #[test]
    fn sweeps_grow() {
        for (sweeps, lengths) in [
            (Sweeps::ONE_BY_ONE, vec![1; 8]),
            (Sweeps::growing(1), vec![1, 1, 2, 4]),
            (Sweeps::growing(2), vec![1, 2, 5]),
            (Sweeps::growing(3), vec![1, 3, 4]),
            (Sweeps::TWO, vec![1, 7]),
        ] {
            assert_eq!(sweeps.of(8).map(|places| places.len()).collect::<Vec<_>>(), lengths, "{sweeps}");
        }
        assert_eq!(Sweeps::growing(3).backwards(8).collect::<Vec<_>>(), [0..4, 4..7, 7..8]);
        assert_eq!((Sweeps::TWO.of(0).count(), Sweeps::TWO.backwards(0).count()), (0, 0));
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["", "-1", "256", "all", "1.5"] {
            assert_eq!(text.parse::<Sweeps>(), Err(NoSweeps));
        }
    }

    proptest! {
        #[test]
        fn every_shard_is_swept_once(growth: u8, shards in 0usize..300) {
            let sweeps = Sweeps::growing(growth);
            prop_assert!(sweeps.of(shards).flatten().eq(0..shards));
            prop_assert!(sweeps.backwards(shards).flatten().eq(0..shards));
            prop_assert_eq!(sweeps.to_string().parse(), Ok(sweeps));
        }
    }
}
