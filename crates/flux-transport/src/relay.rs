//! Relayed delivery: a GEMM writes its tiles for other ranks to its own rank's memory, which costs it no more than any
//! output does, and the rank's transfer stream carries them to their owners, chunk by chunk, each chunk as soon as its last
//! tile is written.
//!
//! A chunk is one or several of the blocks of rows that have signals at the owner: few at first, if so wanted, for the link
//! is idle until the first chunk is complete. It may be cut into panels, blocks of columns, which leave one after the other. Nobody else
//! waits for a panel of a chunk, so it has one signal, which the GEMM raises; when its rows are at the owner, the transfer stream raises
//! its blocks' signals of that panel there.
//! The owner cannot tell relayed tiles from those that a GEMM delivered directly.

use crate::link::{here, raise_words, stream_site};
use crate::scatter::{Rank, Scatter};
use crate::{Chunk, Error, Members, Moved, Result, ScatterSpec};
use flux_memory::{Address, PerRank, Placement, Stream, SymmetricBuffer, SymmetricSignals, WaitPoint};
use flux_swizzle::{ChunkRows, Chunks, PanelCut, Shards, Taper};
use std::ops::Range;
use std::sync::Arc;

/// Where a GEMM's tiles for one owner go, and which signals say that they are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The owner's first row.
    pub slot: Address,
    /// One for each of the owner's [`Scatter::relayed_chunks`], or for each of its blocks where tiles are not relayed: of the first
    /// panel.
    pub signals: Address,
    /// The same signals of the next panel of the rows are so many words further on.
    pub panel_stride: usize,
    /// The signals among [`Scatter::gates`] that must have reached the epoch before the call's when a tile is written: the
    /// owner has summed what its slot held. None where tiles are relayed.
    pub gate: Range<usize>,
}

/// What relaying takes, of the ranks of this process.
#[derive(Debug)]
pub(crate) struct Relay {
    /// First, so that they are dropped first: wait points before the signals.
    pub(crate) waits: PerRank<Waits>,
    /// Each rank's tiles for the others, laid out like their slots, `[owner][slot rows]`: what a tile writes below a
    /// shard's end is no other shard's.
    tiles: Arc<SymmetricBuffer>,
    /// Each rank's own: the panel of the chunk is written, `[panel][owner][chunk]`.
    written: SymmetricSignals,
    /// Of the largest call: their rows are multiples of `block_rows`.
    largest: Chunks,
    chunk_rows: ChunkRows,
    taper: Taper,
    block_rows: usize,
    pub(crate) row_bytes: usize,
    slot_bytes: usize,
}

/// What one rank's transfer stream waits for.
#[derive(Debug)]
pub(crate) struct Waits {
    /// Of each owner: it has summed what its slot held.
    acked: Vec<Arc<WaitPoint>>,
    /// Of each panel of each chunk, `[panel][owner][chunk]`: the rank's own GEMM has written it.
    pub(crate) written: Vec<Arc<WaitPoint>>,
}

impl Relay {
    /// `acked` makes the wait points of a rank for the owners' acknowledgements.
    pub(crate) fn new(
        members: &Members,
        spec: &ScatterSpec,
        (slot_rows, panels): (usize, PanelCut),
        acked: impl Fn(usize) -> Result<Vec<Arc<WaitPoint>>>,
    ) -> Result<Self> {
        let &ScatterSpec { block_rows, row_bytes, .. } = spec;
        if block_rows == 0 {
            return Err(flux_swizzle::Error::ZeroExtent { what: "the number of rows of a block" }.into());
        }
        let world_size = members.world_size();
        let in_blocks =
            |rows: usize| rows.clamp(1, slot_rows.max(1)).div_ceil(block_rows).saturating_mul(block_rows);
        let taper = Taper { grain: in_blocks(spec.taper.grain), ..spec.taper };
        let chunk_rows = spec.chunk_rows.map(in_blocks);
        let largest = chunk_rows.numbered(spec.max_rows, world_size, taper)?;
        let slot_bytes = slot_rows.saturating_mul(row_bytes);
        // Nobody but the rank itself accesses either, wherever its peers' slots lie.
        let bytes = world_size.saturating_mul(slot_bytes);
        let tiles = SymmetricBuffer::allocate(&members.space, bytes, Placement::Device)?;
        let signals = largest.signals().saturating_mul(panels.most(row_bytes));
        let written = SymmetricSignals::allocate(&members.space, signals, Placement::Device)?;
        let waits = PerRank::try_new(members.local_ranks(), |rank| {
            let of_panel = |signal| vec![(written.word(rank, signal), stream_site(rank, signal))];
            let of_rank = members.faults[rank].wait_points(spec.op, (0..signals).map(of_panel).collect())?;
            Ok::<_, Error>(Waits { acked: acked(rank)?, written: of_rank })
        })?;
        let tiles = Arc::new(tiles);
        Ok(Self { waits, tiles, written, largest, chunk_rows, taper, block_rows, row_bytes, slot_bytes })
    }

    /// Room for at least the rows of the largest call, contiguous, for calls that relay nothing.
    pub(crate) fn memory(&self) -> Arc<SymmetricBuffer> {
        Arc::clone(&self.tiles)
    }

    pub(crate) fn target(&self, rank: usize, owner: usize) -> Target {
        Target {
            slot: self.tiles.address(rank).add(owner * self.slot_bytes),
            signals: self.written.word(rank, self.largest.signal(owner, 0)),
            panel_stride: self.largest.signals(),
            gate: 0..0,
        }
    }

    /// The chunks in which the tiles of a call with `shards` travel from `rank`.
    pub(crate) fn chunks(&self, rank: usize, shards: Shards) -> Result<Chunks> {
        let chunks = Chunks::new(shards, self.chunk_rows.of(shards.total()))?;
        Ok(chunks.tapered(self.taper, rank).numbered_as(&self.largest))
    }

    /// Chunk `index` of `owner`'s shard: its rows, counted from the shard's first, and its blocks. None if there is no such chunk.
    pub(crate) fn chunk(
        &self,
        chunks: &Chunks,
        owner: usize,
        index: usize,
    ) -> Option<(Range<usize>, Range<usize>)> {
        let (begin, rows) = (chunks.shards().range(owner).start, chunks.rows(owner, index));
        let (first, end) = (rows.start - begin, rows.end - begin);
        (first < end).then(|| (first..end, first / self.block_rows..end.div_ceil(self.block_rows)))
    }

    /// The chunks of `owner`'s shard.
    pub(crate) fn cut(
        &self,
        chunks: &Chunks,
        owner: usize,
    ) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        (0..chunks.count(owner)).filter_map(move |index| self.chunk(chunks, owner, index))
    }
}

impl Scatter {
    /// Whether `rank`'s tiles for `owner` are relayed: if so wanted, and always if the owner is out of reach and GEMMs do not put by
    /// themselves. Its own never are.
    pub fn relays(&self, rank: usize, owner: usize) -> bool {
        let hop = self.first_hop(rank, owner);
        let wanted = if self.reach.has(rank, hop) { self.spec.relayed } else { self.puts.is_none() };
        self.relay.is_some() && hop != rank && wanted
    }

    /// Where `rank`'s GEMM writes the tiles that `owner` sums: to where they are relayed from, or put from, or straight into its
    /// slot at the owner, or at the owner's delegate. What stays on the rank always goes straight into its slot.
    pub fn target(&self, rank: usize, owner: usize) -> Target {
        match &self.relay {
            Some(relay) if self.relays(rank, owner) => relay.target(rank, owner),
            _ => self.put_from(rank, owner).unwrap_or_else(|| Target {
                slot: self.slot_of(owner, rank),
                signals: self.block_signals(owner, rank),
                panel_stride: self.blocks(),
                gate: self.gate(self.first_hop(rank, owner))..self.gate(self.first_hop(rank, owner)) + 1,
            }),
        }
    }

    /// The chunks in which `rank`'s tiles for the others are relayed in a call with `rows` rows: those of a chunk share a
    /// signal. None if none are relayed.
    pub fn relayed_chunks(&self, rank: usize, rows: usize) -> Result<Option<Chunks>> {
        let shards = Shards::new(rows, self.world_size)?;
        self.relay.as_ref().map(|relay| relay.chunks(rank, shards)).transpose()
    }

    /// The memory that `rank`'s tiles are relayed from, and its size in bytes; null and 0 if none are.
    pub fn relayed_tiles(&self, rank: usize) -> (Address, usize) {
        let tiles = self.relay.as_ref().map(|relay| &relay.tiles);
        tiles.map_or((Address::NULL, 0), |tiles| (tiles.address(rank), tiles.bytes()))
    }

    /// `compute` is about to enqueue the GEMM whose tiles [`Scatter::relay`] carries, or [`Scatter::land`] fetches. Does nothing if none
    /// are.
    ///
    /// # Safety
    /// As for [`Scatter::begin`], which comes before.
    pub unsafe fn begin_relay(&self, rank: usize, compute: &Stream) -> Result<()> {
        let link = &here(&self.ranks, rank, self.world_size)?.link;
        // Not earlier: the bound of the wait for the first tile is not to run while the GEMM is queued.
        self.begin_landing(rank, compute)?;
        match self.relay {
            Some(_) => link.fork(compute),
            None => link.fork_exchange(compute),
        }
    }

    /// Carries the tiles that `rank`'s GEMM of call `epoch`, enqueued before, writes to [`Scatter::target`], to their
    /// owners, in [`Scatter::order`], in which they are computed. Where tiles go to all, it carries them to the
    /// ranks out of reach. Does nothing if none are relayed.
    ///
    /// # Safety
    /// As for [`Scatter::begin`].
    pub unsafe fn relay(&self, rank: usize, epoch: u32, rows: usize) -> Result<()> {
        let world_size = self.world_size;
        let Rank { link, part, .. } = here(&self.ranks, rank, world_size)?;
        if rows > self.spec.max_rows {
            return Err(Error::TooManyRows { rows, max_rows: self.spec.max_rows });
        }
        let shards = Shards::new(rows, world_size)?;
        if self.has_two_levels() {
            if let Some(relay) = &self.relay {
                let chunks = relay.chunks(rank, shards)?;
                for &owner in part.order.iter().filter(|&&owner| self.relays(rank, owner)) {
                    // SAFETY: the caller's promise.
                    unsafe { self.relay_to(relay, rank, owner, epoch, &chunks)? };
                }
            }
            // SAFETY: the caller's promise.
            unsafe { self.exchange_all_sums(rank, epoch, rows, true)? };
            return link.end();
        }
        let Some(relay) = &self.relay else {
            // SAFETY: the caller's promise.
            unsafe { self.exchange_to_all(rank, epoch, rows)? };
            return link.end();
        };
        let chunks = relay.chunks(rank, shards)?;
        for (turn, of_turn) in part.turns.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.exchange_tiles(relay, rank, turn, epoch, shards)? };
            let Some(owner) = of_turn.to else { continue };
            if self.relays(rank, owner) && self.reach.has(rank, owner) {
                // SAFETY: the caller's promise.
                unsafe { self.relay_to(relay, rank, owner, epoch, &chunks)? };
            }
        }
        link.end()
    }

    /// # Safety
    /// As for [`Scatter::relay`].
    unsafe fn relay_to(
        &self,
        relay: &Relay,
        rank: usize,
        owner: usize,
        epoch: u32,
        chunks: &Chunks,
    ) -> Result<()> {
        if chunks.count(owner) == 0 {
            return Ok(());
        }
        let (state, waits) = (&self.ranks[rank], &relay.waits[rank]);
        let hop = self.first_hop(rank, owner);
        let lane = state.part.lane(hop);
        let transfers = state.link.lane(lane);
        let (from, to) = (relay.target(rank, owner).slot, self.slot_of(owner, rank));
        let signals = self.block_signals(owner, rank);
        let panels = self.panels(chunks.shards().total());
        // SAFETY: all memory belongs to this op, which settles its streams before it frees it. The owner has summed what its
        // slot held; the GEMM that overwrites the tiles comes after `Scatter::release`, which waits for these copies.
        unsafe {
            transfers.wait_values(&waits.acked[hop], epoch.wrapping_sub(1))?;
            for (index, (rows, blocks)) in relay.cut(chunks, owner).enumerate() {
                // A tile that ends in the next panel begins in this one, and is counted here: it has been waited for when that one goes.
                for panel in 0..panels.count() {
                    let written = panel * relay.largest.signals() + chunks.signal(owner, index);
                    transfers.wait_values(&waits.written[written], epoch)?;
                    let columns = panels.bytes(panel);
                    let offset = rows.start * relay.row_bytes + columns.start;
                    let (from, to) = (from.add(offset), to.add(offset));
                    let bytes = columns.len() * rows.len();
                    let moved = Moved { from: rank, to: hop, shard: owner, lane, bytes, signal: None };
                    if panels.count() == 1 {
                        let chunk = Chunk { from, to, bytes, signal: Address::NULL };
                        state.link.move_chunk(&*self.transfer, &chunk, epoch, moved)?;
                    } else {
                        let [from, to] = [from, to].map(|first| (first, relay.row_bytes));
                        let copy =
                            |stream: &Stream| Ok(stream.copy_rows(to, from, columns.len(), rows.len())?);
                        state.link.logged(moved, copy)?;
                    }
                    let first = panel * self.blocks();
                    let of_panel =
                        blocks.clone().map(|block| signals.add((first + block) * size_of::<u32>()));
                    raise_words(transfers, of_panel, epoch)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Direction;
    use flux_memory::{Device, FaultLog};
    use flux_swizzle::End;
    use std::time::Duration;

    const WORLD_SIZE: usize = 3;

    fn relay(slot_rows: usize, chunk_rows: usize, block_rows: usize, taper: Taper) -> Result<Relay> {
        let device = Device::host();
        let logs = (0..3).map(|rank| FaultLog::new(&device, rank, Duration::from_secs(1)));
        let members = Members::new(vec![device.clone(); WORLD_SIZE], logs.collect::<Result<_, _>>()?)?;
        let spec = ScatterSpec {
            max_rows: WORLD_SIZE * slot_rows,
            row_bytes: 1,
            chunk_rows: chunk_rows.into(),
            taper,
            panels: PanelCut::NONE,
            block_rows,
            with_partial: false,
            relayed: true,
            puts: false,
            sum_in_nodes: None,
            direction: Direction::Push,
            pattern: flux_swizzle::Pattern::full_mesh(WORLD_SIZE),
            placement: Placement::Device,
            op: 0,
            signal_loss: None,
        };
        Relay::new(&members, &spec, (slot_rows, spec.panels), |_| Ok(Vec::new()))
    }

    /// Every block's signal is raised once, behind a chunk that holds all of its rows, and every row is carried once.
    #[test]
    fn chunks_are_whole_blocks_and_cover_a_shard_once() {
        let finer = Taper::towards(End::First, [2, 1, 1], 1);
        for (slot_rows, chunk_rows, block_rows) in
            [(0, 1, 4), (1, 1, 4), (23, 1, 4), (23, 5, 4), (23, 8, 4), (24, usize::MAX, 4), (9, 3, 1)]
        {
            for (shard_rows, taper) in (0..=slot_rows).flat_map(|rows| [(rows, Taper::NONE), (rows, finer)]) {
                let relay = relay(slot_rows, chunk_rows, block_rows, taper).unwrap();
                let chunks =
                    relay.chunks(1, Shards::new(WORLD_SIZE * shard_rows, WORLD_SIZE).unwrap()).unwrap();
                for owner in [2, 0] {
                    let (mut next_row, mut next_block) = (0, 0);
                    for (index, (rows, blocks)) in relay.cut(&chunks, owner).enumerate() {
                        assert!(chunks.signal(owner, index) < relay.largest.signal(owner + 1, 0));
                        assert!(!rows.is_empty());
                        assert_eq!((rows.start, blocks.start), (next_row, next_block));
                        assert!(
                            rows.start == blocks.start * block_rows && rows.end <= blocks.end * block_rows
                        );
                        (next_row, next_block) = (rows.end, blocks.end);
                    }
                    assert_eq!((next_row, next_block), (shard_rows, shard_rows.div_ceil(block_rows)));
                }
            }
        }
        assert!(matches!(relay(8, 8, 0, Taper::NONE), Err(Error::Swizzle(_))));
    }
}
