//! GEMMs that put their tiles to ranks out of reach by themselves, with NVSHMEM's device library.

use crate::{Delivery, Group, OpSpec, Result};
use flux_launch::{DType, PutLibrary, PutRoute};
use flux_memory::SymmetricHeap;
use flux_transport::{Nvshmem, PutTarget, Scatter};
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::Arc;

/// The library of a group.
#[derive(Debug)]
struct Linked(Arc<Nvshmem>);

impl PutLibrary for Linked {
    fn archive(&self) -> Result<PathBuf, String> {
        self.0.device_code().map_err(|error| error.to_string())
    }

    unsafe fn init(&self, module: cudarc::driver::sys::CUmodule) -> Result<(), String> {
        // SAFETY: the caller's promise.
        unsafe { self.0.init_module(module.cast::<c_void>()) }.map_err(|error| error.to_string())
    }

    unsafe fn finalize(&self, module: cudarc::driver::sys::CUmodule) -> Result<(), String> {
        // SAFETY: the caller's promise.
        unsafe { self.0.finalize_module(module.cast::<c_void>()) }.map_err(|error| error.to_string())
    }
}

/// Whether fused calls of `spec` put, as all ranks find that they can: if tiles are to be delivered directly, and NVSHMEM is how.
/// Then their kernels are loaded. If they cannot be linked, for NVSHMEM's functions have other names in that version, tiles are
/// relayed. Collective.
pub(crate) fn prepare(group: &Group, spec: &OpSpec) -> Result<bool> {
    let Some(nvshmem) = group.nvshmem() else { return Ok(false) };
    let complete = group.members().space.reach().is_complete();
    let has_kernel = matches!(spec.dtype, DType::Bf16 | DType::F16) && !group.config().trace;
    if spec.delivery != Delivery::Direct || complete || !has_kernel {
        return Ok(false);
    }
    let library: Arc<dyn PutLibrary> = Arc::new(Linked(Arc::clone(nvshmem)));
    let prepare = |rank| group.launcher(rank).prepare_puts(spec.dtype, &library);
    let linked = group.local_ranks().try_for_each(prepare);
    if let Err(error) = &linked {
        tracing::warn!(%error, "GEMMs do not put by themselves: tiles for ranks out of reach are relayed");
    }
    let said = group.all_gather(&[u8::from(linked.is_ok())])?;
    Ok(said.iter().all(|said| said.as_slice() == [1]))
}

/// How `rank`'s tiles get to each owner.
pub(crate) fn routes(nvshmem: &Nvshmem, scatter: &Scatter, rank: usize, world_size: usize) -> Vec<PutRoute> {
    let route = |owner: usize| {
        let Some(PutTarget { slot, words }) = scatter.put_target(rank, owner) else { return PutRoute::NONE };
        let pe = u32::try_from(owner).unwrap_or(u32::MAX);
        let [there, signals] = [slot, words].map(|own| nvshmem.address(own, owner));
        match there.is_null() || signals.is_null() {
            true => PutRoute::by_transfer(slot, words, pe),
            false => PutRoute::by_address(there, signals, pe),
        }
    };
    (0..world_size).map(route).collect()
}
