//! The part of a ReduceScatter that goes between ranks that cannot address each other's memory: rows are sent and received
//! ([`crate::Exchange`]), and the receiver raises its own signals, so that whoever sums cannot tell how they came.
//!
//! In each turn of its schedule a rank sends the rows that another sums, and receives from those that then send to it. Where a
//! GEMM's tiles travel, its chunks are sent as soon as they are written; where they go to all, all ranks out of reach are sent
//! to at once, from this rank's own slot, which holds the same.

use crate::relay::Relay;
use crate::scatter::{Scatter, cut};
use crate::turns::Turn;
use crate::{Error, Message, Result, trace::Moved};
use flux_memory::Address;
use flux_swizzle::Shards;
use std::ops::Range;

impl Scatter {
    /// Whom `rank` sends to and receives from in a turn, as far as they are out of reach.
    fn exchanged_in(&self, rank: usize, turn: usize) -> (Option<usize>, impl Iterator<Item = usize> + Clone) {
        let Turn { to, from } = &self.ranks[rank].part.turns[turn];
        let out_of_reach = move |&peer: &usize| !self.reach.has(rank, peer);
        (to.filter(out_of_reach), from.iter().copied().filter(out_of_reach))
    }

    /// One turn of moving the partial rows of call `epoch`, `rows` in all. Of each turn once, in order.
    ///
    /// # Safety
    /// As for [`Scatter::begin`]; the exchange's stream follows the rows that are sent in this turn.
    pub(crate) unsafe fn exchange_partial(
        &self,
        rank: usize,
        turn: usize,
        epoch: u32,
        rows: usize,
    ) -> Result<()> {
        let state = &self.ranks[rank];
        let (Some(exchange), (to, from)) = (&state.link.exchange, self.exchanged_in(rank, turn)) else {
            return Ok(());
        };
        if rows > self.spec.max_rows {
            return Err(Error::TooManyRows { rows, max_rows: self.spec.max_rows });
        }
        let chunks = cut(rows, self.world_size, &self.spec.chunk_rows, self.to_all)?;
        let shard = |owner: usize| if self.to_all { 0 } else { owner };
        let row_bytes = self.spec.row_bytes;
        let own_first = chunks.shards().range(shard(rank)).start;
        let own_count = from.clone().next().map(|_| chunks.count(shard(rank)));
        let counts = [to.map(|to| chunks.count(shard(to))), own_count];
        for index in 0..counts.into_iter().flatten().max().unwrap_or(0) {
            let mut step = exchange.next();
            step.sends.extend(to.filter(|&to| index < chunks.count(shard(to))).map(|peer| {
                let rows = chunks.rows(shard(peer), index);
                let memory = self.partial(rank).add(rows.start * row_bytes);
                let first = chunks.shards().range(shard(peer)).start;
                let place = self.slot(rank, rank).add((rows.start - first) * row_bytes);
                Message { peer, memory, place, bytes: rows.len() * row_bytes }
            }));
            let own = chunks.rows(shard(rank), index);
            for peer in from.clone().filter(|_| !own.is_empty()) {
                let memory = self.slot(rank, peer).add((own.start - own_first) * row_bytes);
                let message = Message { peer, memory, place: memory, bytes: own.len() * row_bytes };
                step.receives.push(message);
                step.moved.push(moved(&message, rank));
            }
            // SAFETY: the caller's promise; what the slot held was summed before the call's stage, which the exchange's stream
            // follows.
            unsafe { exchange.take(&step, state.link.log.as_ref(), epoch)? };
        }
        for from in from.filter(|&from| !self.is_lost(from, rank)) {
            // SAFETY: as above.
            unsafe {
                self.arrived.raise(&self.signals, &exchange.stream, from, std::iter::once(rank), epoch)?;
            }
        }
        Ok(())
    }

    /// One turn of relaying tiles: each chunk when `rank`'s GEMM has written it.
    ///
    /// # Safety
    /// As for [`Scatter::relay`].
    pub(crate) unsafe fn exchange_tiles(
        &self,
        relay: &Relay,
        rank: usize,
        turn: usize,
        epoch: u32,
        shards: Shards,
    ) -> Result<()> {
        let state = &self.ranks[rank];
        let (Some(exchange), (to, from)) = (&state.link.exchange, self.exchanged_in(rank, turn)) else {
            return Ok(());
        };
        if let Some(puts) = &self.puts {
            // SAFETY: the caller's promise.
            return from
                .into_iter()
                .try_for_each(|from| unsafe { self.await_puts(puts, (rank, from), epoch, shards) });
        }
        let own = relay.chunks(rank, shards)?;
        let message = |peer, (at, place): (Address, Address), rows: &Range<usize>| Message {
            peer,
            memory: at.add(rows.start * relay.row_bytes),
            place: place.add(rows.start * relay.row_bytes),
            bytes: rows.len() * relay.row_bytes,
        };
        for index in 0.. {
            let mut step = exchange.next();
            // SAFETY: all memory belongs to this op, which settles its streams before it frees it. What the slot held was summed
            // before the call began; the GEMM that overwrites the tiles comes after `Scatter::release`, which waits for this.
            unsafe {
                if let Some((to, (rows, _))) = to.and_then(|to| Some((to, relay.chunk(&own, to, index)?))) {
                    let written = &relay.waits[rank].written[own.signal(to, index)];
                    exchange.stream.wait_values(written, epoch)?;
                    let (from, place) = (relay.target(rank, to).slot, self.slot(rank, rank));
                    step.sends.push(message(to, (from, place), &rows));
                }
                for from in from.clone() {
                    // Which chunks are finer depends on whose tiles they are.
                    let theirs = relay.chunks(from, shards)?;
                    let Some((rows, blocks)) = relay.chunk(&theirs, rank, index) else { continue };
                    let slot = self.slot(rank, from);
                    let message = message(from, (slot, slot), &rows);
                    step.receives.push(message);
                    step.moved.push(moved(&message, rank));
                    let signals = self.block_signals(rank, from);
                    step.raised.extend(blocks.map(|block| signals.add(block * size_of::<u32>())));
                }
                if step.sends.is_empty() && step.receives.is_empty() {
                    break;
                }
                exchange.take(&step, state.link.log.as_ref(), epoch)?;
            }
        }
        Ok(())
    }

    /// Tiles that go to all: each block of `rank`'s own slot, when its GEMM has written it, to all ranks out of reach.
    ///
    /// # Safety
    /// As for [`Scatter::relay`].
    pub(crate) unsafe fn exchange_to_all(&self, rank: usize, epoch: u32, rows: usize) -> Result<()> {
        let state = &self.ranks[rank];
        let Some(exchange) = &state.link.exchange else { return Ok(()) };
        let (block_rows, row_bytes) = (self.spec.block_rows, self.spec.row_bytes);
        let peers = || (0..self.world_size).filter(|&peer| !self.reach.has(rank, peer));
        for (block, written) in state.own_written.iter().enumerate() {
            let first = block * block_rows;
            let bytes = rows.saturating_sub(first).min(block_rows) * row_bytes;
            if bytes == 0 {
                break;
            }
            let message = |peer, source| {
                let memory = self.slot(rank, source).add(first * row_bytes);
                Message { peer, memory, place: memory, bytes }
            };
            let mut step = exchange.next();
            step.sends.extend(peers().map(|peer| message(peer, rank)));
            step.receives.extend(peers().map(|peer| message(peer, peer)));
            let word = |peer| self.block_signals(rank, peer).add(block * size_of::<u32>());
            step.raised.extend(peers().map(word));
            // SAFETY: as for `exchange_tiles`.
            unsafe {
                exchange.stream.wait_values(written, epoch)?;
                exchange.take(&step, None, epoch)?;
            }
        }
        Ok(())
    }
}

/// What a trace says of a message that comes to `rank`.
const fn moved(message: &Message, rank: usize) -> Moved {
    let lane = Moved::EXCHANGED;
    Moved { from: message.peer, to: rank, shard: rank, lane, bytes: message.bytes, signal: None }
}
