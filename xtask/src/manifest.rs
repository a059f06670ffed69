//! What is built (`kernels/variants.toml`) and what was built (`manifest.toml`).

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `kernels/variants.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Variants {
    pub(crate) family: Vec<Family>,
}

/// Variants of one source.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Family {
    pub(crate) source: String,
    #[serde(default = "oldest_target")]
    pub(crate) target: String,
    pub(crate) tile_m: u32,
    pub(crate) tile_n: u32,
    /// Columns of the pieces in which finished tiles leave; 0 where they leave whole.
    #[serde(default)]
    pub(crate) piece_n: u32,
    pub(crate) threads: u32,
    pub(crate) dynamic_smem_bytes: u32,
    /// Whether it calls functions that are linked where it is loaded.
    #[serde(default)]
    pub(crate) relocatable: bool,
    pub(crate) defines: BTreeMap<String, String>,
    pub(crate) variants: Vec<Variant>,
}

fn oldest_target() -> String {
    "compute_80".into()
}

/// One PTX file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Variant {
    pub(crate) name: String,
    pub(crate) defines: BTreeMap<String, String>,
}

/// `crates/flux-launch/prebuilt/manifest.toml`.
#[derive(Deserialize, Serialize)]
pub(crate) struct Manifest {
    pub(crate) nvrtc: String,
    pub(crate) kernel: Vec<Kernel>,
}

/// One kernel as it was built.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) entry: String,
    pub(crate) target: String,
    pub(crate) tile_m: u32,
    pub(crate) tile_n: u32,
    pub(crate) piece_n: u32,
    pub(crate) threads: u32,
    pub(crate) dynamic_smem_bytes: u32,
    pub(crate) static_smem_bytes: u32,
    pub(crate) param_bytes: u32,
    pub(crate) spill_bytes: u32,
    pub(crate) ptx_version: String,
    /// SHA-256 of the source, the headers and the options.
    pub(crate) source_sha256: String,
    /// By architecture.
    pub(crate) registers: BTreeMap<String, u32>,
}

/// The version that a PTX file declares.
pub(crate) fn ptx_version(ptx: &str) -> Result<&str> {
    let line = ptx.lines().find_map(|line| line.strip_prefix(".version "));
    line.map(str::trim).context("the PTX declares no version")
}

/// Whether a PTX version is at most 8.4, the newest that driver 550 loads.
pub(crate) fn loads_on_driver_550(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(u32::MAX));
    (parts.next().unwrap_or(u32::MAX), parts.next().unwrap_or(0)) <= (8, 4)
}

/// The size of the entry's only parameter.
pub(crate) fn param_bytes(ptx: &str, entry: &str) -> Result<u32> {
    let start =
        ptx.find(&format!(".entry {entry}(")).with_context(|| format!("no entry {entry} in the PTX"))?;
    let list = &ptx[start..start + ptx[start..].find(')').context("an unclosed parameter list")?];
    let size = list.rsplit_once('[').and_then(|(_, rest)| rest.split(']').next()?.parse().ok());
    size.with_context(|| format!("the entry {entry} has no by-value parameter: {list}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = "//\n.version 8.4\n.target sm_80\n\n.visible .entry flux_k(\n\t.param .align 8 .b8 flux_k_param_0[136]\n)\n{ }";

    #[test]
    fn version_and_parameter_are_read() {
        assert_eq!(ptx_version(PTX).unwrap(), "8.4");
        assert_eq!(param_bytes(PTX, "flux_k").unwrap(), 136);
        assert!(param_bytes(PTX, "other").is_err());
        assert!(ptx_version("").is_err());
    }

    #[test]
    fn newer_versions_than_8_4_are_refused() {
        for (version, loads) in [("8.4", true), ("7.8", true), ("8.5", false), ("9.0", false), ("x", false)] {
            assert_eq!(loads_on_driver_550(version), loads, "{version}");
        }
    }
}
