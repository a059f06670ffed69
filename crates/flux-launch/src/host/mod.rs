//! The kernels on the host: the same parameters, tables, gates and destinations, computed by threads.
// Pitches and extents of memory of this process fit into its `usize`, and a tile's extents into anything.
#![allow(clippy::cast_possible_truncation)]

mod gelu;
mod gemm;
mod sum;

pub(crate) use gelu::gelu;
pub(crate) use gemm::gemm;
pub(crate) use sum::sum;

use flux_swizzle::TileShape;

/// A tile that keeps a core's second-level cache busy, and is small enough that a shard has several.
pub(crate) const TILE: TileShape = TileShape { rows: 64, columns: 128 };
