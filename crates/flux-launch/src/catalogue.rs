//! The compiled kernels that are embedded: PTX and its manifest, as `cargo xtask build-kernels` wrote them.

use crate::{DType, Error, Policy, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::OnceLock;

const MANIFEST: &str = include_str!("../prebuilt/manifest.toml");

/// Every kernel's PTX by name, compressed by `build.rs`. A test compares the names with the manifest's.
const PTX: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// The manifest of the embedded kernels: another one is of other kernels.
pub const fn manifest() -> &'static str {
    MANIFEST
}

/// Size in bytes of all kernels' PTX in a program that uses this crate.
pub fn embedded_bytes() -> usize {
    PTX.iter().map(|(_, compressed)| compressed.len()).sum()
}

/// One compiled kernel, as the manifest describes it.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct KernelInfo {
    /// Name of the variant.
    pub name: String,
    /// Name of the entry point in the PTX.
    pub entry: String,
    /// Rows of a tile.
    pub tile_m: u32,
    /// Columns of a tile.
    pub tile_n: u32,
    /// What the PTX is written for, such as "compute_80".
    pub target: String,
    /// Columns of the pieces in which finished tiles leave; 0 where they leave whole.
    pub piece_n: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Shared memory that a launch asks for, in bytes.
    pub dynamic_smem_bytes: u32,
    /// Size of the parameter, in bytes.
    pub param_bytes: u32,
    /// Bytes of registers that ptxas had to spill, on any architecture.
    pub spill_bytes: u32,
    /// PTX version, such as "8.4".
    pub ptx_version: String,
}

impl KernelInfo {
    /// The kernel's PTX.
    pub fn ptx(&self) -> Option<String> {
        let (_, compressed) = PTX.iter().find(|(name, _)| *name == self.name)?;
        String::from_utf8(lz4_flex::decompress_size_prepended(compressed).ok()?).ok()
    }
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(rename = "kernel")]
    kernels: Vec<KernelInfo>,
}

/// All embedded kernels by name.
pub fn catalogue() -> Result<&'static BTreeMap<String, KernelInfo>> {
    static CATALOGUE: OnceLock<Result<BTreeMap<String, KernelInfo>>> = OnceLock::new();
    let catalogue = CATALOGUE.get_or_init(|| {
        let manifest: Manifest =
            toml::from_str(MANIFEST).map_err(|error| Error::NoKernel { name: error.to_string() })?;
        Ok(manifest.kernels.into_iter().map(|kernel| (kernel.name.clone(), kernel)).collect())
    });
    catalogue.as_ref().map_err(Clone::clone)
}

/// Hopper's GEMM kernels for `dtype`.
pub(crate) fn hopper_kernels(dtype: DType) -> Result<impl Iterator<Item = &'static KernelInfo>> {
    let prefix = format!("gemm_hopper_{dtype}_");
    Ok(catalogue()?.values().filter(move |kernel| kernel.name.starts_with(&prefix)))
}

/// How A and B are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Load {
    /// 16 bytes at a time: pitches and addresses must be multiples of 16 bytes.
    Vector,
    /// One element at a time, for everything else.
    Scalar,
}

impl Load {
    const fn name(self) -> &'static str {
        match self {
            Load::Vector => "vector",
            Load::Scalar => "scalar",
        }
    }
}

/// One of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KernelId {
    Gemm(DType, Policy, Load),
    /// Hopper's, with tiles of so many rows and columns.
    Hopper(DType, u32, u32),
    /// As [`KernelId::Gemm`] for a ReduceScatter, which also puts.
    PutGemm(DType, Load),
    Sum(DType),
    Push,
    /// The same on Hopper.
    PushHopper,
    /// As [`KernelId::Gemm`], with a trace.
    TracedGemm(DType, Policy, Load),
    /// As [`KernelId::Hopper`], with a trace.
    TracedHopper(DType, u32, u32),
    Clock,
}

impl KernelId {
    /// What the manifest says of it.
    pub(crate) fn info(self) -> Result<&'static KernelInfo> {
        let name = self.name();
        catalogue()?.get(&name).ok_or(Error::NoKernel { name })
    }

    fn name(self) -> String {
        match self {
            // Without gates, the AllGather's kernel is the plain one.
            KernelId::Gemm(DType::E4m3, Policy::Plain, load) => {
                KernelId::Gemm(DType::E4m3, Policy::AllGather, load).name()
            }
            KernelId::Gemm(dtype, policy, load) => format!("gemm_{dtype}_{}_{}", policy.name(), load.name()),
            KernelId::PutGemm(dtype, load) => format!("gemm_put_{dtype}_{}", load.name()),
            KernelId::Hopper(dtype, rows, columns) => format!("gemm_hopper_{dtype}_{rows}x{columns}"),
            KernelId::Sum(dtype) => format!("sum_{dtype}"),
            KernelId::TracedGemm(dtype, policy, load) => {
                format!("gemm_trace_{dtype}_{}_{}", policy.name(), load.name())
            }
            KernelId::TracedHopper(dtype, rows, columns) => {
                format!("gemm_hopper_trace_{dtype}_{rows}x{columns}")
            }
            KernelId::Push => "push".into(),
            KernelId::PushHopper => "push_hopper".into(),
            KernelId::Clock => "clock".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ClockParams;
    use crate::hopper::HopperParams;
    use crate::params::{PutGemmParams, ScaledGemmParams};
    use crate::trace::{TracedGemmParams, TracedHopperParams};
    use crate::{GemmParams, PushParams, SumParams};

    const POLICIES: [Policy; 3] = [Policy::Plain, Policy::AllGather, Policy::ReduceScatter];

    #[test]
    fn the_manifest_describes_exactly_the_embedded_kernels() {
        let names: Vec<_> = catalogue().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names, PTX.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        for kernel in catalogue().unwrap().values() {
            let ptx = kernel.ptx().unwrap();
            assert!(ptx.contains(&format!(".entry {}(", kernel.entry)), "{}", kernel.name);
            assert!(ptx.contains(&format!(".version {}", kernel.ptx_version)), "{}", kernel.name);
            assert_eq!(kernel.spill_bytes, 0, "{}", kernel.name);
            // A tile of 16-bit results begins in each panel of columns that travels by itself.
            let fits = 2 * kernel.tile_n as usize <= flux_swizzle::Panels::GRAIN_BYTES;
            assert!(fits || !kernel.name.starts_with("gemm"), "{}", kernel.name);
        }
    }

    #[test]
    fn every_launch_has_its_kernel() {
        KernelId::Push.info().unwrap();
        for (dtype, load) in
            [DType::Bf16, DType::F16].into_iter().flat_map(|d| [(d, Load::Vector), (d, Load::Scalar)])
        {
            let put = KernelId::PutGemm(dtype, load).info().unwrap();
            let portable = KernelId::Gemm(dtype, Policy::ReduceScatter, load).info().unwrap();
            let cut = |kernel: &KernelInfo| {
                (kernel.tile_m, kernel.tile_n, kernel.threads, kernel.dynamic_smem_bytes)
            };
            assert_eq!(cut(put), cut(portable));
        }
        for dtype in [DType::Bf16, DType::F16, DType::E4m3] {
            KernelId::Sum(dtype.result()).info().unwrap();
            for (policy, load) in POLICIES.into_iter().flat_map(|p| [(p, Load::Vector), (p, Load::Scalar)]) {
                let gemm = KernelId::Gemm(dtype, policy, load).info().unwrap();
                assert_eq!((gemm.tile_m, gemm.tile_n), (128, 128), "{}", gemm.name);
            }
            let hopper: Vec<_> = hopper_kernels(dtype).unwrap().collect();
            assert!(hopper.len() > 4);
            for kernel in hopper {
                let named = KernelId::Hopper(dtype, kernel.tile_m, kernel.tile_n).info().unwrap();
                assert_eq!(named.name, kernel.name);
                assert!(crate::hopper::PIECE_COLUMNS.contains(&kernel.piece_n), "{}", kernel.name);
            }
        }
    }

    #[test]
    fn traced_kernels_are_cut_as_the_ordinary_ones() {
        let (dtype, cut) = (DType::Bf16, |kernel: &'static KernelInfo| {
            let KernelInfo { tile_m, tile_n, piece_n, threads, dynamic_smem_bytes, target, .. } = kernel;
            (tile_m, tile_n, piece_n, threads, dynamic_smem_bytes, target)
        });
        let hopper = hopper_kernels(dtype).unwrap().map(|kernel| (kernel.tile_m, kernel.tile_n));
        let portable =
            POLICIES.into_iter().flat_map(|policy| [(policy, Load::Vector), (policy, Load::Scalar)]);
        let pairs = hopper
            .map(|(rows, columns)| {
                (KernelId::Hopper(dtype, rows, columns), KernelId::TracedHopper(dtype, rows, columns))
            })
            .chain(portable.map(|(policy, load)| {
                (KernelId::Gemm(dtype, policy, load), KernelId::TracedGemm(dtype, policy, load))
            }));
        for (ordinary, traced) in pairs {
            assert_eq!(cut(ordinary.info().unwrap()), cut(traced.info().unwrap()), "{traced:?}");
        }
        KernelId::Clock.info().unwrap();
    }

    #[test]
    fn parameters_are_as_large_as_the_kernels_expect() {
        for kernel in catalogue().unwrap().values() {
            let traced = kernel.name.contains("_trace_");
            let expected = match kernel.name.split('_').next() {
                Some("gemm") if traced && kernel.target == "compute_90a" => size_of::<TracedHopperParams>(),
                Some("gemm") if traced => size_of::<TracedGemmParams>(),
                Some("gemm") if kernel.name.contains("_put_") => size_of::<PutGemmParams>(),
                Some("clock") => size_of::<ClockParams>(),
                Some("gemm") if kernel.target == "compute_90a" => size_of::<HopperParams>(),
                Some("gemm") if kernel.name.contains("_e4m3_") => size_of::<ScaledGemmParams>(),
                Some("gemm") => size_of::<GemmParams>(),
                Some("push") => size_of::<PushParams>(),
                Some("sum") => size_of::<SumParams>(),
                _ => panic!("{} has no parameters", kernel.name),
            };
            assert_eq!(kernel.param_bytes as usize, expected, "{}", kernel.name);
        }
    }
}
