//! `bundle`: what a GPU machine without a toolchain needs, in one folder.

use crate::root;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const LIMIT_BYTES: u64 = 64 << 20;

const RUN_TESTS: &str = "#!/bin/sh
# Runs every GPU test of the bundle, one at a time; each is bounded.
cd \"$(dirname \"$0\")\" || exit 1
failed=0
for binary in ./test-*; do
    for test in $(\"$binary\" --list 2>/dev/null | sed -n 's/: test$//p'); do
        timeout 300 \"$binary\" --exact \"$test\" || { echo \"FAILED: $binary $test\"; failed=1; }
    done
done
exit $failed
";

pub(crate) fn run() -> Result<()> {
    let folder = root().join("bundle");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let flux = build(&["build", "--release", "--package", "flux-cli", "--bin", "flux"])?;
    for binary in flux {
        take(&binary, &folder.join("flux"))?;
    }
    for package in ["flux-tests", "flux-topology"] {
        let tests = build(&[
            "test",
            "--release",
            "--no-run",
            "--package",
            package,
            "--features",
            "gpu-tests",
            "--test",
            "gpu",
        ])?;
        for binary in &tests {
            let name = name_of(binary);
            let name = name.rsplit_once('-').map_or(name.as_str(), |(name, _)| name); // cargo's hash
            take(binary, &folder.join(format!("test-{package}-{name}")))?;
        }
    }
    let script = folder.join("run-tests.sh");
    std::fs::write(&script, RUN_TESTS)?;
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let mut total = 0;
    for entry in std::fs::read_dir(&folder)? {
        let entry = entry?;
        let bytes = entry.metadata()?.len();
        println!("{bytes:>10} {}", entry.file_name().to_string_lossy());
        total += bytes;
    }
    ensure!(total <= LIMIT_BYTES, "the bundle has {total} bytes, more than {LIMIT_BYTES}");
    Ok(())
}

/// Runs cargo and returns the executables that it made.
fn build(arguments: &[&str]) -> Result<Vec<PathBuf>> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(arguments)
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .context("cargo did not start")?;
    ensure!(output.status.success(), "cargo {} failed", arguments.join(" "));
    let mut executables = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        if let Some(executable) = message["executable"].as_str() {
            executables.push(executable.into());
        }
    }
    if executables.is_empty() {
        bail!("cargo {} made no executable", arguments.join(" "));
    }
    Ok(executables)
}

fn take(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    let status = Command::new("strip").arg(to).status().context("strip did not start; install binutils")?;
    ensure!(status.success(), "strip {} failed", to.display());
    Ok(())
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
