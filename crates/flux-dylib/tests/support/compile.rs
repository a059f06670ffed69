//! Shared libraries for tests, by the C compiler. Also for the crates that open one: they include this file by its path.

use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn compile(folder: &Path, name: &str, source: &str) -> PathBuf {
    let (c, library) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.so")));
    std::fs::write(&c, source).unwrap();
    let arguments = ["-shared", "-fPIC", "-o"];
    let status = Command::new("cc").args(arguments).arg(&library).arg(&c).status().expect("cc, a C compiler");
    assert!(status.success());
    library
}
