//! `build-kernels`: from CUDA C++ to the PTX and manifest that `flux-launch` embeds.

use crate::manifest::{
    Family, Kernel, Manifest, Variant, Variants, loads_on_driver_550, param_bytes, ptx_version,
};
use crate::nvrtc::Nvrtc;
use crate::toolkit::Toolkit;
use crate::{ptxas, root};
use anyhow::{Context, Result, bail, ensure};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// What ptxas checks a family's PTX for: the GPUs that can load it.
fn architectures(target: &str) -> Result<&'static [&'static str]> {
    match target {
        "compute_80" => Ok(&["sm_80", "sm_89", "sm_90"]),
        "compute_90a" => Ok(&["sm_90a"]),
        other => bail!("no architectures are known to load PTX for {other}"),
    }
}

pub(crate) fn run(check: bool, toolkit: Option<&Path>) -> Result<()> {
    let toolkit = Toolkit::find(toolkit)?;
    let nvrtc = Nvrtc::load(&toolkit)?;
    let sources = root().join("kernels");
    let variants: Variants = toml::from_str(&read(&sources.join("variants.toml"))?)?;
    let headers = headers(&sources)?;
    let scratch = root().join("target/kernels");
    std::fs::create_dir_all(&scratch)?;
    let jobs: Vec<_> =
        variants.family.iter().flat_map(|family| family.variants.iter().map(move |v| (family, v))).collect();
    let mut built: Vec<(Kernel, String)> = jobs
        .par_iter()
        .map(|(family, variant)| build(family, variant, &sources, &headers, &nvrtc, &toolkit, &scratch))
        .collect::<Result<_>>()?;
    built.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    print_table(&built);

    let manifest = Manifest {
        nvrtc: nvrtc.version()?,
        kernel: built.iter().map(|(kernel, _)| kernel.clone()).collect(),
    };
    let mut files: BTreeMap<String, String> =
        built.into_iter().map(|(kernel, ptx)| (format!("{}.ptx", kernel.name), ptx)).collect();
    let header = "# Written by `cargo xtask build-kernels`.\n";
    files.insert("manifest.toml".into(), format!("{header}{}", toml::to_string(&manifest)?));
    let target = root().join("crates/flux-launch/prebuilt");
    if check { compare(&files, &target) } else { write(&files, &target) }
}

fn build(
    family: &Family,
    variant: &Variant,
    sources: &Path,
    headers: &[(String, String)],
    nvrtc: &Nvrtc,
    toolkit: &Toolkit,
    scratch: &Path,
) -> Result<(Kernel, String)> {
    let name = &variant.name;
    let entry = format!("flux_{name}");
    let source = read(&sources.join(&family.source))?;
    let mut defines = family.defines.clone();
    defines.extend(variant.defines.clone());
    defines.insert("TILE_M".into(), family.tile_m.to_string());
    defines.insert("TILE_N".into(), family.tile_n.to_string());
    defines.insert("SHARED_BYTES".into(), family.dynamic_smem_bytes.to_string());
    defines.insert("ENTRY".into(), entry.clone());
    if family.piece_n > 0 {
        defines.insert("PIECE_N".into(), family.piece_n.to_string());
    }
    let mut options = vec![format!("--gpu-architecture={}", family.target), "--std=c++17".into()];
    if family.relocatable {
        options.push("--relocatable-device-code=true".into());
    }
    options.extend(defines.iter().map(|(key, value)| format!("-D{key}={value}")));
    let ptx = nvrtc.compile(&family.source, &source, headers, &options)?;

    let version = ptx_version(&ptx)?.to_owned();
    ensure!(
        loads_on_driver_550(&version),
        "{name}: PTX {version} needs a newer driver than 550; use CUDA 12.4"
    );
    let file = scratch.join(format!("{name}.ptx"));
    std::fs::write(&file, &ptx)?;
    let mut registers = BTreeMap::new();
    let mut static_smem_bytes = 0;
    for &arch in architectures(&family.target)? {
        let report = ptxas::assemble(&toolkit.ptxas, &file, arch, family.relocatable)
            .with_context(|| format!("{name} for {arch}"))?;
        ensure!(report.spill_bytes == 0, "{name} spills {} bytes on {arch}", report.spill_bytes);
        registers.insert(arch.to_owned(), report.registers);
        static_smem_bytes = static_smem_bytes.max(report.static_smem_bytes);
    }
    let mut hash = Sha256::new();
    let texts =
        [&source].into_iter().chain(headers.iter().flat_map(|(name, text)| [name, text])).chain(&options);
    texts.for_each(|text| hash.update(format!("{}\n{text}", text.len())));
    let kernel = Kernel {
        name: name.clone(),
        param_bytes: param_bytes(&ptx, &entry)?,
        entry,
        target: family.target.clone(),
        tile_m: family.tile_m,
        tile_n: family.tile_n,
        piece_n: family.piece_n,
        threads: family.threads,
        dynamic_smem_bytes: family.dynamic_smem_bytes,
        static_smem_bytes,
        spill_bytes: 0,
        ptx_version: version,
        source_sha256: hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
        registers,
    };
    Ok((kernel, ptx))
}

/// Every header, in the order of its name.
fn headers(folder: &Path) -> Result<Vec<(String, String)>> {
    let mut headers = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "cuh") {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            headers.push((name, read(&path)?));
        }
    }
    headers.sort();
    Ok(headers)
}

fn write(files: &BTreeMap<String, String>, target: &Path) -> Result<()> {
    std::fs::create_dir_all(target)?;
    for stale in existing(target)?.into_iter().filter(|name| !files.contains_key(name)) {
        std::fs::remove_file(target.join(stale))?;
    }
    for (name, text) in files {
        std::fs::write(target.join(name), text)?;
    }
    println!("wrote {} files", files.len());
    Ok(())
}

fn compare(files: &BTreeMap<String, String>, target: &Path) -> Result<()> {
    let differs = |(name, text): (&String, &String)| {
        (std::fs::read_to_string(target.join(name)).ok().as_ref() != Some(text)).then(|| name.clone())
    };
    let mut drift: Vec<_> = files.iter().filter_map(differs).collect();
    drift.extend(existing(target)?.into_iter().filter(|name| !files.contains_key(name)));
    if !drift.is_empty() {
        bail!(
            "what is committed differs from what the sources build: {}; run `cargo xtask build-kernels` and commit",
            drift.join(", ")
        );
    }
    println!("{} files are as committed", files.len());
    Ok(())
}

fn existing(target: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(target).with_context(|| format!("reading {}", target.display()))?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

fn print_table(built: &[(Kernel, String)]) {
    println!("{:<32} {:>7} {:>6} {:>8}  registers", "kernel", "smem", "param", "PTX");
    for (kernel, ptx) in built {
        let registers: Vec<_> =
            kernel.registers.iter().map(|(arch, count)| format!("{arch} {count}")).collect();
        println!(
            "{:<32} {:>7} {:>6} {:>8}  {}",
            kernel.name,
            kernel.dynamic_smem_bytes + kernel.static_smem_bytes,
            kernel.param_bytes,
            ptx.len(),
            registers.join(", ")
        );
    }
    let bytes: usize = built.iter().map(|(_, ptx)| ptx.len()).sum();
    println!("{} kernels, {bytes} bytes of PTX", built.len());
}
