//! Where a rank's tiles go, and what each of them waits for: what the kernels are told of a reduction.

use super::{Owners, Reduction};
use crate::schedules::Schedules;
use crate::{OpSpec, Result};
use flux_launch::{Destination, RowTile, SIGNAL_ROWS, ScheduleTables, Tiling};
use flux_memory::PerRank;
use flux_swizzle::{Chunks, Shards, Sweeps, TileOrder};
use flux_transport::{Scatter, Target};
use std::ops::Range;

impl Reduction {
    /// Each tile's place at its destination, and what it waits for: if that is a slot, that the owner has summed what was
    /// there before.
    pub(super) fn fused_tables(
        &self,
        rank: usize,
        m: usize,
        tiling: &Tiling,
        sweeps: Sweeps,
    ) -> Result<ScheduleTables> {
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let in_reach = self.in_reach(rank);
        // Destination by destination, in the order in which they leave, its own last; or each tile to all.
        let shards = self.shards(m)?;
        let (order, along) = match self.owners {
            Owners::Shards => {
                let order = TileOrder::reduce_scatter(shards, rank, tiling.shape, self.spec.n)?;
                (order, self.scatter.order(rank))
            }
            Owners::All => (TileOrder::plain(m, tiling.shape, self.spec.n)?, &[0][..]),
        };
        let mut order = order.swept_by(tiling.group_rows).swept_together(sweeps);
        let blocks = Chunks::new(shards, SIGNAL_ROWS)?;
        let relayed = self.scatter.relayed_chunks(rank, m)?;
        if let Some(chunks) = &relayed {
            order = order.following(chunks, tiling.half_rows());
        }
        let tables = ScheduleTables::along(&order, along, |tile, entry| {
            let gate = match self.owners {
                Owners::Shards => self.scatter.target(rank, tile.shard).gate,
                Owners::All => self.scatter.gate(in_reach.start)..self.scatter.gate(in_reach.end),
            };
            let chunks =
                relayed.as_ref().filter(|_| self.scatter.relays(rank, tile.shard)).unwrap_or(&blocks);
            let signal = chunks.index_of(tile.shard, tile.rows.start);
            (entry.gate_begin, entry.gate_end) = (number(gate.start), number(gate.end));
            entry.destination = number(match self.owners {
                Owners::Shards => destination_of(&self.scatter, rank, tile.shard),
                Owners::All => tile.shard,
            });
            entry.peer = number(match self.owners {
                Owners::Shards => self.scatter.first_hop(rank, tile.shard),
                Owners::All => tile.shard,
            });
            entry.destination_row = number(tile.rows.start - shards.range(tile.shard).start);
            entry.signal = number(signal);
            entry.counter = number(tile.shard * self.scatter.blocks() + signal);
        })?;
        let panels = self.scatter.panels(m);
        if panels.count() == 1 {
            return Ok(tables);
        }
        // In panels, tiles go straight to where they are summed: destinations are owners.
        let (columns, bytes) = (tiling.shape.columns, self.spec.dtype.result().bytes());
        let panel_of = |tile: &RowTile, column_tile: usize| {
            let begin = column_tile * columns;
            let end = begin.saturating_add(columns).min(self.spec.n).saturating_sub(1);
            // A tile is waited for with the panel that it begins in, and waits for those of others that it ends in.
            panels.containing(bytes * if tile.destination as usize == rank { end } else { begin })
        };
        let counters = self.scatter.blocks() * self.group.world_size();
        Ok(tables.by_panels(panel_of, |panel, tile| {
            let stride = self.scatter.target(rank, tile.destination as usize).panel_stride;
            tile.signal += number(panel * stride);
            tile.counter += number(panel * counters);
        })?)
    }

    /// What calls of at most `spec.max_m` rows are launched from: the largest schedule is that of tiles that do not straddle
    /// shards.
    pub(crate) fn schedules(&self, spec: &OpSpec) -> Result<PerRank<Schedules>> {
        let shards = Shards::new(spec.max_m, self.group.world_size())?;
        let relayed = self.scatter.relayed_chunks(0, 0)?;
        let extra = relayed.map_or(0, |chunks| chunks.signals());
        let panels = self.scatter.most_panels();
        PerRank::try_new(self.group.local_ranks(), |rank| {
            Schedules::new(&self.group, rank, spec.dtype, (shards, extra, panels), spec.n)
        })
    }
}

/// The entry among [`destinations`] of the tiles that `owner` sums: its number, but for the rank's own. What is folded in has the
/// number of its slot, which the kernel knows its tiles by; so that entry and the one of this number have each other's place.
fn destination_of(scatter: &Scatter, rank: usize, owner: usize) -> usize {
    let own = scatter.own_source(rank);
    match owner {
        _ if owner == rank => own,
        _ if owner == own => rank,
        _ => owner,
    }
}

/// Where `rank`'s tiles go: one entry per rank, as [`destination_of`] has them. A tile that
/// goes to all takes all entries in turn: these begin with the next rank, so that no two ranks begin with the same, and are of
/// the ranks in reach, from whose slots the others get it.
pub(super) fn destinations(
    world_size: usize,
    scatter: &Scatter,
    rank: usize,
    (owners, in_reach): (Owners, Range<usize>),
) -> Vec<Destination> {
    let first = if owners == Owners::All { rank + 1 } else { 0 };
    (0..world_size)
        .map(|index| (first + index) % world_size)
        .filter(|peer| owners == Owners::Shards || in_reach.contains(peer))
        .map(|peer| if owners == Owners::Shards { destination_of(scatter, rank, peer) } else { peer })
        .map(|peer| scatter.target(rank, peer))
        .map(|Target { slot, signals, .. }| Destination { slot, signals })
        .collect()
}
