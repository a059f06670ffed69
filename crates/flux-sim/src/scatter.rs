//! A GEMM, and the ReduceScatter of its result.

use crate::collective::{Milestones, Moved, run};
use crate::gemm::{Cut, Sms};
use crate::library::nccl_us;
use crate::operation::{Call, Outcome, Travelling, best, rows_of};
use crate::sweeps::clearly_best;
use crate::{Activity, Baseline, Path, Result, Span};
use flux_swizzle::{Chunks, Collective, Pattern, Schedule, Sweeps};

/// How long loads are held up while the link is busy with what the same SMs store, in times of that. Measured between two H200s: 1.7
/// where tiles for the peer came first, 0.3 and 0.8 where the half for the rank itself did. So half of the tiles, being its own and
/// first, save 1.2; of eight ranks an eighth is, and saves a quarter of that.
const STARVED: f64 = 1.4;
/// Row tiles whose columns flux computes together, so that what is loaded of A and B is used again.
const SWEPT_TILES: usize = 8;
/// Of more ranks, where simulating takes long, shards are swept one by one unless something else is said.
const MOST_COMPARED: usize = 16;

impl Call<'_> {
    /// A ReduceScatter, and when all have their sums.
    pub(crate) fn reduce_scatter(&self) -> Result<Outcome> {
        let (usual, others) = self.sweeps(&self.chunks()?);
        let others = if self.machine.gpus() > MOST_COMPARED { &[] } else { others };
        let of = |sweeps| self.reduce_scatter_in(sweeps).map(|outcome| (outcome.total_us, outcome));
        Ok(clearly_best((usual, others), of)?.1)
    }

    /// The same in those sweeps.
    fn reduce_scatter_in(&self, sweeps: Sweeps) -> Result<Outcome> {
        let mut chunks = self.chunks()?;
        let sums = self.style().sums_on_the_way || (self.style().sums_in_nodes && self.joins_meshes());
        if !sums {
            chunks.panels = self.panels(&chunks.chunks);
        }
        let collective = if sums { Collective::ReduceScatter } else { Collective::Scatter };
        let schedule = self.schedules.of(collective, self.pattern, |shard| chunks.parts(shard))?;
        let bytes = |shard: usize, part: usize| chunks.bytes(shard, part);
        let gpus = self.machine.gpus();
        if self.plan.path == Path::Unfused && self.style().baseline == Baseline::Nccl {
            let done = nccl_us(self.machine, self.problem) + self.gemm_us(self.problem.m);
            return Ok(self.outcome(vec![done; gpus], None, Vec::new()));
        }
        let start_us = self.prologue_us();
        let orders: Vec<Vec<usize>> = (0..gpus).map(|rank| self.order(&schedule, rank)).collect();
        let cut = self.scatter_cut(&chunks, &orders[0], sweeps, start_us);
        let computed: Vec<Computing> =
            orders.iter().map(|order| self.computing(&chunks, (order, sweeps), cut, start_us)).collect();
        // Where one node stands for all, what a rank computes when is what its like in the first node does.
        let milestones = |rank: usize| -> Milestones {
            let (model, by) = (rank % chunks.alike, rank - rank % chunks.alike);
            let of_model = computed[model].milestones.iter();
            of_model.map(|&(work, shard, chunk)| (work, (shard + by) % gpus, chunk)).collect()
        };
        let milestones: Vec<Milestones> = (0..gpus).map(milestones).collect();
        let moved = run(self.machine, &schedule, self.costs(), &bytes, start_us, &milestones);
        let mut timeline = Vec::new();
        self.spans(&schedule, &moved, &mut timeline);
        let done = (0..gpus).map(|rank| {
            let clock = moved.clock(rank);
            let Computing { spans, end_us, .. } = &computed[rank];
            self.span(&mut timeline, (rank, Activity::Prepare, None), (0.0, start_us));
            for &(shard, begin, end) in spans {
                let of = (rank, Activity::Multiply, Some(shard));
                self.span(&mut timeline, of, (clock.time_of(begin), clock.time_of(end)));
            }
            let summed = self.summed(rank, &schedule, &moved, clock.time_of(*end_us), &mut timeline);
            match spans.iter().find(|(shard, ..)| *shard == rank) {
                Some(&(_, begin, _)) if self.folds() => {
                    summed.max(self.folded_us(rank, &cut, clock.time_of(begin), &schedule, &moved, &chunks))
                }
                _ => summed,
            }
        });
        let done = done.collect();
        Ok(Outcome {
            tile: self.fused_tile(&cut),
            sweeps,
            rounded: chunks.is_rounded(),
            ..self.outcome(done, Some(&moved), timeline)
        })
    }

    /// When a rank that has multiplied all by then has summed its shard.
    fn summed(
        &self,
        rank: usize,
        schedule: &Schedule,
        moved: &Moved,
        multiplied_us: f64,
        timeline: &mut Vec<Span>,
    ) -> f64 {
        let gpu = &self.machine.node().gpu;
        let arrivals = schedule.arrivals(rank);
        let of_own = arrivals.iter().filter(|&&index| schedule.transfers()[index].shard == rank);
        let arrived = of_own.clone().map(|&index| moved.spans[index].1).fold(0.0, f64::max);
        let mut sources: Vec<usize> = of_own.map(|&index| schedule.transfers()[index].source).collect();
        sources.sort_unstable();
        sources.dedup();
        let parts = sources.len() as f64;
        let part = (self.shards.rows(rank) * self.problem.row_bytes()) as f64;
        let begin = multiplied_us.max(arrived);
        self.span(timeline, (rank, Activity::Wait, Some(rank)), (multiplied_us, begin));
        let end = if self.folds() {
            // The last part to come is added by itself, the others meanwhile.
            let all = self.memory_us(parts * part);
            (multiplied_us + all).max(arrived + all / parts.max(1.0))
        } else if parts > 0.0 {
            let barrier = if self.plan.path == Path::Fused { self.barrier_us() } else { 0.0 };
            begin + barrier + gpu.launch_us + self.memory_us((parts + 2.0) * part)
        } else {
            begin
        };
        self.span(timeline, (rank, Activity::Sum, Some(rank)), (begin, end));
        end
    }

    /// Whether ranks are connected as several nodes of several GPUs are, all to all within: then ways join in the node that they
    /// leave, and nowhere else.
    fn joins_meshes(&self) -> bool {
        let (nodes, each) = (self.machine.nodes(), self.machine.node().gpus);
        nodes > 1 && each > 1 && *self.pattern == Pattern::nodes(nodes, &Pattern::full_mesh(each))
    }

    fn folds(&self) -> bool {
        self.style().folds_sum && self.plan.path == Path::Fused
    }

    /// When the rank's own tiles are done, the first of which begins at `begin_us`: each, when it has been multiplied, holds its SM
    /// until the other ranks' parts of it have come. Wave by wave.
    fn folded_us(
        &self,
        rank: usize,
        cut: &Cut,
        begin_us: f64,
        schedule: &Schedule,
        moved: &Moved,
        chunks: &Travelling,
    ) -> f64 {
        let (rows, height) = (self.shards.rows(rank), cut.tile.rows);
        let arrivals = schedule.arrivals(rank).iter().map(|&index| (&schedule.transfers()[index], index));
        // The first row of each part, its panel, and when it came.
        let parts: Vec<(usize, usize, f64)> = arrivals
            .filter(|(transfer, _)| transfer.shard == rank)
            .map(|(transfer, index)| {
                let (chunk, panel) = (transfer.chunk / chunks.panels, transfer.chunk % chunks.panels);
                let first = chunks.chunks.rows(rank, chunk).start - chunks.chunks.rows(rank, 0).start;
                (first, panel, moved.spans[index].1)
            })
            .collect();
        // All rows before a sweep's, and of these the panels up to that one.
        let arrived = |sweep: usize, panel: usize| {
            let rows = |sweep: usize| sweep * SWEPT_TILES * height;
            let is_needed =
                |first: usize, of: usize| first < rows(sweep) || first < rows(sweep + 1) && of <= panel;
            let needed = parts.iter().filter(|&&(first, of, _)| is_needed(first, of));
            needed.fold(0.0_f64, |last, &(.., end)| last.max(end))
        };
        let units = cut.units(self.rows_computed(rows, height) / height, self.problem.n);
        let swept = cut.units(SWEPT_TILES, self.problem.n).max(1);
        (0..units).step_by(cut.sms.max(1)).fold(begin_us, |end, first| {
            let last = (first + cut.sms).min(units) - 1;
            let panel = last % swept * chunks.panels / swept.min(units);
            (end + cut.part_us).max(arrived(last / swept, panel))
        })
    }

    fn order(&self, schedule: &Schedule, rank: usize) -> Vec<usize> {
        let mut order = schedule.shard_order(rank);
        if self.style().own_first {
            order.rotate_right(1);
        }
        order
    }

    fn rows_computed(&self, rows: usize, height: usize) -> usize {
        let height = if self.pads() { height.max(128) } else { height };
        rows.div_ceil(height) * height
    }

    /// Into how many panels a chunk is cut.
    fn panels(&self, chunks: &Chunks) -> usize {
        let straddles = self.style().straddles && !self.pads();
        if self.plan.path != Path::Fused || self.stores() || straddles || self.machine.nodes() > 1 {
            return 1;
        }
        let rows = chunks.chunk_rows().min(self.shards.max_rows());
        self.style().panels.of(rows, self.problem.row_bytes()).count()
    }

    fn scatter_cut(&self, chunks: &Travelling, order: &[usize], sweeps: Sweeps, start_us: f64) -> Cut {
        let gpu = &self.machine.node().gpu;
        let row_tiles = |height: usize| {
            if self.style().straddles && !self.pads() {
                return self.problem.m.div_ceil(height);
            }
            let rows =
                (0..self.machine.gpus()).map(|shard| self.rows_computed(self.shards.rows(shard), height));
            rows.sum::<usize>() / height
        };
        let reads = self.reads_again(chunks, sweeps);
        let cuts = Cut::all(gpu, self.tiles(), self.problem, (self.style().splits, reads), row_tiles);
        best(cuts, |cut| self.computing(chunks, (order, sweeps), *cut, start_us).end_us).1
    }

    /// What a rank has computed when, if nothing disturbs it.
    fn computing(
        &self,
        chunks: &Travelling,
        (order, sweeps): (&[usize], Sweeps),
        cut: Cut,
        start_us: f64,
    ) -> Computing {
        let (mut milestones, mut spans) = (Vec::new(), Vec::new());
        let mut end = start_us;
        match self.plan.path {
            Path::Fused => return self.computing_fused(chunks, (order, sweeps), cut, start_us),
            Path::Chunked => {
                for &shard in order {
                    let begin = end;
                    end += self.gemm_us(self.shards.rows(shard));
                    spans.push((shard, begin, end));
                    milestones.extend((0..chunks.count(shard)).map(|chunk| (end, shard, chunk)));
                }
            }
            Path::Unfused => {
                end += self.gemm_us(self.problem.m);
                spans.push((order.last().copied().unwrap_or(0), start_us, end));
                for &shard in order {
                    milestones.extend((0..chunks.count(shard)).map(|chunk| (end, shard, chunk)));
                }
            }
        }
        Computing { milestones, spans, end_us: end }
    }

    /// The same where the rank's one GEMM computes chunk after chunk, in that order.
    fn computing_fused(
        &self,
        chunks: &Travelling,
        (order, sweeps): (&[usize], Sweeps),
        cut: Cut,
        start_us: f64,
    ) -> Computing {
        let gpu = &self.machine.node().gpu;
        let begin_us = start_us + gpu.launch_us;
        let mut line = Line {
            sms: Sms::new(cut.sms, begin_us),
            begin_us,
            milestones: Vec::new(),
            units_done: Vec::new(),
            spans: Vec::new(),
            total: 0,
            end_us: begin_us,
        };
        if sweeps == Sweeps::ONE_BY_ONE {
            self.compute_one_by_one(&mut line, chunks, order, &cut);
        } else {
            for places in self.swept(sweeps.backwards(order.len())) {
                self.compute_together(&mut line, chunks, (&order[places], order), &cut);
            }
        }
        let Line { mut milestones, units_done, spans, total, end_us, .. } = line;
        let end_us = end_us - cut.saved_us(total);
        for (milestone, done) in milestones.iter_mut().zip(units_done) {
            let even = begin_us + (end_us - begin_us) * done as f64 / total.max(1) as f64;
            milestone.0 = if gpu.in_step { milestone.0.min(end_us) } else { even };
        }
        milestones.sort_by(|a, b| a.0.total_cmp(&b.0));
        Computing { milestones, spans, end_us }
    }

    fn compute_one_by_one(&self, line: &mut Line, chunks: &Travelling, order: &[usize], cut: &Cut) {
        // Row tiles that straddle shards are computed with the first of these.
        let straddles = self.style().straddles && !self.pads();
        let mut computed: Vec<Option<f64>> =
            if straddles { vec![None; self.problem.m.div_ceil(cut.tile.rows)] } else { Vec::new() };
        for &shard in order {
            let count = chunks.count(shard);
            let tiles = self.row_tiles(shard, cut);
            let unit_us = cut.part_us + self.starved_us(shard, order, cut);
            let mut span = line.begin(shard);
            for chunk in 0..count {
                if straddles {
                    // A chunk is complete with the last tile that touches it.
                    for tile in rows_of(&chunks.chunks.rows(shard, chunk), cut.tile.rows) {
                        if computed[tile].is_none() {
                            let units = cut.units(1, self.problem.n);
                            computed[tile] = Some(line.compute(units, unit_us, &mut span));
                        }
                        span.2 = span.2.max(computed[tile].unwrap_or(span.2));
                    }
                    line.complete(span.2, shard, chunk);
                } else {
                    // Chunks that are lower than a tile are complete with the tile that they end in.
                    let until = |chunk: usize| (chunk * tiles).div_ceil(count);
                    let row_tiles = until(chunk + 1) - until(chunk);
                    let units = cut.units(row_tiles, self.problem.n);
                    // The rows that are swept last are the last of each panel.
                    let swept = units / row_tiles.div_ceil(SWEPT_TILES).max(1);
                    let mut computed = 0;
                    for panel in 0..chunks.panels {
                        let until = units - swept + swept * (panel + 1) / chunks.panels;
                        line.compute(until - computed, unit_us, &mut span);
                        computed = until;
                        line.complete(span.2, shard, chunk * chunks.panels + panel);
                    }
                }
            }
            line.end(span);
        }
    }

    /// What is swept together is complete part by part: of the columns of all its shards, the first ones first.
    fn compute_together(
        &self,
        line: &mut Line,
        chunks: &Travelling,
        (shards, order): (&[usize], &[usize]),
        cut: &Cut,
    ) {
        let units = |shard: usize| cut.units(self.row_tiles(shard, cut), self.problem.n);
        let all: usize = shards.iter().map(|&shard| units(shard)).sum();
        let part_of = |shard: usize| units(shard) as f64 / all.max(1) as f64;
        let starved_us: f64 =
            shards.iter().map(|&shard| self.starved_us(shard, order, cut) * part_of(shard)).sum();
        let parts = shards.iter().map(|&shard| chunks.parts(shard)).max().unwrap_or(0);
        let mut span = line.begin(shards[0]);
        let mut computed = 0;
        for part in 0..parts {
            let until = all * (part + 1) / parts;
            line.compute(until - computed, cut.part_us + starved_us, &mut span);
            computed = until;
            for &shard in shards.iter().filter(|&&shard| part < chunks.parts(shard)) {
                line.complete(span.2, shard, part);
            }
        }
        shards.iter().for_each(|&shard| line.end((shard, span.1, span.2)));
    }

    fn row_tiles(&self, shard: usize, cut: &Cut) -> usize {
        self.rows_computed(self.shards.rows(shard), cut.tile.rows) / cut.tile.rows
    }

    /// How much longer a tile takes that is stored to a peer without pace.
    fn starved_us(&self, shard: usize, order: &[usize], cut: &Cut) -> f64 {
        let own = if self.style().own_first { order.first() } else { order.last() };
        if !(self.style().starves && self.stores()) || own == Some(&shard) {
            return 0.0;
        }
        let route = self.machine.route(0, 1);
        let speeds = route.iter().map(|&link| self.machine.links()[link].gb_per_s * 1e3);
        let speed = speeds.fold(f64::INFINITY, f64::min);
        STARVED * (2 * cut.tile.rows * cut.tile.columns * cut.sms) as f64 / cut.parts as f64 / speed
    }
}

/// What a rank's one GEMM has computed so far.
struct Line {
    sms: Sms,
    begin_us: f64,
    milestones: Milestones,
    /// By milestone, of all.
    units_done: Vec<usize>,
    /// Shard, begin and end.
    spans: Vec<(usize, f64, f64)>,
    total: usize,
    end_us: f64,
}

impl Line {
    fn begin(&self, shard: usize) -> (usize, f64, f64) {
        (shard, f64::INFINITY, self.begin_us)
    }

    /// When those units are done, too.
    fn compute(&mut self, units: usize, unit_us: f64, span: &mut (usize, f64, f64)) -> f64 {
        self.total += units;
        let computed = self.sms.compute(units, unit_us, 0.0);
        *span = (span.0, span.1.min(computed.begin_us), span.2.max(computed.end_us));
        computed.end_us
    }

    fn complete(&mut self, us: f64, shard: usize, part: usize) {
        self.milestones.push((us, shard, part));
        self.units_done.push(self.total);
    }

    fn end(&mut self, (shard, begin, done): (usize, f64, f64)) {
        self.end_us = self.end_us.max(done);
        self.spans.push((shard, begin.min(done), done));
    }
}

/// What a rank's GEMMs do, in the time of one that is alone.
struct Computing {
    milestones: Milestones,
    /// Shard, begin and end.
    spans: Vec<(usize, f64, f64)>,
    end_us: f64,
}
