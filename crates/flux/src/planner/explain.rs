//! Why a call goes the way that it goes.

use super::candidate::Plan;
use super::kind::OpKind;
use crate::DType;
use flux_swizzle::Pattern;
use serde::{Serialize, Serializer};
use std::fmt;

/// Where a decision comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlanSource {
    /// The caller has said so.
    Forced,
    /// It was measured ([`crate::tune`]).
    Tuned,
    /// The model expects it to be the fastest.
    Model,
}

impl fmt::Display for PlanSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PlanSource::Forced => "forced",
            PlanSource::Tuned => "tuned",
            PlanSource::Model => "model",
        })
    }
}

/// What became of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Verdict {
    /// It is what calls do.
    Chosen,
    /// It would take longer.
    Slower {
        /// By how much, in parts of the time of what was chosen.
        by: f64,
    },
    /// It is out of the question, or was not chosen though it would take no longer.
    Rejected {
        /// Why.
        why: String,
    },
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Chosen => f.write_str("chosen"),
            Verdict::Slower { by } => write!(f, "slower by {:.1} %", 100.0 * by),
            Verdict::Rejected { why } => f.write_str(why),
        }
    }
}

/// A way that a call could go.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// The way.
    pub plan: Plan,
    /// What the model expects it to take, in µs; none where it is impossible.
    #[serde(serialize_with = "tenths")]
    pub predicted_us: Option<f64>,
    /// What it took when it was measured, for about so many rows, in µs.
    #[serde(serialize_with = "tenths")]
    pub measured_us: Option<f64>,
    /// What became of it.
    pub verdict: Verdict,
}

/// How calls of an operation with so many rows go, and why: what [`crate::AgGemm::explain`] and its like say. Displayed as a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explain {
    /// The operation.
    pub op: OpKind,
    /// Rows of all ranks together.
    pub m: usize,
    /// Rows of the whole weight.
    pub n: usize,
    /// Columns of the whole weight.
    pub k: usize,
    /// Type of the elements.
    #[serde(serialize_with = "dtype")]
    pub dtype: DType,
    /// How many ranks there are.
    pub world_size: usize,
    /// The machine that the model reckons with.
    pub machine: String,
    /// What calls do.
    pub chosen: Plan,
    /// Who sends to whom, as `--order` takes it: [`Plan::order`] of what is chosen serialises as its class alone.
    #[serde(serialize_with = "text")]
    pub order: Pattern,
    /// Who says which tile the GEMM is cut into: [`Plan::tile`] of what is chosen.
    pub tile_source: PlanSource,
    /// Who says so.
    pub source: PlanSource,
    /// Why, for people.
    pub why: String,
    /// What the model expects that to take, in µs.
    #[serde(serialize_with = "tenths")]
    pub predicted_us: Option<f64>,
    /// All candidates: what was chosen, then the fastest first, and what is impossible last.
    pub candidates: Vec<Candidate>,
}

fn text<S: Serializer>(order: &Pattern, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(order)
}

#[allow(clippy::ref_option)] // as serde calls it
fn tenths<S: Serializer>(us: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
    us.map(|us| (us * 10.0).round() / 10.0).serialize(to)
}

fn dtype<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(dtype)
}

/// No longer order is written out for people.
const MOST_ORDER: usize = 80;

impl fmt::Display for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, m, n, k, dtype, world_size, machine, chosen, source, why, .. } = self;
        writeln!(f, "{op} [{m}, {k}] x [{n}, {k}]^T, {dtype}, {world_size} ranks on {machine}")?;
        // Who says so is said once, where it is one who does.
        let by = Some(self.tile_source).filter(|by| by != source);
        let by = by.map_or_else(String::new, |by| format!(" ({by})"));
        let tile = chosen.tile.map_or_else(String::new, |tile| format!(", tile {tile}{by}"));
        // Of many machines that would be a long line.
        let order = Some(self.order.to_string()).filter(|order| order.len() <= MOST_ORDER);
        let order = order.unwrap_or_else(|| super::candidate::order_name(&self.order).to_owned());
        writeln!(f, "goes {chosen}, order {order}{tile} ({source}: {why})")?;
        let us = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"));
        let rows: Vec<[String; 6]> = std::iter::once(
            ["candidate", "order", "tile", "predicted us", "measured us", "verdict"].map(str::to_owned),
        )
        .chain(self.candidates.iter().map(|Candidate { plan, predicted_us, measured_us, verdict }| {
            [
                plan.to_string(),
                super::candidate::order_name(&plan.order).to_owned(),
                plan.tile.map_or_else(|| "-".to_owned(), |tile| tile.to_string()),
                us(*predicted_us),
                us(*measured_us),
                verdict.to_string(),
            ]
        }))
        .collect();
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: [usize; 6] = std::array::from_fn(width);
        for (index, [plan, order, tile, predicted, measured, verdict]) in rows.iter().enumerate() {
            let [a, b, c, d, e, _] = widths;
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "  {plan:a$}  {order:b$}  {tile:c$}  {predicted:>d$}  {measured:>e$}  {verdict}")?;
        }
        Ok(())
    }
}
