//! `flux plan`: which way calls of an operation go, and why they go no other.

use crate::args::{
    ActivationArgument, DeliveryArgument, GroupArguments, OpArgument, PathArgument, TransferArgument,
    parse_chunk_rows, parse_ranks,
};
use crate::bench::{DEFAULT_RANKS, DTypeArgument, FormatArgument};
use crate::error::Error;
use crate::machine::Described;
use crate::output::{print, speaks};
use crate::topo;
use clap::Args;
use flux::{OpKind, OpSpec};
use std::path::PathBuf;

/// What says nothing of another machine.
const OF_THIS_MACHINE: [&str; 6] = ["backend", "peer_memory", "sharing", "transport", "fake_nodes", "cache"];

#[derive(Args)]
pub(crate) struct PlanArguments {
    /// Which operation.
    #[arg(value_enum)]
    op: OpArgument,
    /// Rows of A of all ranks together.
    #[arg(short, long, value_name = "M")]
    m: usize,
    /// Columns of the product that a rank computes. The whole problem is M x N·W x K for ag-gemm, and M x N x K·W for gemm-rs and
    /// gemm-ar, W being the ranks.
    #[arg(short, long, value_name = "N")]
    n: usize,
    /// Columns of the A that a rank multiplies.
    #[arg(short, long, value_name = "K")]
    k: usize,
    /// The most rows that calls of the operation have, for which it is built; by default M.
    #[arg(long, value_name = "M")]
    max_m: Option<usize>,
    /// Ranks; by default 4, or one for each GPU.
    #[arg(long, value_name = "W", value_parser = parse_ranks)]
    ranks: Option<usize>,
    /// A machine that need not be at hand, by the name that `flux sim` or `flux topo` knows it by (`list` lists them); ranks beyond its GPUs are on more
    /// of them.
    #[arg(long, value_name = "NAME", conflicts_with_all = OF_THIS_MACHINE)]
    preset: Option<String>,
    /// The machine that a file describes: NCCL's topology XML, or the text of `nvidia-smi topo -m`; `-` is the standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "preset", conflicts_with_all = OF_THIS_MACHINE)]
    file: Option<PathBuf>,
    /// Type of the elements of A and B.
    #[arg(long, value_enum, default_value_t = DTypeArgument::Bf16)]
    dtype: DTypeArgument,
    /// ag-gemm: what is applied to the product.
    #[arg(long, value_enum, default_value_t = ActivationArgument::None)]
    activation: ActivationArgument,
    /// The path, if it is decided.
    #[arg(long, value_enum, default_value_t = PathArgument::Auto)]
    path: PathArgument,
    /// Who moves data, if it is decided.
    #[arg(long, value_enum)]
    transfer: Option<TransferArgument>,
    /// How tiles are delivered, if it is decided.
    #[arg(long, value_enum, default_value_t = DeliveryArgument::Auto)]
    delivery: DeliveryArgument,
    /// Rows of a chunk, if they are decided.
    #[arg(long, value_name = "N", value_parser = parse_chunk_rows)]
    chunk_rows: Option<usize>,
    /// gemm-ar: up to how many rows it goes one-shot, if it is decided.
    #[arg(long, value_name = "N")]
    one_shot_rows: Option<usize>,
    #[command(flatten)]
    group: GroupArguments,
    /// How to report.
    #[arg(long, value_enum, default_value_t = FormatArgument::Table)]
    format: FormatArgument,
}

impl PlanArguments {
    fn spec(&self, ranks: usize) -> OpSpec {
        let (n, k) = match self.op {
            OpArgument::AgGemm => (self.n.saturating_mul(ranks), self.k),
            OpArgument::GemmRs | OpArgument::GemmAr => (self.n, self.k.saturating_mul(ranks)),
        };
        let mut spec = OpSpec::new(n, k, self.max_m.unwrap_or(self.m), self.dtype.into());
        spec.activation = self.activation.into();
        spec.path = self.path.into();
        spec.direction = self.transfer.map(Into::into);
        spec.delivery = self.delivery.into();
        (spec.chunk_rows, spec.one_shot_rows) = (self.chunk_rows, self.one_shot_rows);
        self.group.apply_to(&mut spec);
        spec
    }
}

impl From<OpArgument> for OpKind {
    fn from(op: OpArgument) -> Self {
        match op {
            OpArgument::AgGemm => OpKind::AgGemm,
            OpArgument::GemmRs => OpKind::GemmRs,
            OpArgument::GemmAr => OpKind::GemmAr,
        }
    }
}

pub(crate) fn run(arguments: &PlanArguments) -> Result<(), Error> {
    if arguments.preset.as_deref() == Some("list") {
        return topo::list_all();
    }
    let (op, m) = (OpKind::from(arguments.op), arguments.m);
    let explain = match Described::new(arguments.preset.as_deref(), arguments.file.as_deref())? {
        Some(described) => {
            let found = described.of_ranks(arguments.ranks)?;
            flux::explain_on(&found, op, &arguments.spec(found.machine.gpus()), m)?
        }
        None => {
            let group =
                arguments.group.group(arguments.ranks, || arguments.group.gpus().max(DEFAULT_RANKS))?;
            let explain = flux::explain(&group, op, &arguments.spec(group.world_size()), m)?;
            if !speaks(&group) {
                return Ok(());
            }
            explain
        }
    };
    match arguments.format {
        FormatArgument::Table => print(&explain),
        FormatArgument::Json => print(format_args!("{:#}", serde_json::json!(explain))),
    }
}
