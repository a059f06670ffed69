//! What can go wrong, and what to do about it.

use flux_memory::Backend;
use std::time::Duration;

/// What can go wrong, and what to do about it. Nothing is lost by an error: no output was written unless an operation had
/// begun, and an operation that had begun says so.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device or its memory failed.
    #[error(transparent)]
    Memory(#[from] flux_memory::Error),
    /// A kernel could not be loaded or launched.
    #[error(transparent)]
    Launch(#[from] flux_launch::Error),
    /// A transfer failed.
    #[error(transparent)]
    Transport(#[from] flux_transport::Error),
    /// Sizes that make no sense.
    #[error(transparent)]
    Swizzle(#[from] flux_swizzle::Error),
    /// The order is one of other ranks than the group has.
    #[error("the order {order} is one of {ranks} ranks, but the group has {world_size}; name each rank once")]
    OtherOrder {
        /// The order.
        order: String,
        /// Ranks that it names.
        ranks: usize,
        /// Ranks of the group.
        world_size: usize,
    },
    /// The simulator does not take a machine.
    #[error(transparent)]
    Simulation(#[from] flux_sim::Error),
    /// No kernel cuts a GEMM into that tile.
    #[error(
        "no kernel here cuts a GEMM into tiles of {tile}; take one of {}, or leave the tile to flux",
        possible.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    NoSuchTile {
        /// The tile that was asked for.
        tile: flux_swizzle::TileShape,
        /// Those that there are.
        possible: Vec<flux_swizzle::TileShape>,
    },
    /// The topology that a group was given is not of as many GPUs as it has ranks.
    #[error(
        "the topology that the group is to reckon with (FLUX_TOPOLOGY, `GroupConfig::topology`) has {gpus} GPUs, and there are \
         {world_size} ranks; give one with a GPU for each rank, or none"
    )]
    OtherTopology {
        /// GPUs of the topology.
        gpus: usize,
        /// Ranks of the group.
        world_size: usize,
    },
    /// The file that `FLUX_TOPOLOGY` names cannot be used.
    #[error("FLUX_TOPOLOGY names {path}: {source}")]
    BadTopology {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: Box<flux_topology::Error>,
    },
    /// Nothing can be planned for a machine.
    #[error("nothing can be planned for this machine: {reason}")]
    NoMachine {
        /// Why.
        reason: String,
    },
    /// What was measured cannot be kept.
    #[error("what was measured cannot be kept in {path:?}: {reason}")]
    TuningCache {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        reason: String,
    },
    /// The processes of a group did not find each other.
    #[error(transparent)]
    Rendezvous(#[from] flux_transport::RendezvousError),
    /// What a launcher said makes no sense.
    #[error(transparent)]
    Launcher(#[from] flux_transport::LaunchError),
    /// No launcher has started this process.
    #[error(
        "no launcher's variables are set (RANK, WORLD_SIZE, ...): start one process per rank with torchrun, mpirun, srun or \
         `flux launch -n W -- COMMAND`, or use `Group::local` for all ranks in one process"
    )]
    NotLaunched,
    /// The CUDA backend was asked for, and there is no GPU.
    #[error("no GPU: the CUDA driver shows none (see CUDA_VISIBLE_DEVICES); use the host backend")]
    NoGpu,
    /// A rank that does not live in this process.
    #[error("rank {rank} is not one of this group's ranks 0 to {}", world_size.saturating_sub(1))]
    NoSuchRank {
        /// The rank that was given.
        rank: usize,
        /// Ranks run from 0 to this, exclusive.
        world_size: usize,
    },
    /// A rank that lives in another process.
    #[error("rank {rank} does not live in this process, but rank {here}; each process calls its own rank")]
    NotHere {
        /// The rank that was given.
        rank: usize,
        /// This process's rank.
        here: usize,
    },
    /// The ranks of a group were formed in different ways.
    #[error(
        "rank {rank} has {what} {theirs}, this rank, {here}, has {ours}; start all ranks with the same program and the same \
         configuration"
    )]
    Disagreement {
        /// The other rank.
        rank: usize,
        /// This rank.
        here: usize,
        /// What differs.
        what: String,
        /// The other rank's.
        theirs: String,
        /// This rank's.
        ours: String,
    },
    /// The process of another rank has ended, or cannot be reached any more.
    #[error(
        "rank {lost} is lost: its process has ended, or cannot be reached; what rank {rank} was waiting for ended at once, \
         its output is invalid, and the group unusable: find out what happened to rank {lost}, then build a new group"
    )]
    RankLost {
        /// The rank that noticed.
        rank: usize,
        /// The rank that is gone.
        lost: usize,
    },
    /// Something could not be sent to a rank on another node, or received from it.
    #[error(
        "rank {rank} could not exchange with {}: {reason}; the output is invalid, and the group unusable: build a new one",
        peer.map_or("its peers".to_owned(), |peer| format!("rank {peer}"))
    )]
    ExchangeFailed {
        /// The rank that noticed.
        rank: usize,
        /// The other one, if it is known which.
        peer: Option<usize>,
        /// What happened, in the words of the transport.
        reason: String,
    },
    /// A transport that this group cannot use.
    #[error(
        "the transport {transport} cannot be: {reason}; choose auto, or what fits (FLUX_TRANSPORT, `GroupConfig::transport`)"
    )]
    UnfitTransport {
        /// What was asked for.
        transport: crate::Transport,
        /// Why not.
        reason: String,
    },
    /// Not the name of a transport.
    #[error("there is no transport `{name}`; there are auto, p2p, nccl, sockets and nvshmem")]
    NoSuchTransport {
        /// What was given.
        name: String,
    },
    /// NCCL was to sum elements that it cannot sum.
    #[error("collectives sum bf16 and f16, not {dtype}; sum results, which are of `DType::result`")]
    NotSummable {
        /// What was given.
        dtype: flux_launch::DType,
    },
    /// A number of nodes that one machine cannot be made to look like.
    #[error(
        "the nodes to pretend (FLUX_FAKE_NODES, `GroupConfig::fake_nodes`): {reason}; give a number from 1 to that of the ranks, \
         on one machine"
    )]
    BadNodes {
        /// What is wrong.
        reason: String,
    },
    /// More rows than the operation was built for.
    #[error("m is {m}, but the operation was built for at most {max_m} rows; build one with a larger max_m")]
    TooManyRows {
        /// Rows of the call.
        m: usize,
        /// Rows that the operation was built for.
        max_m: usize,
    },
    /// Two ranks disagree about the rows of the same call.
    #[error(
        "rank {rank} calls with m = {m} where another rank called with m = {other}; \
         all ranks must make the same sequence of calls"
    )]
    DifferentRows {
        /// The later rank.
        rank: usize,
        /// Its rows.
        m: usize,
        /// The earlier rank's rows.
        other: usize,
    },
    /// A matrix that cannot be what it is said to be.
    #[error("matrix {name}: {reason}")]
    BadMatrix {
        /// A, B or C.
        name: &'static str,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// A bias that cannot be what it is said to be.
    #[error("the bias: {reason}; pass the address of one element for each row of the rank's weight, or none")]
    BadBias {
        /// What is wrong.
        reason: String,
    },
    /// A scale that cannot be what it is said to be.
    #[error(
        "the scale of {name}: {reason}; pass the address of one fp32 number, or of one for each row, of e4m3 matrices only"
    )]
    BadScale {
        /// A or B.
        name: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Two ranks disagree about the scales of the same call.
    #[error(
        "rank {rank} calls {} a scale for each row of A, unlike another rank; all ranks must, or none",
        if *has { "with" } else { "without" }
    )]
    DifferentScales {
        /// The later rank.
        rank: usize,
        /// Whether it has them.
        has: bool,
    },
    /// An activation behind a sum over ranks.
    #[error(
        "{op} applies no activation, but {activation} was asked for: in a transformer layer none follows a row-parallel \
         linear; give the activation to the AgGemm before it"
    )]
    ActivationAfterSum {
        /// The operation.
        op: &'static str,
        /// What was asked for.
        activation: flux_launch::Activation,
    },
    /// SwiGLU of a weight with an odd number of rows.
    #[error(
        "swiglu takes the weight's rows in pairs, gate and up, but n is {n}, which is odd; interleave the two weights"
    )]
    UnpairedRows {
        /// Rows of the whole weight.
        n: usize,
    },
    /// A stream of another backend or device than the rank's.
    #[error(
        "the stream runs on {stream}, but rank {rank} lives on {device}; pass a stream of the rank's device"
    )]
    WrongStream {
        /// Where the stream runs.
        stream: String,
        /// The rank of the call.
        rank: usize,
        /// Where the rank lives.
        device: String,
    },
    /// The stream is being captured into a CUDA graph.
    #[error(
        "rank {rank}'s stream is being captured into a CUDA graph, but each call's signals have a number of their own, which a \
         graph would repeat; end the capture before the call, and begin another one behind it"
    )]
    Captured {
        /// The rank of the call.
        rank: usize,
    },
    /// The element type is not the one that the operation was built for.
    #[error("the operation was built for {built}, the tensors are {given}")]
    WrongDType {
        /// The operation's type.
        built: flux_launch::DType,
        /// The tensors' type.
        given: flux_launch::DType,
    },
    /// A cudarc tensor was passed to a group on another backend.
    #[error("the group runs on the {backend} backend; cudarc tensors need a group on the cuda backend")]
    NotCuda {
        /// The group's backend.
        backend: Backend,
    },
    /// A wait outlived its budget: a signal was lost, or a peer is gone.
    #[error(
        "{op}: rank {rank} waited longer than {budget:?} for rank {peer} ({}signal {signal} shows {seen}, wanted \
         {wanted}); the output is invalid, and the group unusable: find out what happened to rank {peer}, then build a \
         new group",
        tile.map_or(String::new(), |(row, column)| format!("row tile {row}, column tile {column}; "))
    )]
    WaitExpired {
        /// The operation.
        op: String,
        /// The rank that waited.
        rank: usize,
        /// The rank that it waited for.
        peer: usize,
        /// The tile that waited, as its row and column; none if a stream waited for a whole shard.
        tile: Option<(u32, u32)>,
        /// Number of the signal.
        signal: u32,
        /// What it showed.
        seen: u32,
        /// What it should have reached.
        wanted: u32,
        /// How long a wait may last.
        budget: Duration,
    },
    /// An operation wrote past its output.
    #[error("rank {rank} wrote outside of its output: a defect of flux; please report the shape")]
    WroteOutside {
        /// The rank.
        rank: usize,
    },
    /// Ranks that should hold the same result do not.
    #[error("rank {rank} holds another result than rank {other}: a defect of flux; please report the shape")]
    RanksDiffer {
        /// A rank.
        rank: usize,
        /// Another one.
        other: usize,
    },
    /// Ranks that share a GPU were called one by one.
    #[error(
        "rank {rank} shares {device} with other ranks: call them together with `enqueue_all`, since one that waits for a \
         rank called later may hold up the hardware queue that the later one needs"
    )]
    SharedDevice {
        /// The rank of the call.
        rank: usize,
        /// The GPU.
        device: String,
    },
    /// A call of all ranks with a wrong number of parts.
    #[error("{given} {what} were given for {world_size} ranks; give one for each")]
    NotOnePerRank {
        /// What there is a wrong number of.
        what: &'static str,
        /// How many were given.
        given: usize,
        /// How many ranks there are.
        world_size: usize,
    },
    /// An operation has been called so often that its signals could be mistaken.
    #[error("the operation has made 2,147,483,647 calls, all that its signals can tell apart; build it anew")]
    TooManyCalls,
    /// More ranks than a group may have.
    #[error("a group of {world_size} ranks is larger than {max}; use fewer ranks")]
    TooManyRanks {
        /// What was asked for.
        world_size: usize,
        /// The most there may be.
        max: usize,
    },
    /// Traces were asked for, but nobody noted any.
    #[error("the group's calls are not traced; form it with `GroupConfig::trace` set")]
    NotTraced,
    /// An earlier call failed half-way.
    #[error("an earlier call of this operation failed half-way; build a new group")]
    Broken,
}
