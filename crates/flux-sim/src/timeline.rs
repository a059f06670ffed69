//! What happens when.

/// What a rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activity {
    /// It multiplies tiles.
    Multiply,
    /// SMs wait for data.
    Wait,
    /// It sends to a peer, as the peer sees it: from the call to the signal.
    Transfer,
    /// It sums what has come.
    Sum,
    /// It prepares: barriers, local copies, launches.
    Prepare,
}

impl Activity {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Activity::Multiply => "multiply",
            Activity::Wait => "wait",
            Activity::Transfer => "transfer",
            Activity::Sum => "sum",
            Activity::Prepare => "prepare",
        }
    }
}

/// A stretch of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The rank that does it.
    pub rank: usize,
    /// What it does.
    pub activity: Activity,
    /// The shard whose rows it concerns, if it is one.
    pub shard: Option<usize>,
    /// To whom a transfer goes.
    pub destination: Option<usize>,
    /// When it begins, in µs from the call.
    pub begin_us: f64,
    /// When it ends.
    pub end_us: f64,
}
