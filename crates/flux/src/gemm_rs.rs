//! GEMM + ReduceScatter: C_r [M_r, N] = rows r of Σ over ranks of A_s · B_sᵀ, plus a bias.
//!
//! *The schedule decides, for each tile, what it waits for and where it goes; so communication starts when the first
//! tile ends.* Here: tiles are computed destination by destination, from the next rank around to the own one, and each
//! goes into this rank's slot at its owner: straight, or relayed by the copy engine. The owner sums its slots in rank order:
//! same inputs, same bits, whatever the timing. How: `reduction.rs`.

use crate::agreement::Terms;
use crate::call::{self, OpState, Phase, Phased};
use crate::epilogue::check_no_activation;
use crate::plan::{self, Path, PathChoice};
use crate::planner::{Explain, OpKind, Planner};
use crate::reduction::{Owners, Partial, Reduction};
use crate::schedules::Schedules;
use crate::{Group, Levels, Matrix, OpSpec, Result, Scales, tuner};
use flux_memory::{Address, Stream};
use flux_swizzle::{Pattern, TileShape};
use flux_transport::TransferLog;

/// GEMM + ReduceScatter, built once for a layer and called with any number of rows up to its maximum.
#[derive(Debug)]
pub struct GemmRs {
    spec: OpSpec,
    planner: Planner,
    reduction: Reduction,
    state: OpState,
    /// Last, so that it is dropped last: its kernels are unloaded when all that runs has ended.
    group: Group,
}

/// One rank's part of a call.
#[derive(Clone, Copy, Debug)]
pub struct GemmRsCall {
    /// Rows of A; the same on every rank.
    pub m: usize,
    /// The rank's columns of A, `[m, K_r]`: `K_r` is [`GemmRs::depth`].
    pub a: Matrix,
    /// The rank's columns of the weight, `[N, K_r]`.
    pub b: Matrix,
    /// The scales of both: of the rank's parts of the rows of A, `[m]`, and of the weight, `[N]`, or one for each part. They may
    /// differ from rank to rank: each rank's partial sum is scaled before it is rounded.
    pub scales: Scales,
    /// `[N]`: added to the rank's rows of the sum over ranks, once, before the rounding.
    pub bias: Option<Address>,
    /// The rank's rows of the result, `[m_r, N]`: `m_r` is [`GemmRs::rows`].
    pub c: Matrix,
}

impl GemmRs {
    /// Allocates, for every rank, the slots (`max_m · N` elements; [`Levels::Two`] takes more), the same again for partial sums unless all calls are
    /// fused and deliver directly, the signals and the schedules, and loads the kernels. (Partial sums take as much twice if
    /// some calls relay tiles from device memory, and others have them pulled from pinned host memory; where slots lie in that, each rank
    /// has them in device memory, too.) Calls allocate nothing on a GPU. Activations are refused: layers have none here.
    pub fn new(group: &Group, spec: OpSpec) -> Result<Self> {
        tuner::lazily(group, OpKind::GemmRs, &spec)?;
        group.together("gemm-rs", &spec, || Self::build(group, spec.clone()))
    }

    fn build(group: &Group, spec: OpSpec) -> Result<Self> {
        spec.check()?;
        check_no_activation("gemm-rs", &spec)?;
        let op = group.register(format!("gemm-rs (n {}, k {})", spec.n, spec.k));
        let planner = Planner::new(group, OpKind::GemmRs, &spec)?;
        let reduction = Reduction::new(group, &spec, &planner.built(), (op, spec.max_m, Owners::Shards))?;
        let state = OpState::new(group, reduction.schedules(&spec)?)?;
        Ok(Self { spec, planner, reduction, state, group: group.clone() })
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
        self.reduction.pattern()
    }

    /// In how many levels it sums over nodes: what [`OpSpec::levels`] stands for in its group.
    pub const fn levels(&self) -> Levels {
        self.reduction.levels()
    }

    /// The rows of C that `rank` receives in a call with `m` rows.
    pub fn rows(&self, rank: usize, m: usize) -> std::ops::Range<usize> {
        self.reduction.rows(rank, m)
    }

    /// The columns of A and of the weight that `rank` holds.
    pub fn depth(&self, rank: usize) -> std::ops::Range<usize> {
        self.reduction.depth(rank)
    }

    /// The tile that the GEMM computes.
    pub const fn tile(&self) -> TileShape {
        self.reduction.tile()
    }

    /// Rows in which a shard travels, unless the GEMM sends its tiles.
    pub const fn chunk_rows(&self) -> usize {
        self.reduction.chunk_rows()
    }

    /// How calls of `m` rows go, and why.
    pub fn explain(&self, m: usize) -> Result<Explain> {
        self.planner.explain(m)
    }

    /// `rank`'s slots `[slots, rows of the largest shard, pitch]`, into which its peers write: one for each rank, and in two levels
    /// two more for each other node.
    pub fn slots(&self, rank: usize) -> Address {
        self.reduction.slots(rank)
    }

    /// Size in bytes of the buffer at [`GemmRs::slots`].
    pub fn slots_bytes(&self) -> usize {
        self.reduction.slots_bytes()
    }

    /// Where `rank`'s slots are fetched to before they are summed, if they lie in pinned host memory, laid out like them, and the size of that
    /// buffer in bytes; null and 0 if they are not.
    pub fn fetched_slots(&self, rank: usize) -> (Address, usize) {
        self.reduction.fetched_slots(rank)
    }

    /// Where `rank`'s GEMM writes the tiles that are relayed to their owners, `[world_size, rows of the largest shard,
    /// pitch]`, and the size of that buffer in bytes; null and 0 if none are.
    pub fn relayed_tiles(&self, rank: usize) -> (Address, usize) {
        self.reduction.relayed_tiles(rank)
    }

    /// Enqueues `rank`'s part of a call on `stream`: afterwards, in stream order, C is complete and A may be overwritten.
    /// It never waits on the host. An expired wait is reported by the next call, or by [`Group::check`]. Ranks that share
    /// a GPU are called together, with [`GemmRs::enqueue_all`]. It cannot be captured into a CUDA graph, and says so.
    ///
    /// # Safety
    /// The matrices are live, of the extents that [`GemmRsCall`] says, and reachable by the rank's device, until
    /// `stream` has passed this call; nobody else accesses C, or writes to A, B or the bias, meanwhile. The group
    /// outlives the stream's work.
    pub unsafe fn enqueue(&self, rank: usize, call: &GemmRsCall, stream: &Stream) -> Result<PathChoice> {
        self.group.check_alone(rank)?;
        // SAFETY: the caller's promise.
        unsafe { call::one(self, rank, call, stream) }
    }

    /// Enqueues the parts of all ranks of this process, rank by rank, each on its own of `streams`.
    ///
    /// # Safety
    /// As for [`GemmRs::enqueue`], for every rank.
    pub unsafe fn enqueue_all(&self, calls: &[GemmRsCall], streams: &[&Stream]) -> Result<PathChoice> {
        // SAFETY: the caller's promise.
        unsafe { call::all(self, calls, streams) }
    }
}

impl Phased for GemmRs {
    type Call = GemmRsCall;

    fn group(&self) -> &Group {
        &self.group
    }

    fn state(&self) -> &OpState {
        &self.state
    }

    fn settle(&self) {
        self.reduction.settle();
    }

    fn transfer_logs(&self, rank: usize) -> Vec<&TransferLog> {
        self.reduction.transfer_log(rank).into_iter().collect()
    }

    fn check(&self, rank: usize, call: &GemmRsCall, stream: &Stream) -> Result<(Terms, PathChoice)> {
        self.reduction.check(rank, call.m, (call.a, call.b, call.scales, call.bias), stream)?;
        call.c.check("C", self.rows(rank, call.m).len(), self.spec.n, self.spec.dtype.result())?;
        let delivery = self.reduction.delivery();
        let terms = Terms { m: call.m, row_scales: false };
        Ok((terms, plan::reduce_scatter(self.planner.choose(call.m)?, delivery)))
    }

    unsafe fn phase(
        &self,
        (phase, _): (Phase, usize),
        (rank, epoch, path): (usize, u32, Path),
        call: &GemmRsCall,
        schedules: &mut Schedules,
        stream: &Stream,
    ) -> Result<()> {
        let GemmRsCall { m, a, b, scales, bias, c } = *call;
        let part = Partial { rank, epoch, path, m, a, b, scales, bias, out: c };
        // SAFETY: the caller's promise.
        unsafe {
            match (phase, path) {
                (Phase::Begin, Path::Local) => self.reduction.gemm(&part, c, schedules, stream),
                (_, Path::Local) => Ok(()),
                (Phase::Begin, _) => self.reduction.begin(&part, schedules, stream),
                (Phase::Transfer, _) => self.reduction.transfer(&part, stream),
                (Phase::Sum, _) => self.reduction.finish(&part, schedules, stream),
                (Phase::Gather | Phase::Finish, _) => Ok(()),
            }
        }
    }
}
