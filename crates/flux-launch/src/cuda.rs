//! The kernels on a GPU: choosing a variant, launching.

mod loading;

use crate::catalogue::{KernelId, KernelInfo, Load, hopper_kernels};
use crate::clock::{Clock, ClockParams};
use crate::hopper::{self, Scratch};
use crate::params::{PutGemmParams, ScaledGemmParams};
use crate::puts::PutLibrary;
use crate::tiling::{self, Candidate, Problem, TileKernel, Tiling};
use crate::trace::{TracedGemmParams, TracedHopperParams};
use crate::{DType, Destinations, GemmParams, Launch, Policy, PushParams, Result, SumParams};
use flux_memory::cuda::{CudaDevice, CudaStream, LaunchShape};
use flux_memory::{Address, Device, Stream};
use flux_swizzle::TileShape;
use loading::Loaded;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

/// Blocks of copies between ranks of one GPU run on SMs. They need room beside the ranks' kernels, or what those wait for
/// never comes: a copy gained about 41 GB/s with each free SM (measured on one H200). Four of 132 leave a number that eight
/// ranks share without a rest.
pub const SMS_FOR_COPIES: u32 = 4;

/// Blocks of the portable GEMM that run on an SM at once.
const PORTABLE_BLOCKS_PER_SM: u64 = 2;

/// The kernels of one GPU, and the share of it that each launch may fill.
#[derive(Debug)]
pub(crate) struct CudaLauncher {
    device: Arc<CudaDevice>,
    sharing: u32,
    /// SMs that all ranks on the GPU together may use.
    sms: u32,
    /// Others are left to copies and kernels that what waits here waits for, which may need whole ones. Blocks go wherever most is free:
    /// so no SM then gets more than one of a kernel that may wait.
    leaves_sms: bool,
    has_hopper: bool,
    loaded: Mutex<HashMap<KernelId, Loaded>>,
    /// What kernels that put are linked with.
    puts: OnceLock<Arc<dyn PutLibrary>>,
}

impl CudaLauncher {
    pub(crate) fn new(device: &Arc<CudaDevice>, sharing: usize, sm_budget: Option<u32>) -> Self {
        let sharing = u32::try_from(sharing).unwrap_or(u32::MAX).max(1);
        let all = device.multiprocessors();
        let free = if sharing > 1 { all.saturating_sub(SMS_FOR_COPIES) } else { all };
        let sms = sm_budget.map_or(free, |budget| budget.min(free));
        let leaves_sms = sms < all;
        let has_hopper = hopper::is_supported(device);
        let (device, loaded, puts) = (Arc::clone(device), Mutex::default(), OnceLock::new());
        Self { device, sharing, sms, leaves_sms, has_hopper, loaded, puts }
    }

    /// Blocks of a launch that leaves room for no other on its SM.
    pub(crate) const fn blocks(&self) -> u32 {
        self.sms / self.sharing
    }

    pub(crate) const fn has_hopper(&self) -> bool {
        self.has_hopper
    }

    /// The portable kernel's tile.
    pub(crate) fn tile(dtype: DType) -> Result<TileShape> {
        let kernel = KernelId::Gemm(dtype, Policy::Plain, Load::Vector).info()?;
        Ok(TileShape { rows: kernel.tile_m as usize, columns: kernel.tile_n as usize })
    }

    /// No kernel that may be chosen has fewer rows or columns in a tile.
    pub(crate) fn smallest_tile(&self, dtype: DType) -> Result<TileShape> {
        let mut smallest = Self::tile(dtype)?;
        if self.has_hopper {
            for kernel in hopper_kernels(dtype)? {
                smallest.rows = smallest.rows.min(kernel.tile_m as usize);
                smallest.columns = smallest.columns.min(tiling::least_columns(u64::from(kernel.tile_n)));
            }
        }
        Ok(smallest)
    }

    /// Of Hopper's kernels, the smallest first; elsewhere the portable one's.
    pub(crate) fn tiles(&self, dtype: DType) -> Result<Vec<TileShape>> {
        if !self.has_hopper {
            return Ok(vec![Self::tile(dtype)?]);
        }
        let shape =
            |kernel: &KernelInfo| TileShape { rows: kernel.tile_m as usize, columns: kernel.tile_n as usize };
        let mut tiles: Vec<_> = hopper_kernels(dtype)?.map(shape).collect();
        tiles.sort_unstable();
        Ok(tiles)
    }

    /// The ways to cut `problem`, each with the cycles that it is expected to take, the fastest first; one at least.
    pub(crate) fn tilings(&self, dtype: DType, problem: &Problem) -> Result<Vec<(Tiling, f64)>> {
        if self.has_hopper && problem.aligned && problem.k > 0 && self.blocks() > 0 {
            let candidates = hopper_kernels(dtype)?.map(|kernel| Candidate::new(kernel, dtype));
            let ways = tiling::ways(candidates, problem, u64::from(self.blocks()), u64::from(self.sharing));
            if !ways.is_empty() {
                return Ok(ways);
            }
        }
        let shape = Self::tile(dtype)?;
        let (rows, columns) = (shape.rows as u64, shape.columns as u64);
        let per_sm = if self.leaves_sms { 1 } else { PORTABLE_BLOCKS_PER_SM };
        let at_once = per_sm * u64::from(self.blocks());
        let group_rows = tiling::group_rows(rows, columns, at_once);
        Ok(vec![(Tiling::whole(shape, group_rows, TileKernel::Portable), f64::INFINITY)])
    }

    /// Whether one of Hopper's kernels can: the block that computes a tile must have the whole of it, and a stage room for
    /// the slots of part of it.
    pub(crate) fn can_fold(dtype: DType, tiling: &Tiling, sources: usize) -> Result<bool> {
        let TileKernel::Hopper { columns } = tiling.kernel else { return Ok(false) };
        let side = |extent: usize| u32::try_from(extent).unwrap_or(u32::MAX);
        let kernel = KernelId::Hopper(dtype, side(tiling.shape.rows), columns).info()?;
        Ok(tiling.parts == 1 && hopper::slot_parts(kernel, side(sources)) > 0)
    }

    const fn push_kernel(&self) -> KernelId {
        if self.has_hopper { KernelId::PushHopper } else { KernelId::Push }
    }

    /// The most parts of split tiles that a launch may have: their sums must find room.
    pub(crate) fn most_parts(&self, dtype: DType) -> Result<usize> {
        if !self.has_hopper {
            return Ok(0);
        }
        let least = hopper_kernels(dtype)?.map(|kernel| 4 * kernel.tile_m * kernel.tile_n).min();
        let scratch = tiling::SCRATCH_BYTES_PER_BLOCK * u64::from(self.blocks());
        Ok(usize::try_from(scratch / u64::from(least.unwrap_or(1))).unwrap_or(usize::MAX))
    }

    pub(crate) fn clock(&self, device: &Device) -> Result<Clock> {
        Clock::calibrate(device, |stream, params: &ClockParams| match stream {
            // SAFETY: this kernel takes this parameter, whose memory outlives it.
            Stream::Cuda(stream) => unsafe { self.launch(stream, KernelId::Clock, |_| 1, params) },
            Stream::Host(_) => Err(flux_memory::Error::BackendMismatch { what: "the clock" }.into()),
        })
    }

    /// Leaves when its units happened at `records`, if there are any.
    ///
    /// # Safety
    /// As for [`crate::Launcher::gemm`]; there is room for the records of all units.
    pub(crate) unsafe fn gemm(
        &self,
        stream: &CudaStream,
        launch: &Launch<'_>,
        params: &GemmParams,
        scratch: Option<&Scratch>,
        records: Option<Address>,
    ) -> Result<()> {
        if params.tiles == 0 {
            return Ok(());
        }
        let Launch { policy, dtype, scales, tiling, .. } = *launch;
        if let (TileKernel::Hopper { columns }, Some(scratch)) = (tiling.kernel, scratch) {
            let rows = u32::try_from(tiling.shape.rows).unwrap_or(u32::MAX);
            let id = KernelId::Hopper(dtype, rows, columns);
            let kernel = self.load(id)?;
            // Blocks that come early hold SMs: not where what they wait for may itself wait for what needs some.
            let early = policy == Policy::Plain && !self.leaves_sms && tiling.may_begin_early(params, dtype);
            let params = hopper::params(kernel.info, launch, params, scratch, early)?;
            let (units, cluster) = (params.units(), params.cluster());
            let Some(records) = records else {
                // SAFETY: the caller's promise; this kernel takes this parameter.
                return unsafe { launch_loaded(stream, &kernel, [units, cluster], early, &params) };
            };
            let traced = self.load(KernelId::TracedHopper(dtype, rows, columns))?;
            let params = TracedHopperParams { params, records, padding: [0; 7] };
            // SAFETY: as above.
            return unsafe { launch_loaded(stream, &traced, [units, cluster], early, &params) };
        }
        let (load, tiles) = (load_for(dtype, params), |_: &Loaded| params.tiles);
        if let Some(puts) = launch.destinations.and_then(Destinations::puts)
            && policy == Policy::ReduceScatter
        {
            let (id, params) = (KernelId::PutGemm(dtype, load), PutGemmParams { params: *params, puts });
            // SAFETY: as above.
            return unsafe { self.launch(stream, id, tiles, &params) };
        }
        let Some(records) = records else {
            let id = KernelId::Gemm(dtype, policy, load);
            if dtype.is_scaled() {
                let params = ScaledGemmParams { gemm: *params, scales };
                // SAFETY: as above.
                return unsafe { self.launch(stream, id, tiles, &params) };
            }
            // SAFETY: as above.
            return unsafe { self.launch(stream, id, tiles, params) };
        };
        let id = KernelId::TracedGemm(dtype, policy, load);
        // SAFETY: as above.
        unsafe { self.launch(stream, id, tiles, &TracedGemmParams { params: *params, records }) }
    }

    /// # Safety
    /// As for [`crate::Launcher::sum`].
    pub(crate) unsafe fn sum(&self, stream: &CudaStream, dtype: DType, params: &SumParams) -> Result<()> {
        let tiles = |kernel: &Loaded| {
            let KernelInfo { tile_m, tile_n, .. } = *kernel.info;
            params.rows.div_ceil(tile_m).saturating_mul(params.n.div_ceil(tile_n))
        };
        // SAFETY: the caller's promise; this kernel takes this parameter.
        unsafe { self.launch(stream, KernelId::Sum(dtype), tiles, params) }
    }

    /// # Safety
    /// As for [`crate::Launcher::push`].
    pub(crate) unsafe fn push(&self, stream: &CudaStream, params: &PushParams) -> Result<()> {
        // Blocks without a part of a chunk would only count.
        let parts = |kernel: &Loaded| {
            let parts = params.chunk_bytes.min(params.bytes).div_ceil(u64::from(kernel.info.tile_n));
            u32::try_from(parts).unwrap_or(u32::MAX)
        };
        // SAFETY: the caller's promise; this kernel takes this parameter.
        unsafe { self.launch(stream, self.push_kernel(), parts, params) }
    }

    /// # Safety
    /// As for [`CudaStream::launch`].
    unsafe fn launch<P: bytemuck::Pod>(
        &self,
        stream: &CudaStream,
        id: KernelId,
        blocks: impl FnOnce(&Loaded) -> u32,
        params: &P,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            let kernel = self.load(id)?;
            launch_loaded(stream, &kernel, [blocks(&kernel), 1], false, params)
        }
    }
}

/// Launches so many blocks, or as many as may run at once; in clusters of so many.
///
/// # Safety
/// As for [`CudaStream::launch`].
unsafe fn launch_loaded<P: bytemuck::Pod>(
    stream: &CudaStream,
    kernel: &Loaded,
    [blocks, cluster]: [u32; 2],
    begins_early: bool,
    params: &P,
) -> Result<()> {
    let blocks = blocks.min(kernel.blocks) / cluster * cluster;
    if blocks == 0 {
        return Ok(());
    }
    let KernelInfo { threads, dynamic_smem_bytes, .. } = *kernel.info;
    let shape = LaunchShape { blocks, cluster, threads, shared_bytes: dynamic_smem_bytes, begins_early };
    // SAFETY: the caller's promise.
    unsafe { stream.launch(kernel.function, &shape, params)? };
    Ok(())
}

/// 16-byte loads also need K to be a multiple of their elements.
fn load_for(dtype: DType, params: &GemmParams) -> Load {
    let whole = params.are_operands_aligned(dtype) && (params.k as usize * dtype.bytes()).is_multiple_of(16);
    if whole { Load::Vector } else { Load::Scalar }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flux_memory::Address;

    #[test]
    fn what_16_byte_copies_cannot_take_is_loaded_element_by_element() {
        let aligned =
            GemmParams { a: Address(256), b: Address(512), lda: 64, ldb: 64, k: 64, ..GemmParams::default() };
        for dtype in [DType::Bf16, DType::F16, DType::E4m3] {
            assert_eq!(load_for(dtype, &aligned), Load::Vector, "{dtype}");
        }
        for odd in [
            GemmParams { a: Address(258), ..aligned },
            GemmParams { b: Address(520), ..aligned },
            GemmParams { lda: 68, ..aligned },
            GemmParams { ldb: 65, ..aligned },
            GemmParams { k: 63, ..aligned },
        ] {
            assert_eq!(load_for(DType::Bf16, &odd), Load::Scalar, "{odd:?}");
        }
        for eights in [
            GemmParams { lda: 72, ..aligned },
            GemmParams { ldb: 72, ..aligned },
            GemmParams { k: 56, ..aligned },
        ] {
            assert_eq!(load_for(DType::F16, &eights), Load::Vector, "{eights:?}");
            assert_eq!(load_for(DType::E4m3, &eights), Load::Scalar, "{eights:?}");
        }
    }
}
