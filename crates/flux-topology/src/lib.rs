#![doc = include_str!("../README.md")]
#![deny(unsafe_op_in_unsafe_fn)]

mod device;
pub mod discover;
mod error;
mod link;
mod pci;
mod preset;
mod table;
mod topology;

pub use device::{ComputeCapability, Device};
pub use error::{Error, ProbeFailure};
pub use link::{Link, LinkKind, P2p, P2pStatus};
pub use pci::PciAddress;
pub use topology::{Source, Topology};

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;
