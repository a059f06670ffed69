//! What an operation is built for: what its memory and its streams cannot do otherwise later.

use super::candidate::{Plan, can_be_cut};
use super::kind::{Layer, OpKind};
use super::orders::MOST_RANKS;
use super::weigh::Weighed;
use super::{EXACT_RANKS, Planner};
use crate::delivery::Choice;
use crate::plan::{chunk_rows, one_shot_rows};
use crate::{Delivery, Direction, Error, Path, PathPreference, Result, Taper};
use flux_swizzle::{ChunkRows, Pattern};

/// What an operation is built for, however many rows a call has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Built {
    pub(crate) direction: Direction,
    pub(crate) delivery: Choice,
    /// Rows of a chunk, by the rows of a call.
    pub(crate) chunks: ChunkRows,
    /// Which chunks are cut finer.
    pub(crate) taper: Taper,
    pub(crate) one_shot_rows: usize,
    /// Who sends to whom.
    pub(crate) order: Pattern,
}

impl Planner {
    /// What the operation is built for; a planner that was made by [`Planner::new`] knows.
    pub(crate) fn built(&self) -> Built {
        self.built.clone().unwrap_or_else(|| self.usual())
    }

    /// What is built where nothing speaks for anything else.
    pub(super) fn usual(&self) -> Built {
        let through_host = self.ground.through_host && self.layer.op != OpKind::GemmRs;
        let shard_rows = self.layer.shards(self.max_m).map_or(0, |shards| shards.max_rows());
        let row_bytes = self.layer.row_bytes();
        let one_shot = self.wishes.one_shot_rows.unwrap_or_else(|| one_shot_rows(row_bytes)).min(self.max_m);
        let direction = match self.wishes.direction {
            Some(direction) => direction,
            None if through_host => Direction::Pull,
            None => Direction::Push,
        };
        Built {
            direction,
            order: self.ground.orders.usual(self.layer.op, direction),
            delivery: self.usual_delivery,
            chunks: self.wishes.chunk_rows.unwrap_or_else(|| chunk_rows(row_bytes, shard_rows)).into(),
            taper: self.wishes.taper.unwrap_or(Taper::NONE),
            one_shot_rows: if self.layer.op == OpKind::GemmAr { one_shot } else { 0 },
        }
    }

    /// The best for calls of the most rows; of an AllReduce's forms, for those of few, too.
    pub(super) fn build(&self) -> Result<Built> {
        let usual = self.usual();
        if self.layer.world_size == 1 || self.max_m == 0 {
            return Ok(usual);
        }
        let mut built = usual.clone();
        if self.layer.op == OpKind::GemmAr && self.wishes.one_shot_rows.is_none() {
            built.one_shot_rows = self.one_shot_rows(usual.one_shot_rows)?;
        }
        // The largest calls take the longest; in two steps, if there are any.
        let weighed = self.weigh(self.max_m, |_| true)?;
        let in_steps = |of: &Weighed| !of.possible.plan.one_shot || built.one_shot_rows >= self.max_m;
        if let Some(pick) = self.pick(self.max_m, &weighed, in_steps)? {
            let plan = &weighed[pick.index].possible.plan;
            built.direction = self.wishes.direction.unwrap_or(plan.direction);
            if !plan.one_shot {
                built.order = plan.order.clone();
            }
            built.delivery = match plan.delivery {
                Some(delivery) if !plan.one_shot && delivery != usual.delivery.delivery() => {
                    Choice::planned(delivery)
                }
                _ => usual.delivery,
            };
            if plan.chunk_rows > 0 && plan.path == Path::Fused {
                built.chunks = plan.chunk_rows.into();
            }
        }
        built.chunks = self.chunks(&built)?;
        built.taper = self.taper(&built)?;
        Ok(built)
    }

    /// Rows of a chunk for each number of rows up to which chunks may be worth their while: powers of two, each with the best of a
    /// fused call, and the most, as it is built.
    fn chunks(&self, built: &Built) -> Result<ChunkRows> {
        let shard_rows = |rows: usize| Ok::<_, Error>(self.layer.shards(rows)?.max_rows());
        let at_most = built.chunks.of(self.max_m);
        let is_decided = self.wishes.chunk_rows.is_some()
            || self.ground.through_host // there, a taper cuts
            || self.layer.world_size > EXACT_RANKS // where simulating takes long
            || self.layer.op != OpKind::AgGemm && built.delivery.delivery() == Delivery::Direct;
        if is_decided {
            return Ok(at_most.into());
        }
        let mut by_rows = vec![(self.max_m, at_most)];
        let fewer = std::iter::successors(self.max_m.checked_next_power_of_two(), |rows| Some(rows / 2));
        for rows in fewer.filter(|&rows| rows < self.max_m).take_while(|&rows| rows > built.one_shot_rows) {
            let whole = chunk_rows(self.layer.row_bytes(), shard_rows(rows)?);
            if !can_be_cut(&self.layer, whole) {
                by_rows.push((rows, whole)); // nor can those of fewer
                break;
            }
            let in_chunks = |plan: &Plan| {
                let as_built = Built { chunks: plan.chunk_rows.max(1).into(), ..built.clone() };
                plan.path == Path::Fused && !plan.one_shot && as_built.fits(plan, &self.layer, rows).is_none()
            };
            let weighed = self.weigh(rows, in_chunks)?;
            let pick = self.pick(rows, &weighed, |of| in_chunks(&of.possible.plan))?;
            by_rows.push((rows, pick.map_or(whole, |pick| weighed[pick.index].possible.plan.chunk_rows)));
        }
        Ok(ChunkRows::up_to(by_rows))
    }

    /// Up to how many rows one-shot is the best, of `most`.
    fn one_shot_rows(&self, most: usize) -> Result<usize> {
        let paths = match self.wishes.path {
            PathPreference::Auto => vec![Path::Fused, Path::Unfused],
            _ => vec![self.wishes.taken(), Path::Unfused],
        };
        let tried = |plan: &Plan| paths.contains(&plan.path) && plan.direction == self.usual().direction;
        let fewer = std::iter::successors(Some(most), |rows| Some(rows / 4));
        // Of many ranks, where simulating takes long, for the most alone.
        let tries = if self.layer.world_size > MOST_RANKS { 1 } else { usize::MAX };
        for rows in fewer.take_while(|&rows| rows > 0).take(tries) {
            let weighed = self.weigh(rows, tried)?;
            if let Some(pick) = self.pick(rows, &weighed, |of| tried(&of.possible.plan))?
                && weighed[pick.index].possible.plan.one_shot
            {
                return Ok(rows);
            }
        }
        Ok(0)
    }
}

impl Built {
    /// Why calls of an operation that is built so cannot go that way.
    pub(super) fn fits(&self, plan: &Plan, layer: &Layer, m: usize) -> Option<String> {
        if layer.op == OpKind::GemmAr && plan.one_shot != (m <= self.one_shot_rows) {
            return Some(format!("it is built to go one-shot up to {} rows", self.one_shot_rows));
        }
        // Tiles of a fused call are sent, whoever moves the rest.
        let moves = plan.delivery.is_none() || (layer.op == OpKind::GemmAr && !plan.one_shot);
        if moves && plan.direction != self.direction {
            return Some(format!("it is built to {}", self.direction));
        }
        if !plan.one_shot && plan.order != self.order {
            return Some(format!("it is built to exchange in the order {}", self.order));
        }
        let delivery = self.delivery.delivery();
        if plan.delivery.is_some_and(|own| !plan.one_shot && own != delivery) {
            let way = if delivery == Delivery::Direct { "directly" } else { "relayed" };
            return Some(format!("it is built to have tiles delivered {way}"));
        }
        let shard_rows = layer.shards(m).map_or(0, |shards| shards.max_rows());
        let by_chunks = plan.path == Path::Fused && plan.delivery != Some(Delivery::Direct);
        let chunk_rows = self.chunks.of(m);
        if by_chunks && plan.chunk_rows.min(shard_rows) != chunk_rows.min(shard_rows) {
            return Some(format!("it is built for chunks of {chunk_rows} rows in such calls"));
        }
        None
    }
}
