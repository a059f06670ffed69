//! Why a group could not be formed, or fell apart.

use std::time::Duration;

/// Why processes could not form a group, or why a formed one no longer works, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// What this rank was told makes no sense.
    #[error("{what}")]
    Invalid {
        /// What is wrong, and what to do.
        what: String,
    },
    /// A name that means no address.
    #[error(
        "cannot find the address of rank 0, `{host}`: {reason}; check MASTER_ADDR, or give a numeric address"
    )]
    NoAddress {
        /// The name.
        host: String,
        /// What the system says.
        reason: String,
    },
    /// Rank 0 cannot listen.
    #[error(
        "rank 0 cannot listen on {address}: {reason}; the address must be one of its own machine's, and the port must be \
         free: choose another port (FLUX_PORT, or MASTER_PORT), the same for all ranks"
    )]
    CannotListen {
        /// Where it tried to.
        address: String,
        /// What the system says.
        reason: String,
    },
    /// Rank 0 has waited in vain.
    #[error(
        "ranks {} of {world_size} did not come to {address} within {waited:?}{}; check that all were started, with the \
         same world size, address and token",
        list(missing),
        refusals(refused)
    )]
    RanksMissing {
        /// Who did not come.
        missing: Vec<usize>,
        /// How many ranks there should be.
        world_size: usize,
        /// Where rank 0 listened.
        address: String,
        /// For how long.
        waited: Duration,
        /// Who was refused meanwhile, and why: the first few.
        refused: Vec<String>,
    },
    /// Nothing came of joining rank 0.
    #[error(
        "rank {rank} could not join rank 0 at {address} within {waited:?}: {reason}; check that rank 0 runs, that this \
         is its address, and that no firewall is between"
    )]
    NoRankZero {
        /// This rank.
        rank: usize,
        /// Where it tried.
        address: String,
        /// For how long.
        waited: Duration,
        /// How the last attempt ended.
        reason: String,
    },
    /// What listens at rank 0's address is something else, or has another token.
    #[error(
        "what listens at {address} is not rank 0 of this group: {reason}; check address and port, and that all ranks have \
         the same token (FLUX_TOKEN) and the same build of flux"
    )]
    NotRankZero {
        /// Where.
        address: String,
        /// How that was noticed.
        reason: String,
    },
    /// Rank 0 does not want this rank.
    #[error("rank 0 at {address} refuses rank {rank}: {reason}")]
    Refused {
        /// This rank.
        rank: usize,
        /// Where rank 0 is.
        address: String,
        /// Rank 0's own words.
        reason: String,
    },
    /// The process of a rank has ended without leaving, or is out of reach.
    #[error(
        "rank {rank} is lost: its process has ended, or is out of reach; see its own output, and start all ranks again"
    )]
    Lost {
        /// The rank.
        rank: usize,
    },
    /// A rank has left the group in good order, while others still need it.
    #[error(
        "rank {rank} has left the group; all ranks must make the same collective calls before the first one leaves"
    )]
    Left {
        /// The rank.
        rank: usize,
    },
    /// Ranks did not come to a collective call in time.
    #[error(
        "ranks {} did not come to collective call {call} in time; see what holds them up, or allow more time",
        list(missing)
    )]
    Late {
        /// Who did not come.
        missing: Vec<usize>,
        /// Which call of the channel, counted from 1.
        call: u64,
    },
    /// Ranks make different calls.
    #[error(
        "rank {rank} makes {theirs} where rank 0 makes {ours}; all ranks must make the same sequence of collective calls"
    )]
    OutOfStep {
        /// The rank that differs from rank 0.
        rank: usize,
        /// What that rank does.
        theirs: String,
        /// What rank 0 does.
        ours: String,
    },
    /// More bytes than a rank may contribute.
    #[error("{bytes} bytes are too many for a collective call; each rank may contribute {limit}")]
    TooLarge {
        /// What was given.
        bytes: usize,
        /// What there may be.
        limit: usize,
    },
    /// The system gives no more threads, sockets or random numbers.
    #[error("the system refuses {what}: {reason}; raise its limits")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What the system says.
        reason: String,
    },
}

impl RendezvousError {
    pub(super) fn system(what: &'static str, reason: impl ToString) -> Self {
        RendezvousError::System { what, reason: reason.to_string() }
    }
}

/// Ranks for a person: all of a few, the first of many.
fn list(ranks: &[usize]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = ranks.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = ranks.len().saturating_sub(SHOWN);
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

fn refusals(refused: &[String]) -> String {
    if refused.is_empty() { String::new() } else { format!(" (refused meanwhile: {})", refused.join("; ")) }
}
