//! The planner: which of the ways that a call could go it does go, and why.
//!
//! Two times something is decided. When an operation is built, what its memory and its streams are for: who moves data, how tiles
//! are delivered, how large chunks are, up to how many rows an AllReduce goes one-shot; for the most rows that a call may have. And
//! when a number of rows is seen for the first time, the path of calls with so many. Each time there are *candidates*, all ways
//! that there are; what the caller has decided ([`Wishes`]) and what is impossible leaves some of them; and of these the one is
//! taken that was measured to be the fastest ([`crate::tune`]), or else the one that the [`Model`] expects to be. What is known from
//! measurements of other machines to be good, the *usual* plan, stays unless another one is expected to be faster by more than the
//! model's own error.
//!
//! Ranks that plan differently would wait for each other for ever. Ranks of one process share a planner; processes agree, when an
//! operation is built, on what rank 0 knows: of the machine, and of what was measured. The rest is arithmetic.

mod candidate;
mod explain;
mod facts;
mod host;
mod kind;
mod machine;
mod model;
mod preview;
#[cfg(test)]
mod tests;
mod wishes;

pub use candidate::Plan;
pub use explain::{Candidate, Explain, PlanSource, Verdict};
pub use kind::OpKind;
pub use preview::{explain, explain_on, explain_on_topology};

pub(crate) use facts::{Surroundings, digest};
pub(crate) use kind::Layer;
pub(crate) use wishes::Wishes;

use crate::delivery::Choice;
use crate::plan::{chunk_rows, one_shot_rows};
use crate::tuner::Entry;
use crate::{Delivery, Direction, Group, OpSpec, Path, PathPreference, Result};
use candidate::{Ground, Possible, pads};
use facts::{Facts, order_of};
use flux_launch::Problem;
use model::{Model, Prediction};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Up to so many ranks, each number of rows is planned by itself: that takes about a millisecond.
const EXACT_RANKS: usize = 16;

/// What an operation is built for, however many rows a call has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Built {
    pub(crate) direction: Direction,
    pub(crate) delivery: Choice,
    pub(crate) chunk_rows: usize,
    pub(crate) one_shot_rows: usize,
}

/// Which way calls with so many rows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) path: Path,
    pub(crate) source: PlanSource,
    /// Tiles would have been mostly padding.
    pub(crate) pads: bool,
}

/// Plans the calls of one operation.
#[derive(Debug)]
pub(crate) struct Planner {
    layer: Layer,
    wishes: Wishes,
    ground: Ground,
    /// What speaks for a delivery where nothing else does.
    usual_delivery: Choice,
    model: Model,
    tuned: Vec<Entry>,
    max_m: usize,
    built: Option<Built>,
    /// Whose kernels' tiles are to be named.
    group: Option<Group>,
    chosen: Mutex<BTreeMap<usize, Chosen>>,
}

/// A candidate with all that is known of it.
struct Weighed {
    possible: Possible,
    prediction: Option<Prediction>,
    measured_us: Option<f64>,
    pads: Option<&'static str>,
}

/// Which candidate was taken.
struct Pick {
    index: usize,
    source: PlanSource,
    why: String,
}

impl Planner {
    /// Plans what `spec` is to be built for. Among processes it is a step that all take together.
    pub(crate) fn new(group: &Group, op: OpKind, spec: &OpSpec) -> Result<Self> {
        let layer = Layer::new(op, spec, group.world_size());
        let facts = Facts::agreed(group, &layer)?;
        let mut planner = Self {
            ground: Ground {
                orders: vec![order_of(group)],
                through_host: facts.through_host(),
                tile: group.any_launcher().tile(spec.dtype)?,
                padding_loses: group.backend() == flux_memory::Backend::Cuda,
            },
            usual_delivery: Choice::new(spec.delivery, group),
            model: facts.machine.model()?,
            tuned: facts.tuned,
            layer,
            wishes: Wishes::from(spec),
            max_m: spec.max_m,
            built: None,
            group: Some(group.clone()),
            chosen: Mutex::default(),
        };
        planner.built = Some(planner.build()?);
        Ok(planner)
    }

    /// What the operation is built for; a planner that was made by [`Planner::new`] knows.
    pub(crate) fn built(&self) -> Built {
        self.built.unwrap_or_else(|| self.usual())
    }

    /// What is built where nothing speaks for anything else.
    fn usual(&self) -> Built {
        let through_host = self.ground.through_host && self.layer.op != OpKind::GemmRs;
        let shard_rows = self.layer.shards(self.max_m).map_or(0, |shards| shards.max_rows());
        let row_bytes = self.layer.row_bytes();
        let one_shot = self.wishes.one_shot_rows.unwrap_or_else(|| one_shot_rows(row_bytes)).min(self.max_m);
        Built {
            direction: match self.wishes.direction {
                Some(direction) => direction,
                None if through_host => Direction::Pull,
                None => Direction::Push,
            },
            delivery: self.usual_delivery,
            chunk_rows: self.wishes.chunk_rows.unwrap_or_else(|| chunk_rows(row_bytes, shard_rows)),
            one_shot_rows: if self.layer.op == OpKind::GemmAr { one_shot } else { 0 },
        }
    }

    fn build(&self) -> Result<Built> {
        let usual = self.usual();
        if self.layer.world_size == 1 || self.max_m == 0 {
            return Ok(usual);
        }
        let mut built = usual;
        if self.layer.op == OpKind::GemmAr && self.wishes.one_shot_rows.is_none() {
            built.one_shot_rows = self.one_shot_rows(usual.one_shot_rows)?;
        }
        // The largest calls take the longest; in two steps, if there are any.
        let weighed = self.weigh(self.max_m, |_| true)?;
        let in_steps = |of: &Weighed| !of.possible.plan.one_shot || built.one_shot_rows >= self.max_m;
        if let Some(pick) = self.pick(self.max_m, &weighed, in_steps)? {
            let plan = &weighed[pick.index].possible.plan;
            built.direction = self.wishes.direction.unwrap_or(plan.direction);
            built.delivery = match plan.delivery {
                Some(delivery) if !plan.one_shot && delivery != usual.delivery.delivery() => {
                    Choice::planned(delivery)
                }
                _ => usual.delivery,
            };
            if plan.chunk_rows > 0 && plan.path == Path::Fused {
                built.chunk_rows = plan.chunk_rows;
            }
        }
        Ok(built)
    }

    /// Up to how many rows one-shot is the best, of `most`.
    fn one_shot_rows(&self, most: usize) -> Result<usize> {
        let paths = match self.wishes.path {
            PathPreference::Auto => vec![Path::Fused, Path::Unfused],
            _ => vec![self.wishes.taken(), Path::Unfused],
        };
        let tried = |plan: &Plan| paths.contains(&plan.path) && plan.direction == self.usual().direction;
        let fewer = std::iter::successors(Some(most), |rows| Some(rows / 4));
        for rows in fewer.take_while(|&rows| rows > 0) {
            let weighed = self.weigh(rows, &tried)?;
            if let Some(pick) = self.pick(rows, &weighed, |of| tried(&of.possible.plan))?
                && weighed[pick.index].possible.plan.one_shot
            {
                return Ok(rows);
            }
        }
        Ok(0)
    }

    /// Which way calls of `m` rows go: planned at the first of them, and remembered.
    pub(crate) fn choose(&self, m: usize) -> Result<Chosen> {
        let m = self.planned_rows(m);
        let lock = || self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&chosen) = lock().get(&m) {
            return Ok(chosen);
        }
        let chosen = self.plan(m)?;
        lock().insert(m, chosen);
        Ok(chosen)
    }

    /// As calls of how many rows those of `m` rows are planned: with more ranks a simulation takes longer, and there are to be few.
    fn planned_rows(&self, m: usize) -> usize {
        let one_shot = m <= self.built().one_shot_rows;
        let most = if one_shot { self.built().one_shot_rows } else { self.max_m };
        if self.layer.world_size > EXACT_RANKS && m > 0 { m.next_power_of_two().min(most) } else { m }
    }

    fn plan(&self, m: usize) -> Result<Chosen> {
        let span = tracing::debug_span!("plan", op = %self.layer.op, m);
        let _span = span.enter();
        if self.is_local() {
            return Ok(Chosen { path: Path::Local, source: PlanSource::Model, pads: false });
        }
        let weighed = self.weigh(m, |plan| self.unfit(m, plan).is_none())?;
        let fits = |of: &Weighed| self.unfit(m, &of.possible.plan).is_none();
        let pick = self.pick(m, &weighed, fits)?;
        let pads = weighed.iter().any(|of| of.pads.is_some());
        let chosen = match pick {
            Some(Pick { index, source, .. }) => {
                Chosen { path: weighed[index].possible.plan.path, source, pads }
            }
            None => Chosen { path: self.wishes.taken(), source: self.source(), pads },
        };
        tracing::debug!(path = %chosen.path, source = %chosen.source, "planned");
        Ok(chosen)
    }

    fn is_local(&self) -> bool {
        self.layer.world_size == 1 && self.wishes.path == PathPreference::Auto
    }

    /// Who decides where nothing was measured.
    fn source(&self) -> PlanSource {
        if self.wishes.path == PathPreference::Auto { PlanSource::Model } else { PlanSource::Forced }
    }

    /// All candidates; those that are `wanted` and possible with what they are expected to take.
    fn weigh(&self, m: usize, wanted: impl Fn(&Plan) -> bool) -> Result<Vec<Weighed>> {
        let built_chunk = self.built.map(|built| built.chunk_rows);
        let all = candidate::all(&self.layer, &self.ground, &self.wishes, (m, built_chunk))?;
        let entry = Entry::nearest(&self.tuned, m);
        let weigh = |mut possible: Possible| {
            let plan = &possible.plan;
            let modelled =
                wanted(plan) && possible.excluded.is_none() && plan.path != Path::CommunicationOnly;
            let prediction = modelled.then(|| self.model.predict(&self.layer, m, plan)).transpose();
            let shard_rows = self.layer.shards(m)?.max_rows();
            let measured_us = entry.and_then(|entry| entry.measured(plan, shard_rows));
            let prediction = prediction.unwrap_or_else(|error| {
                // The model has limits of its own; what it cannot reckon with is still possible.
                tracing::debug!(%error, %plan, "no prediction");
                None
            });
            let pads = pads(&self.layer, &self.ground, m, plan)?;
            possible.plan.tile = prediction.and_then(|prediction| prediction.tile);
            Ok(Weighed { possible, prediction, measured_us, pads })
        };
        all.into_iter().map(weigh).collect()
    }

    /// The best of those that `fit`.
    fn pick(&self, m: usize, weighed: &[Weighed], fits: impl Fn(&Weighed) -> bool) -> Result<Option<Pick>> {
        let allowed = |of: &Weighed| of.possible.excluded.is_none() && fits(of);
        let open: Vec<usize> = (0..weighed.len()).filter(|&index| allowed(&weighed[index])).collect();
        if let Some(entry) =
            Entry::nearest(&self.tuned, m).filter(|_| self.wishes.path == PathPreference::Auto)
        {
            let shard_rows = self.layer.shards(m)?.max_rows();
            let found = entry.plans().find_map(|measured| {
                open.iter().copied().find(|&index| measured.is_of(&weighed[index].possible.plan, shard_rows))
            });
            if let Some(index) = found {
                let why = format!("measured with {} rows", entry.key().m);
                return Ok(Some(Pick { index, source: PlanSource::Tuned, why }));
            }
        }
        // Where all would be padding, padding it is.
        let padded =
            |&index: &usize| weighed[index].pads.is_some() && self.wishes.path == PathPreference::Auto;
        let full: Vec<usize> = open.iter().copied().filter(|index| !padded(index)).collect();
        let open = if full.is_empty() { open } else { full };
        let us = |index: usize| weighed[index].prediction.map(|prediction| prediction.us);
        let usual = self.usual();
        let goes = |path| {
            let is_usual = |&index: &usize| {
                let plan = &weighed[index].possible.plan;
                plan.path == path && self.built.unwrap_or(usual).fits(plan, &self.layer, m).is_none()
            };
            open.iter().copied().find(is_usual)
        };
        let incumbent = goes(Path::Fused).or_else(|| goes(Path::Unfused)).or(open.first().copied());
        let Some(incumbent) = incumbent else { return Ok(None) };
        // Beside the incumbent, each counts for what it is surely faster by.
        let handicapped = |index: usize| {
            let margin = self.model.margin(weighed[index].possible.plan.path);
            us(index).map(|us| if index == incumbent { us } else { us / (1.0 - margin) })
        };
        let timed = open.iter().filter_map(|&index| Some((index, handicapped(index)?)));
        let best = timed.min_by(|a, b| a.1.total_cmp(&b.1)).filter(|_| us(incumbent).is_some());
        let index = best.map_or(incumbent, |best| best.0);
        let faster = open.iter().filter_map(|&index| us(index)).fold(f64::INFINITY, f64::min);
        let why = match us(index) {
            Some(own) if faster < own => format!(
                "another is expected to be faster by {:.1} %, which is within the model's error",
                100.0 * (1.0 - faster / own)
            ),
            _ => "expected to be the fastest".to_owned(),
        };
        let why = match self.source() {
            PlanSource::Forced if open.len() == 1 => "as asked".to_owned(),
            PlanSource::Forced => format!("the path as asked, the rest {why}"),
            _ => why,
        };
        Ok(Some(Pick { index, source: self.source(), why }))
    }

    /// Why a call of the operation as it is built cannot go that way.
    fn unfit(&self, m: usize, plan: &Plan) -> Option<String> {
        self.built?.fits(plan, &self.layer, m)
    }

    /// Everything that speaks for the way of calls with `m` rows.
    pub(crate) fn explain(&self, m: usize) -> Result<Explain> {
        Ok(Explain { m, ..self.explain_planned(self.planned_rows(m))? })
    }

    fn explain_planned(&self, m: usize) -> Result<Explain> {
        let weighed = self.weigh(m, |_| true)?;
        let fits = |of: &Weighed| self.unfit(m, &of.possible.plan).is_none();
        let pick = if self.is_local() { None } else { self.pick(m, &weighed, fits)? };
        let time = |of: &Weighed, measured: bool| match measured {
            true => of.measured_us,
            false => of.prediction.map(|prediction| prediction.us),
        };
        // Beside what was measured counts what was measured.
        let by_measured = pick.as_ref().is_some_and(|pick| pick.source == PlanSource::Tuned);
        let chosen_us = pick.as_ref().and_then(|pick| time(&weighed[pick.index], by_measured));
        let verdict = |index: usize, of: &Weighed| {
            if pick.as_ref().is_some_and(|pick| pick.index == index) {
                return Verdict::Chosen;
            }
            let why = |why: &str| Verdict::Rejected { why: why.to_owned() };
            let unfit = self.unfit(m, &of.possible.plan);
            let rejected = match (&of.possible.excluded, of.pads) {
                _ if self.is_local() => Some("one rank has nothing to communicate"),
                (Some(excluded), _) => Some(excluded.as_str()),
                (None, Some(pads)) if !by_measured && self.wishes.path == PathPreference::Auto => Some(pads),
                _ => None,
            };
            match (rejected, time(of, by_measured), chosen_us) {
                (Some(rejected), ..) => why(rejected),
                (None, Some(own), Some(chosen)) if own > 0.9995 * chosen => {
                    Verdict::Slower { by: (own / chosen - 1.0).max(0.0) }
                }
                (None, Some(own), Some(chosen)) => {
                    let reason = unfit.as_deref().unwrap_or("that is within the error");
                    why(&format!("faster by {:.1} %, but {reason}", 100.0 * (1.0 - own / chosen)))
                }
                (None, None, _) if by_measured => why("not measured"),
                _ => why(unfit.as_deref().unwrap_or("nothing is known of it")),
            }
        };
        let mut candidates: Vec<Candidate> = Vec::with_capacity(weighed.len());
        for (index, of) in weighed.iter().enumerate() {
            let mut plan = of.possible.plan.clone();
            plan.tile = self.tile(m, &plan)?.or(plan.tile);
            candidates.push(Candidate {
                predicted_us: of.prediction.map(|prediction| prediction.us),
                measured_us: of.measured_us,
                verdict: verdict(index, of),
                plan,
            });
        }
        let chosen = match &pick {
            Some(pick) => candidates[pick.index].plan.clone(),
            None => self.fallback(m)?,
        };
        let key = |of: &Candidate| (of.verdict != Verdict::Chosen, of.predicted_us.is_none());
        candidates.sort_by(|a, b| {
            let times = a.predicted_us.partial_cmp(&b.predicted_us).unwrap_or(std::cmp::Ordering::Equal);
            key(a).cmp(&key(b)).then(times)
        });
        let Layer { op, n, k, dtype, world_size } = self.layer;
        let (source, why) = match pick {
            Some(pick) => (pick.source, pick.why),
            None if self.is_local() => (PlanSource::Model, "one rank has nothing to communicate".to_owned()),
            None => (self.source(), "as asked".to_owned()),
        };
        Ok(Explain {
            op,
            m,
            n,
            k,
            dtype,
            world_size,
            machine: self.model.machine(),
            predicted_us: candidates
                .first()
                .filter(|of| of.verdict == Verdict::Chosen)
                .and_then(|of| of.predicted_us),
            chosen,
            source,
            why,
            candidates,
        })
    }

    /// What is done where no candidate is left.
    fn fallback(&self, m: usize) -> Result<Plan> {
        let (built, path) = (self.built(), self.plan(m)?.path);
        Ok(Plan {
            path,
            one_shot: self.layer.op == OpKind::GemmAr && m <= built.one_shot_rows,
            direction: built.direction,
            delivery: None,
            chunk_rows: if path == Path::Local { 0 } else { built.chunk_rows },
            order: self.ground.orders[0].clone(),
            tile: None,
        })
    }

    /// The tile that the group's kernels would be cut into: of a GPU's own choice.
    fn tile(&self, m: usize, plan: &Plan) -> Result<Option<crate::TileShape>> {
        let Some(group) = self.group.as_ref().filter(|group| group.backend() == flux_memory::Backend::Cuda)
        else {
            return Ok(None);
        };
        let (n, k) = self.layer.of_rank();
        let fused = plan.path == Path::Fused;
        let shards =
            if fused && !plan.one_shot { self.layer.shards(m)? } else { flux_swizzle::Shards::new(m, 1)? };
        let to_slots = fused && self.layer.op != OpKind::AgGemm;
        let problem = Problem { shards, n, k, aligned: true, to_slots };
        Ok(group.any_launcher().tiling(self.layer.dtype, &problem).ok().map(|tiling| tiling.shape))
    }
}

impl Built {
    /// Why calls of an operation that is built so cannot go that way.
    fn fits(&self, plan: &Plan, layer: &Layer, m: usize) -> Option<String> {
        if layer.op == OpKind::GemmAr && plan.one_shot != (m <= self.one_shot_rows) {
            return Some(format!("it was built to go one-shot up to {} rows", self.one_shot_rows));
        }
        // Tiles of a fused call are sent, whoever moves the rest.
        let moves = plan.delivery.is_none() || (layer.op == OpKind::GemmAr && !plan.one_shot);
        if moves && plan.direction != self.direction {
            return Some(format!("it was built to {}", self.direction));
        }
        let delivery = self.delivery.delivery();
        if plan.delivery.is_some_and(|own| !plan.one_shot && own != delivery) {
            let way = if delivery == Delivery::Direct { "directly" } else { "relayed" };
            return Some(format!("it was built to have tiles delivered {way}"));
        }
        let shard_rows = layer.shards(m).map_or(0, |shards| shards.max_rows());
        let by_chunks = plan.path == Path::Fused && plan.delivery != Some(Delivery::Direct);
        if by_chunks && plan.chunk_rows.min(shard_rows) != self.chunk_rows.min(shard_rows) {
            return Some(format!("it was built for chunks of {} rows", self.chunk_rows));
        }
        None
    }
}
