//! Which way a call goes, and why.

use crate::delivery::{self, with_delivery};
use crate::{Delivery, Summation};
use flux_swizzle::{Shards, TileShape};

/// A shard travels at once if it can: over NVLink finer chunks took 0.4 to 0.7 % longer (measured on two H200s), and each
/// costs the host a few µs. But what waits for a chunk waits for all of it, so there is a limit.
const MAX_CHUNK_BYTES: usize = 32 << 20;

/// Chunks of part of a shard are multiples of this, which all tiles' heights divide.
const CHUNK_GRAIN_ROWS: usize = 256;

/// Results of at most so many bytes are reduced one-shot. Beside a ReduceScatter and an AllGather, one-shot sends (W − 1) ·
/// (1 − 2/W) times the result more, and saves the W − 1 copies of the AllGather. A copy costs 2.2 µs beyond its bytes (a
/// 1 MiB push at 217 GB/s where the link does 395, as above), in which the link sends 0.87 MB: with 0.87 MB / (1 − 2/W)
/// the two cost the same, which is 1.2 MB for W = 8, more for fewer ranks.
const ONE_SHOT_BYTES: usize = 1 << 20;

/// Slots for one-shot calls take W times their rows: no more of them than this, however short they are.
const ONE_SHOT_ROWS: usize = 256;

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
    /// overlap, here to compare with. A [`crate::GemmAr`] that sums few rows has no shards, and goes unfused.
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
    /// How tiles got to the ranks that sum them, never [`Delivery::Auto`]; none if they did not go by themselves.
    pub delivery: Option<Delivery>,
    /// Where they were summed, never [`Summation::Auto`]: [`Summation::Folded`] if by every rank that was called; none if
    /// tiles did not go by themselves.
    pub summation: Option<Summation>,
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
    PathChoice { path, delivery: None, summation: None, why }
}

/// ReduceScatter: as [`choose`] says; fused, tiles are delivered in one of two ways.
pub(crate) fn choose_reduce_scatter(
    preference: PathPreference,
    delivery: delivery::Choice,
    shards: &Shards,
    tile: TileShape,
) -> PathChoice {
    let choice = choose(preference, shards, tile);
    if choice.path != Path::Fused {
        return choice;
    }
    let why = match preference {
        PathPreference::Auto => with_delivery!("shards fill their tiles", delivery),
        _ => with_delivery!("as asked", delivery),
    };
    PathChoice { delivery: Some(delivery.delivery()), why, ..choice }
}

/// AllReduce: few rows go one-shot, whose tiles straddle no shards, because there are none; nor can shards go one by one.
/// More rows go in two steps: as [`choose`] says, and then gathered.
pub(crate) fn choose_all_reduce(
    preference: PathPreference,
    delivery: delivery::Choice,
    one_shot_rows: usize,
    shards: &Shards,
    tile: TileShape,
) -> PathChoice {
    let one_shot = shards.total() <= one_shot_rows;
    let PathChoice { path, why, .. } = choose(preference, shards, tile);
    let (path, why) = match (preference, path, one_shot) {
        (_, Path::Local, _) => (path, why),
        (PathPreference::Auto, _, true) => {
            (Path::Fused, "few rows: tiles go to all ranks at once, and each sums all rows itself")
        }
        (PathPreference::Auto, Path::Fused, false) => (
            path,
            with_delivery!(
                "shards fill their tiles: tiles go to the rows' owners, whose sums are gathered",
                delivery
            ),
        ),
        (PathPreference::Auto, _, false) => (path, why),
        (PathPreference::Chunked, _, true) => (
            Path::Unfused,
            "few rows, so every rank sums all rows itself: there are no shards to go one by one",
        ),
        (_, _, true) => (path, "as asked; few rows, so every rank sums all rows itself"),
        (PathPreference::Fused, _, false) => (
            path,
            with_delivery!(
                "as asked; each rank sums a shard of the rows, and the shards are gathered",
                delivery
            ),
        ),
        (_, _, false) => (path, "as asked; each rank sums a shard of the rows, and the shards are gathered"),
    };
    let delivery = if one_shot { Delivery::Direct } else { delivery.delivery() };
    PathChoice { path, delivery: (path == Path::Fused).then_some(delivery), summation: None, why }
}

/// The most rows that are reduced one-shot, if the caller does not say.
pub(crate) fn one_shot_rows(row_bytes: usize) -> usize {
    (ONE_SHOT_BYTES / row_bytes.max(1)).min(ONE_SHOT_ROWS)
}

/// Rows of a chunk: a shard's, in as few parts of about the same size as the limit allows, rounded up.
pub(crate) fn chunk_rows(row_bytes: usize, max_shard_rows: usize) -> usize {
    let parts = max_shard_rows.saturating_mul(row_bytes).div_ceil(MAX_CHUNK_BYTES).max(1);
    let rows = max_shard_rows.div_ceil(parts).max(1);
    if parts == 1 { rows } else { rows.next_multiple_of(CHUNK_GRAIN_ROWS) }
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
            let delivery = delivery::Choice::RelayedAsAsked;
            for preference in [PathPreference::Auto, PathPreference::Fused] {
                let scattered = choose_reduce_scatter(preference, delivery, &shards, TILE);
                assert_eq!(scattered.path, choose(preference, &shards, TILE).path);
                assert_eq!(scattered.delivery.is_some(), scattered.path == Path::Fused);
                assert_eq!(scattered.why.contains("relayed"), scattered.path == Path::Fused);
            }
        }
    }

    #[test]
    fn auto_reduces_few_rows_one_shot_and_many_in_two_steps() {
        for (m, world_size, path, why) in [
            (1, 1, Path::Local, "one rank"),
            (0, 8, Path::Fused, "few rows"),
            (64, 8, Path::Fused, "few rows"),
            (65, 8, Path::Unfused, "half a tile"),
            (512, 8, Path::Fused, "gathered"),
        ] {
            let shards = Shards::new(m, world_size).unwrap();
            let delivery = delivery::Choice::RelayedToOtherGpus;
            let all_reduce = |preference, rows| choose_all_reduce(preference, delivery, rows, &shards, TILE);
            let choice = all_reduce(PathPreference::Auto, one_shot_rows(16_384));
            let relayed = choice.delivery == Some(Delivery::Relayed);
            assert!(relayed == (m == 512) && relayed == choice.why.contains("relayed"), "{choice:?}");
            assert_eq!(choice.delivery.is_some(), choice.path == Path::Fused);
            assert!(choice.path == path && choice.why.contains(why), "m = {m}, W = {world_size}: {choice:?}");
            let asked = all_reduce(PathPreference::Unfused, 64);
            assert!(asked.path == Path::Unfused && asked.why.starts_with("as asked"), "{asked:?}");
            let chunked = all_reduce(PathPreference::Chunked, 64);
            let expected = if m <= 64 { Path::Unfused } else { Path::Chunked };
            assert!(chunked.path == expected, "m = {m}: {chunked:?}");
        }
        assert_eq!((one_shot_rows(0), one_shot_rows(2), one_shot_rows(4 << 20)), (256, 256, 0));
    }

    #[test]
    fn chunks_are_whole_shards_up_to_a_limit() {
        assert_eq!(chunk_rows(24_576, 1024), 1024);
        assert_eq!((chunk_rows(16_384, 4096), chunk_rows(24_576, 4096)), (2048, 1536));
        assert_eq!(chunk_rows(1 << 20, 1024), 256);
        assert_eq!(chunk_rows(16, 1000), 1000);
        assert_eq!((chunk_rows(0, 0), chunk_rows(usize::MAX, 1)), (1, 256));
    }
}
