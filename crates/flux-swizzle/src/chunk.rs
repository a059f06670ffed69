//! Communication tiles: the chunks of rows in which a shard travels, each followed by its signal.

use crate::{Error, RowTile, Shards, Taper};
use core::ops::Range;

/// The chunks of every shard, as they travel to or from one rank, and the numbering of their signals.
///
/// Signals are numbered shard by shard, `signals_per_shard` apart, so that each signal has one writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    shards: Shards,
    chunk_rows: usize,
    taper: Taper,
    rank: usize,
    signals_per_shard: usize,
}

impl Chunks {
    /// Cuts each shard into chunks of `chunk_rows` rows (at least 1); a shard's last chunk may be shorter.
    pub fn new(shards: Shards, chunk_rows: usize) -> Result<Self, Error> {
        if chunk_rows == 0 {
            return Err(Error::ZeroExtent { what: "the number of rows of a chunk" });
        }
        let signals_per_shard = shards.max_rows().div_ceil(chunk_rows);
        Ok(Self { shards, chunk_rows, taper: Taper::NONE, rank: 0, signals_per_shard })
    }

    /// The same chunks as they travel to or from `rank`, from the shard of `rank` + 1 around the world, and cut finer where
    /// `taper` says. Its own shard does not travel, and stays as it is.
    #[must_use]
    pub fn tapered(self, taper: Taper, rank: usize) -> Self {
        let signals_per_shard = self.whole_chunks().saturating_mul(taper.most_pieces());
        Self { taper, rank: rank % self.shards.world_size(), signals_per_shard, ..self }
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

    /// Whether each shard is one chunk.
    pub fn are_whole_shards(&self) -> bool {
        self.whole_chunks() <= 1 && self.taper.most_pieces() <= 1
    }

    /// How many signals the numbering spans.
    pub const fn signals(&self) -> usize {
        self.signals_per_shard.saturating_mul(self.shards.world_size())
    }

    /// How many chunks `shard` is cut into.
    pub fn count(&self, shard: usize) -> usize {
        if !self.is_tapered(shard) {
            return self.shards.rows(shard).div_ceil(self.chunk_rows);
        }
        self.pieces_of(shard).count()
    }

    /// The rows of chunk `index` of `shard`; empty if there is no such chunk.
    pub fn rows(&self, shard: usize, index: usize) -> Range<usize> {
        let all = self.shards.range(shard);
        if !self.is_tapered(shard) {
            let begin = index.saturating_mul(self.chunk_rows).saturating_add(all.start).min(all.end);
            return begin..begin.saturating_add(self.chunk_rows).min(all.end);
        }
        self.pieces_of(shard).nth(index).map_or(all.end..all.end, |(rows, _)| rows)
    }

    /// Whether chunk `index` of `shard` is a piece of what would be one chunk elsewhere.
    pub fn is_piece(&self, shard: usize, index: usize) -> bool {
        self.is_tapered(shard) && self.pieces_of(shard).nth(index).is_some_and(|(_, is_piece)| is_piece)
    }

    /// Whether some of `shard`'s chunks are cut finer.
    pub fn is_tapered(&self, shard: usize) -> bool {
        let (first, last) =
            (self.pieces_at(shard, 0), self.pieces_at(shard, self.whole_chunks().saturating_sub(1)));
        first.max(last) > 1
    }

    /// Which chunk of `shard` holds row `row` of the matrix.
    pub fn index_of(&self, shard: usize, row: usize) -> usize {
        if !self.is_tapered(shard) {
            return row.saturating_sub(self.shards.range(shard).start) / self.chunk_rows;
        }
        self.pieces_of(shard).take_while(|(rows, _)| rows.end <= row).count()
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
        self.signal(tile.shard, self.index_of(tile.shard, tile.rows.start))
            ..self.signal(tile.shard, self.index_of(tile.shard, tile.rows.end - 1)) + 1
    }

    /// Chunks of the largest shard before any is cut finer.
    fn whole_chunks(&self) -> usize {
        self.shards.max_rows().div_ceil(self.chunk_rows)
    }

    /// How many pieces chunk `whole` of `shard`, as it would be elsewhere, is cut into.
    fn pieces_at(&self, shard: usize, whole: usize) -> usize {
        let world_size = self.shards.world_size();
        let step = (shard % world_size + world_size - self.rank) % world_size;
        if step == 0 {
            return 1;
        }
        let each = self.whole_chunks();
        let place = (step - 1).saturating_mul(each).saturating_add(whole);
        self.taper.pieces_at(place, (world_size - 1).saturating_mul(each))
    }

    /// The chunks of a shard, and whether each is a piece of a larger one.
    fn pieces_of(&self, shard: usize) -> impl Iterator<Item = (Range<usize>, bool)> + use<> {
        let (this, all) = (*self, self.shards.range(shard));
        let wholes = all.clone().step_by(this.chunk_rows).enumerate();
        wholes.flat_map(move |(whole, begin)| {
            let end = begin.saturating_add(this.chunk_rows).min(all.end);
            let wanted = (end - begin).div_ceil(this.pieces_at(shard, whole));
            let rows = wanted.checked_next_multiple_of(this.taper.grain.max(1)).unwrap_or(usize::MAX);
            (begin..end).step_by(rows).map(move |first| {
                let piece = first..first.saturating_add(rows).min(end);
                let is_piece = piece != (begin..end);
                (piece, is_piece)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::End;
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

    #[test]
    fn the_chunks_that_arrive_last_are_finer() {
        let shards = Shards::new(400, 4).unwrap();
        let taper = Taper::towards(End::Last, [2, 1, 0], 10);
        let chunks = Chunks::new(shards, 100).unwrap().tapered(taper, 1);
        // Shards 2, 3 and 0 arrive at rank 1, in this order.
        assert_eq!([2, 3, 0, 1].map(|shard| chunks.count(shard)), [1, 2, 4, 1]);
        assert_eq!((chunks.rows(3, 0), chunks.rows(3, 1)), (300..350, 350..400));
        assert_eq!((chunks.rows(0, 1), chunks.rows(0, 3), chunks.rows(0, 4)), (30..60, 90..100, 100..100));
        assert_eq!([2, 3].map(|shard| chunks.is_piece(shard, 0)), [false, true]);
        let first = chunks.tapered(Taper::towards(End::First, [1, 0, 0], 10), 3);
        assert_eq!([0, 1, 2, 3].map(|shard| first.count(shard)), [2, 1, 1, 1]);
        // Or any, here the first and the third.
        let mut some = Taper { grain: 10, ..Taper::NONE };
        (some.pieces[0], some.pieces[2]) = (2, 4);
        assert_eq!([2, 3, 0, 1].map(|shard| chunks.tapered(some, 1).count(shard)), [4, 1, 2, 1]);
        // Of several chunks of a shard, the last ones are cut.
        let several = Chunks::new(shards, 40).unwrap().tapered(Taper::towards(End::Last, [1, 0, 0], 10), 0);
        assert_eq!([1, 2, 3].map(|shard| several.count(shard)), [3, 3, 4]);
        assert_eq!((several.rows(3, 2), several.is_piece(3, 2)), (380..390, true));
    }

    fn tapers() -> impl Strategy<Value = Taper> {
        (any::<bool>(), proptest::array::uniform16(0u8..12), 0usize..50).prop_map(|(first, pieces, grain)| {
            Taper { end: if first { End::First } else { End::Last }, pieces, grain }
        })
    }

    proptest! {
        #[test]
        fn chunks_partition_each_shard(
            total in 0usize..3000, world_size in 1usize..17, chunk_rows in 1usize..400, taper in tapers(),
        ) {
            for (rank, shard) in (0..world_size).flat_map(|rank| (0..world_size).map(move |shard| (rank, shard))) {
                let chunks = Chunks::new(Shards::new(total, world_size).unwrap(), chunk_rows).unwrap();
                let chunks = chunks.tapered(taper, rank);
                let mut next = chunks.shards().range(shard).start;
                for index in 0..chunks.count(shard) {
                    let rows = chunks.rows(shard, index);
                    prop_assert!(!rows.is_empty() && rows.start == next);
                    prop_assert!(index < chunks.signals() / world_size && rows.len() <= chunk_rows);
                    prop_assert!(rows.clone().all(|row| chunks.index_of(shard, row) == index));
                    next = rows.end;
                }
                prop_assert_eq!(next, chunks.shards().range(shard).end);
                prop_assert!(chunks.rows(shard, chunks.count(shard)).is_empty());
            }
        }

        #[test]
        fn a_call_of_any_size_keeps_each_signal_with_its_writer(
            most in 0usize..3000, part in 0usize..101, world_size in 1usize..17, chunk_rows in 1usize..400, taper in tapers(),
        ) {
            let of = |rows, rank| {
                Chunks::new(Shards::new(rows, world_size).unwrap(), chunk_rows).unwrap().tapered(taper, rank)
            };
            for rank in 0..world_size {
                let (largest, chunks) = (of(most, 0), of(most * part / 100, rank).numbered_as(&of(most, 0)));
                prop_assert_eq!(chunks.signals(), largest.signals());
                for shard in 0..world_size {
                    let first = largest.signal(shard, 0);
                    prop_assert_eq!(chunks.signal(shard, 0), first);
                    prop_assert!(first + chunks.count(shard) <= largest.signal(shard + 1, 0));
                }
            }
        }
    }
}
