//! What can stop a command, in one line for a person.

use std::ffi::OsString;
use std::path::PathBuf;

/// What can stop a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("FLUX_LOG is `{level}`; set it to off, error, warn, info, debug or trace")]
    NoSuchLevel { level: String },
    #[error(transparent)]
    Flux(#[from] flux::Error),
    #[error("{}", .0)]
    Topology(#[from] flux_topology::Error),
    #[error("{path:?}: {source}")]
    TopologyFile { path: PathBuf, source: flux_topology::Error },
    #[error("{}", .0)]
    Simulation(#[from] flux_sim::Error),
    #[error("a timeline is a drawing or a trace, and {path:?} ends in neither .svg nor .json; name it so")]
    NeitherSvgNorJson { path: PathBuf },
    #[error("cannot {action} {path:?}: {source}; check the path and who may {action} there")]
    File { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{path:?} is not a safetensors file: {reason}")]
    NotSafetensors { path: PathBuf, reason: String },
    #[error(
        "{path:?} has no tensor `{name}`; it has {found}; `a` [M, K] and `b` [N, K] are needed, and \
         what --bias, --a-scale and --b-scale name"
    )]
    NoTensor { path: PathBuf, name: String, found: String },
    #[error("tensor `{name}` is {dtype}; convert it to {wanted}")]
    WrongDType { name: String, dtype: String, wanted: &'static str },
    #[error("tensor `a` is {a}, so `{name}` must be {wanted}, but it is {dtype}; convert one of them")]
    DifferentDTypes { a: &'static str, name: String, wanted: &'static str, dtype: &'static str },
    #[error("tensor `{name}` has the shape {shape:?}; a matrix with two dimensions is needed")]
    NotAMatrix { name: String, shape: Vec<usize> },
    #[error(
        "tensor `{name}` has the shape {shape:?}; as a bias, [{n}] is needed: an element for each row of `b`"
    )]
    NotABias { name: String, shape: Vec<usize>, n: usize },
    #[error(
        "tensor `{name}` has the shape {shape:?}; as a scale, one number or one for each of {rows} rows is needed"
    )]
    NotAScale { name: String, shape: Vec<usize>, rows: usize },
    #[error("`a` {a:?} and `b` {b:?} differ in K, their second dimension; both must have the same")]
    DifferentDepths { a: [usize; 2], b: [usize; 2] },
    #[error(
        "{contender} is wrong for {shape}: it is off by {error:.2e} of the norm, where {bound:.0e} is allowed"
    )]
    WrongResult { contender: &'static str, shape: String, error: f64, bound: f64 },
    #[error(
        "--ranks is {ranks}, but the launcher has started {launched} processes, each one rank; leave --ranks out"
    )]
    OtherRanks { ranks: usize, launched: usize },
    #[error("flux trace shows all ranks by the clock of one process; start it by itself, without a launcher")]
    OneProcessOnly,
    #[error(
        "how many ranks? give --ranks W, or start one process per rank: flux launch -n W -- flux run ..."
    )]
    NoRanks,
    #[error("{op} runs on one rank, not on {ranks}; leave --ranks out")]
    OneRankOnly { op: &'static str, ranks: usize },
    #[error("{op} communicates nothing, so there is one way to go; leave --path out")]
    OneWayOnly { op: &'static str },
    #[error("{path:?} was given for both --json and --svg; give each its own file")]
    SameFile { path: PathBuf },
    #[error("{dtype} is not scaled; leave --scales out, or use --dtype e4m3")]
    NotScaled { dtype: flux::DType },
    #[error("cuBLASLt runs on GPUs, and this is the host backend; use --against none")]
    CublasOnHost,
    #[error(
        "cannot load libcublasLt.so, which the plain GEMM is measured beside; install cuBLAS and put its folder into \
         LD_LIBRARY_PATH, or use --against none"
    )]
    NoCublas,
    #[error("cuBLASLt: {call} failed: {status}; use --against none to measure without it")]
    Cublas { call: &'static str, status: String },
    #[error("{name:?} is neither a machine of the simulator ({}) nor one that `flux topo --preset list` lists", flux_sim::Machine::presets().collect::<Vec<_>>().join(", "))]
    NoMachine { name: String },
    #[error(
        "{ranks} ranks are not a whole number of machines with {gpus} GPUs each; give --ranks a multiple of that, or fewer"
    )]
    NotWholeMachines { ranks: usize, gpus: usize },
    #[error("{slower} of {all} plans are slower than the best candidate by more than {percent:.0} %")]
    Slower { slower: usize, all: usize, percent: f64 },
    #[error("no command is given; write it after `--`")]
    NoCommand,
    #[error("cannot start {program:?}: {source}; check its name, and that it may be executed")]
    CannotStart { program: OsString, source: std::io::Error },
    #[error("the system refuses {what}: {source}; raise its limits")]
    Launcher { what: &'static str, source: std::io::Error },
    #[error("{wrong} of {all} results are wrong")]
    Wrong { wrong: usize, all: usize },
}

impl Error {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Error::Wrong { .. }
            | Error::Slower { .. }
            | Error::WrongResult { .. }
            | Error::Flux(
                flux::Error::WaitExpired { .. }
                | flux::Error::RankLost { .. }
                | flux::Error::WroteOutside { .. }
                | flux::Error::RanksDiffer { .. },
            ) => 1,
            _ => 2,
        }
    }
}
