//! How well one rank of eight hides its communication, on one GPU with all SMs: the peers are played by pinned host memory,
//! and their traffic is real, over PCIe, by copy engine. Beside the plain GEMM and the copies alone, in one process,
//! interleaved, with equal rests.
#![allow(clippy::print_stdout)] // the figures are the point

use flux_launch::{
    Activation, DType, Destination, Destinations, FoldParams, GemmParams, Launch, Launcher, Policy, Problem,
    RowTile, SIGNAL_ROWS, Scales, Schedule, ScheduleTables, Slots, SumParams, Tiling,
};
use flux_memory::{
    Address, Buffer, Device, Event, FaultLog, Placement, Stream, SymmetricSignals, Timer, WaitSite,
};
use flux_swizzle::{Chunks, Shards, TileOrder, arrival_order};
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
    /// Two, in turns: while one raises a signal, the other copies.
    transfers: [Stream; 2],
    begun: Event,
    ended: [Event; 2],
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
        let transfers = [(); 2].map(|()| device.transfer_stream().unwrap());
        let event = || Event::new(&device).unwrap();
        let (begun, ended) = (event(), [event(), event()]);
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
        shards: Shards,
        params: GemmParams,
        order: impl FnOnce(&Tiling) -> TileOrder,
        describe: impl FnMut(&flux_swizzle::RowTile, &mut RowTile),
    ) -> Prepared {
        let (n, k) = (params.n as usize, params.k as usize);
        let problem = Problem { shards, n, k, aligned: params.are_operands_aligned(DType::Bf16) };
        // Of a ReduceScatter, one for which the sum can be folded in.
        let ways = self.launcher.tilings(DType::Bf16, &problem).unwrap();
        let fits = |tiling: &Tiling| {
            policy != Policy::ReduceScatter
                || self.launcher.can_fold(DType::Bf16, tiling, WORLD_SIZE).unwrap()
        };
        let tiling = ways.iter().map(|&(tiling, _)| tiling).find(fits).unwrap();
        let tables = ScheduleTables::new(&order(&tiling), describe).unwrap();
        let tables = tables.halve_last(tiling.halved, tiling.shape.rows / 2).unwrap();
        let (tiles, row_tiles) = (tables.order.len(), tables.row_tiles.len());
        let mut schedule = Schedule::with_capacity(&self.device, tiles, row_tiles).unwrap();
        // SAFETY: written once, before its launches.
        unsafe { schedule.write(&self.compute, &tables).unwrap() };
        self.compute.synchronize().unwrap();
        Prepared { tiling, schedule, policy, params, destinations: None }
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

    /// Rests, then times what `work` enqueues on the compute stream, and on those for transfers.
    fn time(&self, timer: &Timer, work: impl FnOnce()) -> f64 {
        std::thread::sleep(REST);
        timer.begin(&self.compute).unwrap();
        self.compute.record(&self.begun).unwrap();
        self.transfers.iter().for_each(|stream| stream.wait(&self.begun).unwrap());
        work();
        for (stream, ended) in self.transfers.iter().zip(&self.ended) {
            stream.record(ended).unwrap();
            self.compute.wait(ended).unwrap();
        }
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

/// One shape of AllGather+GEMM: `n` decides how long the GEMM takes beside the copies.
fn all_gather(gpu: &Gpu, (m, n, k): (usize, usize, usize), chunk_rows: &[usize]) {
    let shards = Shards::new(m, WORLD_SIZE).unwrap();
    let gathered = gpu.normal(m * k, Placement::Device, 1);
    let remote = gpu.normal(m * k, Placement::PinnedHost, 1);
    let b = gpu.normal(n * k, Placement::Device, 2);
    let (c, expected) = (gpu.buffer(m * n, Placement::Device), gpu.buffer(m * n, Placement::Device));
    let base = GemmParams {
        a: gathered.address(),
        b: b.address(),
        c: expected.address(),
        lda: k as u64,
        ldb: k as u64,
        ldc: n as u64,
        m: number(m),
        n: number(n),
        k: number(k),
        wait: gpu.log.bound(0),
        ..GemmParams::default()
    };
    let whole = Shards::new(m, 1).unwrap();
    let plain = gpu.prepare(
        Policy::Plain,
        whole,
        base,
        |t| TileOrder::plain(m, t.shape, n).unwrap().swept_by(t.group_rows),
        |_, _| {},
    );
    let timer = Timer::new(&gpu.device).unwrap();
    let mut epoch = 0;
    for &chunk_rows in chunk_rows {
        let chunks = Chunks::new(shards, chunk_rows).unwrap();
        let signals = SymmetricSignals::allocate(
            std::slice::from_ref(&gpu.device),
            chunks.signals(),
            Placement::Device,
        )
        .unwrap();
        let params = GemmParams { c: c.address(), gates: signals.word(0, 0), ..base };
        let order = |t: &Tiling| {
            let order = TileOrder::all_gather(shards, 0, t.shape, n).unwrap();
            order.swept_by(t.group_rows).grouped_within(chunk_rows)
        };
        let gated = gpu.prepare(Policy::AllGather, shards, params, order, |tile, entry| {
            if tile.shard != 0 {
                let gate = chunks.gate(tile);
                (entry.gate_begin, entry.gate_end) = (number(gate.start), number(gate.end));
            }
        });
        let copy = |epoch: u32| {
            let mut streams = gpu.transfers.iter().cycle();
            for shard in arrival_order(0, WORLD_SIZE) {
                for index in 0..chunks.count(shard) {
                    let transfers = streams.next().unwrap();
                    let rows = chunks.rows(shard, index);
                    let (at, bytes) = (rows.start * k * BYTES, rows.len() * k * BYTES);
                    let signal = signals.word(0, chunks.signal(shard, index));
                    // SAFETY: both buffers hold the rows, and every round waits for the streams.
                    unsafe {
                        transfers.copy(gathered.address().add(at), remote.address().add(at), bytes).unwrap();
                        transfers.write_values(&[(signal, epoch)]).unwrap();
                    }
                }
            }
        };
        let mut times: [Vec<f64>; 4] = Default::default();
        for round in 0..ROUNDS + 2 {
            let alone = gpu.time(&timer, || gpu.launch(&plain, 0));
            epoch += 1;
            let copies = gpu.time(&timer, || copy(epoch));
            let open = gpu.time(&timer, || gpu.launch(&gated, epoch));
            epoch += 1;
            // SAFETY: C is this test's, of that size.
            unsafe { gpu.compute.upload(c.address(), &vec![0xff; m * n * BYTES]).unwrap() };
            let fused = gpu.time(&timer, || {
                // First, so that its own rows are multiplied while the copies are enqueued.
                gpu.launch(&gated, epoch);
                copy(epoch);
            });
            if round >= 2 {
                [alone, copies, open, fused].iter().zip(&mut times).for_each(|(&t, times)| times.push(t));
            }
        }
        let [alone, copies, open, fused] = times.map(median);
        let floor = alone.max(copies);
        println!(
            "{m:>5} {n:>6} {k:>5} {chunk_rows:>6} | {alone:>8.1} {copies:>8.1} {:>5.2} | {:>9.3} | {fused:>8.1} {:>7.3} {:>6.3}",
            copies / alone,
            alone / open,
            fused / floor,
            1.0 - (fused - alone) / copies,
        );
        let (ours, theirs) = (gpu.download(&c, m * n), gpu.download(&expected, m * n));
        assert!(agree(&ours, &theirs, 0.01), "the gated GEMM is wrong");
    }
}

#[test]
fn all_gather_beside_its_copies() {
    let gpu = Gpu::new();
    println!("    m      n     k  chunk |  gemm us copies us ratio | open gate | fused us / floor      E");
    for n in [25536, 15936, 12736, 8512] {
        all_gather(&gpu, (8192, n, 8192), &[1024]);
    }
    for n in [15936, 12736, 8512] {
        all_gather(&gpu, (8192, n, 8192), &[256, 512]);
    }
}

/// Where the tiles of seven of eight shards go.
#[derive(Clone, Copy, Debug, PartialEq)]
enum To {
    /// Slots in device memory, as peers over NVLink would have.
    Device,
    /// Slots in pinned host memory, written by the kernel.
    Host,
    /// Slots in pinned host memory, copied there from device memory block by block as they are complete.
    Relayed,
}

fn reduce_scatter(gpu: &Gpu, (m, n, k): (usize, usize, usize), to: To) {
    let shards = Shards::new(m, WORLD_SIZE).unwrap();
    let (a, b) = (gpu.normal(m * k, Placement::Device, 1), gpu.normal(n * k, Placement::Device, 2));
    let expected = gpu.buffer(m * n, Placement::Device);
    let [far, near] = match to {
        To::Device => [Placement::Device; 2],
        To::Host => [Placement::PinnedHost; 2],
        To::Relayed => [Placement::PinnedHost, Placement::Device],
    };
    // This rank's own slots hold what the other ranks sent it already.
    let (remote, own) = (gpu.buffer(m * n, far), gpu.normal(m * n, Placement::Device, 3));
    let staging = (to == To::Relayed).then(|| gpu.buffer(m * n, Placement::Device));
    let written = staging.as_ref().unwrap_or(&remote);
    let slot_rows = shards.max_rows();
    let blocks = slot_rows.div_ceil(SIGNAL_ROWS);
    let device = std::slice::from_ref(&gpu.device);
    let signals = SymmetricSignals::allocate(device, blocks * WORLD_SIZE, near).unwrap();
    let complete: Vec<_> = (0..blocks * WORLD_SIZE)
        .map(|block| {
            let site = WaitSite { peer: 0, tile: WaitSite::NO_TILE, signal: number(block) };
            vec![(signals.word(0, block), site)]
        })
        .collect();
    let complete = gpu.log.wait_points(0, complete).unwrap();
    // Owner by owner as the tiles are computed, a block of rows at a time.
    let relay = |epoch: u32| {
        let mut streams = gpu.transfers.iter().cycle();
        for owner in 1..WORLD_SIZE {
            for block in 0..blocks {
                let rows = SIGNAL_ROWS.min(slot_rows - block * SIGNAL_ROWS);
                let at = (owner * slot_rows + block * SIGNAL_ROWS) * n * BYTES;
                let transfers = streams.next().unwrap();
                // SAFETY: both buffers hold the rows; every round waits for the streams.
                unsafe {
                    transfers.wait_values(&complete[owner * blocks + block], epoch).unwrap();
                    transfers
                        .copy(remote.address().add(at), written.address().add(at), rows * n * BYTES)
                        .unwrap();
                }
            }
        }
    };
    let counters = gpu.buffer(2 * blocks * WORLD_SIZE, Placement::Device);
    counters.upload(&gpu.compute, 0, &vec![0; counters.bytes()]).unwrap();
    let slot = |owner: usize| {
        let buffer: &Buffer = if owner == 0 { &own } else { written };
        buffer.address().add(owner * slot_rows * n * BYTES)
    };
    let table: Vec<_> = (0..WORLD_SIZE)
        .map(|owner| Destination { slot: slot(owner), signals: signals.word(0, owner * blocks) })
        .collect();
    let base = GemmParams {
        a: a.address(),
        b: b.address(),
        c: expected.address(),
        lda: k as u64,
        ldb: k as u64,
        ldc: n as u64,
        m: number(m),
        n: number(n),
        k: number(k),
        gates: Address::NULL,
        counters: counters.address(),
        destination_count: 1,
        wait: gpu.log.bound(0),
        ..GemmParams::default()
    };
    let whole = Shards::new(m, 1).unwrap();
    let plain = gpu.prepare(
        Policy::Plain,
        whole,
        base,
        |t| TileOrder::plain(m, t.shape, n).unwrap().swept_by(t.group_rows),
        |_, _| {},
    );
    let order = |t: &Tiling| TileOrder::reduce_scatter(shards, 0, t.shape, n).unwrap().swept_by(t.group_rows);
    let mut scattered = gpu.prepare(Policy::ReduceScatter, shards, base, order, |tile, entry| {
        let row = tile.rows.start - shards.range(tile.shard).start;
        (entry.destination, entry.destination_row) = (number(tile.shard), number(row));
        entry.signal = number(row / SIGNAL_ROWS);
        entry.counter = number(tile.shard * blocks + row / SIGNAL_ROWS);
    });
    let extents = Slots { rows: slot_rows, columns: n, pitch: n };
    scattered.destinations = Some(Destinations::new(&gpu.device, DType::Bf16, &table, extents).unwrap());
    let traffic_bytes = (WORLD_SIZE - 1) * slot_rows * n * BYTES;
    let timer = Timer::new(&gpu.device).unwrap();
    let sums = [(); 2].map(|()| gpu.buffer(slot_rows * n, Placement::Device));
    let fold = FoldParams {
        slots: own.address(),
        ld_out: n as u64,
        sources: number(WORLD_SIZE),
        slot_rows: number(slot_rows),
        rows: number(slot_rows),
        source_stride: number(blocks),
        ..FoldParams::default()
    };
    let sum = SumParams {
        slots: own.address(),
        source_pitch: (slot_rows * n) as u64,
        ld_slot: n as u64,
        out: sums[1].address(),
        ld_out: n as u64,
        signals: signals.word(0, 0),
        source_stride: number(blocks),
        signal_rows: number(SIGNAL_ROWS),
        rows: number(slot_rows),
        n: number(n),
        world_size: number(WORLD_SIZE),
        wait: gpu.log.bound(0),
        ..SumParams::default()
    };
    let mut times: [Vec<f64>; 5] = Default::default();
    for round in 0..ROUNDS + 2 {
        let alone = gpu.time(&timer, || gpu.launch(&plain, 0));
        // SAFETY: both buffers are of that size; every round waits for the streams.
        let copies = gpu.time(&timer, || unsafe {
            gpu.transfers[0].copy(remote.address(), expected.address(), traffic_bytes).unwrap();
        });
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
            let (c, gates) = (sums[0].address(), signals.word(0, 0));
            gpu.launch_with(&scattered, GemmParams { c, gates, fold, epoch: epoch + 1, ..scattered.params });
            relayed(epoch + 1);
        });
        let summed = gpu.time(&timer, || {
            gpu.launch(&scattered, epoch + 2);
            relayed(epoch + 2);
            // SAFETY: the slots and the sums are of that size; every round waits for the streams.
            unsafe { gpu.launcher.sum(&gpu.compute, DType::Bf16, &sum).unwrap() };
        });
        if round >= 2 {
            [alone, copies, fused, summed, folded]
                .iter()
                .zip(&mut times)
                .for_each(|(&t, times)| times.push(t));
        }
    }
    let [alone, copies, fused, summed, folded] = times.map(median);
    let floor = if to == To::Device { alone } else { alone.max(copies) };
    println!(
        "{m:>5} {n:>6} {k:>5} {:>7} | {alone:>8.1} {copies:>8.1} {:>5.2} | {fused:>8.1} {:>7.3} | {summed:>8.1} {:>7.3} | {folded:>8.1} {:>7.3}",
        format!("{to:?}"),
        copies / alone,
        fused / floor,
        summed / floor,
        folded / floor,
    );
    let [folded, separate] = [0, 1].map(|way| gpu.download(&sums[way], slot_rows * n));
    assert!(folded == separate, "the folded sum has other bits");
    let (mut ours, theirs) = (gpu.download(&remote, m * n), gpu.download(&expected, m * n));
    let of_own = slot_rows * n;
    ours[..of_own].copy_from_slice(&gpu.download(&own, of_own));
    assert!(agree(&ours, &theirs, 0.01), "the scattered GEMM is wrong");
}

#[test]
fn reduce_scatter_beside_its_traffic() {
    let gpu = Gpu::new();
    println!(
        "    m      n     k      to |  gemm us copies us ratio | fused us / floor |  and sum / floor |   folded / floor"
    );
    for (m, n, k) in [(8192, 8192, 3584), (8192, 12288, 6144), (8192, 8192, 12288), (8192, 8192, 16384)] {
        for to in [To::Device, To::Relayed, To::Host] {
            reduce_scatter(&gpu, (m, n, k), to);
        }
    }
}
