//! Tools and headers from Python wheels, in private environments under `target/`.

use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes the Python environment `venv` and installs `wheels` into it, and nothing that they depend on.
pub(crate) fn install(venv: &Path, wheels: &[&str], hint: &str) -> Result<()> {
    println!("installing {} into {}", wheels.join(", "), venv.display());
    let run = |program: &Path, arguments: &[&str]| {
        let status = Command::new(program).args(arguments).status();
        let status = status.with_context(|| format!("{} did not start; {hint}", program.display()))?;
        ensure!(status.success(), "{} {} failed; {hint}", program.display(), arguments.join(" "));
        Ok(())
    };
    let Some(place) = venv.to_str() else { bail!("the path {} is not UTF-8", venv.display()) };
    run(Path::new("python3"), &["-m", "venv", place])?;
    let mut arguments = vec!["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"];
    arguments.extend(wheels);
    run(&venv.join("bin/python"), &arguments)
}

/// The first file below `folder` whose name begins with `prefix`.
pub(crate) fn search(folder: &Path, prefix: &str, depth: usize) -> Option<PathBuf> {
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
