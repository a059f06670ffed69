//! Shards of few rows, swept one by one and together: what reading the weight again costs where nothing is waited for.

use super::{BYTES, Gpu, Prepared, Shape, WORLD_SIZE, gemm_params, median, number, plain};
use flux::{OpKind, OpSpec, PathPreference, SimMachine, explain_on};
use flux_launch::{DType, Destination, Destinations, GemmParams, Policy, SIGNAL_ROWS, Slots, Tiling};
use flux_memory::{Address, Buffer, Placement, SymmetricSignals, Timer};
use flux_sim::Machine;
use flux_swizzle::{Chunks, Shards, Sweeps, TileOrder};
use flux_tests::data::agree;

const ROUNDS: usize = 5;
const CALLS: u32 = 6;

/// What all shapes share.
struct Operands {
    a: Buffer,
    b: Buffer,
    c: Buffer,
    expected: Buffer,
    counters: Buffer,
    signals: SymmetricSignals,
}

/// The sweeps that the library chooses for eight H200s.
fn chosen(op: OpKind, (m, n, k): Shape) -> Sweeps {
    let machine = SimMachine::from(Machine::preset("hgx-h200", 1).unwrap());
    let (n, k) = if op == OpKind::AgGemm { (n * WORLD_SIZE, k) } else { (n, k * WORLD_SIZE) };
    let mut spec = OpSpec::new(n, k, m, DType::Bf16);
    spec.path = PathPreference::Fused;
    explain_on(&machine, op, &spec, m).unwrap().chosen.sweeps
}

fn gathering(gpu: &Gpu, of: &Operands, (m, n, k): Shape, sweeps: Sweeps) -> Prepared {
    let shards = Shards::new(m, WORLD_SIZE).unwrap();
    let chunks = Chunks::new(shards, shards.max_rows()).unwrap();
    let base = gemm_params(gpu, (m, n, k), [&of.a, &of.b, &of.c]);
    let params = GemmParams { gates: of.signals.word(0, 0), ..base };
    let order = |t: &Tiling| {
        let order = TileOrder::all_gather(shards, 0, t.shape, n).unwrap();
        order.swept_by(t.group_rows).swept_together(sweeps)
    };
    gpu.prepare(Policy::AllGather, (shards, None), params, order, |tile, entry| {
        if tile.shard != 0 {
            let gate = chunks.gate(tile);
            (entry.gate_begin, entry.gate_end) = (number(gate.start), number(gate.end));
        }
    })
}

/// Tiles go to slots, one of which is each shard's, that together are the result.
fn scattering(gpu: &Gpu, of: &Operands, (m, n, k): Shape, sweeps: Sweeps) -> Prepared {
    let shards = Shards::new(m, WORLD_SIZE).unwrap();
    let blocks = Chunks::new(shards, SIGNAL_ROWS).unwrap();
    let params = GemmParams {
        gates: Address::NULL,
        counters: of.counters.address(),
        destination_count: 1,
        ..gemm_params(gpu, (m, n, k), [&of.a, &of.b, &of.expected])
    };
    let order = |t: &Tiling| {
        let order = TileOrder::reduce_scatter(shards, 0, t.shape, n).unwrap();
        order.swept_by(t.group_rows).swept_together(sweeps)
    };
    let mut prepared = gpu.prepare(Policy::ReduceScatter, (shards, None), params, order, |tile, entry| {
        let row = tile.rows.start - shards.range(tile.shard).start;
        (entry.destination, entry.destination_row) = (number(tile.shard), number(row));
        let index = blocks.index_of(tile.shard, tile.rows.start);
        (entry.signal, entry.counter) = (number(index), number(blocks.signal(tile.shard, index)));
    });
    let slot_rows = shards.max_rows();
    let table: Vec<_> = (0..WORLD_SIZE)
        .map(|owner| Destination {
            slot: of.c.address().add(owner * slot_rows * n * BYTES),
            signals: of.signals.word(0, WORLD_SIZE + blocks.signal(owner, 0)),
        })
        .collect();
    let extents = Slots { rows: slot_rows, columns: n, pitch: n };
    prepared.destinations = Some(Destinations::new(&gpu.device, DType::Bf16, &table, extents).unwrap());
    prepared
}

#[test]
fn sweeps_of_few_rows() {
    let gpu = Gpu::new();
    let device = std::slice::from_ref(&gpu.device);
    let (layers, rows) = ([(7168, 4096), (12288, 6144), (14336, 8192)], [512, 1024, 2048, 4096]);
    let (most, widest, deepest) = (4096, 14336, 8192);
    let of = Operands {
        a: gpu.normal(most * deepest, Placement::Device, 1),
        b: gpu.normal(widest * deepest, Placement::Device, 2),
        c: gpu.buffer(most * widest, Placement::Device),
        expected: gpu.buffer(most * widest, Placement::Device),
        counters: gpu.buffer(2 * WORLD_SIZE * most / SIGNAL_ROWS, Placement::Device),
        signals: SymmetricSignals::allocate(device, WORLD_SIZE * (1 + most / SIGNAL_ROWS), Placement::Device)
            .unwrap(),
    };
    of.counters.upload(&gpu.compute, 0, &vec![0; of.counters.bytes()]).unwrap();
    let timer = Timer::new(&gpu.device).unwrap();
    println!(
        "    m      n     k |  gemm us | gemm / gathered: one by one, chosen | gemm / scattered: one by one, chosen"
    );
    for (m, (n, k)) in layers.into_iter().flat_map(|layer| rows.map(|m| (m, layer))) {
        let shape = (m, n, k);
        let plain = plain(&gpu, shape, gemm_params(&gpu, shape, [&of.a, &of.b, &of.expected]));
        let best = [OpKind::AgGemm, OpKind::GemmRs].map(|op| chosen(op, shape));
        let ways = [
            plain,
            gathering(&gpu, &of, shape, Sweeps::ONE_BY_ONE),
            gathering(&gpu, &of, shape, best[0]),
            scattering(&gpu, &of, shape, Sweeps::ONE_BY_ONE),
            scattering(&gpu, &of, shape, best[1]),
        ];
        // All shards are there: signals do not fall.
        let there: Vec<_> = (0..WORLD_SIZE).map(|shard| (of.signals.word(0, shard), 1 << 20)).collect();
        // SAFETY: the words are live.
        unsafe { gpu.transfers.write_values(&there).unwrap() };
        gpu.transfers.synchronize().unwrap();
        let mut times: [Vec<f64>; 5] = Default::default();
        let mut epoch = 0;
        for round in 0..ROUNDS {
            for (way, times) in ways.iter().zip(&mut times) {
                if round + 1 == ROUNDS {
                    of.c.upload(&gpu.compute, 0, &vec![0xff; m * n * BYTES]).unwrap();
                }
                let us = gpu.time(&timer, || {
                    for _ in 0..CALLS {
                        epoch += 1;
                        gpu.launch(way, epoch);
                    }
                });
                times.push(us / f64::from(CALLS));
                if round + 1 == ROUNDS && way.policy != Policy::Plain {
                    let (ours, theirs) = (gpu.download(&of.c, m * n), gpu.download(&of.expected, m * n));
                    assert!(agree(&ours, &theirs, 0.01), "{shape:?}: a GEMM by shards is wrong");
                }
            }
        }
        let [gemm, gathered, gathered_so, scattered, scattered_so] = times.map(median);
        println!(
            "{m:>5} {n:>6} {k:>5} | {gemm:>8.1} | {:>6.3} {:>6.3} ({}) | {:>6.3} {:>6.3} ({})",
            gemm / gathered,
            gemm / gathered_so,
            best[0],
            gemm / scattered,
            gemm / scattered_so,
            best[1],
        );
    }
}
