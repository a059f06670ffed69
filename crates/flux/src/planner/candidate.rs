//! The ways that a call can go.

use super::kind::{Layer, OpKind};
use super::orders::{MOST_RANKS, Orders};
use super::wishes::Wishes;
use crate::plan::{chunk_rows, one_shot_rows};
use crate::{Delivery, Direction, Path, PathPreference, Result, TileShape};
use flux_swizzle::{Pattern, Sweeps};
use serde::{Serialize, Serializer};

/// Shards travel whole, or in so many chunks each.
const PIECES: [usize; 3] = [1, 2, 4];
/// Chunks of fewer bytes are not tried: what a chunk costs by itself is to be small beside it.
const LEAST_CHUNK_BYTES: usize = 1 << 20;

/// One way for a call to go.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// What is overlapped with what.
    #[serde(serialize_with = "text")]
    pub path: Path,
    /// [`OpKind::GemmAr`]: tiles go to all ranks at once, and each sums all rows; else each sums a shard, and shards are gathered.
    pub one_shot: bool,
    /// Who moves what is not sent by the GEMM's own tiles.
    #[serde(serialize_with = "text")]
    pub direction: Direction,
    /// How tiles get to the ranks that sum them, of a fused call that has such tiles; never [`Delivery::Auto`].
    #[serde(serialize_with = "optional_text")]
    pub delivery: Option<Delivery>,
    /// Rows in which shards travel; one-shot, none do.
    pub chunk_rows: usize,
    /// Who sends to whom.
    #[serde(serialize_with = "order")]
    pub order: Pattern,
    /// The tile that the GEMM is expected to be cut into, where that is known.
    #[serde(serialize_with = "tile")]
    pub tile: Option<TileShape>,
    /// How many shards the fused GEMM sweeps together.
    #[serde(serialize_with = "text")]
    pub sweeps: Sweeps,
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path)?;
        if self.one_shot {
            f.write_str(", one-shot")?;
        }
        if let Some(delivery) = self.delivery {
            write!(f, ", {delivery}")?;
        }
        write!(f, ", {}", self.direction)?;
        if self.chunk_rows > 0 {
            write!(f, ", chunks of {} rows", self.chunk_rows)?;
        }
        if self.sweeps != Sweeps::ONE_BY_ONE {
            write!(f, ", sweeps {}", self.sweeps)?;
        }
        Ok(())
    }
}

fn text<S: Serializer>(value: &impl std::fmt::Display, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_str(value)
}

fn optional_text<S: Serializer>(
    value: &Option<impl std::fmt::Display>,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    value.as_ref().map(ToString::to_string).serialize(to)
}

fn order<S: Serializer>(order: &Pattern, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.serialize_str(order_name(order))
}

fn tile<S: Serializer>(tile: &Option<TileShape>, to: S) -> std::result::Result<S::Ok, S::Error> {
    tile.map(|tile| [tile.rows, tile.columns]).serialize(to)
}

/// As `flux topo` names them.
pub(crate) fn order_name(order: &Pattern) -> &'static str {
    match order {
        Pattern::Mesh(ranks) if ranks.len() < 2 => "none",
        Pattern::Mesh(_) => "full-mesh",
        Pattern::Ring(groups) if groups.len() < 2 => "ring",
        Pattern::Ring(_) => "two-level ring",
        Pattern::Nested(_) => "two-level",
    }
}

/// What the operation is built on, as far as it decides what can be done.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub(crate) orders: Orders,
    /// What peers access lies in pinned host memory of GPUs.
    pub(crate) through_host: bool,
    /// Some ranks cannot address each other's memory.
    pub(crate) several_nodes: bool,
    /// Fused tiles do not straddle shards; where these fill less than half of this, they are mostly padding.
    pub(crate) tile: TileShape,
    /// Where that is measured to lose.
    pub(crate) padding_loses: bool,
}

/// A way, and why it is out of the question, if it is.
pub(crate) struct Possible {
    pub(crate) plan: Plan,
    pub(crate) excluded: Option<String>,
}

const fn is_large_enough(layer: &Layer, rows: usize) -> bool {
    rows.saturating_mul(layer.row_bytes()) >= LEAST_CHUNK_BYTES
}

/// Whether what travels at once, of so many rows, may also travel in several chunks.
pub(crate) fn can_be_cut(layer: &Layer, rows: usize) -> bool {
    PIECES.iter().any(|&pieces| pieces > 1 && is_large_enough(layer, rows.div_ceil(pieces)))
}

/// All ways of a call of `m` rows, also those that are out of the question.
/// `built_chunk` is what the operation was built for.
pub(crate) fn all(
    layer: &Layer,
    ground: &Ground,
    wishes: &Wishes,
    (m, built_chunk): (usize, Option<usize>),
) -> Result<Vec<Possible>> {
    let shard_rows = layer.shards(m)?.max_rows();
    let whole = wishes.chunk_rows.unwrap_or_else(|| chunk_rows(layer.row_bytes(), shard_rows));
    let mut chunks: Vec<usize> = match wishes.chunk_rows {
        Some(rows) => vec![rows],
        None => PIECES.iter().map(|pieces| whole.div_ceil(*pieces).max(1)).collect(),
    };
    chunks.dedup();
    let fine = |rows: usize| rows == whole || is_large_enough(layer, rows);
    chunks.retain(|&rows| fine(rows));
    // There, a taper cuts what is to be finer; and one of so many shards is fine enough.
    if ground.through_host || layer.world_size > MOST_RANKS {
        chunks.truncate(1);
    }
    if let Some(rows) = built_chunk.map(|rows| rows.min(whole)).filter(|rows| !chunks.contains(rows)) {
        chunks.push(rows);
    }
    let mut plans = Vec::new();
    for direction in [Direction::Push, Direction::Pull] {
        for order in ground.orders.of(layer.op, direction) {
            let mut add = |path, one_shot, direction, delivery, chunk_rows| {
                let order = order.clone();
                let (tile, sweeps) = (None, Sweeps::ONE_BY_ONE);
                plans.push(Plan { path, one_shot, direction, delivery, chunk_rows, order, tile, sweeps });
            };
            if layer.op == OpKind::AgGemm {
                chunks.iter().for_each(|&rows| add(Path::Fused, false, direction, None, rows));
            } else if direction == Direction::Push || layer.op == OpKind::GemmAr {
                add(Path::Fused, false, direction, Some(Delivery::Direct), whole);
                for &rows in &chunks {
                    add(Path::Fused, false, direction, Some(Delivery::Relayed), rows);
                }
            }
            add(Path::Unfused, false, direction, None, whole);
            add(Path::Chunked, false, direction, None, whole);
            if wishes.path == PathPreference::CommunicationOnly {
                (0..=usize::from(layer.op == OpKind::GemmAr))
                    .for_each(|one_shot| add(Path::CommunicationOnly, one_shot > 0, direction, None, whole));
            }
        }
    }
    if layer.op == OpKind::GemmAr {
        // One-shot, all send to all, whatever the order.
        let mut add = |path, direction, delivery| {
            let order = Pattern::full_mesh(layer.world_size);
            let (one_shot, chunk_rows, tile, sweeps) = (true, 0, None, Sweeps::ONE_BY_ONE);
            plans.push(Plan { path, one_shot, direction, delivery, chunk_rows, order, tile, sweeps });
        };
        add(Path::Fused, Direction::Push, Some(Delivery::Direct));
        [Direction::Push, Direction::Pull]
            .into_iter()
            .for_each(|direction| add(Path::Unfused, direction, None));
    }
    let excluded = |plan: &Plan| {
        wishes.against(layer.op, plan, m).or_else(|| impossible(layer, ground, wishes, m, plan))
    };
    Ok(plans.into_iter().map(|plan| Possible { excluded: excluded(&plan), plan }).collect())
}

fn impossible(layer: &Layer, ground: &Ground, wishes: &Wishes, m: usize, plan: &Plan) -> Option<String> {
    let most = wishes.one_shot_rows.unwrap_or_else(|| one_shot_rows(layer.row_bytes()));
    if plan.one_shot && m > most {
        return Some(format!(
            "one-shot, every rank has slots for all ranks' rows: there are some for {most} rows at most"
        ));
    }
    if layer.op == OpKind::GemmAr && m == 0 && !plan.one_shot {
        return Some("no rows at all are always reduced one-shot".into());
    }
    let pulls = plan.direction == Direction::Pull && layer.op != OpKind::GemmRs && !plan.one_shot;
    if ground.several_nodes && !ground.through_host && pulls && wishes.direction.is_none() {
        return Some("between nodes, what is pulled is not passed on within them".into());
    }
    if ground.through_host
        && plan.direction == Direction::Push
        && layer.op == OpKind::GemmAr
        && !plan.one_shot
    {
        return Some("sums would be pushed from host memory to host memory, which GPUs do not do".into());
    }
    None
}

/// Why a fused call is out of the question where nobody has asked for it, nor measured it.
pub(crate) fn pads(layer: &Layer, ground: &Ground, m: usize, plan: &Plan) -> Result<Option<&'static str>> {
    let straddles = plan.path == Path::Fused && !plan.one_shot && ground.padding_loses;
    let pads = straddles && 2 * layer.shards(m)?.max_rows() < ground.tile.rows;
    Ok(pads.then_some("a shard fills less than half a tile, and fused tiles do not straddle shards"))
}
