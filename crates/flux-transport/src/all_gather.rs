//! AllGather: every rank's rows come to every rank, chunk by chunk, each followed by its signal.
//!
//! A call, for one rank: [`AllGather::stage`] and
//! [`AllGather::transfer`] start the transfers; then whatever reads the gathered rows (a GEMM that
//! waits for each chunk's signal itself, or [`AllGather::wait_for_all`] and anything else: [`Awaited`]); then
//! [`AllGather::release`], which lets the peers overwrite what was read.
//!
//! Who sends what to whom when is a [`flux_swizzle::Schedule`]: that of [`AllGatherSpec::pattern`], as `moves.rs` has it for each
//! rank. `gather_moves.rs` does what it says: by copies, and, between ranks that cannot address each other, by sending and receiving.

use crate::gather_moves::Here;
use crate::link::{Link, PeerWords, check_rank, here};
use crate::moves::{Comes, Gathering, Part};
use crate::rows::Layout;
use crate::{Awaited, DataTransfer, Direction, Error, Members, Result, Rows, SignalLoss, TransferLog};
use flux_memory::{
    Address, Event, PerRank, Placement, Reach, Stream, SymmetricBuffer, SymmetricSignals, WaitPoint,
};
use flux_swizzle::{ChunkRows, Chunks, Pattern, Taper};
use std::sync::Arc;

/// What an [`AllGather`] is built for.
#[derive(Clone, Debug)]
pub struct AllGatherSpec {
    /// The largest number of rows of a call, all ranks' together.
    pub max_rows: usize,
    /// Bytes of a row; rows follow each other without a gap.
    pub row_bytes: usize,
    /// Bytes that may travel with each row: a call says whether they do. They come before its chunk's signal.
    pub side_bytes: usize,
    /// Rows of a chunk.
    pub chunk_rows: ChunkRows,
    /// Which chunks on the way to a rank are cut finer.
    pub taper: Taper,
    /// Who moves the data.
    pub direction: Direction,
    /// Who sends to whom. What is to be passed on is so from device memory.
    pub pattern: Pattern,
    /// Where what crosses between ranks lies, and the signals. In pinned host memory: when pushing, the gathered rows
    /// themselves, which a GPU's GEMM then reads over PCIe; when pulling, a copy of each shard, from which the peers fetch
    /// it into device memory.
    pub placement: Placement,
    /// The number of the operation, for fault records.
    pub op: u32,
    /// A fault to rehearse.
    pub signal_loss: Option<SignalLoss>,
}

/// The buffers, signals and streams of an AllGather, of the ranks of this process.
#[derive(Debug)]
pub struct AllGather {
    /// First, so that they are dropped first: their wait points before the signals.
    pub(crate) ranks: PerRank<Rank>,
    pub(crate) world_size: usize,
    pub(crate) reach: Arc<Reach>,
    pub(crate) transfer: Box<dyn DataTransfer>,
    pub(crate) spec: AllGatherSpec,
    pub(crate) largest: Chunks,
    pub(crate) gathered: SymmetricBuffer,
    pub(crate) gathered_layout: Layout,
    pub(crate) outbox_layout: Layout,
    /// Pull through pinned host memory: where a rank puts its shard for its peers to read.
    pub(crate) outbox: Option<SymmetricBuffer>,
    rounds: usize,
    /// The chunks' signals, which GEMMs poll.
    pub(crate) gates: SymmetricSignals,
    /// All others.
    pub(crate) signals: SymmetricSignals,
    /// Push: the peer has read what was sent to it. Pull: the peer has read this rank's shard.
    pub(crate) acks: PeerWords,
    /// Pull: the peer's shard may be read.
    ready: PeerWords,
    /// The peer's whole shard has arrived.
    pub(crate) arrived: PeerWords,
    /// Pull: the peer's shard may be read where it has come to from that peer, or from another.
    pub(crate) passed: PeerWords,
}

#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) link: Link,
    pub(crate) part: Part,
    /// Per peer: its acknowledgement (push), or its readiness (pull), before data moves.
    pub(crate) may_move: Vec<Arc<WaitPoint>>,
    /// Pull, per shard: before it is fetched from where it was passed to. Empty if none is.
    pub(crate) may_fetch: Vec<Arc<WaitPoint>>,
    /// By lane, and last those of the exchange: what has been copied here, before it is passed on.
    pub(crate) here: Vec<Option<Here>>,
    /// Per shard: when an exchange has brought it here, for copies that push it on.
    pub(crate) came: Vec<Option<Event>>,
    /// Whether what this rank sends is read from among its gathered rows, where peers push.
    sends_gathered: bool,
    /// The acknowledgements of all peers in reach. Pull: of those that fetch from this rank, before what they read is
    /// overwritten. Push: before its shard goes to all at once.
    pub(crate) all_acked: Arc<WaitPoint>,
    all_arrived: Arc<WaitPoint>,
    /// Per peer: its whole shard. Empty before [`AllGather::watch_shards`].
    pub(crate) shard_arrived: Vec<Arc<WaitPoint>>,
}

impl AllGather {
    /// Allocates for every rank a buffer of `max_rows` rows, and the signals.
    pub fn new(transfer: Box<dyn DataTransfer>, members: &Members, spec: AllGatherSpec) -> Result<Self> {
        let world_size = members.world_size();
        let largest = spec.chunk_rows.numbered(spec.max_rows, world_size, spec.taper)?;
        let space = &members.space;
        let through_host = spec.direction == Direction::Pull && spec.placement == Placement::PinnedHost;
        let layout = |rows| Layout::new(rows, spec.row_bytes, spec.side_bytes);
        let Gathering { parts, rounds, copies_on } =
            Gathering::new(&spec.pattern, space.reach(), spec.direction, space.local_ranks())?;
        if copies_on && spec.placement == Placement::PinnedHost {
            return Err(Error::CannotPassOn);
        }
        let (gathered_layout, outbox_layout) = (layout(spec.max_rows), layout(largest.shards().max_rows()));
        let allocate =
            |layout: Layout, placement| SymmetricBuffer::allocate(space, layout.bytes(), placement);
        let gathered_in = if through_host { Placement::Device } else { spec.placement };
        let gathered = allocate(gathered_layout, gathered_in)?;
        let outbox = through_host.then(|| allocate(outbox_layout, spec.placement)).transpose()?;
        let words = |row: usize| PeerWords { first: row * world_size };
        let [acks, ready, arrived, passed] = [0, 1, 2, 3].map(words);
        // Where a rank fetches, nobody else raises its chunks' signals. In the host's memory, GEMMs that poll them would take the link
        // from the very rows that they wait for.
        let gates = SymmetricSignals::allocate(space, largest.signals(), gathered_in)?;
        let signals = SymmetricSignals::allocate(space, 4 * world_size, spec.placement)?;
        let pulls = spec.direction == Direction::Pull;
        let before_moving = if pulls { ready } else { acks };
        let moved =
            parts.iter().map(|part| part.copies().count() + part.receives().count()).max().unwrap_or(0);
        let chunks = moved.saturating_mul(largest.signal(1, 0));
        let ranks = Link::all(members, chunks, |rank| parts[rank].lanes)?.try_map(|rank, link| {
            let (log, part) = (&members.faults[rank], parts[rank].clone());
            let others = || (0..world_size).filter(move |&peer| peer != rank);
            let in_reach = space.reach().of_rank(rank).filter(|&peer| peer != rank);
            let acking = if pulls { part.copied_to.clone() } else { in_reach.collect() };
            let fetches = part.copies().any(|(_, copied)| pulls && copied.comes != Comes::Own);
            let fetched = if fetches { world_size } else { 0 };
            let mut came: Vec<Option<Event>> = (0..world_size).map(|_| None).collect();
            for received in part.receives().filter(|received| received.is_pushed_on) {
                came[received.shard] = Some(Event::new(&members.devices[rank])?);
            }
            let here = Here::all(&part, (&gates, &signals), log, spec.op, (rank, &largest), arrived, !pulls)?;
            let puts = link.exchange.as_ref().is_some_and(|exchange| exchange.with.put().is_some());
            let sends_gathered = puts || !here.is_empty() || came.iter().any(Option::is_some);
            Ok::<_, Error>(Rank {
                may_move: before_moving.wait_points(&signals, log, spec.op, rank, world_size)?,
                may_fetch: passed.wait_points(&signals, log, spec.op, rank, fetched)?,
                all_acked: acks.wait_point(&signals, log, spec.op, rank, acking.into_iter())?,
                all_arrived: arrived.wait_point(&signals, log, spec.op, rank, others())?,
                shard_arrived: Vec::new(),
                here,
                came,
                sends_gathered,
                link,
                part,
            })
        })?;
        let mut gather = Self {
            ranks,
            world_size,
            reach: Arc::clone(members.space.reach()),
            transfer,
            spec,
            largest,
            gathered,
            gathered_layout,
            outbox_layout,
            outbox,
            rounds,
            gates,
            signals,
            acks,
            ready,
            arrived,
            passed,
        };
        gather.plan_pushes(members)?;
        Ok(gather)
    }

    /// The gathered rows of `rank`: `[rows, row_bytes]`.
    pub fn gathered(&self, rank: usize) -> Address {
        self.gathered.address(rank)
    }

    /// What has travelled beside the gathered rows of `rank`: `[rows, side_bytes]`.
    pub fn gathered_side(&self, rank: usize) -> Address {
        let all = self.gathered_layout.rows_at(self.gathered(rank), 0, true);
        all.side.unwrap_or_default()
    }

    /// `rank`'s signals: the gates that [`Chunks::gate`] names are indices into them.
    pub fn gates(&self, rank: usize) -> Address {
        self.gates.word(rank, 0)
    }

    /// How a call with `rows` rows is cut into chunks for `receiver`: which of them are finer depends on whose arrive last.
    pub fn chunks(&self, receiver: usize, rows: usize) -> Result<Chunks> {
        let max_rows = self.spec.max_rows;
        if rows > max_rows {
            return Err(Error::TooManyRows { rows, max_rows });
        }
        let chunks = self.spec.chunk_rows.cut(rows, self.world_size)?;
        Ok(chunks.tapered(self.spec.taper, receiver).numbered_as(&self.largest))
    }

    /// Where `rank` may put its shard of a call with `rows` rows before [`AllGather::stage`], to save a copy; only after
    /// [`AllGather::claim`].
    pub fn shard(&self, rank: usize, rows: usize) -> Result<Address> {
        check_rank(rank, self.world_size)?;
        let first_row = self.chunks(rank, rows)?.shards().range(rank).start;
        Ok(self.gathered_layout.rows_at(self.gathered(rank), first_row, false).rows)
    }

    /// `compute` goes on only when [`AllGather::shard`] may be overwritten: what the call before `epoch` left there has been
    /// sent, or fetched by the peers.
    ///
    /// # Safety
    /// As for [`AllGather::stage`].
    pub unsafe fn claim(&self, rank: usize, epoch: u32, compute: &Stream) -> Result<()> {
        let state = here(&self.ranks, rank, self.world_size)?;
        state.link.follow_previous(compute)?; // which ended after its own pushes
        if self.spec.direction == Direction::Pull {
            // SAFETY: the signals belong to this op.
            unsafe { compute.wait_values(&state.all_acked, epoch.wrapping_sub(1))? };
        }
        Ok(())
    }

    /// Begins `rank`'s part of call `epoch`: `rows` rows in all, its own shard at `shard`. `compute` is the caller's
    /// stream, on which the shard is complete; the shard may be overwritten after [`AllGather::release`] on it. The shard is
    /// among `rank`'s gathered rows only if `keep_own`, or if it was there already; what travels beside it always is.
    ///
    /// # Safety
    /// `shard` holds the rank's rows, reachable by its device, until `compute` has passed the release. Every rank makes
    /// the same sequence of calls, with the same rows; epochs rise by one from 1.
    pub unsafe fn stage(
        &self,
        rank: usize,
        epoch: u32,
        rows: usize,
        shard: impl Into<Rows>,
        keep_own: bool,
        compute: &Stream,
    ) -> Result<()> {
        let state = here(&self.ranks, rank, self.world_size)?;
        let (shard, chunks) = (shard.into(), self.chunks(rank, rows)?);
        let (own_rows, with_side) = (chunks.shards().range(rank), shard.side.is_some());
        let own_place = self.gathered_layout.rows_at(self.gathered(rank), own_rows.start, with_side);
        let push = self.spec.direction == Direction::Push;
        // SAFETY: all buffers belong to this op, which settles its streams before it frees them; the caller answers for
        // the shard. The epochs keep the peers' accesses apart.
        unsafe {
            self.claim(rank, epoch, compute)?;
            if push {
                state.link.fork(compute)?; // what is pushed is the caller's shard, complete already
            } else if let Some(outbox) = &self.outbox {
                let place = self.outbox_layout.rows_at(outbox.address(rank), 0, with_side);
                self.outbox_layout.copy(compute, place, shard, own_rows.len())?;
            }
            // What is beside the rows is always read from among the gathered, also where the rows themselves are not.
            let fetched_there = !push && self.outbox.is_none();
            let kept = match keep_own || fetched_there || self.keeps_own(rank) {
                true => shard,
                false => Rows { rows: own_place.rows, ..shard },
            };
            self.gathered_layout.copy(compute, own_place, kept, own_rows.len())?;
            if push && self.keeps_own(rank) {
                state.link.fork_exchange(compute)?; // what is sent is that copy
            }
            if !push {
                self.ready.raise(&self.signals, compute, rank, self.others(rank), epoch)?;
                state.link.fork(compute)?;
            }
        }
        Ok(())
    }

    /// Who sends to whom.
    pub const fn pattern(&self) -> &Pattern {
        &self.spec.pattern
    }

    /// In how many rounds the transfers of a call are started: one, unless ranks pass on what has come to them.
    pub const fn rounds(&self) -> usize {
        self.rounds
    }

    /// The order in which shards come to `rank`, its own first: that in which they are best computed. Of a rank that does not live
    /// here, none.
    pub fn order(&self, rank: usize) -> &[usize] {
        self.ranks.get(rank).map_or(&[], |state| &state.part.order)
    }

    /// Starts all of `rank`'s transfers of call `epoch`, after [`AllGather::stage`]; `awaited` is the same on every rank. Where
    /// ranks share a GPU, all are staged before the first transfers start, and these start round by round
    /// ([`AllGather::transfer_round`]): streams that share a hardware queue run in the order of their submission, and a wait for
    /// what is submitted later could hold it up.
    ///
    /// # Safety
    /// As for [`AllGather::stage`].
    pub unsafe fn transfer(
        &self,
        rank: usize,
        epoch: u32,
        rows: usize,
        shard: impl Into<Rows>,
        awaited: Awaited,
    ) -> Result<()> {
        let shard = shard.into();
        // SAFETY: the caller's promise.
        (0..self.rounds)
            .try_for_each(|round| unsafe { self.transfer_round(round, rank, epoch, rows, shard, awaited) })
    }

    /// `compute` goes on only when all peers' shards of call `epoch` have arrived at `rank`, if that is [`Awaited`].
    ///
    /// # Safety
    /// As for [`AllGather::stage`].
    pub unsafe fn wait_for_all(&self, rank: usize, epoch: u32, compute: &Stream) -> Result<()> {
        let state = here(&self.ranks, rank, self.world_size)?;
        // SAFETY: the signals belong to this op.
        unsafe { compute.wait_values(&state.all_arrived, epoch) }.map_err(Error::from)
    }

    /// Makes it possible to wait for one shard at a time: [`AllGather::wait_for`]. `members` are those that it was built
    /// for.
    pub fn watch_shards(&mut self, members: &Members) -> Result<()> {
        for rank in self.ranks.ranks() {
            let log = &members.faults[rank];
            self.ranks[rank].shard_arrived =
                self.arrived.wait_points(&self.signals, log, self.spec.op, rank, members.world_size())?;
        }
        Ok(())
    }

    /// When `rank`'s transfer streams moved which chunk; none unless [`Members::trace`].
    pub fn log(&self, rank: usize) -> Option<&TransferLog> {
        self.ranks.get(rank)?.link.log.as_ref()
    }

    /// `compute` goes on only when `peer`'s shard of call `epoch` has arrived at `rank`; at once if that is `rank` itself.
    /// Without [`AllGather::watch_shards`] it goes on only when all have.
    ///
    /// # Safety
    /// As for [`AllGather::stage`].
    pub unsafe fn wait_for(&self, rank: usize, peer: usize, epoch: u32, compute: &Stream) -> Result<()> {
        let state = here(&self.ranks, rank, self.world_size)?;
        check_rank(peer, self.world_size)?;
        if peer == rank {
            return Ok(());
        }
        let point = state.shard_arrived.get(peer).unwrap_or(&state.all_arrived);
        // SAFETY: the signals belong to this op.
        unsafe { compute.wait_values(point, epoch) }.map_err(Error::from)
    }

    /// `compute` has enqueued its last reader of call `epoch`: the peers may overwrite `rank`'s gathered rows after it.
    ///
    /// # Safety
    /// As for [`AllGather::stage`].
    pub unsafe fn release(&self, rank: usize, epoch: u32, compute: &Stream) -> Result<()> {
        let state = here(&self.ranks, rank, self.world_size)?;
        let link = &state.link;
        if state.sends_gathered {
            link.join(compute)?; // peers must not overwrite what is still to be sent
        }
        if self.spec.direction == Direction::Push {
            // SAFETY: the signals belong to this op.
            unsafe {
                link.raise_after(compute, self.acks.words(&self.signals, rank, self.others(rank)), epoch)?
            };
        }
        if !state.sends_gathered {
            link.join(compute)?;
        }
        link.release(compute)
    }

    /// The peers that `rank` can address.
    pub(crate) fn others(&self, rank: usize) -> impl Iterator<Item = usize> {
        self.reach.of_rank(rank).filter(move |&peer| peer != rank)
    }

    /// Waits on this thread until all calls and transfers have ended.
    pub fn settle(&self) {
        self.ranks.iter().for_each(|rank| rank.link.settle());
    }

    pub(crate) fn is_lost(&self, from: usize, to: usize) -> bool {
        self.spec.signal_loss == Some(SignalLoss { from, to })
    }
}

impl Drop for AllGather {
    fn drop(&mut self) {
        self.settle();
    }
}
