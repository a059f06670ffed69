//! Schedules by number of rows: built once for each, kept while they are in use.

use crate::Result;
use flux_launch::{Schedule, ScheduleTables};
use flux_memory::{Device, Event, Stream};
use flux_swizzle::TileOrder;

/// How many numbers of rows an operation remembers. A call with another one writes its schedule anew, in stream order.
const KEPT: usize = 8;

/// One rank's schedules of one operation. All memory is allocated when it is built.
#[derive(Debug)]
pub(crate) struct Schedules {
    entries: Vec<Entry>,
    turn: u64,
}

#[derive(Debug)]
struct Entry {
    key: Option<(usize, bool)>,
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

    /// Calls `launch` with the schedule for `m` rows on the fused or the unfused way, built by `tables` if it is not there.
    pub(crate) fn with(
        &mut self,
        stream: &Stream,
        (m, fused): (usize, bool),
        tables: impl FnOnce() -> Result<ScheduleTables>,
        launch: impl FnOnce(&Schedule) -> Result<()>,
    ) -> Result<()> {
        self.turn += 1;
        let key = Some((m, fused));
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
        launch(&entry.schedule)?;
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
