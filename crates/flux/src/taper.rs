//! How finely chunks are cut where their way ends, or begins, or where it pays between: by a small simulation of the GEMM beside its traffic.
//!
//! Whole shards are best in the middle: each chunk costs the link time of its own, and a sweep over few rows makes less use of
//! the L2 cache. But where copying takes about as long as multiplying, or longer, what is left to multiply after the last
//! arrival counts in full, as does the time until the first chunk of tiles is complete and can be sent.

use crate::Result;
use flux_launch::{Pace, SIGNAL_ROWS};
use flux_swizzle::{Chunks, End, Shards, Taper};

/// A copy between a GPU and pinned host memory moves so many bytes in a µs (measured on an H200, PCIe 5).
const BYTES_PER_US: f64 = 54e3;
/// What a gathered chunk costs beyond its bytes, in µs: a copy and a signal (3.4 µs by themselves), and what both take longer beside a GEMM
/// (measured there, with 18 ways of cutting 8192 × 8512 × 8192 and 8192 × 12672 × 8192, as is [`GATHERED`]).
const GATHERED_CHUNK_US: f64 = 5.0;
/// The same of a relayed chunk, for which the stream also waits (measured there).
const RELAYED_CHUNK_US: f64 = 7.0;
/// Pieces that are relayed: they leave while SMs go on to the next ones. Measured there, with 10 ways of cutting 8192 × 8192 × 12288 and
/// 16384: in halves of 512 rows a GEMM is no slower, in pieces of 256 rows and half tiles 8 % where two shards are cut so, 18 % where
/// five are.
const RELAYED: Sweep = Sweep { tile: 1.0, half_tile: 0.6 };
/// Gathered chunks: all SMs are at work on one at a time, and each reads the whole weight from memory by itself, a tenth of which cannot be
/// hidden: 4.2 TB/s are ten times less. And what half a tile takes beside a whole one. Measured there, in 50 ways of cutting
/// 8192 × 12736 × 8192 and 8192 × 12672 × 8192 with five tiles, which take 0.957 to 1.05 of what is expected.
const SWEPT_BYTES_PER_US: f64 = 42e6;
const HALF_TILE: f64 = 0.62;
/// What a chunk costs by itself is to be small beside it: at 2 MiB it is an eighth.
const MIN_PIECE_BYTES: usize = 2 << 20;
/// A chunk is cut finer if that wins at least this part of the time: more chunks cost the host more.
const LEAST_GAIN: f64 = 0.001;

/// Another tile is taken if that wins at least this part of the time, which is about what is known of a tile's.
const LEAST_GAIN_OF_TILE: f64 = 0.0075;

/// One rank's GEMM, and the copies between the rank and pinned host memory that go on beside it.
#[derive(Clone, Copy, Debug)]
pub struct Overlap {
    /// The rows of all ranks: all but one shard travel.
    pub shards: Shards,
    /// Bytes of a row that travels.
    pub row_bytes: usize,
    /// Rows of a chunk that is not cut finer.
    pub chunk_rows: usize,
    /// Columns of the GEMM's result.
    pub columns: usize,
    /// How fast the GEMM goes.
    pub pace: Pace,
}

/// The time of a tile, and of one of half the rows, in a sweep over the few rows of a chunk or a piece of one, beside a tile's in a sweep
/// over many.
#[derive(Clone, Copy)]
struct Sweep {
    tile: f64,
    half_tile: f64,
}

impl Sweep {
    const OVER_MANY: Self = Self { tile: 1.0, half_tile: 0.5 };
}

/// The SMs, on which tiles come in turn.
struct Sms {
    free_us: Vec<f64>,
    next: usize,
}

impl Overlap {
    /// The taper with which an AllGather and the GEMM that waits for it end earliest, and when that is, in µs.
    pub fn gather_taper(&self) -> Result<(Taper, f64)> {
        let best = |end| self.best(end, self.pace.shape.rows, |chunks| self.gather_us(chunks));
        let (first, last) = (best(End::First)?, best(End::Last)?);
        Ok(if first.1 < last.1 { first } else { last })
    }

    /// The same of a GEMM and the relaying of its tiles.
    pub fn scatter_taper(&self) -> Result<(Taper, f64)> {
        self.best(End::First, SIGNAL_ROWS, |chunks| self.scatter_us(chunks))
    }

    /// Of several paces, one for each tile, the one with which it ends earliest, where `us` says when that is: the first, unless
    /// another is clearly better.
    pub fn fastest<T>(all: &[Self], us: impl Fn(&Self) -> Result<(T, f64)>) -> Result<Option<(&Self, T)>> {
        let mut fastest = None;
        for overlap in all {
            let (with, time) = us(overlap)?;
            if fastest.as_ref().is_none_or(|&(_, _, least)| time < (1.0 - LEAST_GAIN_OF_TILE) * least) {
                fastest = Some((overlap, with, time));
            }
        }
        Ok(fastest.map(|(overlap, with, _)| (overlap, with)))
    }

    /// When all has arrived at rank 0 and been multiplied, in µs from the start.
    pub fn gather_us(&self, chunks: &Chunks) -> f64 {
        let mut sms = Sms::new(&self.pace);
        let mut end = self.multiply(&mut sms, self.shards.rows(0), (Sweep::OVER_MANY, false), 0.0);
        let mut arrived = 0.0;
        for shard in 1..self.shards.world_size() {
            for index in 0..chunks.count(shard) {
                let rows = chunks.rows(shard, index).len();
                arrived += self.copy_us(rows) + GATHERED_CHUNK_US;
                let sweep = (self.gathered(rows), chunks.is_piece(shard, index));
                end = self.multiply(&mut sms, rows, sweep, arrived).max(end);
            }
        }
        end.max(arrived)
    }

    /// When rank 0 has multiplied all, and what is not its own has been relayed, in µs from the start.
    pub fn scatter_us(&self, chunks: &Chunks) -> f64 {
        let mut sms = Sms::new(&self.pace);
        let mut sent = 0.0_f64;
        for shard in 1..self.shards.world_size() {
            for index in 0..chunks.count(shard) {
                let rows = chunks.rows(shard, index).len();
                let sweep = (RELAYED, chunks.is_piece(shard, index));
                let complete = self.multiply(&mut sms, rows, sweep, 0.0);
                sent = sent.max(complete) + RELAYED_CHUNK_US + self.copy_us(rows);
            }
        }
        // What is left for a last wave is cut so that all SMs end together.
        self.multiply(&mut sms, self.shards.rows(0), (Sweep::OVER_MANY, false), 0.0);
        sms.mean_us().max(sent)
    }

    /// The best taper towards that end, and what cutting any one chunk after another otherwise makes of it; and the time that it takes.
    fn best(&self, end: End, grain: usize, us: impl Fn(&Chunks) -> f64) -> Result<(Taper, f64)> {
        let grain = grain.max(1);
        let grain = MIN_PIECE_BYTES.div_ceil(self.row_bytes.max(1)).div_ceil(grain).saturating_mul(grain);
        let whole = Chunks::new(self.shards, self.chunk_rows)?;
        let chunks: usize = (1..self.shards.world_size()).map(|shard| whole.count(shard)).sum();
        let chunks = chunks.min(Taper::MOST);
        // The finer of two that take the same costs the host more.
        let better = |best: (Taper, f64), taper: Taper| {
            let time = us(&whole.tapered(taper, 0));
            if time < (1.0 - LEAST_GAIN) * best.1 { (taper, time) } else { best }
        };
        let mut best = (Taper::NONE, us(&whole));
        for two in 1..=chunks {
            for (four, eight) in (0..=two).flat_map(|four| (0..=four.min(1)).map(move |eight| (four, eight)))
            {
                best = better(best, Taper::towards(end, [two, four, eight], grain));
            }
        }
        // As often as there are chunks, whatever the times are.
        for _ in 0..chunks {
            let before = best.0;
            for (place, pieces) in (0..chunks).flat_map(|place| [1, 2, 4].map(|pieces| (place, pieces))) {
                let mut taper = Taper { end, grain, pieces: before.pieces };
                taper.pieces[place] = pieces;
                best = better(best, taper);
            }
            if best.0 == before {
                break;
            }
        }
        Ok(best)
    }

    /// How a chunk of that many gathered rows is swept.
    #[allow(clippy::cast_precision_loss)] // an estimate
    fn gathered(&self, rows: usize) -> Sweep {
        let Pace { shape, at_once, tile_us, .. } = self.pace;
        let tiles = rows as f64 * self.columns as f64 / (shape.rows as f64 * shape.columns as f64);
        let weight_us = (self.row_bytes as f64 * self.columns as f64) / SWEPT_BYTES_PER_US;
        let tile = 1.0 + weight_us * at_once as f64 / (tiles * tile_us);
        Sweep { tile, half_tile: HALF_TILE * tile }
    }

    #[allow(clippy::cast_precision_loss)] // an estimate
    fn copy_us(&self, rows: usize) -> f64 {
        rows.saturating_mul(self.row_bytes) as f64 / BYTES_PER_US
    }

    /// Enqueues the tiles of `rows` rows, which are there from `start` on, and returns when the last one is done.
    /// Those of a piece of a chunk are halved if they are no higher than a tile.
    fn multiply(&self, sms: &mut Sms, rows: usize, (sweep, is_piece): (Sweep, bool), start: f64) -> f64 {
        let Pace { shape, half_rows, tile_us, .. } = self.pace;
        let (height, us) = match is_piece && rows <= shape.rows && half_rows < shape.rows {
            true => (half_rows, sweep.half_tile * tile_us),
            false => (shape.rows, sweep.tile * tile_us),
        };
        let column_tiles = self.columns.div_ceil(shape.columns.max(1));
        sms.compute(rows.div_ceil(height.max(1)).saturating_mul(column_tiles), us, start)
    }
}

impl Sms {
    /// More at once than any device computes is as many.
    const MOST: usize = 1 << 16;

    fn new(pace: &Pace) -> Self {
        Self { free_us: vec![0.0; pace.at_once.clamp(1, Self::MOST)], next: 0 }
    }

    fn compute(&mut self, tiles: usize, us: f64, start: f64) -> f64 {
        // After a round from `start` on, each further one takes all SMs as long.
        let sms = self.free_us.len();
        let rounds = (tiles / sms).saturating_sub(1);
        let mut last = start;
        if rounds > 0 {
            last = self.one_by_one(sms, us, start);
            #[allow(clippy::cast_precision_loss)] // an estimate
            let further = (rounds - 1) as f64 * us;
            self.free_us.iter_mut().for_each(|free| *free += further);
            last += further;
        }
        self.one_by_one(tiles - rounds * sms, us, start).max(last)
    }

    /// When they would be done if they had shared the tiles evenly.
    #[allow(clippy::cast_precision_loss)] // an estimate
    fn mean_us(&self) -> f64 {
        self.free_us.iter().sum::<f64>() / self.free_us.len().max(1) as f64
    }

    fn one_by_one(&mut self, tiles: usize, us: f64, start: f64) -> f64 {
        let mut last = start;
        for _ in 0..tiles {
            let free = &mut self.free_us[self.next];
            *free = free.max(start) + us;
            last = last.max(*free);
            self.next = (self.next + 1) % self.free_us.len();
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flux_swizzle::TileShape;

    /// What a wave of each tile takes for k = 8192 on an H200, in µs, as the launcher expects of some 12,700 columns.
    const TILES: [(usize, usize, f64); 5] =
        [(256, 192, 131.0), (256, 128, 89.0), (128, 256, 89.0), (128, 224, 79.0), (128, 192, 68.1)];

    /// Rank 0 of eight on an H200, 8192 rows, with each tile.
    #[allow(clippy::cast_precision_loss)]
    fn overlaps(k: usize, columns: usize, row_bytes: usize) -> Vec<Overlap> {
        let shards = Shards::new(8192, 8).unwrap();
        let of_tile = |(rows, tile_columns, us)| {
            let shape = TileShape { rows, columns: tile_columns };
            let pace = Pace { shape, half_rows: 128, at_once: 132, tile_us: us * k as f64 / 8192.0 };
            Overlap { shards, row_bytes, chunk_rows: 1024, columns, pace }
        };
        TILES.map(of_tile).to_vec()
    }

    /// The same with a tile of 256 × 192.
    fn overlap(k: usize, columns: usize, row_bytes: usize) -> Overlap {
        overlaps(k, columns, row_bytes)[0]
    }

    /// Tapers to be written as lists: of seven chunks, in the order of travel.
    fn cut(pieces: [u8; 7], grain: usize) -> Taper {
        let mut taper = Taper { end: End::First, grain, ..Taper::NONE };
        taper.pieces[..7].copy_from_slice(&pieces);
        taper
    }

    /// The larger of what the GEMM and the traffic take by themselves.
    #[allow(clippy::cast_precision_loss)]
    fn floor(overlap: &Overlap) -> f64 {
        let halves = 2 * 8192 / 256 * overlap.columns.div_ceil(192);
        (halves.div_ceil(132) as f64 / 2.0 * overlap.pace.tile_us).max(overlap.copy_us(7 * 1024))
    }

    #[test]
    fn arrivals_are_cut_where_copying_takes_about_as_long_as_multiplying() {
        for (n, tile, pieces, whole_ratio, ratio) in [
            (25536, "256x192", [1_usize; 7], 1.00..1.04, 1.04),
            (16384, "256x192", [2, 1, 2, 1, 1, 1, 1], 1.01..1.04, 1.03), // the second wave begins before the first whole shard is there
            (12736, "128x224", [2, 2, 2, 2, 2, 4, 4], 1.15..1.22, 1.09), // 67 columns of 192: 512 rows are just more than a wave
            (12672, "128x192", [1, 2, 2, 2, 2, 4, 4], 1.12..1.20, 1.08),
            (8512, "128x192", [1, 1, 1, 1, 1, 2, 4], 1.11..1.14, 1.06),
        ] {
            let all = overlaps(8192, n, 16384);
            let floor = floor(&all[0]);
            let whole = |overlap: &Overlap| Chunks::new(overlap.shards, overlap.chunk_rows).unwrap();
            let before = all[0].gather_us(&whole(&all[0])) / floor;
            let (overlap, taper) = Overlap::fastest(&all, Overlap::gather_taper).unwrap().unwrap();
            let chunks = whole(overlap).tapered(taper, 0);
            let after = overlap.gather_us(&chunks) / floor;
            let counts = [1, 2, 3, 4, 5, 6, 7].map(|shard| chunks.count(shard));
            assert_eq!(
                (overlap.pace.shape.to_string().as_str(), counts),
                (tile, pieces),
                "n = {n}: {taper:?}"
            );
            assert!(whole_ratio.contains(&before) && after <= ratio, "n = {n}: {before} {after}");
        }
    }

    /// Rounds at once are the same as tile by tile, and the largest and smallest extents take no time and do no harm.
    #[test]
    fn many_tiles_take_no_longer_to_simulate_than_few() {
        let pace = overlap(8192, 192, 16384).pace;
        for tiles in [0, 1, 131, 132, 133, 263, 264, 265, 1000, 13_333] {
            let [mut fast, mut slow] = [Sms::new(&pace), Sms::new(&pace)];
            for sms in [&mut fast, &mut slow] {
                sms.one_by_one(77, 3.0, 0.0);
            }
            assert_eq!(fast.compute(tiles, 2.0, 5.0), slow.one_by_one(tiles, 2.0, 5.0), "{tiles} tiles");
            assert_eq!((fast.free_us, fast.next), (slow.free_us, slow.next), "{tiles} tiles");
        }
        let most = Overlap { columns: usize::MAX, row_bytes: usize::MAX, ..overlap(8192, 1, 1) };
        most.gather_taper().unwrap();
        let none = TileShape { rows: 0, columns: 0 };
        let empty = Pace { shape: none, half_rows: 0, at_once: 0, tile_us: 0.0 };
        Overlap { pace: empty, ..most }.scatter_taper().unwrap();
        for tile_us in [f64::NAN, f64::INFINITY, -1.0] {
            let odd = Overlap { pace: Pace { tile_us, ..pace }, ..overlap(8192, 12736, 16384) };
            odd.gather_taper().unwrap();
            odd.scatter_taper().unwrap();
            Overlap::fastest(&[odd, odd], Overlap::gather_taper).unwrap().unwrap();
        }
    }

    #[test]
    fn the_first_tiles_to_be_relayed_are_cut() {
        for (n, k, ratio) in
            [(8192, 3584, 1.06), (12288, 6144, 1.05), (8192, 12288, 1.13), (8192, 16384, 1.03)]
        {
            let overlap = overlap(k, n, 2 * n);
            let whole = Chunks::new(overlap.shards, overlap.chunk_rows).unwrap();
            let (taper, _) = overlap.scatter_taper().unwrap();
            let floor = floor(&overlap);
            let [before, after] =
                [whole, whole.tapered(taper, 0)].map(|chunks| overlap.scatter_us(&chunks) / floor);
            assert!(after < before && after <= ratio, "n = {n}, k = {k}: {before} {after} {taper:?}");
        }
    }

    /// The ways that were measured on an H200 (docs/measurements.md), in µs, and what is expected of them.
    #[test]
    fn gathering_takes_as_long_as_expected() {
        for (n, measured) in [
            (
                12672,
                [
                    ([0, 0, 0], 2477.5),
                    ([3, 0, 0], 2380.8),
                    ([1, 1, 0], 2500.8),
                    ([2, 1, 0], 2442.5),
                    ([2, 2, 0], 2508.6),
                    ([7, 1, 0], 2460.3),
                    ([1, 1, 1], 2525.4),
                    ([3, 2, 0], 2479.0),
                    ([3, 1, 0], 2407.6),
                ],
            ),
            (
                8512,
                [
                    ([0, 0, 0], 2471.8),
                    ([1, 0, 0], 2369.5),
                    ([1, 1, 0], 2403.7),
                    ([2, 1, 0], 2341.0),
                    ([2, 2, 0], 2387.1),
                    ([7, 1, 0], 2373.9),
                    ([1, 1, 1], 2454.4),
                    ([3, 2, 0], 2348.1),
                    ([3, 1, 0], 2326.4),
                ],
            ),
        ] {
            let overlap = overlap(8192, n, 16384);
            let whole = Chunks::new(overlap.shards, overlap.chunk_rows).unwrap();
            for (finer, measured) in measured {
                let taper = Taper::towards(End::Last, finer, if finer[2] > 0 { 128 } else { 256 });
                let expected = overlap.gather_us(&whole.tapered(taper, 0));
                assert!(
                    (expected / measured - 1.0).abs() < 0.035,
                    "n = {n}, {finer:?}: {expected} of {measured}"
                );
            }
            // What is chosen of these is not slower than the fastest of them by more than 1 %.
            let (chosen, _) = overlap.gather_taper().unwrap();
            let of_chosen = |finer| Taper::towards(End::Last, finer, chosen.grain).pieces == chosen.pieces;
            let us = measured.iter().find(|(finer, _)| of_chosen(*finer)).map(|&(_, us)| us);
            let fastest = measured.iter().map(|&(_, us)| us).fold(f64::INFINITY, f64::min);
            let is_good = chosen.end == End::Last && us.is_some_and(|us| us < 1.01 * fastest);
            assert!(is_good, "n = {n}: {chosen:?}");
        }
    }

    /// The same with other tiles.
    #[test]
    fn tiles_take_as_long_as_expected() {
        for (n, tile, pieces, measured) in [
            (16384, (256, 192), [2, 1, 1, 1, 1, 1, 1], 2834.3),
            (16384, (256, 192), [2, 1, 2, 1, 1, 1, 1], 2798.7),
            (12736, (128, 256), [1, 1, 1, 1, 2, 2, 2], 2492.7),
            (12736, (128, 256), [1, 1, 2, 2, 2, 4, 4], 2454.9),
            (12736, (128, 224), [1, 1, 1, 1, 2, 2, 2], 2419.1),
            (12736, (128, 224), [1, 1, 2, 2, 2, 4, 4], 2399.3),
            (12736, (128, 192), [1, 1, 2, 2, 2, 4, 4], 2426.7),
            (12736, (128, 224), [2, 2, 2, 2, 2, 4, 4], 2365.7),
            (12736, (128, 224), [2, 2, 2, 2, 4, 4, 4], 2369.1),
            (12736, (128, 224), [1, 2, 2, 4, 4, 4, 4], 2405.4),
            (12736, (128, 224), [2, 2, 2, 2, 2, 2, 2], 2436.8),
            (12736, (256, 128), [1, 1, 1, 2, 2, 2, 2], 2475.8),
            (12672, (128, 192), [2, 2, 2, 2, 2, 4, 4], 2349.4),
            (12672, (128, 192), [1, 1, 2, 2, 4, 4, 4], 2382.2),
            (12672, (128, 224), [2, 2, 2, 2, 2, 4, 4], 2347.6),
            (12672, (256, 128), [2, 2, 2, 2, 2, 4, 4], 2421.3),
            (12672, (128, 192), [1, 1, 1, 1, 2, 2, 2], 2430.2),
            (12672, (128, 192), [1, 1, 2, 2, 2, 4, 4], 2376.7),
            (12672, (128, 224), [1, 1, 2, 2, 2, 4, 4], 2443.6),
            (12672, (256, 128), [1, 1, 1, 1, 1, 2, 2], 2437.3),
            (8512, (128, 192), [1, 1, 1, 1, 1, 2, 4], 2320.2),
            (8512, (128, 224), [1, 1, 1, 1, 1, 1, 4], 2381.9),
        ] {
            let shape = TileShape { rows: tile.0, columns: tile.1 };
            let all = overlaps(8192, n, 16384);
            let overlap = all.iter().find(|overlap| overlap.pace.shape == shape).unwrap();
            let chunks =
                Chunks::new(overlap.shards, overlap.chunk_rows).unwrap().tapered(cut(pieces, shape.rows), 0);
            let expected = overlap.gather_us(&chunks);
            assert!(
                (expected / measured - 1.0).abs() < 0.045,
                "n = {n}, {shape}, {pieces:?}: {expected} of {measured}"
            );
        }
        for (shape, measured) in [((256, 128), 2392.8), ((128, 256), 2391.1)] {
            let shape = TileShape { rows: shape.0, columns: shape.1 };
            let all = overlaps(12288, 8192, 16384);
            let overlap = all.iter().find(|overlap| overlap.pace.shape == shape).unwrap();
            let chunks = Chunks::new(overlap.shards, overlap.chunk_rows).unwrap();
            let expected = overlap.scatter_us(&chunks.tapered(cut([2, 2, 2, 1, 1, 1, 1], 256), 0));
            assert!((expected / measured - 1.0).abs() < 0.01, "{shape}: {expected} of {measured}");
        }
        let all = overlaps(12288, 8192, 16384);
        let (overlap, taper) = Overlap::fastest(&all, Overlap::scatter_taper).unwrap().unwrap();
        assert_eq!(overlap.pace.shape, TileShape { rows: 256, columns: 128 });
        assert_eq!(taper.pieces[..7], [2, 2, 2, 1, 1, 1, 1]);
    }

    /// The ways that were measured on an H200 (docs/measurements.md), in µs, and what is expected of them.
    #[test]
    fn relaying_takes_as_long_as_expected() {
        for (k, tile_us, measured) in [
            (
                12288,
                199.1,
                &[
                    ([0, 0, 0], 2591.0),
                    ([1, 0, 0], 2471.0),
                    ([1, 1, 0], 2541.0),
                    ([2, 1, 0], 2530.0),
                    ([3, 1, 0], 2479.0),
                    ([3, 2, 0], 2436.0),
                    ([7, 0, 0], 2494.0),
                    ([7, 2, 0], 2445.0),
                ][..],
            ),
            (
                16384,
                264.8,
                &[
                    ([0, 0, 0], 2892.0),
                    ([1, 0, 0], 2894.0),
                    ([1, 1, 0], 2925.0),
                    ([2, 1, 0], 2927.0),
                    ([3, 1, 0], 2935.0),
                    ([7, 0, 0], 2758.0),
                    ([7, 2, 0], 2984.0),
                    ([7, 5, 0], 3173.0),
                ],
            ),
        ] {
            let mut overlap = overlap(k, 8192, 16384);
            overlap.pace.tile_us = tile_us;
            let whole = Chunks::new(overlap.shards, overlap.chunk_rows).unwrap();
            for &(finer, measured) in measured {
                let taper = Taper::towards(End::First, finer, 256);
                let expected = overlap.scatter_us(&whole.tapered(taper, 0));
                assert!(
                    (expected / measured - 1.0).abs() < 0.045,
                    "k = {k}, {finer:?}: {expected} of {measured}"
                );
            }
            // Nor is what is chosen slower than the fastest of these by more than that.
            let chosen = overlap.scatter_taper().unwrap().1;
            let fastest = measured.iter().map(|&(_, us)| us).fold(f64::INFINITY, f64::min);
            assert!(chosen < 1.03 * fastest, "k = {k}: {chosen} of {fastest}");
        }
    }
}
