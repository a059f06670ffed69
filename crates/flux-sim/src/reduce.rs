//! A GEMM, and the AllReduce of its result.

use crate::collective::run;
use crate::operation::{Call, Outcome};
use crate::{Activity, Baseline, Path, Result};
use flux_swizzle::Collective;

impl Call<'_> {
    /// An AllReduce: a ReduceScatter, then an AllGather of the sums.
    pub(crate) fn in_two_steps(&self) -> Result<Outcome> {
        if self.plan.path == Path::Unfused && self.style().baseline == Baseline::Nccl {
            return self.reduce_scatter();
        }
        let first = self.reduce_scatter()?;
        let chunks = self.chunks()?;
        let schedule = self.schedules.of(Collective::AllGather, self.pattern, |shard| chunks.count(shard))?;
        let bytes = |shard: usize, chunk: usize| chunks.bytes(shard, chunk);
        let moved = run(self.machine, &schedule, self.costs(), &bytes, first.total_us, &[]);
        // Each rank then copies what has come to where it is wanted; the last shard after it has come.
        let all = self.memory_us(2.0 * (self.problem.m * self.problem.row_bytes()) as f64);
        let last = all / self.machine.gpus() as f64;
        let gathered = schedule.arrivals(0).is_empty();
        let mut timeline = first.timeline;
        self.spans(&schedule, &moved, &mut timeline);
        let done = (0..self.machine.gpus()).map(|rank| {
            let arrivals = schedule.arrivals(rank).iter().map(|&index| moved.spans[index].1);
            let arrived = arrivals.fold(first.total_us, f64::max);
            if gathered { arrived } else { arrived + self.machine.node().gpu.launch_us + last }
        });
        let mut outcome = self.outcome(done.collect(), Some(&moved), timeline);
        (outcome.tile, outcome.sweeps, outcome.rounded) = (first.tile, first.sweeps, first.rounded);
        for link in first.links {
            match outcome.links.iter_mut().find(|other| other.name == link.name) {
                Some(other) => other.bytes += link.bytes,
                None => outcome.links.push(link),
            }
        }
        Ok(outcome)
    }

    /// An AllReduce of few rows: each rank's tiles go to all, and each sums all.
    pub(crate) fn one_shot(&self) -> Result<Outcome> {
        let gpu = &self.machine.node().gpu;
        let gpus = self.machine.gpus();
        let bytes = (self.problem.m * self.problem.row_bytes()) as f64;
        let multiplied = self.prologue_us() + self.gemm_us(self.problem.m);
        let schedule = self.schedules.of(Collective::AllGather, self.pattern, |_| 1)?;
        let moved = run(self.machine, &schedule, self.costs(), &|_, _| bytes, multiplied, &[]);
        let mut timeline = Vec::new();
        self.spans(&schedule, &moved, &mut timeline);
        let done = (0..gpus).map(|rank| {
            let arrivals = schedule.arrivals(rank).iter().map(|&index| moved.spans[index].1);
            let arrived = arrivals.fold(multiplied, f64::max);
            let end = arrived + gpu.launch_us + self.memory_us((gpus + 1) as f64 * bytes);
            self.span(&mut timeline, (rank, Activity::Multiply, None), (0.0, multiplied));
            self.span(&mut timeline, (rank, Activity::Wait, None), (multiplied, arrived));
            self.span(&mut timeline, (rank, Activity::Sum, None), (arrived, end));
            end
        });
        let done = done.collect();
        Ok(self.outcome(done, Some(&moved), timeline))
    }
}
