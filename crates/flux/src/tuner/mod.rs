//! The tuner: measures the best few candidates of the model on the machine, through the operations themselves, and keeps what it
//! has found.

mod cache;
mod entry;
mod measure;
#[cfg(test)]
mod tests;

pub use entry::{Entry, Key, Measured};

pub(crate) use cache::Cache;

use crate::call::kernel_size;
use crate::planner::{self, Explain, Layer, OpKind, Plan, PlanSource, Verdict};
use crate::{Group, OpSpec, Path, Result, TileShape};
use measure::{Ratio, Timing, measure, samples_of};
use std::collections::BTreeSet;

/// How to tune.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TuneConfig {
    /// For calls of how many rows; each is rounded up to a power of two.
    pub rows: Vec<usize>,
    /// Measures also what has been measured before. What was found then stays, unless something else is faster by more than the
    /// measurements' uncertainty.
    pub force: bool,
    /// How many candidates are measured, those that the model expects to be the fastest; of each path at least one, in any case, and the
    /// first with two tiles, where kernels have several.
    pub candidates: usize,
    /// How often each is measured.
    pub samples: usize,
    /// Whether what is found is kept, for operations to go by.
    pub keep: bool,
}

impl TuneConfig {
    /// For calls of so many rows, with all else as it is by default.
    pub fn new(rows: &[usize]) -> Self {
        Self { rows: rows.to_vec(), force: false, candidates: 4, samples: 9, keep: true }
    }
}

/// There are fewer; and more samples tell nothing new.
const MOST_CANDIDATES: usize = 32;
const MOST_SAMPLES: usize = 10_000;

/// How far tuning has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TuneProgress {
    /// Rows of the calls that are measured now.
    pub m: usize,
    /// Samples that have been taken.
    pub done: usize,
    /// Samples that there will be at most, of all numbers of rows together.
    pub all: usize,
}

/// What was found for calls of so many rows.
#[derive(Clone, Debug, PartialEq)]
pub struct TuneOutcome {
    /// What is kept.
    pub entry: Entry,
    /// What would have been taken without measuring, and by how much it is slower than the fastest; if it was measured now, and not
    /// before.
    pub planned: Option<(Measured, Loss)>,
}

/// By how much something is slower.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// In parts of the other's time: the median of pairs of samples, which other samples have said are of the fastest. Chance may make it
    /// less than nothing.
    pub by: f64,
    /// The standard error of that.
    pub uncertainty: f64,
}

/// Measures how calls of an operation of `group` that is built for `spec` go best, for each of the numbers of rows. What the caller
/// has decided in `spec` stays decided; its `max_m` does not matter. Among processes it is a step that all take together.
///
/// Operations that are built afterwards go by it: those of the group, and of all groups whose [`crate::GroupConfig::tuning`] names
/// the same file. Those that are built already do not.
pub fn tune(
    group: &Group,
    op: OpKind,
    spec: &OpSpec,
    config: &TuneConfig,
    mut progress: impl FnMut(TuneProgress),
) -> Result<Vec<TuneOutcome>> {
    for &rows in &config.rows {
        kernel_size("the number of rows", rows)?;
    }
    let mut rows: Vec<usize> =
        config.rows.iter().map(|rows| rows.clamp(&1, &(1 << 30)).next_power_of_two()).collect();
    rows.sort_unstable();
    rows.dedup();
    let layer = Layer::new(op, spec, group.world_size());
    let (few, samples) = (config.candidates.clamp(1, MOST_CANDIDATES), config.samples.clamp(1, MOST_SAMPLES));
    let each = samples_of(few + 4, samples);
    let mut outcomes = Vec::with_capacity(rows.len());
    for (index, &m) in rows.iter().enumerate() {
        let mut now = TuneProgress { m, done: index * each, all: rows.len() * each };
        progress(now);
        let key = group.surroundings()?.key(group, &layer, m);
        let before = group.cache().get(&key).cloned();
        // What rank 0 knows decides, on all ranks.
        let known = group.all_gather(&[u8::from(before.is_some())])?;
        let known = known.first().is_some_and(|known| known == &[1]);
        if let Some(entry) = before.clone().filter(|_| known && !config.force) {
            outcomes.push(TuneOutcome { entry, planned: None });
            continue;
        } else if known && !config.force {
            continue; // another process knows it, and tells when it is needed
        }
        let spec = OpSpec { max_m: m, tune_rows: Vec::new(), ..spec.clone() };
        let explain = crate::planner::explain(group, op, &spec, m)?;
        let mut plans = best_few(&explain, few);
        if plans.is_empty() {
            continue; // nothing to choose
        }
        let tuned_tile = explain.chosen.tile.filter(|_| explain.tile_source == PlanSource::Tuned);
        add_tiles(group, &layer, m, tuned_tile, &mut plans)?;
        let timings = measure(group, (op, &spec), (m, &plans), samples, || {
            now.done += 1;
            progress(now);
        })?;
        let shard_rows = layer.shards(m)?.max_rows();
        let kept = before.as_ref().and_then(|entry| entry.plans().next());
        let is_kept =
            |plan: &Plan| kept.is_some_and(|kept| kept.is_of(plan, shard_rows) && kept.tile() == plan.tile);
        let kept = plans.iter().position(is_kept);
        let planned = measured(&plans[0], shard_rows, &timings[0]);
        let chosen = chosen(&timings, kept.unwrap_or(0));
        let entry = match (before, kept) {
            (Some(before), Some(kept)) if kept == chosen => before,
            _ => entry(key, &plans, &timings, chosen, shard_rows),
        };
        tracing::info!(%op, m, plan = %plans[chosen], us = timings[chosen].us, "tuned");
        if config.keep {
            group.learn(&entry);
        }
        outcomes.push(TuneOutcome { entry, planned: Some((planned, loss(&timings))) });
    }
    Ok(outcomes)
}

/// The plan that would be taken, and then those that are expected to be the fastest; of each path at least one.
fn best_few(explain: &Explain, count: usize) -> Vec<Plan> {
    let possible =
        explain.candidates.iter().filter(|of| of.predicted_us.is_some() || of.verdict == Verdict::Chosen);
    let possible: Vec<&Plan> = possible.map(|of| &of.plan).collect();
    // Of each other order the best, first of all: in many of its ways one goes about as well as another.
    let mut orders = BTreeSet::new();
    let (first, rest): (Vec<&Plan>, Vec<&Plan>) = possible
        .iter()
        .partition(|plan| plan.order == explain.order || orders.insert(plan.order.to_string()));
    let mut few: Vec<Plan> = first.into_iter().chain(rest).take(count).cloned().collect();
    for path in [Path::Fused, Path::Unfused, Path::Chunked] {
        if let Some(plan) = possible.iter().find(|plan| plan.path == path)
            && !few.iter().any(|plan| plan.path == path)
        {
            few.push((*plan).clone());
        }
    }
    few
}

/// The first plan also with the tile that the kernels expect to be the next best, if the caller has not decided: in these, a plan's tile
/// is one that is asked for, or none. `tuned` was measured to be the best before.
fn add_tiles(
    group: &Group,
    layer: &Layer,
    m: usize,
    tuned: Option<TileShape>,
    plans: &mut Vec<Plan>,
) -> Result<()> {
    plans.iter_mut().for_each(|plan| plan.tile = None);
    let Some(first) = plans.first().cloned().filter(|_| layer.tile.is_none()) else { return Ok(()) };
    let expected = planner::expected(group, layer, m, &first)?;
    let next = planner::next_best(&expected, &group.any_launcher().tiles(layer.dtype)?);
    plans[0].tile = tuned;
    let untuned = tuned.is_some().then_some(None);
    let next = next.filter(|&next| Some(next) != tuned).map(Some);
    plans.extend(untuned.into_iter().chain(next).map(|tile| Plan { tile, ..first.clone() }));
    Ok(())
}

fn measured(plan: &Plan, shard_rows: usize, timing: &Timing) -> Measured {
    Measured::new(plan, shard_rows, timing.us, timing.spread).cut_into(plan.tile)
}

/// The fastest beside the `incumbent`, which stays unless the other is faster by more than twice what that is uncertain by.
fn chosen(timings: &[Timing], incumbent: usize) -> usize {
    let beside = |index: usize| timings[index].over(&timings[incumbent]);
    let surely = |&index: &usize| {
        let Ratio { ratio, uncertainty } = beside(index);
        ratio + 2.0 * uncertainty < 1.0
    };
    let faster = (0..timings.len()).filter(|&index| index != incumbent).filter(surely);
    faster.min_by(|&a, &b| beside(a).ratio.total_cmp(&beside(b).ratio)).unwrap_or(incumbent)
}

/// By how much the first is slower than the fastest. Of several that are equally fast, the one that seems the fastest had luck: so which
/// it is is seen in every other sample, and how fast it is in those between, and the other way round.
fn loss(timings: &[Timing]) -> Loss {
    let halves = [0, 1].map(|half| timings.iter().map(|timing| timing.half(half)).collect::<Vec<_>>());
    let seen = |by: &[Timing], of: &[Timing]| {
        let fastest = by.iter().zip(of).min_by(|a, b| a.0.us.total_cmp(&b.0.us));
        fastest.map_or(Ratio { ratio: 1.0, uncertainty: 0.0 }, |(_, fastest)| of[0].over(fastest))
    };
    let [a, b] = [seen(&halves[0], &halves[1]), seen(&halves[1], &halves[0])];
    Loss { by: f64::midpoint(a.ratio, b.ratio) - 1.0, uncertainty: a.uncertainty.hypot(b.uncertainty) / 2.0 }
}

fn entry(key: Key, plans: &[Plan], timings: &[Timing], chosen: usize, shard_rows: usize) -> Entry {
    let mut order: Vec<usize> = (0..plans.len()).collect();
    order.sort_by(|&a, &b| (a != chosen).cmp(&(b != chosen)).then(timings[a].us.total_cmp(&timings[b].us)));
    let of = |index: usize| measured(&plans[index], shard_rows, &timings[index]);
    Entry::new(key, order.into_iter().map(of).collect())
}

/// What an operation asks for when it is built: [`OpSpec::tune_rows`].
pub(crate) fn lazily(group: &Group, op: OpKind, spec: &OpSpec) -> Result<()> {
    if !spec.tune_rows.is_empty() && group.world_size() > 1 {
        tune(group, op, spec, &TuneConfig::new(&spec.tune_rows), |_| {})?;
    }
    Ok(())
}
