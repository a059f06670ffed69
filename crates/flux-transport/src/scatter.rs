//! ReduceScatter without the reduction: every rank's partial rows come to the rank that owns them, each source into a
//! slot of its own, so that the owner can sum them in rank order.
//!
//! Slots are filled in one of two ways: a GEMM writes its tiles to [`Scatter::target`], which may be the slot itself, or else
//! [`Scatter::relay`] carries them there, and the signals of [`Scatter::block_signals`] come up one by one; or GEMMs write to
//! [`Scatter::partial`], and [`Scatter::stage`] and [`Scatter::transfer`] move the rows, or [`Scatter::stage_shard`] and
//! [`Scatter::transfer_rest`], destination by destination. Then the owner sums its slots, and [`Scatter::release`] lets the
//! sources overwrite them.
//!
//! Who sends when to whom is a [`flux_swizzle::Schedule`], a [`flux_swizzle::Collective::Scatter`]: rows go straight to their owner,
//! in the order that [`ScatterSpec::pattern`] gives. Between ranks that cannot address each other, they are sent and received:
//! `scatter_exchange.rs`.
//!
//! With [`ScatterSpec::sum_in_nodes`] what goes to another node is summed first, in two levels: `levels.rs`.
//!
//! With [`Scatter::to_all`] every rank owns all rows: an AllReduce in one step, with more to move than a ReduceScatter and
//! an AllGather, and one wait less.

use crate::landing::Landing;
use crate::levels::{Levels, slot_layout};
use crate::link::{Link, PeerWords, here, stream_site};
use crate::relay::Relay;
use crate::scatter_puts::{PutWords, Puts};
use crate::turns::Scattering;
use crate::{DataTransfer, Direction, Error, Members, Result, SignalLoss, SumSlots, TransferLog};
use flux_memory::{Address, PerRank, Placement, Reach, Stream, SymmetricBuffer, SymmetricSignals, WaitPoint};
use flux_swizzle::{ChunkRows, Chunks, PanelCut, Panels, Pattern, SlotLayout, SlotPlace, Taper};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Larger than any epoch.
const NO_PULL: u64 = u64::MAX;

/// What a [`Scatter`] is built for.
#[derive(Clone, Debug)]
pub struct ScatterSpec {
    /// The largest number of rows of a call, all ranks' together.
    pub max_rows: usize,
    /// Bytes from one row of a slot, or of the partial rows, to the next.
    pub row_bytes: usize,
    /// Rows of a chunk; where tiles are relayed, rounded up to whole blocks.
    pub chunk_rows: ChunkRows,
    /// Which chunks of relayed tiles, on their way from a rank, are cut finer; into whole blocks.
    pub taper: Taper,
    /// Into how many panels relayed chunks are cut, where all tiles for other ranks are relayed by copies and none summed on their
    /// way; elsewhere they go in whole rows. Each panel of a block of rows has a signal, and is copied as a part of its rows, whatever the
    /// [`DataTransfer`].
    pub panels: PanelCut,
    /// Rows of a block: all that share one of the signals that tell a slot's owner of a GEMM's tiles. 0 if there are none.
    pub block_rows: usize,
    /// Whether rows may be moved from [`Scatter::partial`]; costs `max_rows` rows of memory.
    pub with_partial: bool,
    /// Whether a GEMM's tiles for other ranks are relayed ([`Scatter::relay`]); costs `world_size` slots of device memory,
    /// in which the partial rows lie too unless peers pull them from pinned host memory, or GEMMs put. [`Scatter::to_all`] relays none.
    pub relayed: bool,
    /// Whether GEMMs put their tiles for ranks out of reach by themselves ([`Scatter::put_target`]), and do not leave them to the
    /// exchange, which must be by puts. [`Scatter::to_all`] does not.
    pub puts: bool,
    /// How slots are summed, if what the ranks of a node have for an owner on another one is to be summed before it leaves
    /// ([`Error::NotTwoLevels`] where it cannot be); costs two more slots for each other node. Then no GEMM puts, and every slot's
    /// source moves it within its node. Not for [`Scatter::to_all`].
    pub sum_in_nodes: Option<Arc<dyn SumSlots>>,
    /// Who moves the data.
    pub direction: Direction,
    /// In which order owners are sent to.
    pub pattern: Pattern,
    /// Where what peers access lies: slots, signals and, if pulled, partial rows.
    pub placement: Placement,
    /// The number of the operation, for fault records.
    pub op: u32,
    /// A fault to rehearse.
    pub signal_loss: Option<SignalLoss>,
}

/// The slots, signals and streams of a ReduceScatter, of the ranks of this process.
#[derive(Debug)]
pub struct Scatter {
    /// First, so that they are dropped first: their wait points before the signals.
    pub(crate) ranks: PerRank<Rank>,
    /// Likewise.
    pub(crate) puts: Option<Puts>,
    /// Likewise.
    pub(crate) levels: Option<Levels>,
    /// Likewise. Where slots are in pinned host memory, unless some are sent on from there.
    pub(crate) landing: Option<Landing>,
    pub(crate) layout: SlotLayout,
    pub(crate) world_size: usize,
    pub(crate) reach: Arc<Reach>,
    pub(crate) relay: Option<Relay>,
    pub(crate) transfer: Box<dyn DataTransfer>,
    pub(crate) spec: ScatterSpec,
    /// Every rank owns all rows.
    pub(crate) to_all: bool,
    slot_rows: usize,
    /// In a slot.
    blocks: usize,
    /// [`ScatterSpec::panels`], where it counts.
    pub(crate) panels: PanelCut,
    slots: SymmetricBuffer,
    partial: Option<Arc<SymmetricBuffer>>,
    pub(crate) signals: SymmetricSignals,
    /// Takes the signals of a rehearsed loss.
    lost: SymmetricSignals,
    /// The source's rows have arrived in its slot.
    pub(crate) arrived: PeerWords,
    /// The destination has summed what this rank wrote to it.
    acks: PeerWords,
    /// Pull: the source's partial rows may be read.
    pub(crate) ready: PeerWords,
    /// Pull: the destination has read this rank's partial rows.
    pub(crate) pulled: PeerWords,
}

#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) link: Link,
    pub(crate) part: Scattering,
    /// Per peer: its acknowledgement (push), or its readiness (pull), before data moves.
    pub(crate) may_move: Vec<Arc<WaitPoint>>,
    /// All peers have read this rank's partial rows.
    all_pulled: Arc<WaitPoint>,
    /// The last epoch in which peers were to read them, or [`NO_PULL`].
    pub(crate) last_pull: AtomicU64,
    /// Of each block of rows in the rank's own slot: its own GEMM has written it. Only where tiles go to all, and some ranks
    /// are out of reach.
    pub(crate) own_written: Vec<Arc<WaitPoint>>,
}

impl Scatter {
    /// Allocates for every rank its slots (one shard per source), the signals, and the partial rows if wanted.
    pub fn new(transfer: Box<dyn DataTransfer>, members: &Members, spec: ScatterSpec) -> Result<Self> {
        Self::build(transfer, members, spec, false)
    }

    /// As [`Scatter::new`], but every rank's partial rows all go to every rank: slots have room for `max_rows` rows.
    pub fn to_all(transfer: Box<dyn DataTransfer>, members: &Members, spec: ScatterSpec) -> Result<Self> {
        Self::build(transfer, members, spec, true)
    }

    fn build(
        transfer: Box<dyn DataTransfer>,
        members: &Members,
        spec: ScatterSpec,
        to_all: bool,
    ) -> Result<Self> {
        let world_size = members.world_size();
        let chunks = cut(spec.max_rows, world_size, &spec.chunk_rows, to_all)?;
        let (slot_rows, space) = (chunks.shards().max_rows(), &members.space);
        let reach = Arc::clone(space.reach());
        let blocks = if spec.block_rows == 0 { 0 } else { slot_rows.div_ceil(spec.block_rows) };
        let allocate = |rows: usize, placement| {
            SymmetricBuffer::allocate(space, rows.saturating_mul(spec.row_bytes), placement)
        };
        let sum_in_nodes = spec.sum_in_nodes.as_ref().filter(|_| !to_all);
        let by_panels =
            spec.relayed && world_size > 1 && !to_all && reach.is_complete() && sum_in_nodes.is_none();
        let panels = if by_panels { spec.panels } else { PanelCut::NONE };
        let most_panels = panels.most(spec.row_bytes);
        let slot_signals = blocks.saturating_mul(most_panels);
        let layout = slot_layout(&reach, sum_in_nodes.is_some())?;
        let slots = allocate(layout.all_slots().saturating_mul(slot_rows), spec.placement)?;
        let arrived = PeerWords { first: slot_signals.saturating_mul(layout.slots()) };
        let behind = arrived.first.saturating_add(layout.slots());
        let words = |row: usize| PeerWords { first: behind.saturating_add(row.saturating_mul(world_size)) };
        let (acks, ready, pulled, most) = (words(0), words(1), words(2), words(3).first);
        let wanted =
            spec.puts && spec.block_rows > 0 && !to_all && !reach.is_complete() && sum_in_nodes.is_none();
        let put_words = wanted.then(|| PutWords::behind(most, world_size, blocks));
        let most = put_words.map_or(most, PutWords::end);
        let signals = SymmetricSignals::allocate(space, most, spec.placement)?;
        let lost_signals = if spec.signal_loss.is_some() { slot_signals } else { 0 };
        let lost = SymmetricSignals::allocate(space, lost_signals, spec.placement)?;
        let before_moving = if spec.direction == Direction::Push { acks } else { ready };
        let most_chunks =
            spec.chunk_rows.numbered(spec.max_rows, chunks.shards().world_size(), spec.taper)?;
        let most_chunks =
            most_chunks.signal(1, 0).saturating_mul(layout.all_slots()).saturating_mul(most_panels);
        let own_blocks = |rank: usize| {
            let count = if to_all && !reach.is_complete() { blocks } else { 0 };
            let own = |block| rank * blocks + block; // as in `Scatter::block_signals`
            (0..count)
                .map(|block| vec![(signals.word(rank, own(block)), stream_site(rank, own(block)))])
                .collect()
        };
        let parts = Scattering::of_ranks(&spec.pattern, world_size, space.local_ranks())?;
        let links = Link::all(members, most_chunks, |rank| parts[rank].lanes(reach.of_rank(rank)))?;
        let ranks = links.try_map(|rank, link| {
            let log = &members.faults[rank];
            Ok::<_, Error>(Rank {
                link,
                part: parts[rank].clone(),
                may_move: before_moving.wait_points(&signals, log, spec.op, rank, world_size)?,
                all_pulled: pulled.wait_point(&signals, log, spec.op, rank, reach.of_rank(rank))?,
                last_pull: AtomicU64::new(NO_PULL),
                own_written: log.wait_points(spec.op, own_blocks(rank))?,
            })
        })?;
        let acked =
            |rank: usize| acks.wait_points(&signals, &members.faults[rank], spec.op, rank, world_size);
        let levels = sum_in_nodes
            .map(|sum| Levels::new(Arc::clone(sum), layout, members, (&signals, arrived), (blocks, spec.op)));
        let levels = levels.transpose()?;
        let out_of_reach = !reach.is_complete() && levels.is_none() && spec.block_rows > 0;
        let relayed = (spec.relayed || out_of_reach) && !to_all;
        let relay = relayed.then(|| Relay::new(members, &spec, (slot_rows, panels), acked)).transpose()?;
        let puts = put_words.map(|words| Puts::new(members, &signals, words, spec.op)).transpose()?;
        let cannot_put = |rank: &usize| {
            let exchange = ranks[*rank].link.exchange.as_ref();
            exchange.is_none_or(|exchange| exchange.with.put().is_none())
        };
        if let (Some(_), Some(rank)) = (&puts, members.local_ranks().find(cannot_put)) {
            return Err(Error::NoExchange { rank });
        }
        // What is pushed, no peer accesses.
        let pushed = spec.direction == Direction::Push;
        let placement = if pushed { Placement::Device } else { spec.placement };
        let partial = match &relay {
            _ if !spec.with_partial => None,
            // What a GEMM has put may still be read when it has ended: then what is relayed from is not overwritten otherwise.
            Some(relay) if placement == Placement::Device && puts.is_none() => Some(relay.memory()),
            _ => Some(Arc::new(allocate(spec.max_rows, placement)?)),
        };
        let lands = spec.placement == Placement::PinnedHost && reach.is_complete();
        let filled = |rank: usize| {
            let sources = layout.slots();
            let of_block = |word: usize| (signals.word(rank, word), word / slot_signals.max(1));
            let of_slot = |source: usize| (arrived.word(&signals, rank, source), source);
            (0..sources * slot_signals).map(of_block).chain((0..sources).map(of_slot)).collect()
        };
        let landing = lands.then(|| Landing::new(members, (spec.op, slots.bytes()), filled)).transpose()?;
        Ok(Self {
            reach,
            puts,
            levels,
            landing,
            layout,
            relay,
            transfer,
            spec,
            to_all,
            slot_rows,
            blocks,
            panels,
            slots,
            partial,
            signals,
            lost,
            arrived,
            acks,
            ready,
            pulled,
            ranks,
            world_size,
        })
    }

    /// Rows of a slot.
    pub const fn slot_rows(&self) -> usize {
        self.slot_rows
    }

    /// A slot in the memory of `rank`, by its number: that of its source; in two levels, [`Scatter::source_ranks`] says what
    /// the first ones are of. Where slots lie in pinned host memory, the rank's own rows, and what it pulls, are not there, but where
    /// [`Scatter::land`] says.
    pub fn slot(&self, rank: usize, slot: usize) -> Address {
        self.slots.address(rank).add(slot * self.slot_rows * self.spec.row_bytes)
    }

    /// Size in bytes of a rank's slots.
    pub const fn slots_bytes(&self) -> usize {
        self.slots.bytes()
    }

    /// Where slots of `rank` that lie in pinned host memory are fetched to before they are summed, and the size of that buffer in bytes, laid
    /// out like the slots; null and 0 if none are.
    pub fn fetched_slots(&self, rank: usize) -> (Address, usize) {
        let fetched = |landing: &Landing| (landing.slots.address(rank), landing.slots.bytes());
        self.landing.as_ref().map_or((Address(0), 0), fetched)
    }

    /// Where `source` writes its rows for `owner`: at the owner, or at [`Scatter::first_hop`].
    pub(crate) fn slot_of(&self, owner: usize, source: usize) -> Address {
        let SlotPlace { rank, slot } = self.layout.place(owner, source);
        match owner == source {
            true => self.summed_slot(rank, slot), // nobody fetches what is the rank's own
            false => self.slot(rank, slot),
        }
    }

    /// Where `rank` sums a slot from, and writes it if it does so itself.
    pub(crate) fn summed_slot(&self, rank: usize, slot: usize) -> Address {
        match &self.landing {
            Some(landing) => landing.slots.address(rank).add(slot * self.slot_rows * self.spec.row_bytes),
            None => self.slot(rank, slot),
        }
    }

    /// The signals that `source` raises there, one for each block of rows; those of its next panel are [`Scatter::blocks`] further on.
    pub fn block_signals(&self, owner: usize, source: usize) -> Address {
        self.signals_of(source, self.layout.place(owner, source))
    }

    /// The signals of a slot that `source` raises.
    pub(crate) fn signals_of(&self, source: usize, SlotPlace { rank, slot }: SlotPlace) -> Address {
        if self.is_lost(source, rank) {
            return self.lost.word(rank, 0);
        }
        self.signals.word(rank, slot * self.slot_signals())
    }

    /// Blocks of rows in a slot.
    pub const fn blocks(&self) -> usize {
        self.blocks
    }

    /// The most panels of a call.
    pub const fn most_panels(&self) -> usize {
        self.panels.most(self.spec.row_bytes)
    }

    /// Signals of a slot: one for each block of rows, and for each panel of it in the call that has the most.
    pub const fn slot_signals(&self) -> usize {
        self.blocks * self.most_panels()
    }

    /// The panels of a call with `rows` rows.
    pub fn panels(&self, rows: usize) -> Panels {
        let chunk_rows = self.spec.chunk_rows.of(rows).min(rows.div_ceil(self.world_size.max(1)));
        self.panels.of(chunk_rows, self.spec.row_bytes)
    }

    /// `rank`'s signals; the acknowledgement of each destination is [`Scatter::gate`] further on.
    pub fn gates(&self, rank: usize) -> Address {
        self.signals.word(rank, 0)
    }

    /// The index among a rank's signals that says that `destination` has summed the previous call.
    pub const fn gate(&self, destination: usize) -> usize {
        self.acks.first + destination
    }

    /// `rank`'s signals that a whole slot's rows have arrived, one word per slot.
    pub fn arrived(&self, rank: usize) -> Address {
        self.arrived.word(&self.signals, rank, 0)
    }

    /// `rank`'s partial rows `[max_rows, row_bytes]`; null without them.
    pub fn partial(&self, rank: usize) -> Address {
        self.partial.as_ref().map_or(Address::NULL, |partial| partial.address(rank))
    }

    /// What gives the order in which owners are sent to.
    pub const fn pattern(&self) -> &Pattern {
        &self.spec.pattern
    }

    /// The order in which `rank` sends shards to their owners, its own last: that in which they are best computed. Of a rank that
    /// does not live here, none.
    pub fn order(&self, rank: usize) -> &[usize] {
        self.ranks.get(rank).map_or(&[], |state| &state.part.order)
    }

    /// `compute` begins a call of `rank`: it follows the previous one, and may overwrite the partial rows.
    ///
    /// # Safety
    /// Every rank makes the same sequence of calls, with the same rows and ways; epochs rise by one from 1.
    pub unsafe fn begin(&self, rank: usize, compute: &Stream) -> Result<()> {
        let state = here(&self.ranks, rank, self.world_size)?;
        state.link.follow_previous(compute)?;
        match u32::try_from(state.last_pull.load(Ordering::Relaxed)) {
            Err(_) => Ok(()),
            // SAFETY: the signals belong to this op.
            Ok(epoch) => unsafe { compute.wait_values(&state.all_pulled, epoch) }.map_err(Error::from),
        }
    }

    /// `compute` has enqueued the sum of `rank`'s slots of call `epoch`: the sources may overwrite them after it.
    ///
    /// # Safety
    /// As for [`Scatter::begin`].
    pub unsafe fn release(&self, rank: usize, epoch: u32, compute: &Stream) -> Result<()> {
        let link = &here(&self.ranks, rank, self.world_size)?.link;
        if self.has_two_levels() {
            link.join(compute)?; // what the sources are told they may overwrite, the exchange's stream sums, too
        }
        // SAFETY: the signals belong to this op.
        unsafe {
            let acks = self.acks.words(&self.signals, rank, self.reach.of_rank(rank));
            link.raise_after(compute, acks, epoch)?;
            self.acknowledge_puts(rank, epoch, compute)?;
        }
        if self.relay.is_some() || link.exchange.is_some() {
            link.join(compute)?; // the next call overwrites the tiles
        }
        link.release(compute)
    }

    /// When `rank`'s transfer streams moved which chunk; none unless [`Members::trace`].
    pub fn log(&self, rank: usize) -> Option<&TransferLog> {
        self.ranks.get(rank)?.link.log.as_ref()
    }

    /// Waits on this thread until all calls and transfers have ended.
    pub fn settle(&self) {
        self.ranks.iter().for_each(|rank| rank.link.settle());
        self.landing.iter().for_each(Landing::settle);
    }

    pub(crate) fn is_lost(&self, from: usize, to: usize) -> bool {
        self.spec.signal_loss == Some(SignalLoss { from, to })
    }
}

/// The chunks of `rows` rows: of one shard for each owner, or of the one shard that goes to all.
pub(crate) fn cut(rows: usize, world_size: usize, chunk_rows: &ChunkRows, to_all: bool) -> Result<Chunks> {
    Ok(chunk_rows.cut(rows, if to_all { world_size.min(1) } else { world_size })?)
}

impl Drop for Scatter {
    fn drop(&mut self) {
        self.settle();
    }
}
