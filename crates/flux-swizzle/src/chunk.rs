//! Communication tiles: the chunks of rows in which a shard travels, each followed by its signal.

use crate::{Error, RowTile, Shards};
use core::ops::Range;

/// The chunks of every shard, and the numbering of their signals.
///
/// Signals are numbered shard by shard, `signals_per_shard` apart, so that each signal has one writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    shards: Shards,
    chunk_rows: usize,
    signals_per_shard: usize,
}

impl Chunks {
    /// Cuts each shard into chunks of `chunk_rows` rows (at least 1); a shard's last chunk may be shorter.
    pub fn new(shards: Shards, chunk_rows: usize) -> Result<Self, Error> {
        if chunk_rows == 0 {
            return Err(Error::ZeroExtent { what: "the number of rows of a chunk" });
        }
        Ok(Self { shards, chunk_rows, signals_per_shard: shards.max_rows().div_ceil(chunk_rows) })
    }

    /// The same chunks with the signal numbering of `largest`: an operation whose number of rows varies keeps the
    /// numbering of its largest call, so that a signal keeps its writer.
    #[must_use]
    pub fn numbered_as(self, largest: &Chunks) -> Self {
        Self { signals_per_shard: self.signals_per_shard.max(largest.signals_per_shard), ..self }
    }

    /// The shards that are cut.
    pub const fn shards(&self) -> &Shards {
        &self.shards
    }

    /// Rows of a full chunk.
    pub const fn chunk_rows(&self) -> usize {
        self.chunk_rows
    }

    /// How many signals the numbering spans.
    pub const fn signals(&self) -> usize {
        self.signals_per_shard.saturating_mul(self.shards.world_size())
    }

    /// How many chunks `shard` is cut into.
    pub fn count(&self, shard: usize) -> usize {
        self.shards.rows(shard).div_ceil(self.chunk_rows)
    }

    /// The rows of chunk `index` of `shard`; empty if there is no such chunk.
    pub fn rows(&self, shard: usize, index: usize) -> Range<usize> {
        let shard = self.shards.range(shard);
        let begin = index.saturating_mul(self.chunk_rows).saturating_add(shard.start).min(shard.end);
        begin..begin.saturating_add(self.chunk_rows).min(shard.end)
    }

    /// The number of the signal of chunk `index` of `shard`.
    pub const fn signal(&self, shard: usize, index: usize) -> usize {
        shard.saturating_mul(self.signals_per_shard).saturating_add(index)
    }

    /// The signals a row tile waits for: exactly those of the chunks that its rows touch.
    pub fn gate(&self, tile: &RowTile) -> Range<usize> {
        if tile.rows.is_empty() {
            return 0..0;
        }
        let begin = self.shards.range(tile.shard).start;
        let chunk_of = |row: usize| row.saturating_sub(begin) / self.chunk_rows;
        self.signal(tile.shard, chunk_of(tile.rows.start))
            ..self.signal(tile.shard, chunk_of(tile.rows.end - 1)) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_chunk_is_shorter() {
        let chunks = Chunks::new(Shards::new(25, 2).unwrap(), 5).unwrap();
        assert_eq!((chunks.count(0), chunks.count(1)), (3, 3));
        assert_eq!(chunks.rows(0, 2), 10..13);
        assert_eq!(chunks.rows(1, 0), 13..18);
        assert_eq!(chunks.rows(1, 9), 25..25);
        assert_eq!(chunks.rows(1, usize::MAX), 25..25);
    }

    #[test]
    fn a_smaller_call_keeps_the_numbering_of_the_largest() {
        let largest = Chunks::new(Shards::new(100, 4).unwrap(), 5).unwrap();
        let chunks = Chunks::new(Shards::new(9, 4).unwrap(), 5).unwrap().numbered_as(&largest);
        assert_eq!(chunks.signal(3, 0), largest.signal(3, 0));
        assert_eq!(chunks.signals(), 20);
    }

    proptest! {
        #[test]
        fn chunks_partition_each_shard(total in 0usize..3000, world_size in 1usize..17, chunk_rows in 1usize..400) {
            let chunks = Chunks::new(Shards::new(total, world_size).unwrap(), chunk_rows).unwrap();
            for shard in 0..world_size {
                let mut next = chunks.shards().range(shard).start;
                for index in 0..chunks.count(shard) {
                    let rows = chunks.rows(shard, index);
                    prop_assert!(!rows.is_empty() && rows.start == next);
                    prop_assert!(chunks.signal(shard, index) < chunks.signals());
                    next = rows.end;
                }
                prop_assert_eq!(next, chunks.shards().range(shard).end);
            }
        }
    }
}
