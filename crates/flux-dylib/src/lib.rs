#![doc = include_str!("../README.md")]

mod description;
mod environment;
mod error;
mod python;
mod search;
mod symbols;

pub use description::{Description, Opened, Version};
pub use environment::Environment;
pub use error::{Attempt, LoadError, MissingSymbol, Refusal};
pub use search::Search;
pub use symbols::Symbols;
