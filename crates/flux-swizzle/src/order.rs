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
    /// together: they would wait for rows that arrive later than those they could already use. Chunks that are finer than the others
    /// are swept one by one, and no tile straddles two of them; those no higher than a tile are cut into tiles of `height` rows (at
    /// least 1): so few rows are to keep all SMs busy.
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
mod tests;
