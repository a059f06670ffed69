//! What `flux tune` understands.

use crate::args::{GroupArguments, OpArgument, parse_ranks};
use crate::bench::{BenchOp, DTypeArgument, FormatArgument, Shape, default_shapes};
use clap::Args;

#[derive(Args)]
pub(crate) struct TuneArguments {
    /// Which operation.
    #[arg(value_enum)]
    pub(crate) op: OpArgument,
    /// The GEMM that one rank computes, as for `flux bench`; may be given several times. M is rounded up to a power of two. By
    /// default the layers of GPT-3 175B, Llama 3 70B and 8B, and Qwen 2.5 72B.
    #[arg(long = "shape", value_name = "M,N,K", value_parser = Shape::parse)]
    shapes: Vec<Shape>,
    /// Which m to measure the default layers with.
    #[arg(long, value_name = "M,M,...", value_delimiter = ',', value_parser = parse_count, conflicts_with = "shapes")]
    m: Vec<usize>,
    #[command(flatten)]
    pub(crate) group: GroupArguments,
    /// Ranks; by default 4, or one for each GPU if there are more.
    #[arg(long, value_name = "W", value_parser = parse_ranks)]
    pub(crate) ranks: Option<usize>,
    /// Type of the elements of A and B.
    #[arg(long, value_enum, default_value_t = DTypeArgument::Bf16)]
    pub(crate) dtype: DTypeArgument,
    /// Measures also what has been measured before.
    #[arg(long)]
    pub(crate) force: bool,
    /// How many candidates are measured: those that the model expects to be the fastest, and of each path at least one.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = parse_count)]
    pub(crate) candidates: usize,
    /// How often each is measured; by default 9 times.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) samples: Option<usize>,
    /// Keeps nothing, but measures all candidates, and compares the fastest with what is planned. The exit code is 1 if a plan is
    /// slower by more than --tolerance, and by twice the standard error more.
    #[arg(long, conflicts_with = "force")]
    pub(crate) check: bool,
    /// With --check: by how much plans may be slower, in parts of the fastest's time.
    #[arg(long, value_name = "PART", default_value_t = 0.05, allow_negative_numbers = true, value_parser = parse_part)]
    pub(crate) tolerance: f64,
    /// How to report.
    #[arg(long, value_enum, default_value_t = FormatArgument::Table)]
    pub(crate) format: FormatArgument,
}

impl TuneArguments {
    pub(crate) fn shapes(&self, on_host: bool) -> Vec<Shape> {
        match &self.shapes[..] {
            [] => default_shapes(bench_op(self.op), &self.m, on_host),
            some => some.to_vec(),
        }
    }
}

pub(crate) fn bench_op(op: OpArgument) -> BenchOp {
    match op {
        OpArgument::AgGemm => BenchOp::AgGemm,
        OpArgument::GemmRs => BenchOp::GemmRs,
        OpArgument::GemmAr => BenchOp::GemmAr,
    }
}

fn parse_part(text: &str) -> Result<f64, String> {
    let part = text.trim().parse().ok().filter(|part: &f64| part.is_finite());
    part.ok_or_else(|| "a finite number is needed, such as 0.05".into())
}

fn parse_count(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(0) | Err(_) => Err("a number from 1 on is needed".into()),
        Ok(value) => Ok(value),
    }
}
