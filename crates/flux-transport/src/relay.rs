//! Relayed delivery: a GEMM writes its tiles for other ranks to its own rank's memory, which costs it no more than any
//! output does, and the rank's transfer stream carries them to their owners, chunk by chunk, each chunk as soon as its last
//! tile is written.
//!
//! A chunk is one or several of the blocks of rows that have signals at the owner. Nobody else waits for a chunk, so it has
//! one signal, which the GEMM raises; when its rows are at the owner, the transfer stream raises its blocks' signals there.
//! The owner cannot tell relayed tiles from those that a GEMM delivered directly.

use crate::link::{check_rank, raise_words, stream_site};
use crate::scatter::Scatter;
use crate::{Chunk, Error, Members, Result, ScatterSpec};
use flux_memory::{Address, Placement, Stream, SymmetricBuffer, SymmetricSignals, WaitPoint};
use flux_swizzle::Shards;
use std::ops::Range;
use std::sync::Arc;

/// Where a GEMM's tiles for one owner go, and which signals say that they are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The owner's first row.
    pub slot: Address,
    /// Each signal covers [`Target::signal_rows`] rows, from the owner's first on.
    pub signals: Address,
    /// Rows that share a signal.
    pub signal_rows: usize,
    /// The signals among [`Scatter::gates`] that must have reached the epoch before the call's when a tile is written: the
    /// owner has summed what its slot held. None where tiles are relayed.
    pub gate: Range<usize>,
}

/// What relaying takes, of all ranks.
#[derive(Debug)]
pub(crate) struct Relay {
    /// First, so that they are dropped first: wait points before the signals.
    waits: Vec<Waits>,
    /// Each rank's tiles for the others, laid out like their slots, `[owner][slot rows]`: what a tile writes below a
    /// shard's end is no other shard's.
    tiles: Arc<SymmetricBuffer>,
    /// Each rank's own: the chunk is written, `[owner][chunk]`.
    written: SymmetricSignals,
    /// Chunks of a full slot.
    chunks: usize,
    /// A multiple of `block_rows`.
    chunk_rows: usize,
    block_rows: usize,
    row_bytes: usize,
    slot_bytes: usize,
}

/// What one rank's transfer stream waits for.
#[derive(Debug)]
struct Waits {
    /// Of each owner: it has summed what its slot held.
    acked: Vec<Arc<WaitPoint>>,
    /// Of each chunk, `[owner][chunk]`: the rank's own GEMM has written it.
    written: Vec<Arc<WaitPoint>>,
}

impl Relay {
    /// `acked` makes the wait points of a rank for the owners' acknowledgements.
    pub(crate) fn new(
        members: &Members,
        spec: &ScatterSpec,
        slot_rows: usize,
        acked: impl Fn(usize) -> Result<Vec<Arc<WaitPoint>>>,
    ) -> Result<Self> {
        let &ScatterSpec { block_rows, row_bytes, .. } = spec;
        if block_rows == 0 {
            return Err(flux_swizzle::Error::ZeroExtent { what: "the number of rows of a block" }.into());
        }
        let world_size = members.world_size();
        let chunk_rows =
            spec.chunk_rows.clamp(1, slot_rows.max(1)).div_ceil(block_rows).saturating_mul(block_rows);
        let chunks = slot_rows.div_ceil(chunk_rows);
        let slot_bytes = slot_rows.saturating_mul(row_bytes);
        // Nobody but the rank itself accesses either, wherever its peers' slots lie.
        let bytes = world_size.saturating_mul(slot_bytes);
        let tiles = SymmetricBuffer::allocate(&members.devices, bytes, Placement::Device)?;
        let signals = world_size.saturating_mul(chunks);
        let written = SymmetricSignals::allocate(&members.devices, signals, Placement::Device)?;
        let waits = (0..world_size)
            .map(|rank| {
                let of_chunk = |signal| vec![(written.word(rank, signal), stream_site(rank, signal))];
                let of_rank =
                    members.faults[rank].wait_points(spec.op, (0..signals).map(of_chunk).collect())?;
                Ok(Waits { acked: acked(rank)?, written: of_rank })
            })
            .collect::<Result<_>>()?;
        let tiles = Arc::new(tiles);
        Ok(Self { waits, tiles, written, chunks, chunk_rows, block_rows, row_bytes, slot_bytes })
    }

    /// Room for at least the rows of the largest call, contiguous, for calls that relay nothing.
    pub(crate) fn memory(&self) -> Arc<SymmetricBuffer> {
        Arc::clone(&self.tiles)
    }

    fn target(&self, rank: usize, owner: usize) -> Target {
        Target {
            slot: self.tiles.address(rank).add(owner * self.slot_bytes),
            signals: self.written.word(rank, owner * self.chunks),
            signal_rows: self.chunk_rows,
            gate: 0..0,
        }
    }

    /// The chunks of a shard of `rows` rows: the rows of each, and its blocks.
    fn cut(&self, rows: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let &Self { chunk_rows, block_rows, .. } = self;
        (0..rows).step_by(chunk_rows).map(move |first| {
            let end = first.saturating_add(chunk_rows).min(rows);
            (first..end, first / block_rows..end.div_ceil(block_rows))
        })
    }
}

impl Scatter {
    /// Where `rank`'s GEMM writes the tiles that `owner` sums: to where they are relayed from, or straight into its slot at
    /// the owner. Its own tiles always go straight into its own slot.
    pub fn target(&self, rank: usize, owner: usize) -> Target {
        match &self.relay {
            Some(relay) if owner != rank => relay.target(rank, owner),
            _ => Target {
                slot: self.slot(owner, rank),
                signals: self.block_signals(owner, rank),
                signal_rows: self.spec.block_rows,
                gate: self.gate(owner)..self.gate(owner) + 1,
            },
        }
    }

    /// The memory that `rank`'s tiles are relayed from, and its size in bytes; null and 0 if none are.
    pub fn relayed_tiles(&self, rank: usize) -> (Address, usize) {
        let tiles = self.relay.as_ref().map(|relay| &relay.tiles);
        tiles.map_or((Address::NULL, 0), |tiles| (tiles.address(rank), tiles.bytes()))
    }

    /// `compute` is about to enqueue the GEMM whose tiles [`Scatter::relay`] carries. Does nothing if none are relayed.
    ///
    /// # Safety
    /// As for [`Scatter::begin`], which comes before.
    pub unsafe fn begin_relay(&self, rank: usize, compute: &Stream) -> Result<()> {
        check_rank(rank, self.ranks.len())?;
        match self.relay {
            // Not earlier: the bound of the wait for the first tile is not to run while the GEMM is queued.
            Some(_) => self.ranks[rank].link.fork(compute),
            None => Ok(()),
        }
    }

    /// Carries the tiles that `rank`'s GEMM of call `epoch`, enqueued before, writes to [`Scatter::target`], to their
    /// owners, from the next rank around: the order in which they are computed. Does nothing if none are relayed.
    ///
    /// # Safety
    /// As for [`Scatter::begin`].
    pub unsafe fn relay(&self, rank: usize, epoch: u32, rows: usize) -> Result<()> {
        let world_size = self.ranks.len();
        check_rank(rank, world_size)?;
        if rows > self.spec.max_rows {
            return Err(Error::TooManyRows { rows, max_rows: self.spec.max_rows });
        }
        let Some(relay) = &self.relay else { return Ok(()) };
        let shards = Shards::new(rows, world_size)?;
        for owner in (1..world_size).map(|step| (rank + step) % world_size) {
            // SAFETY: the caller's promise.
            unsafe { self.relay_to(relay, rank, owner, epoch, shards.rows(owner))? };
        }
        self.ranks[rank].link.end()
    }

    /// # Safety
    /// As for [`Scatter::relay`].
    unsafe fn relay_to(
        &self,
        relay: &Relay,
        rank: usize,
        owner: usize,
        epoch: u32,
        rows: usize,
    ) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        let (transfers, waits) = (&self.ranks[rank].link.transfers, &relay.waits[rank]);
        let (from, to) = (relay.target(rank, owner).slot, self.slot(owner, rank));
        let signals = self.block_signals(owner, rank);
        // SAFETY: all memory belongs to this op, which settles its streams before it frees it. The owner has summed what its
        // slot held; the GEMM that overwrites the tiles comes after `Scatter::release`, which waits for these copies.
        unsafe {
            transfers.wait_values(&waits.acked[owner], epoch.wrapping_sub(1))?;
            for (index, (rows, blocks)) in relay.cut(rows).enumerate() {
                transfers.wait_values(&waits.written[owner * relay.chunks + index], epoch)?;
                let offset = rows.start * relay.row_bytes;
                let bytes = rows.len() * relay.row_bytes;
                let chunk =
                    Chunk { from: from.add(offset), to: to.add(offset), bytes, signal: Address::NULL };
                self.transfer.move_chunk(transfers, &chunk, epoch)?;
                raise_words(transfers, blocks.map(|block| signals.add(block * size_of::<u32>())), epoch)?;
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
    use std::time::Duration;

    fn relay(slot_rows: usize, chunk_rows: usize, block_rows: usize) -> Result<Relay> {
        let device = Device::host();
        let log = FaultLog::new(&device, 0, Duration::from_secs(1))?;
        let members = Members::new(vec![device], vec![log])?;
        let spec = ScatterSpec {
            max_rows: slot_rows,
            row_bytes: 1,
            chunk_rows,
            block_rows,
            with_partial: false,
            relayed: true,
            direction: Direction::Push,
            placement: Placement::Device,
            op: 0,
            signal_loss: None,
        };
        Relay::new(&members, &spec, slot_rows, |_| Ok(Vec::new()))
    }

    /// Every block's signal is raised once, behind a chunk that holds all of its rows, and every row is carried once.
    #[test]
    fn chunks_are_whole_blocks_and_cover_a_shard_once() {
        for (slot_rows, chunk_rows, block_rows) in
            [(0, 1, 4), (1, 1, 4), (23, 1, 4), (23, 5, 4), (23, 8, 4), (24, usize::MAX, 4), (9, 3, 1)]
        {
            let relay = relay(slot_rows, chunk_rows, block_rows).unwrap();
            for shard in 0..=slot_rows {
                let (mut next_row, mut next_block) = (0, 0);
                for (index, (rows, blocks)) in relay.cut(shard).enumerate() {
                    assert!(index < relay.chunks && !rows.is_empty());
                    assert_eq!((rows.start, blocks.start), (next_row, next_block));
                    assert!(rows.start == blocks.start * block_rows && rows.end <= blocks.end * block_rows);
                    // The signal that the GEMM counts all of these rows' tiles for.
                    assert!(rows.clone().all(|row| row / relay.chunk_rows == index));
                    (next_row, next_block) = (rows.end, blocks.end);
                }
                assert_eq!((next_row, next_block), (shard, shard.div_ceil(block_rows)));
            }
        }
        assert!(matches!(relay(8, 8, 0), Err(Error::Swizzle(_))));
    }
}
