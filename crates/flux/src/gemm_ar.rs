//! GEMM + AllReduce: C [M, N] = Σ over ranks of A_s · B_sᵀ, plus a bias, the same bits on every rank.
//!
//! *The schedule decides, for each tile, what it waits for and where it goes; so communication starts when the first
//! tile ends.* Here in one of two forms, by the number of rows:
//!
//! * *one-shot*, for few rows: each tile goes straight into this rank's slot at every rank, and every rank sums all rows
//!   itself. More bytes travel, but nothing is waited for after the tiles.
//! * *in two steps*, for many rows: a GEMM + ReduceScatter, each rank summing its shard of the rows, and an AllGather of
//!   the shards, each of which is copied into C when it has arrived.
//!
//! Both sum the ranks' once-rounded partial sums in rank order, in fp32, and round once more: the same bits in both. But between
//! nodes the two steps may sum in two levels ([`crate::Levels`]), and then round once more for each other node.

use crate::agreement::Terms;
use crate::call::{self, OpState, Phase, Phased};
use crate::epilogue::check_no_activation;
use crate::plan::{self, Path, PathChoice};
use crate::planner::{Explain, OpKind, Planner};
use crate::push::KernelPush;
use crate::reduction::{Owners, Partial, Reduction};
use crate::schedules::Schedules;
use crate::{Group, Levels, Matrix, OpSpec, Result, Scales, tuner};
use flux_memory::{Address, PerRank, Placement, Stream};
use flux_swizzle::{Pattern, Shards, Taper, TileShape};
use flux_transport::{AllGather, AllGatherSpec, Awaited, Direction, TransferLog};
use std::sync::atomic::{AtomicU32, Ordering};

/// GEMM + AllReduce, built once for a layer and called with any number of rows up to its maximum.
#[derive(Debug)]
pub struct GemmAr {
    spec: OpSpec,
    planner: Planner,
    one_shot_rows: usize,
    /// The most rows of a call in two steps; 0 if there are none.
    gathered_rows: usize,
    chunk_rows: usize,
    one_shot: Reduction,
    /// The first of the two steps.
    scattered: Reduction,
    /// The second.
    gather: AllGather,
    /// Each rank's calls in two steps, and one-shot: the signals of a form know nothing of calls in the other. Used under
    /// the lock of the rank's state.
    calls: PerRank<[AtomicU32; 2]>,
    /// One set of schedules serves both forms: the number of rows decides the form, so none is asked for by both.
    state: OpState,
    /// Last, so that it is dropped last: its kernels are unloaded when all that runs has ended.
    group: Group,
}

/// One rank's part of a call.
#[derive(Clone, Copy, Debug)]
pub struct GemmArCall {
    /// Rows of A; the same on every rank.
    pub m: usize,
    /// The rank's columns of A, `[m, K_r]`: `K_r` is [`GemmAr::depth`].
    pub a: Matrix,
    /// The rank's columns of the weight, `[N, K_r]`.
    pub b: Matrix,
    /// The scales of both: of the rank's parts of the rows of A, `[m]`, and of the weight, `[N]`, or one for each part. They may
    /// differ from rank to rank: each rank's partial sum is scaled before it is rounded.
    pub scales: Scales,
    /// `[N]`: added to every row of the sum over ranks, once, before the rounding. Every rank adds its own to the rows
    /// that it sums, so all must hold the same.
    pub bias: Option<Address>,
    /// The whole result, `[m, N]`.
    pub c: Matrix,
}

impl GemmAr {
    /// Allocates, for every rank, what one-shot calls need (slots of `world_size` · [`GemmAr::one_shot_rows`] · N elements)
    /// and, if calls may have more rows than that, what the two steps need (slots and gathered rows, `max_m · N` elements
    /// each); unless all calls are fused, or where tiles are relayed, partial sums of as many rows, as for [`crate::GemmRs`];
    /// the signals and the schedules; slots in pinned host memory once more in device memory. Loads the kernels. Calls allocate nothing on a GPU. Activations are
    /// refused: layers have none here.
    pub fn new(group: &Group, spec: OpSpec) -> Result<Self> {
        tuner::lazily(group, OpKind::GemmAr, &spec)?;
        group.together("gemm-ar", &spec, || Self::build(group, spec.clone()))
    }

    fn build(group: &Group, spec: OpSpec) -> Result<Self> {
        spec.check()?;
        check_no_activation("gemm-ar", &spec)?;
        let row_bytes = spec.n * spec.dtype.result().bytes();
        let planner = Planner::new(group, OpKind::GemmAr, &spec)?;
        let built = planner.built();
        let one_shot_rows = built.one_shot_rows;
        let gathered_rows = if spec.max_m > one_shot_rows { spec.max_m } else { 0 };
        let op = group.register(format!("gemm-ar (n {}, k {})", spec.n, spec.k));
        let one_shot = Reduction::new(group, &spec, &built, (op, one_shot_rows, Owners::All))?;
        let scattered = Reduction::new(group, &spec, &built, (op, gathered_rows, Owners::Shards))?;
        let chunk_rows = built.chunks.of(gathered_rows);
        // Pushed through host memory, the shards would go from there to there, and GPUs do not copy that by themselves.
        let direction = match group.config().peer_memory {
            Placement::PinnedHost => Direction::Pull,
            Placement::Device => built.direction,
        };
        // Who waits for a shard waits for a rank that may itself be waiting for a tile.
        let mut members = group.members().clone();
        for log in members.faults.iter_mut() {
            *log = log.with_budget(log.budget().saturating_mul(2));
        }
        let mut gather = AllGather::new(
            KernelPush::boxed(spec.push, group),
            &members,
            AllGatherSpec {
                max_rows: gathered_rows,
                row_bytes,
                side_bytes: 0,
                chunk_rows: built.chunks.clone(),
                taper: Taper::NONE,
                direction,
                pattern: built.order.clone(),
                placement: group.config().peer_memory,
                op,
                signal_loss: group.config().signal_loss,
            },
        )?;
        gather.watch_shards(&members)?;
        let state = OpState::new(group, scattered.schedules(&spec)?)?;
        let calls = PerRank::new(group.local_ranks(), |_| Default::default());
        let group = group.clone();
        Ok(Self {
            spec,
            planner,
            one_shot_rows,
            gathered_rows,
            chunk_rows,
            one_shot,
            scattered,
            gather,
            calls,
            state,
            group,
        })
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

    /// In how many levels it sums over nodes in two steps: what [`OpSpec::levels`] stands for in its group.
    pub const fn levels(&self) -> Levels {
        self.scattered.levels()
    }

    /// The columns of A and of the weight that `rank` holds.
    pub fn depth(&self, rank: usize) -> std::ops::Range<usize> {
        self.scattered.depth(rank)
    }

    /// The tile that the GEMM computes.
    pub const fn tile(&self) -> TileShape {
        self.scattered.tile()
    }

    /// Rows in which a shard of the result travels.
    pub const fn chunk_rows(&self) -> usize {
        self.chunk_rows
    }

    /// The most rows of a call that goes one-shot.
    pub const fn one_shot_rows(&self) -> usize {
        self.one_shot_rows
    }

    /// How calls of `m` rows go, and why.
    pub fn explain(&self, m: usize) -> Result<Explain> {
        self.planner.explain(m)
    }

    /// What calls write to on their way to C, each with its size in bytes: `rank`'s slots of one-shot calls, those of calls in
    /// two steps, the gathered rows, the tiles that are relayed, and where the slots of both are fetched to from pinned host memory (each null and 0 if
    /// there are none).
    pub fn buffers(&self, rank: usize) -> [(Address, usize); 6] {
        [
            (self.one_shot.slots(rank), self.one_shot.slots_bytes()),
            (self.scattered.slots(rank), self.scattered.slots_bytes()),
            (self.gather.gathered(rank), self.gathered_rows * self.row_bytes()),
            self.scattered.relayed_tiles(rank),
            self.one_shot.fetched_slots(rank),
            self.scattered.fetched_slots(rank),
        ]
    }

    /// Enqueues `rank`'s part of a call on `stream`: afterwards, in stream order, C is complete and A may be overwritten.
    /// It never waits on the host. An expired wait is reported by the next call, or by [`Group::check`]. Ranks that share
    /// a GPU are called together, with [`GemmAr::enqueue_all`]. It cannot be captured into a CUDA graph, and says so.
    ///
    /// # Safety
    /// The matrices are live, of the extents that [`GemmArCall`] says, and reachable by the rank's device, until
    /// `stream` has passed this call; nobody else accesses C, or writes to A, B or the bias, meanwhile. The group
    /// outlives the stream's work.
    pub unsafe fn enqueue(&self, rank: usize, call: &GemmArCall, stream: &Stream) -> Result<PathChoice> {
        self.group.check_alone(rank)?;
        // SAFETY: the caller's promise.
        unsafe { call::one(self, rank, call, stream) }
    }

    /// Enqueues the parts of all ranks of this process, rank by rank, each on its own of `streams`.
    ///
    /// # Safety
    /// As for [`GemmAr::enqueue`], for every rank.
    pub unsafe fn enqueue_all(&self, calls: &[GemmArCall], streams: &[&Stream]) -> Result<PathChoice> {
        // SAFETY: the caller's promise.
        unsafe { call::all(self, calls, streams) }
    }

    const fn row_bytes(&self) -> usize {
        self.spec.n * self.spec.dtype.result().bytes()
    }
}

impl Phased for GemmAr {
    type Call = GemmArCall;

    fn group(&self) -> &Group {
        &self.group
    }

    fn state(&self) -> &OpState {
        &self.state
    }

    fn settle(&self) {
        self.one_shot.settle();
        self.scattered.settle();
        self.gather.settle();
    }

    fn transfer_logs(&self, rank: usize) -> Vec<&TransferLog> {
        let reductions = [&self.one_shot, &self.scattered].map(|reduction| reduction.transfer_log(rank));
        reductions.into_iter().chain([self.gather.log(rank)]).flatten().collect()
    }

    fn rounds(&self, phase: Phase) -> usize {
        if phase == Phase::Gather { self.gather.rounds() } else { 1 }
    }

    fn check(&self, rank: usize, call: &GemmArCall, stream: &Stream) -> Result<(Terms, PathChoice)> {
        self.scattered.check(rank, call.m, (call.a, call.b, call.scales, call.bias), stream)?;
        call.c.check("C", call.m, self.spec.n, self.spec.dtype.result())?;
        let (delivery, one_shot) = (self.scattered.delivery(), call.m <= self.one_shot_rows);
        let terms = Terms { m: call.m, row_scales: false };
        Ok((terms, plan::all_reduce(self.planner.choose(call.m)?, delivery, one_shot)))
    }

    unsafe fn phase(
        &self,
        (phase, round): (Phase, usize),
        (rank, _, path): (usize, u32, Path),
        call: &GemmArCall,
        schedules: &mut Schedules,
        stream: &Stream,
    ) -> Result<()> {
        let one_shot = call.m <= self.one_shot_rows;
        let reduction = if one_shot { &self.one_shot } else { &self.scattered };
        let calls = &self.calls[rank][usize::from(one_shot)];
        if phase == Phase::Begin {
            calls.fetch_add(1, Ordering::Relaxed);
        }
        let epoch = calls.load(Ordering::Relaxed);
        let GemmArCall { m, a, b, scales, bias, c } = *call;
        // In two steps, the sum goes to where the peers expect it, or fetch it from.
        let out = if one_shot || path == Path::Local {
            c
        } else {
            Matrix::contiguous(self.gather.shard(rank, m)?, self.spec.n)
        };
        let part = Partial { rank, epoch, path, m, a, b, scales, bias, out };
        // SAFETY: the caller's promise.
        unsafe {
            match (phase, path) {
                (Phase::Begin, Path::Local) => reduction.gemm(&part, c, schedules, stream),
                (_, Path::Local) => Ok(()),
                (Phase::Begin, _) => {
                    if !one_shot && path == Path::Fused {
                        self.gather.claim(rank, epoch, stream)?; // the GEMM may fold the sum in
                    }
                    reduction.begin(&part, schedules, stream)
                }
                (Phase::Transfer, _) => reduction.transfer(&part, stream),
                (Phase::Sum, _) if one_shot => reduction.finish(&part, schedules, stream),
                (Phase::Sum, _) => {
                    if path != Path::Fused {
                        self.gather.claim(rank, epoch, stream)?;
                    }
                    reduction.finish(&part, schedules, stream)?;
                    Ok(self.gather.stage(rank, epoch, m, out.address, true, stream)?)
                }
                (Phase::Gather | Phase::Finish, _) if one_shot => Ok(()),
                (Phase::Gather, _) => {
                    let awaited = Awaited::Shards;
                    Ok(self.gather.transfer_round(round, rank, epoch, m, out.address, awaited)?)
                }
                (Phase::Finish, _) => self.copy_out(&part, c, stream),
            }
        }
    }
}

impl GemmAr {
    /// Peers can write only to memory that all ranks can address, so the rows take one more, local step into C: each shard
    /// when it has arrived, while the next ones travel.
    ///
    /// # Safety
    /// As for [`GemmAr::enqueue`].
    unsafe fn copy_out(&self, part: &Partial, c: Matrix, stream: &Stream) -> Result<()> {
        let &Partial { rank, epoch, m, .. } = part;
        let shards = Shards::new(m, self.state.world_size())?;
        let row_bytes = self.row_bytes();
        let c_pitch = c.pitch.saturating_mul(self.spec.dtype.result().bytes()); // that of one row may be anything
        for &shard in self.gather.order(rank) {
            let rows = shards.range(shard);
            let to = c.rows_from(rows.start, self.spec.dtype.result()).address;
            let from = self.gather.gathered(rank).add(rows.start * row_bytes);
            // SAFETY: the caller's promise for C; the rest belongs to this op.
            unsafe {
                self.gather.wait_for(rank, shard, epoch, stream)?;
                stream.copy_rows((to, c_pitch), (from, row_bytes), row_bytes, rows.len())?;
            }
        }
        // SAFETY: as above.
        Ok(unsafe { self.gather.release(rank, epoch, stream) }?)
    }
}
