//! AllGather: rows, and what is beside them, come to every rank.

use crate::{
    DIRECTIONS, MAX_ROWS, ROW, by_rows, gather_spec, members, patterns, row_bytes, streams, wait_until,
};
use flux_memory::{Address, Buffer, Device, Placement, Stream};
use flux_swizzle::{Shards, Taper};
use flux_transport::{
    AllGather, AllGatherSpec, Awaited, Chunk, DataTransfer, Direction, Error, Pattern, PeerCopy, PushPlan,
    PushWay, Rows, ShardPush,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

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

/// Also what is beside a rank's own rows, which comes to its place even where these do not.
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

/// A rank writes its shard where its peers expect it, and reads each of theirs when it has arrived.
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
