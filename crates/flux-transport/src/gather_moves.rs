//! The transfers of an AllGather, as its schedule has them: copies between ranks that address each other, by the sender (push) or
//! by the receiver (pull), and steps of an exchange ([`crate::Exchange`]) between the others.
//!
//! What has come to a rank it passes on only behind its signal, chunk by chunk: the stream that passes it on waits for what the
//! GEMM waits for. What an exchange has brought is passed on shard by shard.

use crate::link::{PeerWords, here, raise_words, stream_site};
use crate::moves::{Comes, Copied, Move, Part, Received, Sent};
use crate::trace::Moved;
use crate::{AllGather, Awaited, Chunk, Direction, Error, Message, Result, Rows};
use flux_memory::{Address, FaultLog, Stream, SymmetricSignals, WaitPoint};
use flux_swizzle::{Chunks, Shards};
use std::sync::Arc;

/// The signals of what has been copied to a rank, for one stream that passes it on.
#[derive(Debug)]
pub(crate) struct Here {
    /// By the chunks' numbers.
    chunks: Vec<Arc<WaitPoint>>,
    /// By shard.
    shards: Vec<Arc<WaitPoint>>,
}

impl Here {
    /// Of each lane that passes on what has been copied to `rank`, and, last, of the exchange; empty if none does. (Whoever pulls is
    /// told when it may.)
    #[allow(clippy::too_many_arguments)] // whose signals, which, and who waits for them
    pub(crate) fn all(
        part: &Part,
        (gates, signals): (&SymmetricSignals, &SymmetricSignals),
        log: &Arc<FaultLog>,
        op: u32,
        (rank, largest): (usize, &Chunks),
        arrived: PeerWords,
        pushes: bool,
    ) -> Result<Vec<Option<Self>>> {
        let pushed_on = |lane: usize| {
            let mut copies = part.copies().map(|(_, copied)| copied);
            copies.any(|copied| pushes && (copied.lane, copied.comes) == (lane, Comes::Copied))
        };
        let sent_on = part.sends().any(|sent| sent.comes == Comes::Copied);
        let pass_on: Vec<bool> = (0..part.lanes).map(pushed_on).chain([sent_on]).collect();
        if !pass_on.contains(&true) {
            return Ok(Vec::new());
        }
        let each = largest.signal(1, 0).max(1);
        let site = |signal: usize| vec![(gates.word(rank, signal), stream_site(signal / each, signal))];
        let one = |_| {
            let chunks = log.wait_points(op, (0..largest.signals()).map(site).collect())?;
            let shards = arrived.wait_points(signals, log, op, rank, largest.shards().world_size())?;
            Ok::<_, Error>(Self { chunks, shards })
        };
        pass_on.into_iter().map(|passes_on| passes_on.then_some(()).map(one).transpose()).collect()
    }
}

/// A rank's part of a call.
#[derive(Clone, Copy)]
struct Call {
    rank: usize,
    epoch: u32,
    rows: usize,
    /// The rank's own rows.
    shard: Rows,
    awaited: Awaited,
}

impl AllGather {
    /// One of the [`AllGather::rounds`] in which the transfers of a call are started, in place of [`AllGather::transfer`]: each for
    /// all ranks of a GPU before the next.
    ///
    /// # Safety
    /// As for [`AllGather::stage`].
    pub unsafe fn transfer_round(
        &self,
        round: usize,
        rank: usize,
        epoch: u32,
        rows: usize,
        shard: impl Into<Rows>,
        awaited: Awaited,
    ) -> Result<()> {
        let state = here(&self.ranks, rank, self.world_size)?;
        let call = Call { rank, epoch, rows, shard: shard.into(), awaited };
        let push = self.spec.direction == Direction::Push;
        // SAFETY: the caller's promise.
        unsafe {
            let is_pushed = round == 0 && push && self.push_whole(rank, epoch, rows, call.shard, awaited)?;
            let is_gathered = round == 0 && self.gather_at_once(&call)?;
            for of_round in state.part.of_round(round) {
                match of_round {
                    Move::Copy(copied) if is_pushed && copied.comes == Comes::Own => {}
                    Move::Copy(copied) if push => self.push(&call, copied)?,
                    Move::Copy(copied) => self.pull(&call, copied)?,
                    Move::Exchange { .. } if is_gathered => {}
                    Move::Exchange { sends, receives } => self.exchange(&call, sends, receives)?,
                }
            }
        }
        if round + 1 == self.rounds() { state.link.end() } else { Ok(()) }
    }

    /// # Safety
    /// As for [`AllGather::stage`].
    unsafe fn push(&self, call: &Call, copied: &Copied) -> Result<()> {
        let &Call { rank, epoch, rows, awaited, .. } = call;
        let &Copied { peer, shard, lane, .. } = copied;
        let (state, chunks) = (&self.ranks[rank], self.chunks(peer, rows)?);
        let stream = state.link.lane(lane);
        // SAFETY: the caller's promise; the peer has acknowledged the previous call before its rows are overwritten.
        unsafe {
            if let Some(before) = copied.after {
                state.link.follow(stream, before)?;
            }
            if copied.is_first {
                stream.wait_values(&state.may_move[peer], epoch.wrapping_sub(1))?;
            }
            if let Some(Some(came)) = state.came.get(shard) {
                stream.wait(came)?;
            }
            let waits = if copied.comes == Comes::Copied { Some(lane) } else { None };
            self.wait_for_shard(call, waits, shard, stream)?;
            for index in 0..chunks.count(shard) {
                let range = chunks.rows(shard, index);
                self.wait_for_rows(call, waits, shard, range.end, stream)?;
                let from = self.source(call, shard, range.start);
                self.move_chunk(call, (rank, peer), (shard, index), lane, &chunks, from)?;
            }
            if awaited == Awaited::Shards {
                self.raise_arrived(stream, shard, peer, epoch)?;
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for [`AllGather::stage`].
    unsafe fn pull(&self, call: &Call, copied: &Copied) -> Result<()> {
        let &Call { rank, epoch, rows, awaited, .. } = call;
        let &Copied { peer, shard, lane, .. } = copied;
        let (state, chunks) = (&self.ranks[rank], self.chunks(rank, rows)?);
        let (stream, with_side) = (state.link.lane(lane), call.shard.side.is_some());
        // SAFETY: the caller's promise; the rows are complete where they are fetched from, and stay until the peer is told that
        // they were read.
        unsafe {
            match copied.comes {
                Comes::Own => stream.wait_values(&state.may_move[peer], epoch)?,
                _ => stream.wait_values(&state.may_fetch[shard], epoch)?,
            }
            for index in 0..chunks.count(shard) {
                let row = chunks.rows(shard, index).start;
                let from = match &self.outbox {
                    None => self.gathered_layout.rows_at(self.gathered(peer), row, with_side),
                    Some(outbox) => {
                        let row = row - chunks.shards().range(shard).start;
                        self.outbox_layout.rows_at(outbox.address(peer), row, with_side)
                    }
                };
                self.move_chunk(call, (peer, rank), (shard, index), lane, &chunks, from)?;
            }
            if awaited == Awaited::Shards {
                self.raise_arrived(stream, shard, rank, epoch)?;
            }
            self.raise_passed(stream, shard, &copied.pulled_by, epoch)?;
            if copied.is_last {
                self.acks.raise(&self.signals, stream, rank, std::iter::once(peer), epoch)?;
            }
        }
        Ok(())
    }

    /// One step: what goes to ranks out of reach and what comes from there, chunk by chunk. How many chunks that is may differ.
    ///
    /// # Safety
    /// As for [`AllGather::stage`].
    unsafe fn exchange(&self, call: &Call, sends: &[Sent], receives: &[Received]) -> Result<()> {
        let &Call { rank, epoch, rows, awaited, .. } = call;
        let state = &self.ranks[rank];
        let Some(exchange) = &state.link.exchange else { return Ok(()) };
        let (stream, own) = (&exchange.stream, self.chunks(rank, rows)?);
        let waits = |sent: &Sent| if sent.comes == Comes::Copied { Some(state.part.lanes) } else { None };
        let mut count = receives.iter().map(|received| own.count(received.shard)).max().unwrap_or(0);
        // SAFETY: the caller's promise; what this rank has gathered in the call before was read before its stage, which the
        // exchange's stream follows.
        unsafe {
            for sent in sends {
                if let Some(before) = sent.after {
                    state.link.follow(stream, before)?;
                }
                self.wait_for_shard(call, waits(sent), sent.shard, stream)?;
                count = count.max(self.chunks(sent.peer, rows)?.count(sent.shard));
            }
            for index in 0..count {
                let mut step = exchange.next();
                for sent in sends {
                    let chunks = self.chunks(sent.peer, rows)?; // as the receiver has it
                    let range = chunks.rows(sent.shard, index);
                    if range.is_empty() {
                        continue;
                    }
                    self.wait_for_rows(call, waits(sent), sent.shard, range.end, stream)?;
                    let with_side = call.shard.side.is_some();
                    let place = self.gathered_layout.rows_at(self.gathered(rank), range.start, with_side);
                    let from = match self.keeps_own(rank) {
                        true => place,
                        false => self.source(call, sent.shard, range.start),
                    };
                    self.messages(&mut step.sends, sent.peer, (from, place), range.len());
                }
                for &Received { peer, shard, .. } in receives {
                    let range = own.rows(shard, index);
                    if range.is_empty() {
                        continue;
                    }
                    let with_side = call.shard.side.is_some();
                    let place = self.gathered_layout.rows_at(self.gathered(rank), range.start, with_side);
                    self.messages(&mut step.receives, peer, (place, place), range.len());
                    let signal = Some(own.signal(shard, index)).filter(|_| awaited == Awaited::Chunks);
                    let signal = signal.filter(|_| !self.is_lost(shard, rank));
                    let bytes = range.len() * self.spec.row_bytes;
                    let lane = Moved::EXCHANGED;
                    step.moved.push(Moved { from: peer, to: rank, shard, lane, bytes, signal });
                    step.raised.extend(signal.map(|signal| self.gates.word(rank, signal)));
                }
                exchange.take(&step, state.link.log.as_ref(), epoch)?;
            }
            for received in receives {
                if awaited == Awaited::Shards {
                    self.raise_arrived(stream, received.shard, rank, epoch)?;
                }
                self.raise_passed(stream, received.shard, &received.pulled_by, epoch)?;
                if let Some(came) = state.came[received.shard].as_ref().filter(|_| received.is_pushed_on) {
                    stream.record(came)?;
                }
            }
        }
        Ok(())
    }

    /// Where `rank` has the rows of `shard` from `row` on: its own where the caller has them, what has come where it has come to.
    fn source(&self, call: &Call, shard: usize, row: usize) -> Rows {
        if shard != call.rank {
            let with_side = call.shard.side.is_some();
            return self.gathered_layout.rows_at(self.gathered(call.rank), row, with_side);
        }
        let first = Shards::new(call.rows, self.world_size).map_or(row, |shards| shards.range(shard).start);
        self.gathered_layout.skip(call.shard, row - first)
    }

    /// `stream`, which passes it on from what is kept for `waits`, goes on only when all of `shard` is here, if shards are awaited.
    ///
    /// # Safety
    /// As for [`AllGather::stage`].
    unsafe fn wait_for_shard(
        &self,
        call: &Call,
        waits: Option<usize>,
        shard: usize,
        stream: &Stream,
    ) -> Result<()> {
        match self.here(call.rank, waits) {
            Some(here) if call.awaited == Awaited::Shards => {
                // SAFETY: the signals belong to this op.
                unsafe { stream.wait_values(&here.shards[shard], call.epoch) }.map_err(Error::from)
            }
            _ => Ok(()),
        }
    }

    /// The same of the rows of `shard` before `end`, if chunks are awaited: they come in order.
    ///
    /// # Safety
    /// As for [`AllGather::stage`].
    unsafe fn wait_for_rows(
        &self,
        call: &Call,
        waits: Option<usize>,
        shard: usize,
        end: usize,
        stream: &Stream,
    ) -> Result<()> {
        match self.here(call.rank, waits) {
            Some(here) if call.awaited == Awaited::Chunks => {
                let own = self.chunks(call.rank, call.rows)?;
                let signal = own.signal(shard, own.index_of(shard, end.saturating_sub(1)));
                // SAFETY: the signals belong to this op.
                unsafe { stream.wait_values(&here.chunks[signal], call.epoch) }.map_err(Error::from)
            }
            _ => Ok(()),
        }
    }

    fn here(&self, rank: usize, waits: Option<usize>) -> Option<&Here> {
        self.ranks[rank].here.get(waits?)?.as_ref()
    }

    /// Moves chunk `index` of `shard` from a rank to another, on the stream of a lane.
    ///
    /// # Safety
    /// As for [`AllGather::stage`].
    unsafe fn move_chunk(
        &self,
        call: &Call,
        (from, to): (usize, usize),
        (shard, index): (usize, usize),
        lane: usize,
        chunks: &Chunks,
        source: Rows,
    ) -> Result<()> {
        let &Call { rank, epoch, awaited, .. } = call;
        let rows = chunks.rows(shard, index);
        let signal = (awaited == Awaited::Chunks).then(|| chunks.signal(shard, index));
        let raised = signal.filter(|_| !self.is_lost(shard, to));
        let place = self.gathered_layout.rows_at(self.gathered(to), rows.start, source.side.is_some());
        let bytes = rows.len() * self.spec.row_bytes;
        let raised = raised.map_or(Address::NULL, |signal| self.gates.word(to, signal));
        let chunk = Chunk { from: source.rows, to: place.rows, bytes, signal: raised };
        let link = &self.ranks[rank].link;
        // SAFETY: the caller's promise.
        unsafe {
            if let (Some(from), Some(to)) = (source.side, place.side) {
                let bytes = rows.len() * self.spec.side_bytes;
                let side = Chunk { from, to, bytes, signal: Address::NULL }; // covered by the rows' signal
                self.transfer.move_chunk(link.lane(lane), &side, epoch)?;
            }
            link.move_chunk(&*self.transfer, &chunk, epoch, Moved { from, to, shard, lane, bytes, signal })
        }
    }

    /// What is beside rows goes before them, and their signal covers both.
    fn messages(&self, messages: &mut Vec<Message>, peer: usize, (at, place): (Rows, Rows), rows: usize) {
        if let (Some(memory), Some(place)) = (at.side, place.side) {
            messages.push(Message { peer, memory, place, bytes: rows * self.spec.side_bytes });
        }
        let bytes = rows * self.spec.row_bytes;
        messages.push(Message { peer, memory: at.rows, place: place.rows, bytes });
    }

    /// Whether `rank`'s own rows have to be among its gathered ones, to be sent from there.
    pub(crate) fn keeps_own(&self, rank: usize) -> bool {
        let exchange = self.ranks[rank].link.exchange.as_ref();
        exchange.is_some_and(|exchange| exchange.with.put().is_some())
    }

    /// All of `shard` has come to rank `to`.
    ///
    /// # Safety
    /// As for [`AllGather::stage`].
    unsafe fn raise_arrived(&self, stream: &Stream, shard: usize, to: usize, epoch: u32) -> Result<()> {
        if self.is_lost(shard, to) {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.arrived.raise(&self.signals, stream, shard, std::iter::once(to), epoch) }
    }

    /// Those who pull `shard` on from here may.
    ///
    /// # Safety
    /// As for [`AllGather::stage`].
    unsafe fn raise_passed(&self, stream: &Stream, shard: usize, to: &[usize], epoch: u32) -> Result<()> {
        let words = to.iter().map(|&to| self.passed.word(&self.signals, to, shard));
        // SAFETY: the caller's promise.
        unsafe { raise_words(stream, words, epoch) }
    }

    /// All shards at once, by an operation that is made for it: where no rank addresses another, none passes anything on, all shards
    /// are of one size, and nobody waits for parts of them, or for one shard at a time. False if that is not so, the same on all
    /// ranks.
    ///
    /// # Safety
    /// As for [`AllGather::stage`].
    unsafe fn gather_at_once(&self, call: &Call) -> Result<bool> {
        let &Call { rank, epoch, rows, shard, awaited } = call;
        let (link, one_by_one) = (&self.ranks[rank].link, !self.ranks[rank].shard_arrived.is_empty());
        let alone = self.reach.of_rank(rank).len() == 1 && self.reach.of_rank(0).len() == 1;
        let whole = awaited == Awaited::Shards && shard.side.is_none() && self.spec.signal_loss.is_none();
        let even = rows > 0 && rows.is_multiple_of(self.world_size) && self.reach.ranks_per_node().is_some();
        let (alone, plain) = (alone && self.rounds() == 1, !one_by_one && link.log.is_none());
        let Some(exchange) = link.exchange.as_ref().filter(|_| alone && whole && even && plain) else {
            return Ok(false);
        };
        let bytes = rows / self.world_size * self.spec.row_bytes;
        // SAFETY: the caller's promise; see `exchange`.
        unsafe {
            let (stream, all) = (&exchange.stream, self.gathered(rank));
            if !exchange.with.all_gather(stream, &exchange.faults, shard.rows, all, bytes)? {
                return Ok(false);
            }
            let come = (0..self.world_size).filter(|&from| from != rank);
            let words = come.map(|from| self.arrived.word(&self.signals, rank, from));
            raise_words(stream, words, epoch)?;
        }
        Ok(true)
    }
}
