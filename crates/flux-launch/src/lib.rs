#![doc = include_str!("../README.md")]

mod catalogue;
mod cuda;
mod dtype;
mod error;
mod host;
mod launcher;
mod params;
mod schedule;

pub use catalogue::{KernelInfo, catalogue};
pub use dtype::{DType, Element};
pub use error::Error;
pub use launcher::Launcher;
pub use params::{Destination, GeluParams, GemmParams, Policy, RowTile, SumParams};
pub use schedule::{Schedule, ScheduleTables};

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;
