//! The one place in flux's libraries that reads the environment.

use std::ffi::OsString;

/// What the environment says about where libraries are. An empty variable counts as none.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// The library's own variable.
    pub named_library: Option<OsString>,
    /// `VIRTUAL_ENV`.
    pub virtual_env: Option<OsString>,
    /// `CONDA_PREFIX`.
    pub conda_prefix: Option<OsString>,
    /// `PATH`, on which `python3` is looked for.
    pub path: Option<OsString>,
    /// `HOME`, below which `pip install --user` installs.
    pub home: Option<OsString>,
}

impl Environment {
    /// This process's, with the library's own variable under the name of `variable`.
    pub fn read(variable: &str) -> Self {
        let read = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            named_library: read(variable),
            virtual_env: read("VIRTUAL_ENV"),
            conda_prefix: read("CONDA_PREFIX"),
            path: read("PATH"),
            home: read("HOME"),
        }
    }
}
