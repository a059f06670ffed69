//! Where NVRTC and ptxas come from: a CUDA toolkit that the user names, or the two wheels in a private environment.

use crate::root;
use crate::wheels::{install, search};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// CUDA 12.4 emits PTX 8.4, which every driver from 550 on can load.
const WHEELS: [&str; 2] = ["nvidia-cuda-nvrtc-cu12==12.4.127", "nvidia-cuda-nvcc-cu12==12.4.131"];
const HINT: &str = "install Python 3 with venv and pip, or name a CUDA 12.4 toolkit with --toolkit DIR";

/// The two tools.
pub(crate) struct Toolkit {
    /// `libnvrtc.so.12`.
    pub(crate) nvrtc: PathBuf,
    /// NVRTC opens this one by its bare name, so it is loaded first.
    pub(crate) builtins: PathBuf,
    /// The assembler.
    pub(crate) ptxas: PathBuf,
}

impl Toolkit {
    /// Looks in `folder`, or makes the private environment under `target/` (once; about 120 MB).
    pub(crate) fn find(folder: Option<&Path>) -> Result<Self> {
        let venv = root().join("target/cuda-12.4");
        let roots = match folder {
            Some(folder) => vec![folder.to_path_buf()],
            None => {
                if Self::look_in(&venv).is_err() {
                    install(&venv, &WHEELS, HINT)?;
                }
                vec![venv]
            }
        };
        Self::look_in(&roots[0])
    }

    fn look_in(folder: &Path) -> Result<Self> {
        let find = |prefix: &str| {
            search(folder, prefix, 8).with_context(|| format!("no {prefix}* under {}", folder.display()))
        };
        Ok(Self {
            nvrtc: find("libnvrtc.so")?,
            builtins: find("libnvrtc-builtins.so.")?,
            ptxas: find("ptxas")?,
        })
    }
}
