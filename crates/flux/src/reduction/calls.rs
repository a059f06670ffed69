//! A rank's part of a call: its GEMM, what moves, and the sum.

use super::{Owners, Reduction};
use crate::call::{check_call, kernel_size};
use crate::epilogue::check_bias;
use crate::plan::Path;
use crate::scales::Scales;
use crate::schedules::{Gemm, Schedules, plain_tables};
use crate::{Matrix, Result, Summation};
use flux_launch::{Activation, FoldParams, GemmParams, Policy, SIGNAL_ROWS, SumParams, Tiling};
use flux_memory::{Address, Stream};
use flux_swizzle::Shards;
use flux_transport::Landed;

/// One rank's part of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Partial {
    pub(crate) rank: usize,
    pub(crate) epoch: u32,
    pub(crate) path: Path,
    pub(crate) m: usize,
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    pub(crate) scales: Scales,
    pub(crate) bias: Option<Address>,
    /// Where the rows go that the rank sums.
    pub(crate) out: Matrix,
}

impl Reduction {
    /// Checks a part of a call, but for its output.
    pub(crate) fn check(
        &self,
        rank: usize,
        m: usize,
        (a, b, scales, bias): (Matrix, Matrix, Scales, Option<Address>),
        stream: &Stream,
    ) -> Result<()> {
        check_call(&self.group, &self.spec, rank, m, stream)?;
        let (n, dtype, depth) = (self.spec.n, self.spec.dtype, self.depth(rank).len());
        a.check("A", m, depth, dtype)?;
        b.check("B", n, depth, dtype)?;
        scales.check(dtype, m, n)?;
        check_bias(bias, n, dtype.result())
    }

    /// Begins a part of a call: the GEMM, into the owners' slots if fused and delivered directly, else into memory from
    /// which [`Reduction::transfer`] moves its rows; if chunked, a GEMM for each owner, and its rows move when it has ended.
    ///
    /// # Safety
    /// The part's matrices are live, of the call's extents, and reachable by the rank's device until `stream` has passed
    /// the call, and nobody writes to them meanwhile. Every rank makes the same sequence of calls; epochs rise by one.
    pub(crate) unsafe fn begin(
        &self,
        part: &Partial,
        schedules: &mut Schedules,
        stream: &Stream,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            self.scatter.begin(part.rank, stream)?;
            let partial = Matrix::contiguous(self.scatter.partial(part.rank), self.pitch);
            match part.path {
                Path::CommunicationOnly => {}
                Path::Chunked => return self.gemm_by_owner(part, partial, schedules, stream),
                Path::Fused => {
                    self.scatter.begin_relay(part.rank, stream)?;
                    self.gemm(part, partial, schedules, stream)?;
                }
                _ => self.gemm(part, partial, schedules, stream)?,
            }
            if part.path != Path::Fused {
                self.scatter.stage(part.rank, part.epoch, stream)?;
            }
        }
        Ok(())
    }

    /// A GEMM for each owner's rows, in the order in which they leave, each followed by its transfer.
    ///
    /// # Safety
    /// As for [`Reduction::begin`].
    unsafe fn gemm_by_owner(
        &self,
        part: &Partial,
        partial: Matrix,
        schedules: &mut Schedules,
        stream: &Stream,
    ) -> Result<()> {
        let dtype = self.spec.dtype;
        for &owner in self.scatter.order(part.rank) {
            let rows = self.rows(owner, part.m);
            let of_owner = Partial {
                m: rows.len(),
                a: part.a.rows_from(rows.start, dtype),
                scales: part.scales.rows_from(rows.start),
                ..*part
            };
            let partial = partial.rows_from(rows.start, dtype.result());
            // SAFETY: the caller's promise, for these rows.
            unsafe {
                self.gemm(&of_owner, partial, schedules, stream)?;
                self.scatter.stage_shard(part.rank, owner, part.epoch, part.m, stream)?;
            }
        }
        Ok(())
    }

    /// Moves the rows that [`Reduction::begin`], of all ranks, has not moved.
    ///
    /// # Safety
    /// As for [`Reduction::begin`].
    pub(crate) unsafe fn transfer(&self, part: &Partial, stream: &Stream) -> Result<()> {
        let &Partial { rank, epoch, m, .. } = part;
        // SAFETY: the caller's promise.
        unsafe {
            match part.path {
                Path::Fused => self.scatter.relay(rank, epoch, m)?,
                Path::Chunked => self.scatter.transfer_rest(rank, epoch, m, stream)?,
                _ => self.scatter.transfer(rank, epoch, m, stream)?,
            }
        }
        Ok(())
    }

    /// Sums the rank's rows, and the bias, unless the GEMM has folded that in, and lets the sources overwrite its slots.
    ///
    /// # Safety
    /// As for [`Reduction::begin`], which came before with the same schedules.
    pub(crate) unsafe fn finish(&self, part: &Partial, schedules: &Schedules, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            if part.path != Path::Fused || !schedules.folded() {
                self.sum(part, stream)?;
            }
            Ok(self.scatter.release(part.rank, part.epoch, stream)?)
        }
    }

    /// Sums each tile when its signals are up: of its block of rows if fused, else one per source.
    ///
    /// # Safety
    /// As for [`Reduction::begin`].
    unsafe fn sum(&self, part: &Partial, stream: &Stream) -> Result<()> {
        let &Partial { rank, out, .. } = part;
        let (signals, source_stride, signal_rows) = match part.path {
            // A slot's panels come one after the other, and the rank's own tiles are all written when this begins.
            Path::Fused => {
                let last =
                    (self.scatter.panels(part.m).count() - 1) * self.scatter.blocks() * size_of::<u32>();
                (self.scatter.gates(rank).add(last), self.scatter.slot_signals(), SIGNAL_ROWS)
            }
            _ => (self.scatter.arrived(rank), 1, self.scatter.slot_rows().max(1)),
        };
        let fused = part.path == Path::Fused;
        // SAFETY: the caller's promise; all ranks' transfers are enqueued before the first sum.
        let landed = unsafe { self.scatter.land(rank, part.epoch, part.m, fused, stream)? };
        let (slots, (signals, source_stride, signal_rows)) = match landed {
            Some(Landed { slots, signals }) => (slots, (signals, 1, self.scatter.slot_rows().max(1))),
            None => (self.slots(rank), (signals, source_stride, signal_rows)),
        };
        let params = SumParams {
            slots,
            source_pitch: (self.scatter.slot_rows() * self.pitch) as u64,
            ld_slot: self.pitch as u64,
            out: out.address,
            ld_out: out.pitch as u64,
            bias: part.bias.unwrap_or_default(),
            signals,
            source_stride: kernel_size("the number of a slot's signals", source_stride)?,
            signal_rows: kernel_size("the number of rows", signal_rows)?,
            rows: kernel_size("the number of rows", self.rows(rank, part.m).len())?,
            n: kernel_size("n", self.spec.n)?,
            world_size: kernel_size("the world size", self.scatter.sources())?,
            epoch: part.epoch,
            wait: self.group.members().faults[rank].bound(self.op),
        };
        // SAFETY: the caller's promise for the output; the rest belongs to this op.
        Ok(unsafe { self.group.launcher(rank).sum(stream, self.spec.dtype, &params) }?)
    }

    /// The sum that a fused call's GEMM is to fold in; none if it is not to.
    fn fold(&self, part: &Partial) -> Result<FoldParams> {
        let rank = part.rank;
        if !self.folds {
            return Ok(FoldParams::default());
        }
        Ok(FoldParams {
            slots: self.slots(rank),
            bias: part.bias.unwrap_or_default(),
            ld_out: part.out.pitch as u64,
            sources: kernel_size("the world size", self.scatter.sources())?,
            own: kernel_size("the rank", self.scatter.own_source(rank))?,
            slot_rows: kernel_size("the number of rows", self.scatter.slot_rows())?,
            rows: kernel_size("the number of rows", self.rows(rank, part.m).len())?,
            source_stride: kernel_size("the number of a slot's signals", self.scatter.slot_signals())?,
            epoch: part.epoch,
        })
    }

    /// The GEMM by itself: to its tiles' destinations if fused (of `c`, only the pitch counts), and what is folded in, to
    /// where the part's sum goes; else into `c`. The bias is added here only if there is no sum over ranks to add it to.
    ///
    /// # Safety
    /// As for [`Reduction::begin`]; nobody else accesses `c`.
    pub(crate) unsafe fn gemm(
        &self,
        part: &Partial,
        c: Matrix,
        schedules: &mut Schedules,
        stream: &Stream,
    ) -> Result<()> {
        let Partial { rank, epoch, path, m, a, b, scales, bias, out } = *part;
        let bias = bias.filter(|_| path == Path::Local);
        let policy = if path == Path::Fused { Policy::ReduceScatter } else { Policy::Plain };
        let destination_count = match self.owners {
            Owners::Shards => 1,
            Owners::All => kernel_size("the world size", self.in_reach(rank).len())?,
        };
        let params = GemmParams {
            a: a.address,
            b: b.address,
            c: if path == Path::Fused { out.address } else { c.address },
            lda: a.pitch as u64,
            ldb: b.pitch as u64,
            ldc: c.pitch as u64,
            gates: self.scatter.gates(rank),
            counters: self.counters[rank].address(),
            bias: bias.unwrap_or_default(),
            n: kernel_size("n", self.spec.n)?,
            k: kernel_size("k", self.depth(rank).len())?,
            gate_epoch: epoch.wrapping_sub(1), // the owners have summed the call before
            epoch,
            destination_count,
            fold: if path == Path::Fused { self.fold(part)? } else { FoldParams::default() },
            wait: self.group.members().faults[rank].bound(self.op),
            ..GemmParams::default()
        };
        let fused = policy == Policy::ReduceScatter;
        let gemm = Gemm {
            launcher: self.group.launcher(rank),
            policy,
            dtype: self.spec.dtype,
            scales: scales.lowered(),
            activation: Activation::None,
            shards: if fused { self.shards(m)? } else { Shards::new(m, 1)? },
            params,
            destinations: fused.then(|| &self.destinations[rank]),
            must_fold: fused && self.folds && self.spec.summation == Summation::Folded,
        };
        let tables = |tiling: &Tiling, sweeps| match policy {
            Policy::ReduceScatter => self.fused_tables(rank, m, tiling, sweeps),
            _ => plain_tables(m, tiling, self.spec.n),
        };
        // SAFETY: the caller's promise for the matrices; the rest belongs to this op.
        unsafe { schedules.launch(stream, &gemm, tables) }
    }
}
