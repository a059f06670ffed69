#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod clock;
mod collective;
mod compare;
mod error;
mod flows;
mod gather;
mod gemm;
mod gpu;
mod library;
mod machine;
mod operation;
mod plan;
mod preset;
mod reduce;
mod scatter;
mod schedules;
mod sweeps;
mod symmetry;
mod timeline;

pub use compare::{Comparison, compare};
pub use error::{Error, Result};
pub use gpu::{Gpu, TileRate};
pub use machine::{Link, Machine, Node};
pub use operation::{LinkBytes, Outcome, simulate};
pub use plan::{Baseline, Op, Path, Plan, Problem, Style};
pub use schedules::Schedules;
pub use timeline::{Activity, Span};
