//! Which way a call goes, and why.

use flux_swizzle::{Shards, TileShape};

/// A copy shorter than this does not reach the link's speed: over NVLink a 4 MiB push runs at 322 of 395 GB/s, a 1 MiB
/// push at 217 (measured on two H200s).
const MIN_CHUNK_BYTES: usize = 4 << 20;

/// What the caller wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PathPreference {
    /// Whichever is expected to be faster.
    #[default]
    Auto,
    /// Communication inside the GEMM, whatever the size.
    Fused,
    /// One after the other, whatever the size.
    Unfused,
    /// One GEMM for each shard, overlapped with the other shards' communication, whatever the size: the usual way to
    /// overlap, here to compare with.
    Chunked,
    /// The communication without the GEMM, to measure it: C is not the product.
    CommunicationOnly,
}

/// What a call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// Each tile waited for its own chunks, or went to its owner when it was done.
    Fused,
    /// GEMM and communication one after the other.
    Unfused,
    /// A GEMM for each shard, when the shard had arrived, or before it was sent.
    Chunked,
    /// No GEMM.
    CommunicationOnly,
    /// There was nothing to communicate.
    Local,
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Path::Fused => "fused",
            Path::Unfused => "unfused",
            Path::Chunked => "chunked",
            Path::CommunicationOnly => "communication only",
            Path::Local => "local",
        })
    }
}

/// Which way a call went, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathChoice {
    /// The way.
    pub path: Path,
    /// The reason, for people.
    pub why: &'static str,
}

/// Fused tiles never straddle two shards, so shards that fill less than half a tile would have the GEMM compute mostly
/// padding: those go unfused.
pub(crate) fn choose(preference: PathPreference, shards: &Shards, tile: TileShape) -> PathChoice {
    let (path, why) = match preference {
        PathPreference::Fused => (Path::Fused, "as asked"),
        PathPreference::Unfused => (Path::Unfused, "as asked"),
        PathPreference::Chunked => (Path::Chunked, "as asked"),
        PathPreference::CommunicationOnly => (Path::CommunicationOnly, "as asked"),
        PathPreference::Auto if shards.world_size() == 1 => {
            (Path::Local, "one rank has nothing to communicate")
        }
        PathPreference::Auto if 2 * shards.max_rows() < tile.rows => {
            (Path::Unfused, "a shard fills less than half a tile, and fused tiles do not straddle shards")
        }
        PathPreference::Auto => (Path::Fused, "shards fill their tiles"),
    };
    PathChoice { path, why }
}

/// Rows of a chunk: enough for the link's speed, and no less than a tile, which is the least that can be waited for.
pub(crate) fn chunk_rows(row_bytes: usize, tile: TileShape, max_shard_rows: usize) -> usize {
    MIN_CHUNK_BYTES.div_ceil(row_bytes.max(1)).max(tile.rows).min(max_shard_rows.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILE: TileShape = TileShape { rows: 128, columns: 128 };

    #[test]
    fn auto_fuses_when_shards_fill_their_tiles() {
        for (m, world_size, path) in [
            (1, 1, Path::Local),
            (8192, 1, Path::Local),
            (8, 8, Path::Unfused),
            (504, 8, Path::Unfused),
            (512, 8, Path::Fused),
            (8192, 8, Path::Fused),
            (0, 2, Path::Unfused),
        ] {
            let shards = Shards::new(m, world_size).unwrap();
            assert_eq!(choose(PathPreference::Auto, &shards, TILE).path, path, "m = {m}, W = {world_size}");
            assert_eq!(choose(PathPreference::Fused, &shards, TILE).path, Path::Fused);
        }
    }

    #[test]
    fn chunks_are_neither_tiny_nor_larger_than_a_shard() {
        assert_eq!(chunk_rows(24_576, TILE, 1024), 171);
        assert_eq!(chunk_rows(1 << 20, TILE, 1024), 128);
        assert_eq!(chunk_rows(16, TILE, 1000), 1000);
        assert_eq!(chunk_rows(0, TILE, 0), 1);
    }
}
