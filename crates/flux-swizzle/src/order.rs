//! The order of a GEMM's output tiles.
//!
//! *The schedule decides, for each tile, what it waits for and where it goes; so communication starts when the first
//! tile ends.* Row tiles are aligned to shards: none straddles two ranks' rows, so each has one source and one
//! destination.

use crate::{Error, Shards};
use core::ops::Range;

/// Rows of tiles that are swept together before the next columns, unless [`TileOrder::swept_by`] says otherwise.
const GROUP_ROWS: usize = 2048;

const fn group(rows: usize, shape: TileShape) -> usize {
    let group = rows / shape.rows;
    if group == 0 { 1 } else { group }
}

/// Extents of an output tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileShape {
    /// Rows of C (and of A) in a tile.
    pub rows: usize,
    /// Columns of C (rows of the weight) in a tile.
    pub columns: usize,
}

/// A block of rows of one shard, at most [`TileShape::rows`] of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowTile {
    /// The shard, that is the rank, whose rows these are.
    pub shard: usize,
    /// Index among the shard's row tiles.
    pub index: usize,
    /// Rows of the whole matrix.
    pub rows: Range<usize>,
}

/// One output tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Position in [`TileOrder::row_tiles`].
    pub row_tile: usize,
    /// Index of the block of columns.
    pub column_tile: usize,
}

/// Visits the shards from `first_shard` on, around the world; in each shard its row tiles ascending, in groups; in each
/// group all columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileOrder {
    shards: Shards,
    first_shard: usize,
    shape: TileShape,
    columns: usize,
    group: usize,
}

impl TileOrder {
    /// AllGather before the GEMM: `rank`'s own shard first, then as the shards arrive ([`crate::arrival_order`]).
    pub fn all_gather(shards: Shards, rank: usize, shape: TileShape, columns: usize) -> Result<Self, Error> {
        Self::starting_at(shards, rank, 0, shape, columns)
    }

    /// ReduceScatter after the GEMM: destination by destination, from `rank` + 1 to `rank` itself.
    pub fn reduce_scatter(
        shards: Shards,
        rank: usize,
        shape: TileShape,
        columns: usize,
    ) -> Result<Self, Error> {
        Self::starting_at(shards, rank, 1, shape, columns)
    }

    /// No communication: `rows` rows that all belong together.
    pub fn plain(rows: usize, shape: TileShape, columns: usize) -> Result<Self, Error> {
        Self::starting_at(Shards::new(rows, 1)?, 0, 0, shape, columns)
    }

    fn starting_at(
        shards: Shards,
        rank: usize,
        offset: usize,
        shape: TileShape,
        columns: usize,
    ) -> Result<Self, Error> {
        let world_size = shards.world_size();
        if rank >= world_size {
            return Err(Error::RankOutOfRange { rank, world_size });
        }
        if shape.rows == 0 || shape.columns == 0 {
            return Err(Error::ZeroExtent { what: "an extent of the tile" });
        }
        Ok(Self {
            shards,
            first_shard: (rank + offset) % world_size,
            shape,
            columns,
            group: group(GROUP_ROWS, shape),
        })
    }

    /// Sweeps as many row tiles together as fit into `rows` rows.
    #[must_use]
    pub const fn swept_by(self, rows: usize) -> Self {
        Self { group: group(rows, self.shape), ..self }
    }

    /// Sweeps at most as many row tiles together as fit into `rows` rows: a group that spans more rows than one chunk
    /// would wait for chunks that arrive later than the ones it could already use.
    #[must_use]
    pub fn grouped_within(self, rows: usize) -> Self {
        Self { group: self.group.min(group(rows, self.shape)), ..self }
    }

    /// Blocks of columns.
    pub const fn column_tiles(&self) -> usize {
        self.columns.div_ceil(self.shape.columns)
    }

    /// Tiles in all.
    pub fn len(&self) -> usize {
        let row_tiles: usize = self.shards_in_order().map(|shard| self.row_tiles_of(shard)).sum();
        row_tiles.saturating_mul(self.column_tiles())
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row tiles, in the order of their first use.
    pub fn row_tiles(&self) -> impl Iterator<Item = RowTile> + Clone + use<> {
        let this = *self;
        this.shards_in_order().flat_map(move |shard| {
            let range = this.shards.range(shard);
            (0..this.row_tiles_of(shard)).map(move |index| {
                let begin = range.start + index * this.shape.rows;
                RowTile { shard, index, rows: begin..begin.saturating_add(this.shape.rows).min(range.end) }
            })
        })
    }

    /// All tiles, in the order in which they are computed.
    pub fn tiles(&self) -> impl Iterator<Item = Tile> + Clone + use<> {
        let this = *self;
        let with_base = this.shards_in_order().scan(0, move |next, shard| {
            let base = *next;
            *next += this.row_tiles_of(shard);
            Some((base, this.row_tiles_of(shard)))
        });
        with_base.flat_map(move |(base, count)| {
            (0..count).step_by(this.group).flat_map(move |first| {
                let group = first..(first + this.group).min(count);
                (0..this.column_tiles()).flat_map(move |column_tile| {
                    group.clone().map(move |index| Tile { row_tile: base + index, column_tile })
                })
            })
        })
    }

    fn shards_in_order(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let (first, world_size) = (self.first_shard, self.shards.world_size());
        (0..world_size).map(move |step| (first + step) % world_size)
    }

    fn row_tiles_of(&self, shard: usize) -> usize {
        self.shards.rows(shard).div_ceil(self.shape.rows)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::{Chunks, arrival_order};
    use proptest::prelude::*;
    use std::{collections::BTreeSet, vec, vec::Vec};

    #[derive(Clone, Debug)]
    struct Case {
        m: usize,
        n: usize,
        world_size: usize,
        shape: TileShape,
        chunk_rows: usize,
    }

    fn cases() -> impl Strategy<Value = Case> {
        (0usize..1500, 0usize..600, 1usize..17, 1usize..200, 1usize..200, 1usize..700).prop_map(
            |(m, n, world_size, rows, columns, chunk_rows)| Case {
                m,
                n,
                world_size,
                shape: TileShape { rows, columns },
                chunk_rows,
            },
        )
    }

    fn orders(case: &Case, rank: usize) -> [TileOrder; 3] {
        let shards = Shards::new(case.m, case.world_size).unwrap();
        [
            TileOrder::all_gather(shards, rank, case.shape, case.n).unwrap().grouped_within(case.chunk_rows),
            TileOrder::reduce_scatter(shards, rank, case.shape, case.n).unwrap(),
            TileOrder::plain(case.m, case.shape, case.n).unwrap(),
        ]
    }

    #[test]
    fn rank_five_of_eight_ends_with_itself() {
        let shards = Shards::new(8, 8).unwrap();
        let shape = TileShape { rows: 4, columns: 4 };
        let visited = |order: TileOrder| order.row_tiles().map(|tile| tile.shard).collect::<Vec<_>>();
        assert_eq!(
            visited(TileOrder::reduce_scatter(shards, 5, shape, 4).unwrap()),
            [6, 7, 0, 1, 2, 3, 4, 5]
        );
        assert_eq!(visited(TileOrder::all_gather(shards, 5, shape, 4).unwrap()), [5, 6, 7, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn the_largest_extents_do_not_overflow() {
        let shape = TileShape { rows: usize::MAX, columns: usize::MAX };
        let order = TileOrder::plain(usize::MAX, shape, usize::MAX).unwrap();
        assert_eq!(order.row_tiles().next().unwrap().rows, 0..usize::MAX);
        let tiny = TileOrder::plain(usize::MAX, TileShape { rows: 1, columns: 1 }, usize::MAX).unwrap();
        assert_eq!((order.len(), tiny.len()), (1, usize::MAX));
        let chunks = Chunks::new(Shards::new(usize::MAX, 3).unwrap(), 1).unwrap();
        assert!(chunks.signals() >= usize::MAX - 1 && chunks.signal(usize::MAX, 7) == usize::MAX);
    }

    #[test]
    fn bad_arguments_are_refused() {
        let shards = Shards::new(8, 2).unwrap();
        let shape = TileShape { rows: 0, columns: 4 };
        assert!(matches!(TileOrder::all_gather(shards, 0, shape, 4), Err(Error::ZeroExtent { .. })));
        let shape = TileShape { rows: 4, columns: 4 };
        let error = TileOrder::reduce_scatter(shards, 2, shape, 4).unwrap_err();
        assert_eq!(error, Error::RankOutOfRange { rank: 2, world_size: 2 });
    }

    proptest! {
        #[test]
        fn every_order_is_a_permutation_of_all_tiles(case in cases()) {
            for rank in 0..case.world_size {
                for order in orders(&case, rank) {
                    let row_tiles: Vec<_> = order.row_tiles().collect();
                    let tiles: Vec<_> = order.tiles().collect();
                    prop_assert_eq!(tiles.len(), order.len());
                    let distinct: BTreeSet<_> = tiles.iter().map(|t| (t.row_tile, t.column_tile)).collect();
                    prop_assert_eq!(distinct.len(), row_tiles.len() * order.column_tiles());
                    prop_assert_eq!(tiles.len(), distinct.len());
                    // The row tiles cover every row once, and none is larger than the shape.
                    let mut covered = vec![0; case.m];
                    for tile in &row_tiles {
                        prop_assert!(!tile.rows.is_empty() && tile.rows.len() <= case.shape.rows);
                        tile.rows.clone().for_each(|row| covered[row] += 1);
                    }
                    prop_assert!(covered.iter().all(|&count| count == 1));
                }
            }
        }

        #[test]
        fn no_two_ranks_write_to_one_destination_in_any_step(
            rows in 0usize..300, n in 0usize..400, world_size in 1usize..17, tile in 1usize..150, columns in 1usize..150,
        ) {
            let shards = Shards::new(rows * world_size, world_size).unwrap();
            let shape = TileShape { rows: tile, columns };
            let destinations: Vec<Vec<usize>> = (0..world_size)
                .map(|rank| {
                    let order = TileOrder::reduce_scatter(shards, rank, shape, n).unwrap();
                    let row_tiles: Vec<_> = order.row_tiles().collect();
                    order.tiles().map(|tile| row_tiles[tile.row_tile].shard).collect()
                })
                .collect();
            for step in 0..destinations[0].len() {
                let distinct: BTreeSet<_> = destinations.iter().map(|steps| steps[step]).collect();
                prop_assert_eq!(distinct.len(), world_size);
            }
        }

        #[test]
        fn the_own_destination_is_last(case in cases()) {
            let shards = Shards::new(case.m, case.world_size).unwrap();
            for rank in 0..case.world_size {
                let order = TileOrder::reduce_scatter(shards, rank, case.shape, case.n).unwrap();
                let shards: Vec<_> = order.row_tiles().map(|tile| tile.shard).collect();
                let own = shards.iter().position(|&shard| shard == rank).unwrap_or(shards.len());
                prop_assert!(shards[own..].iter().all(|&shard| shard == rank));
            }
        }

        #[test]
        fn chunks_are_first_needed_in_the_order_they_arrive(case in cases()) {
            let shards = Shards::new(case.m, case.world_size).unwrap();
            let chunks = Chunks::new(shards, case.chunk_rows).unwrap();
            for rank in 0..case.world_size {
                let order = orders(&case, rank)[0];
                let row_tiles: Vec<_> = order.row_tiles().collect();
                let mut needed = Vec::new();
                for tile in order.tiles() {
                    for signal in chunks.gate(&row_tiles[tile.row_tile]) {
                        if !needed.contains(&signal) {
                            needed.push(signal);
                        }
                    }
                }
                let arrived: Vec<_> = core::iter::once(rank)
                    .chain(arrival_order(rank, case.world_size))
                    .flat_map(|shard| (0..chunks.count(shard)).map(move |index| chunks.signal(shard, index)))
                    .collect();
                if order.column_tiles() == 0 {
                    prop_assert!(needed.is_empty());
                } else {
                    prop_assert_eq!(needed, arrived);
                }
            }
        }

        #[test]
        fn a_gate_covers_exactly_the_chunks_its_rows_touch(case in cases()) {
            let shards = Shards::new(case.m, case.world_size).unwrap();
            let chunks = Chunks::new(shards, case.chunk_rows).unwrap();
            for tile in orders(&case, 0)[0].row_tiles() {
                let touched: BTreeSet<_> = (0..chunks.count(tile.shard))
                    .filter(|&index| {
                        let rows = chunks.rows(tile.shard, index);
                        rows.start < tile.rows.end && tile.rows.start < rows.end
                    })
                    .map(|index| chunks.signal(tile.shard, index))
                    .collect();
                prop_assert_eq!(chunks.gate(&tile).collect::<BTreeSet<_>>(), touched);
            }
        }
    }
}
