//! Where Python keeps its packages. Python itself is not asked: a library must not start programs.

use crate::environment::Environment;
use std::path::{Path, PathBuf};

/// The folders that hold packages, the active environment's first. Where an installation has none, the pattern of its
/// folders stands in, so that an error can say where nothing was.
pub(crate) fn package_folders(environment: &Environment) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for active in [&environment.virtual_env, &environment.conda_prefix].into_iter().flatten() {
        folders.extend(of_installation(Path::new(active)));
    }
    folders.extend(interpreters(environment).iter().flat_map(|prefix| of_installation(prefix)));
    if let Some(home) = &environment.home {
        folders.extend(of_installation(&Path::new(home).join(".local")));
    }
    folders.extend(of_installation(Path::new("/usr/local")));
    folders.extend(of_installation(Path::new("/usr")));
    let mut unique = Vec::new();
    for folder in folders {
        if !unique.contains(&folder) {
            unique.push(folder);
        }
    }
    unique
}

/// The installation of the first `python3` on the path: as it is called, and where links lead.
fn interpreters(environment: &Environment) -> Vec<PathBuf> {
    let Some(path) = &environment.path else { return Vec::new() };
    let python = std::env::split_paths(path).map(|folder| folder.join("python3")).find(|file| file.is_file());
    let Some(python) = python else { return Vec::new() };
    let linked = python.canonicalize().ok();
    // A shim of pyenv's does not say which version it stands for: any may be it.
    if let Some(folder) = python.parent().filter(|folder| folder.ends_with("shims")) {
        let versions = std::fs::read_dir(folder.with_file_name("versions"));
        let mut versions: Vec<_> =
            versions.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
        versions.sort();
        return versions;
    }
    let prefix = |file: &PathBuf| Some(file.parent()?.parent()?.to_path_buf());
    [Some(python), linked].iter().flatten().filter_map(prefix).collect()
}

fn of_installation(prefix: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for lib in ["lib", "lib64"] {
        let Ok(entries) = std::fs::read_dir(prefix.join(lib)) else { continue };
        let mut pythons: Vec<_> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")))
            .collect();
        pythons.sort();
        for python in pythons {
            // Debian's Python has its own packages, and those of pip, in dist-packages.
            folders.extend(["site-packages", "dist-packages"].map(|name| python.join(name)));
        }
    }
    folders.retain(|folder| folder.is_dir());
    if folders.is_empty() {
        folders.push(prefix.join("lib/python3*/site-packages"));
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shims_lead_to_their_versions() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["shims", "versions/3.11.7/lib/python3.11/site-packages"] {
            std::fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        std::fs::write(folder.path().join("shims/python3"), "").unwrap();
        let environment =
            Environment { path: Some(folder.path().join("shims").into()), ..Environment::default() };
        let packages = folder.path().join("versions/3.11.7/lib/python3.11/site-packages");
        assert_eq!(package_folders(&environment)[0], packages);
    }

    #[test]
    fn the_active_environment_comes_first_and_links_to_python_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for path in
            ["venv/lib/python3.11/site-packages", "real/lib/python3.12/site-packages", "real/bin", "bin"]
        {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        std::fs::write(root.join("real/bin/python3"), "").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(root.join("real/bin/python3"), root.join("bin/python3")).unwrap();
        let environment = Environment {
            virtual_env: Some(root.join("venv").into()),
            path: Some(root.join("bin").into()),
            ..Environment::default()
        };
        let folders = package_folders(&environment);
        assert_eq!(folders[0], root.join("venv/lib/python3.11/site-packages"));
        #[cfg(unix)]
        assert!(folders.contains(&root.join("real/lib/python3.12/site-packages")), "{folders:?}");
        // The place of an installation without packages is still named.
        assert!(folders.contains(&root.join("lib/python3*/site-packages")), "{folders:?}");
    }
}
