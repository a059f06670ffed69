//! What can go wrong with kernels.

/// What can go wrong with kernels, and what to do about it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device or its memory failed.
    #[error(transparent)]
    Memory(#[from] flux_memory::Error),
    /// More tiles than an order entry can number.
    #[error(
        "{tiles} tiles in one dimension are more than the 65,536 that a launch can number; split the matrix"
    )]
    TooManyTiles {
        /// Tiles along the dimension.
        tiles: usize,
    },
    /// A size or pitch that the kernels' 32-bit fields cannot hold: 2³¹ − 256.
    #[error("{what} is {value}, more than a kernel can take (2,147,483,392); split the matrix")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its value.
        value: usize,
    },
    /// A schedule larger than the tables made for it.
    #[error("a schedule of {tiles} tiles does not fit into tables for {capacity}")]
    ScheduleTooLarge {
        /// Tiles of the schedule.
        tiles: usize,
        /// Tiles that there is room for.
        capacity: usize,
    },
    /// Too many ranks on one GPU: together they would fill it, and the copies between them need SMs too.
    #[error(
        "{sharing} ranks cannot share {device}: after leaving room for copies it runs {blocks} blocks at once, \
         and each rank needs one; use fewer ranks per GPU"
    )]
    TooManySharing {
        /// Ranks on the GPU.
        sharing: usize,
        /// Blocks that can run at once.
        blocks: usize,
        /// The GPU.
        device: String,
    },
    /// An order names a row tile that its table does not have.
    #[error(
        "the order names row tile {index}, which the table of row tiles does not have; build both from one order"
    )]
    NoSuchRowTile {
        /// Its index.
        index: usize,
    },
    /// A ReduceScatter was launched without saying where to.
    #[error("a ReduceScatter needs destinations; make `Destinations` and pass them to the launch")]
    NoDestinations,
    /// A kernel that puts could not be linked with NVSHMEM's device library.
    #[error(
        "the kernel {name} cannot be linked with {archive}, and NVSHMEM 3.2 to 3.8 are known; another version's host library can be named \
         in FLUX_NVSHMEM_LIBRARY: {reason}"
    )]
    NotLinked {
        /// The kernel's name.
        name: String,
        /// The library.
        archive: String,
        /// What the linker, or NVSHMEM, said.
        reason: String,
    },
    /// The embedded manifest does not describe a kernel that is needed.
    #[error(
        "the kernel {name} is missing or ill-described in the embedded manifest; rebuild with `cargo xtask build-kernels`"
    )]
    NoKernel {
        /// The kernel's name.
        name: String,
    },
    /// A GPU's kernels for these elements do not note their times.
    #[error(
        "{dtype} cannot be traced on a GPU: its kernels are built for bf16 only; trace bf16, or use the host backend"
    )]
    NotTraceable {
        /// The elements.
        dtype: crate::DType,
    },
    /// A traced call of more units than there is room for.
    #[error("a traced call of {units} units of work does not fit into records for {capacity}")]
    TraceFull {
        /// Units of the call.
        units: usize,
        /// Units that there is room for.
        capacity: usize,
    },
    /// A kernel that should tell the time has not.
    #[error("{device} does not tell its time within a second; is something else keeping all of it busy?")]
    NoClock {
        /// The GPU.
        device: String,
    },
    /// The operating system refused threads.
    #[error(
        "could not start {threads} worker threads: {reason}; use fewer ranks or raise the limit on threads"
    )]
    NoThreads {
        /// What was asked for.
        threads: usize,
        /// The system's words.
        reason: String,
    },
}
