//! Memory of the CUDA backend: plain `cuMemAlloc` and `cuMemHostAlloc`, which peers can be given access to.

use super::stream::{CudaStream, Priority};
use super::{CudaDevice, check};
use crate::{Address, Placement, Result};
use cudarc::driver::sys::{self, CUresult};
use std::sync::Arc;

/// Zeroed memory, or `None` if there is not enough.
pub(crate) fn allocate(
    device: &Arc<CudaDevice>,
    bytes: usize,
    placement: Placement,
) -> Result<Option<Address>> {
    device.bind()?;
    let bytes = bytes.max(1);
    match placement {
        Placement::Device => {
            let mut address = 0;
            // SAFETY: `address` is a valid place for the result.
            let status = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) };
            if status == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                return Ok(None);
            }
            check("cuMemAlloc", status)?;
            // SAFETY: the range was just allocated.
            unsafe { zero(device, Address(address), bytes)? };
            Ok(Some(Address(address)))
        }
        Placement::PinnedHost => {
            let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
            let mut pointer = std::ptr::null_mut();
            // SAFETY: `pointer` is a valid place for the result.
            let status = unsafe { sys::cuMemHostAlloc(&raw mut pointer, bytes, flags) };
            if status == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                return Ok(None);
            }
            check("cuMemHostAlloc", status)?;
            // SAFETY: the range was just allocated.
            unsafe { pointer.cast::<u8>().write_bytes(0, bytes) };
            Ok(Some(Address::from(pointer)))
        }
    }
}

/// Zeroes device memory; returns when it is done.
///
/// # Safety
/// The range is live, and nobody else accesses it.
pub(crate) unsafe fn zero(device: &Arc<CudaDevice>, address: Address, bytes: usize) -> Result<()> {
    // A memset on the default stream would return early, wait for others' work, and not for whom it is to precede.
    let stream = CudaStream::new(device, Priority::Transfer)?;
    // SAFETY: the caller's promise.
    check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(address.0, 0, bytes, stream.raw()) })?;
    stream.synchronize()
}

/// # Safety
/// `address` comes from [`allocate`] with the same device and placement; no stream uses it any more.
pub(crate) unsafe fn free(device: &CudaDevice, address: Address, placement: Placement) {
    let freed = device.bind().and_then(|()| match placement {
        // SAFETY: the caller's promise.
        Placement::Device => check("cuMemFree", unsafe { sys::cuMemFree_v2(address.0) }),
        // SAFETY: the caller's promise.
        Placement::PinnedHost => check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(address.as_ptr()) }),
    });
    if let Err(error) = freed {
        tracing::warn!(%error, "a buffer could not be freed");
    }
}
