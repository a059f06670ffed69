//! What one rank does of a ReduceScatter: in each turn it sends to one owner what that one sums, and gets from others what it sums
//! itself. Parts go straight to their owners, which add them in rank order: what of a schedule is used is the order.

use crate::Result;
use crate::moves::schedule;
use flux_memory::PerRank;
use flux_swizzle::{Collective, Pattern};
use std::ops::Range;

/// The same at all ranks: what is sent in a turn is received in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Whose rows the rank computes and sends in it.
    pub(crate) to: Option<usize>,
    /// Who sends to the rank in it.
    pub(crate) from: Vec<usize>,
}

/// One rank's part of it.
#[derive(Clone, Debug)]
pub(crate) struct Scattering {
    pub(crate) turns: Vec<Turn>,
    /// The shards, its own last, as they are computed.
    pub(crate) order: Vec<usize>,
    /// By peer: which stream copies to it, or from it.
    lanes: Vec<usize>,
}

impl Scattering {
    pub(crate) fn of_ranks(
        pattern: &Pattern,
        world_size: usize,
        ranks: Range<usize>,
    ) -> Result<PerRank<Self>> {
        let schedule = schedule(Collective::Scatter, pattern, world_size)?;
        Ok(PerRank::new(ranks, |rank| {
            let mut turns = vec![Turn::default(); world_size.saturating_sub(1)];
            let mut lanes = vec![0; world_size];
            for sent in schedule.sends(rank) {
                turns[sent.step].to = Some(sent.destination);
                lanes[sent.destination] = sent.lane;
            }
            for arrival in schedule.arrivals(rank).iter().map(|&index| &schedule.transfers()[index]) {
                turns[arrival.step].from.push(arrival.source);
            }
            Self { turns, order: schedule.shard_order(rank), lanes }
        }))
    }

    /// The turn in which the rank sends what `owner` sums.
    pub(crate) fn turn_of(&self, owner: usize) -> Option<usize> {
        self.turns.iter().position(|turn| turn.to == Some(owner))
    }

    /// The stream of what the rank copies to a peer, or from it.
    pub(crate) fn lane(&self, peer: usize) -> usize {
        self.lanes.get(peer).copied().unwrap_or(0)
    }

    /// How many streams copy between ranks in reach.
    pub(crate) fn lanes(&self, in_reach: impl Iterator<Item = usize>) -> usize {
        in_reach.map(|peer| self.lane(peer) + 1).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moves::tests::patterns;

    #[test]
    fn in_a_mesh_each_rank_is_sent_to_by_one() {
        for world_size in 1..9 {
            let mesh = Pattern::full_mesh(world_size);
            let scattered = Scattering::of_ranks(&mesh, world_size, 0..world_size).unwrap();
            for (rank, part) in scattered.pairs() {
                for (turn, step) in part.turns.iter().zip(1..) {
                    assert_eq!(turn.to, Some((rank + step) % world_size));
                    assert_eq!(turn.from, [(rank + world_size - step) % world_size]);
                }
            }
        }
    }

    /// Each rank sends to every other in one turn, in which that one expects it.
    #[test]
    fn turns_of_a_scatter_meet() {
        for (world_size, pattern) in
            (1..9).flat_map(|w| patterns(w).into_iter().map(move |pattern| (w, pattern)))
        {
            let parts = Scattering::of_ranks(&pattern, world_size, 0..world_size).unwrap();
            for (rank, part) in parts.pairs() {
                let to: Vec<_> = part.turns.iter().filter_map(|turn| turn.to).collect();
                assert_eq!(to, part.order[..world_size - 1]);
                for owner in to {
                    let turn = part.turn_of(owner).unwrap();
                    assert!(parts[owner].turns[turn].from.contains(&rank));
                    assert_eq!(part.lane(owner), parts[owner].lane(rank));
                }
            }
        }
    }
}
