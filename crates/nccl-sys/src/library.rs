//! NCCL, loaded.

use crate::{Error, Functions, ncclResult_t};
use flux_dylib::{Description, LoadError, Opened, Refusal, Search, Symbols, Version};
use std::ffi::{CStr, c_char, c_int};
use std::ops::Deref;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::OnceLock;

/// What is looked for, and where.
pub static NCCL: Description = Description {
    name: "NCCL",
    variable: "FLUX_NCCL_LIBRARY",
    loader_names: &["libnccl.so.2", "libnccl.so"],
    in_site_packages: "nvidia/nccl/lib/libnccl.so.2",
    system_paths: &[
        "/usr/local/nccl/lib/libnccl.so.2",
        "/usr/local/cuda/lib64/libnccl.so.2",
        "/usr/local/lib/libnccl.so.2",
    ],
    wheel: "nvidia-nccl-cu13",
    version_symbol: "ncclGetVersion",
    // The first with ncclMemAlloc and ncclCommRegister.
    oldest: Version::new(2, 19, 0),
};

static LOADED: OnceLock<Library> = OnceLock::new();

/// NCCL, loaded: its functions, each under its own name. They stay valid for as long as the process runs.
#[derive(Clone, Debug)]
pub struct Library(Opened<Functions>);

impl Library {
    /// This process's NCCL; looked for by the first call that finds it.
    ///
    /// # Errors
    /// [`LoadError`] lists every path tried. The next call tries again.
    pub fn load() -> Result<&'static Self, LoadError> {
        if let Some(library) = LOADED.get() {
            return Ok(library);
        }
        let library = Self::open(&Search::usual(&NCCL))?;
        Ok(LOADED.get_or_init(|| library))
    }

    /// The first usable NCCL of `search`. Other than [`load`](Self::load) it remembers nothing.
    ///
    /// # Errors
    /// [`LoadError`] lists every path tried.
    pub fn open(search: &Search) -> Result<Self, LoadError> {
        // SAFETY: each function has the type that NCCL's header gives it, and did in every version from the oldest on.
        NCCL.open(search, version, |symbols| unsafe { Functions::resolve(symbols) }).map(Self)
    }

    /// The library's version, which may differ from the header's (`NCCL_VERSION_CODE`).
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// The file it was loaded from.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// `Ok` of `ncclSuccess`, and of nothing else: a call that does not block returns `ncclInProgress`, which is for the
    /// caller to tell apart ([`Error::is_in_progress`]).
    ///
    /// # Errors
    /// [`Error`], with NCCL's words.
    pub fn check(&self, result: ncclResult_t) -> Result<(), Error> {
        if result == ncclResult_t::ncclSuccess {
            return Ok(());
        }
        // SAFETY: takes any number. The text is a constant.
        let text = unsafe { copied((self.ncclGetErrorString)(result)) };
        // SAFETY: the communicator is not looked at. The text is in a buffer of NCCL's that outlives the call.
        let last = unsafe { copied((self.ncclGetLastError)(null_mut())) };
        Err(Error { code: result, text, last })
    }
}

impl Deref for Library {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.0.functions
    }
}

/// # Safety
/// `text` is null or a C string.
unsafe fn copied(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
}

fn version(symbols: &Symbols<'_>) -> Result<Version, Refusal> {
    let mut code: c_int = 0;
    // SAFETY: the header's type; `code` is a place to write to.
    let result = unsafe {
        symbols.get::<unsafe extern "C" fn(*mut c_int) -> ncclResult_t>("ncclGetVersion")?(&raw mut code)
    };
    match u32::try_from(code) {
        Ok(code) if result == ncclResult_t::ncclSuccess => Ok(decoded(code)),
        _ => Err(Refusal::NoVersion(format!("ncclGetVersion returned {} and the code {code}", result.0))),
    }
}

/// 2.8 and older had one digit less for the minor version.
fn decoded(code: u32) -> Version {
    let major = if code < 10_000 { 1_000 } else { 10_000 };
    Version::new(code / major, code % major / 100, code % 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH, NCCL_VERSION_CODE};

    #[test]
    fn version_codes_of_both_kinds() {
        assert_eq!(decoded(2708), Version::new(2, 7, 8));
        assert_eq!(decoded(21_903), Version::new(2, 19, 3));
        assert_eq!(decoded(NCCL_VERSION_CODE), Version::new(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH));
    }
}
