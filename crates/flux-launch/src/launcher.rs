//! One way to launch, on either backend.

use crate::cuda::CudaLauncher;
use crate::{DType, Error, GeluParams, GemmParams, Policy, Result, SumParams, host};
use flux_memory::{Device, Stream};
use flux_swizzle::TileShape;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::Arc;

/// Launches kernels on one device, or on a share of it.
#[derive(Debug)]
pub struct Launcher(Kind);

#[derive(Debug)]
enum Kind {
    Host(Arc<ThreadPool>),
    Cuda(CudaLauncher),
}

impl Launcher {
    /// A launcher for each of `devices`. Where several entries are the same device, each gets an equal share of it, so
    /// that all can run at once: of a GPU's SMs (the entries share its loaded kernels), or of the host's cores, but at
    /// least one thread.
    pub fn sharing(devices: &[Device]) -> Result<Vec<Arc<Self>>> {
        let mut launchers: Vec<Arc<Self>> = Vec::with_capacity(devices.len());
        for (index, device) in devices.iter().enumerate() {
            let same = |other: &Device| match (device.as_cuda(), other.as_cuda()) {
                (Some(a), Some(b)) => a.ordinal() == b.ordinal(),
                (None, None) => true,
                _ => false,
            };
            let sharing = devices.iter().filter(|other| same(other)).count();
            let first = devices.iter().position(same).unwrap_or(index);
            launchers.push(match device {
                Device::Cuda(_) if first < index => Arc::clone(&launchers[first]),
                Device::Cuda(gpu) => Arc::new(Self(Kind::Cuda(CudaLauncher::new(gpu, sharing)?))),
                Device::Host => Arc::new(Self::host(sharing)?),
            });
        }
        Ok(launchers)
    }

    fn host(sharing: usize) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / sharing).max(1);
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("flux-gemm-{index}"))
            .build()
            .map_err(|error| Error::NoThreads { threads, reason: error.to_string() })?;
        Ok(Self(Kind::Host(Arc::new(pool))))
    }

    /// The tile that schedules are to be cut into.
    pub fn tile(&self, dtype: DType) -> Result<TileShape> {
        match &self.0 {
            Kind::Host(_) => Ok(host::TILE),
            Kind::Cuda(_) => CudaLauncher::tile(dtype),
        }
    }

    /// Loads the kernels for `policies` now: a launch then only enqueues.
    pub fn prepare(&self, dtype: DType, policies: &[Policy]) -> Result<()> {
        match &self.0 {
            Kind::Host(_) => Ok(()),
            Kind::Cuda(launcher) => policies.iter().try_for_each(|&policy| launcher.prepare(dtype, policy)),
        }
    }

    /// Enqueues a GEMM. What 16-byte loads cannot take (a pitch or K that is no multiple of 8 elements, an address that
    /// is no multiple of 16 bytes) goes to a slower kernel with the same result.
    ///
    /// # Safety
    /// Until the launch has ended, everything that `params` names is live, of the extents that it and its tables say,
    /// aligned to its elements, and reachable by the device; A's rows are not written to once their gates are open, nor
    /// B; nobody else writes to C or to the slots' tiles.
    pub unsafe fn gemm(
        &self,
        stream: &Stream,
        policy: Policy,
        dtype: DType,
        params: &GemmParams,
    ) -> Result<()> {
        let _span = tracing::trace_span!("launch gemm", ?policy, tiles = params.tiles).entered();
        match (&self.0, stream) {
            // SAFETY: the caller's promise.
            (Kind::Host(pool), Stream::Host(stream)) => unsafe {
                host::launch(pool, stream, dtype, host::Gemm { policy, params: *params })
            },
            // SAFETY: the caller's promise.
            (Kind::Cuda(launcher), Stream::Cuda(stream)) => unsafe {
                launcher.gemm(stream, policy, dtype, params)
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
            (Kind::Cuda(launcher), Stream::Cuda(stream)) => unsafe { launcher.sum(stream, dtype, params) },
            _ => Err(flux_memory::Error::BackendMismatch { what: "the launcher" }.into()),
        }
    }

    /// Enqueues GELU in place.
    ///
    /// # Safety
    /// Until the launch has ended, the elements are live, aligned, reachable by the device, and nobody else accesses them.
    pub unsafe fn gelu(&self, stream: &Stream, dtype: DType, params: &GeluParams) -> Result<()> {
        match (&self.0, stream) {
            // SAFETY: the caller's promise.
            (Kind::Host(pool), Stream::Host(stream)) => unsafe { host::launch(pool, stream, dtype, *params) },
            // SAFETY: the caller's promise.
            (Kind::Cuda(launcher), Stream::Cuda(stream)) => unsafe { launcher.gelu(stream, dtype, params) },
            _ => Err(flux_memory::Error::BackendMismatch { what: "the launcher" }.into()),
        }
    }
}
