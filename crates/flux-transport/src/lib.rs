#![doc = include_str!("../README.md")]

mod all_gather;
mod error;
mod launch_environment;
mod link;
mod relay;
mod rendezvous;
mod rows;
mod scatter;
mod shard_push;
mod trace;
mod transfer;

pub use all_gather::{AllGather, AllGatherSpec};
pub use error::Error;
pub use flux_swizzle::{End, Taper};
pub use launch_environment::{LaunchEnvironment, LaunchError, Launcher, Master};
pub use link::{Members, SignalLoss};
pub use relay::Target;
pub use rendezvous::{RendezvousError, RendezvousSpec, TcpBootstrap};
pub use rows::Rows;
pub use scatter::{Scatter, ScatterSpec};
pub use shard_push::{PushPlan, PushRoute, PushWay, ShardPush};
pub use trace::{Moved, TransferLog};
pub use transfer::{Awaited, Chunk, DataTransfer, Direction, PeerCopy};

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;
