//! Other projects depend on the crates one by one, with no CUDA installed and outside of this workspace.

use std::path::Path;
use std::process::Command;

fn check_builds(dependency: &str, main: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    // Outside of the workspace, whose settings must not be needed.
    let folder = std::env::temp_dir().join(format!("flux-standalone-{dependency}-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("src")).unwrap();
    let path = root.join("crates").join(dependency);
    let manifest = format!(
        "[package]\nname = \"standalone\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\n\
         {dependency} = {{ path = {path:?} }}\n"
    );
    std::fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    std::fs::write(folder.join("src/main.rs"), main).unwrap();
    // The versions that are known to be there.
    std::fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let built = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--target-dir"])
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("standalone"))
        .current_dir(&folder)
        .env_remove("CUDARC_CUDA_VERSION")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .output()
        .unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{dependency}: {errors}");
}

#[test]
fn flux_swizzle_alone() {
    check_builds(
        "flux-swizzle",
        "fn main() { assert_eq!(flux_swizzle::Shards::new(5, 2).unwrap().rows(0), 3); }",
    );
}

#[test]
fn flux_topology_alone() {
    check_builds(
        "flux-topology",
        "fn main() { assert!(flux_topology::Topology::preset(\"h200-8-nvswitch\").is_ok()); }",
    );
}

#[test]
fn flux_alone() {
    check_builds("flux", "fn main() { assert_eq!(flux::Group::local(2).unwrap().world_size(), 2); }");
}
