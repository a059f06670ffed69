#![doc = include_str!("../README.md")]

mod ag_gemm;
mod agreement;
mod call;
mod collectives;
mod cudarc;
mod delivery;
mod epilogue;
mod error;
mod formation;
mod from_env;
mod gemm_ar;
mod gemm_rs;
mod group;
mod levels;
mod operation;
mod order;
mod plan;
mod planner;
mod push;
mod puts;
mod reduction;
mod scales;
mod schedules;
mod summation;
mod taper;
mod trace;
mod transport;
mod tuner;
mod whole;

pub use self::cudarc::{CudarcScale, CudarcScales};
pub use ag_gemm::{AgGemm, AgGemmCall};
pub use call::{Matrix, OpSpec};
pub use collectives::Collectives;
pub use delivery::Delivery;
pub use error::Error;
pub use flux_launch::{Activation, DType, E4m3, Element, UnitTrace};
pub use flux_memory::{
    Address, Backend, Bootstrap, BootstrapError, Buffer, Device, Placement, Sharing, Stream, Timer,
};
pub use flux_swizzle::{BadPattern, End, NoSweeps, Pattern, Shards, Sweeps, Taper, TileShape};
pub use flux_transport::{Direction, LaunchEnvironment, SignalLoss};
pub use from_env::launch_environment;
pub use gemm_ar::{GemmAr, GemmArCall};
pub use gemm_rs::{GemmRs, GemmRsCall};
pub use group::{BackendChoice, Group, GroupConfig};
pub use levels::Levels;
pub use operation::{OperandParts, Operation, Part};
pub use order::Order;
pub use plan::{Path, PathChoice, PathPreference};
pub use planner::{
    Candidate, Explain, OpKind, Plan, PlanSource, SimMachine, Verdict, explain, explain_on, machine_of,
};
pub use push::Push;
pub use scales::{Scale, Scales};
pub use summation::Summation;
pub use taper::Overlap;
pub use trace::{CallTrace, TransferTrace};
pub use transport::Transport;
pub use tuner::{Entry, Key, Loss, Measured, TuneConfig, TuneOutcome, TuneProgress, tune};
pub use whole::Whole;

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;
