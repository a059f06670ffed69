//! Members some of whom cannot address each other's memory.

use flux_memory::{Buffer, Device, FaultLog, Placement, Reach, reached};
use flux_transport::{
    AllGather, AllGatherSpec, Awaited, Direction, Error, Exchange, Members, Pattern, PeerCopy,
    SocketExchange, Taper,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

fn members(world_size: usize, reach: Reach) -> Members {
    let device = Device::host();
    let log = |rank| FaultLog::new(&device, u32::try_from(rank).unwrap(), Duration::from_secs(10)).unwrap();
    let members = Members::new(vec![device.clone(); world_size], (0..world_size).map(log).collect()).unwrap();
    Members { space: members.space.clone().with_reach(reach), ..members }
}

fn gather(members: &Members, pattern: Pattern, direction: Direction) -> Result<AllGather, Error> {
    let spec = AllGatherSpec {
        max_rows: 64,
        row_bytes: 4,
        side_bytes: 2,
        chunk_rows: 3.into(),
        taper: Taper::NONE,
        direction,
        pattern,
        placement: Placement::Device,
        op: 0,
        signal_loss: None,
    };
    AllGather::new(Box::new(PeerCopy), members, spec)
}

#[test]
fn members_without_a_way_to_each_other_are_refused() {
    let wrong = gather(&members(3, Reach::split(4, 2)), Pattern::ring(4), Direction::Push).unwrap_err();
    assert!(matches!(wrong, Error::WrongReach { reached: 4, world_size: 3 }), "{wrong}");
    let none = gather(&members(3, Reach::split(3, 2)), Pattern::ring(3), Direction::Push).unwrap_err();
    assert!(matches!(none, Error::NoExchange { rank: 0 }), "{none}");
}

/// Rows, and what is beside them, call after call, pushed and pulled, by chunks and by whole shards, in one level and in two, passed
/// on within nodes and between them.
#[test]
fn rows_come_from_all_nodes() {
    let nested = |sizes: &[usize]| Pattern::islands(sizes);
    for (world_size, nodes, pattern) in [
        (4, 2, nested(&[2, 2])),
        (4, 2, Pattern::full_mesh(4)),
        (6, 3, nested(&[2, 2, 2])),
        (6, 2, Pattern::nodes(2, &Pattern::two_level(&[1, 2]))),
        (6, 2, Pattern::ring(6)),
        (6, 2, Pattern::two_level(&[3, 3])),
        (6, 2, nested(&[1, 2, 3])), // crosses nodes within its parts
        (5, 2, nested(&[3, 2])),
        (5, 2, Pattern::two_level(&[2, 2, 1])),
        (3, 3, Pattern::full_mesh(3)),
        (3, 3, Pattern::ring(3)),
    ] {
        rows_come((world_size, nodes, &pattern), Direction::Push);
        rows_come((world_size, nodes, &pattern), Direction::Pull);
    }
}

fn rows_come((world_size, nodes, pattern): (usize, usize, &Pattern), direction: Direction) {
    let mut members = members(world_size, Reach::split(world_size, nodes));
    let exchanges = SocketExchange::here(members.space.reach()).unwrap();
    let shared = |exchange| Some(Arc::new(exchange) as Arc<dyn Exchange>);
    members.exchanges = exchanges.into_iter().map(shared).collect::<Vec<_>>().into();
    let gather = gather(&members, pattern.clone(), direction).unwrap();
    let streams: Vec<_> = (0..world_size).map(|_| Device::host().stream().unwrap()).collect();
    for (epoch, rows) in [(1, 64), (2, 2), (3, 41), (4, 0), (5, 60)] {
        let awaited = if epoch % 2 == 0 { Awaited::Chunks } else { Awaited::Shards };
        let chunks = gather.chunks(0, rows).unwrap();
        let value = |row: usize| u32::try_from(row).unwrap() << 8 | epoch;
        let side = |row: usize| u16::try_from(row).unwrap() ^ 0x5555;
        let shards: Vec<_> = (0..world_size)
            .map(|rank| {
                let own = chunks.shards().range(rank);
                let place = |bytes: Vec<u8>| {
                    let buffer = Buffer::allocate(&Device::host(), bytes.len(), Placement::Device).unwrap();
                    buffer.upload(&streams[rank], 0, &bytes).unwrap();
                    buffer
                };
                let beside = place(own.clone().flat_map(|row| side(row).to_ne_bytes()).collect());
                (place(own.flat_map(|row| value(row).to_ne_bytes()).collect()), beside)
            })
            .collect();
        let given = |rank: usize| {
            let (rows, side): &(Buffer, Buffer) = &shards[rank];
            flux_transport::Rows { rows: rows.address(), side: Some(side.address()) }
        };
        // SAFETY: the shards outlive the calls, and all ranks make the same ones.
        unsafe {
            for (rank, stream) in streams.iter().enumerate() {
                gather.stage(rank, epoch, rows, given(rank), true, stream).unwrap();
            }
            for rank in 0..world_size {
                gather.transfer(rank, epoch, rows, given(rank), awaited).unwrap();
            }
            for (rank, stream) in streams.iter().enumerate() {
                let (mut all, mut beside) = (vec![0; rows * 4], vec![0; rows * 2]);
                match awaited {
                    Awaited::Shards => gather.wait_for_all(rank, epoch, stream).unwrap(),
                    Awaited::Chunks => wait_for_chunks(&gather, rank, rows, epoch),
                }
                stream.download(&mut all, gather.gathered(rank)).unwrap();
                stream.download(&mut beside, gather.gathered_side(rank)).unwrap();
                gather.release(rank, epoch, stream).unwrap();
                let expected: Vec<_> = (0..rows).flat_map(|row| value(row).to_ne_bytes()).collect();
                assert_eq!(
                    all, expected,
                    "rank {rank} of {pattern} on {nodes} nodes, {direction}, call {epoch}"
                );
                let expected: Vec<_> = (0..rows).flat_map(|row| side(row).to_ne_bytes()).collect();
                assert_eq!(
                    beside, expected,
                    "rank {rank} of {pattern} on {nodes} nodes, {direction}, call {epoch}"
                );
            }
        }
    }
    assert!(members.faults.iter().all(|log| !log.has_given_up()));
}

fn wait_for_chunks(gather: &AllGather, rank: usize, rows: usize, epoch: u32) {
    let (chunks, begin) = (gather.chunks(rank, rows).unwrap(), Instant::now());
    for shard in (0..chunks.shards().world_size()).filter(|&shard| shard != rank) {
        for signal in (0..chunks.count(shard)).map(|index| chunks.signal(shard, index)) {
            let word = gather.gates(rank).add(signal * size_of::<u32>());
            // SAFETY: a live signal of the host backend.
            let word = unsafe { AtomicU32::from_ptr(word.as_ptr()) };
            while !reached(word.load(Ordering::Acquire), epoch) {
                assert!(begin.elapsed() < Duration::from_secs(20), "a signal was not raised");
                std::thread::yield_now();
            }
        }
    }
}
