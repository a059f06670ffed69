//! The dynamic loader.

use crate::description::Version;
use crate::error::{MissingSymbol, Refusal};
use libloading::Library;
use std::ffi::c_void;
use std::path::{Path, PathBuf};

/// Opens `path` and never closes it: its functions are handed out as plain pointers, and its initialisers may have registered
/// what still runs at the end of the process. Also one that is refused afterwards stays.
pub(crate) fn dlopen(path: &Path) -> Result<&'static Library, Refusal> {
    // All at once: a symbol that nothing provides is then an error here, and not the end of the process at some later call.
    #[cfg(unix)]
    let opened = {
        use libloading::os::unix::{Library as Unix, RTLD_LOCAL, RTLD_NOW};
        // SAFETY: runs the library's own initialisers; whoever names the file vouches for it.
        unsafe { Unix::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map(Library::from)
    };
    #[cfg(not(unix))]
    // SAFETY: as above.
    let opened = unsafe { Library::new(path) };
    match opened {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(error) => Err(Refusal::Loader(reason(path, &error))),
    }
}

/// The loader's words, without the path in front that the list of attempts has too.
fn reason(path: &Path, error: &libloading::Error) -> String {
    let text = match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text).to_owned()
}

/// The file that `address` was loaded from.
#[cfg(unix)]
pub(crate) fn file_of(address: *const c_void) -> Option<PathBuf> {
    use std::ffi::{CStr, OsStr};
    use std::os::unix::ffi::OsStrExt;
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: `info` is a place to write to; any address may be asked about.
    let known = unsafe { libc::dladdr(address, &raw mut info) } != 0;
    if !known || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own text, which lives as long as the library: for ever.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(Path::new(OsStr::from_bytes(name.to_bytes())).to_path_buf())
}

/// Elsewhere nothing tells.
#[cfg(not(unix))]
pub(crate) fn file_of(_: *const c_void) -> Option<PathBuf> {
    None
}

/// The functions of an opened library, by name.
#[derive(Clone, Copy, Debug)]
pub struct Symbols<'l> {
    library: &'l Library,
    name: &'static str,
    version: Option<Version>,
}

impl<'l> Symbols<'l> {
    pub(crate) fn new(library: &'l Library, name: &'static str, version: Option<Version>) -> Self {
        Self { library, name, version }
    }

    /// The function `name`.
    ///
    /// # Errors
    /// [`MissingSymbol`] where the library has none.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function of that name.
    pub unsafe fn get<F: Copy>(&self, name: &'static str) -> Result<F, MissingSymbol> {
        // SAFETY: the caller's promise. `None` stands for null, which a loader may find under a name.
        let symbol = unsafe { self.library.get::<Option<F>>(name) };
        symbol.ok().and_then(|symbol| *symbol).ok_or(MissingSymbol {
            library: self.name,
            name,
            version: self.version,
        })
    }

    pub(crate) fn address(&self, name: &'static str) -> Option<*const c_void> {
        // SAFETY: only the address is looked at.
        let symbol = unsafe { self.library.get::<*const c_void>(name) };
        symbol.ok().map(|symbol| *symbol).filter(|address| !address.is_null())
    }
}
