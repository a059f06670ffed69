//! One way to launch, on either backend.

use crate::cuda::CudaLauncher;
use crate::hopper::Scratch;
use crate::tiling::{self, Pace, Problem, TileKernel, Tiling};
use crate::{
    Activation, Clock, DType, Destinations, Error, FoldParams, GemmParams, Policy, PushParams, PutLibrary,
    Result, Scales, Schedule, SumParams, Trace, host,
};
use flux_memory::{Address, Device, Stream};
use flux_swizzle::TileShape;
use rayon::ThreadPool;
use std::sync::Arc;

/// Rows of tiles that host threads sweep together: neighbours share the rows of B that a thread has widened.
const HOST_GROUP_ROWS: usize = 2048;

/// Launches kernels on one device, or on a share of it. Its GEMMs run one after the other.
#[derive(Debug)]
pub struct Launcher(Kind);

/// How a GEMM is to be launched.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// What is done with its tiles.
    pub policy: Policy,
    /// The elements of A and B.
    pub dtype: DType,
    /// What its sums are multiplied by; of elements that are not [`DType::is_scaled`], none are.
    pub scales: Scales,
    /// What is applied to its sums; a ReduceScatter's are partial, and nothing is applied to them.
    pub activation: Activation,
    /// How it is cut.
    pub tiling: &'a Tiling,
    /// The order of its tiles.
    pub schedule: &'a Schedule,
    /// Where its tiles go; a ReduceScatter needs it.
    pub destinations: Option<&'a Destinations>,
    /// Where it leaves when each of its units happened, if it is to; made by this launcher.
    pub trace: Option<&'a Trace>,
}

#[derive(Debug)]
enum Kind {
    Host(Arc<ThreadPool>),
    Cuda { kernels: Arc<CudaLauncher>, scratch: Option<Scratch> },
}

impl Launcher {
    /// A launcher for each of `devices`. Where several entries are the same device, each gets an equal share of it, so
    /// that all can run at once: of a GPU's SMs (the entries share its loaded kernels), or of the host's cores, but at
    /// least one thread. `sm_budget` bounds the SMs that the GEMMs of all launchers of a GPU use together; others are left whole.
    pub fn sharing(devices: &[Device], sm_budget: Option<u32>) -> Result<Vec<Arc<Self>>> {
        let mut launchers: Vec<Arc<Self>> = Vec::with_capacity(devices.len());
        for (index, device) in devices.iter().enumerate() {
            let same = |other: &Device| match (device.as_cuda(), other.as_cuda()) {
                (Some(a), Some(b)) => a.ordinal() == b.ordinal(),
                (None, None) => true,
                _ => false,
            };
            let sharing = devices.iter().filter(|other| same(other)).count();
            let place = devices[..index].iter().filter(|other| same(other)).count();
            let first = devices.iter().position(same).unwrap_or(index);
            let kind = match device {
                Device::Cuda(gpu) => {
                    let kernels = match launchers.get(first).map(|launcher| &launcher.0) {
                        Some(Kind::Cuda { kernels, .. }) => Arc::clone(kernels),
                        _ => Arc::new(CudaLauncher::new(gpu, sharing, sm_budget)),
                    };
                    let room = || Scratch::new(device, kernels.blocks());
                    let scratch = kernels.has_hopper().then(room).transpose()?;
                    Kind::Cuda { kernels, scratch }
                }
                Device::Host(_) => Kind::Host(host::threads::of_rank(place, sharing)?),
            };
            launchers.push(Arc::new(Self(kind)));
        }
        Ok(launchers)
    }

    /// The tile that a GEMM is cut into if nothing speaks for another: what chunks and the choice of way go by.
    pub fn tile(&self, dtype: DType) -> Result<TileShape> {
        match &self.0 {
            Kind::Host(_) => Ok(host::TILE),
            Kind::Cuda { .. } => CudaLauncher::tile(dtype),
        }
    }

    /// No tile of [`Launcher::tiling`] has fewer rows or columns: the largest schedule is one of these.
    pub fn smallest_tile(&self, dtype: DType) -> Result<TileShape> {
        match &self.0 {
            Kind::Host(_) => Ok(host::TILE),
            Kind::Cuda { kernels, .. } => kernels.smallest_tile(dtype),
        }
    }

    /// How to cut `problem` into tiles, and which kernel is to compute them.
    pub fn tiling(&self, dtype: DType, problem: &Problem) -> Result<Tiling> {
        let ways = self.tilings(dtype, problem)?;
        ways.first().map(|&(tiling, _)| tiling).ok_or(Error::NoKernel { name: format!("gemm_{dtype}") })
    }

    /// The tiles that GEMMs here can be cut into if somebody asks for one; they may be narrower if nobody does.
    pub fn tiles(&self, dtype: DType) -> Result<Vec<TileShape>> {
        match &self.0 {
            Kind::Host(_) => Ok(vec![host::TILE]),
            Kind::Cuda { kernels, .. } => kernels.tiles(dtype),
        }
    }

    /// As [`Launcher::tilings`], but only those that are cut into `tile`, if there are any: rows that are not aligned have one kernel.
    pub fn tilings_into(
        &self,
        tile: Option<TileShape>,
        dtype: DType,
        problem: &Problem,
    ) -> Result<Vec<(Tiling, f64)>> {
        Ok(tiling::cut_into(tile, self.tilings(dtype, problem)?))
    }

    /// All ways to cut `problem` that [`Launcher::tiling`] chooses between, one for each tile, with the clock cycles that each
    /// is expected to take (infinite where nothing is known); the fastest first.
    pub fn tilings(&self, dtype: DType, problem: &Problem) -> Result<Vec<(Tiling, f64)>> {
        match &self.0 {
            Kind::Host(_) => {
                let tiling = Tiling::whole(host::TILE, HOST_GROUP_ROWS, TileKernel::Host);
                Ok(vec![(tiling, f64::INFINITY)])
            }
            Kind::Cuda { kernels, .. } => kernels.tilings(dtype, problem),
        }
    }

    /// How fast `problem` is expected to go, cut into each tile that [`Launcher::tiling`] chooses between, the fastest first; none if
    /// nothing is known, or there is nothing to do. Where the fastest splits no tiles, none of these does.
    pub fn paces(&self, dtype: DType, problem: &Problem) -> Result<Vec<Pace>> {
        let Kind::Cuda { kernels, .. } = &self.0 else { return Ok(Vec::new()) };
        let ways = kernels.tilings(dtype, problem)?;
        let splits = ways.first().is_some_and(|(fastest, _)| fastest.parts > 1);
        let known = |(tiling, cycles): &(Tiling, f64)| {
            cycles.is_finite() && problem.shards.total() * problem.n > 0 && (splits || tiling.parts == 1)
        };
        let pace =
            |(tiling, cycles): (Tiling, f64)| Pace::new(problem, &tiling, cycles, kernels.blocks() as usize);
        Ok(ways.into_iter().filter(known).map(pace).collect())
    }

    /// Whether a GEMM that is cut so can fold the sum of so many sources' slots into its epilogue ([`crate::FoldParams`]).
    pub fn can_fold(&self, dtype: DType, tiling: &Tiling, sources: usize) -> Result<bool> {
        match (&self.0, tiling.kernel) {
            _ if sources < 2 => Ok(false),
            (Kind::Host(_), _) => Ok(true),
            (Kind::Cuda { .. }, TileKernel::Hopper { .. }) => CudaLauncher::can_fold(dtype, tiling, sources),
            (Kind::Cuda { .. }, _) => Ok(false),
        }
    }

    /// Loads the kernels for `policies` now: a launch then only enqueues.
    pub fn prepare(&self, dtype: DType, policies: &[Policy]) -> Result<()> {
        match &self.0 {
            Kind::Host(_) => Ok(()),
            Kind::Cuda { kernels, .. } => {
                policies.iter().try_for_each(|&policy| kernels.prepare(dtype, policy))
            }
        }
    }

    /// Loads the kernels that put tiles of `dtype` ([`Destinations::with_puts`]), linked with `library`, which is the same for all
    /// calls. There are some for bf16 and f16.
    pub fn prepare_puts(&self, dtype: DType, library: &Arc<dyn PutLibrary>) -> Result<()> {
        match &self.0 {
            Kind::Host(_) => Err(flux_memory::Error::BackendMismatch { what: "a kernel that puts" }.into()),
            Kind::Cuda { kernels, .. } => kernels.prepare_puts(dtype, library),
        }
    }

    /// Loads the kernel of [`Launcher::push`] now.
    pub fn prepare_push(&self) -> Result<()> {
        match &self.0 {
            Kind::Host(_) => Ok(()),
            Kind::Cuda { kernels, .. } => kernels.prepare_push(),
        }
    }

    /// Room for the traces of calls with at most `tiles` tiles in `row_tiles` row tiles, in at most `launches` launches, and
    /// loads the kernels that leave them. On GPUs there are such kernels for bf16 only: [`Error::NotTraceable`].
    pub fn trace(
        &self,
        device: &Device,
        dtype: DType,
        (tiles, row_tiles): (usize, usize),
        launches: usize,
    ) -> Result<Trace> {
        let parts = match &self.0 {
            Kind::Host(_) => 0,
            Kind::Cuda { kernels, .. } => {
                kernels.prepare_traced(dtype)?;
                kernels.most_parts(dtype)?
            }
        };
        Trace::new(device, tiles.saturating_add(parts.saturating_mul(launches)), row_tiles, launches)
    }

    /// How the clocks of `device`, which is this launcher's, hang together from here on. Waits on this thread, about a
    /// millisecond; on GPUs only after [`Launcher::trace`], or it also loads a kernel.
    pub fn clock(&self, device: &Device) -> Result<Clock> {
        match &self.0 {
            Kind::Host(_) => Ok(Clock::host()),
            Kind::Cuda { kernels, .. } => kernels.clock(device),
        }
    }

    /// Enqueues a GEMM; of `params`, the schedule, the destinations and the activation are filled in from `launch`.
    ///
    /// # Safety
    /// Until the launch has ended, everything that `params` and `launch` name is live, of the extents that they and their
    /// tables say, aligned to its elements, and reachable by the device; A's rows are not written to once their gates are
    /// open, nor B; nobody else writes to C or to the slots' tiles. The schedule is of the tiling, and the tiling of this
    /// launcher; if it was made for an aligned problem, A and B are [`GemmParams::are_operands_aligned`]. The launcher's
    /// launches before this one have ended when this one begins. If a sum is folded in, the tiling [can](Launcher::can_fold),
    /// and the slots' tiles are not written to once their signals are up.
    pub unsafe fn gemm(&self, stream: &Stream, launch: &Launch<'_>, params: &GemmParams) -> Result<()> {
        let Launch { policy, dtype, scales, activation, tiling, schedule, destinations, trace } = *launch;
        let _span = tracing::trace_span!("launch gemm", ?policy, ?tiling, tiles = schedule.tiles()).entered();
        let scatters = policy == Policy::ReduceScatter;
        let params = GemmParams {
            order: schedule.order(),
            row_tiles: schedule.row_tiles(),
            tiles: schedule.tiles(),
            destinations: match destinations {
                Some(table) => table.address(),
                None if scatters => return Err(Error::NoDestinations),
                None => Address::NULL,
            },
            destination_count: if scatters { params.destination_count } else { 0 },
            bias: if scatters { Address::NULL } else { params.bias },
            activation: if scatters { Activation::None } else { activation }.code(),
            fold: if scatters { params.fold } else { FoldParams::default() },
            ..*params
        };
        let records = trace.map(|trace| trace.claim(launch, &params)).transpose()?;
        match (&self.0, stream) {
            // SAFETY: the caller's promise.
            (Kind::Host(pool), Stream::Host(stream)) => unsafe {
                host::launch(pool, stream, dtype, host::Gemm { policy, activation, params, scales, records })
            },
            // SAFETY: the caller's promise; the records are the launch's own.
            (Kind::Cuda { kernels, scratch }, Stream::Cuda(stream)) => unsafe {
                kernels.gemm(stream, launch, &params, scratch.as_ref(), records)
            },
            _ => Err(flux_memory::Error::BackendMismatch { what: "the launcher" }.into()),
        }
    }

    /// Enqueues the sum of the slots, into which GEMMs of `dtype` went.
    ///
    /// # Safety
    /// Until the launch has ended, everything that `params` names is live, of the extents that it says, aligned to its
    /// elements, and reachable by the device; slots are not written to once their signals are up.
    pub unsafe fn sum(&self, stream: &Stream, dtype: DType, params: &SumParams) -> Result<()> {
        let _span = tracing::trace_span!("launch sum", rows = params.rows).entered();
        match (&self.0, stream) {
            // SAFETY: the caller's promise.
            (Kind::Host(pool), Stream::Host(stream)) => unsafe {
                host::launch(pool, stream, dtype.result(), *params)
            },
            // SAFETY: the caller's promise.
            (Kind::Cuda { kernels, .. }, Stream::Cuda(stream)) => unsafe {
                kernels.sum(stream, dtype.result(), params)
            },
            _ => Err(flux_memory::Error::BackendMismatch { what: "the launcher" }.into()),
        }
    }

    /// As [`Launcher::sum`], of slots whose signals are all up when the stream gets there, beside GEMMs that may wait for what is made
    /// of the sum: it waits for nobody. On the host the stream's own thread sums, for this launcher's may all be waiting; on a GPU
    /// it needs an SM that those GEMMs leave free.
    ///
    /// # Safety
    /// As for [`Launcher::sum`].
    pub unsafe fn sum_beside(&self, stream: &Stream, dtype: DType, params: &SumParams) -> Result<()> {
        match (&self.0, stream) {
            // SAFETY: the caller's promise.
            (Kind::Host(pool), Stream::Host(stream)) => unsafe {
                host::launch(pool, stream, dtype.result(), host::sum::Beside(*params))
            },
            // SAFETY: the caller's promise.
            _ => unsafe { self.sum(stream, dtype, params) },
        }
    }

    /// Enqueues the push of a shard to all its peers. It takes SMs while it runs: those that this device's launchers leave
    /// free where several share it, and as many as a link needs where not.
    ///
    /// It waits for nothing. And a GEMM beside it must not wait for what is pushed, unless it leaves SMs free, as those of
    /// launchers that share the device do: one that fills the GPU can keep the push from starting.
    ///
    /// # Safety
    /// Until the launch has ended, everything that `params` names is live, of the extents that it says, and reachable by the
    /// device; `params` are [`PushParams::is_aligned`] and say as many chunks as there are; the shard is not written to,
    /// and nobody else uses its place at the peers. Launches with the same counters come one after the other.
    pub unsafe fn push(&self, stream: &Stream, params: &PushParams) -> Result<()> {
        let _span = tracing::trace_span!("launch push", bytes = params.bytes).entered();
        match (&self.0, stream) {
            (Kind::Host(_), Stream::Host(stream)) => {
                let params = *params;
                // SAFETY: the caller's promise.
                Ok(stream.launch(move || unsafe { host::push::run(&params) })?)
            }
            // SAFETY: the caller's promise.
            (Kind::Cuda { kernels, .. }, Stream::Cuda(stream)) => unsafe { kernels.push(stream, params) },
            _ => Err(flux_memory::Error::BackendMismatch { what: "the launcher" }.into()),
        }
    }
}
