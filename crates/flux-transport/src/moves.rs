//! What one rank does of a schedule, as its streams do it: copies between ranks that can address each other, steps of an exchange
//! between the others, in an order in which each waits only for what is before it.
//!
//! All of it is made when an operation is built: a call goes through it and decides nothing.

use crate::{Direction, Error, Result};
use flux_memory::{PerRank, Reach};
use flux_swizzle::{Collective, Pattern, Schedule, Transfer};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// How a shard comes to a rank that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comes {
    /// It is its own.
    Own,
    /// By a copy, which raises signals.
    Copied,
    /// By a step of an exchange.
    Exchanged,
}

/// A shard that is copied: to a peer if pushed, from a peer if pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    pub(crate) peer: usize,
    pub(crate) shard: usize,
    /// How it has come to where it is copied from.
    pub(crate) comes: Comes,
    /// The stream that copies it.
    pub(crate) lane: usize,
    /// The lane that is to have done what is before it: both share a link.
    pub(crate) after: Option<usize>,
    /// No other shard was copied to, or from, the peer before.
    pub(crate) is_first: bool,
    /// None is afterwards.
    pub(crate) is_last: bool,
    /// Pulled: who pulls it on.
    pub(crate) pulled_by: Vec<usize>,
}

/// A shard that is sent in a step of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) peer: usize,
    pub(crate) shard: usize,
    pub(crate) comes: Comes,
    /// As of [`Copied`].
    pub(crate) after: Option<usize>,
}

/// A shard that is received in a step of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) peer: usize,
    pub(crate) shard: usize,
    /// Whether the rank pushes it on.
    pub(crate) is_pushed_on: bool,
    /// Who pulls it on.
    pub(crate) pulled_by: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Copy(Copied),
    Exchange { sends: Vec<Sent>, receives: Vec<Received> },
}

/// One rank's part of an AllGather.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Each with the round in which it is enqueued, in the order of these.
    pub(crate) moves: Vec<(usize, Move)>,
    /// The shards, its own first, as they come.
    pub(crate) order: Vec<usize>,
    /// How many streams copy.
    pub(crate) lanes: usize,
    /// The ranks in reach that anything is copied to from this one, ascending.
    pub(crate) copied_to: BTreeSet<usize>,
}

/// What all ranks of this process do of an AllGather.
#[derive(Clone, Debug)]
pub(crate) struct Gathering {
    pub(crate) parts: PerRank<Part>,
    /// Where ranks share a device, each round is enqueued for all of them before the next: nothing waits for what is enqueued
    /// later. One if nobody passes anything on.
    pub(crate) rounds: usize,
    /// Some rank's copies pass on what has come to it.
    pub(crate) copies_on: bool,
}

/// By phase and step, which is the same at both ends; what waits for nothing of this call comes first.
type Key = (usize, usize);

fn key(transfer: &Transfer) -> Key {
    (transfer.phase, transfer.step + 1)
}

/// The schedule of shards of one chunk: the chunks of a shard go the same ways, one behind the other.
pub(crate) fn schedule(collective: Collective, pattern: &Pattern, world_size: usize) -> Result<Schedule> {
    let ranks = pattern.world_size()?;
    if ranks != world_size {
        return Err(Error::OtherPattern { ranks, world_size });
    }
    Ok(Schedule::new(collective, pattern, |_| 1)?)
}

impl Gathering {
    pub(crate) fn new(
        pattern: &Pattern,
        reach: &Reach,
        direction: Direction,
        ranks: Range<usize>,
    ) -> Result<Self> {
        let schedule = schedule(Collective::AllGather, pattern, reach.world_size())?;
        let passed_on = || schedule.transfers().iter().filter(|transfer| transfer.arrivals > 0);
        let copies_on = passed_on().any(|transfer| reach.has(transfer.source, transfer.destination));
        let of = |rank| moves(&schedule, reach, direction, rank);
        let mut keys: BTreeSet<Key> = BTreeSet::new();
        if passed_on().next().is_some() {
            (0..reach.world_size()).for_each(|rank| keys.extend(of(rank).into_iter().map(|(key, _)| key)));
        }
        let round_of: BTreeMap<Key, usize> = keys.into_iter().zip(0..).collect();
        let parts = PerRank::new(ranks, |rank| {
            let round = |key| round_of.get(&key).copied().unwrap_or(0);
            let moves: Vec<_> = of(rank).into_iter().map(|(key, of)| (round(key), of)).collect();
            let to = schedule.sends(rank).iter().map(|sent| sent.destination);
            let copied_to = to.filter(|&to| reach.has(rank, to)).collect();
            let mut part = Part { moves, order: schedule.shard_order(rank), lanes: 0, copied_to };
            part.lanes = part.copies().map(|(_, copied)| copied.lane + 1).max().unwrap_or(0);
            part
        });
        Ok(Self { parts, rounds: round_of.len().max(1), copies_on })
    }
}

/// What `rank` does, in order.
fn moves(schedule: &Schedule, reach: &Reach, direction: Direction, rank: usize) -> Vec<(Key, Move)> {
    let (transfers, sends) = (schedule.transfers(), schedule.sends(rank));
    let arrivals: Vec<&Transfer> = schedule.arrivals(rank).iter().map(|&index| &transfers[index]).collect();
    let in_reach = |transfer: &Transfer| reach.has(transfer.source, transfer.destination);
    let mut came = vec![Comes::Own; schedule.world_size()];
    for arrival in &arrivals {
        came[arrival.shard] = if in_reach(arrival) { Comes::Copied } else { Comes::Exchanged };
    }
    let mut copied_on = vec![Vec::new(); schedule.world_size()];
    for sent in sends.iter().filter(|sent| in_reach(sent)) {
        copied_on[sent.shard].push(sent.destination);
    }
    let pulls = direction == Direction::Pull;
    let pulled_by = |shard: usize| if pulls { copied_on[shard].clone() } else { Vec::new() };
    // What shares a link with a copy of another lane, and is to follow it.
    let after = |transfer: &Transfer| {
        let before = transfer.after.map(|after| &transfers[after]).filter(|before| in_reach(before));
        before.filter(|before| !pulls && before.lane != transfer.lane).map(|before| before.lane)
    };

    let mut all: Vec<(Key, Move)> = Vec::new();
    let copies: Vec<&Transfer> = if pulls { arrivals.clone() } else { sends.iter().collect() }
        .into_iter()
        .filter(|of| in_reach(of))
        .collect();
    let peer = |transfer: &Transfer| if pulls { transfer.source } else { transfer.destination };
    let mut waiting = BTreeSet::new();
    for copy in copies {
        let comes = match (copy.source == copy.shard, pulls) {
            (true, _) => Comes::Own,
            (false, true) => Comes::Copied, // whoever has it says so by a signal
            (false, false) => came[copy.shard],
        };
        // Behind a copy that waits, others of its lane wait too.
        if comes != Comes::Own || after(copy).is_some() {
            waiting.insert(copy.lane);
        }
        let copied = Copied {
            peer: peer(copy),
            shard: copy.shard,
            comes,
            lane: copy.lane,
            after: after(copy),
            is_first: false,
            is_last: false,
            pulled_by: pulled_by(copy.shard),
        };
        let key = if waiting.contains(&copy.lane) { key(copy) } else { Key::default() };
        all.push((key, Move::Copy(copied)));
    }
    let mut steps: BTreeMap<Key, (Vec<Sent>, Vec<Received>)> = BTreeMap::new();
    for sent in sends.iter().filter(|sent| !in_reach(sent)) {
        let &Transfer { destination: peer, shard, .. } = sent;
        let sent_now = Sent { peer, shard, comes: came[shard], after: after(sent) };
        steps.entry(key(sent)).or_default().0.push(sent_now);
    }
    for arrival in arrivals.iter().filter(|arrival| !in_reach(arrival)) {
        let &&Transfer { source: peer, shard, .. } = arrival;
        let is_pushed_on = !pulls && !copied_on[shard].is_empty();
        let received = Received { peer, shard, is_pushed_on, pulled_by: pulled_by(shard) };
        steps.entry(key(arrival)).or_default().1.push(received);
    }
    all.extend(steps.into_iter().map(|(key, (sends, receives))| (key, Move::Exchange { sends, receives })));
    // Stable: copies keep their order, and come before an exchange of the same step.
    all.sort_by_key(|&(key, _)| key);
    let is_new = |peers: &mut BTreeSet<usize>, of: &mut Move, mark: fn(&mut Copied)| {
        if let Move::Copy(copied) = of
            && peers.insert(copied.peer)
        {
            mark(copied);
        }
    };
    let [mut first, mut last] = [BTreeSet::new(), BTreeSet::new()];
    all.iter_mut().for_each(|(_, of)| is_new(&mut first, of, |copied| copied.is_first = true));
    all.iter_mut().rev().for_each(|(_, of)| is_new(&mut last, of, |copied| copied.is_last = true));
    all
}

impl Part {
    /// The moves of a round.
    pub(crate) fn of_round(&self, round: usize) -> impl Iterator<Item = &Move> {
        let begin = self.moves.partition_point(|&(of, _)| of < round);
        self.moves[begin..].iter().take_while(move |&&(of, _)| of == round).map(|(_, of)| of)
    }

    pub(crate) fn copies(&self) -> impl Iterator<Item = (usize, &Copied)> + Clone {
        self.moves.iter().filter_map(|(round, of)| match of {
            Move::Copy(copied) => Some((*round, copied)),
            Move::Exchange { .. } => None,
        })
    }

    pub(crate) fn sends(&self) -> impl Iterator<Item = &Sent> {
        self.moves.iter().flat_map(|(_, of)| match of {
            Move::Copy(_) => &[][..],
            Move::Exchange { sends, .. } => sends,
        })
    }

    pub(crate) fn receives(&self) -> impl Iterator<Item = &Received> {
        self.moves.iter().flat_map(|(_, of)| match of {
            Move::Copy(_) => &[][..],
            Move::Exchange { receives, .. } => receives,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Of every class, with uneven parts where that can be.
    pub(crate) fn patterns(world_size: usize) -> Vec<Pattern> {
        let (half, rest) = (world_size / 2, world_size - world_size / 2);
        let third = [world_size / 3, (world_size + 1) / 3, world_size.div_ceil(3)];
        vec![
            Pattern::full_mesh(world_size),
            Pattern::ring(world_size),
            Pattern::two_level(&[half, rest]),
            Pattern::islands(&[rest, half]),
            Pattern::islands(&third),
            Pattern::Nested(vec![
                Pattern::two_level(&[half / 2, half - half / 2]),
                Pattern::Ring(vec![(half..world_size).collect()]),
            ]),
        ]
    }

    fn all() -> impl Iterator<Item = (Pattern, Reach, Direction)> {
        let sizes =
            (1..9).flat_map(|world_size| (1..=world_size.min(4)).map(move |nodes| (world_size, nodes)));
        sizes.flat_map(|(world_size, nodes)| {
            let of_pattern = move |pattern: Pattern| {
                [Direction::Push, Direction::Pull]
                    .map(|direction| (pattern.clone(), Reach::split(world_size, nodes), direction))
            };
            patterns(world_size).into_iter().flat_map(of_pattern)
        })
    }

    /// Where all is enqueued round by round, rank by rank, no copy waits for what is enqueued later, and every shard comes to every
    /// rank once; what is sent in a round is received in it.
    #[test]
    fn nothing_waits_for_what_comes_later() {
        for (pattern, reach, direction) in all() {
            let world_size = reach.world_size();
            let what = format!("{pattern} on {:?}, {direction}", reach.nodes());
            let Gathering { parts, rounds, copies_on } =
                Gathering::new(&pattern, &reach, direction, 0..world_size).unwrap();
            let mut held: BTreeSet<(usize, usize)> = (0..world_size).map(|rank| (rank, rank)).collect();
            let mut passed_on = 0;
            for round in 0..rounds {
                let (mut sent, mut received) = (BTreeSet::new(), BTreeSet::new());
                for (rank, part) in parts.pairs() {
                    for of_round in part.of_round(round) {
                        match of_round {
                            Move::Copy(Copied { peer, shard, comes, .. }) => {
                                let (from, to) =
                                    if direction == Direction::Push { (rank, *peer) } else { (*peer, rank) };
                                assert!(
                                    reach.has(from, to) && held.contains(&(from, *shard)),
                                    "{what}: {of_round:?}"
                                );
                                assert_eq!(*comes == Comes::Own, from == *shard, "{what}");
                                assert!(held.insert((to, *shard)), "{what}: {of_round:?} again");
                                passed_on += usize::from(*comes != Comes::Own);
                            }
                            Move::Exchange { sends, receives } => {
                                for Sent { peer, shard, comes, .. } in sends {
                                    assert!(
                                        !reach.has(rank, *peer) && held.contains(&(rank, *shard)),
                                        "{what}"
                                    );
                                    assert_eq!(*comes == Comes::Own, rank == *shard, "{what}");
                                    assert!(sent.insert((rank, *peer, *shard)), "{what}");
                                }
                                received.extend(receives.iter().map(|of| (of.peer, rank, of.shard)));
                            }
                        }
                    }
                }
                assert_eq!(sent, received, "{what}, round {round}");
                received.into_iter().for_each(|(_, to, shard)| assert!(held.insert((to, shard)), "{what}"));
            }
            assert_eq!(held.len(), world_size * world_size, "{what}");
            assert_eq!(copies_on, passed_on > 0, "{what}");
            // An acknowledgement is waited for once, and given once.
            for part in parts.iter() {
                for mark in [|of: &Copied| of.is_first, |of: &Copied| of.is_last] {
                    let marked: Vec<_> =
                        part.copies().filter(|(_, of)| mark(of)).map(|(_, of)| of.peer).collect();
                    let peers: BTreeSet<_> = part.copies().map(|(_, of)| of.peer).collect();
                    assert!(
                        marked.len() == peers.len() && marked.into_iter().collect::<BTreeSet<_>>() == peers
                    );
                }
            }
        }
    }

    /// All to all on one node: one round, one lane, each peer once, beginning next to the rank.
    #[test]
    fn a_mesh_is_one_round_of_copies() {
        for world_size in 1..9 {
            let (mesh, reach) = (Pattern::full_mesh(world_size), Reach::one_node(world_size));
            for direction in [Direction::Push, Direction::Pull] {
                let all = Gathering::new(&mesh, &reach, direction, 0..world_size).unwrap();
                assert!(all.rounds == 1 && !all.copies_on);
                for (rank, part) in all.parts.pairs() {
                    let peers: Vec<_> = part.copies().map(|(_, of)| of.peer).collect();
                    let step = |step: usize| match direction {
                        Direction::Push => (rank + world_size - step) % world_size,
                        Direction::Pull => (rank + step) % world_size,
                    };
                    assert_eq!(peers, (1..world_size).map(step).collect::<Vec<_>>());
                    assert!(part.copies().all(|(_, of)| of.lane == 0 && of.is_first && of.is_last));
                }
            }
        }
    }
}
