//! The part of a ReduceScatter that goes between ranks that cannot address each other's memory: rows are sent and received
//! ([`crate::Exchange`]), and the receiver raises its own signals, so that whoever sums cannot tell how they came.
//!
//! In step s a rank sends the rows that rank + s sums, the order in which they are computed, and receives from rank − s. Where a
//! GEMM's tiles travel, its chunks are sent as soon as they are written; where they go to all, all ranks out of reach are sent
//! to at once, from this rank's own slot, which holds the same.

use crate::link::raise_words;
use crate::relay::Relay;
use crate::scatter::{Scatter, cut};
use crate::{Error, Message, Result, trace::Moved};
use flux_memory::Address;
use flux_swizzle::Shards;
use std::ops::Range;

impl Scatter {
    /// Whom `rank` sends to and receives from in `step`, if they are out of reach.
    fn exchanged_in(&self, rank: usize, step: usize) -> (Option<usize>, Option<usize>) {
        let (to, from) = ((rank + step) % self.world_size, (rank + self.world_size - step) % self.world_size);
        let out_of_reach = |peer: &usize| !self.reach.has(rank, *peer);
        (Some(to).filter(out_of_reach), Some(from).filter(out_of_reach))
    }

    /// One step of moving the partial rows of call `epoch`, `rows` in all. Of each step once, in order.
    ///
    /// # Safety
    /// As for [`Scatter::begin`]; the exchange's stream follows the rows that are sent in this step.
    pub(crate) unsafe fn exchange_partial(
        &self,
        rank: usize,
        step: usize,
        epoch: u32,
        rows: usize,
    ) -> Result<()> {
        let link = &self.ranks[rank].link;
        let (Some(exchange), (to, from)) = (&link.exchange, self.exchanged_in(rank, step)) else {
            return Ok(());
        };
        if rows > self.spec.max_rows {
            return Err(Error::TooManyRows { rows, max_rows: self.spec.max_rows });
        }
        let chunks = cut(rows, self.world_size, self.spec.chunk_rows, self.to_all)?;
        let shard = |owner: usize| if self.to_all { 0 } else { owner };
        let row_bytes = self.spec.row_bytes;
        let own_first = chunks.shards().range(shard(rank)).start;
        let counts = [to.map(|to| chunks.count(shard(to))), from.map(|_| chunks.count(shard(rank)))];
        for index in 0..counts.into_iter().flatten().max().unwrap_or(0) {
            let send = to.filter(|&to| index < chunks.count(shard(to))).map(|peer| {
                let rows = chunks.rows(shard(peer), index);
                let memory = self.partial(rank).add(rows.start * row_bytes);
                let first = chunks.shards().range(shard(peer)).start;
                let place = self.slot(rank, rank).add((rows.start - first) * row_bytes);
                Message { peer, memory, place, bytes: rows.len() * row_bytes }
            });
            let receive = from.filter(|_| index < chunks.count(shard(rank))).map(|peer| {
                let rows = chunks.rows(shard(rank), index);
                let memory = self.slot(rank, peer).add((rows.start - own_first) * row_bytes);
                Message { peer, memory, place: memory, bytes: rows.len() * row_bytes }
            });
            // SAFETY: the caller's promise; what the slot held was summed before the call's stage, which the exchange's stream
            // follows.
            unsafe {
                let moved = receive.as_ref().map(|message| moved(message, rank));
                exchange.step((link.log.as_ref(), moved), send.as_slice(), receive.as_slice())?;
            }
        }
        match from {
            // SAFETY: as above.
            Some(from) if !self.is_lost(from, rank) => unsafe {
                self.arrived.raise(&self.signals, &exchange.stream, from, std::iter::once(rank), epoch)
            },
            _ => Ok(()),
        }
    }

    /// One step of relaying tiles: each chunk when `rank`'s GEMM has written it.
    ///
    /// # Safety
    /// As for [`Scatter::relay`].
    pub(crate) unsafe fn exchange_tiles(
        &self,
        relay: &Relay,
        rank: usize,
        step: usize,
        epoch: u32,
        shards: Shards,
    ) -> Result<()> {
        let link = &self.ranks[rank].link;
        let (Some(exchange), (to, from)) = (&link.exchange, self.exchanged_in(rank, step)) else {
            return Ok(());
        };
        if let Some(puts) = &self.puts {
            // SAFETY: the caller's promise.
            return from.map_or(Ok(()), |from| unsafe { self.await_puts(puts, (rank, from), epoch, shards) });
        }
        // Which chunks are finer depends on whose tiles they are.
        let own = relay.chunks(rank, shards)?;
        let theirs = relay.chunks(from.unwrap_or(rank), shards)?;
        let mut sent = to.map(|to| relay.cut(&own, to).enumerate()).into_iter().flatten();
        let mut received = from.map(|_| relay.cut(&theirs, rank)).into_iter().flatten();
        loop {
            let (send, receive) = (sent.next(), received.next());
            if send.is_none() && receive.is_none() {
                return Ok(());
            }
            let message = |peer, (at, place): (Address, Address), rows: &Range<usize>| Message {
                peer,
                memory: at.add(rows.start * relay.row_bytes),
                place: place.add(rows.start * relay.row_bytes),
                bytes: rows.len() * relay.row_bytes,
            };
            // SAFETY: all memory belongs to this op, which settles its streams before it frees it. What the slot held was summed
            // before the call began; the GEMM that overwrites the tiles comes after `Scatter::release`, which waits for this.
            unsafe {
                let mut sends = None;
                if let (Some(to), Some((index, (rows, _)))) = (to, &send) {
                    let written = &relay.waits[rank].written[own.signal(to, *index)];
                    exchange.stream.wait_values(written, epoch)?;
                    sends = Some(message(to, (relay.target(rank, to).slot, self.slot(rank, rank)), rows));
                }
                let comes = from.zip(receive);
                let slot = |from| (self.slot(rank, from), self.slot(rank, from));
                let receives = comes.as_ref().map(|(from, (rows, _))| message(*from, slot(*from), rows));
                let moved = receives.as_ref().map(|message| moved(message, rank));
                exchange.step((link.log.as_ref(), moved), sends.as_slice(), receives.as_slice())?;
                if let Some((from, (_, blocks))) = comes {
                    let signals = self.block_signals(rank, from);
                    let words = blocks.map(|block| signals.add(block * size_of::<u32>()));
                    raise_words(&exchange.stream, words, epoch)?;
                }
            }
        }
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
            let sends: Vec<_> = peers().map(|peer| message(peer, rank)).collect();
            let receives: Vec<_> = peers().map(|peer| message(peer, peer)).collect();
            // SAFETY: as for `exchange_tiles`.
            unsafe {
                exchange.stream.wait_values(written, epoch)?;
                exchange.step((None, None), &sends, &receives)?;
                let words = peers().map(|peer| self.block_signals(rank, peer).add(block * size_of::<u32>()));
                raise_words(&exchange.stream, words, epoch)?;
            }
        }
        Ok(())
    }
}

/// What a trace says of a message that comes to `rank`.
const fn moved(message: &Message, rank: usize) -> Moved {
    Moved { from: message.peer, to: rank, bytes: message.bytes, signal: None }
}
