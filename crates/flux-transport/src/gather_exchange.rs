//! The part of an AllGather that goes between ranks that cannot address each other's memory: shards are sent and received
//! ([`crate::Exchange`]), in one of two orders.
//!
//! * *One level*: each rank sends its shard to every rank out of reach. In step s it sends to rank − s and receives from
//!   rank + s, the order in which the GEMM's tiles come.
//! * *Two levels*, where all nodes have as many ranks, and more than one: a rank exchanges shards only with those that have its
//!   place on other nodes, so each shard comes to a node once. While the next one travels, the rank that received it passes it
//!   on to its node's others, as it pushes its own.

use crate::trace::Moved;
use crate::{AllGather, Awaited, Direction, Message, Result, Rows};
use flux_swizzle::push_order;

impl AllGather {
    /// The rank's place on its node, and ranks of a node, if shards travel in two levels. Pulled shards do not: those who fetch
    /// do not say when theirs may be overwritten.
    fn two_levels(&self) -> Option<usize> {
        let each = self.reach.ranks_per_node()?;
        let addressed = self.reach.of_rank(0).len() == each;
        (each > 1 && addressed && self.spec.direction == Direction::Push).then_some(each)
    }

    /// Whether shards go straight from `rank` to `peer` by an exchange, and back.
    fn is_exchanged(&self, rank: usize, peer: usize) -> bool {
        !self.reach.has(rank, peer) && self.two_levels().is_none_or(|each| rank % each == peer % each)
    }

    /// Sends `rank`'s shard of call `epoch` to the ranks out of reach and receives theirs, raises this rank's signals for them, and
    /// passes on what its node's others need.
    ///
    /// # Safety
    /// As for [`AllGather::stage`]; the peers in reach have acknowledged the previous call before what the rank's transfer stream
    /// does from here on.
    pub(crate) unsafe fn exchange(
        &self,
        rank: usize,
        epoch: u32,
        rows: usize,
        shard: Rows,
        awaited: Awaited,
    ) -> Result<()> {
        let link = &self.ranks[rank].link;
        let Some(exchange) = &link.exchange else { return Ok(()) };
        // SAFETY: the caller's promise.
        if unsafe { self.gather_at_once(rank, epoch, rows, shard, awaited)? } {
            return Ok(());
        }
        let (world_size, shard) = (self.world_size, self.sent_from(rank, rows, shard)?);
        for step in 1..world_size {
            let (to, from) = ((rank + world_size - step) % world_size, (rank + step) % world_size);
            let (sends, receives) = (self.is_exchanged(rank, to), self.is_exchanged(rank, from));
            if !sends && !receives {
                continue;
            }
            // SAFETY: the caller's promise.
            unsafe {
                let to = sends.then_some(to);
                self.exchange_shards(rank, (to, receives.then_some(from)), epoch, rows, shard, awaited)?;
                if receives && self.two_levels().is_some() {
                    exchange.stream.record(&exchange.came)?;
                    link.transfers.wait(&exchange.came)?;
                    self.pass_on(rank, from, epoch, rows, shard.side.is_some(), awaited)?;
                }
            }
        }
        Ok(())
    }

    /// One step: `rank`'s shard to one peer, another's from there, chunk by chunk. How many chunks that is may differ.
    ///
    /// # Safety
    /// As for [`AllGather::stage`].
    unsafe fn exchange_shards(
        &self,
        rank: usize,
        (to, from): (Option<usize>, Option<usize>),
        epoch: u32,
        rows: usize,
        shard: Rows,
        awaited: Awaited,
    ) -> Result<()> {
        let link = &self.ranks[rank].link;
        let Some(exchange) = &link.exchange else { return Ok(()) };
        let sent = to.map(|to| self.chunks(to, rows)).transpose()?; // as the receiver has it
        let own = self.chunks(rank, rows)?;
        let counts = [sent.as_ref().map(|chunks| chunks.count(rank)), from.map(|from| own.count(from))];
        for index in 0..counts.into_iter().flatten().max().unwrap_or(0) {
            let (mut sends, mut receives) = (Vec::with_capacity(2), Vec::with_capacity(2));
            if let (Some(peer), Some(chunks)) =
                (to, sent.as_ref().filter(|chunks| index < chunks.count(rank)))
            {
                let (begin, range) = (chunks.shards().range(rank).start, chunks.rows(rank, index));
                let from = self.gathered_layout.skip(shard, range.start - begin);
                let place = self.gathered_layout.rows_at(self.gathered(rank), range.start, true);
                self.messages(&mut sends, peer, (from, place), range.len());
            }
            let received = from.filter(|&from| index < own.count(from));
            let signal = received
                .filter(|_| awaited == Awaited::Chunks)
                .map(|from| own.signal(from, index))
                .filter(|_| !self.is_lost(received.unwrap_or(rank), rank));
            let mut moved = None;
            if let Some(from) = received {
                let range = own.rows(from, index);
                let with_side = shard.side.is_some();
                let place = self.gathered_layout.rows_at(self.gathered(rank), range.start, with_side);
                self.messages(&mut receives, from, (place, place), range.len());
                moved = Some(Moved { from, to: rank, bytes: range.len() * self.spec.row_bytes, signal });
            }
            // SAFETY: the caller's promise; what this rank has gathered in the call before was read before its stage, which the
            // exchange's stream follows.
            unsafe {
                exchange.step((link.log.as_ref(), moved), &sends, &receives)?;
                if let Some(signal) = signal {
                    exchange.stream.write_values(&[(self.signals.word(rank, signal), epoch)])?;
                }
            }
        }
        match from {
            // SAFETY: as above.
            Some(from) if awaited == Awaited::Shards && !self.is_lost(from, rank) => unsafe {
                self.arrived.raise(&self.signals, &exchange.stream, from, std::iter::once(rank), epoch)
            },
            _ => Ok(()),
        }
    }

    /// What is beside rows goes before them, and their signal covers both.
    fn messages(&self, messages: &mut Vec<Message>, peer: usize, (at, place): (Rows, Rows), rows: usize) {
        if let (Some(memory), Some(place)) = (at.side, place.side) {
            messages.push(Message { peer, memory, place, bytes: rows * self.spec.side_bytes });
        }
        messages.push(Message {
            peer,
            memory: at.rows,
            place: place.rows,
            bytes: rows * self.spec.row_bytes,
        });
    }

    /// What `rank` sends of a call with `rows` rows: `shard`, or the copy of it among its gathered rows.
    fn sent_from(&self, rank: usize, rows: usize, shard: Rows) -> Result<Rows> {
        if !self.keeps_own(rank) {
            return Ok(shard);
        }
        let first = self.chunks(rank, rows)?.shards().range(rank).start;
        Ok(self.gathered_layout.rows_at(self.gathered(rank), first, shard.side.is_some()))
    }

    /// Whether `rank`'s own rows have to be among its gathered ones, to be sent from there.
    pub(crate) fn keeps_own(&self, rank: usize) -> bool {
        let exchange = self.ranks[rank].link.exchange.as_ref();
        exchange.is_some_and(|exchange| exchange.with.put().is_some())
    }

    /// Pushes the shard of `source`, which has come to `rank` from another node, to the others of `rank`'s node.
    ///
    /// # Safety
    /// As for [`AllGather::exchange`], and the rank's transfer stream follows the arrival.
    unsafe fn pass_on(
        &self,
        rank: usize,
        source: usize,
        epoch: u32,
        rows: usize,
        with_side: bool,
        awaited: Awaited,
    ) -> Result<()> {
        for peer in push_order(rank, self.world_size).filter(|&peer| self.reach.has(rank, peer)) {
            let chunks = self.chunks(peer, rows)?;
            // SAFETY: the caller's promise.
            unsafe {
                for index in 0..chunks.count(source) {
                    let row = chunks.rows(source, index).start;
                    let from = self.gathered_layout.rows_at(self.gathered(rank), row, with_side);
                    self.move_chunk(rank, (source, peer), index, &chunks, from, epoch, awaited)?;
                }
                self.raise_arrived(rank, (source, peer), epoch, awaited)?;
            }
        }
        Ok(())
    }

    /// All shards at once, by an operation that is made for it: where no rank addresses another, all shards are of one size, and
    /// nobody waits for parts of them, or for one shard at a time. False if that is not so, the same on all ranks.
    ///
    /// # Safety
    /// As for [`AllGather::stage`].
    unsafe fn gather_at_once(
        &self,
        rank: usize,
        epoch: u32,
        rows: usize,
        shard: Rows,
        awaited: Awaited,
    ) -> Result<bool> {
        let (link, one_by_one) = (&self.ranks[rank].link, !self.ranks[rank].shard_arrived.is_empty());
        let alone = self.reach.of_rank(rank).len() == 1 && self.reach.of_rank(0).len() == 1;
        let whole = awaited == Awaited::Shards && shard.side.is_none() && self.spec.signal_loss.is_none();
        let even = rows > 0 && rows.is_multiple_of(self.world_size) && self.reach.ranks_per_node().is_some();
        let Some(exchange) =
            link.exchange.as_ref().filter(|_| alone && whole && even && !one_by_one && link.log.is_none())
        else {
            return Ok(false);
        };
        let bytes = rows / self.world_size * self.spec.row_bytes;
        // SAFETY: the caller's promise; see `exchange_shards`.
        unsafe {
            let (stream, all) = (&exchange.stream, self.gathered(rank));
            if !exchange.with.all_gather(stream, &exchange.faults, shard.rows, all, bytes)? {
                return Ok(false);
            }
            let come = (0..self.world_size).filter(|&from| from != rank);
            let words = come.map(|from| self.arrived.word(&self.signals, rank, from));
            crate::link::raise_words(stream, words, epoch)?;
        }
        Ok(true)
    }
}
