//! Slots in pinned host memory are fetched by copy engine before they are summed.
//!
//! GPUs that do not reach each other's memory meet in the host's. An SM reads that slowly: a kernel that summed slots of 29 MB there, and polled
//! their signals, took 7.8 ms where a copy takes 0.6 (measured on an H200). So each owner's copy engine brings a slot to the owner as
//! soon as its source has filled it, and the sum reads device memory. What the rank itself computes, or pulls, goes there at once.

use crate::link::{here, stream_site};
use crate::scatter::{Scatter, cut};
use crate::{Direction, Error, Members, Result};
use flux_memory::{Address, Event, PerRank, Placement, Stream, SymmetricBuffer, SymmetricSignals, WaitPoint};
use std::sync::Arc;

/// What fetching takes, of the ranks of this process.
#[derive(Debug)]
pub(crate) struct Landing {
    /// First, so that they are dropped first: wait points before the signals.
    ranks: PerRank<Rank>,
    /// Laid out like the slots in pinned host memory.
    pub(crate) slots: SymmetricBuffer,
    /// One for each slot: it is there.
    pub(crate) landed: SymmetricSignals,
}

#[derive(Debug)]
struct Rank {
    /// Fetches beside the rank's GEMM, and beside what it sends.
    stream: Stream,
    /// The calls before have summed what they had fetched.
    begun: Event,
    /// All slots are there.
    all: Event,
    /// One for each block's signal, as they are numbered, and then one for each source's whole rows.
    written: Vec<Arc<WaitPoint>>,
}

/// Where a rank's slots are summed from.
#[derive(Clone, Copy, Debug)]
pub struct Landed {
    /// Laid out like [`Scatter::slot`]s.
    pub slots: Address,
    /// One for each slot: all of its rows are there.
    pub signals: Address,
}

impl Landing {
    /// For slots as large as `bytes`, all of a rank's, which are filled when `written` says so: of a rank, the signal's word, and the
    /// source that raises it.
    pub(crate) fn new(
        members: &Members,
        (op, bytes): (u32, usize),
        written: impl Fn(usize) -> Vec<(Address, usize)>,
    ) -> Result<Self> {
        let space = &members.space;
        let slots = SymmetricBuffer::allocate(space, bytes, Placement::Device)?;
        let landed = SymmetricSignals::allocate(space, members.world_size(), Placement::Device)?;
        let ranks = PerRank::try_new(members.local_ranks(), |rank| {
            let site = |(signal, (word, source))| vec![(word, stream_site(source, signal))];
            let points = written(rank).into_iter().enumerate().map(site).collect();
            let device = &members.devices[rank];
            Ok::<_, Error>(Rank {
                stream: device.transfer_stream()?,
                begun: Event::new(device)?,
                all: Event::new(device)?,
                written: members.faults[rank].wait_points(op, points)?,
            })
        })?;
        Ok(Self { ranks, slots, landed })
    }

    pub(crate) fn settle(&self) {
        for rank in self.ranks.iter() {
            if let Err(error) = rank.stream.synchronize() {
                tracing::warn!(%error, "fetching ended with an error");
            }
        }
    }
}

impl Scatter {
    /// Where the slots of a call of `rank` are to be summed from, if not where they are: `compute` then goes on when they are there.
    /// `by_tiles`: GEMMs, or who relays what they write, have filled them, and raised the signals of blocks of rows, of the last panel; else
    /// partial rows were moved, and the signals of whole slots are raised.
    ///
    /// # Safety
    /// As for [`Scatter::begin`]; the sources' parts of the call were enqueued before.
    pub unsafe fn land(
        &self,
        rank: usize,
        epoch: u32,
        rows: usize,
        by_tiles: bool,
        compute: &Stream,
    ) -> Result<Option<Landed>> {
        here(&self.ranks, rank, self.world_size)?;
        let Some((landing, state)) =
            self.landing.as_ref().and_then(|landing| Some((landing, landing.ranks.get(rank)?)))
        else {
            return Ok(None);
        };
        if rows > self.spec.max_rows {
            return Err(Error::TooManyRows { rows, max_rows: self.spec.max_rows });
        }
        if !by_tiles {
            // What the rank computes and moves itself is not to count as waiting for others.
            self.begin_landing(rank, compute)?;
        }
        let Rank { stream, all, written, .. } = state;
        let shards = *cut(rows, self.world_size, &self.spec.chunk_rows, self.to_all)?.shards();
        let pulled = !by_tiles && self.spec.direction == Direction::Pull;
        let rows_of_slot = shards.rows(if self.to_all { 0 } else { rank });
        let panels = self.panels(rows).count().saturating_sub(1) * self.blocks();
        let blocks = rows_of_slot.div_ceil(self.spec.block_rows.max(1));
        let sources = self.sources();
        // In the order in which they are filled where all send to all: the rank before this one computes its rows first.
        for source in (1..=sources).map(|step| (rank + sources - step % sources) % sources) {
            let words = match by_tiles {
                true => {
                    let first = source * self.slot_signals() + panels;
                    first..first + blocks
                }
                false => {
                    let word = sources * self.slot_signals() + source;
                    word..word + 1
                }
            };
            let (to, from) = (landing.slots.address(rank), self.slot(rank, 0));
            let offset = source * self.slot_rows() * self.spec.row_bytes;
            // SAFETY: both are as large as all slots; the caller's promise; the words belong to this op.
            unsafe {
                for word in words {
                    if let Some(point) = written.get(word) {
                        stream.wait_values(point, epoch)?;
                    }
                }
                if source != self.own_source(rank) && !pulled {
                    stream.copy(to.add(offset), from.add(offset), rows_of_slot * self.spec.row_bytes)?;
                }
                stream.write_values(&[(landing.landed.word(rank, source), epoch)])?;
            }
        }
        stream.record(all)?;
        compute.wait(all)?;
        Ok(Some(Landed { slots: landing.slots.address(rank), signals: landing.landed.word(rank, 0) }))
    }

    /// What is fetched for a call of `compute` is not fetched, nor waited for, before what that has enqueued.
    pub(crate) fn begin_landing(&self, rank: usize, compute: &Stream) -> Result<()> {
        if let Some(Rank { stream, begun, .. }) =
            self.landing.as_ref().and_then(|landing| landing.ranks.get(rank))
        {
            compute.record(begun)?;
            stream.wait(begun)?;
        }
        Ok(())
    }
}
