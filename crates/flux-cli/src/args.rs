//! What the command understands.

use crate::bench::BenchArguments;
use crate::error::Error;
use crate::launch::LaunchArguments;
use crate::plan::PlanArguments;
use crate::sim::SimArguments;
use crate::trace::TraceArguments;
use crate::tune::TuneArguments;
use clap::{Args, Parser, Subcommand, ValueEnum};
use flux::{
    Activation, BackendChoice, Delivery, Device, Direction, Group, GroupConfig, Levels, OpSpec, Order,
    PathPreference, Placement, Push, Sharing, Summation, Sweeps, TileShape, Transport,
};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Tensor-parallel communication hidden inside the GEMM, tile by tile.
#[derive(Parser)]
#[command(name = "flux", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Runs and verifies a transformer's MLP: AllGather+GEMM+GELU, GEMM+ReduceScatter, fused and unfused.
    Demo(DemoArguments),
    /// Runs one operation on matrices from a file.
    Run(RunArguments),
    /// Measures an operation beside its parts, its alternatives, and cuBLAS.
    Bench(BenchArguments),
    /// Shows what happens when in one call: tile by tile, and chunk by chunk.
    Trace(TraceArguments),
    /// Starts a command once for each rank of a group, on this machine.
    Launch(LaunchArguments),
    /// Simulates an operation on a machine that is not at hand: how long each way takes, and what happens when.
    Sim(SimArguments),
    /// Says which way calls of an operation go, and why they go no other.
    Plan(PlanArguments),
    /// Measures which way calls go best, and keeps it for operations to go by.
    Tune(TuneArguments),
    /// Shows the GPUs and what connects them.
    Topo(TopoArguments),
}

/// Where to run, and on how many ranks.
#[derive(Args)]
pub(crate) struct GroupArguments {
    /// What to run on.
    #[arg(long, value_enum, default_value_t = BackendArgument::Auto)]
    backend: BackendArgument,
    /// Where buffers that peers write to lie.
    #[arg(long, value_enum, default_value_t = PeerMemoryArgument::Device)]
    peer_memory: PeerMemoryArgument,
    /// Between processes: how they get at each other's GPU memory.
    #[arg(long, value_enum, default_value_t = SharingArgument::Auto)]
    sharing: SharingArgument,
    /// How what goes between ranks goes: auto (into each other's memory within a node; between nodes nccl on GPUs, sockets on the
    /// host), p2p, nccl, sockets or nvshmem.
    #[arg(long, default_value_t = Transport::Auto)]
    transport: Transport,
    /// Makes this machine look like so many nodes, between whose ranks there is no way into each other's memory.
    #[arg(long, value_name = "N")]
    fake_nodes: Option<NonZeroUsize>,
    /// In which order ranks exchange their shards: auto (what fits, as `flux topo` says, or is expected or was measured to be faster),
    /// full-mesh, ring, or as ranks are connected, like ring:0-3/4-7.
    #[arg(long, default_value_t = Order::Auto)]
    pub(crate) order: Order,
    /// The tile that GEMMs are cut into, if it is decided, like 128x256; an impossible one lists those that there are.
    #[arg(long, value_name = "ROWSxCOLUMNS")]
    tile: Option<TileShape>,
    /// How many shards fused GEMMs sweep together, where each travels whole: each sweep so many times as many as all before it, 0 for one by
    /// one, or two, the own shard and all others; by default as is expected to be the fastest.
    #[arg(long, value_name = "GROWTH")]
    shard_sweeps: Option<Sweeps>,
    /// gemm-rs and gemm-ar: into how many panels, blocks of columns, chunks of relayed tiles are cut; by default up to four between
    /// GPUs, elsewhere one.
    #[arg(long, value_name = "N")]
    panels: Option<std::num::NonZeroUsize>,
    /// gemm-rs, and gemm-ar in two steps: whether what goes to another node is summed in its own before.
    #[arg(long, value_enum, default_value_t = LevelsArgument::Auto)]
    levels: LevelsArgument,
    /// How long a wait for a peer may last, in milliseconds.
    #[arg(long, default_value_t = 10_000, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    wait_budget_ms: u64,
    /// What `flux tune` has measured, which calls go by; by default flux/tuning.json in XDG_CACHE_HOME, or in ~/.cache.
    #[arg(long, value_name = "FILE")]
    cache: Option<PathBuf>,
}

impl GroupArguments {
    /// Where measurements are kept.
    pub(crate) fn cache(&self) -> Option<PathBuf> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let default = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
        self.cache.clone().or_else(|| Some(default()?.join("flux").join("tuning.json")))
    }

    /// How many GPUs a group could use.
    pub(crate) fn gpus(&self) -> usize {
        match self.backend {
            BackendArgument::Host => 0,
            BackendArgument::Auto | BackendArgument::Cuda => Device::cuda_count().unwrap_or(0),
        }
    }

    /// Tells `spec` what is said here of exchanges.
    pub(crate) fn apply_to(&self, spec: &mut OpSpec) {
        spec.order = self.order.clone();
        spec.tile = self.tile;
        spec.sweeps = self.shard_sweeps;
        spec.panels = self.panels.map(Into::into);
        spec.levels = match self.levels {
            LevelsArgument::Auto => Levels::Auto,
            LevelsArgument::One => Levels::One,
            LevelsArgument::Two => Levels::Two,
        };
    }

    /// The group of the processes that a launcher has started, this one among them, if one has; else `ranks` ranks in this
    /// process.
    pub(crate) fn group(
        &self,
        ranks: Option<usize>,
        default: impl FnOnce() -> usize,
    ) -> Result<Group, Error> {
        let mut config = self.config();
        (config.transport, config.fake_nodes) = (self.transport, self.fake_nodes);
        match (flux::launch_environment()?, ranks) {
            (Some(launched), Some(ranks)) if launched.world_size != ranks => {
                Err(Error::OtherRanks { ranks, launched: launched.world_size })
            }
            (Some(_), _) => Ok(Group::from_env_with(config)?),
            (None, _) => Ok(Group::local_with(ranks.unwrap_or_else(default), config.overridden()?)?),
        }
    }

    pub(crate) fn config(&self) -> GroupConfig {
        let mut config = GroupConfig::default();
        config.backend = match self.backend {
            BackendArgument::Auto => BackendChoice::Auto,
            BackendArgument::Host => BackendChoice::Host,
            BackendArgument::Cuda => BackendChoice::Cuda,
        };
        config.peer_memory = match self.peer_memory {
            PeerMemoryArgument::Device => Placement::Device,
            PeerMemoryArgument::PinnedHost => Placement::PinnedHost,
        };
        config.sharing = match self.sharing {
            SharingArgument::Auto => Sharing::Auto,
            SharingArgument::Fabric => Sharing::Fabric,
            SharingArgument::Vmm => Sharing::Vmm,
            SharingArgument::Ipc => Sharing::Ipc,
        };
        config.tuning = self.cache();
        config.wait_budget = std::time::Duration::from_millis(self.wait_budget_ms);
        config
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum BackendArgument {
    /// GPUs where there are any, else the host.
    Auto,
    Host,
    Cuda,
}

#[derive(Clone, Copy, ValueEnum)]
enum PeerMemoryArgument {
    Device,
    /// Ranks of one GPU then exchange over PCIe.
    PinnedHost,
}

#[derive(Clone, Copy, ValueEnum)]
enum LevelsArgument {
    /// Two between nodes of the same number of ranks.
    Auto,
    /// All partial sums go to their owner: the bits of one node.
    One,
    /// What goes to another node is summed first: fewer bytes, and one rounding more.
    Two,
}

#[derive(Clone, Copy, ValueEnum)]
enum SharingArgument {
    /// Fabric where all ranks can, else vmm, else ipc.
    Auto,
    /// Allocations as fabric handles.
    Fabric,
    /// Allocations as open files.
    Vmm,
    /// CUDA IPC handles.
    Ipc,
}

#[derive(Args)]
pub(crate) struct DemoArguments {
    #[command(flatten)]
    pub(crate) group: GroupArguments,
    /// Ranks; by default 4, or one for each GPU if there are more. Ranks that outnumber the GPUs share them. Under a launcher,
    /// each process is one.
    #[arg(long, value_name = "W", value_parser = parse_ranks)]
    pub(crate) ranks: Option<usize>,
}

#[derive(Args)]
pub(crate) struct RunArguments {
    /// Which operation.
    #[arg(value_enum)]
    pub(crate) op: OpArgument,
    #[command(flatten)]
    pub(crate) group: GroupArguments,
    /// Ranks. Under a launcher each process is one, and this may be left out.
    #[arg(long, value_name = "W", value_parser = parse_ranks)]
    pub(crate) ranks: Option<usize>,
    /// A safetensors file with `a` [M, K] and `b` [N, K] in BF16, F16 or F8_E4M3; from the last, `c` is BF16.
    #[arg(long, value_name = "IN.safetensors")]
    pub(crate) input: PathBuf,
    /// Where `c` [M, N] goes; [M, N/2] with swiglu.
    #[arg(long, value_name = "OUT.safetensors")]
    pub(crate) output: PathBuf,
    /// Adds this tensor of the input, with N elements, to every row of `c`.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "bias")]
    pub(crate) bias: Option<String>,
    /// F8_E4M3: multiplies `a` by this F32 tensor of the input: one number, or one for each of its M rows.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "a_scale")]
    pub(crate) a_scale: Option<String>,
    /// F8_E4M3: multiplies `b` by this F32 tensor of the input: one number, or one for each of its N rows.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "b_scale")]
    pub(crate) b_scale: Option<String>,
    /// ag-gemm: what is applied to the product and the bias. swiglu takes rows 2j and 2j + 1 of `b` as gate and up.
    #[arg(long, value_enum, default_value_t = ActivationArgument::None)]
    pub(crate) activation: ActivationArgument,
    /// Which way to go.
    #[arg(long, value_enum, default_value_t = PathArgument::Auto)]
    pub(crate) path: PathArgument,
    /// Rows in which a shard travels; by default as many as the link needs for its speed.
    #[arg(long, value_name = "N", value_parser = parse_chunk_rows)]
    pub(crate) chunk_rows: Option<usize>,
    /// gemm-ar: the most rows whose tiles go to all ranks at once; by default as many as fit into 1 MiB, at most 256.
    #[arg(long, value_name = "N")]
    pub(crate) one_shot_rows: Option<usize>,
    /// Who moves data between ranks, the sender or the receiver; by default whichever is expected to be faster.
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
    /// How to report.
    #[arg(long, value_enum, default_value_t = ReportArgument::Text)]
    pub(crate) report: ReportArgument,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum OpArgument {
    /// C = A·Bᵀ, rows of A and of B sharded over the ranks.
    AgGemm,
    /// C = A·Bᵀ, columns (K) of A and of B sharded over the ranks, rows of C too.
    GemmRs,
    /// C = A·Bᵀ, columns (K) of A and of B sharded over the ranks, the whole C on every rank.
    GemmAr,
}

impl OpArgument {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            OpArgument::AgGemm => "ag-gemm",
            OpArgument::GemmRs => "gemm-rs",
            OpArgument::GemmAr => "gemm-ar",
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum ActivationArgument {
    None,
    Gelu,
    Silu,
    SwiGlu,
}

impl From<ActivationArgument> for Activation {
    fn from(activation: ActivationArgument) -> Self {
        match activation {
            ActivationArgument::None => Activation::None,
            ActivationArgument::Gelu => Activation::Gelu,
            ActivationArgument::Silu => Activation::Silu,
            ActivationArgument::SwiGlu => Activation::SwiGlu,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum PathArgument {
    Auto,
    Fused,
    Unfused,
    Chunked,
}

impl From<PathArgument> for PathPreference {
    fn from(path: PathArgument) -> Self {
        match path {
            PathArgument::Auto => PathPreference::Auto,
            PathArgument::Fused => PathPreference::Fused,
            PathArgument::Unfused => PathPreference::Unfused,
            PathArgument::Chunked => PathPreference::Chunked,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum TransferArgument {
    Push,
    Pull,
}

impl From<TransferArgument> for Direction {
    fn from(transfer: TransferArgument) -> Self {
        match transfer {
            TransferArgument::Push => Direction::Push,
            TransferArgument::Pull => Direction::Pull,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum PushArgument {
    /// By kernel where ranks share a GPU, by copies elsewhere.
    Auto,
    /// A copy for each chunk and peer.
    Copies,
    /// As auto on GPUs; on the host one kernel for each rank, interpreted by threads.
    Kernel,
}

impl From<PushArgument> for Push {
    fn from(push: PushArgument) -> Self {
        match push {
            PushArgument::Auto => Push::Auto,
            PushArgument::Copies => Push::Copies,
            PushArgument::Kernel => Push::Kernel,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum DeliveryArgument {
    /// Whichever is expected to be faster on this machine.
    Auto,
    /// Each tile straight to its owner.
    Direct,
    /// Tiles to the own rank's memory, and from there by copy engine.
    Relayed,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum SumArgument {
    /// Folded where it can be, unless the slots lie in pinned host memory.
    Auto,
    /// In the GEMM's epilogue, if its kernel can.
    Folded,
    /// By a kernel of its own, after the GEMM.
    Separate,
}

impl From<SumArgument> for Summation {
    fn from(sum: SumArgument) -> Self {
        match sum {
            SumArgument::Auto => Summation::Auto,
            SumArgument::Folded => Summation::Folded,
            SumArgument::Separate => Summation::Separate,
        }
    }
}

impl From<DeliveryArgument> for Delivery {
    fn from(delivery: DeliveryArgument) -> Self {
        match delivery {
            DeliveryArgument::Auto => Delivery::Auto,
            DeliveryArgument::Direct => Delivery::Direct,
            DeliveryArgument::Relayed => Delivery::Relayed,
        }
    }
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub(crate) enum ReportArgument {
    Text,
    Json,
}

#[derive(Args)]
pub(crate) struct TopoArguments {
    /// Show this machine instead of the one here; `list` lists them.
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Option<String>,
    /// Show the machine that a file describes: NCCL's topology XML, or the text of `nvidia-smi topo -m`;
    /// `-` is the standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    pub(crate) file: Option<std::path::PathBuf>,
    /// Show so many of it, joined by a network.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) nodes: usize,
    /// In which form.
    #[arg(long, value_enum, default_value_t = TopoFormat::Table)]
    pub(crate) format: TopoFormat,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub(crate) enum TopoFormat {
    /// The matrix, and what follows from it in plain words.
    Table,
    /// Everything for a program.
    Json,
    /// What NCCL reads from NCCL_TOPO_FILE.
    Xml,
    /// A drawing.
    Svg,
}

pub(crate) fn parse_ranks(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("a group has at least one rank".into()),
        Ok(ranks) if ranks > 1024 => Err("at most 1024 ranks".into()),
        Ok(ranks) => Ok(ranks),
        Err(_) => Err("a number from 1 to 1024 is needed".into()),
    }
}

pub(crate) fn parse_chunk_rows(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("a chunk has at least one row".into()),
        Ok(rows) => Ok(rows),
        Err(_) => Err("a number of rows is needed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }
}
