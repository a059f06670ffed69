//! A GEMM as waves of tiles.

use crate::{Gpu, Problem, TileRate};

/// Combining the parts of a tile that was split along K, in µs (fitted on H200: 9,000 cycles).
const SPLIT_US: f64 = 5.0;
/// What one SM gets of the memory, when it reads alone what nobody else reads, beside an even share (24 bytes a cycle of 18).
const SM_SHARE: f64 = 1.33;

/// So many bytes of a weight stay in the L2 cache from one sweep to the next; which part of what is more is read once more, since sweeps of
/// few tiles overlap; and which part of the time that memory takes for it is lost even where it can be hidden behind multiplications. Fitted
/// to GEMMs of 512 to 4096 rows in eight shards on an H200, swept one by one and together (`tests/sweeps.rs`).
const KEPT_BYTES: f64 = 20e6;
const READ_AGAIN: f64 = 0.9;
const NOT_HIDDEN: f64 = 0.1;
/// Rows that are swept together at most, so that what is loaded of A and B is used again.
pub(crate) const SWEPT_ROWS: usize = 2048;

/// How a GEMM is cut, and how long a tile takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cut {
    pub(crate) tile: TileRate,
    /// Parts of K that tiles are split into.
    pub(crate) parts: usize,
    /// What a part of a tile takes, in µs.
    pub(crate) part_us: f64,
    pub(crate) sms: usize,
}

impl Cut {
    /// All ways to cut a problem whose tiles go into so many rows of tiles, `row_tiles(height)`, and which reads its weight so many times
    /// more than if all its rows were one shard.
    pub(crate) fn all(
        gpu: &Gpu,
        tiles: &[TileRate],
        problem: &Problem,
        (splits, reads): (bool, usize),
        row_tiles: impl Fn(usize) -> usize,
    ) -> Vec<Cut> {
        let parts: &[usize] = if splits { &[1, 2, 4, 8] } else { &[1] };
        let ways = tiles.iter().flat_map(|tile| parts.iter().map(move |&parts| (tile, parts)));
        ways.map(|(&tile, parts)| Cut::new(gpu, problem, (tile, parts), row_tiles(tile.rows), reads))
            .collect()
    }

    fn new(
        gpu: &Gpu,
        problem: &Problem,
        (tile, parts): (TileRate, usize),
        row_tiles: usize,
        reads: usize,
    ) -> Self {
        let Problem { m, n, k, element_bytes, .. } = *problem;
        let [m, n, k, element] = [m, n, k, element_bytes].map(|extent| extent as f64);
        let sms = gpu.sms.max(1);
        let rate = gpu.tflops * 1e6 / sms as f64 * tile.efficiency * 2.0 / element.max(1.0);
        let multiply_us = 2.0 * (tile.rows * tile.columns) as f64 * k / rate;
        // What all tiles together load and store takes at least as long, and they share the time evenly.
        let memory = gpu.memory_gb_per_s * 1e3;
        let tiles = row_tiles * (problem.n.div_ceil(tile.columns));
        let units = (tiles * parts).max(1);
        let weight = n * k * element;
        let again = READ_AGAIN * reads as f64 * (weight - KEPT_BYTES).max(0.0);
        let share = units.min(sms) as f64 / units as f64 / memory;
        let shared_us = (m * k * element + weight + again + 2.0 * m * n) * share;
        // Where there is one row of tiles each reads its own columns of B.
        let lone = if row_tiles <= 1 { tile.columns as f64 * k * element / parts as f64 } else { 0.0 };
        let lone_us = lone / (memory / sms as f64 * SM_SHARE);
        let part_us = (multiply_us / parts as f64).max(shared_us).max(lone_us) + NOT_HIDDEN * again * share;
        let split_us = if parts > 1 { SPLIT_US } else { 0.0 };
        Self { tile, parts, part_us: part_us + split_us, sms }
    }

    /// Parts of tiles in so many rows of tiles.
    pub(crate) fn units(&self, row_tiles: usize, columns: usize) -> usize {
        row_tiles.saturating_mul(columns.div_ceil(self.tile.columns)).saturating_mul(self.parts)
    }

    /// The whole GEMM by itself.
    pub(crate) fn alone_us(&self, rows: usize, columns: usize) -> f64 {
        let units = self.units(rows.div_ceil(self.tile.rows), columns);
        units.div_ceil(self.sms) as f64 * self.part_us - self.saved_us(units)
    }

    /// What is saved by splitting those of so many units that are left for the last wave, which they do not fill.
    pub(crate) fn saved_us(&self, units: usize) -> f64 {
        let left = units % self.sms;
        if left == 0 || units < self.sms || self.parts > 1 {
            return 0.0;
        }
        let split = |parts: usize| {
            self.part_us - (left * parts).div_ceil(self.sms) as f64 * self.part_us / parts as f64 - SPLIT_US
        };
        [2, 3, 4, 8].into_iter().map(split).fold(0.0, f64::max)
    }
}

/// The fastest GEMM of `rows` rows that there is, from launch to end, in µs.
pub(crate) fn fastest_us(gpu: &Gpu, problem: &Problem, rows: usize) -> f64 {
    if rows == 0 || problem.n == 0 {
        return gpu.launch_us;
    }
    let problem = Problem { m: rows, ..*problem };
    let cuts = Cut::all(gpu, gpu.tiles, &problem, (true, 0), |height| rows.div_ceil(height));
    let best = cuts.iter().map(|cut| cut.alone_us(rows, problem.n)).fold(f64::INFINITY, f64::min);
    best + gpu.launch_us
}

/// The SMs, to which units of equal length come in turn.
#[derive(Clone, Debug)]
pub(crate) struct Sms {
    free_us: Vec<f64>,
    next: usize,
}

/// Of some units: when the first could have begun, when it began, and when the last ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Computed {
    pub(crate) free_us: f64,
    pub(crate) begin_us: f64,
    pub(crate) end_us: f64,
}

impl Sms {
    pub(crate) fn new(sms: usize, from_us: f64) -> Self {
        Self { free_us: vec![from_us; sms.max(1)], next: 0 }
    }

    /// Computes units that are there from `gate_us` on.
    pub(crate) fn compute(&mut self, units: usize, unit_us: f64, gate_us: f64) -> Computed {
        let sms = self.free_us.len();
        let free_us = self.free_us[self.next];
        // After a round from the gate on, each further one takes all SMs as long.
        let rounds = (units / sms).saturating_sub(1);
        let mut end_us = gate_us;
        if rounds > 0 {
            end_us = self.one_by_one(sms, unit_us, gate_us);
            let further = (rounds - 1) as f64 * unit_us;
            self.free_us.iter_mut().for_each(|free| *free += further);
            end_us += further;
        }
        end_us = end_us.max(self.one_by_one(units - rounds * sms, unit_us, gate_us));
        Computed { free_us, begin_us: free_us.max(gate_us), end_us }
    }

    fn one_by_one(&mut self, units: usize, unit_us: f64, gate_us: f64) -> f64 {
        let mut last = gate_us;
        for _ in 0..units {
            let free = &mut self.free_us[self.next];
            *free = free.max(gate_us) + unit_us;
            last = last.max(*free);
            self.next = (self.next + 1) % self.free_us.len();
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    #[test]
    fn rounds_at_once_are_the_same_as_unit_by_unit() {
        for units in [0, 1, 131, 132, 133, 263, 264, 265, 1000, 13_333] {
            let [mut fast, mut slow] = [Sms::new(132, 1.0), Sms::new(132, 1.0)];
            for sms in [&mut fast, &mut slow] {
                sms.one_by_one(77, 3.0, 0.0);
            }
            let end = fast.compute(units, 2.0, 5.0).end_us;
            assert!((end - slow.one_by_one(units, 2.0, 5.0)).abs() < 1e-6, "{units} units");
            assert_eq!(fast.next, slow.next);
        }
    }

    #[test]
    fn plain_gemms_take_what_was_measured() {
        for (gpu, m, n, k, us, within) in [
            (Gpu::H200, 8192, 14336, 8192, 2415.0, 0.03),
            (Gpu::H200, 2048, 14336, 8192, 616.0, 0.05),
            (Gpu::H200, 512, 14336, 8192, 162.0, 0.06),
            (Gpu::H200, 64, 8192, 14336, 61.0, 0.10),
            (Gpu::H200, 8192, 8192, 14336, 2385.0, 0.03),
            (Gpu::A100, 4096, 6144, 12288, 2378.0, 0.03),
            (Gpu::H800, 4096, 6144, 12288, 814.0, 0.03),
            (Gpu::L20, 4096, 6144, 12288, 5316.0, 0.06),
            (Gpu::H100_500W, 8192, 3584, 8192, 828.0, 0.08),
            (Gpu::H100_500W, 8192, 6656, 16384, 2879.0, 0.05),
        ] {
            let problem = Problem { op: Op::AgGemm, m, n, k, element_bytes: 2 };
            let simulated = fastest_us(&gpu, &problem, m);
            assert!(
                (simulated / us - 1.0).abs() < within,
                "{} {m} {n} {k}: {simulated:.0} of {us}",
                gpu.name
            );
        }
    }
}
