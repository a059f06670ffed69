//! Members some of whom cannot address each other's memory.

use flux_memory::{Buffer, Device, FaultLog, Placement, Reach};
use flux_transport::{
    AllGather, AllGatherSpec, Awaited, Direction, Error, Exchange, Members, PeerCopy, SocketExchange, Taper,
};
use std::sync::Arc;
use std::time::Duration;

fn members(world_size: usize, reach: Reach) -> Members {
    let device = Device::host();
    let log = |rank| FaultLog::new(&device, u32::try_from(rank).unwrap(), Duration::from_secs(10)).unwrap();
    let members = Members::new(vec![device.clone(); world_size], (0..world_size).map(log).collect()).unwrap();
    Members { space: members.space.clone().with_reach(reach), ..members }
}

fn gather(members: &Members) -> Result<AllGather, Error> {
    let spec = AllGatherSpec {
        max_rows: 64,
        row_bytes: 4,
        side_bytes: 2,
        chunk_rows: 3,
        taper: Taper::NONE,
        direction: Direction::Push,
        placement: Placement::Device,
        op: 0,
        signal_loss: None,
    };
    AllGather::new(Box::new(PeerCopy), members, spec)
}

#[test]
fn members_without_a_way_to_each_other_are_refused() {
    let wrong = gather(&members(3, Reach::split(4, 2))).unwrap_err();
    assert!(matches!(wrong, Error::WrongReach { reached: 4, world_size: 3 }), "{wrong}");
    let none = gather(&members(3, Reach::split(3, 2))).unwrap_err();
    assert!(matches!(none, Error::NoExchange { rank: 0 }), "{none}");
}

/// Rows, and what is beside them, call after call, in two levels and in one, by chunks and by whole shards.
#[test]
fn rows_come_from_all_nodes() {
    for (world_size, nodes) in [(4, 2), (6, 3), (5, 2), (3, 3)] {
        let mut members = members(world_size, Reach::split(world_size, nodes));
        let exchanges = SocketExchange::here(members.space.reach()).unwrap();
        let shared = |exchange| Some(Arc::new(exchange) as Arc<dyn Exchange>);
        members.exchanges = exchanges.into_iter().map(shared).collect::<Vec<_>>().into();
        let gather = gather(&members).unwrap();
        let streams: Vec<_> = (0..world_size).map(|_| Device::host().stream().unwrap()).collect();
        for (epoch, rows) in [(1, 64), (2, 2), (3, 41), (4, 0), (5, 60)] {
            let chunks = gather.chunks(0, rows).unwrap();
            let value = |row: usize| u32::try_from(row).unwrap() << 8 | epoch;
            let side = |row: usize| u16::try_from(row).unwrap() ^ 0x5555;
            let shards: Vec<_> = (0..world_size)
                .map(|rank| {
                    let own = chunks.shards().range(rank);
                    let place = |bytes: Vec<u8>| {
                        let buffer =
                            Buffer::allocate(&Device::host(), bytes.len(), Placement::Device).unwrap();
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
                    gather.transfer(rank, epoch, rows, given(rank), Awaited::Shards).unwrap();
                }
                for (rank, stream) in streams.iter().enumerate() {
                    let (mut all, mut beside) = (vec![0; rows * 4], vec![0; rows * 2]);
                    gather.wait_for_all(rank, epoch, stream).unwrap();
                    stream.download(&mut all, gather.gathered(rank)).unwrap();
                    stream.download(&mut beside, gather.gathered_side(rank)).unwrap();
                    gather.release(rank, epoch, stream).unwrap();
                    let expected: Vec<_> = (0..rows).flat_map(|row| value(row).to_ne_bytes()).collect();
                    assert_eq!(all, expected, "rank {rank} of {world_size} on {nodes} nodes, call {epoch}");
                    let expected: Vec<_> = (0..rows).flat_map(|row| side(row).to_ne_bytes()).collect();
                    assert_eq!(
                        beside, expected,
                        "rank {rank} of {world_size} on {nodes} nodes, call {epoch}"
                    );
                }
            }
        }
        assert!(members.faults.iter().all(|log| !log.has_given_up()));
    }
}
