//! What a caller can get wrong.

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller can get wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No GPUs, or more than are simulated.
    #[error(
        "{} GPUs cannot be simulated; from 1 to {most} can",
        if *gpus == usize::MAX { "so many".to_owned() } else { gpus.to_string() }
    )]
    Gpus {
        /// How many were asked for; as many as can be counted if they are more.
        gpus: usize,
        /// How many can be.
        most: usize,
    },
    /// A node's parts do not fit together.
    #[error(
        "the node has {gpus} GPUs, but its NUMA nodes {numa} in all, or a bridge leads elsewhere; make them agree"
    )]
    Node {
        /// Its GPUs.
        gpus: usize,
        /// Those of its NUMA nodes.
        numa: usize,
    },
    /// A speed or an extent is not above zero.
    #[error("{what} is not above zero; it must be")]
    NotPositive {
        /// What it is of.
        what: &'static str,
    },
    /// A GPU or a style has a number that cannot be reckoned with.
    #[error("{what} has a time that is negative, or a rate or an extent that is not above zero; correct it")]
    Constants {
        /// What has it.
        what: &'static str,
    },
    /// No machine has this name.
    #[error("there is no machine named {name:?}; there are {}", crate::Machine::presets().collect::<Vec<_>>().join(", "))]
    UnknownPreset {
        /// The name.
        name: String,
    },
    /// The problem is larger than numbers here can be.
    #[error("{what} is {value}, and at most {most} can be simulated")]
    TooLarge {
        /// What of the problem.
        what: &'static str,
        /// How large it is.
        value: usize,
        /// How large it may be.
        most: usize,
    },
    /// Not the machine's ranks.
    #[error("the pattern is of {ranks} ranks, and the machine has {gpus} GPUs; there is one rank on each")]
    OtherRanks {
        /// Those of the pattern.
        ranks: usize,
        /// Those of the machine.
        gpus: usize,
    },
    /// The pattern makes no sense.
    #[error(transparent)]
    Swizzle(#[from] flux_swizzle::Error),
}
