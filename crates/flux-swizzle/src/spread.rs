//! The transfers of an AllGather.

use crate::{Pattern, Transfer};
use alloc::{vec, vec::Vec};

/// A chunk of a shard.
type Item = (usize, usize);

/// Transfers as they are made: each source's in order, not yet with steps.
struct Plan {
    transfers: Vec<Transfer>,
    /// The last transfer of each rank over each of its links: one for all levels of a ring, one for each level of nesting.
    last: Vec<Vec<Option<usize>>>,
    /// The transfer of each rank with which the crossings between the groups of its ring are over.
    crossed: Vec<Option<usize>>,
    /// The round of which transfers are made.
    phase: usize,
}

/// An AllGather of `chunks(shard)` chunks of each shard.
pub(crate) fn spread(pattern: &Pattern, world_size: usize, chunks: &dyn Fn(usize) -> usize) -> Vec<Transfer> {
    let mut plan = Plan {
        transfers: Vec::new(),
        last: vec![vec![None; pattern.levels()]; world_size],
        crossed: vec![None; world_size],
        phase: 0,
    };
    let own = |rank: usize| (0..chunks(rank)).map(|chunk| (rank, chunk)).collect();
    let holdings: Vec<Vec<Item>> = pattern.ranks().into_iter().map(own).collect();
    plan.exchange(pattern, &holdings);
    plan.with_steps(world_size)
}

impl Plan {
    /// Brings what each rank holds, by its position, to all others.
    fn exchange(&mut self, pattern: &Pattern, holdings: &[Vec<Item>]) {
        match pattern {
            Pattern::Mesh(ranks) => self.mesh(ranks, holdings),
            Pattern::Ring(groups) => self.ring(groups, holdings),
            Pattern::Nested(parts) => self.nested(parts, holdings),
        }
    }

    fn mesh(&mut self, ranks: &[usize], holdings: &[Vec<Item>]) {
        let count = ranks.len();
        let most = holdings.iter().map(Vec::len).max().unwrap_or(0);
        for distance in 1..count {
            for (position, items) in holdings.iter().enumerate() {
                let to = ranks[(position + count - distance) % count];
                for (index, &item) in items.iter().enumerate() {
                    // So that ranks with fewer chunks keep step with the others.
                    self.send(ranks[position], to, item, (0, 0), (distance - 1) * most + index);
                }
            }
        }
    }

    fn ring(&mut self, groups: &[Vec<usize>], holdings: &[Vec<Item>]) {
        let ranks = groups.concat();
        let count = ranks.len();
        let mut made: Vec<Vec<usize>> = vec![Vec::new(); count];
        let (mut first, mut crossings) = (0, 0);
        for (index, group) in groups.iter().enumerate() {
            let (end, before) = (first + group.len(), &groups[(index + groups.len() - 1) % groups.len()]);
            for position in first..end {
                let neighbour = (position + count - 1) % count;
                let is_first = position == first;
                // Whose chunks go to the neighbour, from this position on: all but the neighbour's own; over a boundary, those
                // that are not from beyond it.
                let onwards = if is_first { count - before.len() } else { count - 1 };
                for from in (position..position + onwards).map(|from| from % count) {
                    for &item in &holdings[from] {
                        let sent =
                            self.send(ranks[position], ranks[neighbour], item, (0, usize::from(is_first)), 0);
                        made[position].push(sent);
                    }
                }
                if !is_first {
                    continue;
                }
                crossings = crossings.max(made[position].len());
                // Those of the group then go round within it, to its last rank, which has its own.
                for items in &holdings[first..end - 1] {
                    for &item in items {
                        made[position].push(self.send(ranks[position], ranks[end - 1], item, (0, 0), 0));
                    }
                }
            }
            first = end;
        }
        for (&rank, made) in ranks.iter().zip(&made) {
            self.crossed[rank] = crossings.checked_sub(1).and_then(|last| made.get(last)).copied();
        }
    }

    fn nested(&mut self, parts: &[Pattern], holdings: &[Vec<Item>]) {
        let level = parts.iter().map(Pattern::levels).max().unwrap_or(0);
        let ranks: Vec<Vec<usize>> = parts.iter().map(Pattern::ranks).collect();
        let begins: Vec<usize> = ranks
            .iter()
            .scan(0, |next, ranks| {
                let begin = *next;
                *next += ranks.len();
                Some(begin)
            })
            .collect();
        let held = |part: usize, index: usize| &holdings[begins[part] + index];
        let (begin, inner) = (self.phase, parts.iter().map(Pattern::phases).max().unwrap_or(1));
        for phase in 0..parts.len() {
            self.phase = begin + phase * inner;
            if phase > 0 {
                for from in 0..parts.len() {
                    let to = (from + parts.len() - phase) % parts.len();
                    for (index, &rank) in ranks[from].iter().enumerate() {
                        let entry = ranks[to][index % ranks[to].len()];
                        for &item in held(from, index) {
                            let sent = self.send(rank, entry, item, (level, level), 0);
                            // What crosses within the part goes before all of these: both use the rank's own link.
                            let after = &mut self.transfers[sent].after;
                            *after = after.or(self.crossed[rank]);
                        }
                    }
                }
            }
            for (to, part) in parts.iter().enumerate() {
                let from = (to + phase) % parts.len();
                let size = ranks[to].len();
                let mut entered: Vec<Vec<Item>> = vec![Vec::new(); size];
                for index in 0..ranks[from].len() {
                    entered[index % size].extend_from_slice(held(from, index));
                }
                self.phase = begin + phase * inner;
                self.exchange(part, &entered);
            }
        }
    }

    /// Over the source's link `lane`, one by one; not before `step`.
    fn send(
        &mut self,
        source: usize,
        destination: usize,
        item: Item,
        (lane, level): (usize, usize),
        step: usize,
    ) -> usize {
        let index = self.transfers.len();
        let after = self.last[source][lane].replace(index);
        let ((shard, chunk), arrivals) = (item, usize::from(item.0 != source));
        self.transfers.push(Transfer {
            step,
            source,
            destination,
            shard,
            chunk,
            arrivals,
            after,
            level,
            lane,
            phase: self.phase,
        });
        index
    }

    /// The transfers, each in the first step after all that it waits for, but not before the step that it has.
    fn with_steps(mut self, world_size: usize) -> Vec<Transfer> {
        let most = self.transfers.iter().map(|transfer| transfer.chunk + 1).max().unwrap_or(0);
        let key = |rank: usize, shard: usize, chunk: usize| (rank * world_size + shard) * most + chunk;
        let mut brought: Vec<Option<usize>> = vec![None; world_size * world_size * most];
        for (index, transfer) in self.transfers.iter().enumerate() {
            brought[key(transfer.destination, transfer.shard, transfer.chunk)] = Some(index);
        }
        let mut done = vec![false; self.transfers.len()];
        let mut stack = Vec::new();
        for begin in 0..self.transfers.len() {
            stack.push(begin);
            while let Some(&index) = stack.last() {
                if done[index] {
                    stack.pop();
                    continue;
                }
                let transfer = self.transfers[index];
                let bringer = brought[key(transfer.source, transfer.shard, transfer.chunk)];
                let first = [transfer.after, bringer.filter(|_| transfer.arrivals > 0)];
                let missing = first.iter().flatten().find(|&&first| !done[first]);
                if let Some(&missing) = missing {
                    stack.push(missing);
                    continue;
                }
                let earliest = first.iter().flatten().map(|&first| self.transfers[first].step + 1).max();
                self.transfers[index].step = transfer.step.max(earliest.unwrap_or(0));
                done[index] = true;
                stack.pop();
            }
        }
        self.transfers
    }
}
