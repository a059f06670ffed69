//! GEMM+ReduceScatter beside its traffic.

use super::{BYTES, Gpu, ROUNDS, Shape, WORLD_SIZE, gemm_params, median, number, plain};
use flux::Overlap;
use flux_launch::{
    DType, Destination, Destinations, FoldParams, GemmParams, Policy, SIGNAL_ROWS, Slots, SumParams, Tiling,
};
use flux_memory::{Address, Buffer, Placement, SymmetricSignals, Timer, WaitSite};
use flux_swizzle::{Chunks, Shards, TileOrder};
use flux_tests::data::agree;

/// Where the tiles of seven of eight shards go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum To {
    /// Slots in device memory, as peers over NVLink would have.
    Device,
    /// Slots in pinned host memory, written by the kernel.
    Host,
    /// Slots in pinned host memory, copied there from device memory chunk by chunk as they are complete.
    Relayed,
}

/// What all shapes share.
pub(super) struct Scattering {
    pub(super) a: Buffer,
    pub(super) b: Buffer,
    pub(super) expected: Buffer,
    /// This rank's slots: they hold what the other ranks sent it already.
    pub(super) own: Buffer,
    /// Its slots at the others, or the memory that its tiles are relayed from: in device memory, and in pinned host memory.
    pub(super) slots: [Buffer; 2],
    /// Of its rows: folded into the GEMM, and by a kernel of its own.
    pub(super) sums: [Buffer; 2],
}

pub(super) fn reduce_scatter(gpu: &Gpu, buffers: &Scattering, (m, n, k): Shape, to: To) {
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
