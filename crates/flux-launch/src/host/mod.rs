//! The kernels on the host: the same parameters, tables, gates and destinations, computed by threads.
// Pitches and extents of memory of this process fit into its `usize`, and a tile's extents into anything.
#![allow(clippy::cast_possible_truncation)]

mod epilogue;
mod gemm;
pub(crate) mod push;
pub(crate) mod sum;
pub(crate) mod threads;

pub(crate) use gemm::Gemm;

use crate::{DType, E4m3, Element, Result};
use flux_memory::host::HostStream;
use flux_swizzle::TileShape;
use half::{bf16, f16};
use rayon::ThreadPool;
use std::sync::Arc;

/// A tile that keeps a core's second-level cache busy, and is small enough that a shard has several.
pub(crate) const TILE: TileShape = TileShape { rows: 64, columns: 128 };

/// A kernel's parameters, and what threads do with them.
pub(crate) trait Kernel: Send + 'static {
    /// Runs the kernel with the threads of `pool`.
    ///
    /// # Safety
    /// As for the method of [`crate::Launcher`] that launches it.
    unsafe fn run<E: Element>(self, pool: &ThreadPool);
}

/// Enqueues `kernel` on `stream`.
///
/// # Safety
/// As for [`Kernel::run`], until the launch has ended.
pub(crate) unsafe fn launch(
    pool: &Arc<ThreadPool>,
    stream: &HostStream,
    dtype: DType,
    kernel: impl Kernel,
) -> Result<()> {
    let pool = Arc::clone(pool);
    stream.launch(move || {
        // SAFETY: the caller's promise.
        unsafe {
            match dtype {
                DType::Bf16 => kernel.run::<bf16>(&pool),
                DType::F16 => kernel.run::<f16>(&pool),
                DType::E4m3 => kernel.run::<E4m3>(&pool),
            }
        }
    })?;
    Ok(())
}
