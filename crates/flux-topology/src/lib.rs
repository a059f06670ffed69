#![doc = include_str!("../README.md")]
#![deny(unsafe_op_in_unsafe_fn)]

mod bandwidth;
mod cpu_list;
mod device;
pub mod discover;
mod domain;
mod error;
mod file;
mod link;
mod nccl;
mod nic;
mod numa;
mod order;
mod pci;
mod position;
mod preset;
mod ring;
mod smi;
mod table;
mod topology;
mod view;

pub use bandwidth::Bandwidth;
pub use cpu_list::CpuList;
pub use device::{ComputeCapability, Device, PcieRate};
pub use error::{Error, ProbeFailure};
pub use file::FileFormat;
pub use link::{Link, LinkKind, P2p, P2pStatus};
pub use nic::Nic;
pub use numa::{NumaBasis, NumaGroups};
pub use order::{CommunicationOrder, OrderChoice};
pub use pci::PciAddress;
pub use topology::{Source, Topology, Unclassified};

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;
