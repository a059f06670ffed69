//! An AllGather, and the GEMM that waits for it.

use crate::collective::{Moved, run};
use crate::gemm::{Cut, Sms};
use crate::library::nccl_us;
use crate::operation::{Call, Outcome, Travelling, best, rows_of};
use crate::sweeps::clearly_best;
use crate::{Activity, Baseline, Path, Result, Span};
use flux_swizzle::{Collective, Schedule, Sweeps};

impl Call<'_> {
    /// When all have gathered and multiplied.
    pub(crate) fn all_gather(&self) -> Result<Outcome> {
        let chunks = self.chunks()?;
        let schedule = self.schedules.of(Collective::AllGather, self.pattern, |shard| chunks.count(shard))?;
        let bytes = |shard: usize, chunk: usize| chunks.bytes(shard, chunk);
        let fused = self.plan.path == Path::Fused;
        let start_us = if fused { self.prologue_us() } else { 0.0 };
        if self.plan.path == Path::Unfused && self.style().baseline == Baseline::Nccl {
            let done = nccl_us(self.machine, self.problem) + self.gemm_us(self.problem.m);
            return Ok(self.outcome(vec![done; self.machine.gpus()], None, Vec::new()));
        }
        let moved = run(self.machine, &schedule, self.costs(), &bytes, start_us, &[]);
        let mut timeline = Vec::new();
        self.spans(&schedule, &moved, &mut timeline);
        let first = Arrived::new(&schedule, &moved, &chunks, 0, start_us);
        let (sweeps, cut) = clearly_best(self.sweeps(&chunks), |sweeps| {
            Ok(self.gather_cut(&first, (&moved, &chunks), sweeps, start_us))
        })?;
        let done = (0..self.machine.gpus()).map(|rank| {
            let arrived = Arrived::new(&schedule, &moved, &chunks, rank, start_us);
            let arrived = self.swept_gates(arrived, sweeps);
            let end = match self.plan.path {
                Path::Fused => self.gated_gemm(rank, &arrived, &moved, cut, start_us, &mut timeline),
                Path::Chunked => self.chunked_gemms(rank, &arrived, &mut timeline),
                Path::Unfused => {
                    let end = arrived.all_us + self.gemm_us(self.problem.m);
                    self.span(&mut timeline, (rank, Activity::Multiply, None), (arrived.all_us, end));
                    end
                }
            };
            end.max(arrived.all_us)
        });
        let done = done.collect();
        Ok(Outcome {
            tile: self.fused_tile(&cut),
            sweeps,
            rounded: chunks.is_rounded(),
            ..self.outcome(done, Some(&moved), timeline)
        })
    }

    /// Row tiles of `height` rows of the order of an AllGather's GEMM, and when each can be computed.
    fn gates(&self, arrived: &Arrived, height: usize, visit: &mut dyn FnMut(usize, f64, usize)) {
        if !self.style().straddles {
            for &(gate, shard, rows) in &arrived.chunks {
                visit(rows.div_ceil(height), gate, shard);
            }
            return;
        }
        let tiles = self.problem.m.div_ceil(height);
        // By row tile: when the last of the shards that it touches is there.
        let mut gates = vec![0.0_f64; tiles];
        for &shard in &arrived.order {
            let touched = rows_of(&self.shards.range(shard), height);
            gates[touched].iter_mut().for_each(|gate| *gate = gate.max(arrived.by_shard[shard]));
        }
        let mut visited = vec![false; tiles];
        for &shard in &arrived.order {
            for tile in rows_of(&self.shards.range(shard), height) {
                if !std::mem::replace(&mut visited[tile], true) {
                    visit(1, gates[tile], shard);
                }
            }
        }
    }

    /// The same where what is swept together waits for the last of it.
    fn swept_gates(&self, mut arrived: Arrived, sweeps: Sweeps) -> Arrived {
        if sweeps != Sweeps::ONE_BY_ONE {
            for places in self.swept(sweeps.of(arrived.chunks.len())) {
                let swept = &mut arrived.chunks[places];
                let gate = swept.iter().fold(0.0_f64, |gate, chunk| gate.max(chunk.0));
                swept.iter_mut().for_each(|chunk| chunk.0 = gate);
            }
        }
        arrived
    }

    /// The fastest cut, as the rank sees it to which this has arrived, and when it is done.
    fn gather_cut(
        &self,
        arrived: &Arrived,
        (moved, chunks): (&Moved, &Travelling),
        sweeps: Sweeps,
        start_us: f64,
    ) -> (f64, Cut) {
        let gpu = &self.machine.node().gpu;
        let arrived = self.swept_gates(arrived.clone(), sweeps);
        let row_tiles = |height: usize| {
            let mut count = 0;
            self.gates(&arrived, height, &mut |tiles, _, _| count += tiles);
            count
        };
        let reads = self.reads_again(chunks, sweeps);
        let cuts = Cut::all(gpu, self.tiles(), self.problem, (self.style().splits, reads), row_tiles);
        let time = |cut: &Cut| self.gated_gemm(0, &arrived, moved, *cut, start_us, &mut Vec::new());
        best(cuts, time)
    }

    /// The GEMM that waits for what arrives, tile by tile.
    fn gated_gemm(
        &self,
        rank: usize,
        arrived: &Arrived,
        moved: &Moved,
        cut: Cut,
        start_us: f64,
        timeline: &mut Vec<Span>,
    ) -> f64 {
        let clock = moved.clock(rank);
        let launched = start_us + self.machine.node().gpu.launch_us;
        let mut sms = Sms::new(cut.sms, clock.work_at(launched));
        let mut end = clock.work_at(launched);
        // Units since all SMs last waited.
        let mut unbroken = 0;
        self.span(timeline, (rank, Activity::Prepare, None), (0.0, launched));
        self.gates(arrived, cut.tile.rows, &mut |tiles, gate_us, shard| {
            let units = cut.units(tiles, self.problem.n);
            if units == 0 {
                return;
            }
            let computed = sms.compute(units, cut.part_us, clock.work_at(gate_us));
            unbroken = if clock.work_at(gate_us) > end { units } else { unbroken + units };
            end = end.max(computed.end_us);
            let [free, begin, until] =
                [computed.free_us, computed.begin_us, computed.end_us].map(|work| clock.time_of(work));
            self.span(timeline, (rank, Activity::Wait, Some(shard)), (free, begin));
            self.span(timeline, (rank, Activity::Multiply, Some(shard)), (begin, until));
        });
        clock.time_of(end - cut.saved_us(unbroken))
    }

    /// A GEMM for each shard, as it arrives.
    fn chunked_gemms(&self, rank: usize, arrived: &Arrived, timeline: &mut Vec<Span>) -> f64 {
        let mut end: f64 = 0.0;
        for &shard in &arrived.order {
            let begin = end.max(arrived.by_shard[shard]);
            self.span(timeline, (rank, Activity::Wait, Some(shard)), (end, begin));
            end = begin + self.gemm_us(self.shards.rows(shard));
            self.span(timeline, (rank, Activity::Multiply, Some(shard)), (begin, end));
        }
        end
    }
}

/// When what a rank gathers is there.
#[derive(Clone)]
struct Arrived {
    /// When, the shard, and the rows, in the order in which they are multiplied.
    chunks: Vec<(f64, usize, usize)>,
    by_shard: Vec<f64>,
    order: Vec<usize>,
    all_us: f64,
}

impl Arrived {
    fn new(schedule: &Schedule, moved: &Moved, chunks: &Travelling, rank: usize, start_us: f64) -> Self {
        let order = schedule.shard_order(rank);
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); schedule.world_size()];
        for &index in schedule.arrivals(rank) {
            let transfer = &schedule.transfers()[index];
            times[transfer.shard].resize(chunks.count(transfer.shard), start_us);
            times[transfer.shard][transfer.chunk] = moved.spans[index].1;
        }
        let time = |shard: usize, chunk: usize| times[shard].get(chunk).copied().unwrap_or(start_us);
        let of_shard = |shard: usize| {
            (0..chunks.count(shard)).map(move |chunk| (shard, chunk, chunks.chunks.rows(shard, chunk).len()))
        };
        let arrived = order.iter().flat_map(|&shard| of_shard(shard));
        let arrived = arrived.map(|(shard, chunk, rows)| (time(shard, chunk), shard, rows)).collect();
        let by_shard: Vec<f64> =
            times.iter().map(|times| times.iter().copied().fold(start_us, f64::max)).collect();
        let all_us = by_shard.iter().copied().fold(0.0, f64::max);
        Self { chunks: arrived, by_shard, order, all_us }
    }
}
