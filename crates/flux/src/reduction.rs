//! The sum over ranks of A_s · B_sᵀ, as far as GEMM+ReduceScatter and GEMM+AllReduce share it: the GEMM's tiles go into
//! this rank's slots at the ranks that own the rows, and every owner sums its slots in rank order. Two ways lead there, which
//! the kernels do not tell apart, nor the owners: a tile's destination is the slot itself, or memory of this rank's, from
//! which the transfer stream relays it.
//!
//! Each rank's partial sum is accumulated in fp32, scaled, and rounded to the type of the result once; the owner sums these and
//! the bias in fp32, and rounds once more. In f16, a partial sum beyond 65,504 overflows even if the whole does not.

mod tables;

use crate::call::{check_call, kernel_size};
use crate::delivery;
use crate::epilogue::check_bias;
use crate::levels::NodeSums;
use crate::plan::{self, Path, PathPreference};
use crate::planner::Built;
use crate::puts;
use crate::scales::Scales;
use crate::schedules::{Gemm, Schedules, plain_tables};
use crate::taper::{self, Overlap};
use crate::{Delivery, Error, Group, Levels, Matrix, OpSpec, Result, Summation};
use flux_launch::{
    Activation, Destinations, FoldParams, GemmParams, Policy, Problem, SIGNAL_ROWS, Slots, SumParams, Tiling,
};
use flux_memory::{Address, Buffer, PerRank, Placement, Stream};
use flux_swizzle::{ChunkRows, Pattern, Shards, Taper, TileShape};
use flux_transport::{Nvshmem, PeerCopy, Scatter, ScatterSpec, TransferLog};
use std::ops::Range;
use tables::destinations;

/// Slots' rows begin at multiples of 16 bytes, so that tiles are written and summed in full lines.
const PITCH_ELEMENTS: usize = 8;

/// Who sums which rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owners {
    /// Every rank its shard.
    Shards,
    /// Every rank all rows.
    All,
}

/// The GEMM, the slots and their sum.
#[derive(Debug)]
pub(crate) struct Reduction {
    spec: OpSpec,
    op: u32,
    owners: Owners,
    chunk_rows: usize,
    tile: TileShape,
    pitch: usize,
    delivery: delivery::Choice,
    /// Fused calls sum in the GEMM's epilogue, where its kernel can.
    folds: bool,
    weight_shards: Shards,
    scatter: Scatter,
    /// Each rank's, in the order of [`destinations`].
    destinations: PerRank<Destinations>,
    /// Each rank's counters of the tiles that it has written: of each block of rows, at each owner.
    counters: PerRank<Buffer>,
    group: Group,
}

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
    /// Allocates, for calls of at most `max_rows` rows, every rank's slots, the same again for partial sums unless all
    /// calls are fused and deliver directly, and the signals, and loads the kernels.
    pub(crate) fn new(
        group: &Group,
        spec: &OpSpec,
        built: &Built,
        (op, max_rows, owners): (u32, usize, Owners),
    ) -> Result<Self> {
        let world_size = group.world_size();
        let tile = group.any_launcher().tile(spec.dtype)?;
        let pitch = spec.n.next_multiple_of(PITCH_ELEMENTS);
        let row_bytes = pitch * spec.dtype.result().bytes();
        let slot_rows = match owners {
            Owners::Shards => Shards::new(max_rows, world_size)?.max_rows(),
            Owners::All => max_rows,
        };
        // What is sent to all goes whole.
        let by_rows: ChunkRows = match owners {
            Owners::Shards => built.chunks.clone(),
            Owners::All => spec.chunk_rows.unwrap_or_else(|| plan::chunk_rows(row_bytes, slot_rows)).into(),
        };
        let chunk_rows = by_rows.of(max_rows);
        let may_fuse = matches!(spec.path, PathPreference::Auto | PathPreference::Fused);
        let two_levels = owners == Owners::Shards && spec.levels.are_two(group, spec.delivery)?;
        let puts = may_fuse && owners == Owners::Shards && !two_levels && puts::prepare(group, spec)?;
        // Faults in slots that are not numbered by rank are told by the operation's number.
        let op = if two_levels { group.register_again(op) } else { op };
        let delivery = if puts { delivery::Choice::PutAsAsked } else { built.delivery };
        let weight_shards = Shards::new(spec.k, world_size)?;
        let relayed = may_fuse && owners == Owners::Shards && delivery.delivery() == Delivery::Relayed;
        let some_relayed = relayed
            || (may_fuse
                && owners == Owners::Shards
                && !two_levels
                && !group.members().space.reach().is_complete());
        let taper = if some_relayed {
            let shards = Shards::new(max_rows, world_size)?;
            let problem =
                Problem { shards, n: spec.n, k: weight_shards.rows(0), aligned: true, to_slots: true };
            taper::choose(group, spec, &problem, (row_bytes, chunk_rows), Overlap::scatter_taper)?
        } else {
            Taper::NONE
        };
        let scatter_spec = ScatterSpec {
            max_rows,
            row_bytes,
            chunk_rows: by_rows,
            taper,
            block_rows: SIGNAL_ROWS,
            with_partial: spec.path != PathPreference::Fused,
            relayed,
            puts,
            sum_in_nodes: two_levels.then(|| NodeSums::shared(group, spec.dtype, (spec.n, pitch), op)),
            direction: built.direction,
            // Nothing is passed on: it is the order in which tiles are computed.
            pattern: built.order.clone(),
            placement: group.config().peer_memory,
            op,
            signal_loss: group.config().signal_loss,
        };
        let scatter = match owners {
            Owners::Shards => Scatter::new(Box::new(PeerCopy), group.members(), scatter_spec)?,
            Owners::All => Scatter::to_all(Box::new(PeerCopy), group.members(), scatter_spec)?,
        };
        if scatter.has_two_levels() {
            let sources = |rank| scatter.source_ranks(rank).collect();
            let sources = PerRank::new(group.local_ranks(), sources);
            group.number_slots(op, scatter.blocks() * scatter.sources(), sources);
        }
        let slots = Slots { rows: slot_rows, columns: spec.n, pitch };
        let tables = PerRank::try_new(group.local_ranks(), |rank| {
            group.launcher(rank).prepare(spec.dtype, &[Policy::Plain, Policy::ReduceScatter])?;
            let in_reach = group.members().space.reach().of_rank(rank);
            let table = destinations(world_size, &scatter, rank, (owners, in_reach));
            let device = group.device(rank)?;
            let table = Destinations::new(device, spec.dtype, &table, slots)?;
            let Some(nvshmem) = group.nvshmem().filter(|_| puts) else { return Ok(table) };
            let routes = puts::routes(nvshmem, &scatter, rank, world_size);
            Ok::<_, Error>(table.with_puts(&routes, Nvshmem::SIGNAL_SET)?)
        })?;
        let counters = PerRank::try_new(group.local_ranks(), |rank| {
            let bytes = scatter.blocks().saturating_mul(world_size).saturating_mul(size_of::<u32>());
            Buffer::allocate(group.device(rank)?, bytes, Placement::Device).map_err(Error::from)
        })?;
        Ok(Self {
            spec: spec.clone(),
            op,
            owners,
            chunk_rows,
            tile,
            pitch,
            delivery,
            // One-shot, all tiles are a rank's own: each would wait for its peers as soon as it is multiplied.
            folds: owners == Owners::Shards && spec.summation.folds(group),
            weight_shards,
            scatter,
            destinations: tables,
            counters,
            group: group.clone(),
        })
    }

    /// What gives the order in which owners are sent to.
    pub(crate) const fn pattern(&self) -> &Pattern {
        self.scatter.pattern()
    }

    /// In how many levels sums over nodes are made: what [`OpSpec::levels`] stands for.
    pub(crate) const fn levels(&self) -> Levels {
        if self.scatter.has_two_levels() { Levels::Two } else { Levels::One }
    }

    /// The tile that the GEMM computes.
    pub(crate) const fn tile(&self) -> TileShape {
        self.tile
    }

    /// Rows in which partial sums travel where the GEMM does not send them.
    pub(crate) const fn chunk_rows(&self) -> usize {
        self.chunk_rows
    }

    /// The columns of A and of the weight that `rank` holds.
    pub(crate) fn depth(&self, rank: usize) -> Range<usize> {
        self.weight_shards.range(rank)
    }

    /// The rows that `rank` sums in a call with `m` rows.
    pub(crate) fn rows(&self, rank: usize, m: usize) -> Range<usize> {
        match self.owners {
            Owners::Shards => {
                Shards::new(m, self.group.world_size()).map_or(0..0, |shards| shards.range(rank))
            }
            Owners::All => 0..m,
        }
    }

    /// `rank`'s slots `[slots, rows of the largest sum, pitch]`: one for each rank, unless in two levels.
    pub(crate) fn slots(&self, rank: usize) -> Address {
        self.scatter.slot(rank, 0)
    }

    /// Size in bytes of the buffer at [`Reduction::slots`].
    pub(crate) fn slots_bytes(&self) -> usize {
        self.scatter.slots_bytes()
    }

    /// How fused calls deliver their tiles, but for those that go to all.
    pub(crate) const fn delivery(&self) -> delivery::Choice {
        self.delivery
    }

    /// The memory that `rank`'s tiles are relayed from, and its size in bytes; null and 0 if none are.
    pub(crate) fn relayed_tiles(&self, rank: usize) -> (Address, usize) {
        self.scatter.relayed_tiles(rank)
    }

    /// Waits on this thread until everything that was enqueued for transfers has ended.
    pub(crate) fn settle(&self) {
        self.scatter.settle();
    }

    /// When `rank`'s transfer stream moved which chunk; none unless the group is traced.
    pub(crate) fn transfer_log(&self, rank: usize) -> Option<&TransferLog> {
        self.scatter.log(rank)
    }

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
            Path::Fused => (self.scatter.gates(rank), self.scatter.blocks(), SIGNAL_ROWS),
            _ => (self.scatter.arrived(rank), 1, self.scatter.slot_rows().max(1)),
        };
        let params = SumParams {
            slots: self.slots(rank),
            source_pitch: (self.scatter.slot_rows() * self.pitch) as u64,
            ld_slot: self.pitch as u64,
            out: out.address,
            ld_out: out.pitch as u64,
            bias: part.bias.unwrap_or_default(),
            signals,
            source_stride: kernel_size("the number of blocks of rows", source_stride)?,
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
            source_stride: kernel_size("the number of blocks of rows", self.scatter.blocks())?,
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
        let tables = |tiling: &Tiling| match policy {
            Policy::ReduceScatter => self.fused_tables(rank, m, tiling),
            _ => plain_tables(m, tiling, self.spec.n),
        };
        // SAFETY: the caller's promise for the matrices; the rest belongs to this op.
        unsafe { schedules.launch(stream, &gemm, tables) }
    }

    /// The ranks whose memory `rank`'s GEMM can write to.
    fn in_reach(&self, rank: usize) -> Range<usize> {
        self.group.members().space.reach().of_rank(rank)
    }

    /// The rows that go to one owner each, or all to all.
    fn shards(&self, m: usize) -> Result<Shards> {
        Ok(match self.owners {
            Owners::Shards => Shards::new(m, self.group.world_size())?,
            Owners::All => Shards::new(m, 1)?,
        })
    }
}
