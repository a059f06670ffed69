//! What `flux sim` understands.

use crate::args::{OpArgument, parse_chunk_rows};
use clap::{Args, ValueEnum};
use flux::{Order, Sweeps};
use flux_sim::{Gpu, Op, Path};
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct SimArguments {
    /// Which operation.
    #[arg(value_enum)]
    pub(crate) op: OpArgument,
    /// The machine, by name; `list` lists them. One that only `flux topo` knows has the constants of the GPU
    /// that it names.
    #[arg(long, value_name = "NAME", required_unless_present = "file")]
    pub(crate) preset: Option<String>,
    /// The machine that a file describes: NCCL's topology XML, or the text of `nvidia-smi topo -m`; `-` is the standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    pub(crate) file: Option<PathBuf>,
    /// The machine's GPUs, by name, if a file does not say which they are, or others are to be in their place.
    #[arg(long, value_name = "NAME", value_parser = parse_gpu)]
    pub(crate) gpu: Option<Gpu>,
    /// In which order ranks exchange their shards: auto (as fits the machine), full-mesh, ring, or as ranks are connected, like
    /// ring:0-3/4-7.
    #[arg(long, default_value_t = Order::Auto)]
    pub(crate) order: Order,
    /// How many such machines, connected by their network cards.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) nodes: usize,
    /// Rows of A of all ranks together.
    #[arg(short, long, value_name = "M", required_unless_present = "sweep")]
    pub(crate) m: Option<usize>,
    /// Columns of the C that a rank computes. The whole problem is M x N·W x K for ag-gemm, and M x N x K·W for gemm-rs and
    /// gemm-ar, W being the GPUs.
    #[arg(short, long, value_name = "N")]
    pub(crate) n: usize,
    /// Columns of the A that a rank multiplies.
    #[arg(short, long, value_name = "K")]
    pub(crate) k: usize,
    /// Every other m: twice as many rows each time.
    #[arg(long, value_name = "m=FROM..TO", value_parser = Sweep::parse, conflicts_with = "m")]
    pub(crate) sweep: Option<Sweep>,
    /// Rows in which a shard travels; by default whole shards up to 32 MiB.
    #[arg(long, value_name = "N", value_parser = parse_chunk_rows)]
    pub(crate) chunk_rows: Option<usize>,
    /// How many shards the fused GEMM sweeps together, where each travels whole: each sweep so many times as many as all before it, 0 for
    /// one by one, or two, the own shard and all others; by default as is fastest.
    #[arg(long, value_name = "GROWTH")]
    pub(crate) shard_sweeps: Option<Sweeps>,
    /// Which way the timeline shows.
    #[arg(long, value_enum, default_value_t = SimPath::Fused)]
    pub(crate) path: SimPath,
    /// Where a timeline goes: a drawing, or a trace for Perfetto (ui.perfetto.dev).
    #[arg(long, value_name = "OUT.svg|OUT.json", conflicts_with = "sweep")]
    pub(crate) timeline: Option<PathBuf>,
    /// How to report.
    #[arg(long, value_enum, default_value_t = SimFormat::Table)]
    pub(crate) format: SimFormat,
}

fn parse_gpu(name: &str) -> Result<Gpu, String> {
    let known =
        || format!("nothing is known of it; known are {}", Gpu::names().collect::<Vec<_>>().join(", "));
    Gpu::named(name).ok_or_else(known)
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum SimPath {
    Fused,
    Chunked,
    Unfused,
}

impl From<SimPath> for Path {
    fn from(path: SimPath) -> Self {
        match path {
            SimPath::Fused => Path::Fused,
            SimPath::Chunked => Path::Chunked,
            SimPath::Unfused => Path::Unfused,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SimFormat {
    Table,
    Json,
}

impl From<OpArgument> for Op {
    fn from(op: OpArgument) -> Self {
        match op {
            OpArgument::AgGemm => Op::AgGemm,
            OpArgument::GemmRs => Op::GemmRs,
            OpArgument::GemmAr => Op::GemmAr,
        }
    }
}

/// Numbers of rows, each twice the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sweep {
    from: usize,
    to: usize,
}

impl Sweep {
    fn parse(text: &str) -> Result<Self, String> {
        let wanted = || format!("{text:?} is not of the form m=64..8192");
        let range = text.strip_prefix("m=").ok_or_else(wanted)?;
        let (from, to) = range.split_once("..").ok_or_else(wanted)?;
        let number = |text: &str| text.parse::<usize>().map_err(|_| wanted());
        match (number(from)?, number(to)?) {
            (0, _) => Err("a sweep begins with at least one row".into()),
            (from, to) if from > to => Err(format!("{from} is more than {to}; write the smaller one first")),
            (from, to) => Ok(Self { from, to }),
        }
    }

    pub(crate) fn values(self) -> impl Iterator<Item = usize> {
        let next = move |m: &usize| m.checked_mul(2).filter(|&next| next <= self.to);
        std::iter::successors(Some(self.from), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_doubles() {
        let values = |text: &str| Sweep::parse(text).map(|sweep| sweep.values().collect::<Vec<_>>());
        assert_eq!(values("m=64..512"), Ok(vec![64, 128, 256, 512]));
        assert_eq!(values("m=3..7"), Ok(vec![3, 6]));
        assert_eq!(values("m=5..5"), Ok(vec![5]));
        for wrong in ["64..512", "m=64", "m=a..b", "m=0..8", "m=9..8", "m=1..99999999999999999999999"] {
            assert!(values(wrong).is_err(), "{wrong}");
        }
    }
}
