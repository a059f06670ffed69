//! The project's own tasks.
//!
//! * `cargo xtask build-kernels [--check] [--toolkit DIR]`: compiles `kernels/` to PTX with NVRTC and checks the PTX with
//!   ptxas; `--check` compares with what is committed instead of writing it.
//! * `cargo xtask gen-bindings [--check]`: makes the bindings of `nccl-sys` and `nvshmem-sys` from NVIDIA's headers; `--check`
//!   compares likewise.
//! * `cargo xtask bundle`: puts the `flux` binary and the GPU tests into `bundle/`, for machines without a toolchain.
#![allow(clippy::print_stdout)] // a command's output

mod build_kernels;
mod bundle;
mod function_table;
mod gen_bindings;
mod manifest;
mod nvrtc;
mod ptxas;
mod toolkit;
mod wheels;

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

const USAGE: &str = "usage: cargo xtask build-kernels [--check] [--toolkit DIR]\n       cargo xtask gen-bindings [--check]\n       cargo xtask bundle";

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("build-kernels") => {
            let (mut check, mut toolkit) = (false, std::env::var_os("FLUX_CUDA_TOOLKIT").map(PathBuf::from));
            while let Some(argument) = arguments.next() {
                match argument.as_str() {
                    "--check" => check = true,
                    "--toolkit" => {
                        toolkit = Some(arguments.next().context("--toolkit needs a folder")?.into());
                    }
                    other => bail!("unknown argument {other}\n{USAGE}"),
                }
            }
            build_kernels::run(check, toolkit.as_deref())
        }
        Some("gen-bindings") => match (arguments.next().as_deref(), arguments.next()) {
            (None, _) => gen_bindings::run(false),
            (Some("--check"), None) => gen_bindings::run(true),
            _ => bail!("{USAGE}"),
        },
        Some("bundle") => bundle::run(),
        _ => bail!("{USAGE}"),
    }
}

/// The workspace's root folder.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}
