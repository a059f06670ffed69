//! What a traced launch leaves: when each of its units of work (tiles, or parts of split ones) happened, and where.

use crate::clock::Clock;
use crate::hopper::HopperParams;
use crate::tiling::TileKernel;
use crate::{Error, FoldParams, GemmParams, Launch, Policy, Result, RowTile};
use bytemuck::{Pod, Zeroable};
use flux_memory::{Address, Buffer, Device, Placement};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A unit of work of a GEMM: a tile, or a part of one that is split along K. Times are of the clock of this process
/// ([`flux_memory::host::now_ns`]), in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnitTrace {
    /// Which launch of the call it is part of; a call by shards has several.
    pub launch: usize,
    /// Its place in the order in which the launch's units are begun.
    pub index: usize,
    /// The tile's number among the row tiles, and among the column tiles.
    pub tile: (u32, u32),
    /// Which part of the tile this is.
    pub part: u32,
    /// Of how many; 1 if the tile is not split.
    pub parts: u32,
    /// The tile's rows of the launch's A.
    pub rows: Range<usize>,
    /// The tile's columns of the launch's C.
    pub columns: Range<usize>,
    /// The block that computed it; on the host, the thread.
    pub block: u32,
    /// The SM that the block ran on; on the host, the thread.
    pub sm: u32,
    /// The signals that it waited for: before its first load, or before it was stored ([`UnitTrace::scatters`]). If it is
    /// folded, the first and the last of one for each other rank.
    pub gate: Range<u32>,
    /// The rank that the first of them is waited for; if the tile goes to several, or is folded, the next ranks' follow.
    /// (Of a folded sum in two levels, the number of its slot: those of other nodes' sums count as one rank each.)
    pub peer: u32,
    /// Whether the tile's sum over ranks was folded in: it waited for the other ranks' tiles, and went to C.
    pub folded: bool,
    /// Whether the launch's tiles went to the ranks that sum them, the own one's included: then the gate was waited for
    /// beside the multiplication, or after it.
    pub scatters: bool,
    /// The wait for the gate began. It may begin while the block multiplies another unit.
    pub gate_begin_ns: u64,
    /// The gate was open.
    pub gate_end_ns: u64,
    /// The first block of K was there, and its multiplication began.
    pub multiply_begin_ns: u64,
    /// The last block of K had been multiplied.
    pub multiply_end_ns: u64,
    /// Whoever multiplies was free for another unit: the tile was rounded and handed to whoever stores it, or a part's sums
    /// to whoever adds them. Where the same threads store it, that is its end.
    pub handed_over_ns: u64,
    /// The tile had left the SM; one that went to other ranks was written.
    pub stored_ns: u64,
    /// The signal of the tile's block of rows was up; none if it was not this tile that raised it.
    pub signal_ns: Option<u64>,
}

/// A unit as a kernel records it: the words of `kernels/trace.cuh`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Record {
    pub(crate) gate_begin: u64,
    pub(crate) gate_end: u64,
    /// By warpgroup; kernels without them write the first.
    pub(crate) first_stage: [u64; 2],
    pub(crate) multiplied: [u64; 2],
    pub(crate) handed_over: [u64; 2],
    pub(crate) stored: [u64; 2],
    pub(crate) signal: u64,
    pub(crate) entry: u32,
    pub(crate) part: u32,
    pub(crate) block: u32,
    pub(crate) sm: u32,
}

/// `Traced<GemmParams>` in `kernels/trace.cuh`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct TracedGemmParams {
    pub(crate) params: GemmParams,
    pub(crate) records: Address,
}

/// `Traced<HopperParams>` in `kernels/trace.cuh`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct TracedHopperParams {
    pub(crate) params: HopperParams,
    pub(crate) records: Address,
    /// The kernel's structure is a multiple of its alignment.
    pub(crate) padding: [u64; 7],
}

/// Room for the records of one call's launches, made by [`crate::Launcher::trace`]. Calls allocate nothing for it.
#[derive(Debug)]
pub struct Trace {
    device: Device,
    records: Buffer,
    launches: Mutex<Launches>,
}

/// A call's launches, as far as their records do not tell.
#[derive(Debug)]
struct Launches {
    all: Vec<Launched>,
    /// The launches' row tiles, one launch's behind the other's.
    row_tiles: Vec<RowTile>,
}

#[derive(Debug)]
struct Launched {
    /// Its first record.
    first: usize,
    units: usize,
    /// So many units are whole tiles; the others are parts.
    whole: usize,
    parts: u32,
    scatters: bool,
    fold: FoldParams,
    kernel: TileKernel,
    tile_columns: usize,
    n: usize,
    /// Its place among the row tiles.
    row_tiles: Range<usize>,
}

impl Trace {
    /// Room for `units` units of at most `launches` launches, with `row_tiles` row tiles.
    pub(crate) fn new(device: &Device, units: usize, row_tiles: usize, launches: usize) -> Result<Self> {
        let bytes = units.saturating_mul(size_of::<Record>());
        let records = Buffer::allocate(device, bytes, Placement::Device)?;
        let launches =
            Launches { all: Vec::with_capacity(launches), row_tiles: Vec::with_capacity(row_tiles) };
        Ok(Self { device: device.clone(), records, launches: Mutex::new(launches) })
    }

    /// A call begins: the records of the call before may be overwritten.
    pub fn begin(&self) {
        let mut launches = self.launches();
        launches.all.clear();
        launches.row_tiles.clear();
    }

    /// Where the records of a launch go.
    pub(crate) fn claim(&self, launch: &Launch<'_>, params: &GemmParams) -> Result<Address> {
        let mut launches = self.launches();
        let (tiling, schedule) = (launch.tiling, launch.schedule);
        let tiles = schedule.tiles() as usize;
        let units = tiles + tiling.split_tiles * (tiling.parts - 1);
        let first = launches.all.last().map_or(0, |last| last.first + last.units);
        let capacity = self.records.bytes() / size_of::<Record>();
        if first + units > capacity {
            return Err(Error::TraceFull { units: first + units, capacity });
        }
        let first_row_tile = launches.row_tiles.len();
        launches.row_tiles.extend_from_slice(schedule.staged_row_tiles());
        let row_tiles = first_row_tile..launches.row_tiles.len();
        launches.all.push(Launched {
            first,
            units,
            whole: tiles.saturating_sub(tiling.split_tiles),
            parts: u32::try_from(tiling.parts).unwrap_or(u32::MAX),
            scatters: launch.policy == Policy::ReduceScatter,
            kernel: tiling.kernel,
            tile_columns: tiling.shape.columns,
            fold: params.fold,
            n: params.n as usize,
            row_tiles,
        });
        Ok(self.records.address().add(first * size_of::<Record>()))
    }

    /// The units of the launches since [`Trace::begin`], in their order. The launches have ended, and none of them because a
    /// wait expired: the records of those would be incomplete.
    pub fn read(&self, clock: &Clock) -> Result<Vec<UnitTrace>> {
        let launches = self.launches();
        let count = launches.all.last().map_or(0, |last| last.first + last.units);
        let mut records = vec![Record::default(); count];
        self.records.download(&self.device.stream()?, 0, bytemuck::cast_slice_mut(&mut records))?;
        let mut units = Vec::with_capacity(count);
        for (number, launch) in launches.all.iter().enumerate() {
            let row_tiles = &launches.row_tiles[launch.row_tiles.clone()];
            let of_launch = records[launch.first..][..launch.units].iter().enumerate();
            units.extend(
                of_launch.map(|(index, record)| launch.unit((number, index), record, row_tiles, clock)),
            );
        }
        Ok(units)
    }

    fn launches(&self) -> MutexGuard<'_, Launches> {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Launched {
    fn unit(
        &self,
        (launch, index): (usize, usize),
        record: &Record,
        row_tiles: &[RowTile],
        clock: &Clock,
    ) -> UnitTrace {
        let (row, column) = (record.entry >> 16, record.entry & 0xffff);
        let tile = row_tiles.get(row as usize).copied().unwrap_or_default();
        let first_column = self.tile_columns.saturating_mul(column as usize).min(self.n);
        // Two warpgroups share a unit: it begins with the first of them, and ends with the last.
        let groups = if matches!(self.kernel, TileKernel::Hopper { .. }) { 2 } else { 1 };
        let first = |times: [u64; 2]| clock.of_kernel(times[..groups].iter().copied().min().unwrap_or(0));
        let last = |times: [u64; 2]| clock.of_kernel(times[..groups].iter().copied().max().unwrap_or(0));
        let signal = (self.scatters && record.signal != 0).then_some(record.signal);
        let folded = self.fold.sources > 0 && tile.destination == self.fold.own;
        let (gate, peer) = match folded {
            false => (tile.gate_begin..tile.gate_end, tile.peer),
            true => {
                let FoldParams { own, sources, source_stride, .. } = self.fold;
                let (first, last) = (u32::from(own == 0), sources - 1 - u32::from(own + 1 == sources));
                let signal = |source| source * source_stride + tile.signal;
                (signal(first)..signal(last) + 1, first)
            }
        };
        UnitTrace {
            launch,
            index,
            tile: (row, column),
            part: record.part,
            parts: if index < self.whole { 1 } else { self.parts },
            rows: tile.row as usize..(tile.row + tile.rows) as usize,
            columns: first_column..(first_column + self.tile_columns).min(self.n),
            block: record.block,
            sm: record.sm,
            gate,
            peer,
            folded,
            scatters: self.scatters,
            gate_begin_ns: clock.of_kernel(record.gate_begin),
            gate_end_ns: clock.of_kernel(record.gate_end),
            multiply_begin_ns: first(record.first_stage),
            multiply_end_ns: last(record.multiplied),
            handed_over_ns: last(if groups == 2 { record.handed_over } else { record.stored }),
            stored_ns: last(record.stored),
            signal_ns: signal.map(|ns| clock.of_kernel(ns)),
        }
    }
}
