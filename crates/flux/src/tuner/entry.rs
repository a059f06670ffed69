//! What was measured of one layer for about so many rows.

use crate::planner::{OpKind, Plan, digest};
use flux_swizzle::{Pattern, TileShape};
use serde::{Deserialize, Serialize};

/// What decides how long calls take: what was measured under one key says nothing of another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// The GPU, or the processor.
    pub gpu: String,
    /// The GPUs' driver.
    pub driver: String,
    /// A digest of what connects the ranks, and how they are spread over it.
    pub topology: String,
    /// A digest of the kernels; of the host backend, the version.
    pub kernels: String,
    /// The operation.
    pub op: OpKind,
    /// Type of the elements.
    pub dtype: String,
    /// Rows of the whole weight.
    pub n: usize,
    /// Columns of the whole weight.
    pub k: usize,
    /// Ranks.
    pub world_size: usize,
    /// Rows of the calls that were measured: a power of two.
    pub m: usize,
}

/// What a plan took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The path.
    pub path: String,
    /// Whether it was one-shot.
    pub one_shot: bool,
    /// Who moved data.
    pub direction: String,
    /// How tiles were delivered, if they were.
    pub delivery: Option<String>,
    /// In how many chunks a shard travelled.
    pub chunks_per_shard: usize,
    /// Who sent to whom.
    pub order: String,
    /// The tile, if it was another one than the kernels' own choice.
    pub tile: Option<String>,
    /// The median time of a call, in µs.
    pub us: f64,
    /// The distance of the quartiles over that.
    pub spread: f64,
}

/// What was measured of a layer: the plan that is to be taken, then the others, the fastest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    key: Key,
    plans: Vec<Measured>,
    /// A digest of the rest: what was damaged is not believed.
    check: String,
}

impl Measured {
    pub(crate) fn new(plan: &Plan, shard_rows: usize, us: f64, spread: f64) -> Self {
        Self {
            path: plan.path.to_string(),
            one_shot: plan.one_shot,
            direction: plan.direction.to_string(),
            delivery: plan.delivery.map(|delivery| delivery.to_string()),
            chunks_per_shard: chunks_per_shard(plan, shard_rows),
            order: plan.order.to_string(),
            tile: None,
            us: (us * 10.0).round() / 10.0,
            spread: (spread * 1000.0).round() / 1000.0,
        }
    }

    /// The same, cut into that tile.
    pub(crate) fn cut_into(self, tile: Option<TileShape>) -> Self {
        Self { tile: tile.map(|tile| tile.to_string()), ..self }
    }

    /// The tile, if it was another one than the kernels' own choice.
    pub(crate) fn tile(&self) -> Option<TileShape> {
        self.tile.as_ref()?.parse().ok()
    }

    /// Whether it is that plan, of whatever tile, in a call whose largest shard has so many rows.
    pub(crate) fn is_of(&self, plan: &Plan, shard_rows: usize) -> bool {
        let other = Self::new(plan, shard_rows, self.us, self.spread);
        *self == other.cut_into(self.tile())
    }

    fn is_valid(&self) -> bool {
        let known = |name: &str, names: &[&str]| names.contains(&name);
        known(&self.path, &["fused", "unfused", "chunked"])
            && known(&self.direction, &["push", "pull"])
            && self.delivery.as_ref().is_none_or(|delivery| known(delivery, &["direct", "relayed"]))
            && self.chunks_per_shard > 0
            && self.order.parse::<Pattern>().is_ok()
            && self.tile.is_none() == self.tile().is_none()
            && self.us.is_finite()
            && self.us > 0.0
            && self.spread.is_finite()
            && self.spread >= 0.0
    }
}

fn chunks_per_shard(plan: &Plan, shard_rows: usize) -> usize {
    if plan.chunk_rows == 0 { 1 } else { shard_rows.div_ceil(plan.chunk_rows).max(1) }
}

impl Entry {
    /// Of `plans`, the first is to be taken.
    pub(crate) fn new(key: Key, plans: Vec<Measured>) -> Self {
        let check = check(&key, &plans);
        Self { key, plans, check }
    }

    /// Of what it is.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The plan that is to be taken, then the others.
    pub fn plans(&self) -> impl Iterator<Item = &Measured> {
        self.plans.iter()
    }

    pub(crate) fn measured(&self, plan: &Plan, shard_rows: usize) -> Option<f64> {
        self.plans().find(|measured| measured.is_of(plan, shard_rows)).map(|measured| measured.us)
    }

    pub(crate) fn is_valid(&self) -> bool {
        !self.plans.is_empty()
            && self.plans.iter().all(Measured::is_valid)
            && self.key.m.is_power_of_two()
            && self.check == check(&self.key, &self.plans)
    }

    /// The entry for calls of `m` rows, of those of one layer: the nearest, unless all are more than twice as far away as `m` on
    /// one side of it.
    pub(crate) fn nearest(entries: &[Entry], m: usize) -> Option<&Entry> {
        #[allow(clippy::cast_precision_loss)] // a distance
        let size = |rows: usize| (rows.max(1) as f64).log2();
        let distance = |entry: &Entry| (size(entry.key.m) - size(m)).abs();
        let nearest = entries.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
        let between =
            entries.iter().any(|entry| entry.key.m <= m) && entries.iter().any(|entry| entry.key.m >= m);
        (between || distance(nearest) <= 1.0).then_some(nearest)
    }
}

fn check(key: &Key, plans: &[Measured]) -> String {
    // Strings and numbers always have a text.
    digest(&serde_json::to_string(&(key, plans)).unwrap_or_default())
}
