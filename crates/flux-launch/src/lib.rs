#![doc = include_str!("../README.md")]

mod catalogue;
mod clock;
mod cuda;
mod destinations;
mod dtype;
mod e4m3;
mod error;
mod hopper;
mod host;
mod launcher;
mod params;
mod push;
mod put_signal;
mod puts;
mod schedule;
mod tensor_map;
mod tiling;
mod trace;

pub use catalogue::{KernelInfo, catalogue, embedded_bytes, manifest};
pub use clock::Clock;
pub use cuda::SMS_FOR_COPIES;
pub use destinations::{Destinations, Slots};
pub use dtype::{DType, Element};
pub use e4m3::E4m3;
pub use error::Error;
pub use launcher::{Launch, Launcher};
pub use params::{
    Activation, Destination, FoldParams, GemmParams, Policy, PushParams, PushPeer, PutRoute, RowTile, Scales,
    SumParams,
};
pub use puts::PutLibrary;
pub use schedule::{SIGNAL_ROWS, Schedule, ScheduleTables};
pub use tiling::{Pace, Problem, Tiling};
pub use trace::{Trace, UnitTrace};

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;
