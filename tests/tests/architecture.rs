//! The invariants of ARCHITECTURE.md that a machine can check.

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const LIBRARIES: [&str; 10] = [
    "flux",
    "flux-dylib",
    "flux-launch",
    "flux-memory",
    "flux-sim",
    "flux-swizzle",
    "flux-topology",
    "flux-transport",
    "nccl-sys",
    "nvshmem-sys",
];

/// The one file of the libraries that reads the environment: which library to load, and where Python's packages are.
const READS_THE_ENVIRONMENT: &str = "flux-dylib/src/environment.rs";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn metadata() -> Metadata {
    MetadataCommand::new().manifest_path(root().join("Cargo.toml")).exec().unwrap()
}

fn package<'m>(metadata: &'m Metadata, name: &str) -> &'m Package {
    metadata.workspace_packages().into_iter().find(|package| package.name.as_str() == name).unwrap()
}

/// Names of what `package` depends on, other than for its tests.
fn dependencies(package: &Package) -> BTreeSet<String> {
    let normal = package.dependencies.iter().filter(|dependency| dependency.kind == DependencyKind::Normal);
    normal.map(|dependency| dependency.name.clone()).collect()
}

fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            files.push((path, text));
        }
    }
    files
}

#[test]
fn crates_depend_on_each_other_as_documented() {
    let documented: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("flux-swizzle", &[][..]),
        ("flux-topology", &[]),
        ("flux-memory", &[]),
        ("flux-sim", &["flux-swizzle"]),
        ("flux-dylib", &[]),
        ("nccl-sys", &["flux-dylib"]),
        ("nvshmem-sys", &["flux-dylib"]),
        ("flux-transport", &["flux-memory", "flux-swizzle", "nccl-sys", "nvshmem-sys"]),
        ("flux-launch", &["flux-memory", "flux-swizzle"]),
        (
            "flux",
            &["flux-launch", "flux-memory", "flux-sim", "flux-swizzle", "flux-topology", "flux-transport"],
        ),
        ("flux-cli", &["flux", "flux-sim", "flux-topology"]),
        ("flux-tests", &["flux", "flux-launch", "flux-memory", "flux-sim", "flux-swizzle", "flux-topology"]),
        ("xtask", &[]),
    ]);
    let metadata = metadata();
    let members: BTreeSet<_> =
        metadata.workspace_packages().iter().map(|package| package.name.to_string()).collect();
    assert_eq!(
        members,
        documented.keys().map(ToString::to_string).collect(),
        "crates that ARCHITECTURE.md names"
    );
    for (name, expected) in documented {
        let ours: BTreeSet<_> =
            dependencies(package(&metadata, name)).intersection(&members).cloned().collect();
        assert_eq!(ours, expected.iter().map(ToString::to_string).collect(), "{name}");
    }
}

#[test]
fn the_swizzle_is_pure_and_the_topology_sees_no_cuda() {
    let metadata = metadata();
    assert!(dependencies(package(&metadata, "flux-swizzle")).is_empty());
    let lib = std::fs::read_to_string(root().join("crates/flux-swizzle/src/lib.rs")).unwrap();
    assert!(lib.contains("#![no_std]") && lib.contains("#![forbid(unsafe_code)]"));
    assert!(!dependencies(package(&metadata, "flux-topology")).contains("cudarc"));
}

#[test]
fn no_library_decides_which_cuda_its_user_has() {
    let metadata = metadata();
    for name in LIBRARIES {
        let cudarc =
            package(&metadata, name).dependencies.iter().find(|dependency| dependency.name == "cudarc");
        let Some(cudarc) = cudarc else { continue };
        assert!(!cudarc.uses_default_features, "{name}");
        for feature in &cudarc.features {
            let decides = feature.starts_with("cuda-") && feature != "cuda-version-from-build-system"
                || ["dynamic-loading", "dynamic-linking", "static-linking"].contains(&feature.as_str());
            assert!(!decides, "{name} selects cudarc's feature {feature}");
        }
    }
}

#[test]
fn no_library_reads_the_environment() {
    for name in LIBRARIES {
        let files = sources(&root().join("crates").join(name).join("src")).into_iter();
        // Who calls `Group::from_env` asks for it.
        for (path, text) in files.filter(|(path, _)| !path.ends_with("flux/src/from_env.rs")) {
            let reads =
                text.contains("env::var") || text.contains("env::args") || text.contains("option_env!");
            let may = path.ends_with(READS_THE_ENVIRONMENT);
            assert_eq!(reads, may, "{} reads the environment, or no longer does", path.display());
        }
    }
}

#[test]
fn the_bindings_build_without_what_they_bind() {
    let metadata = metadata();
    for name in ["nccl-sys", "nvshmem-sys"] {
        let package = package(&metadata, name);
        assert!(package.links.is_none(), "{name}");
        let has_build_script = package.targets.iter().any(|target| target.is_custom_build());
        assert!(!has_build_script, "{name}");
        for (path, text) in sources(&root().join("crates").join(name).join("src")) {
            assert!(!text.contains("#[link"), "{} links", path.display());
        }
    }
    for package in metadata.workspace_packages() {
        let has_bindgen = package.dependencies.iter().any(|dependency| dependency.name == "bindgen");
        assert_eq!(has_bindgen, package.name.as_str() == "xtask", "{}", package.name);
    }
}

#[test]
fn every_crate_has_a_readme_and_a_description() {
    let metadata = metadata();
    for package in metadata.workspace_packages() {
        assert!(package.description.is_some(), "{}", package.name);
        let folder = package.manifest_path.parent().unwrap();
        if folder.as_str().contains("/crates/") {
            let readme = std::fs::read_to_string(folder.join("README.md")).unwrap();
            assert!(readme.starts_with(&format!("# {}\n", package.name)), "{}", package.name);
            let is_library = LIBRARIES.contains(&package.name.as_str());
            assert!(!is_library || readme.contains("```rust"), "{} shows no example", package.name);
        }
    }
}
