//! What can be wrong with a launcher's variables.

/// What is wrong with a launcher's variables, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Some of a launcher's variables are set, but not all that are needed.
    #[error("{present} is set but {missing} is not; {advice}")]
    Missing {
        /// A variable that is set.
        present: &'static str,
        /// One that is needed with it.
        missing: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A value that makes no sense by itself.
    #[error("{variable} is `{value}`, and must be {wanted}; set it so, or start the process with a launcher")]
    BadValue {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        wanted: &'static str,
    },
    /// A rank that is too large.
    #[error("{variable} is {value}, but {bound_variable} is {bound}; ranks count from 0, so it must be less")]
    OutOfRange {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: usize,
        /// The one that bounds it.
        bound_variable: &'static str,
        /// That one's value.
        bound: usize,
    },
    /// More ranks on a node than there are.
    #[error(
        "{variable} is {value}, but there are {world_size} ranks in all; a node cannot have more of them"
    )]
    LocalExceedsWorld {
        /// The variable that says how many ranks a node has.
        variable: &'static str,
        /// Its value.
        value: usize,
        /// How many ranks there are.
        world_size: usize,
    },
}
