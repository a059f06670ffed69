//! The host's kernels against a plain triple loop: shapes with tails everywhere, pitches, slots, gates.

use flux_launch::{
    Activation, DType, Destination, Destinations, Element, Error, GemmParams, Launch, Launcher, Policy,
    Problem, Scales, Schedule, ScheduleTables, Slots, SumParams,
};
use flux_memory::{Address, Buffer, Device, FaultLog, Placement, Stream, SymmetricSignals};
use flux_swizzle::{Shards, TileOrder};
use half::{bf16, f16};
use std::sync::Arc;
use std::time::Duration;

struct Host {
    device: Device,
    stream: Stream,
    launcher: Arc<Launcher>,
    log: Arc<FaultLog>,
}

impl Host {
    fn new(budget: Duration) -> Self {
        let device = Device::host();
        let launcher = Launcher::sharing(std::slice::from_ref(&device), None).unwrap().remove(0);
        let log = FaultLog::new(&device, 1, budget).unwrap();
        Self { stream: device.stream().unwrap(), device, launcher, log }
    }

    fn upload<E: Element>(&self, values: &[E]) -> Buffer {
        let buffer = Buffer::allocate(&self.device, size_of_val(values), Placement::Device).unwrap();
        buffer.upload(&self.stream, 0, bytemuck::cast_slice(values)).unwrap();
        buffer
    }

    fn download<E: Element>(&self, buffer: &Buffer) -> Vec<E> {
        let mut values = vec![E::zeroed(); buffer.bytes() / size_of::<E>()];
        buffer.download(&self.stream, 0, bytemuck::cast_slice_mut(&mut values)).unwrap();
        values
    }

    /// # Safety
    /// As for [`Launcher::gemm`].
    unsafe fn gemm<E: Element>(
        &self,
        policy: Policy,
        schedule: &Schedule,
        params: &GemmParams,
        destinations: Option<&Destinations>,
    ) -> Result<(), Error> {
        let dtype = E::DTYPE;
        let (n, k, shards) =
            (params.n as usize, params.k as usize, Shards::new(params.m as usize, 1).unwrap());
        let problem = Problem { shards, n, k, aligned: params.are_operands_aligned(dtype), to_slots: false };
        let tiling = &self.launcher.tiling(dtype, &problem).unwrap();
        assert_eq!(tiling.shape, self.launcher.tile(dtype).unwrap());
        let activation = Activation::None;
        let scales = Scales::default();
        let launch =
            Launch { policy, dtype, scales, activation, tiling, schedule, destinations, trace: None };
        // SAFETY: the caller's promise.
        unsafe { self.launcher.gemm(&self.stream, &launch, params) }
    }

    /// Counters of written tiles, all 0.
    fn counters(&self, count: usize) -> Buffer {
        let buffer = Buffer::allocate(&self.device, 4 * count, Placement::Device).unwrap();
        buffer.upload(&self.stream, 0, &vec![0; 4 * count]).unwrap();
        buffer
    }

    fn schedule(&self, tables: &ScheduleTables) -> Schedule {
        let mut schedule =
            Schedule::with_capacity(&self.device, tables.order.len(), tables.row_tiles.len()).unwrap();
        // SAFETY: written once, before its launches.
        unsafe { schedule.write(&self.stream, tables).unwrap() };
        schedule
    }
}

/// Small integers: every sum is exact in fp32, and in bf16 below 256.
fn integers<E: Element>(rows: usize, pitch: usize, seed: usize) -> Vec<E> {
    (0..rows * pitch).map(|i| E::round(((i * 7 + i / 11 + seed) % 3) as f32 - 1.0)).collect()
}

fn product<E: Element>(a: &[E], lda: usize, b: &[E], ldb: usize, m: usize, n: usize, k: usize) -> Vec<f32> {
    let widen = |values: &[E]| {
        let mut wide = vec![0.0; values.len()];
        E::widen(values, &mut wide);
        wide
    };
    let (a, b) = (widen(a), widen(b));
    let dot = |i: usize, j: usize| (0..k).map(|x| a[i * lda + x] * b[j * ldb + x]).sum();
    (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| dot(i, j)).collect()
}

fn is_nan<E: Element>(value: E) -> bool {
    let mut wide = [0.0];
    E::widen(&[value], &mut wide);
    wide[0].is_nan()
}

fn check_plain<E: Element + PartialEq + std::fmt::Debug>(m: usize, n: usize, k: usize, pad: usize) {
    let host = Host::new(Duration::from_secs(5));
    let (lda, ldb, ldc) = (k + pad, k + 2 * pad, n + pad);
    let (a, b) = (integers::<E>(m, lda, 1), integers::<E>(n, ldb, 2));
    let bias = (pad > 0).then(|| integers::<E>(1, n, 3));
    let bias_buffer = bias.as_ref().map(|bias| host.upload(bias));
    let poison = E::round(f32::NAN);
    let (a_buffer, b_buffer, c_buffer) =
        (host.upload(&a), host.upload(&b), host.upload(&vec![poison; m * ldc]));
    let order = TileOrder::plain(m, host.launcher.tile(E::DTYPE).unwrap(), n).unwrap();
    let schedule = host.schedule(&ScheduleTables::new(&order, |_, _| {}).unwrap());
    let params = GemmParams {
        a: a_buffer.address(),
        b: b_buffer.address(),
        c: c_buffer.address(),
        bias: bias_buffer.as_ref().map_or(Address::NULL, Buffer::address),
        lda: lda as u64,
        ldb: ldb as u64,
        ldc: ldc as u64,
        m: u32::try_from(m).unwrap(),
        n: u32::try_from(n).unwrap(),
        k: u32::try_from(k).unwrap(),
        wait: host.log.bound(0),
        ..GemmParams::default()
    };
    // SAFETY: the buffers are as large as the parameters say, and outlive the download below.
    unsafe { host.gemm::<E>(Policy::Plain, &schedule, &params, None).unwrap() };
    let c: Vec<E> = host.download(&c_buffer);
    let mut expected = product(&a, lda, &b, ldb, m, n, k);
    if let Some(bias) = &bias {
        let mut wide = vec![0.0; n];
        E::widen(bias, &mut wide);
        expected.chunks_exact_mut(n).flat_map(|row| row.iter_mut().zip(&wide)).for_each(|(to, b)| *to += b);
    }
    for (row, line) in c.chunks(ldc.max(1)).enumerate().take(m) {
        for column in 0..n {
            assert_eq!(
                line[column],
                E::round(expected[row * n + column]),
                "[{row}, {column}] of {m}x{n}x{k}"
            );
        }
        assert!(line[n..].iter().all(|&value| is_nan(value)), "wrote past column {n} of row {row}");
    }
}

#[test]
fn tails_and_pitches_are_exact() {
    for (m, n, k) in [
        (1, 1, 1),
        (64, 128, 32),
        (65, 129, 7),
        (7, 8, 8),
        (130, 96, 5),
        (200, 300, 0),
        (0, 5, 3),
        (3, 130, 9000),
    ] {
        for pad in [0, 3] {
            check_plain::<bf16>(m, n, k, pad);
            check_plain::<f16>(m, n, k, pad);
        }
    }
}

/// Two destinations' slots filled by two "sources", then summed: as in a ReduceScatter, in one process.
#[test]
fn slots_are_filled_signalled_and_summed() {
    let host = Host::new(Duration::from_secs(5));
    let (m, n, k, world_size) = (150_usize, 200_usize, 33_usize, 2_usize);
    let shards = Shards::new(m, world_size).unwrap();
    let tile = host.launcher.tile(DType::Bf16).unwrap();
    let (slot_rows, pitch) = (shards.max_rows(), n + 8);
    let blocks = slot_rows.div_ceil(tile.rows); // of rows, each with a signal
    let counters = host.counters(blocks * world_size);
    let members = vec![host.device.clone(); world_size];
    let signals = SymmetricSignals::allocate(&members, world_size * blocks, Placement::Device).unwrap();
    let slots: Vec<Buffer> =
        (0..2).map(|_| host.upload(&vec![bf16::NAN; world_size * slot_rows * pitch])).collect();
    let operands: Vec<_> =
        (0..2).map(|source| (integers::<bf16>(m, k, source), integers::<bf16>(n, k, source + 5))).collect();
    let mut alive = Vec::new();
    for (source, (a, b)) in operands.iter().enumerate() {
        let order = TileOrder::reduce_scatter(shards, source, tile, n).unwrap();
        let tables = ScheduleTables::new(&order, |tile, entry| {
            entry.destination = u32::try_from(tile.shard).unwrap();
            entry.destination_row = u32::try_from(tile.rows.start - shards.range(tile.shard).start).unwrap();
            entry.signal = u32::try_from(tile.index).unwrap();
            entry.counter = u32::try_from(tile.shard * blocks + tile.index).unwrap();
        });
        let schedule = host.schedule(&tables.unwrap());
        let destinations: Vec<_> = (0..world_size)
            .map(|rank| Destination {
                slot: slots[rank].address().add(source * slot_rows * pitch * 2),
                signals: signals.word(rank, source * blocks),
            })
            .collect();
        let extents = Slots { rows: slot_rows, columns: n, pitch };
        let table = Destinations::new(&host.device, DType::Bf16, &destinations, extents).unwrap();
        let (a, b) = (host.upload(a), host.upload(b));
        let params = GemmParams {
            a: a.address(),
            b: b.address(),
            lda: k as u64,
            ldb: k as u64,
            ldc: pitch as u64,
            counters: counters.address(),
            bias: Address(1), // partial sums get none
            m: u32::try_from(m).unwrap(),
            n: u32::try_from(n).unwrap(),
            k: u32::try_from(k).unwrap(),
            epoch: 1,
            destination_count: 1,
            wait: host.log.bound(0),
            ..GemmParams::default()
        };
        // SAFETY: everything is kept alive until the stream is synchronised.
        unsafe { host.gemm::<bf16>(Policy::ReduceScatter, &schedule, &params, Some(&table)).unwrap() };
        // SAFETY: nothing is enqueued.
        let refused = unsafe { host.gemm::<bf16>(Policy::ReduceScatter, &schedule, &params, None) };
        assert!(matches!(refused, Err(Error::NoDestinations)));
        alive.push((a, b, table, schedule));
    }
    let bias = integers::<bf16>(1, n, 3);
    let bias_buffer = host.upload(&bias);
    for (rank, slots) in slots.iter().enumerate() {
        let own = shards.range(rank);
        let out = host.upload(&vec![bf16::NAN; own.len() * n]);
        let params = SumParams {
            slots: slots.address(),
            source_pitch: (slot_rows * pitch) as u64,
            ld_slot: pitch as u64,
            out: out.address(),
            ld_out: n as u64,
            bias: bias_buffer.address(),
            signals: signals.word(rank, 0),
            source_stride: u32::try_from(blocks).unwrap(),
            signal_rows: u32::try_from(tile.rows).unwrap(),
            rows: u32::try_from(own.len()).unwrap(),
            n: u32::try_from(n).unwrap(),
            world_size: 2,
            epoch: 1,
            wait: host.log.bound(0),
        };
        // SAFETY: as above.
        unsafe { host.launcher.sum(&host.stream, DType::Bf16, &params).unwrap() };
        let parts: Vec<_> = operands.iter().map(|(a, b)| product(a, k, b, k, m, n, k)).collect();
        let expected: Vec<_> = (own.start * n..own.end * n)
            .map(|i| bf16::from_f32(parts[0][i] + parts[1][i] + bias[i % n].to_f32()))
            .collect();
        assert_eq!(host.download::<bf16>(&out), expected);
    }
    assert_eq!(host.log.fault(), None);
}

#[test]
fn a_gate_that_never_opens_ends_the_launch_with_a_fault() {
    let host = Host::new(Duration::from_millis(100));
    let operand = host.upload(&vec![bf16::ONE; 200 * 8]);
    let c = host.upload(&vec![bf16::NAN; 200 * 200]);
    let signals =
        SymmetricSignals::allocate(std::slice::from_ref(&host.device), 4, Placement::Device).unwrap();
    let order = TileOrder::plain(200, host.launcher.tile(DType::Bf16).unwrap(), 200).unwrap();
    let tables =
        ScheduleTables::new(&order, |_, entry| (entry.gate_begin, entry.gate_end, entry.peer) = (2, 4, 3));
    let schedule = host.schedule(&tables.unwrap());
    let params = GemmParams {
        a: operand.address(),
        b: operand.address(),
        c: c.address(),
        lda: 8,
        ldb: 8,
        ldc: 200,
        gates: signals.word(0, 0),
        m: 200,
        n: 200,
        k: 8,
        gate_epoch: 6,
        wait: host.log.bound(9),
        ..GemmParams::default()
    };
    // SAFETY: everything outlives the stream's work.
    unsafe {
        host.stream.write_values(&[(signals.word(0, 2), 6)]).unwrap();
        host.gemm::<bf16>(Policy::AllGather, &schedule, &params, None).unwrap();
    }
    host.stream.synchronize().unwrap();
    let fault = host.log.fault().unwrap();
    assert_eq!((fault.rank, fault.peer, fault.op, fault.signal), (1, 3, 9, 3));
    assert_eq!((fault.seen, fault.wanted), (0, 6));
    assert!(host.download::<bf16>(&c).iter().all(|value| value.is_nan()), "a gated tile was computed");
    assert_ne!(Address::NULL, c.address());
}

/// Each tile goes to three destinations, once all of them have said so; a gate that stays closed names who has not.
#[test]
fn a_tile_goes_to_several_destinations() {
    let host = Host::new(Duration::from_millis(200));
    let (m, n, k, count) = (70_usize, 140_usize, 9_usize, 3_usize);
    let (a, b) = (integers::<bf16>(m, k, 1), integers::<bf16>(n, k, 2));
    let (a_buffer, b_buffer) = (host.upload(&a), host.upload(&b));
    let slots: Vec<Buffer> = (0..count).map(|_| host.upload(&vec![bf16::NAN; m * n])).collect();
    let order = TileOrder::plain(m, host.launcher.tile(DType::Bf16).unwrap(), n).unwrap();
    let blocks = order.row_tiles().count();
    let counters = host.counters(blocks);
    let device = std::slice::from_ref(&host.device);
    let signals = SymmetricSignals::allocate(device, count * blocks, Placement::Device).unwrap();
    let gates = SymmetricSignals::allocate(device, count, Placement::Device).unwrap();
    // The first destination is not to get anything.
    let destinations: Vec<_> = std::iter::once(Destination::default())
        .chain((0..count).map(|index| Destination {
            slot: slots[index].address(),
            signals: signals.word(0, index * blocks),
        }))
        .collect();
    let extents = Slots { rows: m, columns: n, pitch: n };
    let table = Destinations::new(&host.device, DType::Bf16, &destinations, extents).unwrap();
    let tables = ScheduleTables::new(&order, |tile, entry| {
        (entry.gate_begin, entry.gate_end, entry.peer, entry.destination) = (0, 3, 4, 1);
        let block = u32::try_from(tile.index).unwrap();
        (entry.destination_row, entry.signal, entry.counter) = (entry.row, block, block);
    });
    let schedule = host.schedule(&tables.unwrap());
    let params = GemmParams {
        a: a_buffer.address(),
        b: b_buffer.address(),
        lda: k as u64,
        ldb: k as u64,
        ldc: n as u64,
        gates: gates.word(0, 0),
        counters: counters.address(),
        m: u32::try_from(m).unwrap(),
        n: u32::try_from(n).unwrap(),
        k: u32::try_from(k).unwrap(),
        gate_epoch: 1,
        epoch: 5,
        destination_count: 3,
        wait: host.log.bound(2),
        ..GemmParams::default()
    };
    let mut raised = vec![0_u32; count * blocks];
    // SAFETY: everything outlives the stream's work.
    unsafe {
        host.stream
            .write_values(&[(gates.word(0, 0), 1), (gates.word(0, 1), 1), (gates.word(0, 2), 1)])
            .unwrap();
        host.gemm::<bf16>(Policy::ReduceScatter, &schedule, &params, Some(&table)).unwrap();
        host.stream.download(bytemuck::cast_slice_mut(&mut raised), signals.word(0, 0)).unwrap();
    }
    let expected: Vec<_> = product(&a, k, &b, k, m, n, k).into_iter().map(bf16::from_f32).collect();
    assert!(slots.iter().all(|slot| host.download::<bf16>(slot) == expected));
    assert!(raised.iter().all(|&signal| signal == 5), "{raised:?}");
    // SAFETY: as above.
    unsafe {
        host.stream.write_values(&[(gates.word(0, 0), 2), (gates.word(0, 1), 2)]).unwrap();
        let next = GemmParams { gate_epoch: 2, epoch: 6, ..params };
        host.gemm::<bf16>(Policy::ReduceScatter, &schedule, &next, Some(&table)).unwrap();
    }
    host.stream.synchronize().unwrap();
    let fault = host.log.fault().unwrap();
    assert_eq!((fault.peer, fault.signal, fault.seen, fault.wanted), (6, 2, 1, 2));
}
