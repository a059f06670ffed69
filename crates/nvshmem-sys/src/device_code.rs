//! NVSHMEM's device code, which kernels that put by themselves link.

use std::path::{Path, PathBuf};

/// A form in which NVSHMEM ships its device code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceCode {
    /// Relocatable code for all GPUs, which the driver's linker takes (`cuLinkAddFile`): `libnvshmem_device.a`.
    Archive,
    /// LLVM bitcode for GPUs of compute capability `sm`, such as 90: `libnvshmem_device_sm_90.bc`, or what older versions have,
    /// `libnvshmem_device.bc` for all.
    Bitcode {
        /// Major and minor as one number.
        sm: u32,
    },
}

/// The device code is not where the host library is.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "NVSHMEM's device code is not beside its host library {}. Tried:{}\nSome packages have the host library only: install one \
     with both (`pip install nvidia-nvshmem-cu13`), or set FLUX_NVSHMEM_LIBRARY to the host library of one",
    host.display(),
    tried.iter().map(|path| format!("\n  {}: no such file", path.display())).collect::<String>()
)]
pub struct NoDeviceCode {
    /// The host library.
    pub host: PathBuf,
    /// Every path, in the order of trying.
    pub tried: Vec<PathBuf>,
}

impl DeviceCode {
    /// The device code installed with the host library `host`: in its folder, or where links to it lead.
    ///
    /// # Errors
    /// [`NoDeviceCode`] lists every path tried.
    pub fn beside(self, host: &Path) -> Result<PathBuf, NoDeviceCode> {
        let linked = host.canonicalize().ok();
        let mut tried = Vec::new();
        for folder in [Some(host), linked.as_deref()].into_iter().flatten().filter_map(Path::parent) {
            for path in self.file_names().iter().map(|name| folder.join(name)) {
                if path.is_file() {
                    return Ok(path);
                }
                if !tried.contains(&path) {
                    tried.push(path);
                }
            }
        }
        Err(NoDeviceCode { host: host.to_path_buf(), tried })
    }

    fn file_names(self) -> Vec<String> {
        match self {
            Self::Archive => vec!["libnvshmem_device.a".into()],
            Self::Bitcode { sm } => {
                vec![format!("libnvshmem_device_sm_{sm}.bc"), "libnvshmem_device.bc".into()]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_for_beside_the_library_and_behind_links() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (package, link) = (root.join("package"), root.join("lib"));
        std::fs::create_dir_all(&package).unwrap();
        std::fs::create_dir_all(&link).unwrap();
        let host = package.join("libnvshmem_host.so.3");
        std::fs::write(&host, "").unwrap();
        let error = DeviceCode::Archive.beside(&host).unwrap_err();
        assert_eq!(error.tried, [package.join("libnvshmem_device.a")]);
        assert!(error.to_string().contains(&*error.tried[0].to_string_lossy()), "{error}");

        let (all, hopper) =
            (package.join("libnvshmem_device.bc"), package.join("libnvshmem_device_sm_90.bc"));
        std::fs::write(&all, "").unwrap();
        assert_eq!(DeviceCode::Bitcode { sm: 90 }.beside(&host).unwrap(), all);
        std::fs::write(&hopper, "").unwrap();
        assert_eq!(DeviceCode::Bitcode { sm: 90 }.beside(&host).unwrap(), hopper);
        assert_eq!(DeviceCode::Bitcode { sm: 80 }.beside(&host).unwrap(), all);
        #[cfg(unix)]
        {
            let linked = link.join("libnvshmem_host.so.3");
            std::os::unix::fs::symlink(&host, &linked).unwrap();
            assert_eq!(DeviceCode::Bitcode { sm: 90 }.beside(&linked).unwrap(), hopper);
            assert_eq!(DeviceCode::Archive.beside(&linked).unwrap_err().tried.len(), 2);
        }
    }
}
