//! One call of an operation on all ranks.

use crate::collective::{Costs, Milestones, Moved, run};
use crate::gemm::{Cut, Sms, fastest_us};
use crate::library::nccl_us;
use crate::{Activity, Baseline, Error, Machine, Op, Path, Plan, Problem, Result, Span, Style, TileRate};
use std::cell::Cell;

use flux_swizzle::{Chunks, Collective, Exchange, Schedule, Shards};

/// A barrier of all ranks over NVLink beyond its launch, in µs: a signal to all, and one from all (measured: 2.0 to 2.2 a round).
const BARRIER_US: f64 = 2.0;
/// A hop of a barrier over PCIe, which goes from rank to rank and back, in µs (measured: a store and its signal 0.5 to 1.3).
const BARRIER_HOP_US: f64 = 1.3;
/// Shards travel whole up to this size.
const WHOLE_BYTES: usize = 32 << 20;
/// What SMs store is complete in so many parts of a shard, one after the other.
const STORED_PARTS: usize = 8;
/// How long loads are held up while the link is busy with what the same SMs store, in times of that. Measured between two H200s: 1.7
/// where tiles for the peer came first, 0.3 and 0.8 where the half for the rank itself did. So half of the tiles, being its own and
/// first, save 1.2; of eight ranks an eighth is, and saves a quarter of that.
const STARVED: f64 = 1.4;
/// The most bytes of C for which each rank sums all, and the most rows.
const ONE_SHOT: (usize, usize) = (1 << 20, 256);

/// What a call takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// From the call to the end of the last rank, in µs.
    pub total_us: f64,
    /// When each rank is done.
    pub done_us: Vec<f64>,
    /// What each link has carried.
    pub links: Vec<LinkBytes>,
    /// What happened when, if the plan asks for it.
    pub timeline: Vec<Span>,
}

/// What a link has carried.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkBytes {
    /// The link, as [`Machine::links`] names it.
    pub name: String,
    /// Bytes.
    pub bytes: f64,
}

/// Simulates a call. The same arguments give the same outcome, to the last bit.
pub fn simulate(machine: &Machine, problem: &Problem, plan: &Plan) -> Result<Outcome> {
    problem.check()?;
    let exchange = plan.exchange.clone().unwrap_or_else(|| machine.exchange());
    let (ranks, gpus) = (exchange.world_size()?, machine.gpus());
    if ranks != gpus {
        return Err(Error::OtherRanks { ranks, gpus });
    }
    let shards = Shards::new(problem.m, gpus)?;
    let call = Call { machine, problem, plan, exchange: &exchange, shards };
    let reduced = match problem.op {
        Op::AgGemm => return call.all_gather(),
        Op::GemmRs => return Ok(call.reduce_scatter()?.0),
        Op::GemmAr => call.in_two_steps()?,
    };
    let bytes = problem.m.saturating_mul(problem.row_bytes());
    if bytes <= ONE_SHOT.0 && problem.m <= ONE_SHOT.1 {
        let one_shot = call.one_shot()?;
        if one_shot.total_us < reduced.total_us {
            return Ok(one_shot);
        }
    }
    Ok(reduced)
}

/// The communication of a problem by itself, in µs: by copies, or by NCCL, as the style's baseline says.
pub(crate) fn communication_us(machine: &Machine, problem: &Problem, plan: &Plan) -> Result<f64> {
    if plan.style.baseline == Baseline::Nccl {
        return Ok(nccl_us(machine, problem));
    }
    // What is unfused has nothing to wait for but itself.
    let unfused = simulate(machine, problem, &Plan { path: Path::Unfused, timeline: false, ..plan.clone() })?;
    Ok((unfused.total_us - fastest_us(&machine.node().gpu, problem, problem.m)).max(0.0))
}

struct Call<'a> {
    machine: &'a Machine,
    problem: &'a Problem,
    plan: &'a Plan,
    exchange: &'a Exchange,
    shards: Shards,
}

impl Call<'_> {
    fn style(&self) -> &Style {
        &self.plan.style
    }

    fn memory_us(&self, bytes: f64) -> f64 {
        bytes / (self.machine.node().gpu.memory_gb_per_s * 1e3)
    }

    fn chunks(&self) -> Result<Chunks> {
        let row_bytes = self.problem.row_bytes().max(1);
        let whole = self.shards.max_rows().min(WHOLE_BYTES.div_ceil(row_bytes)).max(1);
        let stored = if self.stores() { self.shards.max_rows().div_ceil(STORED_PARTS).max(1) } else { whole };
        Ok(Chunks::new(self.shards, self.plan.chunk_rows.unwrap_or(stored).max(1))?)
    }

    /// Whether SMs store each tile to its owner.
    fn stores(&self) -> bool {
        self.style().stores && self.problem.op != Op::AgGemm && self.plan.path == Path::Fused
    }

    fn costs(&self) -> Costs {
        let gpu = &self.machine.node().gpu;
        let (setup_us, signal_us) = match self.stores() {
            true => (0.0, 0.0),
            false => (gpu.copy_us + if self.style().pulls { gpu.pull_us } else { 0.0 }, gpu.signal_us),
        };
        // Who stores by SM sums as it stores.
        let (sum_us, sum_us_per_byte) =
            if self.stores() { (0.0, 0.0) } else { (gpu.launch_us, self.memory_us(1.0)) };
        Costs {
            setup_us,
            signal_us,
            sum_us_per_byte,
            sum_us,
            reads_source: !self.stores(),
            not_before_us: self.style().sleep_us,
            first_us: self.style().first_us,
        }
    }

    /// What comes before the first transfer, and before the GEMM.
    fn prologue_us(&self) -> f64 {
        let (style, gpu) = (self.style(), &self.machine.node().gpu);
        let own = 2.0 * self.shards.max_rows() as f64 * self.problem.row_bytes() as f64;
        let copy = if style.copies_own_rows && self.problem.op == Op::AgGemm {
            gpu.copy_us + gpu.signal_us + self.memory_us(own)
        } else {
            0.0
        };
        let padded = if self.pads() { gpu.launch_us + self.memory_us(2.0 * self.a_bytes()) } else { 0.0 };
        style.barriers as f64 * self.barrier_us() + copy + padded
    }

    fn barrier_us(&self) -> f64 {
        let node = self.machine.node();
        let has_nvlink = node.nvswitch_gb_per_s.is_some() || !node.bridges.is_empty();
        let hops = 2.0 * (self.machine.gpus() - 1) as f64;
        node.gpu.launch_us + if has_nvlink { BARRIER_US } else { hops * BARRIER_HOP_US }
    }

    fn a_bytes(&self) -> f64 {
        self.problem.m as f64 * (self.problem.k * self.problem.element_bytes) as f64
    }

    /// Whether shards are no multiple of a tile, and are made one.
    fn pads(&self) -> bool {
        let height = self.machine.node().gpu.tiles.iter().map(|tile| tile.rows).min().unwrap_or(1).max(128);
        self.style().pads_shards
            && self.problem.op != Op::AgGemm
            && !self.shards.max_rows().is_multiple_of(height)
    }

    fn spans(&self, schedule: &Schedule, moved: &Moved, timeline: &mut Vec<Span>) {
        if !self.plan.timeline {
            return;
        }
        timeline.extend(schedule.transfers().iter().zip(&moved.spans).map(
            |(transfer, &(begin_us, end_us))| Span {
                rank: transfer.source,
                activity: Activity::Transfer,
                shard: Some(transfer.shard),
                destination: Some(transfer.destination),
                begin_us,
                end_us,
            },
        ));
    }

    fn outcome(&self, done_us: Vec<f64>, moved: Option<&Moved>, mut timeline: Vec<Span>) -> Outcome {
        let total_us = done_us.iter().copied().fold(0.0, f64::max);
        let carried = moved.map_or(&[][..], |moved| &moved.carried);
        let links = self.machine.links().iter().zip(carried).filter(|(_, bytes)| **bytes > 0.0);
        let links = links.map(|(link, &bytes)| LinkBytes { name: link.name.clone(), bytes }).collect();
        // A GEMM's last wave, some of which is split, ends earlier than its tiles would one by one.
        for span in timeline.iter_mut().filter(|span| span.activity == Activity::Multiply) {
            span.end_us = span.end_us.min(done_us[span.rank]);
        }
        timeline.retain(|span| span.end_us > span.begin_us);
        timeline.sort_by(|a, b| {
            (a.rank, a.begin_us).partial_cmp(&(b.rank, b.begin_us)).unwrap_or(std::cmp::Ordering::Equal)
        });
        Outcome { total_us, done_us, links, timeline }
    }

    fn chunk_bytes<'c>(&'c self, chunks: &'c Chunks) -> impl Fn(usize, usize) -> f64 + 'c {
        move |shard, chunk| (chunks.rows(shard, chunk).len() * self.problem.row_bytes()) as f64
    }

    fn all_gather(&self) -> Result<Outcome> {
        let gpu = &self.machine.node().gpu;
        let chunks = self.chunks()?;
        let schedule = Schedule::new(Collective::AllGather, self.exchange, |shard| chunks.count(shard))?;
        let bytes = self.chunk_bytes(&chunks);
        let fused = self.plan.path == Path::Fused;
        let start_us = if fused { self.prologue_us() } else { 0.0 };
        if self.plan.path == Path::Unfused && self.style().baseline == Baseline::Nccl {
            let done = nccl_us(self.machine, self.problem) + fastest_us(gpu, self.problem, self.problem.m);
            return Ok(self.outcome(vec![done; self.machine.gpus()], None, Vec::new()));
        }
        let moved = run(self.machine, &schedule, self.costs(), &bytes, start_us, &[]);
        let mut timeline = Vec::new();
        self.spans(&schedule, &moved, &mut timeline);
        let cut = self.gather_cut(&schedule, &moved, &chunks, start_us);
        let done = (0..self.machine.gpus()).map(|rank| {
            let arrived = Arrived::new(&schedule, &moved, &chunks, rank, start_us);
            let end = match self.plan.path {
                Path::Fused => self.gated_gemm(rank, &arrived, &moved, cut, start_us, &mut timeline),
                Path::Chunked => self.chunked_gemms(rank, &arrived, &mut timeline),
                Path::Unfused => {
                    let end = arrived.all_us + fastest_us(gpu, self.problem, self.problem.m);
                    self.span(&mut timeline, (rank, Activity::Multiply, None), (arrived.all_us, end));
                    end
                }
            };
            end.max(arrived.all_us)
        });
        let done = done.collect();
        Ok(self.outcome(done, Some(&moved), timeline))
    }

    fn span(
        &self,
        timeline: &mut Vec<Span>,
        of: (usize, Activity, Option<usize>),
        (begin_us, end_us): (f64, f64),
    ) {
        if self.plan.timeline {
            timeline.push(Span {
                rank: of.0,
                activity: of.1,
                shard: of.2,
                destination: None,
                begin_us,
                end_us,
            });
        }
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

    fn tiles(&self) -> &'static [TileRate] {
        self.style().tiles.unwrap_or(self.machine.node().gpu.tiles)
    }

    /// The fastest cut, as rank 0 sees it.
    fn gather_cut(&self, schedule: &Schedule, moved: &Moved, chunks: &Chunks, start_us: f64) -> Cut {
        let gpu = &self.machine.node().gpu;
        let arrived = Arrived::new(schedule, moved, chunks, 0, start_us);
        let row_tiles = |height: usize| {
            let mut count = 0;
            self.gates(&arrived, height, &mut |tiles, _, _| count += tiles);
            count
        };
        let cuts = Cut::all(gpu, self.tiles(), self.problem, self.style().splits, row_tiles);
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
        let clock = &moved.clocks[rank];
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
        let gpu = &self.machine.node().gpu;
        let mut end: f64 = 0.0;
        for &shard in &arrived.order {
            let begin = end.max(arrived.by_shard[shard]);
            self.span(timeline, (rank, Activity::Wait, Some(shard)), (end, begin));
            end = begin + fastest_us(gpu, self.problem, self.shards.rows(shard));
            self.span(timeline, (rank, Activity::Multiply, Some(shard)), (begin, end));
        }
        end
    }

    /// A ReduceScatter, and when all have their sums.
    fn reduce_scatter(&self) -> Result<(Outcome, Schedule)> {
        let gpu = &self.machine.node().gpu;
        let chunks = self.chunks()?;
        let schedule = Schedule::new(Collective::ReduceScatter, self.exchange, |shard| chunks.count(shard))?;
        let bytes = self.chunk_bytes(&chunks);
        let gpus = self.machine.gpus();
        if self.plan.path == Path::Unfused && self.style().baseline == Baseline::Nccl {
            let done = nccl_us(self.machine, self.problem) + fastest_us(gpu, self.problem, self.problem.m);
            return Ok((self.outcome(vec![done; gpus], None, Vec::new()), schedule));
        }
        let start_us = self.prologue_us();
        let orders: Vec<Vec<usize>> = (0..gpus).map(|rank| self.order(&schedule, rank)).collect();
        let cut = self.scatter_cut(&chunks, &orders[0], start_us);
        let computed: Vec<Computing> =
            orders.iter().map(|order| self.computing(&chunks, order, cut, start_us)).collect();
        let milestones: Vec<Milestones> =
            computed.iter().map(|computing| computing.milestones.clone()).collect();
        let moved = run(self.machine, &schedule, self.costs(), &bytes, start_us, &milestones);
        let mut timeline = Vec::new();
        self.spans(&schedule, &moved, &mut timeline);
        let done = (0..gpus).map(|rank| {
            let clock = &moved.clocks[rank];
            let Computing { spans, end_us, .. } = &computed[rank];
            self.span(&mut timeline, (rank, Activity::Prepare, None), (0.0, start_us));
            for &(shard, begin, end) in spans {
                let of = (rank, Activity::Multiply, Some(shard));
                self.span(&mut timeline, of, (clock.time_of(begin), clock.time_of(end)));
            }
            self.summed(rank, &schedule, &moved, clock.time_of(*end_us), &mut timeline)
        });
        let done = done.collect();
        Ok((self.outcome(done, Some(&moved), timeline), schedule))
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
        let end = if self.style().folds_sum && self.plan.path == Path::Fused {
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

    fn scatter_cut(&self, chunks: &Chunks, order: &[usize], start_us: f64) -> Cut {
        let gpu = &self.machine.node().gpu;
        let row_tiles = |height: usize| {
            if self.style().straddles && !self.pads() {
                return self.problem.m.div_ceil(height);
            }
            let rows =
                (0..self.machine.gpus()).map(|shard| self.rows_computed(self.shards.rows(shard), height));
            rows.sum::<usize>() / height
        };
        let splits = self.style().splits;
        best(Cut::all(gpu, self.tiles(), self.problem, splits, row_tiles), |cut| {
            self.computing(chunks, order, *cut, start_us).end_us
        })
    }

    /// What a rank has computed when, if nothing disturbs it.
    fn computing(&self, chunks: &Chunks, order: &[usize], cut: Cut, start_us: f64) -> Computing {
        let gpu = &self.machine.node().gpu;
        let (mut milestones, mut spans) = (Vec::new(), Vec::new());
        let mut end = start_us + gpu.launch_us;
        match self.plan.path {
            Path::Fused => {
                let begin_us = end;
                let mut sms = Sms::new(cut.sms, end);
                let total = Cell::new(0);
                // Of each milestone, how many units are done by then.
                let mut units_done = Vec::new();
                let mut done = vec![end; self.machine.gpus()];
                let mut row_tile = |tiles: usize, shard: usize| {
                    let units = cut.units(tiles, self.problem.n);
                    total.set(total.get() + units);
                    let stall = self.starved_us(shard, order, &cut);
                    sms.compute(units, cut.part_us + stall, 0.0)
                };
                if self.style().straddles && !self.pads() {
                    // Row tiles in the order of the shards; a shard is complete with the last tile that touches it.
                    let mut computed = vec![None; self.problem.m.div_ceil(cut.tile.rows)];
                    for &shard in order {
                        let rows = self.shards.range(shard);
                        let mut begin = f64::INFINITY;
                        for chunk in 0..chunks.count(shard) {
                            for tile in rows_of(&chunks.rows(shard, chunk), cut.tile.rows) {
                                let ended = *computed[tile].get_or_insert_with(|| {
                                    let computed = row_tile(1, shard);
                                    begin = begin.min(computed.begin_us);
                                    computed.end_us
                                });
                                done[shard] = done[shard].max(ended);
                            }
                            milestones.push((done[shard], shard, chunk));
                            units_done.push(total.get());
                        }
                        if !rows.is_empty() {
                            spans.push((shard, begin.min(done[shard]), done[shard]));
                        }
                    }
                } else {
                    for &shard in order {
                        let count = chunks.count(shard);
                        let tiles =
                            self.rows_computed(self.shards.rows(shard), cut.tile.rows) / cut.tile.rows;
                        let mut begin = f64::INFINITY;
                        for chunk in 0..count {
                            // Chunks that are lower than a tile are complete with the tile that they end in.
                            let of_chunk =
                                ((chunk + 1) * tiles).div_ceil(count) - (chunk * tiles).div_ceil(count);
                            if of_chunk > 0 {
                                let computed = row_tile(of_chunk, shard);
                                begin = begin.min(computed.begin_us);
                                done[shard] = done[shard].max(computed.end_us);
                            }
                            milestones.push((done[shard], shard, chunk));
                            units_done.push(total.get());
                        }
                        spans.push((shard, begin.min(done[shard]), done[shard]));
                    }
                }
                let total = total.get();
                end = done.into_iter().fold(end, f64::max) - cut.saved_us(total);
                for (milestone, done) in milestones.iter_mut().zip(units_done) {
                    let even = begin_us + (end - begin_us) * done as f64 / total.max(1) as f64;
                    milestone.0 = if gpu.in_step { milestone.0.min(end) } else { even };
                }
                milestones.sort_by(|a, b| a.0.total_cmp(&b.0));
            }
            Path::Chunked => {
                end = start_us;
                for &shard in order {
                    let begin = end;
                    end += fastest_us(gpu, self.problem, self.shards.rows(shard));
                    spans.push((shard, begin, end));
                    milestones.extend((0..chunks.count(shard)).map(|chunk| (end, shard, chunk)));
                }
            }
            Path::Unfused => {
                end = start_us + fastest_us(gpu, self.problem, self.problem.m);
                spans.push((order.last().copied().unwrap_or(0), start_us, end));
                for &shard in order {
                    milestones.extend((0..chunks.count(shard)).map(|chunk| (end, shard, chunk)));
                }
            }
        }
        Computing { milestones, spans, end_us: end }
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

    /// An AllReduce: a ReduceScatter, then an AllGather of the sums.
    fn in_two_steps(&self) -> Result<Outcome> {
        if self.plan.path == Path::Unfused && self.style().baseline == Baseline::Nccl {
            return Ok(self.reduce_scatter()?.0);
        }
        let (first, _) = self.reduce_scatter()?;
        let chunks = self.chunks()?;
        let schedule = Schedule::new(Collective::AllGather, self.exchange, |shard| chunks.count(shard))?;
        let moved =
            run(self.machine, &schedule, self.costs(), &self.chunk_bytes(&chunks), first.total_us, &[]);
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
        for link in first.links {
            match outcome.links.iter_mut().find(|other| other.name == link.name) {
                Some(other) => other.bytes += link.bytes,
                None => outcome.links.push(link),
            }
        }
        Ok(outcome)
    }

    /// An AllReduce of few rows: each rank's tiles go to all, and each sums all.
    fn one_shot(&self) -> Result<Outcome> {
        let gpu = &self.machine.node().gpu;
        let gpus = self.machine.gpus();
        let bytes = (self.problem.m * self.problem.row_bytes()) as f64;
        let multiplied = self.prologue_us() + fastest_us(gpu, self.problem, self.problem.m);
        let schedule = Schedule::new(Collective::AllGather, self.exchange, |_| 1)?;
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

/// What a rank's GEMMs do, in the time of one that is alone.
struct Computing {
    milestones: Milestones,
    /// Shard, begin and end.
    spans: Vec<(usize, f64, f64)>,
    end_us: f64,
}

/// When what a rank gathers is there.
struct Arrived {
    /// When, the shard, and the rows, in the order in which they are multiplied.
    chunks: Vec<(f64, usize, usize)>,
    by_shard: Vec<f64>,
    order: Vec<usize>,
    all_us: f64,
}

impl Arrived {
    fn new(schedule: &Schedule, moved: &Moved, chunks: &Chunks, rank: usize, start_us: f64) -> Self {
        let order = schedule.shard_order(rank);
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); schedule.world_size()];
        for &index in schedule.arrivals(rank) {
            let transfer = &schedule.transfers()[index];
            times[transfer.shard].resize(chunks.count(transfer.shard), start_us);
            times[transfer.shard][transfer.chunk] = moved.spans[index].1;
        }
        let time = |shard: usize, chunk: usize| times[shard].get(chunk).copied().unwrap_or(start_us);
        let of_shard = |shard: usize| {
            (0..chunks.count(shard)).map(move |chunk| (shard, chunk, chunks.rows(shard, chunk).len()))
        };
        let arrived = order.iter().flat_map(|&shard| of_shard(shard));
        let arrived = arrived.map(|(shard, chunk, rows)| (time(shard, chunk), shard, rows)).collect();
        let by_shard: Vec<f64> =
            times.iter().map(|times| times.iter().copied().fold(start_us, f64::max)).collect();
        let all_us = by_shard.iter().copied().fold(0.0, f64::max);
        Self { chunks: arrived, by_shard, order, all_us }
    }
}

/// The row tiles of a height that touch these rows.
fn rows_of(rows: &std::ops::Range<usize>, height: usize) -> std::ops::Range<usize> {
    if rows.is_empty() { 0..0 } else { rows.start / height..rows.end.div_ceil(height) }
}

/// The cut that takes the least time.
fn best(cuts: Vec<Cut>, time: impl Fn(&Cut) -> f64) -> Cut {
    let none =
        Cut { tile: TileRate { rows: 1, columns: 1, efficiency: 1.0 }, parts: 1, part_us: 0.0, sms: 1 };
    let timed = cuts.into_iter().map(|cut| (time(&cut), cut));
    timed.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(none, |(_, cut)| cut)
}
