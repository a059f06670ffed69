//! What goes wrong is said.

use crate::{DIRECTIONS, MAX_ROWS, ROW, gather_spec, members, scatter_spec, streams};
use flux_memory::{Address, Buffer, Device, Placement};
use flux_transport::{
    AllGather, AllGatherSpec, Awaited, Direction, Error, Members, Pattern, PeerCopy, Scatter, ScatterSpec,
    SignalLoss,
};
use std::time::{Duration, Instant};

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
    let three = crate::members(3, Duration::from_secs(1));
    let passed_on = AllGather::new(Box::new(PeerCopy), &three, through_host).unwrap_err();
    assert!(matches!(passed_on, Error::CannotPassOn), "{passed_on}");
    let no_rows = gather_spec(world_size, Direction::Push, 0);
    assert!(matches!(AllGather::new(Box::new(PeerCopy), &members, no_rows), Err(Error::Swizzle(_))));
}
