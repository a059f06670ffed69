//! Candidates beside each other, and the best of them.

use super::candidate::{self, Plan, Possible, pads};
use super::model::Prediction;
use super::{EXACT_RANKS, PlanSource, Planner, Reckoned};
use crate::tuner::Entry;
use crate::{Path, PathPreference, Result, TileShape};
use flux_sim::Schedules;
use std::sync::PoisonError;

/// A candidate with all that is known of it.
pub(super) struct Weighed {
    pub(super) possible: Possible,
    pub(super) prediction: Option<Prediction>,
    /// Why the model cannot reckon with it.
    pub(super) unreckoned: Option<String>,
    pub(super) measured_us: Option<f64>,
    pub(super) pads: Option<&'static str>,
}

/// Which candidate was taken.
pub(super) struct Pick {
    pub(super) index: usize,
    pub(super) source: PlanSource,
    pub(super) why: String,
    /// The tile that was measured to be the best, if it is not the kernels' own choice.
    pub(super) tile: Option<TileShape>,
}

impl Planner {
    /// All candidates; those that are `wanted` and possible with what they are expected to take.
    pub(super) fn weigh(&self, m: usize, wanted: impl Fn(&Plan) -> bool) -> Result<Vec<Weighed>> {
        let built_chunk = self.built.as_ref().map(|built| built.chunks.of(m));
        let all = candidate::all(&self.layer, &self.ground, &self.wishes, (m, built_chunk))?;
        let entry = Entry::nearest(&self.tuned, m);
        let schedules = Schedules::default();
        let weigh = |mut possible: Possible| {
            let plan = &possible.plan;
            let modelled =
                wanted(plan) && possible.excluded.is_none() && plan.path != Path::CommunicationOnly;
            let predicted = modelled.then(|| self.predict(&schedules, m, plan)).transpose();
            let (prediction, unreckoned) =
                predicted.map_or_else(|error| (None, Some(error)), |us| (us, None));
            let shard_rows = self.layer.shards(m)?.max_rows();
            let measured_us = entry.and_then(|entry| entry.measured(plan, shard_rows));
            let pads = pads(&self.layer, &self.ground, m, plan)?;
            possible.plan.tile = prediction.and_then(|prediction| prediction.tile);
            if possible.plan.path == Path::Fused && !possible.plan.one_shot {
                // Of what cannot be reckoned with, as asked.
                let sweeps = prediction.map_or(self.layer.sweeps, |prediction| Some(prediction.sweeps));
                possible.plan.sweeps = sweeps.unwrap_or_default();
            }
            Ok(Weighed { possible, prediction, unreckoned, measured_us, pads })
        };
        all.into_iter().map(weigh).collect()
    }

    /// What a call is expected to take. With many ranks that takes long, and is not done twice.
    fn predict(&self, schedules: &Schedules, m: usize, plan: &Plan) -> Reckoned {
        // The model has limits of its own; what it cannot reckon with is still possible.
        let reckon = || {
            let predicted = self.model.predict(schedules, &self.layer, m, plan);
            predicted.map_err(|error| error.to_string())
        };
        if self.layer.world_size <= EXACT_RANKS {
            return reckon();
        }
        let mut reckoned = self.reckoned.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = reckoned.iter().find(|(rows, of, _)| (*rows, of) == (m, plan)) {
            return known.2.clone();
        }
        let prediction = reckon();
        // Calls of other rows keep what they chose, not all that they chose from.
        if self.built.is_none() {
            reckoned.push((m, plan.clone(), prediction.clone()));
        }
        prediction
    }

    /// The best of those that `fit`.
    pub(super) fn pick(
        &self,
        m: usize,
        weighed: &[Weighed],
        fits: impl Fn(&Weighed) -> bool,
    ) -> Result<Option<Pick>> {
        let allowed = |of: &Weighed| of.possible.excluded.is_none() && fits(of);
        let open: Vec<usize> = (0..weighed.len()).filter(|&index| allowed(&weighed[index])).collect();
        if let Some(entry) =
            Entry::nearest(&self.tuned, m).filter(|_| self.wishes.path == PathPreference::Auto)
        {
            let shard_rows = self.layer.shards(m)?.max_rows();
            let found = entry.plans().find_map(|measured| {
                let of = |&index: &usize| measured.is_of(&weighed[index].possible.plan, shard_rows);
                Some((open.iter().copied().find(of)?, measured.tile()))
            });
            if let Some((index, tile)) = found {
                let why = format!("measured with {} rows", entry.key().m);
                return Ok(Some(Pick { index, source: PlanSource::Tuned, why, tile }));
            }
        }
        // Where all would be padding, padding it is.
        let padded =
            |&index: &usize| weighed[index].pads.is_some() && self.wishes.path == PathPreference::Auto;
        let full: Vec<usize> = open.iter().copied().filter(|index| !padded(index)).collect();
        let open = if full.is_empty() { open } else { full };
        let us = |index: usize| weighed[index].prediction.map(|prediction| prediction.us);
        let built = self.built.clone().unwrap_or_else(|| self.usual());
        let goes = |path| {
            let is_usual = |&index: &usize| {
                let plan = &weighed[index].possible.plan;
                plan.path == path && built.fits(plan, &self.layer, m).is_none()
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
        let fastest = open.iter().copied().find(|&other| us(other) == Some(faster)).unwrap_or(index);
        let why = match (us(index), &weighed[index].unreckoned) {
            (Some(own), _) if faster < own => format!(
                "another is expected to be faster by {:.1} %, which is within the model's error of {:.0} %",
                100.0 * (1.0 - faster / own),
                100.0 * self.model.margin(weighed[fastest].possible.plan.path)
            ),
            (None, Some(limit)) => format!("the usual way, for the model cannot reckon with it: {limit}"),
            (None, None) => "the usual way, for nothing is known of it".to_owned(),
            _ => "expected to be the fastest".to_owned(),
        };
        let why = match self.source() {
            PlanSource::Forced if open.len() == 1 => "as asked".to_owned(),
            PlanSource::Forced => format!("the path as asked, the rest {why}"),
            _ => why,
        };
        Ok(Some(Pick { index, source: self.source(), why, tile: None }))
    }
}
