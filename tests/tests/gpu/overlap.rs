//! How well one rank of eight hides its communication, on one GPU with all SMs: the peers are played by pinned host memory,
//! and their traffic is real, over PCIe, by copy engine. Chunks, orders and tapers are those that the library chooses. Beside
//! the plain GEMM and the copies alone, in one process, interleaved, with equal rests.
#![allow(clippy::print_stdout)] // the figures are the point

mod scatter;
mod sweeps;

use flux::Overlap;
use flux_launch::{
    Activation, DType, Destinations, GemmParams, Launch, Launcher, Policy, Problem, RowTile, Scales,
    Schedule, ScheduleTables, Tiling,
};
use flux_memory::{Buffer, Device, Event, FaultLog, Placement, Stream, SymmetricSignals, Timer};
use flux_swizzle::{Chunks, Shards, Taper, TileOrder, TileShape};
use flux_tests::data::{agree, fill_with_normal};
use half::bf16;
use scatter::{Scattering, To, reduce_scatter};
use std::sync::Arc;
use std::time::Duration;

const WORLD_SIZE: usize = 8;
const ROUNDS: usize = 9;
const REST: Duration = Duration::from_millis(60);
const BYTES: usize = size_of::<bf16>();

struct Gpu {
    device: Device,
    launcher: Arc<Launcher>,
    compute: Stream,
    /// One: chunks on two in turn arrive in pairs, at half the speed.
    transfers: Stream,
    begun: Event,
    ended: Event,
    log: Arc<FaultLog>,
}

/// A GEMM that can be launched again and again.
struct Prepared {
    tiling: Tiling,
    schedule: Schedule,
    policy: Policy,
    params: GemmParams,
    destinations: Option<Destinations>,
}

fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap()
}

/// The median, in µs.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

impl Gpu {
    fn new() -> Self {
        let device = Device::cuda(0).expect("this test needs a GPU");
        let launcher = Launcher::sharing(std::slice::from_ref(&device), None).unwrap().remove(0);
        let policies = [Policy::Plain, Policy::AllGather, Policy::ReduceScatter];
        launcher.prepare(DType::Bf16, &policies).unwrap();
        let log = FaultLog::new(&device, 0, Duration::from_secs(2)).unwrap();
        let compute = device.stream().unwrap();
        let transfers = device.transfer_stream().unwrap();
        let [begun, ended] = [(); 2].map(|()| Event::new(&device).unwrap());
        Self { device, launcher, compute, transfers, begun, ended, log }
    }

    fn buffer(&self, elements: usize, placement: Placement) -> Buffer {
        Buffer::allocate(&self.device, elements * BYTES, placement).unwrap()
    }

    fn normal(&self, elements: usize, placement: Placement, seed: u64) -> Buffer {
        let buffer = self.buffer(elements, placement);
        fill_with_normal::<bf16>(&buffer, &self.compute, seed);
        buffer
    }

    fn prepare(
        &self,
        policy: Policy,
        (shards, tile): (Shards, Option<TileShape>),
        params: GemmParams,
        order: impl FnOnce(&Tiling) -> TileOrder,
        describe: impl FnMut(&flux_swizzle::RowTile, &mut RowTile),
    ) -> Prepared {
        let (n, k) = (params.n as usize, params.k as usize);
        let to_slots = policy == Policy::ReduceScatter;
        let aligned = params.are_operands_aligned(DType::Bf16);
        let problem = Problem { shards, n, k, aligned, to_slots };
        // Of a ReduceScatter, one for which the sum can be folded in.
        let ways = self.launcher.tilings_into(tile, DType::Bf16, &problem).unwrap();
        let fits = |tiling: &Tiling| {
            policy != Policy::ReduceScatter
                || self.launcher.can_fold(DType::Bf16, tiling, WORLD_SIZE).unwrap()
        };
        let tiling = ways.iter().map(|&(tiling, _)| tiling).find(fits).unwrap();
        let tables = ScheduleTables::new(&order(&tiling), describe).unwrap();
        let tables = tables.halve_last(tiling.halved, tiling.half_rows()).unwrap();
        let (tiles, row_tiles) = (tables.order.len(), tables.row_tiles.len());
        let mut schedule = Schedule::with_capacity(&self.device, tiles, row_tiles).unwrap();
        // SAFETY: written once, before its launches.
        unsafe { schedule.write(&self.compute, &tables).unwrap() };
        self.compute.synchronize().unwrap();
        Prepared { tiling, schedule, policy, params, destinations: None }
    }

    /// What the library goes by when it chooses how to cut shards into chunks, and the GEMM into tiles.
    fn overlaps(&self, (m, n, k): (usize, usize, usize), row_bytes: usize) -> Vec<Overlap> {
        let shards = Shards::new(m, WORLD_SIZE).unwrap();
        let problem = Problem { shards, n, k, aligned: true, to_slots: false };
        let paces = self.launcher.paces(DType::Bf16, &problem).unwrap();
        assert!(!paces.is_empty(), "a pace for this GPU");
        let of_pace = |pace| Overlap { shards, row_bytes, chunk_rows: shards.max_rows(), columns: n, pace };
        paces.into_iter().map(of_pace).collect()
    }

    fn launch(&self, gemm: &Prepared, epoch: u32) {
        self.launch_with(gemm, GemmParams { gate_epoch: epoch, epoch, ..gemm.params });
    }

    fn launch_with(&self, gemm: &Prepared, params: GemmParams) {
        let Prepared { tiling, schedule, policy, destinations, .. } = gemm;
        let (policy, dtype, destinations) = (*policy, DType::Bf16, destinations.as_ref());
        let activation = Activation::None;
        let scales = Scales::default();
        let launch =
            Launch { policy, dtype, scales, activation, tiling, schedule, destinations, trace: None };
        // SAFETY: everything that the parameters name outlives the streams' work, which every round waits for.
        unsafe { self.launcher.gemm(&self.compute, &launch, &params).unwrap() };
    }

    /// Rests, then times what `work` enqueues on the compute stream, and on the one for transfers.
    fn time(&self, timer: &Timer, work: impl FnOnce()) -> f64 {
        std::thread::sleep(REST);
        timer.begin(&self.compute).unwrap();
        self.compute.record(&self.begun).unwrap();
        self.transfers.wait(&self.begun).unwrap();
        work();
        self.transfers.record(&self.ended).unwrap();
        self.compute.wait(&self.ended).unwrap();
        timer.end(&self.compute).unwrap();
        let elapsed = timer.elapsed().unwrap();
        self.compute.synchronize().unwrap();
        assert_eq!(self.log.fault(), None);
        elapsed.as_secs_f64() * 1e6
    }

    fn download(&self, buffer: &Buffer, elements: usize) -> Vec<u16> {
        let mut values = vec![0_u16; elements];
        buffer.download(&self.compute, 0, bytemuck::cast_slice_mut(&mut values)).unwrap();
        values
    }
}

/// A shape of rows, columns and depth.
type Shape = (usize, usize, usize);

fn gemm_params(gpu: &Gpu, (m, n, k): Shape, [a, b, c]: [&Buffer; 3]) -> GemmParams {
    GemmParams {
        a: a.address(),
        b: b.address(),
        c: c.address(),
        lda: k as u64,
        ldb: k as u64,
        ldc: n as u64,
        m: number(m),
        n: number(n),
        k: number(k),
        wait: gpu.log.bound(0),
        ..GemmParams::default()
    }
}

fn plain(gpu: &Gpu, (m, n, _): Shape, params: GemmParams) -> Prepared {
    let order = |t: &Tiling| TileOrder::plain(m, t.shape, n).unwrap().swept_by(t.group_rows);
    gpu.prepare(Policy::Plain, (Shards::new(m, 1).unwrap(), None), params, order, |_, _| {})
}

/// What all shapes share: pinned memory takes long to allocate and to fill.
struct Gathering {
    gathered: Buffer,
    remote: Buffer,
    b: Buffer,
    c: Buffer,
    expected: Buffer,
}

/// AllGather+GEMM with each of these chunks: `n` decides how long the GEMM takes beside the copies.
fn all_gather(gpu: &Gpu, buffers: &Gathering, (m, n, k): Shape, ways: &[(&Overlap, usize, Taper)]) {
    let shards = Shards::new(m, WORLD_SIZE).unwrap();
    let Gathering { gathered, remote, b, c, expected } = buffers;
    let base = gemm_params(gpu, (m, n, k), [gathered, b, expected]);
    let plain = plain(gpu, (m, n, k), base);
    let timer = Timer::new(&gpu.device).unwrap();
    for &(overlap, chunk_rows, taper) in ways {
        let tile = overlap.pace.shape;
        let chunks = Chunks::new(shards, chunk_rows).unwrap().tapered(taper, 0);
        let device = std::slice::from_ref(&gpu.device);
        let signals = SymmetricSignals::allocate(device, chunks.signals(), Placement::Device).unwrap();
        let params = GemmParams { c: c.address(), gates: signals.word(0, 0), ..base };
        let order = |t: &Tiling| {
            let order = TileOrder::all_gather(shards, 0, t.shape, n).unwrap();
            order.swept_by(t.group_rows).following(&chunks, t.half_rows())
        };
        let gated = gpu.prepare(Policy::AllGather, (shards, Some(tile)), params, order, |tile, entry| {
            if tile.shard != 0 {
                let gate = chunks.gate(tile);
                (entry.gate_begin, entry.gate_end) = (number(gate.start), number(gate.end));
            }
        });
        let copy = |epoch: u32| {
            for shard in 1..WORLD_SIZE {
                for index in 0..chunks.count(shard) {
                    let rows = chunks.rows(shard, index);
                    let (at, bytes) = (rows.start * k * BYTES, rows.len() * k * BYTES);
                    let signal = signals.word(0, chunks.signal(shard, index));
                    // SAFETY: both buffers hold the rows, and every round waits for the stream.
                    unsafe {
                        let (to, from) = (gathered.address().add(at), remote.address().add(at));
                        gpu.transfers.copy(to, from, bytes).unwrap();
                        gpu.transfers.write_values(&[(signal, epoch)]).unwrap();
                    }
                }
            }
        };
        let fused = |epoch: u32| {
            gpu.time(&timer, || {
                // First, so that its own rows are multiplied while the copies are enqueued.
                gpu.launch(&gated, epoch);
                copy(epoch);
            })
        };
        let mut times: [Vec<f64>; 4] = Default::default();
        for epoch in (1..).step_by(2).take(ROUNDS + 2) {
            let alone = gpu.time(&timer, || gpu.launch(&plain, 0));
            let copies = gpu.time(&timer, || copy(epoch));
            let open = gpu.time(&timer, || gpu.launch(&gated, epoch));
            let fused = fused(epoch + 1);
            if epoch > 4 {
                [alone, copies, open, fused].iter().zip(&mut times).for_each(|(&t, times)| times.push(t));
            }
        }
        let [alone, copies, open, overlapped] = times.map(median);
        let floor = alone.max(copies);
        let moved: usize = (1..WORLD_SIZE).map(|shard| chunks.count(shard)).sum();
        let estimate = overlap.gather_us(&chunks);
        println!(
            "{m:>5} {n:>6} {k:>5} {:>7} {chunk_rows:>5} {:>9} {moved:>6} | {alone:>8.1} {copies:>8.1} {:>5.2} | {:>9.3} | \
             {estimate:>8.0} {overlapped:>8.1} {:>7.3} {:>6.3}",
            tile.to_string(),
            format!("{:?} {:?}", taper.end, &taper.pieces[..7]),
            copies / alone,
            alone / open,
            overlapped / floor,
            1.0 - (overlapped - alone) / copies,
        );
        // Once more, with nothing there that was not copied, or computed, in this call.
        let own = shards.range(0).end * k * BYTES;
        gathered.upload(&gpu.compute, own, &vec![0xff; m * k * BYTES - own]).unwrap();
        c.upload(&gpu.compute, 0, &vec![0xff; m * n * BYTES]).unwrap();
        fused(number(2 * ROUNDS) + 8);
        let (ours, theirs) = (gpu.download(c, m * n), gpu.download(expected, m * n));
        assert!(agree(&ours, &theirs, 0.01), "the gated GEMM is wrong");
    }
}

#[test]
fn all_gather_beside_its_copies() {
    let gpu = Gpu::new();
    let (m, k, most) = (8192, 8192, 25536);
    let buffers = Gathering {
        gathered: gpu.normal(m * k, Placement::Device, 1),
        remote: gpu.buffer(m * k, Placement::PinnedHost),
        b: gpu.normal(most * k, Placement::Device, 2),
        c: gpu.buffer(m * most, Placement::Device),
        expected: gpu.buffer(m * most, Placement::Device),
    };
    // SAFETY: both buffers are of that size, and the stream is waited for.
    unsafe {
        let (to, from) = (buffers.remote.address(), buffers.gathered.address());
        gpu.compute.copy(to, from, m * k * BYTES).unwrap();
    }
    gpu.compute.synchronize().unwrap();
    println!(
        "    m      n     k    tile chunk                    finer copies |  gemm us copies us ratio | open gate | estimate fused us / floor      E"
    );
    for n in [most, 16384, 12736, 12672, 8512] {
        let overlaps = gpu.overlaps((m, n, k), k * BYTES);
        let best = Overlap::fastest(&overlaps, Overlap::gather_taper).unwrap();
        let (overlap, taper) = best.expect("a pace for this GPU");
        let whole = overlap.chunk_rows;
        let mut ways = vec![(overlap, whole, taper)];
        if taper != Taper::NONE {
            ways.extend([whole, whole / 2].map(|rows| (&overlaps[0], rows, Taper::NONE)));
        }
        all_gather(&gpu, &buffers, (m, n, k), &ways);
    }
}

#[test]
fn reduce_scatter_beside_its_traffic() {
    let gpu = Gpu::new();
    let shapes = [(8192, 8192, 3584), (8192, 12288, 6144), (8192, 8192, 12288), (8192, 8192, 16384)];
    let most = |elements: fn(Shape) -> usize| shapes.into_iter().map(elements).max().unwrap_or(0);
    let slots = most(|(m, n, _)| m * n);
    let buffers = Scattering {
        a: gpu.normal(most(|(m, _, k)| m * k), Placement::Device, 1),
        b: gpu.normal(most(|(_, n, k)| n * k), Placement::Device, 2),
        expected: gpu.buffer(slots, Placement::Device),
        own: gpu.normal(slots, Placement::Device, 3),
        slots: [Placement::Device, Placement::PinnedHost].map(|placement| gpu.buffer(slots, placement)),
        sums: [(); 2].map(|()| gpu.buffer(slots / WORLD_SIZE, Placement::Device)),
    };
    println!(
        "    m      n     k    tile      to chunks |  gemm us copies us ratio | estimate fused us / floor |  and sum / floor |   folded / floor"
    );
    for shape in shapes {
        for to in [To::Device, To::Relayed, To::Host] {
            reduce_scatter(&gpu, &buffers, shape, to);
        }
    }
}
