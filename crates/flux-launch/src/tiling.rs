//! How a GEMM is cut into tiles: which kernel, which of its tiles are halved, which are split along K.
//!
//! The choice comes from a model of the time: waves of tiles over the SMs, each as long as the tensor cores, the loads or
//! the memory need for a tile. It knows nothing of particular shapes.

use crate::hopper::{self, Sharing};
use crate::{DType, GemmParams, KernelInfo};
use flux_swizzle::{Shards, TileShape};

/// A GEMM as the choice of its tiles sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The rows, and the shards that no tile straddles.
    pub shards: Shards,
    /// Columns of C.
    pub n: usize,
    /// Columns of A and B.
    pub k: usize,
    /// Whether rows of A and B begin at multiples of 16 bytes.
    pub aligned: bool,
    /// Whether tiles go into the slots of a ReduceScatter.
    pub to_slots: bool,
}

/// How a GEMM is cut: made by [`crate::Launcher::tiling`], for a schedule of its shape and a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// The largest tile.
    pub shape: TileShape,
    /// Rows of tiles that are to be swept together before the next columns: about as many as the columns that are then
    /// computed at the same time, so that the tiles at work together load the fewest rows of A and B.
    pub group_rows: usize,
    /// So many tiles at the end of the order are to be cut into halves of their rows.
    pub halved: usize,
    /// So many tiles at the end of the order are computed in parts of K each, each part by another block.
    pub split_tiles: usize,
    /// How many parts; 1 if none are split.
    pub parts: usize,
    /// What two blocks load together.
    pub(crate) sharing: Sharing,
    /// Which kernel.
    pub(crate) kernel: TileKernel,
}

/// The kernels that multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TileKernel {
    Host,
    Portable,
    /// Hopper's, of the shape's rows, and of so many columns: the shape may have fewer.
    Hopper {
        columns: u32,
    },
}

/// How fast a GEMM is expected to go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Its largest tile.
    pub shape: TileShape,
    /// The height of tiles that take half the time; the whole height if there are none.
    pub half_rows: usize,
    /// Tiles that are computed at the same time.
    pub at_once: usize,
    /// What a whole tile takes, in µs, while all SMs are at work.
    pub tile_us: f64,
}

/// The model's cycles pass at this rate, in MHz (eleven large GEMMs on four H200s at full load took 0.967 to 1.007 of what it says).
const CYCLES_PER_US: f64 = 1780.0;

impl Pace {
    /// The pace of `problem` cut into `tiling`, which is expected to take `cycles`.
    #[allow(clippy::cast_precision_loss)] // an estimate
    pub(crate) fn new(problem: &Problem, tiling: &Tiling, cycles: f64, at_once: usize) -> Self {
        let shards = problem.shards;
        let row_tiles: f64 =
            (0..shards.world_size()).map(|shard| shards.rows(shard) as f64 / tiling.shape.rows as f64).sum();
        let tiles = row_tiles * problem.n.div_ceil(tiling.shape.columns) as f64;
        let tile_us = cycles / CYCLES_PER_US * at_once as f64 / tiles;
        Self { shape: tiling.shape, half_rows: tiling.half_rows(), at_once, tile_us }
    }
}

impl Tiling {
    /// The height of tiles that take half the time of whole ones; the whole height if there are none.
    pub const fn half_rows(&self) -> usize {
        match self.kernel {
            TileKernel::Hopper { .. } if self.shape.rows > WARPGROUP_ROWS => self.shape.rows / 2,
            _ => self.shape.rows,
        }
    }

    /// Whether blocks work in pairs that load together what their tiles have in common.
    pub fn is_in_pairs(&self) -> bool {
        self.sharing != Sharing::None
    }

    /// Whether a launch gains by blocks that come while the kernel before still computes. They lie on whichever SMs were free
    /// first, and what neighbours load is merged less: tiles that are split, or share rows of B that touch two lines of the L2
    /// cache each, were up to 8 % slower.
    pub(crate) fn may_begin_early(&self, gemm: &GemmParams, dtype: DType) -> bool {
        let whole_lines = (gemm.k as usize * dtype.bytes()).is_multiple_of(hopper::STAGE_BYTES as usize);
        let one_row_of_tiles = gemm.m as usize <= self.shape.rows;
        self.parts == 1 && !self.is_in_pairs() && (one_row_of_tiles || whole_lines)
    }

    /// Whole tiles, none halved or split.
    pub(crate) const fn whole(shape: TileShape, group_rows: usize, kernel: TileKernel) -> Self {
        Self { shape, group_rows, halved: 0, split_tiles: 0, parts: 1, sharing: Sharing::None, kernel }
    }
}

/// A kernel that the choice is between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    rows: u64,
    columns: u64,
    /// Columns that the kernel multiplies, whether the tile has as many or fewer.
    kernel_columns: u64,
    /// Columns of the pieces of 64 rows in which a tile leaves.
    piece_columns: u64,
    /// Bytes of an element of A or B.
    element_bytes: u64,
    /// What two blocks load together.
    sharing: Sharing,
}

impl Candidate {
    /// `kernel`, which multiplies elements of `dtype`.
    pub(crate) fn new(kernel: &KernelInfo, dtype: DType) -> Self {
        Self {
            rows: u64::from(kernel.tile_m),
            columns: u64::from(kernel.tile_n),
            kernel_columns: u64::from(kernel.tile_n),
            piece_columns: u64::from(kernel.piece_n.max(1)),
            element_bytes: dtype.bytes() as u64,
            sharing: Sharing::None,
        }
    }

    /// Whether the kernel knows pairs of blocks, and gains by them: with its three stages 256×192 has no room for a pair to be out of step,
    /// and was 0 to 3 % slower in five shapes.
    const fn can_share(self) -> bool {
        self.element_bytes == 1 && self.rows * self.kernel_columns <= 128 * 256
    }

    /// The same with two blocks that load together what they have in common: of one row of tiles A, else B.
    fn sharing(self, problem: &Problem) -> Self {
        let sharing = if problem.shards.total() as u64 <= self.rows { Sharing::A } else { Sharing::B };
        Self { sharing, ..self }
    }

    /// The same kernel for tiles of fewer columns, if the waves that they make for so many blocks are then more even: a
    /// block loads less, and more of them take part. The kernel multiplies as much as before.
    fn narrowed(self, problem: &Problem, blocks: u64) -> Option<Self> {
        let shards = &problem.shards;
        let row_tiles: u64 =
            (0..shards.world_size()).map(|shard| (shards.rows(shard) as u64).div_ceil(self.rows)).sum();
        let n = problem.n as u64;
        let waves = (row_tiles * n.div_ceil(self.columns)).div_ceil(blocks);
        let column_tiles = (waves * blocks).checked_div(row_tiles)?.max(1);
        let step = if problem.to_slots { self.piece_columns } else { 8 };
        let columns = n.div_ceil(column_tiles).next_multiple_of(step).max(LEAST_COLUMNS);
        // With half of the columns another kernel multiplies half as much.
        let fits = columns < self.columns && 2 * columns > self.columns && self.columns <= MOST_NARROWED;
        fits.then_some(Self { columns, ..self })
    }

    /// Whether a tile of at most half the rows takes half the time.
    const fn can_halve(self) -> bool {
        self.rows > WARPGROUP_ROWS as u64
    }

    /// Cycles for a stage of a tile of `rows` rows, in a matrix of `m` rows of `row_bytes` bytes.
    #[allow(clippy::cast_precision_loss)] // an estimate
    fn stage_cycles(self, rows: u64, m: u64, row_bytes: u64) -> f64 {
        let columns = self.columns;
        let multiply = rows * self.kernel_columns * STAGE_BYTES / MULTIPLY_BYTES;
        let power = 1.0 + POWER_PER_LOAD * (rows + columns) as f64 / (rows * columns) as f64;
        let power = power * if self.kernel_columns <= 128 { NARROW } else { 1.0 };
        let loaded = rows.min(m); // others are zeros that nobody loads
        let asked = match self.sharing {
            Sharing::None => loaded + columns,
            Sharing::A => loaded / 2 + columns,
            Sharing::B => loaded + columns / 2,
        };
        let lines = match row_bytes {
            whole if whole.is_multiple_of(STAGE_BYTES) => 1.0,
            sectors if sectors.is_multiple_of(SECTOR_BYTES) => LINE_APART,
            _ => SECTOR_APART,
        };
        let load =
            (asked as f64 * lines).max((loaded + columns) as f64) * (STAGE_BYTES as f64 / L2_BYTES as f64);
        // Where there is one row of tiles, every tile reads its rows of B from memory by itself.
        let memory = if m <= self.rows { columns * STAGE_BYTES / MEMORY_BYTES_SM } else { 0 };
        (multiply as f64 * power).max(load).max(memory as f64)
    }

    /// Whether a tile is held in registers, and leaves while the next one is multiplied (`kHolds` in `gemm_hopper.cu`).
    const fn holds(self) -> bool {
        let sums = self.rows * self.kernel_columns / (2 * WARPGROUP_ROWS as u64); // of a thread
        64 < sums && sums <= 128
    }

    /// Cycles from the last multiplication of a tile of `rows` rows to the first of the next.
    const fn hand_over_cycles(self, rows: u64) -> u64 {
        if self.holds() { TILE_CYCLES } else { self.leaving_cycles(rows) }
    }

    /// The same where the tile has left before.
    const fn leaving_cycles(self, rows: u64) -> u64 {
        TILE_CYCLES + PIECE_CYCLES * rows.div_ceil(64) * self.kernel_columns.div_ceil(self.piece_columns) / 2
    }
}

/// Kernels of more columns do not take fewer: their registers are all in use.
const MOST_NARROWED: u64 = 128;
/// No tile has fewer columns.
const LEAST_COLUMNS: u64 = 32;

/// The fewest columns of a tile of a kernel that multiplies so many: with half of them it is another kernel's.
pub(crate) fn least_columns(kernel_columns: u64) -> usize {
    let least = if kernel_columns <= MOST_NARROWED { kernel_columns / 2 } else { kernel_columns };
    usize::try_from(least.max(LEAST_COLUMNS)).unwrap_or(usize::MAX)
}

/// Rows that both warpgroups together multiply at least.
const WARPGROUP_ROWS: usize = 128;
/// Bytes of a row of A or B in a stage.
const STAGE_BYTES: u64 = hopper::STAGE_BYTES as u64;
/// Multiply-adds that an SM does in a clock cycle, times the bytes of an element: 2048 of 16 bits, 4096 of 8 bits.
const MULTIPLY_BYTES: u64 = 4096;
/// Bytes that the L2 cache delivers to an SM in a cycle when all ask (measured: 55 to 67 by tile).
const L2_BYTES: u64 = 60;
/// What a row of a stage that does not begin at a line of the L2 cache takes of it, and so mostly touches two, over one that
/// does; and one that does not begin at one of its sectors either (fitted to e4m3 with k = 3696).
const LINE_APART: f64 = 1.38;
const SECTOR_APART: f64 = 2.2;
/// Bytes of a sector of the L2 cache.
const SECTOR_BYTES: u64 = 32;
/// Bytes of a matrix that nobody else reads which one SM gets from memory in a cycle.
const MEMORY_BYTES_SM: u64 = 24;
/// Bytes that memory delivers to all SMs in a cycle: 4.2 TB/s at 1.75 GHz (measured on an H200).
const MEMORY_BYTES: u64 = 2400;
/// What of the time in which memory delivers what ranks that share the GPU read is not hidden. (Eight ranks on one H200 took 8.8 ms by tiles of
/// 128×256, where 256×192 takes 5.3.)
const IN_THE_WAY: f64 = 0.25;
/// Cycles between the last multiplication of a tile and the first of the next, but for what its pieces take.
const TILE_CYCLES: u64 = 1500;
/// Cycles that each piece takes that a warpgroup hands over.
const PIECE_CYCLES: u64 = 250;
/// Cycles that a launch in pairs takes longer than one of blocks by themselves, which come while the GEMM before still computes
/// (measured: 900 to 3,700).
const PAIR_CYCLES: f64 = 1000.0;
/// Cycles that a part of a tile costs beyond its share of the multiplications and the exchange of its sums: two trips to
/// memory and back, and the tile that is not begun meanwhile (fitted).
const PART_CYCLES: u64 = 9000;
/// Bytes of partial sums that a block moves in a cycle.
const PARTIAL_BYTES: u64 = 32;
/// The chip's power limits its clock, and loads take power: a tile's time grows by this much for each row and column that
/// it loads, over the product (fitted to five tile shapes at 8192³).
const POWER_PER_LOAD: f64 = 6.0;
/// What a tile of 128 columns takes more power than that: a multiplication reads a fifth more of shared memory for each product than
/// one of 256 columns (256 × 128 took 1.005 to 1.009 times 128 × 256 in four shapes, and 1.02 times 256 × 192 where both waves are full).
const NARROW: f64 = 1.01;
/// Parts that a tile may be split into.
const MAX_PARTS: u64 = 16;

/// The partial sums of split tiles that one block of a launch may have room for, in bytes.
pub(crate) const SCRATCH_BYTES_PER_BLOCK: u64 = 128 << 10;
/// Split tiles that a launch may have.
pub(crate) const MAX_SPLIT_TILES: u64 = 4096;

/// The best way to cut `problem` for each candidate that an order can number, and the cycles that it is expected to take;
/// the fastest first. `sharing` ranks do so side by side; by itself, one may have its blocks in pairs: next to a peer's, those that are free
/// need not be neighbours.
pub(crate) fn ways(
    candidates: impl Iterator<Item = Candidate>,
    problem: &Problem,
    blocks: u64,
    sharing: u64,
) -> Vec<(Tiling, f64)> {
    let pairs = sharing == 1 && blocks > 1;
    let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let way = |candidate: Candidate| {
        let estimate = estimate(candidate, problem, blocks, sharing)?;
        let tiling = Tiling {
            shape: TileShape { rows: size(candidate.rows), columns: size(candidate.columns) },
            group_rows: group_rows(candidate.rows, candidate.columns, blocks),
            halved: size(estimate.halved),
            split_tiles: size(estimate.split_tiles),
            parts: size(estimate.parts),
            sharing: candidate.sharing,
            kernel: TileKernel::Hopper {
                columns: u32::try_from(candidate.kernel_columns).unwrap_or(u32::MAX),
            },
        };
        let pair_cycles = if candidate.sharing == Sharing::None { 0.0 } else { PAIR_CYCLES };
        Some((tiling, estimate.cycles + pair_cycles))
    };
    let narrowed =
        |candidate: Candidate| std::iter::once(candidate).chain(candidate.narrowed(problem, blocks.max(1)));
    let paired = |candidate: Candidate| {
        std::iter::once(candidate).chain((pairs && candidate.can_share()).then(|| candidate.sharing(problem)))
    };
    let mut ways: Vec<_> = candidates.flat_map(narrowed).flat_map(paired).filter_map(way).collect();
    ways.sort_by(|a, b| a.1.total_cmp(&b.1));
    ways
}

/// Those of the ways that are cut into that tile; all of them where none is, or none is asked for: what is not aligned has one kernel.
pub(crate) fn cut_into(tile: Option<TileShape>, mut ways: Vec<(Tiling, f64)>) -> Vec<(Tiling, f64)> {
    if ways.iter().any(|(tiling, _)| Some(tiling.shape) == tile) {
        ways.retain(|(tiling, _)| Some(tiling.shape) == tile);
    }
    ways
}

/// The side of a square as large as all the tiles that are computed at the same time.
pub(crate) fn group_rows(rows: u64, columns: u64, blocks: u64) -> usize {
    usize::try_from((rows * columns).saturating_mul(blocks).isqrt()).unwrap_or(usize::MAX)
}

/// One way to cut the problem, and the cycles that it is expected to take.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Estimate {
    cycles: f64,
    halved: u64,
    split_tiles: u64,
    parts: u64,
}

/// How many tiles of a problem are whole, and how many are of at most half the rows, which take half the time.
fn count_tiles(candidate: Candidate, problem: &Problem) -> Option<(u64, u64)> {
    let column_tiles = (problem.n as u64).div_ceil(candidate.columns);
    let (mut whole, mut half) = (0_u64, 0_u64);
    for shard in 0..problem.shards.world_size() {
        let rows = problem.shards.rows(shard) as u64;
        let tail = rows % candidate.rows;
        let is_half = candidate.can_halve() && tail > 0 && tail <= candidate.rows / 2;
        whole += rows / candidate.rows + u64::from(tail > 0 && !is_half);
        half += u64::from(is_half);
    }
    // Halving may add two row tiles for each.
    let numbered = (3 * whole + half).max(column_tiles) <= 1 << 16;
    numbered.then_some((whole * column_tiles, half * column_tiles))
}

/// The best way to cut `problem` into tiles of `candidate` for `blocks` blocks that run at once, beside those of as many more ranks as
/// share the GPU.
#[allow(clippy::cast_precision_loss)] // an estimate
fn estimate(candidate: Candidate, problem: &Problem, blocks: u64, sharing: u64) -> Option<Estimate> {
    let Candidate { rows, columns, element_bytes, .. } = candidate;
    let [m, n, k] = [problem.shards.total(), problem.n, problem.k].map(|extent| extent as u64);
    let (whole, half) = count_tiles(candidate, problem)?;
    let stages = (k * element_bytes).div_ceil(STAGE_BYTES);
    let stage_cycles = |rows: u64| candidate.stage_cycles(rows, m, k * element_bytes);
    let [whole_cycles, half_cycles] = [rows, (rows / 2).max(1)]
        .map(|rows| stages as f64 * stage_cycles(rows) + candidate.hand_over_cycles(rows) as f64);
    let waves = |tiles: u64| tiles.div_ceil(blocks) as f64;
    let remainder = whole % blocks;
    let begun = (whole / blocks) as f64 * whole_cycles;
    let result_bytes = 2; // of all types
    let bytes = (n * k + m * k) * element_bytes + m * n * result_bytes;
    let memory_cycles = bytes as f64 / MEMORY_BYTES as f64;
    // What ranks that share the GPU read side by side: each a square of tiles at a time.
    let squares = (m * n) as f64 / (rows * columns * blocks.max(1)) as f64;
    let square_bytes = (2 * group_rows(rows, columns, blocks) as u64 * k * element_bytes) as f64;
    let in_the_way = if sharing > 1 {
        IN_THE_WAY * squares * square_bytes * sharing as f64 / MEMORY_BYTES as f64
    } else {
        0.0
    };
    let leaving = candidate.leaving_cycles(rows);
    // A block's last tile is not held.
    let last_leaves = (leaving - candidate.hand_over_cycles(rows)) as f64;
    let mut best: Option<Estimate> = None;
    // What comes after the last load cannot be hidden behind loads. Of two ways that memory bounds, the one with less else
    // to do is better.
    let mut consider = |work: f64, tail: u64, estimate: Estimate| {
        let work = work + last_leaves + in_the_way;
        let cycles = work.max(memory_cycles + tail as f64) + 0.1 * work;
        if best.is_none_or(|best| cycles < best.cycles) {
            best = Some(Estimate { cycles, ..estimate });
        }
    };
    let plain = Estimate { cycles: 0.0, halved: 0, split_tiles: 0, parts: 1 };

    // The last wave as it is; tiles that are halves anyway fill it up.
    let room = if remainder > 0 { 2 * (blocks - remainder) } else { 0 };
    let last = waves(remainder) * whole_cycles + waves(half.saturating_sub(room)) * half_cycles;
    consider(begun + last, leaving, plain);
    if candidate.can_halve() && remainder > 0 {
        let last = waves(half + 2 * remainder) * half_cycles;
        consider(begun + last, leaving, Estimate { halved: remainder + half, ..plain });
    }
    if remainder > 0 && half == 0 && remainder <= MAX_SPLIT_TILES {
        let bytes = rows * columns * 4;
        // Only rows that exist are exchanged, sixteen at a time.
        let exchanged = bytes * m.next_multiple_of(16).min(rows) / rows;
        for parts in 2..=MAX_PARTS.min(stages) {
            if remainder * parts * bytes > SCRATCH_BYTES_PER_BLOCK * blocks {
                break;
            }
            let exchange = (1 + parts) * exchanged / PARTIAL_BYTES;
            let part = stages.div_ceil(parts) as f64 * stage_cycles(rows) + (leaving + PART_CYCLES) as f64;
            let last = waves(remainder * parts) * part + exchange as f64;
            let tail = leaving + PART_CYCLES + exchange;
            consider(begun + last, tail, Estimate { split_tiles: remainder, parts, ..plain });
        }
    }
    best
}

#[cfg(test)]
mod tests;
