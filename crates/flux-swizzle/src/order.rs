//! The order of a GEMM's output tiles.
//!
//! *The schedule decides, for each tile, what it waits for and where it goes; so communication starts when the first
//! tile ends.* Row tiles are aligned to shards: none straddles two ranks' rows, so each has one source and one
//! destination.

use crate::{Chunks, Error, Shards, Sweeps, TileShape};
use alloc::vec::Vec;
use core::ops::Range;

/// Rows of tiles that are swept together before the next columns, unless [`TileOrder::swept_by`] says otherwise.
const GROUP_ROWS: usize = 2048;

const fn group(rows: usize, shape: TileShape) -> usize {
    let group = rows / shape.rows;
    if group == 0 { 1 } else { group }
}

/// How many of `count` things, at least one, make groups of about `group`, all equally large: a small one left over would read all columns
/// for few rows.
fn evenly(count: usize, group: usize) -> usize {
    let groups = count.saturating_add(group / 2) / group;
    count.div_ceil(groups.max(1))
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

/// Visits the shards from `first_shard` on, around the world, sweep by sweep ([`TileOrder::swept_together`]; each by itself unless that
/// says otherwise); in each sweep its row tiles in groups; in each group all columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileOrder {
    shards: Shards,
    first_shard: usize,
    ends_with_own: bool,
    shape: TileShape,
    columns: usize,
    /// Row tiles that are swept together, about.
    group: usize,
    /// Row tiles of a chunk, if shards travel in several.
    chunk: Option<usize>,
    sweeps: Sweeps,
    /// Chunks that are swept one by one where they are finer than elsewhere, and the height of tiles there.
    pieces: Option<(Chunks, usize)>,
}

/// Rows of one shard that no tile straddles.
#[derive(Clone, Debug)]
struct Section {
    shard: usize,
    rows: Range<usize>,
    /// Of its tiles.
    height: usize,
}

impl Section {
    fn row_tiles(&self) -> usize {
        self.rows.len().div_ceil(self.height)
    }
}

impl TileOrder {
    /// AllGather before the GEMM: `rank`'s own shard first, then the others around the world.
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
            ends_with_own: offset == 1,
            shape,
            columns,
            group: group(GROUP_ROWS, shape),
            chunk: None,
            sweeps: Sweeps::ONE_BY_ONE,
            pieces: None,
        })
    }

    /// Sweeps about as many row tiles together as fit into `rows` rows: groups are equally large.
    #[must_use]
    pub const fn swept_by(self, rows: usize) -> Self {
        Self { group: group(rows, self.shape), ..self }
    }

    /// Sweeps so many shards together, if each of them travels as one chunk.
    #[must_use]
    pub const fn swept_together(self, sweeps: Sweeps) -> Self {
        Self { sweeps, ..self }
    }

    /// Follows `chunks` as they travel to or from this rank. Where they are no whole shards, no row tiles of two chunks are swept
    /// together: they would wait for rows that arrive later than those they could already use. Chunks that are finer than the others are swept one by one, and no tile straddles two of them; those no higher than a tile are cut into
    /// tiles of `height` rows (at least 1): so few rows are to keep all SMs busy.
    #[must_use]
    pub fn following(self, chunks: &Chunks, height: usize) -> Self {
        let height = height.clamp(1, self.shape.rows);
        if chunks.are_whole_shards() {
            return self;
        }
        let chunk = group(chunks.chunk_rows(), self.shape);
        Self { chunk: Some(chunk), pieces: Some((*chunks, height)), ..self }
    }

    /// Blocks of columns.
    pub const fn column_tiles(&self) -> usize {
        self.columns.div_ceil(self.shape.columns)
    }

    /// Tiles in all.
    pub fn len(&self) -> usize {
        let row_tiles: usize = self.sections(self.shard_order()).map(|section| section.row_tiles()).sum();
        row_tiles.saturating_mul(self.column_tiles())
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row tiles, in the order of their first use.
    pub fn row_tiles(&self) -> impl Iterator<Item = RowTile> + Clone + use<> {
        self.row_tiles_along(self.shard_order())
    }

    /// The row tiles where the shards come in this order instead of around the world, as by [`crate::Schedule::shard_order`].
    pub fn row_tiles_along<I>(&self, shards: I) -> impl Iterator<Item = RowTile> + Clone + use<I>
    where
        I: Iterator<Item = usize> + Clone,
    {
        let numbered = self.sections(shards).scan((usize::MAX, 0), |(of, next), section| {
            if *of != section.shard {
                (*of, *next) = (section.shard, 0);
            }
            let first = *next;
            *next += section.row_tiles();
            Some((first, section))
        });
        numbered.flat_map(|(first, Section { shard, rows, height })| {
            (0..rows.len().div_ceil(height)).map(move |index| {
                let begin = rows.start + index * height;
                let rows = begin..begin.saturating_add(height).min(rows.end);
                RowTile { shard, index: first + index, rows }
            })
        })
    }

    /// All tiles, in the order in which they are computed.
    pub fn tiles(&self) -> impl Iterator<Item = Tile> + Clone + use<> {
        self.tiles_along(self.shard_order())
    }

    /// All tiles where the shards come in this order; numbered as by [`row_tiles_along`](Self::row_tiles_along).
    pub fn tiles_along<I>(&self, shards: I) -> impl Iterator<Item = Tile> + Clone + use<I>
    where
        I: Iterator<Item = usize> + Clone,
    {
        let this = *self;
        let sweeps = self.places().into_iter().flat_map(move |places| {
            let sections = this.sections(shards.clone().skip(places.start).take(places.len()));
            // Where sections have heights of their own, each is swept by itself.
            let (together, one_by_one) = match places.len() {
                1 => (None, Some(sections)),
                _ => (Some((sections.map(|section| section.row_tiles()).sum(), this.shape.rows)), None),
            };
            let one_by_one = one_by_one.into_iter().flatten();
            together.into_iter().chain(one_by_one.map(|section| (section.row_tiles(), section.height)))
        });
        let with_base = sweeps.scan(0, move |next, (row_tiles, height)| {
            let base = *next;
            *next += row_tiles;
            // As many rows are swept together, however high the tiles are.
            let heights = (this.shape.rows / height).max(1);
            let chunk = this.chunk.map_or(row_tiles.max(1), |chunk| chunk.saturating_mul(heights));
            Some((base, row_tiles, chunk, this.group.saturating_mul(heights)))
        });
        let groups = with_base.flat_map(|(base, count, chunk, group)| {
            (0..count).step_by(chunk).flat_map(move |first| {
                let end = first.saturating_add(chunk).min(count);
                let group = evenly(end - first, group);
                (first..end)
                    .step_by(group)
                    .map(move |first| (base + first)..(base + (first + group).min(end)))
            })
        });
        groups.flat_map(move |group| {
            (0..this.column_tiles()).flat_map(move |column_tile| {
                group.clone().map(move |row_tile| Tile { row_tile, column_tile })
            })
        })
    }

    /// The sweeps, as places in the order of shards.
    fn places(&self) -> Vec<Range<usize>> {
        let (world_size, sweeps) = (self.shards.world_size(), self.sweeps);
        match self.pieces {
            Some(_) => Sweeps::ONE_BY_ONE.of(world_size).collect(),
            None if self.ends_with_own => sweeps.backwards(world_size).collect(),
            None => sweeps.of(world_size).collect(),
        }
    }

    fn shard_order(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let (first, world_size) = (self.first_shard, self.shards.world_size());
        (0..world_size).map(move |step| (first + step) % world_size)
    }

    fn sections<I>(&self, shards: I) -> impl Iterator<Item = Section> + Clone + use<I>
    where
        I: Iterator<Item = usize> + Clone,
    {
        let this = *self;
        shards.flat_map(move |shard| {
            let pieces = this.pieces.filter(|(chunks, _)| chunks.is_tapered(shard));
            (0..pieces.map_or(1, |(chunks, _)| chunks.count(shard))).map(move |index| match pieces {
                None => Section { shard, rows: this.shards.range(shard), height: this.shape.rows },
                Some((chunks, height)) => {
                    let rows = chunks.rows(shard, index);
                    let is_low = chunks.is_piece(shard, index) && rows.len() <= this.shape.rows;
                    Section { shard, rows, height: if is_low { height } else { this.shape.rows } }
                }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::{Chunks, End, Taper};
    use proptest::prelude::*;
    use std::{collections::BTreeSet, vec};

    #[derive(Clone, Debug)]
    struct Case {
        m: usize,
        n: usize,
        world_size: usize,
        shape: TileShape,
        chunk_rows: usize,
        taper: Taper,
        sweeps: Sweeps,
    }

    fn cases() -> impl Strategy<Value = Case> {
        let extents = (0usize..1500, 0usize..600, 1usize..17, 1usize..200, 1usize..200, 1usize..700);
        let sweeps = (0u8..5).prop_map(Sweeps::growing);
        (extents, 0usize..20, 0usize..9, 0usize..3, 0usize..200, sweeps).prop_map(
            |(extents, two, four, eight, grain, sweeps)| {
                let (m, n, world_size, rows, columns, chunk_rows) = extents;
                let taper = Taper::towards(End::Last, [two, four, eight], grain);
                Case { m, n, world_size, shape: TileShape { rows, columns }, chunk_rows, taper, sweeps }
            },
        )
    }

    fn chunks(case: &Case, rank: usize) -> Chunks {
        let shards = Shards::new(case.m, case.world_size).unwrap();
        Chunks::new(shards, case.chunk_rows).unwrap().tapered(case.taper, rank)
    }

    fn orders(case: &Case, rank: usize) -> [TileOrder; 4] {
        let shards = Shards::new(case.m, case.world_size).unwrap();
        let gathered = TileOrder::all_gather(shards, rank, case.shape, case.n).unwrap();
        let scattered = TileOrder::reduce_scatter(shards, rank, case.shape, case.n).unwrap();
        let first = chunks(case, rank).tapered(Taper { end: End::First, ..case.taper }, rank);
        [
            gathered.following(&chunks(case, rank), case.shape.rows / 2),
            scattered,
            scattered.following(&first, case.shape.rows / 2),
            TileOrder::plain(case.m, case.shape, case.n).unwrap(),
        ]
        .map(|order| order.swept_together(case.sweeps))
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
    fn groups_are_equally_large() {
        for (count, group, groups) in [
            (32, 9, vec![8; 4]),
            (16, 15, vec![16]),
            (32, 15, vec![16; 2]),
            (16, 13, vec![16]),
            (23, 15, vec![12, 11]),
            (3, 100, vec![3]),
            (5, 1, vec![1; 5]),
        ] {
            let order =
                TileOrder::plain(count, TileShape { rows: 1, columns: 1 }, 2).unwrap().swept_by(group);
            let tiles: Vec<_> = order.tiles().collect();
            let of_first_column = tiles.chunk_by(|a, b| a.column_tile == b.column_tile).step_by(2);
            assert_eq!(of_first_column.map(<[_]>::len).collect::<Vec<_>>(), groups, "{count} {group}");
        }
    }

    #[test]
    fn no_group_spans_two_chunks() {
        let shards = Shards::new(18, 2).unwrap();
        let chunks = Chunks::new(shards, 4).unwrap();
        let order = TileOrder::all_gather(shards, 0, TileShape { rows: 1, columns: 1 }, 2).unwrap();
        let rows: Vec<_> =
            order.swept_by(3).following(&chunks, 1).tiles().map(|tile| tile.row_tile).collect();
        assert_eq!(rows[..18], [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 8, 8]);
    }

    #[test]
    fn only_what_is_cut_finer_is_swept_by_its_chunks() {
        let shards = Shards::new(24, 3).unwrap();
        let taper = Taper::towards(End::Last, [1, 0, 0], 1);
        let chunks = Chunks::new(shards, 8).unwrap().tapered(taper, 0);
        let order = TileOrder::all_gather(shards, 0, TileShape { rows: 4, columns: 1 }, 2).unwrap();
        let order = order.following(&chunks, 2);
        let heights: Vec<_> = order.row_tiles().map(|tile| (tile.index, tile.rows.len())).collect();
        assert_eq!(heights, [(0, 4), (1, 4), (0, 4), (1, 4), (0, 2), (1, 2), (2, 2), (3, 2)]);
        let swept: Vec<_> = order.tiles().map(|tile| (tile.row_tile, tile.column_tile)).collect();
        assert_eq!(swept[4..8], [(2, 0), (3, 0), (2, 1), (3, 1)]);
        assert_eq!(swept[8..12], [(4, 0), (5, 0), (4, 1), (5, 1)]);
        assert_eq!(swept[12..], [(6, 0), (7, 0), (6, 1), (7, 1)]);
    }

    #[test]
    fn shards_are_swept_together() {
        let shape = TileShape { rows: 2, columns: 1 };
        let swept = |order: TileOrder, rows: usize| -> Vec<_> {
            let order = order.swept_by(rows).swept_together(Sweeps::growing(1));
            let row_tiles: Vec<_> = order.row_tiles().collect();
            order.tiles().map(|tile| (row_tiles[tile.row_tile].shard, tile.column_tile)).collect()
        };
        // Of four ranks with shards of 2 rows and two columns: rank 1 alone, then 2 alone, then 3 and 0 together.
        let shards = Shards::new(8, 4).unwrap();
        let gathered = TileOrder::all_gather(shards, 1, shape, 2).unwrap();
        let alone = [(1, 0), (1, 1), (2, 0), (2, 1)];
        assert_eq!(swept(gathered, 100), [alone, [(3, 0), (0, 0), (3, 1), (0, 1)]].concat());
        // No more rows than a sweep may have.
        assert_eq!(swept(gathered, 2), [alone, [(3, 0), (3, 1), (0, 0), (0, 1)]].concat());
        // Backwards, rank 1 being the last.
        let scattered = TileOrder::reduce_scatter(shards, 1, shape, 2).unwrap();
        let alone = [(0, 0), (0, 1), (1, 0), (1, 1)];
        assert_eq!(swept(scattered, 100), [[(2, 0), (3, 0), (2, 1), (3, 1)], alone].concat());
        // What travels in several chunks is swept by them.
        let finer = Chunks::new(shards, 1).unwrap();
        let [followed, by_itself] = [gathered.following(&finer, 2), gathered].map(|order| order.swept_by(2));
        assert!(followed.swept_together(Sweeps::TWO).tiles().eq(by_itself.tiles()));
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
            for rank in 0..case.world_size {
                let (chunks, order) = (chunks(&case, rank), orders(&case, rank)[0]);
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
                    .chain((1..case.world_size).map(|step| (rank + step) % case.world_size))
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
            let chunks = chunks(&case, 0);
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
