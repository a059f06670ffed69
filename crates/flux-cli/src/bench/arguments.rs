//! What `flux bench` understands.

use super::shapes::Shape;
use crate::args::{
    DeliveryArgument, GroupArguments, PushArgument, SumArgument, TransferArgument, parse_chunk_rows,
    parse_ranks,
};
use clap::{Args, ValueEnum};
use flux::{AgGemm, DType, GemmAr, GemmRs, Group, OpSpec, Operation};
use std::path::PathBuf;

#[derive(Args)]
#[command(after_long_help = HOW)]
pub(crate) struct BenchArguments {
    /// Which operation.
    #[arg(value_enum)]
    pub(crate) op: BenchOp,
    /// The GEMM that one rank computes; may be given several times. The whole problem is M x N·W x K for ag-gemm, and
    /// M x N x K·W for gemm-rs and gemm-ar, W being the ranks. By default the layers of GPT-3 175B, Llama 3 70B and 8B, and
    /// Qwen 2.5 72B.
    #[arg(long = "shape", value_name = "M,N,K", value_parser = Shape::parse)]
    pub(crate) shapes: Vec<Shape>,
    /// Which m to run the default layers with.
    #[arg(long, value_name = "M,M,...", value_delimiter = ',', value_parser = parse_extent, conflicts_with = "shapes")]
    pub(crate) m: Vec<usize>,
    #[command(flatten)]
    pub(crate) group: GroupArguments,
    /// Ranks; by default 4, or one for each GPU if there are more. `gemm` has one.
    #[arg(long, value_name = "W", value_parser = parse_ranks)]
    pub(crate) ranks: Option<usize>,
    /// Type of the elements of A and B.
    #[arg(long, value_enum, default_value_t = DTypeArgument::Bf16)]
    pub(crate) dtype: DTypeArgument,
    /// e4m3: what A and B are scaled by; by default one number for each.
    #[arg(long, value_enum)]
    pub(crate) scales: Option<ScalesArgument>,
    /// What to measure the plain GEMM beside; by default cublas on GPUs.
    #[arg(long, value_enum)]
    pub(crate) against: Option<Against>,
    /// Rows in which a shard travels; by default as many as the link needs for its speed.
    #[arg(long, value_name = "N", value_parser = parse_chunk_rows)]
    pub(crate) chunk_rows: Option<usize>,
    /// Who moves data between ranks: the sender or the receiver; by default the sender, but through pinned host memory
    /// the receiver.
    #[arg(long, value_enum)]
    pub(crate) transfer: Option<TransferArgument>,
    /// ag-gemm and gemm-ar: how pushed shards get to the peers.
    #[arg(long, value_enum, default_value_t = PushArgument::Auto)]
    pub(crate) push: PushArgument,
    /// gemm-rs and gemm-ar: how the tiles of a fused call get to the ranks that sum them.
    #[arg(long, value_enum, default_value_t = DeliveryArgument::Auto)]
    pub(crate) delivery: DeliveryArgument,
    /// gemm-rs and gemm-ar: where the tiles of a fused call are summed.
    #[arg(long, value_enum, default_value_t = SumArgument::Auto)]
    pub(crate) sum: SumArgument,
    /// Samples of each contender; by default 15 on GPUs, 5 on the host.
    #[arg(long, value_name = "N", value_parser = parse_extent)]
    pub(crate) samples: Option<usize>,
    /// Rest before each sample, in milliseconds; by default 60 on GPUs, none on the host.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(..=60_000))]
    pub(crate) rest_ms: Option<u64>,
    /// How to report.
    #[arg(long, value_enum, default_value_t = FormatArgument::Table)]
    pub(crate) format: FormatArgument,
    /// A folder for bench.json and bench.svg; it is made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub(crate) save: Option<PathBuf>,
}

const HOW: &str = "\
How it measures: all contenders of a shape run in one process, interleaved (A, B, C, A, B, C, ...), on the same normally \
distributed data, each after a rest. A sample is as many calls back to back as last a few milliseconds, over as many \
copies of the operands as do not fit into the L2 cache. Times are medians. Before it is timed, every contender's result is \
compared with an fp64 computation of 2,000 random entries: a wrong one ends the command with exit code 1.

gemm         the plain GEMM of one rank. Where ranks share a GPU (or the host): one GEMM of all that its ranks compute,
             on a group of one rank
x cuBLAS     the time of cuBLASLt's fastest algorithm (of the first 8 of its heuristic) over the plain GEMM's; of e4m3, with
             its fast accumulation, and the same scales (for each row of A and B since 12.9)
comm         only the communication (gemm-rs and gemm-ar: and the sum)
nccl         the same with NCCL's own collective on the GEMM's stream: ncclAllGather before it, ncclReduceScatter or ncclAllReduce
             behind it. Where NCCL is found and each rank has a GPU of its own; where shards are equal
unfused      the GEMM and the communication one after the other
chunked      a GEMM for each shard, overlapped with the communication of the other shards; gemm-ar of few rows (as many as
             fit into 1 MiB, at most 256) has no shards, and does as unfused
fused        the communication inside the GEMM, tile by tile
floor        max(gemm, comm)
ECT          fused - gemm: what of the communication is left to see
E            1 - ECT(fused) / ECT(unfused): 1 if all of it is hidden, 0 if none
host         time that enqueueing a fused call takes, per rank
delivery     gemm-rs and gemm-ar: how the fused call's tiles got to the ranks that sum them, direct or relayed
sum          gemm-rs and gemm-ar: where these summed them: folded into the GEMM, or in a separate kernel

Default shapes, per rank: m = 1, 16, 64, 256, 512, 1024, 2048, 4096, 8192; (n, k) for ag-gemm (6144, 12288), (7168, 8192), \
(7168, 4096), (7392, 8192), for gemm-rs and gemm-ar (12288, 6144), (8192, 3584), (4096, 3584), (8192, 3696), for gemm all of \
these. On the host n and k are divided by 16, and m ends at 512.";

/// What is measured. Each kind says how a rank's GEMM, the whole problem and the operation hang together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchOp {
    /// The plain GEMM of one rank.
    Gemm,
    /// AllGather+GEMM.
    AgGemm,
    /// GEMM+ReduceScatter.
    GemmRs,
    /// GEMM+AllReduce.
    GemmAr,
}

impl BenchOp {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            BenchOp::Gemm => "gemm",
            BenchOp::AgGemm => "ag-gemm",
            BenchOp::GemmRs => "gemm-rs",
            BenchOp::GemmAr => "gemm-ar",
        }
    }

    /// Whether there is anything to communicate, and so to hide.
    pub(crate) const fn communicates(self) -> bool {
        !matches!(self, BenchOp::Gemm)
    }

    /// The GEMMs of `ranks` ranks, each of `shape`, together.
    pub(crate) const fn whole(self, shape: Shape, ranks: usize) -> Shape {
        match self {
            BenchOp::Gemm => shape,
            BenchOp::AgGemm => Shape { n: shape.n.saturating_mul(ranks), ..shape },
            BenchOp::GemmRs | BenchOp::GemmAr => Shape { k: shape.k.saturating_mul(ranks), ..shape },
        }
    }

    pub(crate) fn build(self, group: &Group, spec: OpSpec) -> Result<Box<dyn Operation>, flux::Error> {
        Ok(match self {
            // On one rank an AllGather has nothing to do: what is left is the plain GEMM.
            BenchOp::Gemm | BenchOp::AgGemm => Box::new(AgGemm::new(group, spec)?),
            BenchOp::GemmRs => Box::new(GemmRs::new(group, spec)?),
            BenchOp::GemmAr => Box::new(GemmAr::new(group, spec)?),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DTypeArgument {
    Bf16,
    F16,
    /// 8 bits, scaled; results are bf16.
    E4m3,
}

/// What matrices of 8-bit elements are scaled by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScalesArgument {
    /// One number for each matrix.
    Tensor,
    /// One for each row of A and each row of B.
    Rows,
}

impl ScalesArgument {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            ScalesArgument::Tensor => "tensor",
            ScalesArgument::Rows => "rows",
        }
    }
}

impl From<DTypeArgument> for DType {
    fn from(dtype: DTypeArgument) -> Self {
        match dtype {
            DTypeArgument::Bf16 => DType::Bf16,
            DTypeArgument::F16 => DType::F16,
            DTypeArgument::E4m3 => DType::E4m3,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Against {
    /// cuBLASLt, the fastest algorithm that it suggests.
    Cublas,
    /// Nothing.
    None,
}

impl Against {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Against::Cublas => "cublas",
            Against::None => "none",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatArgument {
    Table,
    Json,
}

fn parse_extent(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(0) | Err(_) => Err("a number from 1 on is needed".into()),
        Ok(value) => Ok(value),
    }
}
