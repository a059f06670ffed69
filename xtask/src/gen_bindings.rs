//! `gen-bindings`: from NVIDIA's headers to what `nccl-sys` and `nvshmem-sys` commit.
//!
//! Headers and libclang come from pinned wheels, everything the headers include from `xtask/headers`, and the formatter is a
//! crate: so every machine makes the same text.

use crate::function_table::function_table;
use crate::root;
use crate::wheels::{install, search};
use anyhow::{Context, Result, bail, ensure};
use bindgen::{EnumVariation, Formatter};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

const NCCL: &str = "nvidia-nccl-cu13==2.30.7";
const NVSHMEM: &str = "nvidia-nvshmem-cu13==3.4.5";
const CLANG: &str = "libclang==18.1.1";
const HINT: &str = "install Python 3 with venv and pip; the wheels are downloaded once, about 300 MB";

/// One library's bindings.
struct Bindings {
    crate_name: &'static str,
    wheel: &'static str,
    header: &'static str,
    /// What the header says of its licence.
    licence: &'static str,
    language: &'static [&'static str],
    functions: &'static str,
    types: &'static str,
    constants: &'static str,
    /// What every version that the crate accepts has; all else is optional.
    required: &'static [&'static str],
}

const ALL: [Bindings; 2] = [
    Bindings {
        crate_name: "nccl-sys",
        wheel: NCCL,
        header: "nccl.h",
        licence: "Copyright NVIDIA CORPORATION & AFFILIATES, SPDX-License-Identifier: Apache-2.0",
        language: &["-x", "c", "-std=c11"],
        functions: "nccl[A-Z].*",
        types: "nccl[A-Z].*",
        constants: "NCCL_(MAJOR|MINOR|PATCH|VERSION_CODE|UNIQUE_ID_BYTES|API_MAGIC|SPLIT_NOCOLOR|CONFIG_UNDEF_INT\
                    |WIN_.*|CTA_POLICY_.*|SHRINK_.*|REVOKE_.*)",
        required: &[
            "ncclAllGather",
            "ncclAllReduce",
            "ncclBroadcast",
            "ncclCommAbort",
            "ncclCommCount",
            "ncclCommCuDevice",
            "ncclCommDeregister",
            "ncclCommDestroy",
            "ncclCommFinalize",
            "ncclCommGetAsyncError",
            "ncclCommInitAll",
            "ncclCommInitRank",
            "ncclCommInitRankConfig",
            "ncclCommRegister",
            "ncclCommSplit",
            "ncclCommUserRank",
            "ncclGetErrorString",
            "ncclGetLastError",
            "ncclGetUniqueId",
            "ncclGetVersion",
            "ncclGroupEnd",
            "ncclGroupStart",
            "ncclMemAlloc",
            "ncclMemFree",
            "ncclRecv",
            "ncclReduce",
            "ncclReduceScatter",
            "ncclSend",
        ],
    },
    Bindings {
        crate_name: "nvshmem-sys",
        wheel: NVSHMEM,
        header: "nvshmem_host.h",
        licence: "Copyright NVIDIA CORPORATION, under the licence of the NVSHMEM package",
        language: &["-x", "c++", "-std=c++17"],
        functions: "nvshmem_(my_pe|n_pes|info_get_version|info_get_name|malloc|calloc|align|free|ptr|barrier_all|quiet\
                    |fence|sync_all|team_(my_pe|n_pes|split_strided|translate_pe|destroy|sync)|putmem|getmem)\
                    |nvshmemx_(hostlib_init_attr|hostlib_finalize|init_status|get_uniqueid|set_attr_uniqueid_args\
                    |set_attr_mpi_comm_args|vendor_get_version_info|cumodule_init|cumodule_finalize|culibrary_init\
                    |culibrary_finalize|putmem(_signal)?(_nbi)?_on_stream|getmem(_nbi)?_on_stream\
                    |signal_op_on_stream|signal_wait_until_on_stream|barrier_all_on_stream|sync_all_on_stream\
                    |team_sync_on_stream|quiet_on_stream|buffer_(un)?register(_symmetric|_all)?|mc_ptr)",
        types: "nvshmemx_(uniqueid|uniqueid_args|init_args|init_attr)_t|nvshmemx_(init_status|signal_op|cmp_type)_t\
                |nvshmemx_status|flags|nvshmem_team_t|nvshmem_team_config_t|nvshmem_team_id_t",
        constants: "NVSHMEM_(MAJOR|MINOR|VENDOR_MAJOR|VENDOR_MINOR|VENDOR_PATCH)_VERSION|NVSHMEM_MAX_NAME_LEN",
        required: &[
            "nvshmem_align",
            "nvshmem_barrier_all",
            "nvshmem_calloc",
            "nvshmem_free",
            "nvshmem_info_get_version",
            "nvshmem_malloc",
            "nvshmem_my_pe",
            "nvshmem_n_pes",
            "nvshmem_ptr",
            "nvshmem_quiet",
            "nvshmemx_barrier_all_on_stream",
            "nvshmemx_cumodule_finalize",
            "nvshmemx_cumodule_init",
            "nvshmemx_get_uniqueid",
            "nvshmemx_hostlib_finalize",
            "nvshmemx_hostlib_init_attr",
            "nvshmemx_init_status",
            "nvshmemx_putmem_on_stream",
            "nvshmemx_putmem_signal_on_stream",
            "nvshmemx_quiet_on_stream",
            "nvshmemx_set_attr_uniqueid_args",
            "nvshmemx_signal_op_on_stream",
            "nvshmemx_signal_wait_until_on_stream",
            "nvshmemx_vendor_get_version_info",
        ],
    },
];

pub(crate) fn run(check: bool) -> Result<()> {
    // A folder for each set of pins: an old environment never stands in for a new one.
    let pins = Sha256::digest([NCCL, NVSHMEM, CLANG].join("\n"));
    let venv = root().join(format!("target/headers-{:02x}{:02x}{:02x}", pins[0], pins[1], pins[2]));
    let names = ["libclang.so", ALL[0].header, ALL[1].header];
    if names.iter().any(|name| search(&venv, name, 8).is_none()) {
        install(&venv, &[NCCL, NVSHMEM, CLANG], HINT)?;
    }
    let libclang = find(&venv, "libclang.so")?;
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("LIBCLANG_PATH", &libclang) };
    let mut drift = Vec::new();
    for bindings in &ALL {
        let text = bindings.generate(&find(&venv, bindings.header)?)?;
        let target = root().join("crates").join(bindings.crate_name).join("src/bindings.rs");
        if !check {
            std::fs::write(&target, &text).with_context(|| format!("writing {}", target.display()))?;
            println!("wrote {}", target.display());
        } else if std::fs::read_to_string(&target).ok().as_ref() != Some(&text) {
            drift.push(bindings.crate_name);
        }
    }
    if !drift.is_empty() {
        bail!(
            "what is committed differs from what the headers give: {}; run `cargo xtask gen-bindings` and commit",
            drift.join(", ")
        );
    }
    println!("{} libraries' bindings are {}", ALL.len(), if check { "as committed" } else { "written" });
    Ok(())
}

fn find(venv: &Path, name: &str) -> Result<PathBuf> {
    search(venv, name, 8).with_context(|| format!("no {name} under {}; {HINT}", venv.display()))
}

impl Bindings {
    fn generate(&self, header: &Path) -> Result<String> {
        let include = header.parent().context("a header lies in a folder")?;
        let utf8 = |path: &Path| path.to_str().map(str::to_owned).context("a path is not UTF-8");
        let raw = bindgen::Builder::default()
            .header(utf8(header)?)
            .clang_args(self.language)
            .clang_args(["--target=x86_64-unknown-linux-gnu", "-nostdinc"])
            .clang_arg(format!("-I{}", utf8(&root().join("xtask/headers"))?))
            .clang_arg(format!("-I{}", utf8(include)?))
            .allowlist_function(self.functions)
            .allowlist_type(self.types)
            .allowlist_var(self.constants)
            .use_core()
            .merge_extern_blocks(true)
            .layout_tests(true)
            // A newer library may return values that this header does not know.
            .default_enum_style(EnumVariation::NewType { is_bitfield: false, is_global: false })
            .generate_comments(false)
            .disable_header_comment()
            .formatter(Formatter::None)
            .generate()
            .with_context(|| format!("{} does not parse", header.display()))?
            .to_string();
        let file = syn::parse_file(&raw).context("bindgen's text does not parse")?;
        let functions = function_table(file, self.required).context(self.crate_name)?;
        let digest = Sha256::digest(std::fs::read(header)?);
        let sha256: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = prettyplease::unparse(&functions);
        ensure!(!text.contains(utf8(root())?.as_str()), "{}: a path got into the bindings", self.crate_name);
        Ok(format!(
            "// @generated by `cargo xtask gen-bindings`: do not edit.\n\
             // From {} of {}, SHA-256 {sha256}.\n\
             // The header: {}. Its declarations are here, its comments are not.\n\n{text}",
            self.header, self.wheel, self.licence
        ))
    }
}
