//! Every world size, uneven shards, both directions, calls of varying size in a row, on the host backend.

mod all_gather;
mod errors;
mod scatter;

use flux_memory::{Address, Device, FaultLog, Placement, Stream};
use flux_swizzle::{ChunkRows, End, PanelCut, Taper};
use flux_transport::{AllGatherSpec, Direction, Members, Pattern, ScatterSpec};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const ROW: usize = 8;
const DIRECTIONS: [Direction; 2] = [Direction::Push, Direction::Pull];
const MAX_ROWS: usize = 41;

fn members(world_size: usize, budget: Duration) -> Members {
    let device = Device::host();
    let log = |rank| FaultLog::new(&device, u32::try_from(rank).unwrap(), budget).unwrap();
    Members::new(vec![device.clone(); world_size], (0..world_size).map(log).collect()).unwrap()
}

fn streams(world_size: usize) -> Vec<Stream> {
    (0..world_size).map(|_| Device::host().stream().unwrap()).collect()
}

/// What row `row` of rank `rank` holds in call `epoch`.
fn row_bytes(epoch: u32, rank: usize, row: usize) -> [u8; ROW] {
    (u64::from(epoch) << 40 | (rank as u64) << 20 | row as u64).to_ne_bytes()
}

fn gather_spec(world_size: usize, direction: Direction, chunk_rows: usize) -> AllGatherSpec {
    AllGatherSpec {
        max_rows: MAX_ROWS,
        row_bytes: ROW,
        side_bytes: 0,
        chunk_rows: chunk_rows.into(),
        taper: Taper::towards(End::Last, [3, 1, 1], 1),
        direction,
        pattern: Pattern::full_mesh(world_size),
        placement: Placement::Device,
        op: 0,
        signal_loss: None,
    }
}

fn scatter_spec(world_size: usize, direction: Direction, chunk_rows: usize) -> ScatterSpec {
    ScatterSpec {
        max_rows: MAX_ROWS,
        row_bytes: ROW,
        chunk_rows: chunk_rows.into(),
        taper: Taper::NONE,
        panels: PanelCut::NONE,
        block_rows: 0,
        with_partial: true,
        relayed: false,
        puts: false,
        sum_in_nodes: None,
        direction,
        pattern: Pattern::full_mesh(world_size),
        placement: Placement::Device,
        op: 0,
        signal_loss: None,
    }
}

/// Of every class, with uneven parts where that can be.
fn patterns(world_size: usize) -> Vec<Pattern> {
    let (half, rest) = (world_size / 2, world_size - world_size / 2);
    let third = [world_size / 3, (world_size + 1) / 3, world_size.div_ceil(3)];
    let mut ring: Vec<usize> = (0..world_size).collect();
    ring.swap(0, half);
    vec![
        Pattern::full_mesh(world_size),
        Pattern::Ring(vec![ring]),
        Pattern::two_level(&[half, rest]),
        Pattern::two_level(&third),
        Pattern::islands(&[rest, half]),
        Pattern::islands(&third),
        Pattern::Nested(vec![
            Pattern::two_level(&[half / 2, half - half / 2]),
            Pattern::Ring(vec![(half..world_size).collect()]),
        ]),
    ]
}

/// Small calls may be cut finer than large ones, and into more chunks.
fn by_rows() -> ChunkRows {
    ChunkRows::up_to([(7, 1), (40, 2), (MAX_ROWS, 16)])
}

fn wait_until(happened: impl Fn() -> bool) {
    let begin = Instant::now();
    while !happened() {
        assert!(begin.elapsed() < Duration::from_secs(20), "a signal is missing");
        std::thread::yield_now();
    }
}

fn wait_for(word: Address, epoch: u32) {
    // SAFETY: a live signal of the host backend.
    let word = unsafe { AtomicU32::from_ptr(word.as_ptr()) };
    wait_until(|| flux_memory::reached(word.load(Ordering::Acquire), epoch));
}
