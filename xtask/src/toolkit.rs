//! Where NVRTC and ptxas come from: a CUDA toolkit that the user names, or the two wheels in a private environment.

use crate::root;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// CUDA 12.4 emits PTX 8.4, which every driver from 550 on can load.
const WHEELS: [&str; 2] = ["nvidia-cuda-nvrtc-cu12==12.4.127", "nvidia-cuda-nvcc-cu12==12.4.131"];

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
                    install(&venv)?;
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

/// The first file below `folder` whose name begins with `prefix`.
fn search(folder: &Path, prefix: &str, depth: usize) -> Option<PathBuf> {
    let mut entries: Vec<_> =
        std::fs::read_dir(folder).ok()?.filter_map(Result::ok).map(|e| e.path()).collect();
    entries.sort();
    let named =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
    if let Some(file) = entries.iter().find(|path| path.is_file() && named(path)) {
        return Some(file.clone());
    }
    let folders = entries.iter().filter(|path| depth > 0 && path.is_dir() && !path.is_symlink());
    folders.into_iter().find_map(|folder| search(folder, prefix, depth - 1))
}

fn install(venv: &Path) -> Result<()> {
    println!("installing NVRTC and ptxas 12.4 into {}", venv.display());
    let run = |program: &Path, arguments: &[&str], hint: &str| {
        let status = Command::new(program).args(arguments).status();
        let status = status.with_context(|| format!("{} did not start; {hint}", program.display()))?;
        ensure!(status.success(), "{} {} failed; {hint}", program.display(), arguments.join(" "));
        Ok(())
    };
    let Some(place) = venv.to_str() else { bail!("the path {} is not UTF-8", venv.display()) };
    let hint = "install Python 3 with venv and pip, or name a CUDA 12.4 toolkit with --toolkit DIR";
    run(Path::new("python3"), &["-m", "venv", place], hint)?;
    let mut arguments = vec!["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    arguments.extend(WHEELS);
    run(&venv.join("bin/python"), &arguments, hint)
}
