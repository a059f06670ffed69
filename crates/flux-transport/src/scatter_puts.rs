//! The part of a ReduceScatter in which GEMMs put their tiles into slots at ranks out of reach by themselves ([`crate::Put`]),
//! out of memory of their own, a block of rows and its signal at a time.
//!
//! A put raises a word of 64 bits, at the owner: its stream waits for that, and raises the block's signal, so that whoever sums
//! cannot tell how the rows came. A GEMM's tile waits until the owner has acknowledged the call before, as where it writes to the
//! slot itself; the acknowledgement is such a word, too.

use crate::link::{raise_words, stream_site};
use crate::scatter::Scatter;
use crate::{Error, Members, Result, Target};
use flux_memory::{Address, PerRank, Stream, SymmetricSignals, WaitPoint};
use flux_swizzle::Shards;
use std::sync::Arc;

/// Where the words of 64 bits lie among the signals: in pairs of these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutWords {
    first: usize,
    world_size: usize,
    blocks: usize,
}

impl PutWords {
    /// Behind `signals` others.
    pub(crate) const fn behind(signals: usize, world_size: usize, blocks: usize) -> Self {
        Self { first: signals.saturating_add(signals % 2), world_size, blocks }
    }

    /// All signals, these among them.
    pub(crate) const fn end(self) -> usize {
        let words = self.blocks.saturating_add(1).saturating_mul(self.world_size);
        self.first.saturating_add(words.saturating_mul(2))
    }

    /// A rank's word that `owner` raises when it has summed the call before.
    const fn ack(self, owner: usize) -> usize {
        self.first + 2 * owner
    }

    /// A rank's word that `source` raises when a block of its rows has come.
    const fn came(self, source: usize, block: usize) -> usize {
        self.ack(self.world_size) + 2 * (source * self.blocks + block)
    }
}

/// What puts take, of the ranks of this process.
#[derive(Debug)]
pub(crate) struct Puts {
    words: PutWords,
    /// Of each source and block: it has come.
    came: PerRank<Vec<Vec<Arc<WaitPoint>>>>,
}

impl Puts {
    pub(crate) fn new(
        members: &Members,
        signals: &SymmetricSignals,
        words: PutWords,
        op: u32,
    ) -> Result<Self> {
        let reach = members.space.reach();
        let came = PerRank::try_new(members.local_ranks(), |rank| {
            let log = &members.faults[rank];
            let of_source = |source: usize| {
                let blocks = if reach.has(rank, source) { 0 } else { words.blocks };
                let word = |block| words.came(source, block);
                let wait = |block| vec![(signals.word(rank, word(block)), stream_site(source, word(block)))];
                Ok::<_, Error>(log.wait_points(op, (0..blocks).map(wait).collect())?)
            };
            (0..words.world_size).map(of_source).collect::<Result<_>>()
        })?;
        Ok(Self { words, came })
    }
}

/// Where a GEMM puts its tiles' blocks of rows, as places in the rank's own symmetric memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutTarget {
    /// What corresponds to the rank's slot at the owner.
    pub slot: Address,
    /// What corresponds to the owner's words of 64 bits, one for each block.
    pub words: Address,
}

impl Scatter {
    /// Where `rank`'s GEMM is to put what it has written to [`Scatter::target`], if it is to put tiles for `owner` by itself.
    pub fn put_target(&self, rank: usize, owner: usize) -> Option<PutTarget> {
        let puts = self.puts.as_ref().filter(|_| !self.reach.has(rank, owner))?;
        let words = self.signals.word(rank, puts.words.came(rank, 0));
        Some(PutTarget { slot: self.slot(rank, rank), words })
    }

    /// Where the tiles are put from, and what they wait for.
    pub(crate) fn put_from(&self, rank: usize, owner: usize) -> Option<Target> {
        let (puts, relay) = (self.puts.as_ref()?, self.relay.as_ref()?);
        self.put_target(rank, owner)?;
        let ack = puts.words.ack(owner);
        Some(Target { signals: Address::NULL, gate: ack..ack + 1, ..relay.target(rank, owner) })
    }

    /// Raises `rank`'s signals for the blocks that `from` puts in call `epoch`, when they are there.
    ///
    /// # Safety
    /// As for [`Scatter::relay`].
    pub(crate) unsafe fn await_puts(
        &self,
        puts: &Puts,
        (rank, from): (usize, usize),
        epoch: u32,
        shards: Shards,
    ) -> Result<()> {
        let Some(exchange) = &self.ranks[rank].link.exchange else { return Ok(()) };
        let signals = self.block_signals(rank, from);
        let blocks = shards.rows(rank).div_ceil(self.spec.block_rows);
        for (block, came) in puts.came[rank][from].iter().take(blocks).enumerate() {
            // SAFETY: the signals belong to this op, which settles its streams before it frees them.
            unsafe {
                exchange.stream.wait_values(came, epoch)?;
                let word = signals.add(block * size_of::<u32>());
                raise_words(&exchange.stream, std::iter::once(word), epoch)?;
            }
        }
        Ok(())
    }

    /// `compute` has summed `rank`'s slots of call `epoch`: those who put into them are told.
    ///
    /// # Safety
    /// As for [`Scatter::release`].
    pub(crate) unsafe fn acknowledge_puts(&self, rank: usize, epoch: u32, compute: &Stream) -> Result<()> {
        let exchange = self.ranks[rank].link.exchange.as_ref();
        let put = exchange.and_then(|exchange| exchange.with.put());
        let (Some(puts), Some(put)) = (&self.puts, put) else { return Ok(()) };
        let word = self.signals.word(rank, puts.words.ack(rank));
        let peers = (0..self.world_size).filter(|&peer| !self.reach.has(rank, peer));
        // SAFETY: as above.
        peers.into_iter().try_for_each(|peer| unsafe { put.signal(compute, peer, word, epoch) })
    }
}
