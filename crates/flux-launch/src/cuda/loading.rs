//! Loading the embedded PTX: all that an operation may launch when it is built, each kernel once.

use super::CudaLauncher;
use crate::catalogue::{KernelId, KernelInfo, Load, hopper_kernels};
use crate::push::push_blocks;
use crate::puts::{self, PutLibrary};
use crate::{DType, Error, Policy, Result};
use cudarc::driver::sys::{self, CUfunction, CUfunction_attribute, CUmodule};
use flux_memory::cuda::check;
use rayon::prelude::*;
use std::ffi::CString;
use std::sync::{Arc, PoisonError};

#[derive(Clone, Copy, Debug)]
pub(super) struct Loaded {
    module: CUmodule,
    pub(super) function: CUfunction,
    /// What the manifest says of it: looking that up by name would take longer than all else here.
    pub(super) info: &'static KernelInfo,
    /// The most blocks that one launch may run at once.
    pub(super) blocks: u32,
}

// SAFETY: the driver's modules and functions may be used from any thread.
unsafe impl Send for Loaded {}

impl CudaLauncher {
    /// Loads what a launch of `policy` may need, so that no launch compiles: all at once, on several threads, since a kernel
    /// that the driver has not compiled before takes it a third of a second.
    pub(crate) fn prepare(&self, dtype: DType, policy: Policy) -> Result<()> {
        let mut needed =
            vec![KernelId::Gemm(dtype, policy, Load::Vector), KernelId::Gemm(dtype, policy, Load::Scalar)];
        if self.has_hopper {
            let hopper = hopper_kernels(dtype)?;
            needed.extend(hopper.map(|kernel| KernelId::Hopper(dtype, kernel.tile_m, kernel.tile_n)));
        }
        if policy == Policy::ReduceScatter {
            needed.push(KernelId::Sum(dtype.result()));
        }
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        needed.retain(|id| !loaded.contains_key(id));
        let new: Vec<_> = needed.into_par_iter().map(|id| (id, self.load_new(id))).collect();
        // What was loaded is kept, whatever else failed.
        let mut outcome = Ok(());
        for (id, kernel) in new {
            match kernel {
                Ok(kernel) => {
                    loaded.insert(id, kernel);
                }
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    /// Links and loads the kernels that put.
    pub(crate) fn prepare_puts(&self, dtype: DType, library: &Arc<dyn PutLibrary>) -> Result<()> {
        let _first = self.puts.get_or_init(|| Arc::clone(library));
        self.load(KernelId::PutGemm(dtype, Load::Vector))?;
        self.load(KernelId::PutGemm(dtype, Load::Scalar)).map(|_| ())
    }

    /// Loads the push kernel.
    pub(crate) fn prepare_push(&self) -> Result<()> {
        self.load(self.push_kernel()).map(|_| ())
    }

    /// Loads the traced kernels.
    pub(crate) fn prepare_traced(&self, dtype: DType) -> Result<()> {
        if dtype != DType::Bf16 {
            return Err(Error::NotTraceable { dtype });
        }
        if self.has_hopper {
            for kernel in hopper_kernels(dtype)? {
                self.load(KernelId::TracedHopper(dtype, kernel.tile_m, kernel.tile_n))?;
            }
        }
        for policy in [Policy::Plain, Policy::AllGather, Policy::ReduceScatter] {
            self.load(KernelId::TracedGemm(dtype, policy, Load::Vector))?;
            self.load(KernelId::TracedGemm(dtype, policy, Load::Scalar))?;
        }
        self.load(KernelId::Clock)?;
        Ok(())
    }

    pub(super) fn load(&self, id: KernelId) -> Result<Loaded> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = loaded.get(&id) {
            return Ok(*kernel);
        }
        let kernel = self.load_new(id)?;
        loaded.insert(id, kernel);
        Ok(kernel)
    }

    fn load_new(&self, id: KernelId) -> Result<Loaded> {
        let info = id.info()?;
        let missing = || Error::NoKernel { name: info.name.clone() };
        let ptx = info.ptx().ok_or_else(missing)?;
        let entry = CString::new(info.entry.as_str()).map_err(|_| missing())?;
        let _span = tracing::debug_span!("load kernel", name = info.name).entered();
        self.device.bind()?;
        let library = self.puts.get().filter(|_| matches!(id, KernelId::PutGemm(..)));
        let unlinked =
            |archive: String, reason| Error::NotLinked { name: info.name.clone(), archive, reason };
        let image = match library {
            None => CString::new(ptx).map_err(|_| missing())?.into_bytes_with_nul(),
            Some(library) => {
                let archive = library.archive().map_err(|reason| unlinked("NVSHMEM".into(), reason))?;
                puts::link(&info.name, &ptx, &archive)?
            }
        };
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (threads, shared_bytes) = (info.threads, info.dynamic_smem_bytes);
        let as_int = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        let mut per_sm = 0;
        // SAFETY: the image is zero-terminated PTX, or a whole cubin; the results have valid places; the function belongs to the module, which
        // is unloaded only on drop. Asking for its attributes and occupancy also makes the driver load it now, and not
        // at the first launch, when other kernels may already be waiting for this one.
        unsafe {
            check("cuModuleLoadData", sys::cuModuleLoadData(&raw mut module, image.as_ptr().cast()))?;
            if let Some(library) = library {
                library.init(module).map_err(|reason| unlinked("NVSHMEM".into(), reason))?;
            }
            check(
                "cuModuleGetFunction",
                sys::cuModuleGetFunction(&raw mut function, module, entry.as_ptr()),
            )?;
            check(
                "cuFuncSetAttribute",
                sys::cuFuncSetAttribute(
                    function,
                    CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    as_int(shared_bytes),
                ),
            )?;
            check(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    &raw mut per_sm,
                    function,
                    as_int(threads),
                    shared_bytes as usize,
                ),
            )?;
        }
        // A sum waits for the peers' GEMMs: where they share the GPU, one block of it on an SM also leaves room for theirs.
        let may_wait = matches!(id, KernelId::Sum(_) | KernelId::Gemm(..) | KernelId::PutGemm(..));
        let spread = may_wait && self.leaves_sms;
        let per_sm = u32::try_from(per_sm).unwrap_or(0).min(if spread { 1 } else { u32::MAX });
        let usable = self.sms * per_sm;
        let blocks = match id {
            KernelId::Push | KernelId::PushHopper => {
                push_blocks(self.device.multiprocessors(), self.sharing, self.blocks(), per_sm)
            }
            _ => usable / self.sharing,
        };
        if blocks == 0 {
            return Err(Error::TooManySharing {
                sharing: self.sharing as usize,
                blocks: usable as usize,
                device: self.device.name().to_owned(),
            });
        }
        Ok(Loaded { module, function, info, blocks })
    }
}

impl Drop for CudaLauncher {
    fn drop(&mut self) {
        let loaded = std::mem::take(&mut *self.loaded.lock().unwrap_or_else(PoisonError::into_inner));
        for (id, kernel) in loaded {
            // SAFETY: prepared when it was loaded; whoever launched has settled its streams.
            let left = |library: &Arc<dyn PutLibrary>| unsafe { library.finalize(kernel.module) };
            let library = self.puts.get().filter(|_| matches!(id, KernelId::PutGemm(..)));
            if let Some(Err(error)) = library.map(left) {
                tracing::warn!(error, "a kernel could not be taken from NVSHMEM");
            }
            let unloaded = self.device.bind().and_then(|()| {
                // SAFETY: loaded by this type, unloaded once; whoever launched has settled its streams.
                check("cuModuleUnload", unsafe { sys::cuModuleUnload(kernel.module) })
            });
            if let Err(error) = unloaded {
                tracing::warn!(%error, "a kernel could not be unloaded");
            }
        }
    }
}
