//! What can go wrong with devices and memory.

use crate::Placement;

/// What can go wrong with devices and memory, and what to do about it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no CUDA driver on this machine.
    #[error(
        "no CUDA driver: could not open {library} ({reason}); install the NVIDIA driver, or use the host backend"
    )]
    NoCudaDriver {
        /// The library that was looked for.
        library: &'static str,
        /// The loader's words.
        reason: String,
    },
    /// There is a CUDA driver, but no such GPU.
    #[error("there is no GPU {ordinal}: the CUDA driver shows {count} (see CUDA_VISIBLE_DEVICES)")]
    NoSuchDevice {
        /// The ordinal that was asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// An allocation failed.
    #[error(
        "out of memory: {bytes} bytes of {placement} memory could not be allocated on {device}; \
         use a smaller problem or fewer ranks per device"
    )]
    OutOfMemory {
        /// What was asked for.
        bytes: usize,
        /// Where.
        placement: Placement,
        /// On which device.
        device: String,
    },
    /// Two GPUs cannot address each other's memory.
    #[error(
        "GPU {from} cannot access the memory of GPU {to}; put the peers' buffers into pinned host memory"
    )]
    NoPeerAccess {
        /// The device that would access.
        from: usize,
        /// The device whose memory it is.
        to: usize,
    },
    /// A call into the CUDA driver failed.
    #[error("{call} failed: {name} ({description})")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// The driver's name for the error.
        name: String,
        /// The driver's words.
        description: String,
    },
    /// A stream, event or buffer of one backend was used with another's.
    #[error(
        "{what} belongs to another backend than the stream it is used with; build both from the same device"
    )]
    BackendMismatch {
        /// What was passed.
        what: &'static str,
    },
    /// An access outside of a buffer.
    #[error("bytes {offset} to {end} are outside of a buffer of {bytes} bytes")]
    OutOfBounds {
        /// The first byte.
        offset: usize,
        /// The byte after the last.
        end: usize,
        /// The buffer's size.
        bytes: usize,
    },
    /// A call into the operating system failed.
    #[error("{call} failed: {reason}")]
    System {
        /// The call.
        call: &'static str,
        /// The system's words.
        reason: String,
    },
    /// The channel that connects the ranks' processes failed.
    #[error("the ranks could not {step}: {reason}; look for a process that has ended, or has not started")]
    Channel {
        /// What they were about to do together.
        step: String,
        /// The channel's words.
        reason: String,
    },
    /// Another rank could not do what all do together, so none did.
    #[error("rank {rank} could not {step}: {reason}")]
    PeerFailed {
        /// The rank.
        rank: usize,
        /// What they were about to do together.
        step: String,
        /// That rank's error.
        reason: String,
    },
    /// This rank could not do what all do together; the others are told so.
    #[error("{what}: {reason}")]
    Failed {
        /// What they were about to do together.
        what: String,
        /// The error.
        reason: String,
    },
    /// Ranks do different things where all should do the same.
    #[error(
        "rank {rank} is about to {theirs}, this rank to {ours}; all ranks must build the same operations, in the same order, \
         with the same arguments"
    )]
    OutOfStep {
        /// The other rank.
        rank: usize,
        /// What it is about to do.
        theirs: String,
        /// What this rank is about to do.
        ours: String,
    },
    /// A process that does not behave like a rank of this group.
    #[error("rank {rank}: {reason}")]
    BadPeer {
        /// The rank that it should be.
        rank: usize,
        /// What it does.
        reason: String,
    },
    /// The ranks of a machine are not numbered one after the other.
    #[error(
        "ranks {other} and {rank} run on {host}, and others between them elsewhere; number ranks machine by machine (Slurm: \
         `srun --distribution=block`; Open MPI: `mpirun --map-by slot`)"
    )]
    ScatteredRanks {
        /// A rank.
        rank: usize,
        /// An earlier one of the same machine.
        other: usize,
        /// The machine's name.
        host: String,
    },
    /// Memory was to be shared by VMM, and a GPU cannot.
    #[error(
        "the GPU of rank {rank} cannot share memory as files (VMM); use `Sharing::Auto` or `Sharing::Ipc`"
    )]
    NoVmm {
        /// The rank.
        rank: usize,
    },
    /// Memory was to be shared by fabric handles, and a rank cannot.
    #[error(
        "rank {rank} cannot share memory by fabric handles: {reason}; they take GPUs and a driver that know them, and an IMEX \
         channel that the process may open (/dev/nvidia-caps-imex-channels); use `Sharing::Auto` or `Sharing::Vmm`"
    )]
    NoFabric {
        /// The rank.
        rank: usize,
        /// What it said.
        reason: String,
    },
    /// The operating system refused a thread.
    #[error("could not start a worker thread: {reason}; use fewer ranks or raise the limit on threads")]
    NoThread {
        /// The system's words.
        reason: String,
    },
    /// Work on a host stream panicked; the stream takes no more work.
    #[error("work on a host stream panicked: {message}")]
    StreamPanicked {
        /// The panic's message.
        message: String,
    },
}
