//! How a GEMM's partial tiles get to the ranks that sum them.

use crate::{Group, Placement};
use flux_memory::Backend;

/// How the tiles of a fused [`crate::GemmRs`], or of a [`crate::GemmAr`] in two steps, get to the ranks that sum them. The
/// result is the same, bit by bit. Either way the source sends, whatever [`crate::Direction`] says; a one-shot
/// [`crate::GemmAr`] always sends directly, to all ranks at once. What goes to other nodes first goes, either way, to a rank of the own
/// node that sums it ([`crate::Levels`]); in one level it is relayed, unless the GEMM can put it there: with
/// [`crate::Transport::Nvshmem`], if [`Delivery::Direct`] is asked for, by the portable kernel, whose last bits may differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// What was measured, or is clearly expected, to be faster. Where nothing speaks for either: relayed where the slots lie in pinned host memory, or on several GPUs; direct where all ranks share one GPU, whose
    /// SMs copies would need, and on the host.
    #[default]
    Auto,
    /// Each tile is written straight into its slot at its owner. An SM that stores as fast as a link can take it starves its
    /// own loads: on an H200, direct stores over PCIe took 1.58 times max(GEMM, traffic), and over NVLink the GEMM ran at
    /// 0.77 to 0.95 of its speed.
    Direct,
    /// Each tile is written to its own rank's memory, and the copy engine carries a chunk of rows, or a panel of its
    /// columns, when the last tile is there. On the same machines: 1.08 to 1.12 times max(GEMM, traffic), and 0.946 to 0.965 of the GEMM's speed, the sum
    /// included. Takes as much memory as the slots, unless calls may also go unfused, which need that anyway.
    Relayed,
}

impl std::fmt::Display for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Delivery::Auto => "auto",
            Delivery::Direct => "direct",
            Delivery::Relayed => "relayed",
        })
    }
}

/// What an operation does, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    DirectAsAsked,
    /// Directly, also to ranks out of reach.
    PutAsAsked,
    DirectOnTheHost,
    DirectWithinAGpu,
    RelayedAsAsked,
    RelayedToHostMemory,
    RelayedToOtherGpus,
    DirectAsPlanned,
    RelayedAsPlanned,
}

impl Choice {
    pub(crate) fn new(asked: Delivery, group: &Group) -> Self {
        Self::on(asked, group.backend(), group.config().peer_memory, group.world_size(), group.devices())
    }

    fn on(asked: Delivery, backend: Backend, slots: Placement, world_size: usize, gpus: usize) -> Self {
        match (asked, backend, slots) {
            (Delivery::Direct, ..) => Choice::DirectAsAsked,
            (Delivery::Relayed, ..) => Choice::RelayedAsAsked,
            (Delivery::Auto, Backend::Host, _) => Choice::DirectOnTheHost,
            (Delivery::Auto, _, Placement::PinnedHost) if world_size > 1 => Choice::RelayedToHostMemory,
            (Delivery::Auto, ..) if gpus > 1 => Choice::RelayedToOtherGpus,
            (Delivery::Auto, ..) => Choice::DirectWithinAGpu,
        }
    }

    /// What the planner has found to be better than what usually is.
    pub(crate) const fn planned(delivery: Delivery) -> Self {
        match delivery {
            Delivery::Relayed => Choice::RelayedAsPlanned,
            Delivery::Direct | Delivery::Auto => Choice::DirectAsPlanned,
        }
    }

    /// Never [`Delivery::Auto`].
    pub(crate) const fn delivery(self) -> Delivery {
        match self {
            Choice::DirectAsAsked
            | Choice::PutAsAsked
            | Choice::DirectOnTheHost
            | Choice::DirectWithinAGpu
            | Choice::DirectAsPlanned => Delivery::Direct,
            Choice::RelayedAsAsked
            | Choice::RelayedToHostMemory
            | Choice::RelayedToOtherGpus
            | Choice::RelayedAsPlanned => Delivery::Relayed,
        }
    }
}

/// Why a call goes its way, and then why its tiles go theirs: `&'static str`, for a call allocates nothing.
macro_rules! with_delivery {
    ($why:literal, $choice:expr) => {
        match $choice {
            $crate::delivery::Choice::DirectAsAsked => {
                concat!($why, "; tiles are delivered directly, as asked")
            }
            $crate::delivery::Choice::PutAsAsked => {
                concat!(
                    $why,
                    "; tiles are delivered directly, as asked: the GEMM itself puts what goes out of reach"
                )
            }
            $crate::delivery::Choice::DirectOnTheHost => {
                concat!(
                    $why,
                    "; tiles are delivered directly: on the host, copies have no engine of their own"
                )
            }
            $crate::delivery::Choice::DirectWithinAGpu => {
                concat!($why, "; tiles are delivered directly: within a GPU, copies would take SMs")
            }
            $crate::delivery::Choice::DirectAsPlanned => {
                concat!($why, "; tiles are delivered directly, as planned")
            }
            $crate::delivery::Choice::RelayedAsPlanned => concat!($why, "; tiles are relayed, as planned"),
            $crate::delivery::Choice::RelayedAsAsked => concat!($why, "; tiles are relayed, as asked"),
            $crate::delivery::Choice::RelayedToHostMemory => {
                concat!($why, "; tiles are relayed: stores to host memory would hold up the GEMM")
            }
            $crate::delivery::Choice::RelayedToOtherGpus => {
                concat!($why, "; tiles are relayed: stores to other GPUs would hold up the GEMM")
            }
        }
    };
}
pub(crate) use with_delivery;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_relays_where_stores_would_leave_the_gpu() {
        use {Backend::*, Placement::*};
        for (backend, slots, world_size, gpus, choice, why) in [
            (Host, Device, 4, 1, Choice::DirectOnTheHost, "on the host"),
            (Host, PinnedHost, 4, 1, Choice::DirectOnTheHost, "on the host"),
            (Cuda, Device, 8, 1, Choice::DirectWithinAGpu, "within a GPU"),
            (Cuda, PinnedHost, 8, 1, Choice::RelayedToHostMemory, "host memory"),
            (Cuda, PinnedHost, 1, 1, Choice::DirectWithinAGpu, "within a GPU"),
            (Cuda, Device, 8, 8, Choice::RelayedToOtherGpus, "other GPUs"),
            (Cuda, Device, 8, 2, Choice::RelayedToOtherGpus, "other GPUs"),
        ] {
            let on = |asked| Choice::on(asked, backend, slots, world_size, gpus);
            assert_eq!(on(Delivery::Auto), choice);
            let text = with_delivery!("first", choice);
            assert!(text.starts_with("first; ") && text.contains(why), "{text}");
            assert_eq!(choice.delivery() == Delivery::Relayed, text.contains("relayed"));
            for (asked, choice) in
                [(Delivery::Direct, Choice::DirectAsAsked), (Delivery::Relayed, Choice::RelayedAsAsked)]
            {
                assert_eq!((on(asked), choice.delivery()), (choice, asked));
            }
        }
    }
}
