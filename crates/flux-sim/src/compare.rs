//! The ways of an operation beside each other.

use crate::gemm::fastest_us;
use crate::library::nccl_us;
use crate::{Baseline, Machine, Outcome, Path, Plan, Problem, Result, Schedules};

/// What the ways of an operation take, in µs.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The fastest GEMM alone.
    pub gemm_us: f64,
    /// The communication alone.
    pub communication_us: f64,
    /// One after the other.
    pub unfused_us: f64,
    /// A GEMM for each shard.
    pub chunked_us: f64,
    /// The fused way.
    pub fused: Outcome,
}

impl Comparison {
    /// Effective communication time: what the fused way takes beyond the GEMM.
    pub fn ect_us(&self) -> f64 {
        self.fused.total_us - self.gemm_us
    }

    /// Overlap efficiency: the part of the unfused way's effective communication time that the fused way hides. 0 where there is
    /// nothing to hide.
    pub fn efficiency(&self) -> f64 {
        let unfused = self.unfused_us - self.gemm_us;
        if unfused > 0.0 { 1.0 - self.ect_us() / unfused } else { 0.0 }
    }
}

/// Simulates all ways; of `plan`, all but the path counts.
pub fn compare(machine: &Machine, problem: &Problem, plan: &Plan) -> Result<Comparison> {
    let schedules = Schedules::default();
    let way = |path, timeline| schedules.simulate(machine, problem, &Plan { path, timeline, ..plan.clone() });
    let gemm_us = fastest_us(&machine.node().gpu, problem, problem.m);
    let unfused_us = way(Path::Unfused, false)?.total_us;
    Ok(Comparison {
        gemm_us,
        communication_us: match plan.style.baseline {
            Baseline::Nccl => nccl_us(machine, problem),
            // What is unfused has nothing to wait for but itself.
            Baseline::Copies => (unfused_us - gemm_us).max(0.0),
        },
        unfused_us,
        chunked_us: way(Path::Chunked, false)?.total_us,
        fused: way(Path::Fused, plan.timeline)?,
    })
}
