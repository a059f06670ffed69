//! How rows are shared out over ranks.

use crate::Error;
use core::ops::Range;

/// An even split of `total` rows over `world_size` ranks: contiguous shards whose sizes differ by at most one, the
/// larger ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    total: usize,
    world_size: usize,
}

impl Shards {
    /// Splits `total` rows (any number, 0 included) over `world_size` ranks (at least 1).
    pub const fn new(total: usize, world_size: usize) -> Result<Self, Error> {
        if world_size == 0 {
            return Err(Error::NoRanks);
        }
        Ok(Self { total, world_size })
    }

    /// Rows in all.
    pub const fn total(&self) -> usize {
        self.total
    }

    /// Ranks in all.
    pub const fn world_size(&self) -> usize {
        self.world_size
    }

    /// The rows of `rank`; empty for a rank outside the group.
    pub fn range(&self, rank: usize) -> Range<usize> {
        let rank = rank.min(self.world_size);
        let (each, extra) = (self.total / self.world_size, self.total % self.world_size);
        let begin = rank * each + rank.min(extra);
        if rank == self.world_size {
            return begin..begin;
        }
        begin..begin + each + usize::from(rank < extra)
    }

    /// The number of rows of `rank`.
    pub fn rows(&self, rank: usize) -> usize {
        self.range(rank).len()
    }

    /// Rows of the largest shard, the first one.
    pub fn max_rows(&self) -> usize {
        self.rows(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn uneven_rows_go_to_the_first_ranks() {
        let shards = Shards::new(10, 4).unwrap();
        let ranges = [0, 1, 2, 3, 4, 99].map(|rank| shards.range(rank));
        assert_eq!(ranges, [0..3, 3..6, 6..8, 8..10, 10..10, 10..10]);
        assert_eq!(Shards::new(5, 0), Err(Error::NoRanks));
    }

    proptest! {
        #[test]
        fn shards_partition_the_rows(total in 0usize..5000, world_size in 1usize..33) {
            let shards = Shards::new(total, world_size).unwrap();
            let mut next = 0;
            for rank in 0..world_size {
                let range = shards.range(rank);
                prop_assert_eq!(range.start, next);
                prop_assert!(shards.max_rows() - range.len() <= 1);
                next = range.end;
            }
            prop_assert_eq!(next, total);
        }
    }
}
