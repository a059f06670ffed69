//! The GEMM: tiles in the schedule's order, gated and scattered as on a GPU.

mod fold;

use super::{Kernel, TILE, epilogue};
use crate::trace::Record;
use crate::{Activation, Destination, Element, GemmParams, Policy, RowTile, Scales};
use bytemuck::Zeroable;
use flux_memory::host::{self, now_ns};
use flux_memory::{Address, WaitSite};
use fold::Folded;
use rayon::ThreadPool;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Columns of K that are multiplied at once: what a thread widens stays within 3 MiB, however large K is.
const PANEL: usize = 4096;

/// One launch.
pub(crate) struct Gemm {
    pub(crate) policy: Policy,
    pub(crate) activation: Activation,
    pub(crate) params: GemmParams,
    pub(crate) scales: Scales,
    /// Where the records of its tiles go, if somebody wants them.
    pub(crate) records: Option<Address>,
}

impl Kernel for Gemm {
    /// Computes all tiles, which the threads take in order. All addresses are of live host memory of the extents that the
    /// parameters and their tables say; nobody writes to A's rows after their gates are open, or to B.
    unsafe fn run<E: Element>(self, pool: &ThreadPool) {
        let next = AtomicU32::new(0);
        let expired = AtomicBool::new(false);
        pool.broadcast(|thread| {
            let mut worker = Worker::<E>::new(&self, thread.index());
            let mut all = true;
            while all && !expired.load(Ordering::Relaxed) {
                let tile = next.fetch_add(1, Ordering::Relaxed);
                if tile >= self.params.tiles {
                    break;
                }
                // SAFETY: the caller's promise; `tile` is an entry of the order.
                all = unsafe { worker.tile(tile) };
            }
            // SAFETY: the caller's promise.
            if !all || !unsafe { worker.sum_deferred() } {
                expired.store(true, Ordering::Relaxed);
            }
        });
    }
}

/// One thread's share, with its rows of A and B widened to fp32.
struct Worker<'a, E: Element> {
    policy: Policy,
    activation: Activation,
    params: &'a GemmParams,
    scales: Scales,
    k: usize,
    a: Vec<f32>,
    b: Vec<f32>,
    /// The column tile, and the panel's first column of K, that `b` holds: neighbours in the order share them.
    b_holds: Option<(usize, usize)>,
    c: Vec<f32>,
    bias: Vec<f32>,
    rounded: Vec<E::Result>,
    deferred: Vec<Folded<E>>,
    thread: u32,
    /// Where the records go, if somebody wants them.
    records: Option<Address>,
    /// When what happened to the tile at hand.
    record: Record,
}

impl<'a, E: Element> Worker<'a, E> {
    fn new(gemm: &'a Gemm, thread: usize) -> Self {
        let k = gemm.params.k as usize;
        Self {
            policy: gemm.policy,
            activation: gemm.activation,
            params: &gemm.params,
            scales: gemm.scales,
            k,
            a: vec![0.0; TILE.rows * k.min(PANEL)],
            b: vec![0.0; TILE.columns * k.min(PANEL)],
            b_holds: None,
            c: vec![0.0; TILE.rows * TILE.columns],
            bias: vec![0.0; TILE.columns],
            rounded: vec![E::Result::zeroed(); TILE.columns],
            deferred: Vec::new(),
            thread: u32::try_from(thread).unwrap_or(u32::MAX),
            records: gemm.records,
            record: Record::default(),
        }
    }

    /// The time for the record, if somebody wants it.
    fn now(&self) -> u64 {
        if self.records.is_some() { now_ns() } else { 0 }
    }

    /// Leaves the record of an entry of the order.
    ///
    /// # Safety
    /// As for [`Gemm`].
    unsafe fn leave(&self, index: u32, record: Record) {
        if let Some(records) = self.records {
            let record = Record { block: self.thread, sm: self.thread, ..record };
            // SAFETY: the caller's promise; nobody else writes this tile's record.
            unsafe { records.as_ptr::<Record>().add(index as usize).write(record) };
        }
    }

    /// Computes one entry of the order; false if a wait expired.
    ///
    /// # Safety
    /// As for [`Gemm`].
    unsafe fn tile(&mut self, index: u32) -> bool {
        // SAFETY: the caller's promise.
        let (entry, row_tile) = unsafe {
            let entry = *self.params.order.as_ptr::<u32>().add(index as usize);
            (entry, *self.params.row_tiles.as_ptr::<RowTile>().add((entry >> 16) as usize))
        };
        let column_tile = (entry & 0xffff) as usize;
        let first_column = column_tile * TILE.columns;
        let columns = TILE.columns.min((self.params.n as usize).saturating_sub(first_column));
        let rows = row_tile.rows as usize;
        let scatters = self.policy == Policy::ReduceScatter;
        self.record = Record { entry, ..Record::default() };
        // SAFETY: the caller's promise.
        unsafe {
            if !scatters && !self.gate(&row_tile, entry) {
                return false;
            }
            self.record.first_stage[0] = self.now();
            self.multiply(&row_tile, column_tile, columns);
            if E::DTYPE.is_scaled() {
                let first = (row_tile.row as usize, first_column);
                epilogue::scale(
                    &self.scales,
                    first,
                    self.c.chunks_exact_mut(TILE.columns).take(rows),
                    columns,
                );
            }
            self.record.multiplied[0] = self.now();
            if !scatters {
                let sums = self.activation.sums_per_column();
                self.finish(rows, first_column, columns);
                self.store(self.params.c, row_tile.row as usize, rows, first_column / sums, columns / sums);
                self.record.stored[0] = self.now();
                self.leave(index, self.record);
                return true;
            }
            let fold = &self.params.fold;
            if fold.sources > 0 && row_tile.destination == fold.own {
                return self.fold_or_defer(Folded::new(self, index, row_tile, first_column, columns));
            }
            if !self.gate(&row_tile, entry) {
                return false;
            }
            for destination in self.destinations(&row_tile) {
                self.store(destination.slot, row_tile.destination_row as usize, rows, first_column, columns);
            }
            self.record.stored[0] = self.now();
            if self.count(&row_tile) {
                self.record.signal = self.now();
            }
            self.leave(index, self.record);
        }
        true
    }

    /// The destinations of a tile.
    ///
    /// # Safety
    /// As for [`Gemm`].
    unsafe fn destinations(&self, row_tile: &RowTile) -> &'a [Destination] {
        let first = row_tile.destination as usize;
        // SAFETY: the caller's promise.
        unsafe {
            let table = self.params.destinations.as_ptr::<Destination>().add(first);
            std::slice::from_raw_parts(table, self.params.destination_count as usize)
        }
    }

    /// Counts a tile as written; the last one of a block of rows raises the block's signal at every destination: then true.
    ///
    /// # Safety
    /// As for [`Gemm`].
    unsafe fn count(&self, row_tile: &RowTile) -> bool {
        let word = |array: Address, index: u32| array.add(index as usize * size_of::<u32>());
        // SAFETY: the caller's promise.
        let counter = unsafe { AtomicU32::from_ptr(word(self.params.counters, row_tile.counter).as_ptr()) };
        // Release: the tile comes before its count. Acquire: all counted tiles come before the signal.
        let is_last = counter.fetch_add(1, Ordering::AcqRel) + 1 == row_tile.count;
        if is_last {
            counter.store(0, Ordering::Relaxed);
            // SAFETY: the caller's promise.
            unsafe {
                for destination in self.destinations(row_tile) {
                    host::raise(word(destination.signals, row_tile.signal), self.params.epoch);
                }
            }
        }
        is_last
    }

    /// Waits for a tile's gate, which a plain GEMM's tiles do not have; false if the wait expired.
    ///
    /// # Safety
    /// As for [`Gemm`].
    unsafe fn gate(&mut self, row_tile: &RowTile, entry: u32) -> bool {
        self.record.gate_begin = self.now();
        let mut gate =
            if self.policy == Policy::Plain { 0..0 } else { row_tile.gate_begin..row_tile.gate_end };
        let open = gate.all(|signal| {
            let word = self.params.gates.add(signal as usize * size_of::<u32>());
            let next = if self.policy == Policy::ReduceScatter { signal - row_tile.gate_begin } else { 0 };
            let site = WaitSite { peer: row_tile.peer + next, tile: entry, signal };
            // SAFETY: the caller's promise.
            unsafe { host::wait(&self.params.wait, word, self.params.gate_epoch, site) }
        });
        self.record.gate_end = self.now();
        open
    }

    /// # Safety
    /// As for [`Gemm`].
    unsafe fn multiply(&mut self, row_tile: &RowTile, column_tile: usize, columns: usize) {
        let (rows, first_column) = (row_tile.rows as usize, column_tile * TILE.columns);
        if self.k == 0 {
            self.c.fill(0.0);
        }
        for first in (0..self.k).step_by(PANEL) {
            let depth = PANEL.min(self.k - first);
            // SAFETY: the caller's promise.
            unsafe {
                let GemmParams { lda, b, ldb, own_row, own_rows, .. } = *self.params;
                let of_own = row_tile.row.wrapping_sub(own_row);
                let (a, first_row) = match of_own < own_rows {
                    true => (self.params.own_a, of_own as usize),
                    false => (self.params.a, row_tile.row as usize),
                };
                widen_rows::<E>(a, lda, first_row..first_row + rows, first..first + depth, &mut self.a);
                if self.b_holds != Some((column_tile, first)) {
                    let b_rows = first_column..first_column + columns;
                    widen_rows::<E>(b, ldb, b_rows, first..first + depth, &mut self.b);
                    self.b_holds = Some((column_tile, first));
                }
            }
            let (row_pitch, column_pitch) = (depth.cast_signed(), TILE.columns.cast_signed());
            // SAFETY: `a` holds TILE.rows rows of the panel's depth, `b` TILE.columns rows, `c` TILE.rows rows of
            // TILE.columns; rows and columns are at most those.
            unsafe {
                matrixmultiply::sgemm(
                    rows,
                    depth,
                    columns,
                    1.0,
                    self.a.as_ptr(),
                    row_pitch,
                    1,
                    self.b.as_ptr(),
                    1,
                    row_pitch,
                    if first == 0 { 0.0 } else { 1.0 },
                    self.c.as_mut_ptr(),
                    column_pitch,
                    1,
                );
            }
        }
    }

    /// Adds the bias and applies the activation.
    ///
    /// # Safety
    /// As for [`Gemm`].
    unsafe fn finish(&mut self, rows: usize, first_column: usize, columns: usize) {
        for sums in self.c.chunks_exact_mut(TILE.columns).take(rows) {
            // SAFETY: the caller's promise: a bias has an element for each column of sums.
            unsafe {
                epilogue::add_bias::<E::Result>(
                    self.params.bias,
                    first_column,
                    &mut sums[..columns],
                    &mut self.bias,
                );
            }
            epilogue::activate(self.activation, &mut sums[..columns]);
        }
    }

    /// # Safety
    /// As for [`Gemm`].
    unsafe fn store(
        &mut self,
        target: Address,
        first_row: usize,
        rows: usize,
        first_column: usize,
        columns: usize,
    ) {
        let target: *mut E::Result = target.as_ptr();
        let pitch = self.params.ldc as usize;
        for row in 0..rows {
            let sums = &self.c[row * TILE.columns..][..columns];
            self.rounded.iter_mut().zip(sums).for_each(|(to, &sum)| *to = E::Result::round(sum));
            // SAFETY: the caller's promise.
            unsafe {
                let to = target.add((first_row + row) * pitch + first_column);
                to.copy_from_nonoverlapping(self.rounded.as_ptr(), columns);
            }
        }
    }
}

/// # Safety
/// `matrix` has the `rows` and `columns`, its rows `pitch` elements apart; `to` has room for all of them.
unsafe fn widen_rows<E: Element>(
    matrix: Address,
    pitch: u64,
    rows: Range<usize>,
    columns: Range<usize>,
    to: &mut [f32],
) {
    for (row, to) in rows.zip(to.chunks_exact_mut(columns.len())) {
        let first = row * pitch as usize + columns.start;
        // SAFETY: the caller's promise.
        let from = unsafe { std::slice::from_raw_parts(matrix.as_ptr::<E>().add(first), columns.len()) };
        E::widen(from, to);
    }
}
