//! Relayed delivery on the host backend, with threads in place of GEMMs and sums: many calls in flight, everything that is
//! written to poisoned before, and every block of rows read the moment its signal is up.

use flux_memory::{Address, Device, FaultLog, Placement, Stream, reached};
use flux_swizzle::{ChunkRows, Chunks, End, PanelCut, Panels, Shards, Taper};
use flux_transport::{Direction, Error, Members, PeerCopy, Scatter, ScatterSpec, SignalLoss, Target};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Room for three panels, the last of which is wider.
const ROW: usize = 1544;
const MAX_ROWS: usize = 41;
const BLOCK_ROWS: usize = 4;

fn members(world_size: usize, budget: Duration) -> Members {
    let device = Device::host();
    let log = |rank| FaultLog::new(&device, u32::try_from(rank).unwrap(), budget).unwrap();
    Members::new(vec![device.clone(); world_size], (0..world_size).map(log).collect()).unwrap()
}

fn spec(world_size: usize, direction: Direction, chunk_rows: usize) -> ScatterSpec {
    ScatterSpec {
        max_rows: MAX_ROWS,
        row_bytes: ROW,
        chunk_rows: chunk_rows.into(),
        taper: Taper::towards(End::First, [2, 1, 0], 1),
        panels: PanelCut::NONE,
        block_rows: BLOCK_ROWS,
        with_partial: true,
        relayed: true,
        puts: false,
        sum_in_nodes: None,
        direction,
        pattern: flux_swizzle::Pattern::full_mesh(world_size),
        placement: Placement::Device,
        op: 0,
        signal_loss: None,
    }
}

fn word<'a>(signals: Address, index: usize) -> &'a AtomicU32 {
    // SAFETY: a live signal of the host backend.
    unsafe { AtomicU32::from_ptr(signals.add(4 * index).as_ptr()) }
}

fn wait_for(word: &AtomicU32, epoch: u32) {
    let begin = Instant::now();
    while !reached(word.load(Ordering::Acquire), epoch) {
        assert!(begin.elapsed() < Duration::from_secs(20), "a signal was not raised");
        std::thread::yield_now();
    }
}

/// What row `row` of the shard of `owner` holds in call `epoch`, as `source` has it, where panel `panel` begins and where it ends.
fn value(epoch: u32, source: usize, owner: usize, (panel, row): (usize, usize)) -> u64 {
    u64::from(epoch) << 40 | (source as u64) << 30 | (owner as u64) << 20 | (panel as u64) << 10 | row as u64
}

/// Where a panel's first and last eight bytes are.
fn ends(panels: Panels, panel: usize) -> [usize; 2] {
    let bytes = panels.bytes(panel);
    [bytes.start, bytes.end - 8]
}

/// The rows of `owner`'s shard that share a signal of `rank`'s target there, from its first on.
fn signalled(scatter: &Scatter, (rank, owner): (usize, usize), shards: Shards) -> Vec<Range<usize>> {
    let blocks = Chunks::new(shards, BLOCK_ROWS).unwrap();
    let relayed = scatter.relayed_chunks(rank, shards.total()).unwrap();
    let chunks = relayed.filter(|_| owner != rank).unwrap_or(blocks);
    let first = chunks.shards().range(owner).start;
    let of_shard = (0..chunks.count(owner)).map(|index| chunks.rows(owner, index));
    of_shard.map(|rows| rows.start - first..rows.end - first).collect()
}

/// Writes rows as a GEMM does: signal by signal, the later ones of a shard first, and each panel's by themselves.
fn compute(
    (rank, epoch): (usize, u32),
    targets: &[(Target, Vec<Range<usize>>)],
    panels: Panels,
    poison: (Address, usize),
) {
    let words = |slot: Address, count| -> &mut [u64] {
        // SAFETY: this thread has the tiles until it raises their signal.
        unsafe { std::slice::from_raw_parts_mut(slot.as_ptr(), count) }
    };
    if poison.1 > 0 {
        words(poison.0, poison.1 / 8).fill(u64::MAX);
    }
    let world_size = targets.len();
    for owner in (1..=world_size).map(|step| (rank + step) % world_size) {
        let (&Target { slot, signals, panel_stride, .. }, chunks) = (&targets[owner].0, &targets[owner].1);
        let of_panels =
            (0..panels.count()).flat_map(|panel| (0..chunks.len()).map(move |chunk| (panel, chunk)));
        for (panel, chunk) in of_panels.rev() {
            std::thread::yield_now();
            for row in chunks[chunk].clone() {
                for at in ends(panels, panel) {
                    words(slot.add(row * ROW + at), 1)[0] = value(epoch, rank, owner, (panel, row));
                }
            }
            let signal = panel * panel_stride + chunk;
            let before = word(signals, signal).swap(epoch, Ordering::Release);
            assert!(before != epoch, "signal {signal} of {owner} at {rank} was up before");
        }
    }
}

/// Reads every block as soon as its signal is up, and spoils it.
fn sum(
    (rank, epoch): (usize, u32),
    slots: &[(Address, Address)],
    (panels, stride): (Panels, usize),
    shard_rows: usize,
) {
    let of_panels = (0..panels.count()).flat_map(|panel| (0..slots.len()).map(move |source| (panel, source)));
    for (panel, source) in of_panels {
        let (slot, signals) = slots[source];
        for block in 0..shard_rows.div_ceil(BLOCK_ROWS) {
            let signal = word(signals, panel * stride + block);
            wait_for(signal, epoch);
            assert_eq!(signal.load(Ordering::Relaxed), epoch, "raised for a later call");
            for row in block * BLOCK_ROWS..((block + 1) * BLOCK_ROWS).min(shard_rows) {
                for at in ends(panels, panel) {
                    // SAFETY: part of a row of the slot, which nobody writes to once its signal is up.
                    let seen = unsafe { slot.add(row * ROW + at).as_ptr::<u64>().replace(u64::MAX) };
                    let expected = value(epoch, source, rank, (panel, row));
                    assert_eq!(seen, expected, "row {row}, panel {panel} from {source} at {rank}");
                }
            }
        }
    }
}

#[test]
fn every_block_arrives_before_its_signal_and_once() {
    for direction in [Direction::Push, Direction::Pull] {
        for (world_size, chunk_rows) in
            [1, 2, 3, 5].into_iter().flat_map(|world_size| [1, 5, 8, 100].map(|rows| (world_size, rows)))
        {
            let islands = flux_swizzle::Pattern::islands(&[world_size / 2, world_size - world_size / 2]);
            let members = members(world_size, Duration::from_secs(20));
            let mut spec = spec(world_size, direction, chunk_rows);
            if chunk_rows == 5 {
                spec.pattern = islands;
                spec.panels = PanelCut::always(3);
            }
            if chunk_rows == 8 {
                spec.chunk_rows = ChunkRows::up_to([(7, 1), (40, 4), (MAX_ROWS, 100)]);
                spec.panels = PanelCut::always(2);
            }
            let scatter = Scatter::new(Box::new(PeerCopy), &members, spec).unwrap();
            let streams: Vec<_> = (0..world_size).map(|_| Device::host().stream().unwrap()).collect();
            let host = |rank: usize| match &streams[rank] {
                Stream::Host(stream) => stream,
                Stream::Cuda(_) => panic!("not a host stream"),
            };
            for (epoch, rows) in (1..).zip([MAX_ROWS, 7, 0, 1, 40, MAX_ROWS, 3, 20, MAX_ROWS, MAX_ROWS]) {
                let shards = Shards::new(rows, world_size).unwrap();
                let panels = scatter.panels(rows);
                let of_chunks = [(1, 1), (5, 3), (8, 2), (100, 1)];
                let wanted = of_chunks.iter().find(|&&(of, _)| of == chunk_rows && world_size > 1);
                assert_eq!(panels.count(), wanted.map_or(1, |&(_, panels)| panels));
                for (rank, stream) in streams.iter().enumerate() {
                    let targets: Vec<_> = (0..world_size)
                        .map(|owner| {
                            (scatter.target(rank, owner), signalled(&scatter, (rank, owner), shards))
                        })
                        .collect();
                    let poison = scatter.relayed_tiles(rank);
                    // SAFETY: all memory is the scatter's, which waits for what is in flight before it frees it.
                    unsafe {
                        scatter.begin(rank, stream).unwrap();
                        scatter.begin_relay(rank, stream).unwrap();
                    }
                    host(rank).launch(move || compute((rank, epoch), &targets, panels, poison)).unwrap();
                    // SAFETY: as above.
                    unsafe { scatter.relay(rank, epoch, rows).unwrap() };
                }
                for (rank, stream) in streams.iter().enumerate() {
                    let slot = |source| (scatter.slot(rank, source), scatter.block_signals(rank, source));
                    let slots: Vec<_> = (0..world_size).map(slot).collect();
                    let (shard_rows, of_panels) = (shards.rows(rank), (panels, scatter.blocks()));
                    host(rank).launch(move || sum((rank, epoch), &slots, of_panels, shard_rows)).unwrap();
                    // SAFETY: as above.
                    unsafe { scatter.release(rank, epoch, stream).unwrap() };
                }
            }
            streams.iter().for_each(|stream| stream.synchronize().unwrap());
            assert!(members.faults.iter().all(|log| log.fault().is_none()));
        }
    }
}

/// A GEMM that never ends, and an owner that never sums: the transfer stream's waits end, and say whom they were for.
#[test]
fn waits_for_tiles_and_for_owners_are_bounded() {
    for (calls, peer) in [(1, 0), (2, 1)] {
        let members = members(2, Duration::from_millis(200));
        let scatter = Scatter::new(Box::new(PeerCopy), &members, spec(2, Direction::Push, 8)).unwrap();
        let stream = Device::host().stream().unwrap();
        let begin = Instant::now();
        for epoch in 1..=calls {
            // SAFETY: as above. Rank 0 writes no tiles in its last call; its release lets a call follow without a sum.
            unsafe {
                scatter.begin(0, &stream).unwrap();
                scatter.begin_relay(0, &stream).unwrap();
                if epoch < calls {
                    let Target { signals, .. } = scatter.target(0, 1);
                    let chunks = signalled(&scatter, (0, 1), Shards::new(MAX_ROWS, 2).unwrap()).len();
                    (0..chunks).for_each(|signal| word(signals, signal).store(epoch, Ordering::Release));
                }
                scatter.relay(0, epoch, MAX_ROWS).unwrap();
                scatter.release(0, epoch, &stream).unwrap();
            }
        }
        scatter.settle();
        assert!(begin.elapsed() < Duration::from_secs(5));
        let fault = members.faults[0].fault().unwrap();
        assert_eq!((fault.rank, fault.peer, fault.seen), (0, peer, 0));
        // A rank that gave up raises what it should have: nobody waits for it in vain.
        assert_eq!(word(scatter.block_signals(1, 0), 0).load(Ordering::Acquire), calls);
    }
}

#[test]
fn a_lost_signal_is_lost_for_the_owner_alone() {
    let members = members(2, Duration::from_secs(1));
    let lossy =
        ScatterSpec { signal_loss: Some(SignalLoss { from: 0, to: 1 }), ..spec(2, Direction::Push, 8) };
    let scatter = Scatter::new(Box::new(PeerCopy), &members, lossy).unwrap();
    let gates = scatter.gates(1);
    let stream = Device::host().stream().unwrap();
    let (from, to) = (scatter.target(0, 1), scatter.block_signals(1, 0));
    // SAFETY: the scatter outlives what is enqueued.
    unsafe {
        scatter.begin(0, &stream).unwrap();
        scatter.begin_relay(0, &stream).unwrap();
        let chunks = signalled(&scatter, (0, 1), Shards::new(MAX_ROWS, 2).unwrap()).len();
        (0..chunks).for_each(|signal| word(from.signals, signal).store(1, Ordering::Release));
        scatter.relay(0, 1, MAX_ROWS).unwrap();
        scatter.release(0, 1, &stream).unwrap();
    }
    scatter.settle();
    assert_eq!((word(gates, 0).load(Ordering::Acquire), word(to, 0).load(Ordering::Acquire)), (0, 1));
    assert!(members.faults.iter().all(|log| log.fault().is_none()));
}

#[test]
fn what_is_not_relayed_goes_straight_to_its_slot() {
    let members = members(3, Duration::from_secs(1));
    let build = |spec| Scatter::new(Box::new(PeerCopy), &members, spec);
    let direct = build(ScatterSpec { relayed: false, ..spec(3, Direction::Push, 8) }).unwrap();
    let relayed = build(spec(3, Direction::Push, 5)).unwrap();
    let all = Scatter::to_all(Box::new(PeerCopy), &members, spec(3, Direction::Push, 8)).unwrap();
    assert_eq!((direct.relayed_tiles(0), all.relayed_tiles(0)), ((Address::NULL, 0), (Address::NULL, 0)));
    let (tiles, bytes) = relayed.relayed_tiles(0);
    assert_eq!(bytes, 3 * relayed.slot_rows() * ROW);
    for owner in 0..3 {
        for scatter in [&direct, &all, &relayed] {
            let target = scatter.target(0, owner);
            let is_relayed = owner != 0 && std::ptr::eq(scatter, &raw const relayed);
            if is_relayed {
                assert_eq!(target.slot, tiles.add(owner * relayed.slot_rows() * ROW));
                assert_eq!(target.gate, 0..0);
                let chunks = signalled(&relayed, (0, owner), Shards::new(MAX_ROWS, 3).unwrap());
                let expected = if owner == 1 { vec![0..4, 4..8, 8..12, 12..14] } else { vec![0..8, 8..13] };
                assert_eq!(chunks, expected, "whole blocks, the first ones finer");
            } else {
                assert_eq!(target.slot, scatter.slot(owner, 0));
                assert_eq!(target.gate, scatter.gate(owner)..scatter.gate(owner) + 1);
            }
        }
    }
    let no_blocks = build(ScatterSpec { block_rows: 0, ..spec(3, Direction::Push, 8) });
    assert!(matches!(no_blocks, Err(Error::Swizzle(_))));
    let huge = build(ScatterSpec { max_rows: usize::MAX, ..spec(3, Direction::Push, usize::MAX) });
    assert!(matches!(huge, Err(Error::Memory(_))));
    // SAFETY: refused before anything is enqueued.
    let too_many = unsafe { relayed.relay(0, 1, MAX_ROWS + 1) };
    assert!(matches!(too_many, Err(Error::TooManyRows { .. })));
}
