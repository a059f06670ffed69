//! Compiling CUDA C++ to PTX in this process.

use crate::toolkit::Toolkit;
use anyhow::{Context, Result, bail, ensure};
use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;

type Program = *mut c_void;

/// NVRTC, loaded.
pub(crate) struct Nvrtc {
    nvrtc: Library,
    _builtins: Library,
}

impl Nvrtc {
    pub(crate) fn load(toolkit: &Toolkit) -> Result<Self> {
        // SAFETY: loading these libraries runs only their own initialisers.
        let open = |path: &std::path::Path| unsafe { Library::new(path) };
        let builtins =
            open(&toolkit.builtins).with_context(|| format!("loading {}", toolkit.builtins.display()))?;
        let nvrtc = open(&toolkit.nvrtc).with_context(|| format!("loading {}", toolkit.nvrtc.display()))?;
        Ok(Self { nvrtc, _builtins: builtins })
    }

    /// The version, such as "12.4".
    pub(crate) fn version(&self) -> Result<String> {
        let (mut major, mut minor): (c_int, c_int) = (0, 0);
        // SAFETY: the signature is NVRTC's; both are valid places.
        let status = unsafe {
            let version =
                self.nvrtc.get::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>(b"nvrtcVersion")?;
            version(&raw mut major, &raw mut minor)
        };
        ensure!(status == 0, "nvrtcVersion returned {status}");
        Ok(format!("{major}.{minor}"))
    }

    /// Compiles `source` with `headers` (name and text) and `options`. A warning is an error.
    pub(crate) fn compile(
        &self,
        name: &str,
        source: &str,
        headers: &[(String, String)],
        options: &[String],
    ) -> Result<String> {
        let texts = |texts: Vec<&str>| texts.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>();
        let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (name, source) = (CString::new(name)?, CString::new(source)?);
        let header_texts = texts(headers.iter().map(|(_, text)| text.as_str()).collect())?;
        let header_names = texts(headers.iter().map(|(name, _)| name.as_str()).collect())?;
        let options = texts(options.iter().map(String::as_str).collect())?;
        let (header_text, header_name) = (pointers(&header_texts), pointers(&header_names));
        let option_pointers = pointers(&options);
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
        type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
        let mut program: Program = null_mut();
        // SAFETY: the signatures are NVRTC's; all pointers outlive the calls.
        unsafe {
            let created = self.nvrtc.get::<Create>(b"nvrtcCreateProgram")?(
                &raw mut program,
                source.as_ptr(),
                name.as_ptr(),
                c_int::try_from(headers.len())?,
                header_text.as_ptr(),
                header_name.as_ptr(),
            );
            ensure!(created == 0, "nvrtcCreateProgram returned {created}");
            let compiled = self.nvrtc.get::<Compile>(b"nvrtcCompileProgram")?(
                program,
                c_int::try_from(options.len())?,
                option_pointers.as_ptr(),
            );
            let log = self.text(program, b"nvrtcGetProgramLogSize", b"nvrtcGetProgramLog");
            let ptx = self.text(program, b"nvrtcGetPTXSize", b"nvrtcGetPTX");
            self.nvrtc.get::<Destroy>(b"nvrtcDestroyProgram")?(&raw mut program);
            let log = log?;
            if compiled != 0 || !log.trim().is_empty() {
                bail!("{}: NVRTC says\n{log}", name.to_string_lossy());
            }
            ptx
        }
    }

    /// # Safety
    /// `program` is alive; `size` and `get` name NVRTC's two functions for one text.
    unsafe fn text(&self, program: Program, size: &[u8], get: &[u8]) -> Result<String> {
        let mut bytes = 0_usize;
        // SAFETY: the caller's promise; the buffer is as large as NVRTC says.
        let text = unsafe {
            let status = self.nvrtc.get::<unsafe extern "C" fn(Program, *mut usize) -> c_int>(size)?(
                program,
                &raw mut bytes,
            );
            ensure!(status == 0, "NVRTC returned {status}");
            let mut text = vec![0_u8; bytes];
            let status = self.nvrtc.get::<unsafe extern "C" fn(Program, *mut c_char) -> c_int>(get)?(
                program,
                text.as_mut_ptr().cast(),
            );
            ensure!(status == 0, "NVRTC returned {status}");
            text
        };
        Ok(String::from_utf8(text)?.trim_end_matches('\0').to_owned())
    }
}
