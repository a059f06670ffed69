#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod chunk;
mod chunk_rows;
mod levels;
mod order;
mod panels;
mod pattern;
mod pattern_text;
mod schedule;
mod shard;
mod spread;
mod sweeps;
mod taper;
mod tile_shape;

pub use chunk::Chunks;
pub use chunk_rows::ChunkRows;
pub use levels::{SlotLayout, SlotPlace};
pub use order::{RowTile, Tile, TileOrder};
pub use panels::{PanelCut, Panels};
pub use pattern::{MOST_RANKS, Pattern};
pub use pattern_text::BadPattern;
pub use schedule::{Collective, Schedule, Transfer};
pub use shard::Shards;
pub use sweeps::{NoSweeps, Sweeps};
pub use taper::{End, Taper};
pub use tile_shape::{BadTile, TileShape};

/// What a caller can get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A group of zero ranks was asked for.
    NoRanks,
    /// The rank is not below the world size.
    RankOutOfRange {
        /// The rank that was given.
        rank: usize,
        /// Ranks run from 0 to this, exclusive.
        world_size: usize,
    },
    /// A rank is in two places at once.
    RankTwice {
        /// The rank.
        rank: usize,
    },
    /// More ranks than a schedule can number.
    TooManyRanks {
        /// The most that there may be.
        max: usize,
    },
    /// More chunks, times ranks that each comes to, than a schedule has room for.
    TooManyTransfers {
        /// The most that there may be.
        max: usize,
    },
    /// A tile or a chunk of zero rows or columns.
    ZeroExtent {
        /// Which extent was zero.
        what: &'static str,
    },
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Error::NoRanks => write!(f, "the world size is 0; a group has at least one rank"),
            Error::RankOutOfRange { rank, world_size } => {
                write!(
                    f,
                    "rank {rank} is out of range; a group of {world_size} has ranks 0 to {}",
                    world_size.saturating_sub(1)
                )
            }
            Error::RankTwice { rank } => write!(f, "rank {rank} is named twice; name each rank once"),
            Error::TooManyRanks { max } => write!(f, "there are more than {max} ranks; use fewer"),
            Error::TooManyTransfers { max } => {
                write!(f, "the schedule has more than {max} transfers; use fewer ranks, or larger chunks")
            }
            Error::ZeroExtent { what } => write!(f, "{what} is 0; it must be at least 1"),
        }
    }
}

impl core::error::Error for Error {}
