//! Published results of others, and what the simulation says in their place.
//!
//! Shapes are those of a rank's GEMM. E, the overlap efficiency, is derived from the published times where it was not published.

mod original;
mod rows;

pub(crate) use rows::{Published, Row, rows};

use flux_sim::{Comparison, Machine, Plan, Problem, compare};

/// What a row is about.
pub(crate) type Of = Vec<(Problem, Plan)>;

/// A row beside its simulation: E in percent.
pub(crate) struct Compared {
    pub(crate) row: Row,
    pub(crate) published: f64,
    pub(crate) simulated: f64,
    #[allow(dead_code)] // the test compares times, the example does not
    pub(crate) comparisons: Vec<Comparison>,
}

pub(crate) fn compared() -> Vec<Compared> {
    rows().into_iter().map(Compared::new).collect()
}

impl Compared {
    fn new(row: Row) -> Self {
        let machine = Machine::preset(row.machine, row.nodes).expect("a preset");
        let comparison =
            |(problem, plan): &(Problem, Plan)| compare(&machine, problem, plan).expect("a valid row");
        let comparisons: Vec<Comparison> = row.of.iter().map(comparison).collect();
        let values = || comparisons.iter().map(|comparison| 100.0 * comparison.efficiency());
        let mean = values().sum::<f64>() / comparisons.len() as f64;
        let (published, simulated) = match row.published {
            Published::Efficiency(value) | Published::Mean(value) => (value, mean),
            Published::Least(value) => (value, values().fold(f64::INFINITY, f64::min)),
            Published::Most(value) => (value, values().fold(f64::NEG_INFINITY, f64::max)),
            // The GEMM alone was not published: the simulated one stands in on both sides.
            Published::Times { fused_us, unfused_us } => {
                let gemm_us = comparisons[0].gemm_us;
                (100.0 * (1.0 - (fused_us - gemm_us) / (unfused_us - gemm_us)), mean)
            }
        };
        Self { row, published, simulated, comparisons }
    }

    pub(crate) fn off_by(&self) -> f64 {
        self.simulated - self.published
    }
}
