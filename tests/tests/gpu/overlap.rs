//! How well one rank of eight hides its communication, on one GPU with all SMs: the peers are played by pinned host memory,
//! and their traffic is real, over PCIe, by copy engine. Chunks, orders and tapers are those that the library chooses. Beside
//! the plain GEMM and the copies alone, in one process, interleaved, with equal rests.
#![allow(clippy::print_stdout)] // the figures are the point

use flux::Overlap;
use flux_launch::{
    Activation, DType, Destination, Destinations, FoldParams, GemmParams, Launch, Launcher, Policy, Problem,
    RowTile, SIGNAL_ROWS, Scales, Schedule, ScheduleTables, Slots, SumParams, Tiling,
};
use flux_memory::{
    Address, Buffer, Device, Event, FaultLog, Placement, Stream, SymmetricSignals, Timer, WaitSite,
};
use flux_swizzle::{Chunks, Shards, Taper, TileOrder, TileShape};
use flux_tests::data::{agree, fill_with_normal};
use half::bf16;
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

    fn overlap_of(&self, shape: (usize, usize, usize), row_bytes: usize, tile: TileShape) -> Overlap {
        self.overlaps(shape, row_bytes)
            .into_iter()
            .find(|overlap| overlap.pace.shape == tile)
            .expect("a pace")
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
fn all_gather(gpu: &Gpu, buffers: &Gathering, (m, n, k): Shape, ways: &[(TileShape, usize, Taper)]) {
    let shards = Shards::new(m, WORLD_SIZE).unwrap();
    let Gathering { gathered, remote, b, c, expected } = buffers;
    let base = gemm_params(gpu, (m, n, k), [gathered, b, expected]);
    let plain = plain(gpu, (m, n, k), base);
    let timer = Timer::new(&gpu.device).unwrap();
    for &(tile, chunk_rows, taper) in ways {
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
        let estimate = gpu.overlap_of((m, n, k), k * BYTES, tile).gather_us(&chunks);
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
        let (tile, usual, whole) = (overlap.pace.shape, overlaps[0].pace.shape, overlap.chunk_rows);
        let mut ways = vec![(tile, whole, taper)];
        if taper != Taper::NONE {
            ways.extend([whole, whole / 2].map(|rows| (usual, rows, Taper::NONE)));
        }
        all_gather(&gpu, &buffers, (m, n, k), &ways);
    }
}

/// Where the tiles of seven of eight shards go.
#[derive(Clone, Copy, Debug, PartialEq)]
enum To {
    /// Slots in device memory, as peers over NVLink would have.
    Device,
    /// Slots in pinned host memory, written by the kernel.
    Host,
    /// Slots in pinned host memory, copied there from device memory chunk by chunk as they are complete.
    Relayed,
}

/// What all shapes share.
struct Scattering {
    a: Buffer,
    b: Buffer,
    expected: Buffer,
    /// This rank's slots: they hold what the other ranks sent it already.
    own: Buffer,
    /// Its slots at the others, or the memory that its tiles are relayed from: in device memory, and in pinned host memory.
    slots: [Buffer; 2],
    /// Of its rows: folded into the GEMM, and by a kernel of its own.
    sums: [Buffer; 2],
}

fn reduce_scatter(gpu: &Gpu, buffers: &Scattering, (m, n, k): Shape, to: To) {
    let shards = Shards::new(m, WORLD_SIZE).unwrap();
    let Scattering { a, b, expected, own, slots: [near, far], sums } = buffers;
    let written = if to == To::Host { far } else { near };
    let result = if to == To::Device { near } else { far };
    let slot_rows = shards.max_rows();
    let overlaps = gpu.overlaps((m, n, k), n * BYTES);
    let best = Overlap::fastest(&overlaps, Overlap::scatter_taper).unwrap();
    let (overlap, taper) = best.expect("a pace for this GPU");
    let tile = (to == To::Relayed).then_some(overlap.pace.shape);
    // The owners' signals are those of blocks; where tiles are relayed, the GEMM raises those of chunks instead.
    let blocks = Chunks::new(shards, SIGNAL_ROWS).unwrap();
    let chunks = match to {
        To::Relayed => {
            let chunks = Chunks::new(shards, overlap.chunk_rows).unwrap();
            chunks.tapered(taper, 0).numbered_as(&blocks)
        }
        _ => blocks,
    };
    let signalled_in = if to == To::Host { Placement::PinnedHost } else { Placement::Device };
    let device = std::slice::from_ref(&gpu.device);
    let signals = SymmetricSignals::allocate(device, chunks.signals(), signalled_in).unwrap();
    // Of the blocks in this rank's own slots, by source.
    let sent = SymmetricSignals::allocate(device, blocks.signals(), Placement::Device).unwrap();
    let complete = (0..chunks.signals()).map(|signal| {
        let site = WaitSite { peer: 0, tile: WaitSite::NO_TILE, signal: number(signal) };
        vec![(signals.word(0, signal), site)]
    });
    let complete = gpu.log.wait_points(0, complete.collect()).unwrap();
    // Owner by owner as the tiles are computed, a chunk at a time.
    let relay = |epoch: u32| {
        for owner in 1..WORLD_SIZE {
            for index in 0..chunks.count(owner) {
                let rows = chunks.rows(owner, index);
                let (at, bytes) = (rows.start * n * BYTES, rows.len() * n * BYTES);
                // SAFETY: both buffers hold the rows; every round waits for the stream.
                unsafe {
                    gpu.transfers.wait_values(&complete[chunks.signal(owner, index)], epoch).unwrap();
                    gpu.transfers.copy(far.address().add(at), near.address().add(at), bytes).unwrap();
                }
            }
        }
    };
    let counters = gpu.buffer(2 * chunks.signals(), Placement::Device);
    counters.upload(&gpu.compute, 0, &vec![0; counters.bytes()]).unwrap();
    let table: Vec<_> = (0..WORLD_SIZE)
        .map(|owner| match owner {
            0 => Destination { slot: own.address(), signals: sent.word(0, blocks.signal(0, 0)) },
            _ => Destination {
                slot: written.address().add(owner * slot_rows * n * BYTES),
                signals: signals.word(0, chunks.signal(owner, 0)),
            },
        })
        .collect();
    let base = GemmParams {
        gates: Address::NULL,
        counters: counters.address(),
        destination_count: 1,
        ..gemm_params(gpu, (m, n, k), [a, b, expected])
    };
    let plain = plain(gpu, (m, n, k), base);
    let order = |t: &Tiling| {
        let order = TileOrder::reduce_scatter(shards, 0, t.shape, n).unwrap().swept_by(t.group_rows);
        if to == To::Relayed { order.following(&chunks, t.half_rows()) } else { order }
    };
    let mut scattered = gpu.prepare(Policy::ReduceScatter, (shards, tile), base, order, |tile, entry| {
        let row = tile.rows.start - shards.range(tile.shard).start;
        (entry.destination, entry.destination_row) = (number(tile.shard), number(row));
        let signalled = if tile.shard == 0 { &blocks } else { &chunks };
        let index = signalled.index_of(tile.shard, tile.rows.start);
        (entry.signal, entry.counter) = (number(index), number(chunks.signal(tile.shard, index)));
    });
    let extents = Slots { rows: slot_rows, columns: n, pitch: n };
    scattered.destinations = Some(Destinations::new(&gpu.device, DType::Bf16, &table, extents).unwrap());
    let of_own = slot_rows * n;
    let fold = FoldParams {
        slots: own.address(),
        ld_out: n as u64,
        sources: number(WORLD_SIZE),
        slot_rows: number(slot_rows),
        rows: number(slot_rows),
        source_stride: number(blocks.signal(1, 0)),
        ..FoldParams::default()
    };
    let sum = SumParams {
        slots: own.address(),
        source_pitch: of_own as u64,
        ld_slot: n as u64,
        out: sums[1].address(),
        ld_out: n as u64,
        signals: sent.word(0, 0),
        source_stride: number(blocks.signal(1, 0)),
        signal_rows: number(SIGNAL_ROWS),
        rows: number(slot_rows),
        n: number(n),
        world_size: number(WORLD_SIZE),
        wait: gpu.log.bound(0),
        ..SumParams::default()
    };
    let timer = Timer::new(&gpu.device).unwrap();
    let mut times: [Vec<f64>; 5] = Default::default();
    for round in 0..ROUNDS + 2 {
        let alone = gpu.time(&timer, || gpu.launch(&plain, 0));
        // SAFETY: both buffers are of that size; every round waits for the stream.
        let copies = gpu.time(&timer, || unsafe {
            gpu.transfers.copy(far.address(), expected.address(), (m * n - of_own) * BYTES).unwrap();
        });
        if round == ROUNDS + 1 {
            // Once more, with nothing there that was not computed, or copied, in this round.
            let poison = vec![0xff; m * n * BYTES];
            buffers.slots.iter().for_each(|slots| slots.upload(&gpu.compute, 0, &poison).unwrap());
            let of_own = &poison[..of_own * BYTES];
            for buffer in [own, &sums[0], &sums[1]] {
                buffer.upload(&gpu.compute, 0, of_own).unwrap();
            }
        }
        // Each launch has its own epoch: a relay never finds the signals of the launch before.
        let epoch = 3 * number(round) + 1;
        let relayed = |epoch| {
            if to == To::Relayed {
                relay(epoch);
            }
        };
        let fused = gpu.time(&timer, || {
            gpu.launch(&scattered, epoch);
            relayed(epoch);
        });
        let folded = gpu.time(&timer, || {
            let (c, gates) = (sums[0].address(), sent.word(0, 0));
            gpu.launch_with(&scattered, GemmParams { c, gates, fold, epoch: epoch + 1, ..scattered.params });
            relayed(epoch + 1);
        });
        let summed = gpu.time(&timer, || {
            gpu.launch(&scattered, epoch + 2);
            relayed(epoch + 2);
            // SAFETY: the slots and the sums are of that size; every round waits for the stream.
            unsafe { gpu.launcher.sum(&gpu.compute, DType::Bf16, &sum).unwrap() };
        });
        if round >= 2 {
            let measured = [alone, copies, fused, summed, folded];
            measured.iter().zip(&mut times).for_each(|(&t, times)| times.push(t));
        }
    }
    let [alone, copies, fused, summed, folded] = times.map(median);
    let floor = if to == To::Device { alone } else { alone.max(copies) };
    let moved: usize = (1..WORLD_SIZE).map(|owner| chunks.count(owner)).sum();
    let estimate = if to == To::Relayed { overlap.scatter_us(&chunks) } else { f64::NAN };
    println!(
        "{m:>5} {n:>6} {k:>5} {:>7} {:>7} {moved:>6} | {alone:>8.1} {copies:>8.1} {:>5.2} | {estimate:>8.0} {fused:>8.1} {:>7.3} | \
         {summed:>8.1} {:>7.3} | {folded:>8.1} {:>7.3}",
        scattered.tiling.shape.to_string(),
        format!("{to:?}"),
        copies / alone,
        fused / floor,
        summed / floor,
        folded / floor,
    );
    let [folded, separate] = [0, 1].map(|way| gpu.download(&sums[way], of_own));
    assert!(folded == separate, "the folded sum has other bits");
    let (mut ours, theirs) = (gpu.download(result, m * n), gpu.download(expected, m * n));
    ours[..of_own].copy_from_slice(&gpu.download(own, of_own));
    assert!(agree(&ours, &theirs, 0.01), "the scattered GEMM is wrong");
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
