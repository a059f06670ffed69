//! How many rows a chunk has, by the rows of a call.

use crate::{Chunks, Error, Shards, Taper};
use alloc::{vec, vec::Vec};

/// How many rows a chunk has, in calls of so many rows: large calls may be cut otherwise than small ones.
///
/// Whoever sends and whoever waits must cut alike: both go by this, and by the rows of the call alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRows {
    /// Rows of a call, ascending, and of its chunks.
    by_rows: Vec<(usize, usize)>,
}

/// The same in all calls.
impl From<usize> for ChunkRows {
    fn from(chunk_rows: usize) -> Self {
        Self { by_rows: vec![(usize::MAX, chunk_rows)] }
    }
}

impl ChunkRows {
    /// In calls of up to so many rows, chunks of so many; in larger ones than any that is named, as in the largest of these.
    pub fn up_to(by_rows: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let mut by_rows: Vec<_> = by_rows.into_iter().collect();
        by_rows.sort_unstable();
        Self { by_rows }
    }

    /// Rows of a chunk in a call of `rows` rows; 0 where nothing is named.
    pub fn of(&self, rows: usize) -> usize {
        let next = self.by_rows.partition_point(|&(most, _)| most < rows);
        self.by_rows.get(next).or(self.by_rows.last()).map_or(0, |&(_, chunk_rows)| chunk_rows)
    }

    /// With each number of chunk rows made another.
    #[must_use]
    pub fn map(&self, change: impl Fn(usize) -> usize) -> Self {
        Self { by_rows: self.by_rows.iter().map(|&(most, rows)| (most, change(rows))).collect() }
    }

    /// The chunks of a call of `rows` rows.
    pub fn cut(&self, rows: usize, world_size: usize) -> Result<Chunks, Error> {
        Chunks::new(Shards::new(rows, world_size)?, self.of(rows))
    }

    /// The chunks of a call of `max_rows` rows as they travel to rank 0, with a numbering of signals that calls of fewer rows fit into,
    /// however they are cut.
    pub fn numbered(&self, max_rows: usize, world_size: usize, taper: Taper) -> Result<Chunks, Error> {
        let cut = |rows: usize| Ok(self.cut(rows, world_size)?.tapered(taper, 0));
        let mut largest = cut(max_rows)?;
        for &(most, _) in self.by_rows.iter().filter(|&&(most, _)| most < max_rows) {
            largest = largest.numbered_as(&cut(most)?);
        }
        Ok(largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::End;
    use proptest::prelude::*;

    #[test]
    fn the_next_larger_call_that_is_named_counts() {
        let by_rows = ChunkRows::up_to([(512, 128), (64, 4)]);
        for (rows, chunk_rows) in [(0, 4), (64, 4), (65, 128), (512, 128), (513, 128)] {
            assert_eq!(by_rows.of(rows), chunk_rows, "{rows}");
        }
        assert_eq!((ChunkRows::from(7).of(0), ChunkRows::from(7).of(usize::MAX)), (7, 7));
        assert!(ChunkRows::up_to([]).cut(5, 2).is_err());
        assert_eq!(by_rows.map(|rows| 2 * rows).of(3), 8);
        // 4 chunks of 4 rows in a shard of 16, though one of 128 is whole.
        assert_eq!(by_rows.numbered(512, 4, Taper::NONE).unwrap().signal(1, 0), 4);
    }

    proptest! {
        #[test]
        fn calls_of_any_size_keep_each_signal_with_its_writer(
            by_rows in proptest::collection::vec((1_usize..3000, 1_usize..400), 1..6), most in 0_usize..3000, part in 0_usize..101,
            world_size in 1_usize..9, two in 0_usize..9, grain in 0_usize..50,
        ) {
            let chunk_rows = ChunkRows::up_to(by_rows);
            let taper = Taper::towards(End::Last, [two, two / 2, 0], grain);
            let largest = chunk_rows.numbered(most, world_size, taper).unwrap();
            for rank in 0..world_size {
                let chunks = chunk_rows.cut(most * part / 100, world_size).unwrap();
                let chunks = chunks.tapered(taper, rank).numbered_as(&largest);
                prop_assert_eq!(chunks.signals(), largest.signals());
                for shard in 0..world_size {
                    prop_assert_eq!(chunks.signal(shard, 0), largest.signal(shard, 0));
                    prop_assert!(chunks.signal(shard, 0) + chunks.count(shard) <= largest.signal(shard + 1, 0));
                }
            }
        }
    }
}
