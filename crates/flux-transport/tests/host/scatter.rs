//! Scatter: rows come into their owners' slots.

use crate::{
    DIRECTIONS, MAX_ROWS, ROW, by_rows, members, patterns, row_bytes, scatter_spec, streams, wait_for,
};
use flux_memory::{Buffer, Device, Placement, Stream};
use flux_swizzle::Shards;
use flux_transport::{PeerCopy, Scatter, ScatterSpec};
use std::time::Duration;

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
