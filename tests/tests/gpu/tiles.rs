//! Every tile that a GEMM may be cut into, beside the one that is chosen: all right, and the choice not much slower than the
//! best. Prints what the model of the time expected, for fitting it.
#![allow(clippy::print_stdout)] // the figures are the point

use flux_launch::{
    Activation, DType, E4m3, Element, GemmParams, Launch, Launcher, Policy, Problem, Scales, Schedule,
    ScheduleTables, Tiling,
};
use flux_memory::{Buffer, Device, FaultLog, Placement, Stream, Timer};
use flux_swizzle::{Shards, TileOrder};
use flux_tests::data::{agree, fill_with_normal};
use half::bf16;
use std::sync::Arc;
use std::time::Duration;

const ROUNDS: usize = 7;
const REST: Duration = Duration::from_millis(20);
/// Operands rotate through more than twice the L2 cache.
const ROTATED_BYTES: usize = 200 << 20;
const MAX_COPIES: usize = 8;

/// Of any element type.
const RESULT_BYTES: usize = 2;

struct Gpu {
    dtype: DType,
    device: Device,
    launcher: Arc<Launcher>,
    stream: Stream,
    log: Arc<FaultLog>,
}

/// Copies of the operands of one shape.
struct Operands {
    shape: (usize, usize, usize),
    a: Vec<Buffer>,
    b: Vec<Buffer>,
    c: Buffer,
}

impl Gpu {
    fn new(dtype: DType) -> Self {
        let device = Device::cuda(0).expect("this test needs a GPU");
        let launcher = Launcher::sharing(std::slice::from_ref(&device), None).unwrap().remove(0);
        launcher.prepare(dtype, &[Policy::Plain]).unwrap();
        let log = FaultLog::new(&device, 0, Duration::from_secs(2)).unwrap();
        Self { dtype, stream: device.stream().unwrap(), device, launcher, log }
    }

    fn operands<E: Element>(&self, shape: (usize, usize, usize)) -> Operands {
        let (m, n, k) = shape;
        let copies = (ROTATED_BYTES / ((m * k + n * k) * size_of::<E>()) + 1).min(MAX_COPIES);
        let upload = |elements: usize, seed: u64| {
            let buffer =
                Buffer::allocate(&self.device, elements * size_of::<E>(), Placement::Device).unwrap();
            fill_with_normal::<E>(&buffer, &self.stream, seed);
            buffer
        };
        // All copies hold the same: what is computed does not depend on whose turn it is.
        Operands {
            shape,
            a: (0..copies).map(|_| upload(m * k, 1)).collect(),
            b: (0..copies).map(|_| upload(n * k, 2)).collect(),
            c: Buffer::allocate(&self.device, m * n * RESULT_BYTES, Placement::Device).unwrap(),
        }
    }

    fn schedule(&self, (m, n, _): (usize, usize, usize), tiling: &Tiling) -> Schedule {
        let order = TileOrder::plain(m, tiling.shape, n).unwrap().swept_by(tiling.group_rows);
        let tables = ScheduleTables::new(&order, |_, _| {}).unwrap();
        let tables = tables.halve_last(tiling.halved, tiling.half_rows()).unwrap();
        let (tiles, row_tiles) = (tables.order.len(), tables.row_tiles.len());
        let mut schedule = Schedule::with_capacity(&self.device, tiles, row_tiles).unwrap();
        // SAFETY: written once, before its launches.
        unsafe { schedule.write(&self.stream, &tables).unwrap() };
        schedule
    }

    fn launch(&self, operands: &Operands, tiling: &Tiling, schedule: &Schedule, turn: usize) {
        let (m, n, k) = operands.shape;
        let number = |value: usize| u32::try_from(value).unwrap();
        let copy = turn % operands.a.len();
        let params = GemmParams {
            a: operands.a[copy].address(),
            b: operands.b[copy].address(),
            c: operands.c.address(),
            lda: k as u64,
            ldb: k as u64,
            ldc: n as u64,
            m: number(m),
            n: number(n),
            k: number(k),
            wait: self.log.bound(0),
            ..GemmParams::default()
        };
        let launch = Launch {
            policy: Policy::Plain,
            dtype: self.dtype,
            scales: Scales::default(),
            activation: Activation::None,
            tiling,
            schedule,
            destinations: None,
            trace: None,
        };
        // SAFETY: everything outlives the stream's work, which every measurement waits for.
        unsafe { self.launcher.gemm(&self.stream, &launch, &params).unwrap() };
    }

    /// The median time of a GEMM in µs, and its result, written over NaN.
    fn measure(&self, operands: &Operands, tiling: &Tiling) -> (f64, Vec<u16>) {
        let (m, n, k) = operands.shape;
        let schedule = self.schedule(operands.shape, tiling);
        operands.c.upload(&self.stream, 0, &vec![0xff; m * n * RESULT_BYTES]).unwrap();
        self.launch(operands, tiling, &schedule, 0);
        let mut result = vec![0_u16; m * n];
        operands.c.download(&self.stream, 0, bytemuck::cast_slice_mut(&mut result)).unwrap();
        let calls = (2_000_000_000_000 / (m * n * k).max(1)).clamp(1, 100);
        let timer = Timer::new(&self.device).unwrap();
        let mut times: Vec<_> = (0..ROUNDS)
            .map(|_| {
                std::thread::sleep(REST);
                self.launch(operands, tiling, &schedule, 0);
                timer.begin(&self.stream).unwrap();
                (0..calls).for_each(|turn| self.launch(operands, tiling, &schedule, turn));
                timer.end(&self.stream).unwrap();
                timer.elapsed().unwrap().as_secs_f64() * 1e6 / calls as f64
            })
            .collect();
        times.sort_by(f64::total_cmp);
        (times[ROUNDS / 2], result)
    }
}

#[test]
fn the_chosen_tile_is_not_much_slower_than_the_best() {
    check::<bf16>();
}

#[test]
fn the_chosen_tile_of_8_bit_elements_is_not_much_slower_than_the_best() {
    check::<E4m3>();
}

fn check<E: Element>() {
    let (gpu, mut bad_choices) = (Gpu::new(E::DTYPE), Vec::new());
    println!("    m      n      k |    tile pairs halved split parts |  expected us  measured us");
    for (n, k) in [(6144, 12288), (12288, 6144), (7168, 4096), (4096, 3584), (8192, 3696)] {
        for m in [1, 16, 64, 256, 512, 1024, 4096] {
            let operands = gpu.operands::<E>((m, n, k));
            let problem =
                Problem { shards: Shards::new(m, 1).unwrap(), n, k, aligned: true, to_slots: false };
            let ways = gpu.launcher.tilings(E::DTYPE, &problem).unwrap();
            let mut measured: Vec<(f64, Vec<u16>)> = Vec::new();
            for (tiling, cycles) in &ways {
                let (time, result) = gpu.measure(&operands, tiling);
                println!(
                    "{m:>5} {n:>6} {k:>6} | {:>3}x{:<3} {:>5} {:>6} {:>5} {:>5} | {:>12.1} {time:>12.1}",
                    tiling.shape.rows,
                    tiling.shape.columns,
                    tiling.is_in_pairs(),
                    tiling.halved,
                    tiling.split_tiles,
                    tiling.parts,
                    cycles / 1750.0, // at 1.75 GHz
                );
                measured.push((time, result));
            }
            assert_eq!(gpu.log.fault(), None);
            let best = measured.iter().map(|(time, _)| *time).fold(f64::INFINITY, f64::min);
            let (chosen, first) = &measured[0];
            // Sums of 8-bit elements are less exact: by some thousandths of their spread, which is that of all sums.
            let slack = if E::DTYPE.is_scaled() { 0.02 * (k as f32).sqrt() } else { 0.01 };
            for (way, (_, result)) in ways.iter().zip(&measured) {
                assert!(agree(result, first, slack), "{m} {n} {k}: {way:?} is wrong");
            }
            if *chosen > 1.15 * best {
                bad_choices.push(format!("{m} {n} {k}: {chosen:.1} us chosen, {best:.1} us possible"));
            }
        }
    }
    assert!(bad_choices.is_empty(), "{bad_choices:#?}");
}
