//! Schedules by number of rows: built once for each, kept while they are in use, and the launches that follow them.

use crate::call::kernel_size;
use crate::{Group, Result};
use flux_launch::{
    Activation, DType, Destinations, FoldParams, GemmParams, Launch, Launcher, Policy, Problem, Scales,
    Schedule, ScheduleTables, Tiling, Trace,
};
use flux_memory::{Event, Stream};
use flux_swizzle::{Shards, Sweeps, TileOrder, TileShape};

/// How many numbers of rows an operation remembers. A call with another one writes its schedule anew, in stream order.
const KEPT: usize = 8;

/// A GEMM, but for how it is cut into tiles and in which order they come.
#[derive(Clone, Copy)]
pub(crate) struct Gemm<'a> {
    pub(crate) launcher: &'a Launcher,
    pub(crate) policy: Policy,
    pub(crate) dtype: DType,
    pub(crate) scales: Scales,
    pub(crate) activation: Activation,
    /// The rows, and the shards that tiles do not straddle.
    pub(crate) shards: Shards,
    pub(crate) params: GemmParams,
    /// ReduceScatter: where tiles go.
    pub(crate) destinations: Option<&'a Destinations>,
    /// Rather a slower tiling than one for which the sum cannot be folded in.
    pub(crate) must_fold: bool,
}

impl Gemm<'_> {
    fn tiling(&self, aligned: bool, tile: Option<TileShape>) -> Result<Tiling> {
        let (n, k) = (self.params.n as usize, self.params.k as usize);
        let to_slots = self.policy == Policy::ReduceScatter;
        let problem = Problem { shards: self.shards, n, k, aligned, to_slots };
        let ways = self.launcher.tilings_into(tile, self.dtype, &problem)?;
        if self.must_fold {
            let sources = self.params.fold.sources as usize;
            for (tiling, _) in &ways {
                if self.launcher.can_fold(self.dtype, tiling, sources)? {
                    return Ok(*tiling);
                }
            }
        }
        match ways.first() {
            Some(&(tiling, _)) => Ok(tiling),
            None => Ok(self.launcher.tiling(self.dtype, &problem)?), // says what is missing
        }
    }
}

/// The schedule of a GEMM that waits for nothing: its rows are C's.
pub(crate) fn plain_tables(rows: usize, tiling: &Tiling, columns: usize) -> Result<ScheduleTables> {
    let order = TileOrder::plain(rows, tiling.shape, columns)?.swept_by(tiling.group_rows);
    Ok(ScheduleTables::new(&order, |_, _| {})?)
}

/// Refuses more tiles than a launch can number.
pub(crate) fn check_tiles(
    launcher: &Launcher,
    rank: usize,
    dtype: DType,
    (largest, columns): (Shards, usize),
) -> Result<()> {
    let usual = TileOrder::all_gather(largest, rank, launcher.tile(dtype)?, columns)?;
    Ok(ScheduleTables::check_size(usual.row_tiles().count(), usual.column_tiles())?)
}

/// What a schedule depends on, within an operation: the rows, what is done with them, whether the operands are aligned,
/// which decides about the kernel, and the tile, if it is decided.
type Key = (usize, Policy, bool, Option<TileShape>);

/// One rank's schedules of one operation. All memory is allocated when it is built.
#[derive(Debug)]
pub(crate) struct Schedules {
    entries: Vec<Entry>,
    turn: u64,
    /// The last launch summed its own rows itself.
    folded: bool,
    /// The tile that the call's GEMMs are to be cut into, if it is decided.
    tile: Option<TileShape>,
    /// How many shards they sweep together.
    sweeps: Sweeps,
    /// When the units of the last call happened, if the group is traced.
    trace: Option<Trace>,
}

#[derive(Debug)]
struct Entry {
    key: Option<Key>,
    tiling: Option<Tiling>,
    last_used: u64,
    schedule: Schedule,
    /// After the last launch that used it.
    used: Event,
}

impl Schedules {
    /// Room for calls of `rank` with at most the rows of `largest`, and so many tiles in each column that are not full because
    /// a chunk ends there, whose row tiles may have an entry for each of so many panels, and `columns` columns.
    pub(crate) fn new(
        group: &Group,
        rank: usize,
        dtype: DType,
        (largest, extra, panels): (Shards, usize, usize),
        columns: usize,
    ) -> Result<Self> {
        let (device, launcher) = (group.device(rank)?, group.launcher(rank));
        check_tiles(launcher, rank, dtype, (largest, columns))?;
        let largest = TileOrder::all_gather(largest, rank, launcher.smallest_tile(dtype)?, columns)?;
        let row_tiles = largest.row_tiles().count() + extra;
        let tiles = row_tiles * largest.column_tiles();
        let row_tiles = row_tiles * panels;
        let entry = |schedule| {
            Ok(Entry { key: None, tiling: None, last_used: 0, schedule, used: Event::new(device)? })
        };
        let schedules = Schedule::set(device, KEPT, tiles, row_tiles)?;
        let entries = schedules.into_iter().map(entry).collect::<Result<_>>()?;
        // A call by shards launches once for each.
        let room = || launcher.trace(device, dtype, (tiles, row_tiles), group.world_size());
        Ok(Self {
            entries,
            turn: 0,
            folded: false,
            tile: None,
            sweeps: Sweeps::ONE_BY_ONE,
            trace: group.config().trace.then(room).transpose()?,
        })
    }

    /// A call begins: its launches are what is traced from here on, are cut into `tile`, if that is decided, and sweep so many shards
    /// together, which for calls of as many rows is always the same.
    pub(crate) fn begin_call(&mut self, tile: Option<TileShape>, sweeps: Sweeps) {
        (self.tile, self.sweeps) = (tile, sweeps);
        if let Some(trace) = &self.trace {
            trace.begin();
        }
    }

    /// Whether the last launch summed its own rows itself, as its parameters asked.
    pub(crate) const fn folded(&self) -> bool {
        self.folded
    }

    /// The trace of the last call's launches.
    pub(crate) const fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// Waits on this thread until all launches have ended.
    pub(crate) fn settle(&self) {
        for entry in &self.entries {
            if let Err(error) = entry.used.synchronize() {
                tracing::warn!(%error, "a launch ended with an error");
            }
        }
    }

    /// Launches `gemm` with the schedule for its rows and policy; if it is not there, the launcher chooses the tile, and
    /// `tables` makes a schedule of it and the sweeps. What the parameters ask to fold in is left out if the kernel cannot:
    /// [`Schedules::folded`].
    ///
    /// # Safety
    /// What the parameters name is live and of the extents that they and `tables` say until `stream` has passed it.
    pub(crate) unsafe fn launch(
        &mut self,
        stream: &Stream,
        gemm: &Gemm<'_>,
        tables: impl FnOnce(&Tiling, Sweeps) -> Result<ScheduleTables>,
    ) -> Result<()> {
        self.turn += 1;
        // Hopper's kernel does not put: the portable one, which takes what is not aligned, does.
        let puts = gemm.destinations.is_some_and(Destinations::has_puts);
        let aligned = gemm.params.are_operands_aligned(gemm.dtype) && !puts;
        let key = Some((gemm.shards.total(), gemm.policy, aligned, self.tile));
        let found = self.entries.iter().position(|entry| entry.key == key);
        let oldest = || (0..self.entries.len()).min_by_key(|&index| self.entries[index].last_used);
        let index = found.or_else(oldest).unwrap_or(0);
        let entry = &mut self.entries[index];
        // Calls may come on different streams: this one goes on after the last that used or wrote the schedule.
        stream.wait(&entry.used)?;
        if found.is_none() {
            entry.key = None;
            let tiling = gemm.tiling(aligned, self.tile)?;
            let tables = tables(&tiling, self.sweeps)?.halve_last(tiling.halved, tiling.half_rows())?;
            // SAFETY: every launch that used the old schedule comes before the event that the stream waits for, and every
            // launch of the new one after this.
            unsafe { entry.schedule.write(stream, &tables)? };
            (entry.key, entry.tiling) = (key, Some(tiling));
        }
        entry.last_used = self.turn;
        if let Some(tiling) = &entry.tiling {
            let Gemm { launcher, policy, dtype, scales, activation, destinations, shards, params, .. } =
                *gemm;
            let sources = params.fold.sources as usize;
            self.folded = launcher.can_fold(dtype, tiling, sources)?;
            let fold = if self.folded { params.fold } else { FoldParams::default() };
            let params = GemmParams { m: kernel_size("the number of rows", shards.total())?, fold, ..params };
            let (schedule, trace) = (&entry.schedule, self.trace.as_ref());
            let launch = Launch { policy, dtype, scales, activation, tiling, schedule, destinations, trace };
            // SAFETY: the caller's promise; the schedule's memory lives as long as this, which waits for its uses; the calls
            // of a rank, and so its launches, come one after the other.
            unsafe { launcher.gemm(stream, &launch, &params)? };
        }
        Ok(stream.record(&entry.used)?)
    }
}

impl Drop for Schedules {
    fn drop(&mut self) {
        self.settle();
    }
}
