//! What is true of every schedule, whatever connects the ranks.

use flux_swizzle::{
    Collective, Error, MOST_RANKS, Pattern, Schedule, Shards, TileOrder, TileShape, Transfer,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const BOTH: [Collective; 2] = [Collective::AllGather, Collective::ReduceScatter];

/// The others, from the next rank on around the world.
fn around(rank: usize, world_size: usize) -> impl Iterator<Item = usize> {
    (1..world_size).map(move |step| (rank + step) % world_size)
}

/// Every chunk reaches every rank once (or every rank's part is summed once), after all that it waits for.
fn check(pattern: &Pattern, chunks: &dyn Fn(usize) -> usize) {
    let world_size = pattern.world_size().unwrap();
    for collective in BOTH {
        let schedule = Schedule::new(collective, pattern, chunks).unwrap();
        assert_eq!(schedule.world_size(), world_size);
        let transfers = schedule.transfers();
        let expected: usize = (0..world_size).map(|shard| chunks(shard) * (world_size - 1)).sum();
        assert_eq!(transfers.len(), expected, "{pattern:?}");
        let mut once = BTreeSet::new();
        for transfer in transfers {
            let &Transfer { step, source, destination, shard, chunk, arrivals, after, .. } = transfer;
            assert!(source != destination && chunk < chunks(shard), "{transfer:?} of {pattern:?}");
            let (gone, moved) = match collective {
                Collective::AllGather => (destination, source),
                Collective::ReduceScatter | Collective::Scatter => (source, destination),
            };
            assert!(gone != shard && once.insert((gone, shard, chunk)), "{transfer:?} of {pattern:?}");
            let before: Vec<_> = schedule.waits_for(transfer).collect();
            assert_eq!(before.len(), arrivals, "{transfer:?} of {pattern:?}");
            assert!(before.iter().all(|before| before.step < step), "{transfer:?} of {pattern:?}");
            match collective {
                Collective::AllGather => assert_eq!(arrivals, usize::from(moved != shard)),
                Collective::ReduceScatter | Collective::Scatter => {
                    assert_eq!(schedule.sums(transfer), arrivals > 0);
                }
            }
            let after = after.map(|after| &transfers[after]);
            assert!(after.is_none_or(|after| after.source == source && after.step < step), "{transfer:?}");
        }
        // Of a ReduceScatter all parts end up at the owner.
        if collective == Collective::ReduceScatter {
            let mut parts: BTreeMap<(usize, usize, usize), usize> = BTreeMap::new();
            let mut by_step: Vec<_> = transfers.iter().collect();
            by_step.sort_by_key(|transfer| transfer.step);
            for &Transfer { source, destination, shard, chunk, .. } in by_step {
                let sent = parts.remove(&(source, shard, chunk)).unwrap_or(0) + 1;
                *parts.entry((destination, shard, chunk)).or_default() += sent;
            }
            let all = |(&(rank, shard, _), &count): (&(usize, usize, usize), &usize)| {
                rank == shard && count == world_size - 1
            };
            assert!(parts.iter().all(all), "{pattern:?}");
        }
        // Over a link, a shard's chunks go in order.
        for transfer in transfers {
            let after = transfer.after.map(|after| &transfers[after]);
            let same = after
                .filter(|after| (after.shard, after.destination) == (transfer.shard, transfer.destination));
            assert!(same.is_none_or(|after| after.chunk < transfer.chunk), "{transfer:?} of {pattern:?}");
        }
        check_boundaries(pattern, &schedule, chunks);
        check_orders(&schedule);
    }
    check_chunks(pattern, chunks);
    check_scatter(pattern, chunks);
}

/// In each lane the chunks of a shard come one behind the other, where the shard comes if it is one chunk.
fn check_chunks(pattern: &Pattern, chunks: &dyn Fn(usize) -> usize) {
    for collective in [Collective::AllGather, Collective::Scatter] {
        let whole = Schedule::new(collective, pattern, |_| 1).unwrap();
        let schedule = Schedule::new(collective, pattern, chunks).unwrap();
        for rank in 0..schedule.world_size() {
            let lanes = whole.sends(rank).iter().map(|sent| sent.lane).max().map_or(0, |lane| lane + 1);
            for lane in 0..lanes {
                let of_lane = |schedule: &Schedule| -> Vec<_> {
                    let sends = schedule.sends(rank).iter().filter(|sent| sent.lane == lane);
                    sends.map(|sent| (sent.destination, sent.shard, sent.chunk)).collect()
                };
                let cut = of_lane(&whole)
                    .into_iter()
                    .flat_map(|(to, shard, _)| (0..chunks(shard)).map(move |chunk| (to, shard, chunk)));
                let cut: Vec<_> = cut.collect();
                assert_eq!(
                    of_lane(&schedule),
                    cut,
                    "{collective:?}, rank {rank}, lane {lane} of {pattern:?}"
                );
            }
        }
    }
}

/// What goes straight to its owner leaves in the order of the ReduceScatter, once.
fn check_scatter(pattern: &Pattern, chunks: &dyn Fn(usize) -> usize) {
    let of = |collective| Schedule::new(collective, pattern, chunks).unwrap();
    let scattered = of(Collective::Scatter);
    assert_eq!(scattered.transfers().len(), of(Collective::ReduceScatter).transfers().len());
    let reduced = Schedule::new(Collective::ReduceScatter, pattern, |_| 1).unwrap();
    for rank in 0..scattered.world_size() {
        let order = reduced.shard_order(rank);
        assert_eq!(scattered.shard_order(rank).last(), Some(&rank));
        let others = || order.iter().copied().filter(|&shard| shard != rank);
        let expected = others().flat_map(|shard| (0..chunks(shard)).map(move |chunk| (shard, shard, chunk)));
        let mut by_step = scattered.sends(rank).to_vec();
        by_step.sort_by_key(|sent| sent.step);
        let sent = by_step.iter().map(|sent| (sent.destination, sent.shard, sent.chunk));
        assert!(sent.eq(expected), "rank {rank} of {pattern:?}");
        for sent in scattered.sends(rank) {
            assert!(sent.arrivals == 0 && !scattered.sums(sent));
            let after = sent.after.map(|after| &scattered.transfers()[after]);
            assert!(after.is_none_or(
                |after| (after.source, after.lane) == (rank, sent.lane) && after.step < sent.step
            ));
        }
    }
}

/// Over the boundary of a NUMA node, an island or a machine each chunk goes once inwards (of a sum: outwards), and never back.
fn check_boundaries(pattern: &Pattern, schedule: &Schedule, chunks: &dyn Fn(usize) -> usize) {
    for enclosure in pattern.enclosures() {
        let inside: BTreeSet<_> = enclosure.into_iter().collect();
        let mut crossed: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for transfer in schedule.transfers() {
            let (from, to) = match schedule.collective() {
                Collective::AllGather => (transfer.source, transfer.destination),
                Collective::ReduceScatter | Collective::Scatter => (transfer.destination, transfer.source),
            };
            if !inside.contains(&from) && inside.contains(&to) {
                assert!(!inside.contains(&transfer.shard), "{transfer:?} of {pattern:?}");
                *crossed.entry((transfer.shard, transfer.chunk)).or_default() += 1;
            }
        }
        let outside = (0..schedule.world_size()).filter(|rank| !inside.contains(rank));
        assert_eq!(crossed.len(), outside.map(chunks).sum::<usize>(), "{pattern:?}");
        assert!(crossed.values().all(|&times| times == 1), "{pattern:?}");
    }
}

/// Each rank computes all shards, its own first or last, and the others as they come or go.
fn check_orders(schedule: &Schedule) {
    for rank in 0..schedule.world_size() {
        let order = schedule.shard_order(rank);
        assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), schedule.world_size());
        let travels: Vec<usize> = match schedule.collective() {
            Collective::AllGather => {
                let mut arrivals: Vec<_> =
                    schedule.arrivals(rank).iter().map(|&index| schedule.transfers()[index]).collect();
                arrivals.sort_by_key(|transfer| (transfer.phase, transfer.step));
                arrivals.iter().map(|transfer| transfer.shard).collect()
            }
            Collective::ReduceScatter | Collective::Scatter => {
                let mut sends = schedule.sends(rank).to_vec();
                sends.sort_by_key(|transfer| (transfer.phase, transfer.step));
                sends.iter().map(|transfer| transfer.shard).collect()
            }
        };
        let own = match schedule.collective() {
            Collective::AllGather => order.first(),
            Collective::ReduceScatter | Collective::Scatter => order.last(),
        };
        if travels.iter().collect::<BTreeSet<_>>().len() + 1 == schedule.world_size() {
            assert_eq!(own, Some(&rank));
        }
        let mut firsts = Vec::new();
        travels.into_iter().for_each(|shard| {
            if !firsts.contains(&shard) {
                firsts.push(shard);
            }
        });
        let others: Vec<_> = order.into_iter().filter(|shard| firsts.contains(shard)).collect();
        assert_eq!(others, firsts);
        // The tiles come in that order.
        let shards = Shards::new(schedule.world_size() * 3, schedule.world_size()).unwrap();
        let tiles = TileOrder::plain(1, TileShape { rows: 2, columns: 4 }, 8).unwrap();
        assert_eq!(tiles.row_tiles_along(std::iter::once(0)).count(), 1);
        let tiles = TileOrder::all_gather(shards, rank, TileShape { rows: 2, columns: 4 }, 8).unwrap();
        let order = schedule.shard_order(rank);
        let mut visited: Vec<_> =
            tiles.row_tiles_along(order.iter().copied()).map(|tile| tile.shard).collect();
        visited.dedup();
        assert_eq!(visited, order);
        assert_eq!(tiles.tiles_along(order.iter().copied()).count(), tiles.len());
    }
}

/// All ways to write `total` as a sum of positive numbers, in order; a few for larger totals.
fn sizes(total: usize) -> Vec<Vec<usize>> {
    let mut all = vec![vec![total]];
    for first in 1..total {
        for second in 1..=total - first {
            let rest = total - first - second;
            all.push([first, second, rest].into_iter().filter(|&size| size > 0).collect());
        }
    }
    all
}

#[test]
fn every_class_up_to_sixteen_ranks() {
    let one = |_: usize| 1;
    // However many chunks all shards are cut into, few ranks get and send them in the same order.
    let check = |pattern: &Pattern, one: &dyn Fn(usize) -> usize| {
        check(pattern, one);
        let few = pattern.ranks().len() <= 8;
        for collective in [Collective::AllGather, Collective::Scatter].into_iter().filter(|_| few) {
            let [whole, cut] = [1, 3].map(|count| Schedule::new(collective, pattern, |_| count).unwrap());
            for rank in 0..whole.world_size() {
                assert_eq!(whole.shard_order(rank), cut.shard_order(rank), "{collective:?} of {pattern:?}");
            }
        }
    };
    for world_size in 1..=16 {
        check(&Pattern::full_mesh(world_size), &one);
        check(&Pattern::ring(world_size), &one);
        for sizes in sizes(world_size) {
            check(&Pattern::two_level(&sizes), &one);
            check(&Pattern::islands(&sizes), &one);
        }
        // Bridged pairs, and one card that has no partner.
        let pairs: Vec<usize> =
            (0..world_size.div_ceil(2)).map(|pair| (world_size - 2 * pair).min(2)).collect();
        check(&Pattern::islands(&pairs), &one);
        for nodes in (1..=world_size).filter(|nodes| world_size.is_multiple_of(*nodes)) {
            let size = world_size / nodes;
            check(&Pattern::nodes(nodes, &Pattern::full_mesh(size)), &one);
            check(&Pattern::nodes(nodes, &Pattern::ring(size)), &one);
            check(&Pattern::nodes(nodes, &Pattern::two_level(&[size / 2, size - size / 2])), &one);
            check(&Pattern::nodes(nodes, &Pattern::islands(&[size / 2, size - size / 2])), &one);
        }
    }
}

fn patterns() -> impl Strategy<Value = Pattern> {
    let simple = prop_oneof![
        (1usize..6).prop_map(Pattern::full_mesh),
        prop::collection::vec(0usize..4, 1..4).prop_map(|sizes| Pattern::two_level(&sizes)),
        prop::collection::vec(0usize..4, 1..4).prop_map(|sizes| Pattern::islands(&sizes)),
    ];
    let parts = prop::collection::vec(simple, 1..4);
    // Ranks are given out anew, in any order.
    (parts, any::<u64>()).prop_map(|(parts, seed)| {
        let count: usize = parts.iter().map(|part| part.ranks().len()).sum();
        let mut ranks: Vec<usize> = (0..count).collect();
        let mut state = seed | 1;
        for index in (1..count).rev() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ranks.swap(index, usize::try_from(state >> 33).unwrap() % (index + 1));
        }
        Pattern::Nested(parts.iter().map(|part| renamed(part, &mut ranks)).collect())
    })
}

fn renamed(pattern: &Pattern, ranks: &mut Vec<usize>) -> Pattern {
    let mut anew = |old: &Vec<usize>| old.iter().filter_map(|_| ranks.pop()).collect();
    match pattern {
        Pattern::Mesh(old) => Pattern::Mesh(anew(old)),
        Pattern::Ring(groups) => Pattern::Ring(groups.iter().map(anew).collect()),
        Pattern::Nested(parts) => Pattern::Nested(parts.iter().map(|part| renamed(part, ranks)).collect()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn any_nesting_of_any_ranks_with_any_chunks(
        pattern in patterns(), chunks in prop::collection::vec(0usize..4, 48),
    ) {
        prop_assume!(pattern.world_size().is_ok());
        check(&pattern, &|shard| chunks[shard]);
    }
}

#[test]
fn no_two_send_to_one_in_a_step_of_a_mesh() {
    for (world_size, chunks) in (1..=16).flat_map(|world_size| [1usize, 3].map(|chunks| (world_size, chunks)))
    {
        for collective in BOTH {
            let mesh = Pattern::full_mesh(world_size);
            let uneven = |shard: usize| if shard == 0 { chunks } else { chunks.div_ceil(2) };
            let schedule = Schedule::new(collective, &mesh, uneven).unwrap();
            let mut met = BTreeSet::new();
            for transfer in schedule.transfers() {
                assert!(met.insert((transfer.step, transfer.destination)), "{transfer:?}");
            }
            for rank in 0..world_size {
                let order = schedule.shard_order(rank);
                let around: Vec<_> = around(rank, world_size).collect();
                let others: Vec<_> = order.into_iter().filter(|&shard| shard != rank).collect();
                assert_eq!(others, around);
            }
        }
    }
}

#[test]
fn a_ring_uses_only_neighbours_and_the_order_is_as_in_a_mesh() {
    for world_size in 2..=16 {
        for collective in BOTH {
            let schedule = Schedule::new(collective, &Pattern::ring(world_size), |_| 1).unwrap();
            for transfer in schedule.transfers() {
                assert_eq!(transfer.destination, (transfer.source + world_size - 1) % world_size);
            }
            assert_eq!(schedule.transfers().iter().map(|transfer| transfer.step).max(), Some(world_size - 2));
            for rank in 0..world_size {
                let order = schedule.shard_order(rank).into_iter().filter(|&shard| shard != rank);
                assert!(order.eq(around(rank, world_size)));
            }
        }
        // Of two levels, too: neighbours, or the ends of a group.
        let sizes = [world_size / 2, world_size - world_size / 2];
        let schedule = Schedule::new(Collective::AllGather, &Pattern::two_level(&sizes), |_| 1).unwrap();
        for transfer in schedule.transfers() {
            let before = (transfer.source + world_size - 1) % world_size;
            let ends = [(0, sizes[0] - 1), (sizes[0], world_size - 1)];
            assert!(
                transfer.destination == before || ends.contains(&(transfer.source, transfer.destination))
            );
        }
    }
}

/// Two nodes of four on PCIe: only half of the shards cross each way, in the first steps.
#[test]
fn two_numa_nodes_of_four() {
    let schedule = Schedule::new(Collective::AllGather, &Pattern::two_level(&[4, 4]), |_| 1).unwrap();
    let of = |rank: usize| -> Vec<_> {
        schedule.sends(rank).iter().map(|sent| (sent.destination, sent.shard, sent.level)).collect()
    };
    assert_eq!(of(0), [(7, 0, 1), (7, 1, 1), (7, 2, 1), (7, 3, 1), (3, 0, 0), (3, 1, 0), (3, 2, 0)]);
    assert_eq!(of(1), [1, 2, 3, 4, 5, 6, 7].map(|shard| (0, shard, 0)));
    assert_eq!(schedule.shard_order(5), [5, 6, 7, 0, 1, 2, 3, 4]);
    assert_eq!(schedule.transfers().iter().map(|transfer| transfer.step).max(), Some(6));
}

/// Transfers to other machines start at once where they have a link of their own; on PCIe, when the crossings are done.
#[test]
fn machines() {
    let nvlink = Pattern::nodes(2, &Pattern::full_mesh(4));
    let schedule = Schedule::new(Collective::AllGather, &nvlink, |_| 1).unwrap();
    for rank in 0..8 {
        let out: Vec<_> = schedule.sends(rank).iter().filter(|sent| sent.level == 1).collect();
        assert_eq!(out.len(), 1);
        assert_eq!((out[0].step, out[0].destination, out[0].after), (0, (rank + 4) % 8, None));
    }
    assert_eq!(schedule.shard_order(1), [1, 2, 3, 0, 5, 6, 7, 4]);
    let pcie = Pattern::nodes(2, &Pattern::two_level(&[2, 2]));
    let schedule = Schedule::new(Collective::AllGather, &pcie, |_| 1).unwrap();
    for rank in 0..8 {
        let out: Vec<_> = schedule.sends(rank).iter().filter(|sent| sent.level == 2).collect();
        assert_eq!((out.len(), out[0].step), (1, 2));
        assert!(out[0].after.is_some_and(|after| schedule.transfers()[after].step == 1));
    }
}

#[test]
fn bad_ranks_are_refused() {
    use flux_swizzle::Error;
    let new = |pattern| Schedule::new(Collective::AllGather, &pattern, |_| 1).unwrap_err();
    assert_eq!(new(Pattern::Mesh(vec![])), Error::NoRanks);
    assert_eq!(new(Pattern::Mesh(vec![0, 2])), Error::RankOutOfRange { rank: 2, world_size: 2 });
    assert_eq!(new(Pattern::Ring(vec![vec![0, 1], vec![1]])), Error::RankTwice { rank: 1 });
    let one = Schedule::new(Collective::ReduceScatter, &Pattern::ring(1), |_| 1).unwrap();
    assert!(one.transfers().is_empty() && one.shard_order(0) == [0] && one.sends(7).is_empty());
    assert!(one.arrivals(usize::MAX).is_empty() && one.sends(usize::MAX).is_empty());
}

/// Absurd sizes are errors, whatever they are the size of, and take no memory to speak of.
#[test]
fn what_is_too_large_is_refused() {
    for huge in [MOST_RANKS + 1, 1 << 40, usize::MAX] {
        for pattern in [
            Pattern::full_mesh(huge),
            Pattern::ring(huge),
            Pattern::two_level(&[huge, huge]),
            Pattern::islands(&[3, huge]),
            Pattern::nodes(huge, &Pattern::full_mesh(8)),
        ] {
            let refused = Schedule::new(Collective::AllGather, &pattern, |_| 1);
            assert_eq!(refused.unwrap_err(), Error::TooManyRanks { max: MOST_RANKS });
        }
        let refused = Schedule::new(Collective::ReduceScatter, &Pattern::ring(2), |_| huge << 12 | huge);
        assert!(matches!(refused, Err(Error::TooManyTransfers { .. })), "{huge}");
    }
    assert_eq!(Pattern::nodes(usize::MAX, &Pattern::full_mesh(0)).world_size(), Err(Error::NoRanks));
}
