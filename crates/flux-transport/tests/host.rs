//! Every world size, uneven shards, both directions, calls of varying size in a row, on the host backend.

use flux_memory::{Address, Buffer, Device, FaultLog, Placement, Stream};
use flux_swizzle::{ChunkRows, End, Shards, Taper};
use flux_transport::{
    AllGather, AllGatherSpec, Awaited, Chunk, DataTransfer, Direction, Error, Members, Pattern, PeerCopy,
    PushPlan, PushWay, Rows, Scatter, ScatterSpec, ShardPush, SignalLoss,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
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
        taper: Taper { end: End::Last, finer: [3, 1, 1], grain: 1 },
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

#[test]
fn all_gather_brings_every_row_to_every_rank() {
    for (world_size, pattern) in
        [1, 2, 3, 4, 5, 8].into_iter().flat_map(|w| patterns(w).into_iter().map(move |p| (w, p)))
    {
        let is_mesh = pattern == Pattern::full_mesh(world_size);
        for (direction, chunk_rows) in DIRECTIONS.into_iter().flat_map(|d| [(d, 1), (d, 4), (d, 100), (d, 5)])
        {
            if chunk_rows == 5 && !is_mesh {
                continue; // through host memory nothing is passed on
            }
            let members = members(world_size, Duration::from_secs(20));
            let mut spec = gather_spec(world_size, direction, chunk_rows);
            spec.pattern = pattern.clone();
            if chunk_rows == 4 {
                spec.chunk_rows = by_rows();
            }
            if chunk_rows == 5 {
                spec.placement = Placement::PinnedHost;
            }
            let gather = AllGather::new(Box::new(PeerCopy), &members, spec).unwrap();
            let streams = streams(world_size);
            let device = Device::host();
            for (epoch, rows) in (1..).zip([MAX_ROWS, 7, 0, 1, 40, MAX_ROWS, 3]) {
                let awaited = if epoch % 2 == 0 { Awaited::Shards } else { Awaited::Chunks };
                let shards = Shards::new(rows, world_size).unwrap();
                let sources: Vec<_> = (0..world_size)
                    .map(|rank| {
                        let data: Vec<_> =
                            shards.range(rank).flat_map(|row| row_bytes(epoch, rank, row)).collect();
                        let buffer = Buffer::allocate(&device, data.len(), Placement::Device).unwrap();
                        buffer.upload(&streams[rank], 0, &data).unwrap();
                        buffer
                    })
                    .collect();
                for rank in (0..world_size).rev() {
                    // SAFETY: the sources live until all streams are synchronised below.
                    unsafe {
                        gather
                            .stage(rank, epoch, rows, sources[rank].address(), true, &streams[rank])
                            .unwrap();
                        gather.transfer(rank, epoch, rows, sources[rank].address(), awaited).unwrap();
                    }
                }
                let expected: Vec<u8> = (0..world_size)
                    .flat_map(|rank| shards.range(rank).flat_map(move |row| row_bytes(epoch, rank, row)))
                    .collect();
                for (rank, stream) in streams.iter().enumerate() {
                    let chunks = gather.chunks(rank, rows).unwrap();
                    let others = (0..world_size).filter(|&shard| shard != rank);
                    let signals: Vec<_> = others
                        .flat_map(|shard| {
                            (0..chunks.count(shard)).map(move |index| chunks.signal(shard, index))
                        })
                        .map(|signal| gather.gates(rank).add(signal * size_of::<u32>()))
                        .collect();
                    // SAFETY: live signals of the host backend.
                    let is_up = |signal: &Address| unsafe {
                        AtomicU32::from_ptr(signal.as_ptr()).load(Ordering::Acquire) == epoch
                    };
                    let mut gathered = vec![0xff; rows * ROW];
                    // SAFETY: as above.
                    unsafe {
                        match awaited {
                            Awaited::Shards => gather.wait_for_all(rank, epoch, stream).unwrap(),
                            Awaited::Chunks => wait_until(|| signals.iter().all(is_up)),
                        }
                        stream.download(&mut gathered, gather.gathered(rank)).unwrap();
                        gather.release(rank, epoch, stream).unwrap();
                    }
                    assert_eq!(gathered, expected, "rank {rank} of {pattern}, {direction}, call {epoch}");
                    let raised = awaited == Awaited::Chunks;
                    assert!(
                        signals.iter().all(|signal| is_up(signal) == raised),
                        "raised is what is awaited"
                    );
                }
                streams.iter().for_each(|stream| stream.synchronize().unwrap());
            }
            assert!(members.faults.iter().all(|log| log.fault().is_none()));
        }
    }
}

fn wait_until(happened: impl Fn() -> bool) {
    let begin = Instant::now();
    while !happened() {
        assert!(begin.elapsed() < Duration::from_secs(20), "a signal is missing");
        std::thread::yield_now();
    }
}

/// Would push every shard whole: counts those that it is told of, and those that it is to push.
#[derive(Clone, Debug, Default)]
struct Whole {
    planned: Arc<AtomicUsize>,
    pushed: Arc<AtomicUsize>,
}

impl DataTransfer for Whole {
    unsafe fn move_chunk(&self, stream: &Stream, chunk: &Chunk, epoch: u32) -> flux_transport::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { PeerCopy.move_chunk(stream, chunk, epoch) }
    }

    fn plan_push(&mut self, _: &PushPlan<'_>) -> flux_transport::Result<()> {
        self.planned.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn push_way(&self, _: &ShardPush) -> PushWay {
        PushWay::Acknowledged
    }

    unsafe fn push_shard(&self, _: &Stream, _: &ShardPush) -> flux_transport::Result<()> {
        self.pushed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn only_shards_that_are_cut_alike_for_all_peers_are_pushed_whole() {
    const WORLD_SIZE: usize = 3;
    let finer = gather_spec(WORLD_SIZE, Direction::Push, 4).taper;
    for (taper, direction, whole) in [
        (Taper::NONE, Direction::Push, WORLD_SIZE),
        (Taper::NONE, Direction::Pull, 0),
        (finer, Direction::Push, 0),
    ] {
        let (members, transfer) = (members(WORLD_SIZE, Duration::from_secs(20)), Whole::default());
        let spec = AllGatherSpec { taper, ..gather_spec(WORLD_SIZE, direction, 4) };
        let gather = AllGather::new(Box::new(transfer.clone()), &members, spec).unwrap();
        let streams = streams(WORLD_SIZE);
        let shard = Buffer::allocate(&Device::host(), MAX_ROWS * ROW, Placement::Device).unwrap();
        // SAFETY: the shard, all ranks' alike, lives until all transfers have ended.
        unsafe {
            for (rank, stream) in streams.iter().enumerate() {
                gather.stage(rank, 1, MAX_ROWS, shard.address(), true, stream).unwrap();
            }
            for rank in 0..WORLD_SIZE {
                gather.transfer(rank, 1, MAX_ROWS, shard.address(), Awaited::Chunks).unwrap();
            }
        }
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        gather.settle();
        let counts = [&transfer.planned, &transfer.pushed].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counts, [whole; 2], "{taper:?}, {direction}");
    }
}

#[test]
fn scatter_brings_every_row_into_its_owners_slots() {
    let all =
        [1, 2, 3, 4, 5, 8].into_iter().flat_map(|w| patterns(w).into_iter().map(move |pattern| (w, pattern)));
    for (world_size, pattern) in all {
        for (direction, chunk_rows, to_all) in
            DIRECTIONS.into_iter().flat_map(|d| [(d, 1, false), (d, 4, true), (d, 100, false)])
        {
            let members = members(world_size, Duration::from_secs(20));
            let build = if to_all { Scatter::to_all } else { Scatter::new };
            let mut spec =
                ScatterSpec { pattern: pattern.clone(), ..scatter_spec(world_size, direction, chunk_rows) };
            if chunk_rows == 4 {
                spec.chunk_rows = by_rows();
            }
            let scatter = build(Box::new(PeerCopy), &members, spec).unwrap();
            let slot_rows = if to_all { MAX_ROWS } else { MAX_ROWS.div_ceil(world_size) };
            assert_eq!(scatter.slot_rows(), slot_rows);
            let streams = streams(world_size);
            for (epoch, rows) in (1..).zip([MAX_ROWS, 7, 0, 1, 40, MAX_ROWS, 3]) {
                for rank in (0..world_size).rev() {
                    let data: Vec<_> = (0..rows).flat_map(|row| row_bytes(epoch, rank, row)).collect();
                    // SAFETY: the partial rows belong to the scatter, and are overwritten only after `begin`.
                    unsafe {
                        scatter.begin(rank, &streams[rank]).unwrap();
                        streams[rank].upload(scatter.partial(rank), &data).unwrap();
                        scatter.stage(rank, epoch, &streams[rank]).unwrap();
                        scatter.transfer(rank, epoch, rows, &streams[rank]).unwrap();
                    }
                }
                for (rank, stream) in streams.iter().enumerate() {
                    let shard = Shards::new(rows, world_size).unwrap().range(rank);
                    let own = if to_all { 0..rows } else { shard };
                    for source in 0..world_size {
                        let expected: Vec<u8> =
                            own.clone().flat_map(|row| row_bytes(epoch, source, row)).collect();
                        wait_for(scatter.arrived(rank).add(4 * source), epoch);
                        let mut slot = vec![0xff; expected.len()];
                        // SAFETY: the slot belongs to the scatter; its rows have arrived.
                        unsafe { stream.download(&mut slot, scatter.slot(rank, source)).unwrap() };
                        assert_eq!(slot, expected, "rank {rank} of {pattern}, {direction}, call {epoch}");
                    }
                }
                for (rank, stream) in streams.iter().enumerate() {
                    // SAFETY: the slots have been read.
                    unsafe { scatter.release(rank, epoch, stream).unwrap() };
                }
            }
            assert!(members.faults.iter().all(|log| log.fault().is_none()));
        }
    }
}

/// Shards may be fetched as soon as each is complete, but not into a slot that its owner still reads.
#[test]
fn a_slow_owner_is_not_overtaken() {
    for (direction, by_shard) in DIRECTIONS.into_iter().flat_map(|d| [(d, false), (d, true)]) {
        let (world_size, rows, calls) = (2, 8, 3);
        let members = members(world_size, Duration::from_secs(20));
        let scatter =
            Scatter::new(Box::new(PeerCopy), &members, scatter_spec(world_size, direction, 4)).unwrap();
        let streams = streams(world_size);
        let buffer = |bytes: usize| Buffer::allocate(&Device::host(), bytes, Placement::Device).unwrap();
        let (inputs, read): (Vec<_>, Vec<_>) =
            (1..=calls).map(|_| (buffer(rows * ROW), buffer(world_size * ROW))).unzip();
        for (epoch, input) in (1..).zip(&inputs) {
            let partial: Vec<u8> = (0..rows).flat_map(|row| row_bytes(epoch, 0, row)).collect();
            input.upload(&streams[0], 0, &partial).unwrap();
        }
        for (epoch, (input, read)) in (1..).zip(inputs.iter().zip(&read)) {
            for (rank, stream) in streams.iter().enumerate() {
                // SAFETY: all memory outlives what is enqueued; rank 0 reads its slots before it releases them.
                unsafe {
                    scatter.begin(rank, stream).unwrap();
                    stream.copy(scatter.partial(rank), input.address(), rows * ROW).unwrap();
                    if by_shard {
                        for owner in [1 - rank, rank] {
                            scatter.stage_shard(rank, owner, epoch, rows, stream).unwrap();
                        }
                    } else {
                        scatter.stage(rank, epoch, stream).unwrap();
                    }
                }
            }
            for (rank, stream) in streams.iter().enumerate() {
                let transfer = if by_shard { Scatter::transfer_rest } else { Scatter::transfer };
                let Stream::Host(host) = stream else { panic!("not a host stream") };
                // SAFETY: as above.
                unsafe { transfer(&scatter, rank, epoch, rows, stream).unwrap() };
                let arrived = scatter.arrived(rank);
                let words: Vec<_> = (0..world_size).map(|source| arrived.add(4 * source)).collect();
                host.launch(move || words.into_iter().for_each(|word| wait_for(word, epoch))).unwrap();
                if rank == 0 {
                    host.launch(|| std::thread::sleep(Duration::from_millis(100))).unwrap();
                    for source in 0..world_size {
                        let to = read.address().add(source * ROW);
                        // SAFETY: as above.
                        unsafe { stream.copy(to, scatter.slot(0, source), ROW).unwrap() };
                    }
                }
                // SAFETY: as above.
                unsafe { scatter.release(rank, epoch, stream).unwrap() };
            }
        }
        for (epoch, read) in (1..).zip(&read) {
            let mut bytes = [0; 2 * ROW];
            read.download(&streams[0], 0, &mut bytes).unwrap();
            assert_eq!(bytes, *row_bytes(epoch, 0, 0).repeat(2), "{direction}, {by_shard}, call {epoch}");
        }
        assert!(members.faults.iter().all(|log| log.fault().is_none()));
    }
}

/// A rank writes its shard where its peers expect it, and reads each of theirs when it has arrived.
/// Also a rank's own, which come to their place even where its rows do not.
#[test]
fn what_is_beside_the_rows_travels_with_them() {
    const SIDE: usize = 4;
    let (world_size, device) = (3, Device::host());
    let (mesh, ring) = (Pattern::full_mesh(world_size), Pattern::ring(world_size));
    for (direction, placement, pattern) in DIRECTIONS.into_iter().flat_map(|d| {
        [(d, Placement::Device, &mesh), (d, Placement::PinnedHost, &mesh), (d, Placement::Device, &ring)]
    }) {
        let members = members(world_size, Duration::from_secs(20));
        let pattern = pattern.clone();
        let spec =
            AllGatherSpec { side_bytes: SIDE, placement, pattern, ..gather_spec(world_size, direction, 4) };
        let gather = AllGather::new(Box::new(PeerCopy), &members, spec).unwrap();
        let streams = streams(world_size);
        for ((epoch, rows), keep_own) in (1..).zip([MAX_ROWS, 7, 1, 40]).zip([false, true, false, false]) {
            let shards = Shards::new(rows, world_size).unwrap();
            let row = |rank| move |row| row_bytes(epoch, rank, row);
            let place = |stream: &Stream, data: &[u8]| {
                let buffer = Buffer::allocate(&device, data.len(), Placement::Device).unwrap();
                buffer.upload(stream, 0, data).unwrap();
                buffer
            };
            let sources: Vec<_> = streams
                .iter()
                .enumerate()
                .map(|(rank, stream)| {
                    let of_rows: Vec<_> = shards.range(rank).map(row(rank)).collect();
                    let side: Vec<_> = of_rows.iter().flat_map(|row| row[..SIDE].to_vec()).collect();
                    [place(stream, of_rows.as_flattened()), place(stream, &side)]
                })
                .collect();
            let shard = |rank: usize| {
                let [rows, side] = &sources[rank];
                Rows { rows: rows.address(), side: Some(side.address()) }
            };
            for (rank, stream) in streams.iter().enumerate() {
                // SAFETY: the sources live until all streams are synchronised below; the gathered rows are the op's own, and
                // nobody writes to the rank's own ones but the rank.
                unsafe {
                    let own = gather.shard(rank, rows).unwrap();
                    gather.claim(rank, epoch, stream).unwrap();
                    stream.upload(own, &vec![0xff; shards.rows(rank) * ROW]).unwrap();
                    gather.stage(rank, epoch, rows, shard(rank), keep_own, stream).unwrap();
                }
            }
            for rank in 0..world_size {
                // SAFETY: as above.
                unsafe { gather.transfer(rank, epoch, rows, shard(rank), Awaited::Shards).unwrap() };
            }
            for (rank, stream) in streams.iter().enumerate() {
                let (mut gathered, mut side) = (vec![[0; ROW]; rows], vec![[0; SIDE]; rows]);
                // SAFETY: as above.
                unsafe {
                    gather.wait_for_all(rank, epoch, stream).unwrap();
                    stream.download(gathered.as_flattened_mut(), gather.gathered(rank)).unwrap();
                    stream.download(side.as_flattened_mut(), gather.gathered_side(rank)).unwrap();
                    gather.release(rank, epoch, stream).unwrap();
                }
                let what = format!("rank {rank}, {direction}, {placement:?}, call {epoch}");
                let expected: Vec<_> = (0..world_size).flat_map(|of| shards.range(of).map(row(of))).collect();
                assert!(side.iter().zip(&expected).all(|(side, row)| *side == row[..SIDE]), "{what}");
                // Peers fetch pulled rows from among the gathered ones, unless there is an outbox.
                let kept = keep_own || (direction == Direction::Pull && placement == Placement::Device);
                for (index, (row, expected)) in gathered.iter().zip(&expected).enumerate() {
                    let missing = !kept && shards.range(rank).contains(&index);
                    assert_eq!(*row, if missing { [0xff; ROW] } else { *expected }, "{what}, row {index}");
                }
            }
            streams.iter().for_each(|stream| stream.synchronize().unwrap());
        }
        assert!(members.faults.iter().all(|log| log.fault().is_none()));
    }
}

#[test]
fn shards_are_made_in_place_and_read_one_by_one() {
    for (direction, placement) in
        DIRECTIONS.into_iter().flat_map(|d| [(d, Placement::Device), (d, Placement::PinnedHost)])
    {
        let world_size = 3;
        let members = members(world_size, Duration::from_secs(20));
        let spec = AllGatherSpec { placement, ..gather_spec(world_size, direction, 4) };
        let gather = AllGather::new(Box::new(PeerCopy), &members, spec).unwrap();
        let streams = streams(world_size);
        for (epoch, rows) in (1..).zip([MAX_ROWS, 7, 1, 0, MAX_ROWS]) {
            let shards = Shards::new(rows, world_size).unwrap();
            let data = |rank| -> Vec<u8> {
                shards.range(rank).flat_map(|row| row_bytes(epoch, rank, row)).collect()
            };
            for (rank, stream) in streams.iter().enumerate() {
                let shard = gather.shard(rank, rows).unwrap();
                // SAFETY: the shard lies in the gather's own buffer, and is claimed before it is written to.
                unsafe {
                    gather.claim(rank, epoch, stream).unwrap();
                    stream.upload(shard, &data(rank)).unwrap();
                    gather.stage(rank, epoch, rows, shard, true, stream).unwrap();
                    gather.transfer(rank, epoch, rows, shard, Awaited::Shards).unwrap();
                }
            }
            for (rank, stream) in streams.iter().enumerate() {
                for peer in 0..world_size {
                    let mut arrived = vec![0xff; shards.rows(peer) * ROW];
                    let from = gather.gathered(rank).add(shards.range(peer).start * ROW);
                    // SAFETY: as above.
                    unsafe {
                        gather.wait_for(rank, peer, epoch, stream).unwrap();
                        stream.download(&mut arrived, from).unwrap();
                    }
                    assert_eq!(arrived, data(peer), "{peer} at {rank}, {direction}, call {epoch}");
                }
                // SAFETY: as above.
                unsafe { gather.release(rank, epoch, stream).unwrap() };
            }
        }
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        assert!(members.faults.iter().all(|log| log.fault().is_none()));
        // SAFETY: nothing is enqueued.
        let outside = unsafe { gather.wait_for(0, 3, 1, &streams[0]) };
        assert!(matches!(outside, Err(Error::RankOutOfRange { rank: 3, world_size: 3 })));
    }
}

fn wait_for(word: Address, epoch: u32) {
    let begin = Instant::now();
    // SAFETY: a live signal of the host backend.
    let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(word.as_ptr()) };
    while !flux_memory::reached(word.load(std::sync::atomic::Ordering::Acquire), epoch) {
        assert!(begin.elapsed() < Duration::from_secs(20), "a signal was not raised");
        std::thread::yield_now();
    }
}

#[test]
fn a_lost_signal_ends_in_a_fault_that_names_the_peer() {
    for direction in DIRECTIONS {
        let (world_size, members) = (3, members(3, Duration::from_secs(1)));
        let spec = AllGatherSpec {
            signal_loss: Some(SignalLoss { from: 2, to: 1 }),
            ..gather_spec(world_size, direction, 4)
        };
        let gather = AllGather::new(Box::new(PeerCopy), &members, spec).unwrap();
        let streams = streams(3);
        let shard = Buffer::allocate(&Device::host(), MAX_ROWS * ROW, Placement::Device).unwrap();
        let begin = Instant::now();
        for (rank, stream) in streams.iter().enumerate() {
            // SAFETY: the shard outlives the calls.
            unsafe {
                gather.stage(rank, 1, MAX_ROWS, shard.address(), true, stream).unwrap();
                gather.transfer(rank, 1, MAX_ROWS, shard.address(), Awaited::Shards).unwrap();
                gather.wait_for_all(rank, 1, stream).unwrap();
                gather.release(rank, 1, stream).unwrap();
            }
        }
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        assert!(begin.elapsed() < Duration::from_secs(10));
        let fault = members.faults[1].fault().unwrap();
        assert_eq!((fault.rank, fault.peer, fault.seen, fault.wanted), (1, 2, 0, 1));
        assert_eq!(members.faults[0].fault(), None);
    }
}

#[test]
fn bad_arguments_are_errors() {
    let (world_size, members) = (2, members(2, Duration::from_secs(1)));
    let gather =
        AllGather::new(Box::new(PeerCopy), &members, gather_spec(world_size, Direction::Push, 4)).unwrap();
    let stream = Device::host().stream().unwrap();
    assert!(matches!(gather.chunks(0, MAX_ROWS + 1), Err(Error::TooManyRows { .. })));
    // SAFETY: nothing is enqueued.
    unsafe {
        let outside = gather.stage(2, 1, 1, Address::NULL, true, &stream);
        assert!(matches!(outside, Err(Error::RankOutOfRange { .. })));
    }
    assert!(matches!(gather.shard(7, 1), Err(Error::RankOutOfRange { .. })));
    let huge = AllGatherSpec { max_rows: usize::MAX, ..gather_spec(world_size, Direction::Push, 1) };
    assert!(matches!(AllGather::new(Box::new(PeerCopy), &members, huge), Err(Error::Memory(_))));
    let huge =
        ScatterSpec { max_rows: usize::MAX, block_rows: 1, ..scatter_spec(world_size, Direction::Push, 1) };
    assert!(matches!(Scatter::new(Box::new(PeerCopy), &members, huge), Err(Error::Memory(_))));
    let short = Members { faults: Vec::new().into(), ..members.clone() };
    let incomplete = AllGather::new(Box::new(PeerCopy), &short, gather_spec(world_size, Direction::Push, 4));
    assert!(matches!(incomplete, Err(Error::IncompleteMembers { devices: 2, logs: 0, .. })));
    let ring = AllGatherSpec { pattern: Pattern::ring(3), ..gather_spec(3, Direction::Push, 1) };
    let of_others = AllGather::new(Box::new(PeerCopy), &members, ring.clone()).unwrap_err();
    assert!(matches!(of_others, Error::OtherPattern { ranks: 3, world_size: 2 }), "{of_others}");
    let through_host = AllGatherSpec { placement: Placement::PinnedHost, ..ring };
    let three = self::members(3, Duration::from_secs(1));
    let passed_on = AllGather::new(Box::new(PeerCopy), &three, through_host).unwrap_err();
    assert!(matches!(passed_on, Error::CannotPassOn), "{passed_on}");
    let no_rows = gather_spec(world_size, Direction::Push, 0);
    assert!(matches!(AllGather::new(Box::new(PeerCopy), &members, no_rows), Err(Error::Swizzle(_))));
}
