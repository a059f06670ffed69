//! Where the partial tiles of a ReduceScatter go.

use crate::hopper;
use crate::params::PutParams;
use crate::tensor_map::MapOf;
use crate::{DType, Destination, PutRoute, Result, SIGNAL_ROWS};
use flux_memory::{Address, Buffer, Device, Placement};

/// The slots of a launch's destinations, as the kernels look them up: `Destination[]`, and for Hopper's tensor maps of them.
#[derive(Debug)]
pub struct Destinations {
    table: Buffer,
    count: usize,
    puts: Option<(Buffer, PutParams)>,
}

/// A slot's extents: the same at every destination.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    /// Rows of a slot.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Elements from one row to the next, a multiple of 8.
    pub pitch: usize,
}

/// Tensor maps come behind the table, at a multiple of their alignment.
const fn maps_offset(count: usize) -> usize {
    (count * size_of::<Destination>()).next_multiple_of(64)
}

impl Destinations {
    /// Tabulates `destinations` for launches on `device` that multiply `dtype`; slots hold its [`DType::result`].
    pub fn new(device: &Device, dtype: DType, destinations: &[Destination], slots: Slots) -> Result<Self> {
        let count = destinations.len();
        let mut bytes = bytemuck::cast_slice(destinations).to_vec();
        bytes.resize(maps_offset(count), 0);
        if device.as_cuda().is_some_and(|gpu| hopper::is_supported(gpu)) && slots.rows * slots.columns > 0 {
            for box_columns in hopper::PIECE_COLUMNS {
                for destination in destinations {
                    let map = MapOf {
                        address: destination.slot,
                        rows: slots.rows as u64,
                        columns: slots.columns as u64,
                        pitch: slots.pitch as u64,
                        box_rows: hopper::PIECE_ROWS,
                        box_columns,
                    };
                    bytes.extend_from_slice(bytemuck::bytes_of(&map.encode(dtype.result())?));
                }
            }
        }
        let table = Buffer::allocate(device, bytes.len(), Placement::Device)?;
        table.upload(&device.stream()?, 0, &bytes)?;
        Ok(Self { table, count, puts: None })
    }

    /// Some of which are put to: launches then take a kernel that does, whatever their tiling says that is for an operand that is
    /// not aligned. There is a route for each destination, one of each rank; `set` is what NVSHMEM calls setting a signal.
    pub fn with_puts(self, routes: &[PutRoute], set: u32) -> Result<Self> {
        let bytes = bytemuck::cast_slice(routes);
        let table = Buffer::allocate(self.table.device(), bytes.len(), Placement::Device)?;
        table.upload(&self.table.device().stream()?, 0, bytes)?;
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let (block_rows, world_size) = (number(SIGNAL_ROWS), number(routes.len()));
        let puts = PutParams { routes: table.address(), block_rows, world_size, set, reserved: 0 };
        Ok(Self { puts: Some((table, puts)), ..self })
    }

    /// Whether some are put to.
    pub const fn has_puts(&self) -> bool {
        self.puts.is_some()
    }

    pub(crate) fn puts(&self) -> Option<PutParams> {
        self.puts.as_ref().map(|(_, puts)| *puts)
    }

    /// `Destination[]`.
    pub(crate) fn address(&self) -> Address {
        self.table.address()
    }

    /// The tensor maps with boxes of so many columns, in the order of the destinations.
    pub(crate) fn maps(&self, box_columns: u32) -> Address {
        let index = hopper::PIECE_COLUMNS.iter().position(|&columns| columns == box_columns).unwrap_or(0);
        self.address()
            .add(maps_offset(self.count) + index * self.count * size_of::<crate::tensor_map::TensorMap>())
    }
}
