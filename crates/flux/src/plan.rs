//! Which way a call goes, and why.

use crate::delivery::{self, with_delivery};
use crate::planner::{Chosen, PlanSource};
use crate::{Delivery, Summation, Sweeps, TileShape};

/// A shard travels at once if it can: over NVLink finer chunks took 0.4 to 3.6 % longer where K is long (measured on two H200s), and each
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
    /// Whichever was measured to be the fastest ([`crate::tune`]), or is expected to be.
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
    /// The class of the order in which ranks exchange, as `flux topo` names it; the operation's `pattern` is the order itself.
    pub order: &'static str,
    /// The tile that was asked for, or measured to be the best, or with which a call overlaps best beside a slow link; if none, the
    /// kernels' own choice.
    pub tile: Option<TileShape>,
    /// How many shards a fused call's GEMM sweeps together, if they travel whole.
    pub sweeps: Sweeps,
    /// Who has decided it.
    pub source: PlanSource,
    /// The reason, for people; [`crate::AgGemm::explain`] and its like say more.
    pub why: &'static str,
}

/// The way that was planned for calls of an AllGather+GEMM.
pub(crate) fn choice(chosen: Chosen) -> PathChoice {
    let Chosen { path, source, pads, order, tile, sweeps } = chosen;
    let why = match (path, source) {
        (Path::Local, _) => "one rank has nothing to communicate",
        (_, PlanSource::Forced) => "as asked",
        (_, PlanSource::Tuned) => "measured to be the fastest",
        (Path::Unfused, PlanSource::Model) if pads => PADS,
        (_, PlanSource::Model) => "expected to be the fastest",
    };
    PathChoice { path, delivery: None, summation: None, order, tile, sweeps, source, why }
}

const PADS: &str = "a shard fills less than half a tile, and fused tiles do not straddle shards";

/// The same of a GEMM+ReduceScatter: fused, tiles are delivered in one of two ways.
pub(crate) fn reduce_scatter(chosen: Chosen, delivery: delivery::Choice) -> PathChoice {
    let choice = choice(chosen);
    if choice.path != Path::Fused {
        return choice;
    }
    let why = match chosen.source {
        PlanSource::Forced => with_delivery!("as asked", delivery),
        PlanSource::Tuned => with_delivery!("measured to be the fastest", delivery),
        PlanSource::Model => with_delivery!("expected to be the fastest", delivery),
    };
    PathChoice { delivery: Some(delivery.delivery()), why, ..choice }
}

/// The same of a GEMM+AllReduce: one-shot, tiles straddle no shards, because there are none, nor can shards go one by one; in two
/// steps, they are summed by their owners, and then gathered.
pub(crate) fn all_reduce(chosen: Chosen, delivery: delivery::Choice, one_shot: bool) -> PathChoice {
    let choice = choice(chosen);
    let (path, source) = (choice.path, choice.source);
    let fused = path == Path::Fused;
    let why = match (path, source) {
        (Path::Local, _) => choice.why,
        (Path::Unfused, PlanSource::Model) if chosen.pads && !one_shot => PADS,
        (_, PlanSource::Forced) if one_shot => "as asked; few rows, so every rank sums all rows itself",
        (Path::Fused, _) if one_shot => {
            "few rows: tiles go to all ranks at once, and each sums all rows itself"
        }
        (_, _) if one_shot => "few rows, so every rank sums all rows itself, after the GEMM",
        (Path::Fused, PlanSource::Forced) => {
            with_delivery!(
                "as asked; each rank sums a shard of the rows, and the shards are gathered",
                delivery
            )
        }
        (Path::Fused, _) => {
            with_delivery!("tiles go to the rows' owners, whose sums are gathered", delivery)
        }
        (_, PlanSource::Forced) => {
            "as asked; each rank sums a shard of the rows, and the shards are gathered"
        }
        (_, _) => "each rank sums a shard of the rows, and the shards are gathered",
    };
    let delivery = if one_shot { Delivery::Direct } else { delivery.delivery() };
    PathChoice { delivery: fused.then_some(delivery), why, ..choice }
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

    #[test]
    fn a_choice_says_who_made_it_and_why() {
        use PlanSource::{Forced, Model, Tuned};
        let relayed = delivery::Choice::RelayedToOtherGpus;
        for (path, source, pads, why) in [
            (Path::Local, Model, false, "one rank"),
            (Path::Fused, Model, false, "expected"),
            (Path::Unfused, Model, true, "half a tile"),
            (Path::Unfused, Tuned, true, "measured"),
            (Path::Chunked, Forced, false, "as asked"),
        ] {
            let sweeps = Sweeps::ONE_BY_ONE;
            let chosen = Chosen { path, source, pads, order: "ring", tile: None, sweeps };
            let scattered = reduce_scatter(chosen, relayed);
            assert!(choice(chosen).why.contains(why) && scattered.why.contains(why), "{scattered:?}");
            assert_eq!(scattered.delivery.is_some(), path == Path::Fused);
            for one_shot in [false, true] {
                let reduced = all_reduce(chosen, relayed, one_shot);
                let delivery = if one_shot { Delivery::Direct } else { Delivery::Relayed };
                assert_eq!(reduced.delivery, (path == Path::Fused).then_some(delivery), "{reduced:?}");
                assert_eq!((reduced.path, reduced.source, reduced.order), (path, source, "ring"));
                assert!(path == Path::Local || one_shot == reduced.why.contains("few rows"), "{reduced:?}");
            }
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
