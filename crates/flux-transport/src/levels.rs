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
use flux_swizzle::{Chunks, Shards, SlotLayout, SlotPlace};
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
    layout(reach).map(drop)
}

fn layout(reach: &Reach) -> Result<SlotLayout> {
    let nodes = reach.nodes();
    let addressed = nodes.iter().all(|node| reach.of_rank(node.start) == *node);
    let reason = match reach.ranks_per_node() {
        _ if nodes.len() < 2 => "there is one node",
        None => "nodes have different numbers of ranks",
        Some(0 | 1) => "nodes have one rank each",
        Some(_) if !addressed => "ranks of a node do not address each other's memory",
        Some(per_node) => return Ok(SlotLayout::two_levels(nodes.len(), per_node)),
    };
    Err(Error::NotTwoLevels { reason })
}

/// Which slots a rank has, and who writes to which: in two levels if so wanted.
pub(crate) fn slot_layout(reach: &Reach, two_levels: bool) -> Result<SlotLayout> {
    if two_levels { layout(reach) } else { Ok(SlotLayout::one_level(reach.world_size())) }
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
        layout: SlotLayout,
        members: &Members,
        (signals, arrived): (&SymmetricSignals, PeerWords),
        (blocks, op): (usize, u32),
    ) -> Result<Self> {
        let waits = PerRank::try_new(members.local_ranks(), |rank| {
            let log = &members.faults[rank];
            let others = (0..layout.nodes()).filter(|&node| node != layout.node(rank));
            let parts = |node: usize| {
                let first = layout.delegated(rank, node);
                let of_node = |word: &dyn Fn(usize) -> usize| {
                    let wait = |local: usize| {
                        let word = word(first + local);
                        let source = layout.node(rank) * layout.ranks_per_node() + local;
                        (signals.word(rank, word), stream_site(source, word))
                    };
                    (0..layout.ranks_per_node()).map(wait).collect::<Vec<_>>()
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
            move |other: usize| (layout.node(other) + layout.nodes() - layout.node(rank)) % layout.nodes();
        let last = move |round: usize| {
            order.iter().rfind(|&&other| (1..=round + 1).contains(&ahead(other))).copied()
        };
        (0..layout.rounds()).filter(move |&round| last(round) == Some(owner))
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
        (0..self.layout.rounds())
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
                        sources: layout.ranks_per_node(),
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
                        let words = self.signals_of(from, SlotPlace { rank, slot: received });
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
            return cut(rows, self.world_size, &self.spec.chunk_rows, false);
        }
        let block_rows = self.spec.block_rows.max(1);
        let chunk_rows = self.spec.chunk_rows.of(rows).clamp(1, self.slot_rows().max(1)).div_ceil(block_rows);
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

    #[test]
    fn only_equal_nodes_of_several_ranks_have_two_levels() {
        let reach = Reach::split(6, 3);
        assert_eq!(slot_layout(&reach, true).unwrap(), SlotLayout::two_levels(3, 2));
        assert_eq!(slot_layout(&reach, false).unwrap(), SlotLayout::one_level(6));
        for (reach, expected) in [
            (Reach::one_node(4), "one node"),
            (Reach::split(5, 2), "different numbers"),
            (Reach::split(3, 3), "one rank each"),
            (reach.without_addresses(), "do not address"),
        ] {
            let error = check_two_levels(&reach).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
