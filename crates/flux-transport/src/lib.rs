#![doc = include_str!("../README.md")]

mod all_gather;
mod error;
mod exchange;
mod gather_moves;
mod landing;
mod launch_environment;
mod levels;
mod link;
mod moves;
mod nccl;
mod nvshmem;
mod put_exchange;
mod relay;
mod rendezvous;
mod rows;
mod scatter;
mod scatter_exchange;
mod scatter_partial;
mod scatter_puts;
mod shard_push;
mod socket_exchange;
mod trace;
mod transfer;
mod turns;

pub use all_gather::{AllGather, AllGatherSpec};
pub use error::Error;
pub use exchange::{Exchange, Message};
pub use flux_swizzle::{End, Pattern, Taper};
pub use landing::Landed;
pub use launch_environment::{LaunchEnvironment, LaunchError, Launcher, Master};
pub use levels::{NodeSum, SumSlots, check_two_levels};
pub use link::{Members, SignalLoss};
pub use nccl::{NcclCollectives, NcclExchange, SMS_FOR_NCCL, SummandType};
pub use nvshmem::Nvshmem;
pub use put_exchange::{Put, PutExchange};
pub use relay::Target;
pub use rendezvous::{RendezvousError, RendezvousSpec, TcpBootstrap};
pub use rows::Rows;
pub use scatter::{Scatter, ScatterSpec};
pub use scatter_puts::PutTarget;
pub use shard_push::{PushPlan, PushRoute, PushWay, ShardPush};
pub use socket_exchange::SocketExchange;
pub use trace::{Moved, TransferLog};
pub use transfer::{Awaited, Chunk, DataTransfer, Direction, PeerCopy};

use exchange::ExchangeLink;

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;
