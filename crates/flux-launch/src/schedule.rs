//! The tables a kernel walks: in which order to compute which tiles, and what each waits for.

use crate::{Error, Result, RowTile};
use flux_memory::{Address, Buffer, Device, Event, Placement, Stream};
use flux_swizzle::TileOrder;

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
        mut describe: impl FnMut(&flux_swizzle::RowTile, &mut RowTile),
    ) -> Result<Self> {
        let number = |tile: usize| u16::try_from(tile).map_err(|_| Error::TooManyTiles { tiles: tile + 1 });
        let mut row_tiles = Vec::new();
        for (index, tile) in order.row_tiles().enumerate() {
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
        Ok(Self { order: order.tiles().map(entry).collect::<Result<_>>()?, row_tiles })
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
    tables: Buffer,
    staging: Buffer,
    staged: Event,
    stream_reads_staging: bool,
    capacity: (usize, usize),
    tiles: u32,
}

impl Schedule {
    /// Room for `tiles` tiles in `row_tiles` row tiles.
    pub fn with_capacity(device: &Device, tiles: usize, row_tiles: usize) -> Result<Self> {
        let bytes = row_tiles.saturating_mul(size_of::<RowTile>());
        let bytes = bytes.saturating_add(tiles.saturating_mul(size_of::<u32>()));
        Ok(Self {
            tables: Buffer::allocate(device, bytes, Placement::Device)?,
            staging: Buffer::allocate(device, bytes, Placement::PinnedHost)?,
            staged: Event::new(device)?,
            stream_reads_staging: false,
            capacity: (tiles, row_tiles),
            tiles: 0,
        })
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
            let staging: *mut u8 = self.staging.address().as_ptr();
            staging.copy_from_nonoverlapping(rows.as_ptr(), rows.len());
            staging.add(self.order_offset()).copy_from_nonoverlapping(order.as_ptr(), order.len());
        }
        // SAFETY: the caller keeps readers of the tables away, and this alive.
        unsafe {
            stream.copy(self.tables.address(), self.staging.address(), rows.len())?;
            stream.copy(self.order(), self.staging.address().add(self.order_offset()), order.len())?;
        }
        stream.record(&self.staged)?;
        self.stream_reads_staging = true;
        self.tiles = u32::try_from(tables.order.len())
            .map_err(|_| Error::TooManyTiles { tiles: tables.order.len() })?;
        Ok(())
    }

    /// The order, `u32[tiles]`.
    pub fn order(&self) -> Address {
        self.tables.address().add(self.order_offset())
    }

    /// The row tiles, `RowTile[]`.
    pub fn row_tiles(&self) -> Address {
        self.tables.address()
    }

    /// Tiles of the schedule written last.
    pub const fn tiles(&self) -> u32 {
        self.tiles
    }

    fn order_offset(&self) -> usize {
        self.capacity.1 * size_of::<RowTile>()
    }
}
