//! The sum of the slots, folded into the GEMM: a rank's own tiles become rows of C.

use super::super::sum::sum_row;
use super::{TILE, Worker};
use crate::trace::Record;
use crate::{Element, GemmParams, RowTile, SumParams};
use flux_memory::{Address, WaitSite, host};

/// A tile that is summed with the slots of other sources.
pub(super) struct Folded<E: Element> {
    index: u32,
    row_tile: RowTile,
    first_column: usize,
    columns: usize,
    /// The rank's own part, row by row.
    own: Vec<E::Result>,
    record: Record,
}

impl<E: Element> Folded<E> {
    /// What the worker has just multiplied.
    pub(super) fn new(
        worker: &Worker<'_, E>,
        index: u32,
        row_tile: RowTile,
        first_column: usize,
        columns: usize,
    ) -> Self {
        let rows = worker.c.chunks_exact(TILE.columns).take(row_tile.rows as usize);
        let own = rows.flat_map(|sums| &sums[..columns]).map(|&sum| E::Result::round(sum)).collect();
        Self { index, row_tile, first_column, columns, own, record: worker.record }
    }
}

impl<E: Element> Worker<'_, E> {
    /// Sums a tile if its slots are full, else when there is no other tile left: whoever fills them may need a while. False if a
    /// wait expired.
    ///
    /// # Safety
    /// As for [`super::Gemm`].
    pub(super) unsafe fn fold_or_defer(&mut self, tile: Folded<E>) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            if self.slots_are_up(&tile.row_tile) {
                return self.fold(tile);
            }
        }
        self.deferred.push(tile);
        true
    }

    /// The other sources of a folded tile, and the signal of the slot of each.
    fn slot_signals(&self, row_tile: &RowTile) -> impl Iterator<Item = (u32, u32)> + use<E> {
        let (fold, first) = (self.params.fold, row_tile.signal);
        let others = (0..fold.sources).filter(move |&source| source != fold.own);
        others.map(move |source| (source, source * fold.source_stride + first))
    }

    fn slot_signal(&self, signal: u32) -> Address {
        self.params.gates.add(signal as usize * size_of::<u32>())
    }

    /// # Safety
    /// As for [`super::Gemm`].
    unsafe fn slots_are_up(&self, row_tile: &RowTile) -> bool {
        let mut signals = self.slot_signals(row_tile);
        // SAFETY: the caller's promise.
        signals.all(|(_, signal)| unsafe { host::is_up(self.slot_signal(signal), self.params.fold.epoch) })
    }

    /// Sums the tiles whose slots were not full when they had been multiplied; false if a wait expired.
    ///
    /// # Safety
    /// As for [`super::Gemm`].
    pub(super) unsafe fn sum_deferred(&mut self) -> bool {
        // SAFETY: the caller's promise.
        std::mem::take(&mut self.deferred).into_iter().all(|tile| unsafe { self.fold(tile) })
    }

    /// Sums the tile and the other sources' slots into C, when their signals are up; false if a wait expired.
    ///
    /// # Safety
    /// As for [`super::Gemm`].
    unsafe fn fold(&mut self, mut tile: Folded<E>) -> bool {
        let GemmParams { fold, wait, .. } = self.params;
        tile.record.gate_begin = self.now();
        let all_up = self.slot_signals(&tile.row_tile).all(|(peer, signal)| {
            let site = WaitSite { peer, tile: tile.record.entry, signal };
            // SAFETY: the caller's promise.
            unsafe { host::wait(wait, self.slot_signal(signal), fold.epoch, site) }
        });
        tile.record.gate_end = self.now();
        if !all_up {
            return false;
        }
        let sum = SumParams {
            slots: fold.slots,
            source_pitch: u64::from(fold.slot_rows) * self.params.ldc,
            ld_slot: self.params.ldc,
            out: self.params.c,
            ld_out: fold.ld_out,
            bias: fold.bias,
            world_size: fold.sources,
            ..SumParams::default()
        };
        for (row, own) in tile.own.chunks_exact(tile.columns.max(1)).enumerate() {
            let row = tile.row_tile.destination_row as usize + row;
            let (sums, own) = (&mut self.c[..tile.columns], Some((fold.own as usize, own)));
            // SAFETY: the caller's promise.
            unsafe { sum_row::<E::Result>(&sum, row, tile.first_column, sums, &mut self.bias, own) };
        }
        tile.record.stored[0] = self.now();
        // SAFETY: the caller's promise.
        unsafe { self.leave(tile.index, tile.record) };
        true
    }
}
