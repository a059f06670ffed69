//! Schedules by number of rows: built once for each, kept while they are in use, and the launches that follow them.

use crate::Result;
use flux_launch::{DType, GemmParams, Launcher, Policy, Schedule, ScheduleTables};
use flux_memory::{Device, Event, Stream};
use flux_swizzle::{TileOrder, TileShape};

/// How many numbers of rows an operation remembers. A call with another one writes its schedule anew, in stream order.
const KEPT: usize = 8;

/// A GEMM, but for its schedule.
#[derive(Clone, Copy)]
pub(crate) struct Gemm<'a> {
    pub(crate) launcher: &'a Launcher,
    pub(crate) policy: Policy,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) params: GemmParams,
}

/// The schedule of a GEMM that waits for nothing: its rows are C's.
pub(crate) fn plain_tables(rows: usize, tile: TileShape, columns: usize) -> Result<ScheduleTables> {
    Ok(ScheduleTables::new(&TileOrder::plain(rows, tile, columns)?, |_, _| {})?)
}

/// One rank's schedules of one operation. All memory is allocated when it is built.
#[derive(Debug)]
pub(crate) struct Schedules {
    entries: Vec<Entry>,
    turn: u64,
}

#[derive(Debug)]
struct Entry {
    key: Option<(usize, Policy)>,
    last_used: u64,
    schedule: Schedule,
    /// After the last launch that used it.
    used: Event,
}

impl Schedules {
    /// Room for `largest`, and so for every smaller one.
    pub(crate) fn new(device: &Device, largest: &TileOrder) -> Result<Self> {
        let (tiles, row_tiles) = (largest.len(), largest.row_tiles().count());
        ScheduleTables::check_size(row_tiles, largest.column_tiles())?;
        let entry = || {
            Ok(Entry {
                key: None,
                last_used: 0,
                schedule: Schedule::with_capacity(device, tiles, row_tiles)?,
                used: Event::new(device)?,
            })
        };
        Ok(Self { entries: (0..KEPT).map(|_| entry()).collect::<Result<_>>()?, turn: 0 })
    }

    /// Launches `gemm` with the schedule for its rows and policy, built by `tables` if it is not there.
    ///
    /// # Safety
    /// What the parameters name is live and of the extents that they and `tables` say until `stream` has passed it.
    pub(crate) unsafe fn launch(
        &mut self,
        stream: &Stream,
        gemm: &Gemm<'_>,
        tables: impl FnOnce() -> Result<ScheduleTables>,
    ) -> Result<()> {
        self.turn += 1;
        let key = Some((gemm.rows, gemm.policy));
        let found = self.entries.iter().position(|entry| entry.key == key);
        let oldest = || (0..self.entries.len()).min_by_key(|&index| self.entries[index].last_used);
        let index = found.or_else(oldest).unwrap_or(0);
        let entry = &mut self.entries[index];
        // Calls may come on different streams: this one goes on after the last that used or wrote the schedule.
        stream.wait(&entry.used)?;
        if found.is_none() {
            entry.key = None;
            // SAFETY: every launch that used the old schedule comes before the event that the stream waits for, and every
            // launch of the new one after this.
            unsafe { entry.schedule.write(stream, &tables()?)? };
            entry.key = key;
        }
        entry.last_used = self.turn;
        let (schedule, Gemm { launcher, policy, dtype, .. }) = (&entry.schedule, *gemm);
        let (order, row_tiles, tiles) = (schedule.order(), schedule.row_tiles(), schedule.tiles());
        let params = GemmParams { order, row_tiles, tiles, ..gemm.params };
        // SAFETY: the caller's promise; the schedule's memory lives as long as this, which waits for its uses.
        unsafe { launcher.gemm(stream, policy, dtype, &params)? };
        Ok(stream.record(&entry.used)?)
    }
}

impl Drop for Schedules {
    fn drop(&mut self) {
        for entry in &self.entries {
            if let Err(error) = entry.used.synchronize() {
                tracing::warn!(%error, "a launch ended with an error");
            }
        }
    }
}
