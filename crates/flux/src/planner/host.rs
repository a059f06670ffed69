//! What a call takes on the host backend.
//!
//! There, nothing is hidden behind anything: copies and sums take the cores that multiply, and ranks outnumber these as a rule. So
//! the time is what all ranks have to do, over the cores, and what they wait for each other.

use super::candidate::Plan;
use super::kind::{Layer, OpKind};
use crate::{Delivery, Direction, Path, Result, TileShape};
use flux_swizzle::{Collective, Pattern, Schedule, Shards};
use serde::{Deserialize, Serialize};

/// Fitted to 1,036 ratios of medians of `flux tune --check` (all operations and ways, 2 and 4 ranks on 2 idle cores with AVX-512, the layers
/// of its defaults, six runs), from which they are 3 % away on average. On other machines all grow and shrink, and their proportions less.
///
/// What widening an element of the weight takes, once for all rows that a GEMM sweeps together, in ns. (More often where K is more than 4,096, a
/// rank has several threads, or chunks are smaller than shards: what was fitted has none of these.)
const WIDEN_NS: f64 = 0.104;
/// What packing it takes, for each row of tiles, in ns.
const SWEEP_NS: f64 = 0.29;
/// What a multiplication and addition takes, in ns.
const MULTIPLY_NS: f64 = 0.0116;
/// What a launch takes, in µs.
const LAUNCH_US: f64 = 15.0;
/// What a stream takes for anything that is enqueued on it, in µs.
const STEP_US: f64 = 1.9;
/// What it takes until all ranks have seen that all have come so far, in µs.
const MEETING_US: f64 = 4.9;
/// What copying a byte takes, in ns.
const COPY_NS: f64 = 0.1;
/// What storing a byte of a tile to one more destination takes, in ns: it is rounded for each.
const STORE_NS: f64 = 0.28;
/// What summing a byte of the slots takes, in ns.
const SUM_NS: f64 = 0.064;
/// The same where the sum is folded in: it reads the slots a few columns at a time.
const FOLD_NS: f64 = 0.122;
/// Meetings of a fused GEMM whose rows are pushed, where each rank has cores to itself: the peers have read what was there.
const PUSHED_MEETINGS: f64 = 0.4;
/// Meetings of an AllReduce in two steps where some ranks own no rows, and wait for those that do.
const OWNERLESS_MEETINGS: f64 = 8.5;

/// Rows that a GEMM sweeps together: for each column of tiles, the weight is widened once.
const SWEPT_ROWS: usize = 2048;
/// Rows that are multiplied at once, whether there are as many or fewer.
const ROWS_AT_ONCE: usize = 8;

/// The host, as far as it decides how long things take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostModel {
    pub(crate) cores: usize,
    #[serde(skip, default = "tile")]
    pub(crate) tile: TileShape,
}

/// The host's only tile.
const fn tile() -> TileShape {
    TileShape { rows: 64, columns: 128 }
}

/// What all ranks together have to do.
#[derive(Default)]
struct Work {
    widened: f64,
    sweeps: f64,
    multiplications: f64,
    launches: f64,
    steps: f64,
    copied_bytes: f64,
    stored_bytes: f64,
    summed_bytes: f64,
    folded_bytes: f64,
    /// How often all wait for all.
    meetings: f64,
}

impl Work {
    fn compute_longer(&mut self, by: f64) {
        for of in [&mut self.widened, &mut self.sweeps, &mut self.multiplications] {
            *of *= by;
        }
    }
}

#[allow(clippy::cast_precision_loss)] // an estimate
const fn real(value: usize) -> f64 {
    value as f64
}

impl HostModel {
    pub(crate) const fn new(cores: usize) -> Self {
        Self { cores, tile: tile() }
    }

    /// What a call of `m` rows takes, in µs.
    pub(crate) fn us(&self, layer: &Layer, m: usize, plan: &Plan) -> Result<f64> {
        let shards = layer.shards(m)?;
        let mut work = Work::default();
        match layer.op {
            OpKind::AgGemm => self.gather_and_multiply(&mut work, layer, &shards, plan),
            OpKind::GemmRs | OpKind::GemmAr => self.multiply_and_sum(&mut work, layer, &shards, plan),
        }
        let Work {
            widened,
            sweeps,
            multiplications,
            launches,
            steps,
            copied_bytes,
            stored_bytes,
            summed_bytes,
            folded_bytes,
            meetings,
        } = work;
        let computed = widened * WIDEN_NS + sweeps * SWEEP_NS + multiplications * MULTIPLY_NS;
        let moved = copied_bytes * COPY_NS + stored_bytes * STORE_NS;
        let ns = computed + moved + summed_bytes * SUM_NS + folded_bytes * FOLD_NS;
        let all_us = ns / 1e3 + launches * LAUNCH_US + steps * STEP_US;
        // Ranks share the cores evenly, and each has at least one thread.
        let threads = (self.cores / layer.world_size.max(1)).max(1) * layer.world_size;
        Ok(all_us / real(threads.min(self.cores).max(1)) + meetings * MEETING_US)
    }

    /// Whether each rank has cores to itself.
    const fn has_cores_for(&self, layer: &Layer) -> bool {
        layer.world_size <= self.cores
    }

    /// The GEMM of each rank, of so many rows each that tiles do not straddle.
    fn gemm(&self, work: &mut Work, layer: &Layer, shards: impl Iterator<Item = usize>) {
        let (n, k) = layer.of_rank();
        let weights = real(n) * real(k) * real(layer.world_size);
        for rows in shards {
            let last = rows % self.tile.rows;
            let computed = rows - last + last.next_multiple_of(ROWS_AT_ONCE);
            work.widened += weights * real(rows.div_ceil(SWEPT_ROWS));
            work.sweeps += weights * real(rows.div_ceil(self.tile.rows));
            work.multiplications += weights * real(computed);
        }
        work.launches += real(layer.world_size);
    }

    fn gemms(&self, work: &mut Work, layer: &Layer, shards: &Shards, path: Path) {
        let rows = || (0..shards.world_size()).map(|shard| shards.rows(shard));
        match path {
            Path::Fused => self.gemm(work, layer, rows()),
            Path::Chunked => rows().for_each(|rows| self.gemm(work, layer, std::iter::once(rows))),
            _ => self.gemm(work, layer, std::iter::once(shards.total())),
        }
        if path == Path::Fused {
            work.compute_longer(self.longer(layer, false));
        }
    }

    /// By how much longer a fused GEMM takes than one that waits for nobody. What else a rank has to do takes its cores away now and then.
    const fn longer(&self, layer: &Layer, one_shot: bool) -> f64 {
        match (layer.op, one_shot, self.has_cores_for(layer)) {
            (OpKind::AgGemm, ..) => 1.0,
            (_, true, true) => 1.02,
            (_, true, false) => 1.05,
            (_, false, true) => 1.1,
            (_, false, false) => 1.06,
        }
    }

    fn gather_and_multiply(&self, work: &mut Work, layer: &Layer, shards: &Shards, plan: &Plan) {
        let (ranks, bytes) = (real(layer.world_size), real(shards.total()) * real(layer.row_bytes()));
        self.gemms(work, layer, shards, plan.path);
        work.copied_bytes += bytes * (ranks - 1.0);
        let pulls = plan.direction == Direction::Pull;
        work.meetings += if plan.path == Path::Fused { 1.0 } else { 2.0 };
        if plan.path == Path::Fused && !pulls && self.has_cores_for(layer) {
            work.meetings += PUSHED_MEETINGS;
        }
        if pulls || plan.path == Path::Unfused {
            work.copied_bytes += bytes; // each rank's own rows
            work.steps += ranks;
        }
        // What is to be pulled is where the GEMM looks for it already.
        let begins = if pulls && plan.path == Path::Unfused { 3.0 } else { 4.0 };
        work.steps += begins * ranks + 2.0 * (ranks - 1.0) * real(chunks(shards, plan.chunk_rows));
        if plan.path == Path::Chunked {
            work.steps += ranks * (ranks - 1.0);
        }
    }

    fn multiply_and_sum(&self, work: &mut Work, layer: &Layer, shards: &Shards, plan: &Plan) {
        let (ranks, bytes) = (real(layer.world_size), real(shards.total()) * real(layer.row_bytes()));
        let pairs = ranks * (ranks - 1.0);
        let fused = plan.path == Path::Fused;
        work.steps += 4.0 * ranks;
        if plan.one_shot {
            self.gemm(work, layer, std::iter::once(shards.total()));
            work.launches += ranks; // the sum
            work.summed_bytes += bytes * ranks * ranks;
            work.steps += 2.0 * pairs;
            if fused {
                work.compute_longer(self.longer(layer, true));
                work.stored_bytes += bytes * pairs;
                work.meetings += 1.0;
            } else {
                work.copied_bytes += bytes * pairs;
                // Where ranks have cores to themselves, nobody computes while copies are begun behind a GEMM.
                work.meetings += if self.has_cores_for(layer) { 3.0 } else { 2.0 };
            }
        } else {
            self.gemms(work, layer, shards, plan.path);
            *if fused { &mut work.folded_bytes } else { &mut work.summed_bytes } += bytes * ranks;
            work.meetings += 1.0;
            let relayed = plan.delivery == Some(Delivery::Relayed);
            if !fused || relayed {
                work.copied_bytes += bytes * (ranks - 1.0);
                work.meetings += 1.0;
                let moves = real(chunks(shards, plan.chunk_rows)) * (ranks - 1.0);
                work.steps += moves * if plan.path == Path::Unfused { 2.0 } else { 3.0 };
            }
            work.launches += if fused { 0.0 } else { ranks };
            if layer.op == OpKind::GemmAr {
                // The shards are gathered, and copied to where they are wanted.
                work.copied_bytes += bytes * (ranks - 1.0) + bytes * ranks;
                work.steps +=
                    2.0 * (ranks - 1.0) * real(chunks(shards, plan.chunk_rows)) + 2.0 * ranks * ranks;
                work.meetings += real(hops(&plan.order) + 1);
                work.meetings += if shards.total() < layer.world_size { OWNERLESS_MEETINGS } else { 0.0 };
            }
        }
        // Whoever pulls says that it has.
        let moves = !fused || layer.op == OpKind::GemmAr && !plan.one_shot;
        work.steps += if plan.direction == Direction::Pull && moves { pairs } else { 0.0 };
    }
}

/// Over how many ranks, one after the other, a shard goes at most.
fn hops(order: &Pattern) -> usize {
    let Ok(schedule) = Schedule::new(Collective::AllGather, order, |_| 1) else { return 1 };
    let ranks = schedule.world_size();
    let mut hops = vec![0; ranks * ranks];
    let mut transfers: Vec<_> = schedule.transfers().iter().collect();
    transfers.sort_by_key(|of| (of.phase, of.step)); // what each waits for is before it
    for of in transfers {
        hops[of.destination * ranks + of.shard] = hops[of.source * ranks + of.shard] + 1;
    }
    hops.into_iter().max().unwrap_or(1)
}

/// Chunks of all shards.
fn chunks(shards: &Shards, chunk_rows: usize) -> usize {
    (0..shards.world_size()).map(|shard| shards.rows(shard).div_ceil(chunk_rows.max(1))).sum()
}
