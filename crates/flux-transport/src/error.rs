//! What can go wrong with transfers.

/// What can go wrong with transfers, and what to do about it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device or its memory failed.
    #[error(transparent)]
    Memory(#[from] flux_memory::Error),
    /// The sizes make no sense.
    #[error(transparent)]
    Swizzle(#[from] flux_swizzle::Error),
    /// A way of moving data failed, in its own words.
    #[error("{0}")]
    Transfer(#[source] std::sync::Arc<dyn std::error::Error + Send + Sync>),
    /// A way of moving data that can only move chunks was asked for a whole shard.
    #[error("the shard of rank {rank} cannot be pushed whole; move it chunk by chunk")]
    NotWhole {
        /// The rank.
        rank: usize,
    },
    /// There is no way to a rank that cannot be addressed.
    #[error(
        "rank {rank} cannot address the memory of all its peers, and has no `Exchange` with the others; give `Members` one"
    )]
    NoExchange {
        /// The rank.
        rank: usize,
    },
    /// The space is of more ranks, or of fewer, than its reach.
    #[error(
        "the nodes hold {reached} ranks, but there are {world_size}; give the space a `Reach` of its own ranks"
    )]
    WrongReach {
        /// Ranks of the reach.
        reached: usize,
        /// Ranks of the space.
        world_size: usize,
    },
    /// The pattern is of more ranks, or of fewer, than there are.
    #[error(
        "the order is one of {ranks} ranks, but there are {world_size}; name each rank of the group once"
    )]
    OtherPattern {
        /// Ranks of the pattern.
        ranks: usize,
        /// Ranks that there are.
        world_size: usize,
    },
    /// What comes to a rank cannot be passed on from there.
    #[error(
        "in this order ranks pass on what has come to them, which takes device memory: through pinned host memory it would go over \
         the same link once more; use the order full-mesh, or device memory"
    )]
    CannotPassOn,
    /// Ranks could not be connected with each other.
    #[error("rank {rank} could not be connected with those whose memory it cannot address: {reason}")]
    NotConnected {
        /// This rank.
        rank: usize,
        /// What happened.
        reason: String,
    },
    /// NCCL failed, or is missing.
    #[error("{what}: {reason}")]
    Nccl {
        /// What it was to do.
        what: &'static str,
        /// NCCL's words, or where it was looked for.
        reason: String,
    },
    /// NVSHMEM failed, or is missing.
    #[error("{what}: {reason}")]
    Nvshmem {
        /// What it was to do.
        what: &'static str,
        /// What happened, or where it was looked for.
        reason: String,
    },
    /// A rank outside the group.
    #[error("rank {rank} is out of range; the group has ranks 0 to {}", world_size.saturating_sub(1))]
    RankOutOfRange {
        /// The rank that was given.
        rank: usize,
        /// Ranks run from 0 to this, exclusive.
        world_size: usize,
    },
    /// A rank of another process was asked to do something.
    #[error("rank {rank} does not live in this process")]
    NotHere {
        /// The rank.
        rank: usize,
    },
    /// A member lacks a part.
    #[error(
        "{devices} devices, {logs} fault logs and {events} events are no members; give each rank one of each"
    )]
    IncompleteMembers {
        /// Devices given.
        devices: usize,
        /// Fault logs given.
        logs: usize,
        /// Events given.
        events: usize,
    },
    /// More rows than the buffers were made for.
    #[error(
        "{rows} rows are more than the {max_rows} that the buffers were made for; build the op for more rows"
    )]
    TooManyRows {
        /// What was asked for.
        rows: usize,
        /// What there is room for.
        max_rows: usize,
    },
}
