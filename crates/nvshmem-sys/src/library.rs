//! NVSHMEM's host library, loaded.

use crate::{DeviceCode, Functions, NoDeviceCode};
use flux_dylib::{Description, LoadError, Opened, Refusal, Search, Symbols, Version};
use std::ffi::c_int;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What is looked for, and where.
pub static NVSHMEM: Description = Description {
    name: "NVSHMEM",
    variable: "FLUX_NVSHMEM_LIBRARY",
    loader_names: &["libnvshmem_host.so.3", "libnvshmem_host.so"],
    in_site_packages: "nvidia/nvshmem/lib/libnvshmem_host.so.3",
    system_paths: &[
        "/usr/local/nvshmem/lib/libnvshmem_host.so.3",
        "/usr/local/lib/libnvshmem_host.so.3",
        // The packages for Debian and Ubuntu have a folder for each major version of CUDA.
        "/usr/lib/x86_64-linux-gnu/nvshmem/13/libnvshmem_host.so.3",
        "/usr/lib/x86_64-linux-gnu/nvshmem/12/libnvshmem_host.so.3",
        "/usr/lib/aarch64-linux-gnu/nvshmem/13/libnvshmem_host.so.3",
        "/usr/lib/aarch64-linux-gnu/nvshmem/12/libnvshmem_host.so.3",
        "/usr/lib64/nvshmem/13/libnvshmem_host.so.3",
        "/usr/lib64/nvshmem/12/libnvshmem_host.so.3",
    ],
    wheel: "nvidia-nvshmem-cu13",
    version_symbol: "nvshmemx_vendor_get_version_info",
    // The first whose wheel starts by unique id: that of 3.1 looks for a plug-in under a name that it does not have.
    oldest: Version::new(3, 2, 0),
};

static LOADED: OnceLock<Library> = OnceLock::new();

/// NVSHMEM, loaded: its functions, each under its own name. They stay valid for as long as the process runs.
#[derive(Clone, Debug)]
pub struct Library(Opened<Functions>);

impl Library {
    /// This process's NVSHMEM; looked for by the first call that finds it.
    ///
    /// # Errors
    /// [`LoadError`] lists every path tried. The next call tries again.
    pub fn load() -> Result<&'static Self, LoadError> {
        if let Some(library) = LOADED.get() {
            return Ok(library);
        }
        let library = Self::open(&Search::usual(&NVSHMEM))?;
        Ok(LOADED.get_or_init(|| library))
    }

    /// The first usable NVSHMEM of `search`. Other than [`load`](Self::load) it remembers nothing.
    ///
    /// # Errors
    /// [`LoadError`] lists every path tried.
    pub fn open(search: &Search) -> Result<Self, LoadError> {
        // SAFETY: each function has the type that NVSHMEM's headers give it, in every version with this major number.
        NVSHMEM.open(search, version, |symbols| unsafe { Functions::resolve(symbols) }).map(Self)
    }

    /// The library's version, which may differ from the header's (`NVSHMEM_VENDOR_MAJOR_VERSION` and so on).
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// The file it was loaded from.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The device code that was installed with this library, to be linked into kernels at run time.
    ///
    /// # Errors
    /// [`NoDeviceCode`] lists every path tried.
    pub fn device_code(&self, form: DeviceCode) -> Result<PathBuf, NoDeviceCode> {
        form.beside(self.path())
    }
}

impl Deref for Library {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.0.functions
    }
}

fn version(symbols: &Symbols<'_>) -> Result<Version, Refusal> {
    type GetVersion = unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int);
    let (mut major, mut minor, mut patch): (c_int, c_int, c_int) = (-1, -1, -1);
    // SAFETY: the header's type; all three are places to write to.
    unsafe {
        let get = symbols.get::<GetVersion>(NVSHMEM.version_symbol)?;
        get(&raw mut major, &raw mut minor, &raw mut patch);
    }
    match (u32::try_from(major), u32::try_from(minor), u32::try_from(patch)) {
        (Ok(major), Ok(minor), Ok(patch)) => Ok(Version::new(major, minor, patch)),
        _ => Err(Refusal::NoVersion(format!("{} gave {major}.{minor}.{patch}", NVSHMEM.version_symbol))),
    }
}
