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

mod built;
mod candidate;
mod explain;
mod facts;
mod host;
mod kind;
mod machine;
mod model;
mod orders;
mod overlaps;
mod preview;
mod reasons;
#[cfg(test)]
mod tests;
mod tiles;
mod weigh;
mod wishes;

pub use candidate::Plan;
pub use explain::{Candidate, Explain, PlanSource, Verdict};
pub use kind::OpKind;
pub use machine::{SimMachine, machine_of};
pub use preview::{explain, explain_on};

pub(crate) use built::Built;
pub(crate) use facts::{Surroundings, digest};
pub(crate) use kind::Layer;
pub(crate) use tiles::{expected, next_best};
pub(crate) use wishes::Wishes;

use crate::delivery::Choice;
use crate::tuner::Entry;
use crate::{Group, OpSpec, Path, PathPreference, Result, TileShape};
use candidate::{Ground, order_name};
use facts::Facts;
use flux_swizzle::Sweeps;
use model::{Model, Prediction};
use orders::Orders;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, RwLock};
use weigh::{Pick, Weighed};

/// Up to so many ranks, each number of rows is planned by itself: that takes about a millisecond.
const EXACT_RANKS: usize = 16;

/// Which way calls with so many rows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) path: Path,
    pub(crate) source: PlanSource,
    /// Tiles would have been mostly padding.
    pub(crate) pads: bool,
    /// The class of the order in which ranks exchange.
    pub(crate) order: &'static str,
    /// The tile that was asked for, or measured to be the best, or overlaps best.
    pub(crate) tile: Option<TileShape>,
    /// How many shards are swept together.
    pub(crate) sweeps: Sweeps,
}

/// What a call is expected to take, or why that cannot be reckoned.
type Reckoned = std::result::Result<Prediction, String>;

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
    /// By rows of a call. Mostly read, by all ranks at once.
    chosen: RwLock<BTreeMap<usize, Chosen>>,
    /// With many ranks, what was reckoned to build the operation: a call of the most rows is planned by it.
    reckoned: Mutex<Vec<(usize, Plan, Reckoned)>>,
}

impl Planner {
    /// Plans what `spec` is to be built for. Among processes it is a step that all take together.
    pub(crate) fn new(group: &Group, op: OpKind, spec: &OpSpec) -> Result<Self> {
        tiles::check(group, spec)?;
        let mut layer = Layer::new(op, spec, group.world_size());
        let facts = Facts::agreed(group, &layer)?;
        if facts.through_host() {
            layer.panels.get_or_insert(1); // there, chunks travel by whole rows
        }
        if facts.through_host() || (op == OpKind::AgGemm && facts.share_gpus()) {
            // There a taper may decide; and beside GEMMs of the same GPU pushes take several times as long as by themselves.
            layer.sweeps.get_or_insert(Sweeps::ONE_BY_ONE);
        }
        let mut planner = Self {
            ground: Ground {
                orders: Orders::of_group(group, op, spec, &facts)?,
                through_host: facts.through_host(),
                several_nodes: !group.members().space.reach().is_complete(),
                tile: group.any_launcher().tile(spec.dtype)?,
                padding_loses: group.backend() == flux_memory::Backend::Cuda,
            },
            usual_delivery: Choice::new(spec.delivery, group),
            model: facts.machine.model()?.cut_into(spec.tile)?,
            tuned: facts.tuned,
            layer,
            wishes: Wishes::from(spec),
            max_m: spec.max_m,
            built: None,
            group: Some(group.clone()),
            chosen: RwLock::default(),
            reckoned: Mutex::default(),
        };
        planner.built = Some(planner.build()?);
        Ok(planner)
    }

    /// Which way calls of `m` rows go: planned at the first of them, and remembered.
    pub(crate) fn choose(&self, m: usize) -> Result<Chosen> {
        let m = self.planned_rows(m);
        if let Some(&chosen) = self.chosen.read().unwrap_or_else(PoisonError::into_inner).get(&m) {
            return Ok(chosen);
        }
        let chosen = self.plan(m)?;
        self.chosen.write().unwrap_or_else(PoisonError::into_inner).insert(m, chosen);
        Ok(chosen)
    }

    /// As calls of how many rows those of `m` rows are planned: with more ranks a simulation takes longer, and there are to be few.
    fn planned_rows(&self, m: usize) -> usize {
        if self.layer.world_size <= EXACT_RANKS || m == 0 {
            return m;
        }
        let one_shot_rows = self.built.as_ref().map_or(0, |built| built.one_shot_rows);
        m.next_power_of_two().min(if m <= one_shot_rows { one_shot_rows } else { self.max_m })
    }

    fn plan(&self, m: usize) -> Result<Chosen> {
        let span = tracing::debug_span!("plan", op = %self.layer.op, m);
        let _span = span.enter();
        if self.is_local() {
            return Ok(Chosen {
                path: Path::Local,
                source: PlanSource::Model,
                pads: false,
                order: "none",
                tile: self.layer.tile,
                sweeps: Sweeps::ONE_BY_ONE,
            });
        }
        let weighed = self.weigh(m, |plan| self.unfit(m, plan).is_none())?;
        let fits = |of: &Weighed| self.unfit(m, &of.possible.plan).is_none();
        let pick = self.pick(m, &weighed, fits)?;
        let pads = weighed.iter().any(|of| of.pads.is_some());
        let chosen = match pick {
            Some(Pick { index, source, tile, .. }) => {
                let plan = &weighed[index].possible.plan;
                let tile = match self.layer.tile.or(tile) {
                    Some(tile) => Some(tile),
                    None => self.overlapped_tile(m, plan)?,
                };
                Chosen {
                    path: plan.path,
                    source,
                    pads,
                    order: order_name(&plan.order),
                    tile,
                    sweeps: plan.sweeps,
                }
            }
            None => {
                let (order, one_shot) = (order_name(&self.built().order), m <= self.built().one_shot_rows);
                let sweeps = self.layer.sweeps.filter(|_| self.wishes.taken() == Path::Fused && !one_shot);
                Chosen {
                    path: self.wishes.taken(),
                    source: self.source(),
                    pads,
                    order,
                    tile: self.layer.tile,
                    sweeps: sweeps.unwrap_or_default(),
                }
            }
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

    /// Why a call of the operation as it is built cannot go that way.
    fn unfit(&self, m: usize, plan: &Plan) -> Option<String> {
        self.built.as_ref()?.fits(plan, &self.layer, m)
    }
}
