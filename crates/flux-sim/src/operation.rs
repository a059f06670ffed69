//! One call of an operation on all ranks.

use crate::collective::{Costs, Moved};
use crate::gemm::{Cut, fastest_us};
use crate::schedules::Schedules;
use crate::{Activity, Error, Machine, Op, Path, Plan, Problem, Result, Span, Style, TileRate};
use flux_swizzle::{Chunks, Pattern, Schedule, Shards, Sweeps};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A barrier of all ranks over NVLink beyond its launch, in µs: a signal to all, and one from all (measured: 2.0 to 2.2 a round).
const BARRIER_US: f64 = 2.0;
/// A hop of a barrier over PCIe, which goes from rank to rank and back, in µs (measured: a store and its signal 0.5 to 1.3).
const BARRIER_HOP_US: f64 = 1.3;
/// Shards travel whole up to this size.
const WHOLE_BYTES: usize = 32 << 20;
/// What SMs store is complete in so many parts of a shard, one after the other; and in no more parts of the whole, unless there are
/// more shards.
const STORED_PARTS: (usize, usize) = (8, 512);
/// Where there are more transfers and ranks do not divide the rows, nodes are taken for alike: one by one such transfers take minutes.
const MOST_EXACT: usize = 1 << 16;
/// The same where there are fewer rows than ranks. Such transfers are looked at faster, and it matters much who has a row: a ReduceScatter
/// over PCIe takes up to seven times as long where the ranks that have nothing to send to some all meet at the others.
const MOST_EXACT_OF_FEW_ROWS: usize = 1 << 20;
/// More transfers would take gigabytes.
const MOST_TRANSFERS: usize = 1 << 24;
/// The most bytes of C for which each rank sums all, and the most rows.
const ONE_SHOT: (usize, usize) = (1 << 20, 256);

/// What a call takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// From the call to the end of the last rank, in µs.
    pub total_us: f64,
    /// When each rank is done.
    pub done_us: Vec<f64>,
    /// Rows and columns of the fused GEMM's tiles.
    pub tile: Option<(usize, usize)>,
    /// How many shards it sweeps together.
    pub sweeps: Sweeps,
    /// What each link has carried.
    pub links: Vec<LinkBytes>,
    /// What happened when, if the plan asks for it.
    pub timeline: Vec<Span>,
    /// Whether shards travelled as if those of every node were as large as those of the first, which has the most rows: where there are
    /// very many transfers, and ranks do not divide the rows. So a shard travels with at most a row too many, which `links` count;
    /// GEMMs are of the rows that there are.
    pub rounded: bool,
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
    simulate_with(&Schedules::default(), machine, problem, plan)
}

/// The same with schedules of other calls.
pub(crate) fn simulate_with(
    schedules: &Schedules,
    machine: &Machine,
    problem: &Problem,
    plan: &Plan,
) -> Result<Outcome> {
    let most_exact = if problem.m < machine.gpus() { MOST_EXACT_OF_FEW_ROWS } else { MOST_EXACT };
    simulate_exactly_to(most_exact, schedules, machine, problem, plan)
}

/// The same, where up to so many transfers are looked at one by one.
fn simulate_exactly_to(
    most_exact: usize,
    schedules: &Schedules,
    machine: &Machine,
    problem: &Problem,
    plan: &Plan,
) -> Result<Outcome> {
    problem.check()?;
    plan.style.check()?;
    let pattern = plan.pattern.clone().unwrap_or_else(|| machine.pattern());
    let (ranks, gpus) = (pattern.world_size()?, machine.gpus());
    if ranks != gpus {
        return Err(Error::OtherRanks { ranks, gpus });
    }
    let shards = Shards::new(problem.m, gpus)?;
    let gemms_us = RefCell::default();
    let call = Call { most_exact, schedules, machine, problem, plan, pattern: &pattern, shards, gemms_us };
    let reduced = match problem.op {
        Op::AgGemm => return call.all_gather(),
        Op::GemmRs => return call.reduce_scatter(),
        Op::GemmAr if plan.one_shot == Some(true) => return call.one_shot(),
        Op::GemmAr => call.in_two_steps()?,
    };
    let bytes = problem.m.saturating_mul(problem.row_bytes());
    if plan.one_shot.is_none() && bytes <= ONE_SHOT.0 && problem.m <= ONE_SHOT.1 {
        let one_shot = call.one_shot()?;
        if one_shot.total_us < reduced.total_us {
            return Ok(one_shot);
        }
    }
    Ok(reduced)
}

pub(crate) struct Call<'a> {
    most_exact: usize,
    pub(crate) schedules: &'a Schedules,
    pub(crate) machine: &'a Machine,
    pub(crate) problem: &'a Problem,
    pub(crate) plan: &'a Plan,
    pub(crate) pattern: &'a Pattern,
    pub(crate) shards: Shards,
    /// By rows: what the fastest GEMM takes.
    gemms_us: RefCell<BTreeMap<usize, f64>>,
}

impl Call<'_> {
    pub(crate) fn style(&self) -> &Style {
        &self.plan.style
    }

    /// What the fastest GEMM of so many rows takes.
    pub(crate) fn gemm_us(&self, rows: usize) -> f64 {
        let gpu = &self.machine.node().gpu;
        *self.gemms_us.borrow_mut().entry(rows).or_insert_with(|| fastest_us(gpu, self.problem, rows))
    }

    pub(crate) fn memory_us(&self, bytes: f64) -> f64 {
        bytes / (self.machine.node().gpu.memory_gb_per_s * 1e3)
    }

    pub(crate) fn chunks(&self) -> Result<Travelling> {
        let row_bytes = self.problem.row_bytes().max(1);
        let whole = self.shards.max_rows().min(WHOLE_BYTES.div_ceil(row_bytes)).max(1);
        let parts = (STORED_PARTS.1 / self.machine.gpus()).clamp(1, STORED_PARTS.0);
        let stored = if self.stores() { self.shards.max_rows().div_ceil(parts).max(1) } else { whole };
        let chunks = Chunks::new(self.shards, self.plan.chunk_rows.unwrap_or(stored).max(1))?;
        let gpus = self.machine.gpus();
        let count: usize = (0..gpus).map(|shard| chunks.count(shard)).sum();
        let transfers = count.saturating_mul(gpus - 1);
        if transfers > MOST_TRANSFERS {
            let what = "the number of transfers (chunks times peers)";
            return Err(Error::TooLarge { what, value: transfers, most: MOST_TRANSFERS });
        }
        let is_rounded = transfers > self.most_exact && !self.problem.m.is_multiple_of(gpus);
        let alike = if is_rounded { self.machine.node().gpus } else { gpus };
        Ok(Travelling { chunks, alike, panels: 1, row_bytes: self.problem.row_bytes() })
    }

    /// Whether SMs store each tile to its owner.
    pub(crate) fn stores(&self) -> bool {
        self.style().stores && self.problem.op != Op::AgGemm && self.plan.path == Path::Fused
    }

    pub(crate) fn costs(&self) -> Costs {
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
    pub(crate) fn prologue_us(&self) -> f64 {
        let (style, gpu) = (self.style(), &self.machine.node().gpu);
        let own = 2.0 * self.shards.max_rows() as f64 * self.problem.row_bytes() as f64;
        let copy = if style.copies_own_rows && self.problem.op == Op::AgGemm {
            gpu.copy_us + gpu.signal_us + self.memory_us(own)
        } else {
            0.0
        };
        let padded = if self.pads() { gpu.launch_us + self.memory_us(2.0 * self.a_bytes()) } else { 0.0 };
        let zeroed = if style.zeroes_signals { gpu.launch_us } else { 0.0 };
        style.barriers as f64 * self.barrier_us() + copy + zeroed + padded
    }

    pub(crate) fn barrier_us(&self) -> f64 {
        let node = self.machine.node();
        let has_nvlink = node.nvswitch_gb_per_s.is_some() || !node.bridges.is_empty();
        let hops = 2.0 * (self.machine.gpus() - 1) as f64;
        node.gpu.launch_us + if has_nvlink { BARRIER_US } else { hops * BARRIER_HOP_US }
    }

    pub(crate) fn a_bytes(&self) -> f64 {
        self.problem.m as f64 * (self.problem.k * self.problem.element_bytes) as f64
    }

    /// Whether shards are no multiple of a tile, and are made one.
    pub(crate) fn pads(&self) -> bool {
        let height = self.machine.node().gpu.tiles.iter().map(|tile| tile.rows).min().unwrap_or(1).max(128);
        self.style().pads_shards
            && self.problem.op != Op::AgGemm
            && !self.shards.max_rows().is_multiple_of(height)
    }

    pub(crate) fn spans(&self, schedule: &Schedule, moved: &Moved, timeline: &mut Vec<Span>) {
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

    pub(crate) fn outcome(
        &self,
        done_us: Vec<f64>,
        moved: Option<&Moved>,
        mut timeline: Vec<Span>,
    ) -> Outcome {
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
        let (tile, sweeps, rounded) = (None, Sweeps::ONE_BY_ONE, false);
        Outcome { total_us, done_us, tile, sweeps, links, timeline, rounded }
    }

    pub(crate) fn span(
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

    /// The tile of that cut, if there is one GEMM that is fused.
    pub(crate) fn fused_tile(&self, cut: &Cut) -> Option<(usize, usize)> {
        (self.plan.path == Path::Fused).then_some((cut.tile.rows, cut.tile.columns))
    }

    pub(crate) fn tiles(&self) -> &'static [TileRate] {
        self.style().tiles.unwrap_or(self.machine.node().gpu.tiles)
    }
}

/// The chunks in which shards travel.
pub(crate) struct Travelling {
    pub(crate) chunks: Chunks,
    /// Shards that are a multiple of this apart travel as the first of them does.
    pub(crate) alike: usize,
    /// Each travels in so many parts.
    pub(crate) panels: usize,
    row_bytes: usize,
}

impl Travelling {
    pub(crate) fn is_rounded(&self) -> bool {
        self.alike < self.chunks.shards().world_size()
    }

    /// How many chunks of a shard travel; the last may have no rows.
    pub(crate) fn count(&self, shard: usize) -> usize {
        self.chunks.count(shard % self.alike)
    }

    /// The same of their parts.
    pub(crate) fn parts(&self, shard: usize) -> usize {
        self.count(shard) * self.panels
    }

    pub(crate) fn bytes(&self, shard: usize, part: usize) -> f64 {
        let rows = self.chunks.rows(shard % self.alike, part / self.panels);
        (rows.len() * self.row_bytes) as f64 / self.panels as f64
    }
}

/// The row tiles of a height that touch these rows.
pub(crate) fn rows_of(rows: &std::ops::Range<usize>, height: usize) -> std::ops::Range<usize> {
    if rows.is_empty() { 0..0 } else { rows.start / height..rows.end.div_ceil(height) }
}

/// The cut that takes the least time, and what it takes.
pub(crate) fn best(cuts: Vec<Cut>, time: impl Fn(&Cut) -> f64) -> (f64, Cut) {
    let none =
        Cut { tile: TileRate { rows: 1, columns: 1, efficiency: 1.0 }, parts: 1, part_us: 0.0, sms: 1 };
    let timed = cuts.into_iter().map(|cut| (time(&cut), cut));
    timed.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, none))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By how much nodes that are taken for alike are off, in parts of what is simulated rank by rank.
    fn off(machine: &Machine, problem: &Problem, path: Path) -> f64 {
        let plan = Plan { one_shot: Some(false), ..Plan::new(path) };
        let [exact, rounded] = [usize::MAX, 0].map(|most_exact| {
            let schedules = Schedules::default();
            simulate_exactly_to(most_exact, &schedules, machine, problem, &plan).unwrap()
        });
        assert!(rounded.rounded && !exact.rounded);
        assert_eq!((exact.done_us.len(), exact.tile), (rounded.done_us.len(), rounded.tile));
        rounded.total_us / exact.total_us - 1.0
    }

    /// With shards of a row or none, of one or two, and of a tile's height more or less one: just below, just above and well
    /// above multiples of the ranks.
    #[test]
    fn nodes_that_are_taken_for_alike_nearly_are() {
        let mut all: Vec<(f64, String)> = Vec::new();
        for (name, nodes) in [("dgx-h100", 4), ("8xa100-pcie", 6), ("dgx-1-v100", 4), ("4x4090", 8)] {
            let machine = Machine::preset(name, nodes).unwrap();
            let gpus = machine.gpus();
            let around = |rows: usize| [rows * gpus - 1, rows * gpus + 1, rows * gpus + gpus / 2];
            for (op, m) in [Op::AgGemm, Op::GemmRs, Op::GemmAr]
                .into_iter()
                .flat_map(|op| [1, 8, 128].into_iter().flat_map(around).map(move |m| (op, m)))
            {
                for path in [Path::Unfused, Path::Chunked, Path::Fused] {
                    let problem = Problem { op, m, n: 6144, k: 12288, element_bytes: 2 };
                    let off = off(&machine, &problem, path).abs();
                    all.push((off, format!("{name}, {op:?}, m = {m}, {path:?}")));
                }
            }
        }
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (mean, twentieth) = (all.iter().map(|of| of.0).sum::<f64>() / all.len() as f64, all.len() / 20);
        // The worst are ReduceScatters just above a multiple of a tile on a V100: ranks that wait for one tile more lose step.
        let near = mean < 0.015 && all[twentieth].0 < 0.07 && all[0].0 < 0.3;
        assert!(near, "mean {mean:.3}, {:?}", &all[..=twentieth]);
    }

    /// What fits is simulated rank by rank, and what ranks divide is the same either way.
    #[test]
    fn only_what_takes_long_is_rounded() {
        for (nodes, m, rounded) in
            [(8, 8191, false), (33, 8191, true), (33, 263, false), (33, 264 * 8, false)]
        {
            let machine = Machine::preset("dgx-h100", nodes).unwrap();
            let problem = Problem { op: Op::AgGemm, m, n: 1024, k: 1024, element_bytes: 2 };
            let outcome = simulate(&machine, &problem, &Plan::new(Path::Fused)).unwrap();
            assert_eq!(outcome.rounded, rounded, "{nodes} nodes, m = {m}");
        }
        let machine = Machine::preset("8xa100-pcie", 3).unwrap();
        let problem = Problem { op: Op::GemmRs, m: 2400, n: 1024, k: 1024, element_bytes: 2 };
        let of = |most_exact| {
            let plan = Plan::new(Path::Fused);
            simulate_exactly_to(most_exact, &Schedules::default(), &machine, &problem, &plan).unwrap()
        };
        assert_eq!(of(0), of(usize::MAX));
    }
}
