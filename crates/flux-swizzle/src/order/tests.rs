//! Orders of tiles: every tile once, shard by shard, in groups.

extern crate std;
use super::*;
use crate::{Chunks, End, Taper};
use proptest::prelude::*;
use std::{collections::BTreeSet, vec};

#[derive(Clone, Debug)]
struct Case {
    m: usize,
    n: usize,
    world_size: usize,
    shape: TileShape,
    chunk_rows: usize,
    taper: Taper,
    sweeps: Sweeps,
}

fn cases() -> impl Strategy<Value = Case> {
    let extents = (0usize..1500, 0usize..600, 1usize..17, 1usize..200, 1usize..200, 1usize..700);
    let sweeps = (0u8..5).prop_map(Sweeps::growing);
    (extents, 0usize..20, 0usize..9, 0usize..3, 0usize..200, sweeps).prop_map(
        |(extents, two, four, eight, grain, sweeps)| {
            let (m, n, world_size, rows, columns, chunk_rows) = extents;
            let taper = Taper::towards(End::Last, [two, four, eight], grain);
            Case { m, n, world_size, shape: TileShape { rows, columns }, chunk_rows, taper, sweeps }
        },
    )
}

fn chunks(case: &Case, rank: usize) -> Chunks {
    let shards = Shards::new(case.m, case.world_size).unwrap();
    Chunks::new(shards, case.chunk_rows).unwrap().tapered(case.taper, rank)
}

fn orders(case: &Case, rank: usize) -> [TileOrder; 4] {
    let shards = Shards::new(case.m, case.world_size).unwrap();
    let gathered = TileOrder::all_gather(shards, rank, case.shape, case.n).unwrap();
    let scattered = TileOrder::reduce_scatter(shards, rank, case.shape, case.n).unwrap();
    let first = chunks(case, rank).tapered(Taper { end: End::First, ..case.taper }, rank);
    [
        gathered.following(&chunks(case, rank), case.shape.rows / 2),
        scattered,
        scattered.following(&first, case.shape.rows / 2),
        TileOrder::plain(case.m, case.shape, case.n).unwrap(),
    ]
    .map(|order| order.swept_together(case.sweeps))
}

#[test]
fn rank_five_of_eight_ends_with_itself() {
    let shards = Shards::new(8, 8).unwrap();
    let shape = TileShape { rows: 4, columns: 4 };
    let visited = |order: TileOrder| order.row_tiles().map(|tile| tile.shard).collect::<Vec<_>>();
    assert_eq!(visited(TileOrder::reduce_scatter(shards, 5, shape, 4).unwrap()), [6, 7, 0, 1, 2, 3, 4, 5]);
    assert_eq!(visited(TileOrder::all_gather(shards, 5, shape, 4).unwrap()), [5, 6, 7, 0, 1, 2, 3, 4]);
}

#[test]
fn groups_are_equally_large() {
    for (count, group, groups) in [
        (32, 9, vec![8; 4]),
        (16, 15, vec![16]),
        (32, 15, vec![16; 2]),
        (16, 13, vec![16]),
        (23, 15, vec![12, 11]),
        (3, 100, vec![3]),
        (5, 1, vec![1; 5]),
    ] {
        let order = TileOrder::plain(count, TileShape { rows: 1, columns: 1 }, 2).unwrap().swept_by(group);
        let tiles: Vec<_> = order.tiles().collect();
        let of_first_column = tiles.chunk_by(|a, b| a.column_tile == b.column_tile).step_by(2);
        assert_eq!(of_first_column.map(<[_]>::len).collect::<Vec<_>>(), groups, "{count} {group}");
    }
}

#[test]
fn no_group_spans_two_chunks() {
    let shards = Shards::new(18, 2).unwrap();
    let chunks = Chunks::new(shards, 4).unwrap();
    let order = TileOrder::all_gather(shards, 0, TileShape { rows: 1, columns: 1 }, 2).unwrap();
    let rows: Vec<_> = order.swept_by(3).following(&chunks, 1).tiles().map(|tile| tile.row_tile).collect();
    assert_eq!(rows[..18], [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 8, 8]);
}

#[test]
fn only_what_is_cut_finer_is_swept_by_its_chunks() {
    let shards = Shards::new(24, 3).unwrap();
    let taper = Taper::towards(End::Last, [1, 0, 0], 1);
    let chunks = Chunks::new(shards, 8).unwrap().tapered(taper, 0);
    let order = TileOrder::all_gather(shards, 0, TileShape { rows: 4, columns: 1 }, 2).unwrap();
    let order = order.following(&chunks, 2);
    let heights: Vec<_> = order.row_tiles().map(|tile| (tile.index, tile.rows.len())).collect();
    assert_eq!(heights, [(0, 4), (1, 4), (0, 4), (1, 4), (0, 2), (1, 2), (2, 2), (3, 2)]);
    let swept: Vec<_> = order.tiles().map(|tile| (tile.row_tile, tile.column_tile)).collect();
    assert_eq!(swept[4..8], [(2, 0), (3, 0), (2, 1), (3, 1)]);
    assert_eq!(swept[8..12], [(4, 0), (5, 0), (4, 1), (5, 1)]);
    assert_eq!(swept[12..], [(6, 0), (7, 0), (6, 1), (7, 1)]);
}

#[test]
fn shards_are_swept_together() {
    let shape = TileShape { rows: 2, columns: 1 };
    let swept = |order: TileOrder, rows: usize| -> Vec<_> {
        let order = order.swept_by(rows).swept_together(Sweeps::growing(1));
        let row_tiles: Vec<_> = order.row_tiles().collect();
        order.tiles().map(|tile| (row_tiles[tile.row_tile].shard, tile.column_tile)).collect()
    };
    // Of four ranks with shards of 2 rows and two columns: rank 1 alone, then 2 alone, then 3 and 0 together.
    let shards = Shards::new(8, 4).unwrap();
    let gathered = TileOrder::all_gather(shards, 1, shape, 2).unwrap();
    let alone = [(1, 0), (1, 1), (2, 0), (2, 1)];
    assert_eq!(swept(gathered, 100), [alone, [(3, 0), (0, 0), (3, 1), (0, 1)]].concat());
    // No more rows than a sweep may have.
    assert_eq!(swept(gathered, 2), [alone, [(3, 0), (3, 1), (0, 0), (0, 1)]].concat());
    // Backwards, rank 1 being the last.
    let scattered = TileOrder::reduce_scatter(shards, 1, shape, 2).unwrap();
    let alone = [(0, 0), (0, 1), (1, 0), (1, 1)];
    assert_eq!(swept(scattered, 100), [[(2, 0), (3, 0), (2, 1), (3, 1)], alone].concat());
    // What travels in several chunks is swept by them.
    let finer = Chunks::new(shards, 1).unwrap();
    let [followed, by_itself] = [gathered.following(&finer, 2), gathered].map(|order| order.swept_by(2));
    assert!(followed.swept_together(Sweeps::TWO).tiles().eq(by_itself.tiles()));
}

#[test]
fn the_largest_extents_do_not_overflow() {
    let shape = TileShape { rows: usize::MAX, columns: usize::MAX };
    let order = TileOrder::plain(usize::MAX, shape, usize::MAX).unwrap();
    assert_eq!(order.row_tiles().next().unwrap().rows, 0..usize::MAX);
    let tiny = TileOrder::plain(usize::MAX, TileShape { rows: 1, columns: 1 }, usize::MAX).unwrap();
    assert_eq!((order.len(), tiny.len()), (1, usize::MAX));
    let chunks = Chunks::new(Shards::new(usize::MAX, 3).unwrap(), 1).unwrap();
    assert!(chunks.signals() >= usize::MAX - 1 && chunks.signal(usize::MAX, 7) == usize::MAX);
}

#[test]
fn bad_arguments_are_refused() {
    let shards = Shards::new(8, 2).unwrap();
    let shape = TileShape { rows: 0, columns: 4 };
    assert!(matches!(TileOrder::all_gather(shards, 0, shape, 4), Err(Error::ZeroExtent { .. })));
    let shape = TileShape { rows: 4, columns: 4 };
    let error = TileOrder::reduce_scatter(shards, 2, shape, 4).unwrap_err();
    assert_eq!(error, Error::RankOutOfRange { rank: 2, world_size: 2 });
}

proptest! {
    #[test]
    fn every_order_is_a_permutation_of_all_tiles(case in cases()) {
        for rank in 0..case.world_size {
            for order in orders(&case, rank) {
                let row_tiles: Vec<_> = order.row_tiles().collect();
                let tiles: Vec<_> = order.tiles().collect();
                prop_assert_eq!(tiles.len(), order.len());
                let distinct: BTreeSet<_> = tiles.iter().map(|t| (t.row_tile, t.column_tile)).collect();
                prop_assert_eq!(distinct.len(), row_tiles.len() * order.column_tiles());
                prop_assert_eq!(tiles.len(), distinct.len());
                // The row tiles cover every row once, and none is larger than the shape.
                let mut covered = vec![0; case.m];
                for tile in &row_tiles {
                    prop_assert!(!tile.rows.is_empty() && tile.rows.len() <= case.shape.rows);
                    tile.rows.clone().for_each(|row| covered[row] += 1);
                }
                prop_assert!(covered.iter().all(|&count| count == 1));
            }
        }
    }

    #[test]
    fn no_two_ranks_write_to_one_destination_in_any_step(
        rows in 0usize..300, n in 0usize..400, world_size in 1usize..17, tile in 1usize..150, columns in 1usize..150,
    ) {
        let shards = Shards::new(rows * world_size, world_size).unwrap();
        let shape = TileShape { rows: tile, columns };
        let destinations: Vec<Vec<usize>> = (0..world_size)
            .map(|rank| {
                let order = TileOrder::reduce_scatter(shards, rank, shape, n).unwrap();
                let row_tiles: Vec<_> = order.row_tiles().collect();
                order.tiles().map(|tile| row_tiles[tile.row_tile].shard).collect()
            })
            .collect();
        for step in 0..destinations[0].len() {
            let distinct: BTreeSet<_> = destinations.iter().map(|steps| steps[step]).collect();
            prop_assert_eq!(distinct.len(), world_size);
        }
    }

    #[test]
    fn the_own_destination_is_last(case in cases()) {
        let shards = Shards::new(case.m, case.world_size).unwrap();
        for rank in 0..case.world_size {
            let order = TileOrder::reduce_scatter(shards, rank, case.shape, case.n).unwrap();
            let shards: Vec<_> = order.row_tiles().map(|tile| tile.shard).collect();
            let own = shards.iter().position(|&shard| shard == rank).unwrap_or(shards.len());
            prop_assert!(shards[own..].iter().all(|&shard| shard == rank));
        }
    }

    #[test]
    fn chunks_are_first_needed_in_the_order_they_arrive(case in cases()) {
        for rank in 0..case.world_size {
            let (chunks, order) = (chunks(&case, rank), orders(&case, rank)[0]);
            let row_tiles: Vec<_> = order.row_tiles().collect();
            let mut needed = Vec::new();
            for tile in order.tiles() {
                for signal in chunks.gate(&row_tiles[tile.row_tile]) {
                    if !needed.contains(&signal) {
                        needed.push(signal);
                    }
                }
            }
            let arrived: Vec<_> = core::iter::once(rank)
                .chain((1..case.world_size).map(|step| (rank + step) % case.world_size))
                .flat_map(|shard| (0..chunks.count(shard)).map(move |index| chunks.signal(shard, index)))
                .collect();
            if order.column_tiles() == 0 {
                prop_assert!(needed.is_empty());
            } else {
                prop_assert_eq!(needed, arrived);
            }
        }
    }

    #[test]
    fn a_gate_covers_exactly_the_chunks_its_rows_touch(case in cases()) {
        let chunks = chunks(&case, 0);
        for tile in orders(&case, 0)[0].row_tiles() {
            let touched: BTreeSet<_> = (0..chunks.count(tile.shard))
                .filter(|&index| {
                    let rows = chunks.rows(tile.shard, index);
                    rows.start < tile.rows.end && tile.rows.start < rows.end
                })
                .map(|index| chunks.signal(tile.shard, index))
                .collect();
            prop_assert_eq!(chunks.gate(&tile).collect::<BTreeSet<_>>(), touched);
        }
    }
}
