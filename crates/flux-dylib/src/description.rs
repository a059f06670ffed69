//! What is known of a library before it is found, and how it is opened.

use crate::error::{Attempt, LoadError, MissingSymbol, Refusal};
use crate::search::Search;
use crate::symbols::{Symbols, dlopen};
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

/// A library's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Another one means: incompatible.
    pub major: u32,
    /// Grows with what is added.
    pub minor: u32,
    /// Grows with what is put right.
    pub patch: u32,
}

impl Version {
    /// `major.minor.patch`.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }
}

impl Display for Version {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// What is known of a library before it is found.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// As people call it, such as `NCCL`.
    pub name: &'static str,
    /// The environment variable that names the file to load.
    pub variable: &'static str,
    /// What the dynamic loader is asked for, the best first.
    pub loader_names: &'static [&'static str],
    /// Where its wheel puts it, below `site-packages`.
    pub in_site_packages: &'static str,
    /// Where its other packages put it, where the loader does not look by itself.
    pub system_paths: &'static [&'static str],
    /// The wheel that has it.
    pub wheel: &'static str,
    /// The function that tells the version: a file without it is not this library.
    pub version_symbol: &'static str,
    /// The oldest version that will do; newer ones of the same major version do too.
    pub oldest: Version,
}

/// A library, opened for as long as the process runs.
#[derive(Clone, Debug)]
pub struct Opened<T> {
    /// What `resolve` made of its symbols.
    pub functions: T,
    /// What it says it is.
    pub version: Version,
    /// Where it is; the name that it was found by, where the loader does not say.
    pub path: PathBuf,
}

impl Description {
    /// Opens the first file of `search` that is this library, of a version that will do. `version` asks it for its version,
    /// `resolve` for all else.
    ///
    /// # Errors
    /// [`LoadError`] lists every path tried, with the reason against each.
    pub fn open<T>(
        &'static self,
        search: &Search,
        version: impl Fn(&Symbols<'_>) -> Result<Version, Refusal>,
        resolve: impl Fn(&Symbols<'_>) -> Result<T, MissingSymbol>,
    ) -> Result<Opened<T>, LoadError> {
        let mut tried = Vec::new();
        for path in search.paths() {
            match self.open_one(path, &version, &resolve) {
                Ok(opened) => return Ok(opened),
                Err(refusal) => tried.push(Attempt { path: path.clone(), refusal }),
            }
        }
        if search.is_override() {
            Err(LoadError::BadOverride { library: self, tried })
        } else {
            Err(LoadError::NotFound { library: self, tried })
        }
    }

    fn open_one<T>(
        &'static self,
        path: &Path,
        version: impl Fn(&Symbols<'_>) -> Result<Version, Refusal>,
        resolve: impl Fn(&Symbols<'_>) -> Result<T, MissingSymbol>,
    ) -> Result<Opened<T>, Refusal> {
        let library = dlopen(path)?;
        let symbols = Symbols::new(library, self.name, None);
        let Some(address) = symbols.address(self.version_symbol) else {
            return Err(Refusal::AnotherLibrary { name: self.name, lacks: self.version_symbol });
        };
        let found = version(&symbols)?;
        if found.major != self.oldest.major || found < self.oldest {
            return Err(Refusal::Version { found, oldest: self.oldest });
        }
        let functions = resolve(&Symbols::new(library, self.name, Some(found)))?;
        let path = crate::symbols::file_of(address).unwrap_or_else(|| path.to_path_buf());
        Ok(Opened { functions, version: found, path })
    }
}
