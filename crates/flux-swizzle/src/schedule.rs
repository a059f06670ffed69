//! Who sends which chunk to whom, when, and what for it waits.

use crate::{Error, Pattern, spread::spread};
use alloc::{vec, vec::Vec};

/// What is exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Each rank's shard comes to all ranks.
    AllGather,
    /// All ranks' partial sums of a shard come to the rank that owns it, summed on the way where ways join.
    ReduceScatter,
    /// All ranks' partial sums of a shard come to the rank that owns it, each by itself: it alone sums. They leave in the order in
    /// which a ReduceScatter's do.
    Scatter,
}

/// One chunk on its way from one rank to another.
///
/// It begins when [`after`](Self::after) is done, when as many transfers of the same chunk have come to the source as
/// [`arrivals`](Self::arrivals) says, and, unless it is an AllGather's, when the source has computed its own part of the chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Counts what lies one behind the other: all that this waits for is in earlier steps.
    pub step: usize,
    /// The rank that sends.
    pub source: usize,
    /// The rank that it is sent to.
    pub destination: usize,
    /// The shard, that is the rank whose rows travel.
    pub shard: usize,
    /// The chunk of the shard.
    pub chunk: usize,
    /// How many transfers of this chunk the source waits for. In an AllGather that is one, unless it is the source's own. In a
    /// ReduceScatter the source adds what they bring to its own part, and sends the sum.
    pub arrivals: usize,
    /// The transfer by the same source, as an index of [`Schedule::transfers`], that is to be done first: what goes over the
    /// same link goes one by one.
    pub after: Option<usize>,
    /// 0 within the innermost group of ranks, 1 between such groups, and so on.
    pub level: usize,
    /// Which of the source's links it goes over: those of one lane go one by one, in the order of their steps.
    pub lane: usize,
    /// Counts rounds: in an AllGather, what comes from another machine or island is in a later one than what is from this. It may
    /// begin as early, but is slower.
    pub phase: usize,
}

/// The most transfers that a schedule may have: of about 5,800 ranks with a chunk each.
const MOST_TRANSFERS: usize = 1 << 25;

/// All transfers of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    collective: Collective,
    /// Sorted by source and step.
    transfers: Vec<Transfer>,
    /// Where each rank's transfers begin.
    sends: Vec<usize>,
    /// Indices of transfers, sorted by destination and step.
    arrivals: Vec<usize>,
    /// Where each rank's arrivals begin.
    received: Vec<usize>,
}

impl Schedule {
    /// The schedule of ranks that are connected like this, where each shard is cut into so many chunks: `chunks(shard)`.
    ///
    /// A ReduceScatter is the AllGather of the ranks in opposite order, run backwards: what was spread is then summed. So what
    /// is true of one is true of the other. A Scatter takes from it the order in which each rank's parts leave, as if shards were of
    /// one chunk.
    ///
    /// In an AllGather and a Scatter the chunks of a shard take the same ways, one behind the other: each lane is the same as that of
    /// the schedule of shards of one chunk, with all of a shard's chunks in place of it.
    pub fn new(
        collective: Collective,
        pattern: &Pattern,
        chunks: impl Fn(usize) -> usize,
    ) -> Result<Self, Error> {
        let world_size = pattern.world_size()?;
        // Each chunk comes to each other rank once.
        let all_chunks = (0..world_size).fold(0, |sum: usize, shard| sum.saturating_add(chunks(shard)));
        if all_chunks.saturating_mul((world_size - 1).max(1)) > MOST_TRANSFERS {
            return Err(Error::TooManyTransfers { max: MOST_TRANSFERS });
        }
        Ok(match collective {
            Collective::Scatter => Self::joined(Collective::ReduceScatter, pattern, world_size, &|_| 1)
                .straight(pattern, &chunks),
            _ => Self::joined(collective, pattern, world_size, &chunks),
        })
    }

    /// Not of a Scatter: where ways branch, or join.
    fn joined(
        collective: Collective,
        pattern: &Pattern,
        world_size: usize,
        chunks: &dyn Fn(usize) -> usize,
    ) -> Self {
        let mirrored = collective == Collective::ReduceScatter;
        let mut transfers = spread(&pattern.tidied(mirrored), world_size, chunks);
        if mirrored {
            let last = transfers.iter().map(|transfer| transfer.step).max().unwrap_or(0);
            let last_phase = transfers.iter().map(|transfer| transfer.phase).max().unwrap_or(0);
            for transfer in &mut transfers {
                core::mem::swap(&mut transfer.source, &mut transfer.destination);
                transfer.step = last - transfer.step;
                transfer.phase = last_phase - transfer.phase;
                // Chunks leave in the order in which they are computed.
                transfer.chunk = chunks(transfer.shard).saturating_sub(transfer.chunk + 1);
            }
            relink(&mut transfers, world_size);
        }
        Self::sorted(collective, world_size, transfers)
    }

    /// What leaves in the order of this schedule, but goes straight to its shard's owner.
    fn straight(&self, pattern: &Pattern, chunks: &dyn Fn(usize) -> usize) -> Self {
        let (world_size, paths) = (self.world_size(), pattern.paths());
        let most = (0..world_size).map(chunks).max().unwrap_or(0);
        let mut transfers = Vec::new();
        for source in 0..world_size {
            let mut last: alloc::collections::BTreeMap<usize, usize> = Default::default();
            let order = self.shard_order(source).into_iter().filter(|&shard| shard != source);
            for (place, shard) in order.enumerate() {
                let (level, lane) = Pattern::between(&paths[source], &paths[shard]);
                for chunk in 0..chunks(shard) {
                    let after = last.insert(lane, transfers.len());
                    // So that ranks with fewer chunks keep step with the others.
                    let step = place * most + chunk;
                    let (destination, arrivals, phase) = (shard, 0, 0);
                    transfers.push(Transfer {
                        step,
                        source,
                        destination,
                        shard,
                        chunk,
                        arrivals,
                        after,
                        level,
                        lane,
                        phase,
                    });
                }
            }
        }
        Self::sorted(Collective::Scatter, world_size, transfers)
    }

    fn sorted(collective: Collective, world_size: usize, transfers: Vec<Transfer>) -> Self {
        let mut order: Vec<usize> = (0..transfers.len()).collect();
        order.sort_by_key(|&index| (transfers[index].source, transfers[index].step, transfers[index].level));
        let mut place = vec![0; transfers.len()];
        order.iter().enumerate().for_each(|(position, &index)| place[index] = position);
        let transfers: Vec<Transfer> = order
            .iter()
            .map(|&index| Transfer {
                after: transfers[index].after.map(|after| place[after]),
                ..transfers[index]
            })
            .collect();
        let mut arrivals: Vec<usize> = (0..transfers.len()).collect();
        arrivals.sort_by_key(|&index| (transfers[index].destination, transfers[index].step, index));
        let begins = |rank_at: &dyn Fn(usize) -> usize| {
            let mut begins = vec![transfers.len(); world_size + 1];
            for position in (0..transfers.len()).rev() {
                begins[rank_at(position)] = position;
            }
            for rank in (0..world_size).rev() {
                begins[rank] = begins[rank].min(begins[rank + 1]);
            }
            begins
        };
        let sends = begins(&|position| transfers[position].source);
        let received = begins(&|position| transfers[arrivals[position]].destination);
        Self { collective, transfers, sends, arrivals, received }
    }

    /// What is exchanged.
    pub const fn collective(&self) -> Collective {
        self.collective
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.sends.len() - 1
    }

    /// All transfers, by source and step.
    pub fn transfers(&self) -> &[Transfer] {
        &self.transfers
    }

    /// What `rank` sends, in order; nothing if there is no such rank.
    pub fn sends(&self, rank: usize) -> &[Transfer] {
        let end = self.sends.get(rank.saturating_add(1)).copied();
        end.and_then(|end| self.transfers.get(self.sends[rank]..end)).unwrap_or(&[])
    }

    /// What comes to `rank`, as indices of [`transfers`](Self::transfers) in the order in which it is expected; nothing if there is
    /// no such rank.
    pub fn arrivals(&self, rank: usize) -> &[usize] {
        let end = self.received.get(rank.saturating_add(1)).copied();
        end.and_then(|end| self.arrivals.get(self.received[rank]..end)).unwrap_or(&[])
    }

    /// The transfers whose data `transfer` sends on, or sums.
    pub fn waits_for<'a>(&'a self, transfer: &Transfer) -> impl Iterator<Item = &'a Transfer> + use<'a> {
        let (shard, chunk) = (transfer.shard, transfer.chunk);
        let arrivals = self.arrivals(transfer.source).iter().map(|&index| &self.transfers[index]);
        arrivals.filter(move |arrival| (arrival.shard, arrival.chunk) == (shard, chunk))
    }

    /// Whether the source of `transfer` sums before it sends.
    pub fn sums(&self, transfer: &Transfer) -> bool {
        self.collective == Collective::ReduceScatter && transfer.arrivals > 0
    }

    /// The order in which `rank` best computes shards: after an AllGather as they arrive, its own first; before a ReduceScatter or a
    /// Scatter as they leave, its own last. Where ways of unlike length meet, of many ranks, how finely shards are cut may decide which
    /// of two comes first: then either order will do. See [`crate::TileOrder::tiles_along`].
    pub fn shard_order(&self, rank: usize) -> Vec<usize> {
        let mut seen = vec![false; self.world_size()];
        let mut order = Vec::with_capacity(self.world_size());
        let mut visit = |shard: usize| {
            if seen.get(shard) == Some(&false) {
                seen[shard] = true;
                order.push(shard);
            }
        };
        match self.collective {
            Collective::AllGather => {
                visit(rank);
                let mut arrivals = self.arrivals(rank).to_vec();
                arrivals.sort_by_key(|&index| self.transfers[index].phase);
                arrivals.iter().for_each(|&index| visit(self.transfers[index].shard));
            }
            Collective::ReduceScatter | Collective::Scatter => {
                let mut sends: Vec<&Transfer> = self.sends(rank).iter().collect();
                sends.sort_by_key(|transfer| transfer.phase);
                sends.iter().for_each(|transfer| visit(transfer.shard));
            }
        }
        // Shards without rows do not travel; and what is scattered ends with the rank's own.
        (1..=self.world_size())
            .for_each(|offset| visit((rank % self.world_size() + offset) % self.world_size()));
        order
    }
}

/// Lets each source send one by one what goes over links of one level, by the steps that are given, and moves on what would be
/// too early then.
fn relink(transfers: &mut [Transfer], world_size: usize) {
    transfers.sort_by_key(|transfer| {
        (transfer.step, transfer.source, transfer.level, transfer.shard, transfer.chunk)
    });
    // Tables, for there may be millions of transfers.
    let most = |of: &dyn Fn(&Transfer) -> usize| {
        transfers.iter().map(|transfer| of(transfer) + 1).max().unwrap_or(0)
    };
    let (levels, chunks) = (most(&|transfer| transfer.level), most(&|transfer| transfer.chunk));
    let mut last: Vec<Option<usize>> = vec![None; world_size * levels];
    // Of each chunk at each rank: how many have come, and the last one's step.
    let mut come = vec![(0, 0); world_size * world_size * chunks];
    let at = |rank: usize, shard: usize, chunk: usize| (rank * world_size + shard) * chunks + chunk;
    for index in 0..transfers.len() {
        let Transfer { source, destination, shard, chunk, level, step, .. } = transfers[index];
        let after = last[source * levels + level].replace(index);
        let (arrivals, arrived) = come[at(source, shard, chunk)];
        let mut earliest = step;
        if let Some(after) = after {
            earliest = earliest.max(transfers[after].step + 1);
        }
        if arrivals > 0 {
            earliest = earliest.max(arrived + 1);
        }
        transfers[index] = Transfer { step: earliest, after, arrivals, lane: level, ..transfers[index] };
        let entry = &mut come[at(destination, shard, chunk)];
        *entry = (entry.0 + 1, entry.1.max(earliest));
    }
}
