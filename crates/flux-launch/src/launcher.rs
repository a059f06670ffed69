//! One way to launch, on either backend.

use crate::cuda::CudaLauncher;
use crate::hopper::Scratch;
use crate::tiling::{Problem, TileKernel, Tiling};
use crate::{Activation, DType, Destinations, Error, GemmParams, Policy, Result, Schedule, SumParams, host};
use flux_memory::{Address, Device, Stream};
use flux_swizzle::TileShape;
use rayon::{ThreadPool, ThreadPoolBuilder};
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
    /// Its elements.
    pub dtype: DType,
    /// What is applied to its sums; a ReduceScatter's are partial, and nothing is applied to them.
    pub activation: Activation,
    /// How it is cut.
    pub tiling: &'a Tiling,
    /// The order of its tiles.
    pub schedule: &'a Schedule,
    /// Where its tiles go; a ReduceScatter needs it.
    pub destinations: Option<&'a Destinations>,
}

#[derive(Debug)]
enum Kind {
    Host(Arc<ThreadPool>),
    Cuda { kernels: Arc<CudaLauncher>, scratch: Option<Scratch> },
}

impl Launcher {
    /// A launcher for each of `devices`. Where several entries are the same device, each gets an equal share of it, so
    /// that all can run at once: of a GPU's SMs (the entries share its loaded kernels), or of the host's cores, but at
    /// least one thread. `sm_budget` bounds the SMs that all launchers of a GPU use together.
    pub fn sharing(devices: &[Device], sm_budget: Option<u32>) -> Result<Vec<Arc<Self>>> {
        let mut launchers: Vec<Arc<Self>> = Vec::with_capacity(devices.len());
        for (index, device) in devices.iter().enumerate() {
            let same = |other: &Device| match (device.as_cuda(), other.as_cuda()) {
                (Some(a), Some(b)) => a.ordinal() == b.ordinal(),
                (None, None) => true,
                _ => false,
            };
            let sharing = devices.iter().filter(|other| same(other)).count();
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
                Device::Host => Kind::Host(Self::threads(sharing)?),
            };
            launchers.push(Arc::new(Self(kind)));
        }
        Ok(launchers)
    }

    fn threads(sharing: usize) -> Result<Arc<ThreadPool>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / sharing).max(1);
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("flux-gemm-{index}"))
            .build()
            .map_err(|error| Error::NoThreads { threads, reason: error.to_string() })?;
        Ok(Arc::new(pool))
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
        match &self.0 {
            Kind::Host(_) => Ok(Tiling::whole(host::TILE, HOST_GROUP_ROWS, TileKernel::Host)),
            Kind::Cuda { kernels, .. } => kernels.tiling(dtype, problem),
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

    /// Enqueues a GEMM; of `params`, the schedule, the destinations and the activation are filled in from `launch`.
    ///
    /// # Safety
    /// Until the launch has ended, everything that `params` and `launch` name is live, of the extents that they and their
    /// tables say, aligned to its elements, and reachable by the device; A's rows are not written to once their gates are
    /// open, nor B; nobody else writes to C or to the slots' tiles. The schedule is of the tiling, and the tiling of this
    /// launcher; if it was made for an aligned problem, A and B are [`GemmParams::are_operands_aligned`]. The launcher's
    /// launches before this one have ended when this one begins.
    pub unsafe fn gemm(&self, stream: &Stream, launch: &Launch<'_>, params: &GemmParams) -> Result<()> {
        let Launch { policy, dtype, activation, tiling, schedule, destinations } = *launch;
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
            ..*params
        };
        match (&self.0, stream) {
            // SAFETY: the caller's promise.
            (Kind::Host(pool), Stream::Host(stream)) => unsafe {
                host::launch(pool, stream, dtype, host::Gemm { policy, activation, params })
            },
            // SAFETY: the caller's promise.
            (Kind::Cuda { kernels, scratch }, Stream::Cuda(stream)) => unsafe {
                kernels.gemm(stream, launch, &params, scratch.as_ref())
            },
            _ => Err(flux_memory::Error::BackendMismatch { what: "the launcher" }.into()),
        }
    }

    /// Enqueues the sum of the slots.
    ///
    /// # Safety
    /// Until the launch has ended, everything that `params` names is live, of the extents that it says, aligned to its
    /// elements, and reachable by the device; slots are not written to once their signals are up.
    pub unsafe fn sum(&self, stream: &Stream, dtype: DType, params: &SumParams) -> Result<()> {
        let _span = tracing::trace_span!("launch sum", rows = params.rows).entered();
        match (&self.0, stream) {
            // SAFETY: the caller's promise.
            (Kind::Host(pool), Stream::Host(stream)) => unsafe { host::launch(pool, stream, dtype, *params) },
            // SAFETY: the caller's promise.
            (Kind::Cuda { kernels, .. }, Stream::Cuda(stream)) => unsafe {
                kernels.sum(stream, dtype, params)
            },
            _ => Err(flux_memory::Error::BackendMismatch { what: "the launcher" }.into()),
        }
    }
}
