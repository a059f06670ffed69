//! Kernels that put into peers' memory by themselves: they call functions of NVSHMEM's device library, and are linked with the one
//! that the user has when they are first loaded.

use crate::put_signal::bridges;
use crate::{Error, Result};
use cudarc::driver::sys::{self, CUjit_option, CUjitInputType, CUlinkState, CUmodule, CUresult};
use flux_memory::cuda::check;
use std::ffi::{CString, c_void};
use std::fmt::Debug;
use std::path::{Path, PathBuf};

/// The device library that kernels are linked with, and what has to be done with a module that has it.
pub trait PutLibrary: Debug + Send + Sync {
    /// Where it is, or why there is none.
    fn archive(&self) -> Result<PathBuf, String>;

    /// Prepares a module that has it.
    ///
    /// # Safety
    /// `module` is loaded in the current context.
    unsafe fn init(&self, module: CUmodule) -> Result<(), String>;

    /// Says that the module is about to be unloaded.
    ///
    /// # Safety
    /// It was prepared, and none of its kernels runs.
    unsafe fn finalize(&self, module: CUmodule) -> Result<(), String>;
}

/// What the linker may say of an error.
const LOG_BYTES: usize = 8 << 10;

/// A linker of the driver's.
struct Link(CUlinkState);

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: made by `link`, destroyed once.
        if let Err(error) = check("cuLinkDestroy", unsafe { sys::cuLinkDestroy(self.0) }) {
            tracing::warn!(%error, "a linker could not be destroyed");
        }
    }
}

/// Links `ptx` with `archive` for the current context's GPU, whichever version of NVSHMEM that is of.
pub(crate) fn link(name: &str, ptx: &str, archive: &Path) -> Result<Vec<u8>> {
    let mut refusals = String::new();
    for (versions, bridge) in bridges() {
        let parts: Vec<_> = std::iter::once(ptx).chain(bridge.as_deref()).collect();
        match link_all(&parts, archive) {
            Ok(cubin) => return Ok(cubin),
            Err(reason) => refusals.push_str(&format!("\n  as NVSHMEM {versions}: {reason}")),
        }
    }
    Err(Error::NotLinked { name: name.to_owned(), archive: archive.display().to_string(), reason: refusals })
}

/// Links all `parts`, which are PTX, with `archive`; or says why not.
fn link_all(parts: &[&str], archive: &Path) -> Result<Vec<u8>, String> {
    let to_c = |text: &[u8]| CString::new(text).map_err(|_| "a zero byte in a name".to_owned());
    let path = to_c(archive.as_os_str().as_encoded_bytes())?;
    let parts: Vec<_> = parts.iter().map(|part| to_c(part.as_bytes())).collect::<Result<_, _>>()?;
    let mut log = vec![0_u8; LOG_BYTES];
    let mut options =
        [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(LOG_BYTES)];
    let (mut state, mut cubin, mut bytes) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
    // SAFETY: all pointers are to places of the right types that outlive the linker, options and values among them; the PTX is
    // zero-terminated, and the terminator is counted.
    let linked = unsafe {
        check(
            "cuLinkCreate",
            sys::cuLinkCreate_v2(2, options.as_mut_ptr(), values.as_mut_ptr(), &raw mut state),
        )
        .map_err(|error| error.to_string())?;
        let link = Link(state);
        let (none, no_values) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut status = CUresult::CUDA_SUCCESS;
        for part in &parts {
            let text = part.as_bytes_with_nul();
            let data = text.as_ptr().cast_mut().cast::<c_void>();
            let kind = CUjitInputType::CU_JIT_INPUT_PTX;
            if status == CUresult::CUDA_SUCCESS {
                status = sys::cuLinkAddData_v2(
                    link.0,
                    kind,
                    data,
                    text.len(),
                    c"flux".as_ptr(),
                    0,
                    none,
                    no_values,
                );
            }
        }
        let kind = CUjitInputType::CU_JIT_INPUT_LIBRARY;
        if status == CUresult::CUDA_SUCCESS {
            status = sys::cuLinkAddFile_v2(link.0, kind, path.as_ptr(), 0, none, no_values);
        }
        if status == CUresult::CUDA_SUCCESS {
            status = sys::cuLinkComplete(link.0, &raw mut cubin, &raw mut bytes);
        }
        // The cubin is the linker's.
        check("cuLinkComplete", status)
            .map(|()| std::slice::from_raw_parts(cubin.cast::<u8>(), bytes).to_vec())
    };
    linked.map_err(|error| {
        let said = log.split(|&byte| byte == 0).next().unwrap_or_default();
        format!("{error} {}", String::from_utf8_lossy(said).trim())
    })
}
