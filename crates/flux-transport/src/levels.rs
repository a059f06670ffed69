//! A ReduceScatter in two levels: what the ranks of a node have for an owner on another node is summed before it leaves.
//!
//! Between N nodes of L ranks each, the ranks of a node write their tiles for an owner elsewhere to its *delegate*: the rank of their
//! own node that has its place there. The delegate sums its L slots for that owner in fp32, in rank order, rounds once, and sends the
//! one sum. So N − 1 shards leave each rank for other nodes, and not (N − 1) · L. The owner adds up in the order of nodes: what the
//! delegates before its own node sent, then the slots of its own node's ranks, one by one in rank order, then what the delegates behind it
//! sent; in fp32, and rounds once. That does not depend on what comes first, so the bits are the same call after call, and in every
//! way of going about it. They are not those of one level, where all ranks' slots come one by one: for each other node there is one
//! rounding more.
//!
//! # Memory
//!
//! A rank has L + N − 1 slots for its own rows, L for each of the N − 1 owners whose delegate it is, and room for what it sends to
//! each of these: W + 2 (N − 1) slots, where one level takes W.
//!
//! # Why no rank waits for ever
//!
//! What `exchange.rs` argues holds, for what a step sends is there in time. Within a node, tiles and rows move as they do in one level,
//! and wait for nothing but the acknowledgements of the call before. A delegate's exchange stream first waits, as a stream, for the
//! signals of what it sums, all of which are submitted before that wait by whoever raises them (where a rank moves rows shard by shard:
//! before its own wait of the same round). So the kernel that sums finds all signals up and waits for nothing: it needs an SM, but for
//! a time that depends on nobody. Where ranks exchange on GPUs, GEMMs leave SMs free, those of NCCL's kernels, which come
//! one after the other with this one on one stream; its blocks take what is free, in waves if need be. On the host the stream's own
//! thread sums, for those of the GEMM may all be waiting for the peers' sums.
//!
//! A delegate's slots are written again when it has acknowledged the call, as all slots are: in two levels it does so when its steps
//! have ended, its own sums among what they follow. What it sends from is overwritten behind the step that sent it, on the same
//! stream. Whoever waits has a budget, here as everywhere.

use crate::link::{PeerWords, stream_site};
use crate::scatter::{Scatter, cut};
use crate::trace::Moved;
use crate::{Error, Members, Message, Result};
use flux_memory::{Address, PerRank, Reach, Stream, SymmetricSignals, WaitPoint};
use flux_swizzle::{Chunks, Shards};
use std::fmt::Debug;
use std::sync::Arc;

/// Slots that a rank sums for an owner on another node.
#[derive(Clone, Copy, Debug)]
pub struct NodeSum {
    /// The rank that sums.
    pub rank: usize,
    /// How many slots.
    pub sources: usize,
    /// The first row of the first slot.
    pub slots: Address,
    /// Rows from one slot to the next.
    pub slot_rows: usize,
    /// Rows to sum.
    pub rows: usize,
    /// Where the sum goes; its rows have the pitch of a slot's.
    pub out: Address,
    /// `u32[]`: the signal of (source, row) is number `source · source_stride + row / signal_rows`. They are all up.
    pub signals: Address,
    /// See `signals`.
    pub source_stride: usize,
    /// See `signals`; at least 1.
    pub signal_rows: usize,
    /// What the signals have reached.
    pub epoch: u32,
}

/// Sums slots: what a ReduceScatter in two levels needs of whoever knows their elements.
pub trait SumSlots: Debug + Send + Sync {
    /// Enqueues on `stream`: the sum of the slots in their order, in fp32, rounded once. It must be able to run beside GEMMs that wait for
    /// what is made of it.
    ///
    /// # Safety
    /// All that `sum` names is live, and free of conflicting accesses, until the stream has done this.
    unsafe fn sum(&self, stream: &Stream, sum: &NodeSum) -> Result<()>;
}

/// Whether a ReduceScatter can be in two levels between the nodes of `reach`; an error says what is missing.
pub fn check_two_levels(reach: &Reach) -> Result<()> {
    Layout::two_levels(reach).map(drop)
}

/// Which slots a rank has, and who writes to which: of nodes with as many ranks each. One level is that of a single node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) nodes: usize,
    pub(crate) per_node: usize,
}

/// A slot, by its number, of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) slot: usize,
}

impl Layout {
    pub(crate) fn one_level(world_size: usize) -> Self {
        Self { nodes: 1, per_node: world_size.max(1) }
    }

    /// Of the nodes of `reach`, if they can have two levels.
    pub(crate) fn two_levels(reach: &Reach) -> Result<Self> {
        let nodes = reach.nodes();
        let addressed = nodes.iter().all(|node| reach.of_rank(node.start) == *node);
        match reach.ranks_per_node() {
            _ if nodes.len() < 2 => Err(Error::NotTwoLevels { reason: "there is one node" }),
            None => Err(Error::NotTwoLevels { reason: "nodes have different numbers of ranks" }),
            Some(0 | 1) => Err(Error::NotTwoLevels { reason: "nodes have one rank each" }),
            Some(_) if !addressed => {
                Err(Error::NotTwoLevels { reason: "ranks of a node do not address each other's memory" })
            }
            Some(per_node) => Ok(Self { nodes: nodes.len(), per_node }),
        }
    }

    pub(crate) const fn has_two_levels(self) -> bool {
        self.nodes > 1
    }

    pub(crate) const fn node(self, rank: usize) -> usize {
        rank / self.per_node
    }

    /// The rank of `node` that has `rank`'s place there: its owner's delegate, or the owner.
    pub(crate) const fn partner(self, rank: usize, node: usize) -> usize {
        node * self.per_node + rank % self.per_node
    }

    /// The slots that a rank sums into its own rows, the first ones, in the order in which they are added.
    pub(crate) const fn sources(self) -> usize {
        self.per_node + self.nodes - 1
    }

    /// All slots that have signals.
    pub(crate) const fn slots(self) -> usize {
        self.sources() + (self.nodes - 1) * self.per_node
    }

    /// All slots, those among them that sums are sent from.
    pub(crate) const fn all_slots(self) -> usize {
        self.slots() + self.nodes - 1
    }

    /// Among the slots of `owner`'s own rows, where those of `rank` go, of its own node, or what is sum of `rank`'s node.
    pub(crate) const fn source(self, owner: usize, rank: usize) -> usize {
        let (own, node) = (self.node(owner), self.node(rank));
        if node < own {
            node
        } else if node == own {
            node + rank % self.per_node
        } else {
            node + self.per_node - 1
        }
    }

    /// The rank from which a slot of `owner`'s own rows comes: `source` backwards.
    pub(crate) fn rank_of_source(self, owner: usize, slot: usize) -> usize {
        let own = self.node(owner);
        match slot {
            _ if slot < own => self.partner(owner, slot),
            _ if slot < own + self.per_node => own * self.per_node + slot - own,
            _ => self.partner(owner, slot + 1 - self.per_node),
        }
    }

    /// Among all nodes but `rank`'s, the place of `node`.
    const fn other(self, rank: usize, node: usize) -> usize {
        if node < self.node(rank) { node } else { node - 1 }
    }

    /// The first of the slots of `delegate` for its owner on `node`: one for each rank of its own node.
    const fn delegated(self, delegate: usize, node: usize) -> usize {
        self.sources() + self.other(delegate, node) * self.per_node
    }

    /// The slot of `delegate` that its sum for its owner on `node` is sent from.
    const fn sent(self, delegate: usize, node: usize) -> usize {
        self.slots() + self.other(delegate, node)
    }

    /// Where `source`'s rows for `owner` go.
    pub(crate) const fn place(self, owner: usize, source: usize) -> Place {
        let rank = self.partner(owner, self.node(source));
        if rank == owner {
            return Place { rank, slot: self.source(owner, source) };
        }
        Place { rank, slot: self.delegated(rank, self.node(owner)) + source % self.per_node }
    }

    /// The owners whose rows go to `rank` in its own node: those whose delegate it is, as rounds have them, and itself.
    pub(crate) fn owners(self, rank: usize) -> impl Iterator<Item = usize> + Clone {
        (1..=self.nodes).map(move |ahead| self.partner(rank, (self.node(rank) + ahead) % self.nodes))
    }

    /// Of a round, from 0: whom `rank` sends a sum to, and who sends it one.
    const fn round(self, rank: usize, round: usize) -> (usize, usize) {
        let (own, ahead) = (self.node(rank), round + 1);
        let to = self.partner(rank, (own + ahead) % self.nodes);
        (to, self.partner(rank, (own + self.nodes - ahead) % self.nodes))
    }
}

/// What summing in nodes takes, of the ranks of this process.
#[derive(Debug)]
pub(crate) struct Levels {
    sum: Arc<dyn SumSlots>,
    /// Of each rank and other node: what a delegate waits for.
    waits: PerRank<Vec<Parts>>,
}

#[derive(Debug)]
struct Parts {
    /// Of each block of rows: all of the node have written it.
    blocks: Vec<Arc<WaitPoint>>,
    /// All of the node's rows have come.
    arrived: Vec<Arc<WaitPoint>>,
}

impl Levels {
    pub(crate) fn new(
        sum: Arc<dyn SumSlots>,
        layout: Layout,
        members: &Members,
        (signals, arrived): (&SymmetricSignals, PeerWords),
        (blocks, op): (usize, u32),
    ) -> Result<Self> {
        let waits = PerRank::try_new(members.local_ranks(), |rank| {
            let log = &members.faults[rank];
            let others = (0..layout.nodes).filter(|&node| node != layout.node(rank));
            let parts = |node: usize| {
                let first = layout.delegated(rank, node);
                let of_node = |word: &dyn Fn(usize) -> usize| {
                    let wait = |local: usize| {
                        let word = word(first + local);
                        let source = layout.node(rank) * layout.per_node + local;
                        (signals.word(rank, word), stream_site(source, word))
                    };
                    (0..layout.per_node).map(wait).collect::<Vec<_>>()
                };
                let of_block = |block: usize| of_node(&|slot| slot * blocks + block);
                Ok::<_, Error>(Parts {
                    blocks: log.wait_points(op, (0..blocks).map(of_block).collect())?,
                    arrived: log.wait_points(op, vec![of_node(&|slot| arrived.first + slot)])?,
                })
            };
            others.map(parts).collect::<Result<Vec<_>>>()
        })?;
        Ok(Self { sum, waits })
    }
}

impl Scatter {
    /// How many slots a rank sums into its own rows: the first of its slots, in their order.
    pub const fn sources(&self) -> usize {
        self.layout.sources()
    }

    /// Which of these is that of `rank`'s own rows.
    pub const fn own_source(&self, rank: usize) -> usize {
        self.layout.source(rank, rank)
    }

    /// The ranks from which what is in these slots of `rank` comes.
    pub fn source_ranks(&self, rank: usize) -> impl Iterator<Item = usize> {
        let layout = self.layout;
        (0..layout.sources()).map(move |slot| layout.rank_of_source(rank, slot))
    }

    /// Whether what comes from another node has been summed there.
    pub const fn has_two_levels(&self) -> bool {
        self.layout.has_two_levels()
    }

    /// The rank to which `rank` writes, or moves, what `owner` sums: the owner itself, or its delegate in `rank`'s node.
    pub const fn first_hop(&self, rank: usize, owner: usize) -> usize {
        self.layout.place(owner, rank).rank
    }

    /// Whether `owner` is the last, in the order of `rank`, of those whose rows go to the same rank first.
    pub(crate) fn is_last_of_hop(&self, rank: usize, owner: usize) -> bool {
        let hop = self.first_hop(rank, owner);
        self.order(rank).iter().rfind(|&&other| self.first_hop(rank, other) == hop) == Some(&owner)
    }

    /// The rounds that can begin when `rank` has submitted what it has for `owner`, but not before: each when all owners on its node, and
    /// on those of the rounds before, have been served.
    pub(crate) fn rounds_after(&self, rank: usize, owner: usize) -> impl Iterator<Item = usize> {
        let (layout, order) = (self.layout, self.order(rank));
        let ahead =
            move |other: usize| (layout.node(other) + layout.nodes - layout.node(rank)) % layout.nodes;
        let last = move |round: usize| {
            order.iter().rfind(|&&other| (1..=round + 1).contains(&ahead(other))).copied()
        };
        (0..layout.nodes - 1).filter(move |&round| last(round) == Some(owner))
    }

    /// All rounds, in order.
    ///
    /// # Safety
    /// As for [`Scatter::begin`]; what this rank moves within its node is submitted.
    pub(crate) unsafe fn exchange_all_sums(
        &self,
        rank: usize,
        epoch: u32,
        rows: usize,
        by_block: bool,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        (0..self.layout.nodes - 1)
            .try_for_each(|round| unsafe { self.exchange_sums(rank, round, epoch, rows, by_block) })
    }

    /// One round: `rank` sums what its node has for an owner on another one, and sends it, chunk by chunk, while it receives the same of
    /// its own rows. What it sums comes by blocks of rows from GEMMs, or a shard at a time.
    ///
    /// # Safety
    /// As for [`Scatter::exchange_all_sums`].
    pub(crate) unsafe fn exchange_sums(
        &self,
        rank: usize,
        round: usize,
        epoch: u32,
        rows: usize,
        by_block: bool,
    ) -> Result<()> {
        let state = &self.ranks[rank];
        let (Some(levels), Some(exchange)) = (&self.levels, &state.link.exchange) else { return Ok(()) };
        let (layout, row_bytes) = (self.layout, self.spec.row_bytes);
        let (to, from) = layout.round(rank, round);
        let chunks = self.summed_chunks(rows, by_block)?;
        let parts = &levels.waits[rank][layout.other(rank, layout.node(to))];
        let first_slot = layout.delegated(rank, layout.node(to));
        let signals = match by_block {
            true => self.signals.word(rank, first_slot * self.blocks()),
            false => self.arrived.word(&self.signals, rank, first_slot),
        };
        let (sent, received) = (layout.sent(rank, layout.node(to)), layout.source(rank, from));
        let blocks_of = |rows: &std::ops::Range<usize>| match self.spec.block_rows {
            0 => 0..0,
            block_rows => rows.start / block_rows..rows.end.div_ceil(block_rows),
        };
        for index in 0..chunks.count(to).max(chunks.count(rank)) {
            let mut step = exchange.next();
            // SAFETY: all memory belongs to this op, which settles its streams before it frees it. Acknowledgements keep the node's
            // writes apart; what was sent from there before has been sent, on the same stream.
            unsafe {
                let rows = within(&chunks, to, index);
                if !rows.is_empty() {
                    let offset = rows.start * row_bytes;
                    let blocks = blocks_of(&rows);
                    let (signals, source_stride, signal_rows) = match by_block {
                        true => {
                            let signals = signals.add(blocks.start * size_of::<u32>());
                            (signals, self.blocks(), self.spec.block_rows)
                        }
                        false => (signals, 1, self.slot_rows().max(1)),
                    };
                    let waits = if by_block { &parts.blocks[blocks] } else { &parts.arrived[..] };
                    waits.iter().try_for_each(|wait| exchange.stream.wait_values(wait, epoch))?;
                    let memory = self.slot(rank, sent).add(offset);
                    let sum = NodeSum {
                        rank,
                        sources: layout.per_node,
                        slots: self.slot(rank, first_slot).add(offset),
                        slot_rows: self.slot_rows(),
                        rows: rows.len(),
                        out: memory,
                        signals,
                        source_stride,
                        signal_rows,
                        epoch,
                    };
                    levels.sum.sum(&exchange.stream, &sum)?;
                    let place = self.slot(rank, layout.source(to, rank)).add(offset);
                    step.sends.push(Message { peer: to, memory, place, bytes: rows.len() * row_bytes });
                }
                let rows = within(&chunks, rank, index);
                if !rows.is_empty() {
                    let memory = self.slot(rank, received).add(rows.start * row_bytes);
                    let bytes = rows.len() * row_bytes;
                    step.receives.push(Message { peer: from, memory, place: memory, bytes });
                    let lane = Moved::EXCHANGED;
                    step.moved.push(Moved { from, to: rank, shard: rank, lane, bytes, signal: None });
                    if by_block {
                        let words = self.signals_of(from, Place { rank, slot: received });
                        step.raised.extend(blocks_of(&rows).map(|block| words.add(block * size_of::<u32>())));
                    }
                }
                exchange.take(&step, state.link.log.as_ref(), epoch)?;
            }
        }
        if !by_block && !self.is_lost(from, rank) {
            let own = std::iter::once(rank);
            // SAFETY: as above.
            unsafe { self.arrived.raise(&self.signals, &exchange.stream, received, own, epoch)? };
        }
        Ok(())
    }

    /// The chunks in which sums travel: of whole blocks, where blocks have signals.
    fn summed_chunks(&self, rows: usize, by_block: bool) -> Result<Chunks> {
        if rows > self.spec.max_rows {
            return Err(Error::TooManyRows { rows, max_rows: self.spec.max_rows });
        }
        if !by_block {
            return cut(rows, self.world_size, self.spec.chunk_rows, false);
        }
        let block_rows = self.spec.block_rows.max(1);
        let chunk_rows = self.spec.chunk_rows.clamp(1, self.slot_rows().max(1)).div_ceil(block_rows);
        Ok(Chunks::new(Shards::new(rows, self.world_size)?, chunk_rows.saturating_mul(block_rows))?)
    }
}

/// The rows of a chunk, counted from its shard's first.
fn within(chunks: &Chunks, shard: usize, index: usize) -> std::ops::Range<usize> {
    let (first, rows) = (chunks.shards().range(shard).start, chunks.rows(shard, index));
    rows.start - first..rows.end - first
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const LAYOUTS: [Layout; 6] = [
        Layout { nodes: 1, per_node: 4 },
        Layout { nodes: 2, per_node: 2 },
        Layout { nodes: 2, per_node: 3 },
        Layout { nodes: 3, per_node: 2 },
        Layout { nodes: 2, per_node: 4 },
        Layout { nodes: 4, per_node: 3 },
    ];

    #[test]
    fn each_part_has_a_slot_of_its_own_in_its_node() {
        for layout in LAYOUTS {
            let ranks = 0..layout.nodes * layout.per_node;
            let mut seen = BTreeSet::new();
            for (owner, source) in
                ranks.clone().flat_map(|owner| ranks.clone().map(move |rank| (owner, rank)))
            {
                let Place { rank, slot } = layout.place(owner, source);
                assert_eq!(layout.node(rank), layout.node(source));
                assert!(layout.owners(rank).any(|of| of == owner));
                assert!(slot < layout.slots() && seen.insert((rank, slot)));
                assert_eq!(rank == owner, slot < layout.sources());
            }
            // What else there is, sums come to.
            for (owner, node) in ranks.flat_map(|rank| (0..layout.nodes).map(move |node| (rank, node))) {
                if node != layout.node(owner) {
                    let slot = layout.source(owner, layout.partner(owner, node));
                    assert!(slot < layout.sources() && seen.insert((owner, slot)));
                }
            }
            assert_eq!(seen.len(), layout.nodes * layout.per_node * layout.slots());
        }
    }

    #[test]
    fn sources_are_in_the_order_of_ranks() {
        for layout in LAYOUTS {
            for owner in 0..layout.nodes * layout.per_node {
                let ranks: Vec<_> =
                    (0..layout.sources()).map(|slot| layout.rank_of_source(owner, slot)).collect();
                assert!(ranks.is_sorted() && ranks.contains(&owner), "{layout:?} {owner}: {ranks:?}");
                for (slot, &rank) in ranks.iter().enumerate() {
                    assert_eq!(layout.source(owner, rank), slot);
                }
            }
        }
        assert_eq!(Layout::one_level(4), LAYOUTS[0]);
        assert_eq!((Layout::one_level(4).all_slots(), LAYOUTS[3].all_slots()), (4, 6 + 2 * 2));
    }

    #[test]
    fn rounds_meet() {
        for layout in LAYOUTS {
            for rank in 0..layout.nodes * layout.per_node {
                let met = (0..layout.nodes - 1)
                    .map(|round| {
                        let (to, from) = layout.round(rank, round);
                        assert_eq!((layout.round(to, round).1, layout.round(from, round).0), (rank, rank));
                        to
                    })
                    .chain([rank]);
                assert!(met.eq(layout.owners(rank)));
            }
        }
    }

    #[test]
    fn only_equal_nodes_of_several_ranks_have_two_levels() {
        let reach = Reach::split(6, 3);
        assert_eq!(Layout::two_levels(&reach).unwrap(), Layout { nodes: 3, per_node: 2 });
        for (reach, expected) in [
            (Reach::one_node(4), "one node"),
            (Reach::split(5, 2), "different numbers"),
            (Reach::split(3, 3), "one rank each"),
            (reach.without_addresses(), "do not address"),
        ] {
            let error = Layout::two_levels(&reach).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
