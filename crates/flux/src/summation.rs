//! Where the slots of a ReduceScatter are summed.

use crate::{Group, Placement};
use flux_memory::Backend;

/// Where a rank sums the partial tiles that its peers sent it, in a fused [`crate::GemmRs`], or in a [`crate::GemmAr`] in two
/// steps. The result is the same, bit by bit: in rank order, then the bias, rounded once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Summation {
    /// Folded where it can be, unless the slots lie in pinned host memory: a GPU that reads from there as fast as the link
    /// can take it starves its own GEMM.
    #[default]
    Auto,
    /// In the GEMM's epilogue of the rank's own tiles, which come last: what the peers sent is read while other blocks multiply,
    /// and the rank's own partial sums never leave the SM. A kernel then waits for the peers' kernels; all of them run at
    /// once, since ranks that share a GPU have shares of its SMs. Tiles that are split along K cannot: as asked, others are
    /// chosen; with [`Summation::Auto`], the sum is separate then. So it is all the same where no kernel can: the portable
    /// one, and more ranks than a stage of Hopper's has room for (7 to 23, by tile).
    Folded,
    /// By a kernel of its own, after the GEMM. It takes 2 to 4 % of the GEMM's time (on an H200).
    Separate,
}

impl Summation {
    /// Whether fused calls of `group` are to fold the sum in where the kernel can.
    pub(crate) fn folds(self, group: &Group) -> bool {
        match self {
            Summation::Auto => {
                group.backend() == Backend::Host || group.config().peer_memory == Placement::Device
            }
            Summation::Folded => true,
            Summation::Separate => false,
        }
    }
}

impl std::fmt::Display for Summation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Summation::Auto => "auto",
            Summation::Folded => "folded",
            Summation::Separate => "separate",
        })
    }
}
