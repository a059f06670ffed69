//! AllGather + GEMM: C_r [M, N_r] = concat(A) · B_rᵀ, plus a bias, through an activation, both before the one rounding.
//!
//! *The schedule decides, for each tile, what it waits for and where it goes; so communication starts when the first
//! tile ends.* Here: copy engines bring the peers' shards chunk by chunk; each tile waits only for the chunks that its
//! rows touch, and tiles are computed in the order the chunks arrive, the rank's own shard first.

use crate::agreement::Terms;
use crate::call::{self, OpState, Phase, Phased, check_call, kernel_size};
use crate::epilogue::{self, check_bias};
use crate::plan::{self, Path, PathChoice, PathPreference};
use crate::planner::{Explain, OpKind, Planner};
use crate::push::KernelPush;
use crate::scales::{Scale, Scales};
use crate::schedules::{Gemm, Schedules, plain_tables};
use crate::{Group, Matrix, OpSpec, Result, tuner};
use flux_launch::{GemmParams, Policy, ScheduleTables, Tiling};
use flux_memory::{Address, PerRank, Stream};
use flux_swizzle::{Pattern, Shards, Sweeps, Taper, TileOrder, TileShape};
use flux_transport::{AllGather, AllGatherSpec, Awaited, Rows, TransferLog};

/// AllGather + GEMM, built once for a layer and called with any number of rows up to its maximum.
#[derive(Debug)]
pub struct AgGemm {
    spec: OpSpec,
    op: u32,
    planner: Planner,
    tile: TileShape,
    /// The columns of C.
    columns: Shards,
    gather: AllGather,
    state: OpState,
    /// Last, so that it is dropped last: its kernels are unloaded when all that runs has ended.
    group: Group,
}

/// One rank's part of a call.
#[derive(Clone, Copy, Debug)]
pub struct AgGemmCall {
    /// Rows of the whole A, all ranks' together; the same on every rank.
    pub m: usize,
    /// The rank's rows of A, `[m_r, K]` without gaps: `m_r` is [`AgGemm::rows`].
    pub a: Address,
    /// The rank's rows of the weight, `[N_r, K]`: `N_r` is [`AgGemm::weight_rows`].
    pub b: Matrix,
    /// The scales of both; of each row of A, those of the rank's rows, `[m_r]`, on all ranks or on none: they travel with the
    /// rows. One for all of A is the same on every rank. Of each row of B, those of the rank's rows, `[N_r]`.
    pub scales: Scales,
    /// `[N_r]`, an element for each of the rank's rows of the weight: added to every row of the product.
    pub bias: Option<Address>,
    /// The rank's columns of the result, `[m, N_r]`; [`AgGemm::columns`] says which, half as many with SwiGLU.
    pub c: Matrix,
}

impl AgGemm {
    /// Allocates, for every rank, the gathered rows (`max_m · K` elements, and `max_m` scales if they can have any), the signals and the schedules, and loads the
    /// kernels. Calls allocate nothing on a GPU. SwiGLU needs an even n.
    pub fn new(group: &Group, spec: OpSpec) -> Result<Self> {
        tuner::lazily(group, OpKind::AgGemm, &spec)?;
        group.together("ag-gemm", &spec, || Self::build(group, spec.clone()))
    }

    fn build(group: &Group, spec: OpSpec) -> Result<Self> {
        let world_size = group.world_size();
        spec.check()?;
        let tile = group.any_launcher().tile(spec.dtype)?;
        let shards = Shards::new(spec.max_m, world_size)?;
        let columns = Shards::new(epilogue::columns(&spec)?, world_size)?;
        let row_bytes = spec.k * spec.dtype.bytes();
        let planner = Planner::new(group, OpKind::AgGemm, &spec)?;
        let built = planner.built();
        let op = group.register(format!("ag-gemm (n {}, k {})", spec.n, spec.k));
        let (max_rows, direction) = (spec.max_m, built.direction);
        let (placement, signal_loss) = (group.config().peer_memory, group.config().signal_loss);
        let weight_rows = |rank| columns.rows(rank) * spec.activation.sums_per_column();
        let side_bytes = if spec.dtype.is_scaled() { size_of::<f32>() } else { 0 };
        let gather = AllGatherSpec {
            max_rows,
            row_bytes,
            side_bytes,
            chunk_rows: built.chunks.clone(),
            taper: built.taper,
            direction,
            pattern: built.order.clone(),
            placement,
            op,
            signal_loss,
        };
        let mut gather = AllGather::new(KernelPush::boxed(spec.push, group), group.members(), gather)?;
        if matches!(spec.path, PathPreference::Auto | PathPreference::Chunked) {
            gather.watch_shards(group.members())?;
        }
        let extra = if built.taper == Taper::NONE { 0 } else { gather.chunks(0, spec.max_m)?.signals() };
        let schedules = PerRank::try_new(group.local_ranks(), |rank| {
            group.launcher(rank).prepare(spec.dtype, &[Policy::Plain, Policy::AllGather])?;
            Schedules::new(group, rank, spec.dtype, (shards, extra, 1), weight_rows(rank))
        })?;
        let state = OpState::new(group, schedules)?;
        Ok(Self { spec, op, planner, tile, columns, gather, state, group: group.clone() })
    }

    pub(crate) const fn group(&self) -> &Group {
        &self.group
    }

    /// What it was built for.
    pub const fn spec(&self) -> &OpSpec {
        &self.spec
    }

    /// How its ranks exchange their shards: what [`OpSpec::order`] stands for in its group.
    pub const fn pattern(&self) -> &Pattern {
        self.gather.pattern()
    }

    /// The rows of A that `rank` holds in a call with `m` rows.
    pub fn rows(&self, rank: usize, m: usize) -> std::ops::Range<usize> {
        Shards::new(m, self.state.world_size()).map_or(0..0, |shards| shards.range(rank))
    }

    /// The columns of C that `rank` computes; without SwiGLU these are the rows of the weight that it holds, too.
    pub fn columns(&self, rank: usize) -> std::ops::Range<usize> {
        self.columns.range(rank)
    }

    /// The rows of the weight that `rank` holds, and elements of the bias. With SwiGLU these are whole pairs.
    pub fn weight_rows(&self, rank: usize) -> std::ops::Range<usize> {
        let (columns, each) = (self.columns(rank), self.spec.activation.sums_per_column());
        columns.start * each..columns.end * each
    }

    /// The tile that the GEMM computes.
    pub const fn tile(&self) -> TileShape {
        self.tile
    }

    /// Rows in which a shard travels, but for what [`OpSpec::taper`] cuts finer.
    pub fn chunk_rows(&self) -> usize {
        self.planner.built().chunks.of(self.spec.max_m)
    }

    /// How calls of `m` rows go, and why.
    pub fn explain(&self, m: usize) -> Result<Explain> {
        self.planner.explain(m)
    }

    /// `rank`'s gathered A `[m, K]` of the last call that was not [`Path::Local`], valid on the call's stream until the
    /// next call of any rank. The rank's own rows are in it only with [`OpSpec::keep_gathered`].
    pub fn gathered(&self, rank: usize) -> Address {
        self.gather.gathered(rank)
    }

    /// `rank`'s gathered scales of the rows of A, `[m]`, valid as [`AgGemm::gathered`] if the call had them, and the size of
    /// their buffer in bytes: 0 if the elements have none.
    pub fn gathered_scales(&self, rank: usize) -> (Address, usize) {
        let each = if self.spec.dtype.is_scaled() { size_of::<f32>() } else { 0 };
        (self.gather.gathered_side(rank), self.spec.max_m.saturating_mul(each))
    }

    /// Size in bytes of the buffer at [`AgGemm::gathered`]: what the operation allocated for each rank that grows with
    /// `max_m`, but for the scales.
    pub const fn gathered_bytes(&self) -> usize {
        self.spec.max_m.saturating_mul(self.spec.k * self.spec.dtype.bytes())
    }

    /// Enqueues `rank`'s part of a call on `stream`: afterwards, in stream order, C is complete and A may be overwritten.
    /// It never waits on the host. An expired wait is reported by the next call, or by [`Group::check`]. Ranks that share
    /// a GPU are called together, with [`AgGemm::enqueue_all`]. It cannot be captured into a CUDA graph, and says so.
    ///
    /// # Safety
    /// The matrices are live, of the extents that [`AgGemmCall`] says, and reachable by the rank's device, until
    /// `stream` has passed this call; nobody else accesses C, or writes to A, B or the bias, meanwhile. The group
    /// outlives the stream's work.
    pub unsafe fn enqueue(&self, rank: usize, call: &AgGemmCall, stream: &Stream) -> Result<PathChoice> {
        self.group.check_alone(rank)?;
        // SAFETY: the caller's promise.
        unsafe { call::one(self, rank, call, stream) }
    }

    /// Enqueues the parts of all ranks of this process, rank by rank, each on its own of `streams`.
    ///
    /// # Safety
    /// As for [`AgGemm::enqueue`], for every rank.
    pub unsafe fn enqueue_all(&self, calls: &[AgGemmCall], streams: &[&Stream]) -> Result<PathChoice> {
        // SAFETY: the caller's promise.
        unsafe { call::all(self, calls, streams) }
    }
}

impl Phased for AgGemm {
    type Call = AgGemmCall;

    fn group(&self) -> &Group {
        &self.group
    }

    fn state(&self) -> &OpState {
        &self.state
    }

    fn settle(&self) {
        self.gather.settle();
    }

    fn transfer_logs(&self, rank: usize) -> Vec<&TransferLog> {
        self.gather.log(rank).into_iter().collect()
    }

    fn rounds(&self, phase: Phase) -> usize {
        if phase == Phase::Transfer { self.gather.rounds() } else { 1 }
    }

    fn check(&self, rank: usize, call: &AgGemmCall, stream: &Stream) -> Result<(Terms, PathChoice)> {
        check_call(&self.group, &self.spec, rank, call.m, stream)?;
        let (k, weight_rows, dtype) = (self.spec.k, self.weight_rows(rank).len(), self.spec.dtype);
        Matrix::contiguous(call.a, k).check("A", self.rows(rank, call.m).len(), k, dtype)?;
        call.b.check("B", weight_rows, k, dtype)?;
        call.scales.check(dtype, self.rows(rank, call.m).len(), weight_rows)?;
        check_bias(call.bias, weight_rows, dtype.result())?;
        call.c.check("C", call.m, self.columns(rank).len(), dtype.result())?;
        let terms = Terms { m: call.m, row_scales: call.scales.of_rows().is_some() };
        Ok((terms, plan::choice(self.planner.choose(call.m)?)))
    }

    unsafe fn phase(
        &self,
        (phase, round): (Phase, usize),
        (rank, epoch, path): (usize, u32, Path),
        call: &AgGemmCall,
        schedules: &mut Schedules,
        stream: &Stream,
    ) -> Result<()> {
        let shard = Rows { rows: call.a, side: call.scales.of_rows() };
        // SAFETY: the caller's promise.
        unsafe {
            match (phase, path) {
                (Phase::Finish, Path::Local) => self.launch(rank, epoch, call, path, schedules, stream),
                (_, Path::Local) => Ok(()),
                (Phase::Begin, _) => {
                    // A GEMM that goes by shards reads the rank's own rows where the caller has them.
                    let by_shards = matches!(path, Path::Fused | Path::Chunked);
                    let keep_own = self.spec.keep_gathered || !by_shards;
                    self.gather.stage(rank, epoch, call.m, shard, keep_own, stream)?;
                    // Its own rows are multiplied while the host enqueues the transfers. These need no SM, or, where ranks
                    // share a GPU, those that GEMMs leave free.
                    if path == Path::Fused {
                        self.launch(rank, epoch, call, path, schedules, stream)?;
                    }
                    Ok(())
                }
                (Phase::Transfer, _) => {
                    let awaited = if path == Path::Fused { Awaited::Chunks } else { Awaited::Shards };
                    Ok(self.gather.transfer_round(round, rank, epoch, call.m, shard, awaited)?)
                }
                (Phase::Sum | Phase::Gather, _) => Ok(()),
                (Phase::Finish, _) => {
                    if matches!(path, Path::Unfused | Path::CommunicationOnly) {
                        self.gather.wait_for_all(rank, epoch, stream)?;
                    }
                    match path {
                        Path::CommunicationOnly | Path::Fused => {}
                        Path::Chunked => self.launch_by_shard(rank, epoch, call, schedules, stream)?,
                        _ => self.launch(rank, epoch, call, path, schedules, stream)?,
                    }
                    Ok(self.gather.release(rank, epoch, stream)?)
                }
            }
        }
    }
}

impl AgGemm {
    /// `call`, with the gathered rows of A, and their scales.
    fn of_gathered(&self, rank: usize, call: &AgGemmCall) -> AgGemmCall {
        let mut scales = call.scales;
        if scales.of_rows().is_some() {
            scales.a = Some(Scale::Rows(self.gather.gathered_side(rank)));
        }
        AgGemmCall { a: self.gather.gathered(rank), scales, ..*call }
    }

    /// A GEMM for each shard: the rank's own, then the peers' in the order of their arrival, each when it has arrived.
    ///
    /// # Safety
    /// As for [`AgGemm::enqueue`].
    unsafe fn launch_by_shard(
        &self,
        rank: usize,
        epoch: u32,
        call: &AgGemmCall,
        schedules: &mut Schedules,
        stream: &Stream,
    ) -> Result<()> {
        let dtype = self.spec.dtype;
        let of_gathered = self.of_gathered(rank, call);
        let gathered = Matrix::contiguous(of_gathered.a, self.spec.k);
        for &shard in self.gather.order(rank) {
            let rows = self.rows(shard, call.m);
            let part = if shard == rank {
                *call
            } else {
                AgGemmCall {
                    a: gathered.rows_from(rows.start, dtype).address,
                    scales: of_gathered.scales.rows_from(rows.start),
                    ..of_gathered
                }
            };
            let c = call.c.rows_from(rows.start, dtype.result());
            let part = AgGemmCall { m: rows.len(), c, ..part };
            // SAFETY: the caller's promise, for these rows.
            unsafe {
                self.gather.wait_for(rank, shard, epoch, stream)?;
                self.launch(rank, epoch, &part, Path::Chunked, schedules, stream)?;
            }
        }
        Ok(())
    }

    /// The GEMM of `call`'s rows, all `m` of them: of all that were gathered, gated if it is fused; else of those that the call
    /// names.
    ///
    /// # Safety
    /// As for [`AgGemm::enqueue`].
    unsafe fn launch(
        &self,
        rank: usize,
        epoch: u32,
        call: &AgGemmCall,
        path: Path,
        schedules: &mut Schedules,
        stream: &Stream,
    ) -> Result<()> {
        let policy = if path == Path::Fused { Policy::AllGather } else { Policy::Plain };
        let (rows, weight_rows) = (call.m, self.weight_rows(rank).len());
        let own = if path == Path::Fused { self.rows(rank, rows) } else { 0..0 };
        let gathered = matches!(path, Path::Fused | Path::Unfused);
        let operands = if gathered { self.of_gathered(rank, call) } else { *call };
        let params = GemmParams {
            a: operands.a,
            own_a: call.a,
            own_row: kernel_size("the number of rows", own.start)?,
            own_rows: kernel_size("the number of rows", own.len())?,
            b: call.b.address,
            c: call.c.address,
            lda: self.spec.k as u64,
            ldb: call.b.pitch as u64,
            ldc: call.c.pitch as u64,
            gates: self.gather.gates(rank),
            bias: call.bias.unwrap_or_default(),
            n: kernel_size("n", weight_rows)?,
            k: kernel_size("k", self.spec.k)?,
            gate_epoch: epoch,
            wait: self.group.members().faults[rank].bound(self.op),
            ..GemmParams::default()
        };
        let world_size = if policy == Policy::AllGather { self.state.world_size() } else { 1 };
        let gemm = Gemm {
            launcher: self.group.launcher(rank),
            policy,
            dtype: self.spec.dtype,
            scales: operands.scales.lowered(),
            activation: self.spec.activation,
            shards: Shards::new(rows, world_size)?,
            params,
            destinations: None,
            must_fold: false,
        };
        let tables = |tiling: &Tiling, sweeps| match policy {
            Policy::AllGather => self.fused_tables(rank, rows, tiling, sweeps),
            _ => plain_tables(rows, tiling, weight_rows),
        };
        // SAFETY: the caller's promise for the matrices; the rest belongs to this op.
        unsafe { schedules.launch(stream, &gemm, tables) }
    }

    /// Own shard first, then as the chunks arrive; a tile's gate is the chunks that its rows touch.
    fn fused_tables(&self, rank: usize, m: usize, tiling: &Tiling, sweeps: Sweeps) -> Result<ScheduleTables> {
        let chunks = self.gather.chunks(rank, m)?;
        let order =
            TileOrder::all_gather(*chunks.shards(), rank, tiling.shape, self.weight_rows(rank).len())?;
        let order = order.swept_by(tiling.group_rows).swept_together(sweeps);
        let order = order.following(&chunks, tiling.half_rows());
        Ok(ScheduleTables::along(&order, self.gather.order(rank), |tile, entry| {
            if tile.shard != rank {
                let gate = chunks.gate(tile);
                entry.gate_begin = u32::try_from(gate.start).unwrap_or(u32::MAX);
                entry.gate_end = u32::try_from(gate.end).unwrap_or(u32::MAX);
                entry.peer = u32::try_from(tile.shard).unwrap_or(u32::MAX);
            }
        })?)
    }
}
