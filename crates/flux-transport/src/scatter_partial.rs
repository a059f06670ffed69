//! How partial rows get to their owners, of a call whose GEMM has written them all, or owner by owner as it writes them.

use crate::link::{check_rank, here};
use crate::scatter::{Rank, Scatter, cut};
use crate::trace::Moved;
use crate::{Chunk, Direction, Error, Result};
use flux_memory::{Address, Stream};
use flux_swizzle::{Chunks, SlotPlace};
use std::sync::atomic::Ordering;

impl Scatter {
    /// `rank`'s partial rows of call `epoch` are complete on `compute`: they may be moved.
    ///
    /// # Safety
    /// As for [`Scatter::begin`].
    pub unsafe fn stage(&self, rank: usize, epoch: u32, compute: &Stream) -> Result<()> {
        let state = here(&self.ranks, rank, self.world_size)?;
        if self.spec.direction == Direction::Pull {
            // SAFETY: the signals belong to this op.
            unsafe { self.ready.raise(&self.signals, compute, rank, self.reach.of_rank(rank), epoch)? };
            state.last_pull.store(u64::from(epoch), Ordering::Relaxed);
        }
        state.link.fork(compute)
    }

    /// Moves the partial rows of call `epoch`, `rows` in all, to their owners, after [`Scatter::stage`]: `rank`'s to its
    /// peers if pushing, its peers' to `rank` if pulling. Where ranks share a GPU, all are staged before the first move.
    ///
    /// # Safety
    /// As for [`Scatter::begin`].
    pub unsafe fn transfer(&self, rank: usize, epoch: u32, rows: usize, compute: &Stream) -> Result<()> {
        for turn in 0..here(&self.ranks, rank, self.world_size)?.part.turns.len() {
            if self.has_two_levels() {
                break; // nothing goes to another node by itself
            }
            // SAFETY: the caller's promise.
            unsafe { self.exchange_partial(rank, turn, epoch, rows)? };
        }
        // SAFETY: as above.
        unsafe { self.transfer_in_reach(rank, epoch, rows, compute) }
    }

    /// # Safety
    /// As for [`Scatter::begin`].
    unsafe fn transfer_in_reach(&self, rank: usize, epoch: u32, rows: usize, compute: &Stream) -> Result<()> {
        let Rank { link, part, .. } = here(&self.ranks, rank, self.world_size)?;
        let push = self.spec.direction == Direction::Push;
        let peers = part.turns.iter().flat_map(|turn| {
            let (to, from) = if push { (turn.to.as_slice(), &[][..]) } else { (&[][..], &turn.from[..]) };
            to.iter().chain(from).copied()
        });
        // Its own last.
        for peer in peers.chain([rank]).filter(|&peer| self.reach.has(rank, peer)) {
            // SAFETY: the caller's promise.
            unsafe { self.transfer_with(rank, peer, None, epoch, rows)? };
        }
        if self.has_two_levels() {
            // SAFETY: the caller's promise.
            unsafe { self.exchange_all_sums(rank, epoch, rows, false)? };
        }
        link.end()?;
        link.join(compute)
    }

    /// `rank`'s partial rows of call `epoch` for `destination` are complete on `compute`. If pushing, they are moved, however
    /// much `compute` does before the other rows are complete; else `destination` may fetch them. Once for each
    /// destination, in [`Scatter::order`], in place of [`Scatter::stage`].
    ///
    /// # Safety
    /// As for [`Scatter::begin`].
    pub unsafe fn stage_shard(
        &self,
        rank: usize,
        destination: usize,
        epoch: u32,
        rows: usize,
        compute: &Stream,
    ) -> Result<()> {
        let state = here(&self.ranks, rank, self.world_size)?;
        check_rank(destination, self.world_size)?;
        let hop = self.first_hop(rank, destination);
        let in_reach = self.reach.has(rank, hop);
        // SAFETY: the signals belong to this op; the rest is the caller's promise.
        unsafe {
            state.link.fork_exchange(compute)?;
            if let Some(turn) = state.part.turn_of(destination).filter(|_| !self.has_two_levels()) {
                self.exchange_partial(rank, turn, epoch, rows)?;
            }
            if self.spec.direction == Direction::Push {
                if in_reach {
                    state.link.fork(compute)?;
                    self.transfer_with(rank, hop, Some(destination), epoch, rows)?;
                }
                return self
                    .rounds_after(rank, destination)
                    .try_for_each(|round| self.exchange_sums(rank, round, epoch, rows, false));
            }
            if state.last_pull.swap(u64::from(epoch), Ordering::Relaxed) != u64::from(epoch) {
                state.link.fork(compute)?; // what `rank` fetches goes into slots that the call before has summed
            }
            // What goes to the same rank is fetched at once.
            let all_there = in_reach && self.is_last_of_hop(rank, destination);
            let hop = std::iter::once(hop).filter(|_| all_there);
            self.ready.raise(&self.signals, compute, rank, hop, epoch)
        }
    }

    /// Moves what [`Scatter::stage_shard`] has not moved yet. In place of [`Scatter::transfer`].
    ///
    /// # Safety
    /// As for [`Scatter::begin`].
    pub unsafe fn transfer_rest(&self, rank: usize, epoch: u32, rows: usize, compute: &Stream) -> Result<()> {
        if self.spec.direction == Direction::Pull {
            // SAFETY: the caller's promise.
            return unsafe { self.transfer_in_reach(rank, epoch, rows, compute) };
        }
        let link = &here(&self.ranks, rank, self.world_size)?.link;
        link.end()?;
        link.join(compute)
    }

    /// Moves `rank`'s rows to `peer` if pushing, `peer`'s rows to `rank` if pulling, on `rank`'s transfer stream: all that go
    /// there first, or those of `only` one owner.
    ///
    /// # Safety
    /// As for [`Scatter::begin`].
    unsafe fn transfer_with(
        &self,
        rank: usize,
        peer: usize,
        only: Option<usize>,
        epoch: u32,
        rows: usize,
    ) -> Result<()> {
        if rows > self.spec.max_rows {
            return Err(Error::TooManyRows { rows, max_rows: self.spec.max_rows });
        }
        let chunks = cut(rows, self.world_size, &self.spec.chunk_rows, self.to_all)?;
        let state = &self.ranks[rank];
        let transfers = state.link.lane(state.part.lane(peer));
        let push = self.spec.direction == Direction::Push;
        let (source, to) = if push { (rank, peer) } else { (peer, rank) };
        let wanted = if push { epoch.wrapping_sub(1) } else { epoch };
        // SAFETY: all buffers belong to this op, which settles its streams before it frees them; the acknowledgements keep
        // the peers' accesses apart.
        unsafe {
            transfers.wait_values(&state.may_move[peer], wanted)?;
            for owner in self.layout.owners(to).filter(|&owner| only.is_none_or(|only| only == owner)) {
                self.move_rows((rank, peer), (source, owner), &chunks, epoch)?;
                if !self.is_lost(source, to) {
                    let SlotPlace { slot, .. } = self.layout.place(owner, source);
                    self.arrived.raise(&self.signals, transfers, slot, std::iter::once(to), epoch)?;
                }
            }
            if !push {
                self.pulled.raise(&self.signals, transfers, rank, std::iter::once(peer), epoch)?;
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Scatter::begin`].
    unsafe fn move_rows(
        &self,
        (rank, peer): (usize, usize),
        (source, owner): (usize, usize),
        chunks: &Chunks,
        epoch: u32,
    ) -> Result<()> {
        let Rank { link, part, .. } = &self.ranks[rank];
        let lane = part.lane(peer);
        let shard = if self.to_all { 0 } else { owner };
        let first_row = chunks.shards().range(shard).start;
        let to = self.first_hop(source, owner);
        // Who pulls, fetches to where it sums.
        let slot = match (self.spec.direction, self.layout.place(owner, source)) {
            (Direction::Pull, SlotPlace { rank: at, slot }) if at == rank => self.summed_slot(at, slot),
            _ => self.slot_of(owner, source),
        };
        for index in 0..chunks.count(shard) {
            let rows = chunks.rows(shard, index);
            let chunk = Chunk {
                from: self.partial(source).add(rows.start * self.spec.row_bytes),
                to: slot.add((rows.start - first_row) * self.spec.row_bytes),
                bytes: rows.len() * self.spec.row_bytes,
                signal: Address::NULL,
            };
            let moved = Moved { from: source, to, shard: owner, lane, bytes: chunk.bytes, signal: None };
            // SAFETY: the caller's promise.
            unsafe { link.move_chunk(&*self.transfer, &chunk, epoch, moved)? };
        }
        Ok(())
    }
}
