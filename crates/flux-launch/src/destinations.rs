//! Where the partial tiles of a ReduceScatter go.

use crate::hopper;
use crate::tensor_map::MapOf;
use crate::{DType, Destination, Result};
use flux_memory::{Address, Buffer, Device, Placement};

/// The slots of a launch's destinations, as the kernels look them up: `Destination[]`, and for Hopper's tensor maps of them.
#[derive(Debug)]
pub struct Destinations {
    table: Buffer,
    count: usize,
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
        Ok(Self { table, count })
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
