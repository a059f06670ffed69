//! What `flux trace` understands.

use crate::args::{GroupArguments, PathArgument, TransferArgument, parse_chunk_rows, parse_ranks};
use crate::bench::{BenchOp, Shape};
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct TraceArguments {
    /// Which operation.
    #[arg(value_enum)]
    pub(crate) op: BenchOp,
    /// The GEMM that one rank computes, in bf16. The whole problem is M x N·W x K for ag-gemm, and M x N x K·W for gemm-rs
    /// and gemm-ar, W being the ranks.
    #[arg(long, value_name = "M,N,K", value_parser = Shape::parse)]
    pub(crate) shape: Shape,
    #[command(flatten)]
    pub(crate) group: GroupArguments,
    /// Ranks; by default 4, or one for each GPU if there are more. `gemm` has one.
    #[arg(long, value_name = "W", value_parser = parse_ranks)]
    pub(crate) ranks: Option<usize>,
    /// Which way to go.
    #[arg(long, value_enum, default_value_t = PathArgument::Auto)]
    pub(crate) path: PathArgument,
    /// Rows in which a shard travels; by default as many as the link needs for its speed.
    #[arg(long, value_name = "N", value_parser = parse_chunk_rows)]
    pub(crate) chunk_rows: Option<usize>,
    /// gemm-ar: the most rows whose tiles go to all ranks at once; by default as many as fit into 1 MiB, at most 256.
    #[arg(long, value_name = "N")]
    pub(crate) one_shot_rows: Option<usize>,
    /// Who moves data between ranks: the sender or the receiver; by default the sender, but through pinned host memory
    /// the receiver.
    #[arg(long, value_enum)]
    pub(crate) transfer: Option<TransferArgument>,
    /// Calls before the one that is shown.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(..=1000))]
    pub(crate) warm_up: u32,
    /// Where the trace goes, for Perfetto (ui.perfetto.dev) or chrome://tracing.
    #[arg(long, value_name = "OUT.json")]
    pub(crate) json: Option<PathBuf>,
    /// Where the timeline goes.
    #[arg(long, value_name = "OUT.svg")]
    pub(crate) svg: Option<PathBuf>,
}
