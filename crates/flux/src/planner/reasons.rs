//! Why calls go the way that they go, and no other.

use super::candidate::Plan;
use super::kind::{Layer, OpKind};
use super::weigh::Weighed;
use super::{Candidate, Chosen, Explain, PlanSource, Planner, Verdict, tiles};
use crate::{Error, Path, PathPreference, Result, TileShape};
use flux_memory::Backend;

impl Planner {
    /// Everything that speaks for the way of calls with `m` rows.
    pub(crate) fn explain(&self, m: usize) -> Result<Explain> {
        if m > self.max_m {
            return Err(Error::TooManyRows { m, max_m: self.max_m });
        }
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
                    let percent = 100.0 * self.model.margin(of.possible.plan.path);
                    let within = match by_measured {
                        true => "that is within the error".to_owned(),
                        false => format!("that is within the model's error of {percent:.0} %"),
                    };
                    let reason = unfit.unwrap_or(within);
                    why(&format!("faster by {:.1} %, but {reason}", 100.0 * (1.0 - own / chosen)))
                }
                (None, None, _) if by_measured => why("not measured"),
                _ => match (unfit, &of.unreckoned) {
                    (Some(unfit), _) => why(&unfit),
                    (None, Some(limit)) => why(&format!("the model cannot reckon with it: {limit}")),
                    (None, None) => why("nothing is known of it"),
                },
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
        let tuned_tile = pick.as_ref().and_then(|pick| pick.tile);
        let chosen = Plan { tile: tuned_tile.or(chosen.tile), ..chosen };
        let tile_source = match (self.layer.tile, tuned_tile) {
            (Some(_), _) => PlanSource::Forced,
            (None, Some(_)) => PlanSource::Tuned,
            (None, None) => PlanSource::Model,
        };
        let key = |of: &Candidate| (of.verdict != Verdict::Chosen, of.predicted_us.is_none());
        candidates.sort_by(|a, b| {
            let times = a.predicted_us.partial_cmp(&b.predicted_us).unwrap_or(std::cmp::Ordering::Equal);
            key(a).cmp(&key(b)).then(times)
        });
        let Layer { op, n, k, dtype, world_size, .. } = self.layer;
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
            order: chosen.order.clone(),
            chosen,
            tile_source,
            source,
            why,
            candidates,
        })
    }

    /// What is done where no candidate is left.
    fn fallback(&self, m: usize) -> Result<Plan> {
        let (built, Chosen { path, sweeps, .. }) = (self.built(), self.plan(m)?);
        Ok(Plan {
            path,
            one_shot: self.layer.op == OpKind::GemmAr && m <= built.one_shot_rows,
            direction: built.direction,
            delivery: None,
            chunk_rows: if path == Path::Local { 0 } else { built.chunks.of(m) },
            order: built.order,
            tile: None,
            sweeps,
        })
    }

    /// The tile that the group's kernels are cut into, of a GPU: as asked, what overlaps best, or their own choice.
    fn tile(&self, m: usize, plan: &Plan) -> Result<Option<TileShape>> {
        let Some(group) = self.group.as_ref().filter(|group| group.backend() == Backend::Cuda) else {
            return Ok(self.layer.tile);
        };
        match self.overlapped_tile(m, plan)? {
            Some(tile) => Ok(Some(tile)),
            None => Ok(tiles::expected(group, &self.layer, m, plan)?.first().copied()),
        }
    }
}
