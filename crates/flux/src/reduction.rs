//! The sum over ranks of A_s · B_sᵀ, as far as GEMM+ReduceScatter and GEMM+AllReduce share it: the GEMM's tiles go into
//! this rank's slots at the ranks that own the rows, and every owner sums its slots in rank order. Two ways lead there, which
//! the kernels do not tell apart, nor the owners: a tile's destination is the slot itself, or memory of this rank's, from
//! which the transfer stream relays it.
//!
//! Each rank's partial sum is accumulated in fp32, scaled, and rounded to the type of the result once; the owner sums these and
//! the bias in fp32, and rounds once more. In f16, a partial sum beyond 65,504 overflows even if the whole does not.

mod calls;
mod tables;

pub(crate) use calls::Partial;

use crate::delivery;
use crate::levels::NodeSums;
use crate::plan::{self, PathPreference};
use crate::planner::Built;
use crate::puts;
use crate::{Delivery, Error, Group, Levels, OpSpec, Result};
use flux_launch::{Destinations, Policy, SIGNAL_ROWS, Slots};
use flux_memory::{Address, Backend, Buffer, PerRank, Placement};
use flux_swizzle::{ChunkRows, PanelCut, Pattern, Shards, Taper, TileShape};
use flux_transport::{Nvshmem, PeerCopy, Scatter, ScatterSpec, TransferLog};
use std::ops::Range;
use tables::destinations;

/// Slots' rows begin at multiples of 16 bytes, so that tiles are written and summed in full lines.
const PITCH_ELEMENTS: usize = 8;

/// Who sums which rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owners {
    /// Every rank its shard.
    Shards,
    /// Every rank all rows.
    All,
}

/// The GEMM, the slots and their sum.
#[derive(Debug)]
pub(crate) struct Reduction {
    spec: OpSpec,
    op: u32,
    owners: Owners,
    chunk_rows: usize,
    tile: TileShape,
    pitch: usize,
    delivery: delivery::Choice,
    /// Fused calls sum in the GEMM's epilogue, where its kernel can.
    folds: bool,
    weight_shards: Shards,
    scatter: Scatter,
    /// Each rank's, in the order of [`destinations`].
    destinations: PerRank<Destinations>,
    /// Each rank's counters of the tiles that it has written: of each block of rows, at each owner, and of each of its panels.
    counters: PerRank<Buffer>,
    group: Group,
}

impl Reduction {
    /// Allocates, for calls of at most `max_rows` rows, every rank's slots, the same again for partial sums unless all
    /// calls are fused and deliver directly, and the signals, and loads the kernels. Slots in pinned host memory are once more in
    /// device memory.
    pub(crate) fn new(
        group: &Group,
        spec: &OpSpec,
        built: &Built,
        (op, max_rows, owners): (u32, usize, Owners),
    ) -> Result<Self> {
        let world_size = group.world_size();
        let tile = group.any_launcher().tile(spec.dtype)?;
        let pitch = spec.n.next_multiple_of(PITCH_ELEMENTS);
        let row_bytes = pitch * spec.dtype.result().bytes();
        let slot_rows = match owners {
            Owners::Shards => Shards::new(max_rows, world_size)?.max_rows(),
            Owners::All => max_rows,
        };
        // What is sent to all goes whole.
        let by_rows: ChunkRows = match owners {
            Owners::Shards => built.chunks.clone(),
            Owners::All => spec.chunk_rows.unwrap_or_else(|| plan::chunk_rows(row_bytes, slot_rows)).into(),
        };
        let chunk_rows = by_rows.of(max_rows);
        let may_fuse = matches!(spec.path, PathPreference::Auto | PathPreference::Fused);
        let two_levels = owners == Owners::Shards && spec.levels.are_two(group, spec.delivery)?;
        let puts = may_fuse && owners == Owners::Shards && !two_levels && puts::prepare(group, spec)?;
        // Faults in slots that are not numbered by rank are told by the operation's number.
        let op = if two_levels { group.register_again(op) } else { op };
        let delivery = if puts { delivery::Choice::PutAsAsked } else { built.delivery };
        let weight_shards = Shards::new(spec.k, world_size)?;
        let relayed = may_fuse && owners == Owners::Shards && delivery.delivery() == Delivery::Relayed;
        let some_relayed = relayed
            || (may_fuse
                && owners == Owners::Shards
                && !two_levels
                && !group.members().space.reach().is_complete());
        let scatter_spec = ScatterSpec {
            max_rows,
            row_bytes,
            chunk_rows: by_rows,
            taper: if some_relayed { built.taper } else { Taper::NONE },
            panels: panels(group, spec)?,
            block_rows: SIGNAL_ROWS,
            with_partial: spec.path != PathPreference::Fused,
            relayed,
            puts,
            sum_in_nodes: two_levels.then(|| NodeSums::shared(group, spec.dtype, (spec.n, pitch), op)),
            direction: built.direction,
            // Nothing is passed on: it is the order in which tiles are computed.
            pattern: built.order.clone(),
            placement: group.config().peer_memory,
            op,
            signal_loss: group.config().signal_loss,
        };
        let scatter = match owners {
            Owners::Shards => Scatter::new(Box::new(PeerCopy), group.members(), scatter_spec)?,
            Owners::All => Scatter::to_all(Box::new(PeerCopy), group.members(), scatter_spec)?,
        };
        if scatter.has_two_levels() {
            let sources = |rank| scatter.source_ranks(rank).collect();
            let sources = PerRank::new(group.local_ranks(), sources);
            group.number_slots(op, scatter.slot_signals() * scatter.sources(), sources);
        }
        let slots = Slots { rows: slot_rows, columns: spec.n, pitch };
        let tables = PerRank::try_new(group.local_ranks(), |rank| {
            group.launcher(rank).prepare(spec.dtype, &[Policy::Plain, Policy::ReduceScatter])?;
            let in_reach = group.members().space.reach().of_rank(rank);
            let table = destinations(world_size, &scatter, rank, (owners, in_reach));
            let device = group.device(rank)?;
            let table = Destinations::new(device, spec.dtype, &table, slots)?;
            let Some(nvshmem) = group.nvshmem().filter(|_| puts) else { return Ok(table) };
            let routes = puts::routes(nvshmem, &scatter, rank, world_size);
            Ok::<_, Error>(table.with_puts(&routes, Nvshmem::SIGNAL_SET)?)
        })?;
        let counters = PerRank::try_new(group.local_ranks(), |rank| {
            let bytes = scatter.slot_signals().saturating_mul(world_size).saturating_mul(size_of::<u32>());
            Buffer::allocate(group.device(rank)?, bytes, Placement::Device).map_err(Error::from)
        })?;
        Ok(Self {
            spec: spec.clone(),
            op,
            owners,
            chunk_rows,
            tile,
            pitch,
            delivery,
            // One-shot, all tiles are a rank's own: each would wait for its peers as soon as it is multiplied.
            folds: owners == Owners::Shards && spec.summation.folds(group),
            weight_shards,
            scatter,
            destinations: tables,
            counters,
            group: group.clone(),
        })
    }

    /// What gives the order in which owners are sent to.
    pub(crate) const fn pattern(&self) -> &Pattern {
        self.scatter.pattern()
    }

    /// In how many levels sums over nodes are made: what [`OpSpec::levels`] stands for.
    pub(crate) const fn levels(&self) -> Levels {
        if self.scatter.has_two_levels() { Levels::Two } else { Levels::One }
    }

    /// The tile that the GEMM computes.
    pub(crate) const fn tile(&self) -> TileShape {
        self.tile
    }

    /// Rows in which partial sums travel where the GEMM does not send them.
    pub(crate) const fn chunk_rows(&self) -> usize {
        self.chunk_rows
    }

    /// The columns of A and of the weight that `rank` holds.
    pub(crate) fn depth(&self, rank: usize) -> Range<usize> {
        self.weight_shards.range(rank)
    }

    /// The rows that `rank` sums in a call with `m` rows.
    pub(crate) fn rows(&self, rank: usize, m: usize) -> Range<usize> {
        match self.owners {
            Owners::Shards => {
                Shards::new(m, self.group.world_size()).map_or(0..0, |shards| shards.range(rank))
            }
            Owners::All => 0..m,
        }
    }

    /// `rank`'s slots `[slots, rows of the largest sum, pitch]`: one for each rank, unless in two levels.
    pub(crate) fn slots(&self, rank: usize) -> Address {
        self.scatter.slot(rank, 0)
    }

    /// Size in bytes of the buffer at [`Reduction::slots`].
    pub(crate) fn slots_bytes(&self) -> usize {
        self.scatter.slots_bytes()
    }

    /// Where `rank`'s slots are fetched to from pinned host memory, and the size of that buffer in bytes; null and 0 if they are not.
    pub(crate) fn fetched_slots(&self, rank: usize) -> (Address, usize) {
        self.scatter.fetched_slots(rank)
    }

    /// How fused calls deliver their tiles, but for those that go to all.
    pub(crate) const fn delivery(&self) -> delivery::Choice {
        self.delivery
    }

    /// The memory that `rank`'s tiles are relayed from, and its size in bytes; null and 0 if none are.
    pub(crate) fn relayed_tiles(&self, rank: usize) -> (Address, usize) {
        self.scatter.relayed_tiles(rank)
    }

    /// Waits on this thread until everything that was enqueued for transfers has ended.
    pub(crate) fn settle(&self) {
        self.scatter.settle();
    }

    /// When `rank`'s transfer stream moved which chunk; none unless the group is traced.
    pub(crate) fn transfer_log(&self, rank: usize) -> Option<&TransferLog> {
        self.scatter.log(rank)
    }

    /// The ranks whose memory `rank`'s GEMM can write to.
    fn in_reach(&self, rank: usize) -> Range<usize> {
        self.group.members().space.reach().of_rank(rank)
    }

    /// The rows that go to one owner each, or all to all.
    fn shards(&self, m: usize) -> Result<Shards> {
        Ok(match self.owners {
            Owners::Shards => Shards::new(m, self.group.world_size())?,
            Owners::All => Shards::new(m, 1)?,
        })
    }
}

/// Into how many panels relayed chunks are cut. Through pinned host memory, where each takes the link 7 µs by itself, they stay whole, as
/// they do on the host, where a copy waits for its core.
fn panels(group: &Group, spec: &OpSpec) -> Result<PanelCut> {
    // A schedule numbers row tiles, of each panel, up to 65,536.
    let height = group.any_launcher().smallest_tile(spec.dtype)?.rows.max(1);
    let most = (1 << 16) / (spec.max_m.div_ceil(height) + group.world_size());
    let between_gpus = group.backend() == Backend::Cuda && group.config().peer_memory == Placement::Device;
    Ok(match spec.panels {
        Some(count) => PanelCut::always(count.min(most)),
        None if between_gpus && most >= 4 => PanelCut::BETWEEN_GPUS,
        None => PanelCut::NONE,
    })
}
