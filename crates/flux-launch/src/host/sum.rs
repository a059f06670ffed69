//! The sum of the slots, in rank order, and the bias.

use super::{Kernel, TILE, epilogue};
use crate::{Element, SumParams};
use flux_memory::{WaitSite, host};
use rayon::ThreadPool;
use std::sync::atomic::{AtomicU32, Ordering};

impl Kernel for SumParams {
    /// Sums each tile when all its sources' signals are up. All addresses are of live host memory of the extents that the
    /// parameters say; nobody writes to a slot's tile after its signal is up.
    unsafe fn run<E: Element>(self, pool: &ThreadPool) {
        let next = AtomicU32::new(0);
        // SAFETY: the caller's promise.
        pool.broadcast(|_| unsafe { sum_tiles::<E>(&self, &next) });
    }
}

/// The sum by the stream's own thread, which waits for none of the pool's.
pub(crate) struct Beside(pub(crate) SumParams);

impl Kernel for Beside {
    unsafe fn run<E: Element>(self, _pool: &ThreadPool) {
        // SAFETY: the caller's promise.
        unsafe { sum_tiles::<E>(&self.0, &AtomicU32::new(0)) };
    }
}

/// Sums tiles until there are no more.
///
/// # Safety
/// As for [`Kernel::run`].
unsafe fn sum_tiles<E: Element>(params: &SumParams, next: &AtomicU32) {
    let column_tiles = params.n.div_ceil(TILE.columns as u32);
    let tiles = params.rows.div_ceil(TILE.rows as u32) * column_tiles;
    let mut sums = vec![0.0_f32; TILE.columns];
    let mut widened = vec![0.0_f32; TILE.columns];
    loop {
        let tile = next.fetch_add(1, Ordering::Relaxed);
        if tile >= tiles {
            break;
        }
        let (row_tile, column_tile) = (tile / column_tiles, tile % column_tiles);
        // SAFETY: the caller's promise.
        if !unsafe { wait(params, row_tile, column_tile) } {
            break;
        }
        let (row, column) = (row_tile as usize * TILE.rows, column_tile as usize * TILE.columns);
        let columns = TILE.columns.min(params.n as usize - column);
        for row in row..(row + TILE.rows).min(params.rows as usize) {
            // SAFETY: the caller's promise.
            unsafe { sum_row::<E>(params, row, column, &mut sums[..columns], &mut widened, None) };
        }
    }
}

/// # Safety
/// As for [`Kernel::run`].
unsafe fn wait(params: &SumParams, row_tile: u32, column_tile: u32) -> bool {
    (0..params.world_size).all(|source| {
        let signal = source * params.source_stride + row_tile * TILE.rows as u32 / params.signal_rows;
        let word = params.signals.add(signal as usize * size_of::<u32>());
        let site = WaitSite { peer: source, tile: row_tile << 16 | column_tile, signal };
        // SAFETY: the caller's promise.
        unsafe { host::wait(&params.wait, word, params.epoch, site) }
    })
}

/// Sums as many columns as `sums` has, from `column` on. What `own` says is in the slot of a source is not read from there.
///
/// # Safety
/// As for [`Kernel::run`].
pub(super) unsafe fn sum_row<E: Element>(
    params: &SumParams,
    row: usize,
    column: usize,
    sums: &mut [f32],
    widened: &mut [f32],
    own: Option<(usize, &[E])>,
) {
    sums.fill(0.0);
    let widened = &mut widened[..sums.len()];
    for source in 0..params.world_size as usize {
        let offset = source * params.source_pitch as usize + row * params.ld_slot as usize + column;
        let part = match own {
            Some((own, part)) if own == source => part,
            // SAFETY: the caller's promise.
            _ => unsafe { std::slice::from_raw_parts(params.slots.as_ptr::<E>().add(offset), sums.len()) },
        };
        E::widen(part, widened);
        sums.iter_mut().zip(widened.iter()).for_each(|(sum, &part)| *sum += part);
    }
    // SAFETY: the caller's promise: a bias has as many elements as the output has columns.
    unsafe { epilogue::add_bias::<E>(params.bias, column, sums, widened) };
    // SAFETY: the caller's promise.
    unsafe {
        let out = params.out.as_ptr::<E>().add(row * params.ld_out as usize + column);
        sums.iter().enumerate().for_each(|(index, &sum)| out.add(index).write(E::round(sum)));
    }
}
