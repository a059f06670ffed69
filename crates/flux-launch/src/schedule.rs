//! The tables a kernel walks: in which order to compute which tiles, and what each waits for.

use crate::{Error, Result, RowTile};
use flux_memory::{Address, Buffer, Device, Event, Placement, Stream};
use flux_swizzle::TileOrder;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Rows that share a signal of a ReduceScatter, at most: a multiple of the rows of every tile, of which none may straddle two
/// such blocks.
pub const SIGNAL_ROWS: usize = 256;

/// A schedule in host memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleTables {
    /// Row tile in the upper half, column tile in the lower.
    pub order: Vec<u32>,
    /// What the order's row tiles are.
    pub row_tiles: Vec<RowTile>,
}

impl ScheduleTables {
    /// Tabulates `order`; `describe` says of each row tile what it waits for and where it goes (its rows are filled in
    /// already).
    pub fn new(
        order: &TileOrder,
        describe: impl FnMut(&flux_swizzle::RowTile, &mut RowTile),
    ) -> Result<Self> {
        Self::of(order.row_tiles(), order.tiles(), describe)
    }

    /// The same where `order`'s shards come in this order: [`TileOrder::tiles_along`].
    pub fn along(
        order: &TileOrder,
        shards: &[usize],
        describe: impl FnMut(&flux_swizzle::RowTile, &mut RowTile),
    ) -> Result<Self> {
        let shards = shards.iter().copied();
        Self::of(order.row_tiles_along(shards.clone()), order.tiles_along(shards), describe)
    }

    fn of(
        of_rows: impl Iterator<Item = flux_swizzle::RowTile>,
        tiles: impl Iterator<Item = flux_swizzle::Tile>,
        mut describe: impl FnMut(&flux_swizzle::RowTile, &mut RowTile),
    ) -> Result<Self> {
        let number = |tile: usize| u16::try_from(tile).map_err(|_| Error::TooManyTiles { tiles: tile + 1 });
        let mut row_tiles = Vec::new();
        for (index, tile) in of_rows.enumerate() {
            number(index)?;
            let row = u32::try_from(tile.rows.start)
                .map_err(|_| Error::TooLarge { what: "the number of rows", value: tile.rows.end })?;
            let rows = u32::try_from(tile.rows.len())
                .map_err(|_| Error::TooLarge { what: "the height of a tile", value: tile.rows.len() })?;
            let mut entry = RowTile { row, rows, ..RowTile::default() };
            describe(&tile, &mut entry);
            row_tiles.push(entry);
        }
        let entry = |tile: flux_swizzle::Tile| {
            Ok(u32::from(number(tile.row_tile)?) << 16 | u32::from(number(tile.column_tile)?))
        };
        let mut tables = Self { order: tiles.map(entry).collect::<Result<_>>()?, row_tiles };
        tables.count();
        Ok(tables)
    }

    /// Tells tiles of the same rows apart by the panel of the columns that they are in: `panel_of` says which, of a row tile and the
    /// number of a block of columns, and `describe` changes the entry of those in that panel.
    pub fn by_panels(
        mut self,
        panel_of: impl Fn(&RowTile, usize) -> usize,
        describe: impl Fn(usize, &mut RowTile),
    ) -> Result<Self> {
        let whole = std::mem::take(&mut self.row_tiles);
        let mut places = BTreeMap::new();
        for entry in &mut self.order {
            let (index, column_tile) = ((*entry >> 16) as usize, *entry & 0xffff);
            let tile = whole.get(index).ok_or(Error::NoSuchRowTile { index })?;
            let panel = panel_of(tile, column_tile as usize);
            let place = *places.entry((index, panel)).or_insert_with(|| {
                let mut of_panel = *tile;
                describe(panel, &mut of_panel);
                self.row_tiles.push(of_panel);
                self.row_tiles.len() - 1
            });
            let place = u16::try_from(place).map_err(|_| Error::TooManyTiles { tiles: place + 1 })?;
            *entry = u32::from(place) << 16 | column_tile;
        }
        self.count();
        Ok(self)
    }

    /// Cuts the last `count` tiles of the order into halves of `rows` rows, those that are higher: a last wave of tiles
    /// that does not fill the SMs then takes half the time.
    pub fn halve_last(mut self, count: usize, rows: usize) -> Result<Self> {
        let height = u32::try_from(rows).unwrap_or(u32::MAX);
        let tail = self.order.split_off(self.order.len().saturating_sub(count));
        let mut halves_of = BTreeMap::new();
        for entry in tail {
            let index = (entry >> 16) as usize;
            let tile = *self.row_tiles.get(index).ok_or(Error::NoSuchRowTile { index })?;
            if tile.rows <= height {
                self.order.push(entry);
                continue;
            }
            let first = *halves_of.entry(entry >> 16).or_insert_with(|| {
                let upper = RowTile { rows: height, ..tile };
                let lower = RowTile {
                    row: tile.row + height,
                    rows: tile.rows - height,
                    destination_row: tile.destination_row + height,
                    ..tile
                };
                self.row_tiles.extend([upper, lower]);
                self.row_tiles.len() - 2
            });
            for half in [first, first + 1] {
                let half = u16::try_from(half).map_err(|_| Error::TooManyTiles { tiles: half + 1 })?;
                self.order.push(u32::from(half) << 16 | (entry & 0xffff));
            }
        }
        self.count();
        Ok(self)
    }

    /// Whether there is one row tile, and the order is that of its columns.
    fn is_row(&self) -> bool {
        let in_order = || self.order.iter().zip(0..).all(|(&entry, column): (_, u32)| entry == column);
        self.row_tiles.len() == 1 && in_order()
    }

    /// Fills in how many tiles of the order share each counter.
    fn count(&mut self) {
        let mut counts = BTreeMap::new();
        for entry in &self.order {
            if let Some(tile) = self.row_tiles.get((entry >> 16) as usize) {
                *counts.entry(tile.counter).or_insert(0) += 1;
            }
        }
        for tile in &mut self.row_tiles {
            tile.count = counts.get(&tile.counter).copied().unwrap_or(0);
        }
    }

    /// Whether an order's entries can number that many tiles along each dimension: 65,536.
    pub fn check_size(row_tiles: usize, column_tiles: usize) -> Result<()> {
        match row_tiles.max(column_tiles) {
            tiles if tiles > usize::from(u16::MAX) + 1 => Err(Error::TooManyTiles { tiles }),
            _ => Ok(()),
        }
    }
}

/// A schedule where kernels can read it. The memory is allocated once, for the largest schedule.
#[derive(Debug)]
pub struct Schedule {
    tables: Arc<Buffer>,
    staging: Arc<Buffer>,
    /// Where this schedule begins in both buffers.
    offset: usize,
    staged: Event,
    stream_reads_staging: bool,
    capacity: (usize, usize),
    tiles: u32,
    row_tiles: usize,
    is_row: bool,
}

impl Schedule {
    /// Room for `tiles` tiles in `row_tiles` row tiles.
    pub fn with_capacity(device: &Device, tiles: usize, row_tiles: usize) -> Result<Self> {
        let mut set = Self::set(device, 1, tiles, row_tiles)?;
        set.pop().ok_or(Error::ScheduleTooLarge { tiles, capacity: 0 })
    }

    /// `count` schedules, each with that room, in one allocation: pinned memory takes long to allocate.
    pub fn set(device: &Device, count: usize, tiles: usize, row_tiles: usize) -> Result<Vec<Self>> {
        let bytes = row_tiles.saturating_mul(size_of::<RowTile>());
        let bytes = bytes.saturating_add(tiles.saturating_mul(size_of::<u32>()));
        let bytes = bytes.checked_next_multiple_of(16).unwrap_or(usize::MAX);
        let total = bytes.saturating_mul(count);
        let tables = Arc::new(Buffer::allocate(device, total, Placement::Device)?);
        let staging = Arc::new(Buffer::allocate(device, total, Placement::PinnedHost)?);
        let one = |index: usize| {
            Ok(Self {
                tables: Arc::clone(&tables),
                staging: Arc::clone(&staging),
                offset: index * bytes,
                staged: Event::new(device)?,
                stream_reads_staging: false,
                capacity: (tiles, row_tiles),
                tiles: 0,
                row_tiles: 0,
                is_row: false,
            })
        };
        (0..count).map(one).collect()
    }

    /// Replaces the schedule, in the order of `stream`.
    ///
    /// # Safety
    /// Launches that use the old schedule come before this in the order of `stream`, and those that use the new one
    /// after it; this outlives them.
    pub unsafe fn write(&mut self, stream: &Stream, tables: &ScheduleTables) -> Result<()> {
        let (tiles, row_tiles) = self.capacity;
        if tables.order.len() > tiles || tables.row_tiles.len() > row_tiles {
            return Err(Error::ScheduleTooLarge { tiles: tables.order.len(), capacity: tiles });
        }
        if self.stream_reads_staging {
            self.staged.synchronize()?;
        }
        let rows: &[u8] = bytemuck::cast_slice(&tables.row_tiles);
        let order: &[u8] = bytemuck::cast_slice(&tables.order);
        // SAFETY: both parts were checked to fit; no stream reads the staging memory any more.
        unsafe {
            let staging: *mut u8 = self.staging.address().add(self.offset).as_ptr();
            staging.copy_from_nonoverlapping(rows.as_ptr(), rows.len());
            staging.add(self.order_offset()).copy_from_nonoverlapping(order.as_ptr(), order.len());
        }
        // SAFETY: the caller keeps readers of the tables away, and this alive.
        unsafe {
            let staging = self.staging.address().add(self.offset);
            stream.copy(self.row_tiles(), staging, rows.len())?;
            stream.copy(self.order(), staging.add(self.order_offset()), order.len())?;
        }
        stream.record(&self.staged)?;
        self.stream_reads_staging = true;
        self.tiles = u32::try_from(tables.order.len())
            .map_err(|_| Error::TooManyTiles { tiles: tables.order.len() })?;
        self.row_tiles = tables.row_tiles.len();
        self.is_row = tables.is_row();
        Ok(())
    }

    /// The order, `u32[tiles]`.
    pub(crate) fn order(&self) -> Address {
        self.row_tiles().add(self.order_offset())
    }

    /// The row tiles, `RowTile[]`.
    pub(crate) fn row_tiles(&self) -> Address {
        self.tables.address().add(self.offset)
    }

    /// The row tiles of the schedule written last, as the host wrote them.
    pub(crate) fn staged_row_tiles(&self) -> &[RowTile] {
        let first: *const RowTile = self.staging.address().add(self.offset).as_ptr();
        // SAFETY: so many were written there, at a multiple of 16 bytes; only `write` does that, and nothing else writes to
        // this schedule's part of the memory.
        unsafe { std::slice::from_raw_parts(first, self.row_tiles) }
    }

    /// Whether the schedule written last has one row tile, and its tiles come in the order of their columns.
    pub(crate) const fn is_row(&self) -> bool {
        self.is_row
    }

    /// Tiles of the schedule written last.
    pub const fn tiles(&self) -> u32 {
        self.tiles
    }

    fn order_offset(&self) -> usize {
        self.capacity.1 * size_of::<RowTile>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flux_swizzle::TileShape;

    #[test]
    fn halves_cover_the_same_rows_and_are_counted() {
        // 600 rows are tiles of 256, 256 and 88; five columns of tiles.
        let order = TileOrder::plain(600, TileShape { rows: 256, columns: 64 }, 320).unwrap();
        let whole =
            ScheduleTables::new(&order, |tile, entry| entry.counter = u32::from(tile.index > 0)).unwrap();
        assert_eq!(whole.row_tiles.iter().map(|tile| tile.count).collect::<Vec<_>>(), [5, 10, 10]);
        for halved in 0..=whole.order.len() + 1 {
            let tables = whole.clone().halve_last(halved, 128).unwrap();
            let mut covered = vec![[0_u8; 5]; 600];
            for entry in &tables.order {
                let tile = tables.row_tiles[(entry >> 16) as usize];
                for row in tile.row..tile.row + tile.rows {
                    covered[row as usize][(entry & 0xffff) as usize] += 1;
                }
            }
            assert!(covered.iter().flatten().all(|&count| count == 1), "{halved}");
            for counter in 0..2_u32 {
                let shared = |entry: &&u32| tables.row_tiles[(**entry >> 16) as usize].counter == counter;
                let count = tables.order.iter().filter(shared).count();
                let noted = tables.row_tiles.iter().find(|tile| tile.counter == counter).unwrap().count;
                assert_eq!(noted as usize, count, "{halved}");
            }
        }
    }

    #[test]
    fn an_order_of_row_tiles_that_do_not_exist_is_refused() {
        let tables = ScheduleTables { order: vec![3 << 16], row_tiles: vec![RowTile::default()] };
        assert!(matches!(tables.halve_last(1, 128), Err(Error::NoSuchRowTile { index: 3 })));
    }
}
