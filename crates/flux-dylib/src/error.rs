use crate::description::{Description, Version};
use std::fmt::{self, Debug, Display, Formatter};
use std::path::PathBuf;

/// A library that could not be loaded.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Nothing that would do was found.
    #[error(
        "no usable {} was found. Tried, in this order:{}\nInstall {} {} or newer (`pip install {}`), or set {} to the path of \
         the library",
        library.name, listed(tried), library.name, library.oldest, library.wheel, library.variable
    )]
    NotFound {
        /// What was looked for.
        library: &'static Description,
        /// Every path, in the order of trying.
        tried: Vec<Attempt>,
    },
    /// The variable names something that will not do. Nothing else was tried.
    #[error(
        "{} names no usable {}:{}\nSet it to the path of {} {} or newer, or unset it so that the usual places are searched",
        library.variable, library.name, listed(tried), library.name, library.oldest
    )]
    BadOverride {
        /// What was looked for.
        library: &'static Description,
        /// The variable's path.
        tried: Vec<Attempt>,
    },
}

/// The same text as `Display`: it is for people, also where they see it through `unwrap`.
impl Debug for LoadError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

impl LoadError {
    /// Every path that was tried, and what was against it.
    pub fn tried(&self) -> &[Attempt] {
        match self {
            Self::NotFound { tried, .. } | Self::BadOverride { tried, .. } => tried,
        }
    }
}

fn listed(tried: &[Attempt]) -> String {
    if tried.is_empty() {
        return "\n  nothing: the list of places is empty".into();
    }
    tried.iter().map(|attempt| format!("\n  {}: {}", attempt.path.display(), attempt.refusal)).collect()
}

/// A path that was tried, in vain.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The file, or the name that the dynamic loader was asked for.
    pub path: PathBuf,
    /// What was against it.
    pub refusal: Refusal,
}

/// Why one file was not taken.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The dynamic loader's words.
    #[error("{0}")]
    Loader(String),
    /// The file is a library, but another one.
    #[error("is not {name}: it has no function {lacks}")]
    AnotherLibrary {
        /// What was looked for.
        name: &'static str,
        /// Its function that tells the version.
        lacks: &'static str,
    },
    /// The library does not tell its version.
    #[error("does not tell its version: {0}")]
    NoVersion(String),
    /// Too old, or of another major version.
    #[error("has version {found}; wanted is {oldest} or a newer {}.x", oldest.major)]
    Version {
        /// What it says it is.
        found: Version,
        /// The oldest that will do.
        oldest: Version,
    },
    /// It lacks what every version that will do should have.
    #[error(transparent)]
    MissingSymbol(#[from] MissingSymbol),
}

/// A function that the loaded library does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{library}{} has no {name}; another version may have it", version.map(|v| format!(" {v}")).unwrap_or_default())]
pub struct MissingSymbol {
    /// The library.
    pub library: &'static str,
    /// The function.
    pub name: &'static str,
    /// The library's version, once it has told it.
    pub version: Option<Version>,
}
