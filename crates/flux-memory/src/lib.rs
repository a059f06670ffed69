#![doc = include_str!("../README.md")]

mod address;
mod bootstrap;
mod buffer;
pub mod cuda;
mod device;
mod error;
mod heap;
pub mod host;
mod peers;
mod per_rank;
mod reach;
mod shared;
mod sharing;
mod signal;
mod sockets;
mod space;
mod stamp;
mod stream;
mod symmetric;
mod timer;
mod wait;
mod watchdog;

pub use address::Address;
pub use bootstrap::{Bootstrap, BootstrapError};
pub use buffer::{Buffer, Placement};
pub use device::{Backend, Device};
pub use error::Error;
pub use heap::SymmetricHeap;
pub use peers::Peers;
pub use per_rank::PerRank;
pub use reach::Reach;
pub use sharing::Sharing;
pub use signal::reached;
pub use space::SymmetricSpace;
pub use stamp::Stamp;
pub use stream::{Event, Stream};
pub use symmetric::{SymmetricBuffer, SymmetricSignals};
pub use timer::Timer;
pub use wait::{ExchangeFailure, Fault, FaultLog, WaitBound, WaitPoint, WaitSite};
pub use watchdog::PeerWatch;

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;
