//! Whether what the ranks of a node have for another one is summed before it leaves.

use crate::call::kernel_size;
use crate::{DType, Delivery, Error, Group, Result};
use flux_launch::SumParams;
use flux_memory::{Address, Stream};
use flux_transport::{NodeSum, SumSlots};
use std::sync::Arc;

/// In how many levels a [`crate::GemmRs`], or a [`crate::GemmAr`] in two steps, sums over nodes. Two move fewer bytes over the network:
/// with L ranks on each of N nodes, each rank sends N - 1 shards to other nodes, and not (N - 1) · L. Within a node nothing
/// changes, and on one node neither does anything else.
///
/// The bits differ: in two levels, what comes from another node is rounded once more. Either way they are the same in every call, and
/// in every way of going about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Levels {
    /// Two between several nodes of the same number of ranks, two or more, which address each other's memory. One elsewhere, and where
    /// GEMMs are asked to put their tiles by themselves ([`crate::Transport::Nvshmem`] and [`Delivery::Direct`]).
    #[default]
    Auto,
    /// Each rank's partial sums go to their owner, which adds all of them in rank order: the bits are those of one node.
    One,
    /// The ranks of a node first sum what they have for an owner on another one, in fp32, in rank order, and send the sum, rounded once.
    /// The owner adds these and its own node's partial sums in the order of nodes. An error where that cannot be. No GEMM puts tiles
    /// by itself. Takes two more slots for each other node.
    Two,
}

impl Levels {
    /// Whether there are two in `group`, whichever way calls go.
    pub(crate) fn are_two(self, group: &Group, delivery: Delivery) -> Result<bool> {
        let reach = group.members().space.reach();
        let fit = flux_transport::check_two_levels(reach);
        match self {
            Levels::One => Ok(false),
            Levels::Auto => Ok(fit.is_ok() && !(group.nvshmem().is_some() && delivery == Delivery::Direct)),
            Levels::Two => fit.map(|()| true).map_err(Error::from),
        }
    }
}

impl std::fmt::Display for Levels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Levels::Auto => "auto",
            Levels::One => "one",
            Levels::Two => "two",
        })
    }
}

/// Sums slots of an operation with the kernel that its owners sum with.
#[derive(Debug)]
pub(crate) struct NodeSums {
    group: Group,
    dtype: DType,
    columns: usize,
    pitch: usize,
    op: u32,
}

impl NodeSums {
    /// Of rows of `columns` results of `dtype`, `pitch` apart.
    pub(crate) fn shared(
        group: &Group,
        dtype: DType,
        (columns, pitch): (usize, usize),
        op: u32,
    ) -> Arc<dyn SumSlots> {
        Arc::new(Self { group: group.clone(), dtype, columns, pitch, op })
    }

    fn params(&self, sum: &NodeSum) -> Result<SumParams> {
        Ok(SumParams {
            slots: sum.slots,
            source_pitch: (sum.slot_rows * self.pitch) as u64,
            ld_slot: self.pitch as u64,
            out: sum.out,
            ld_out: self.pitch as u64,
            bias: Address::NULL,
            signals: sum.signals,
            source_stride: kernel_size("the number of blocks of rows", sum.source_stride)?,
            signal_rows: kernel_size("the number of rows", sum.signal_rows)?,
            rows: kernel_size("the number of rows", sum.rows)?,
            n: kernel_size("n", self.columns)?,
            world_size: kernel_size("the number of ranks", sum.sources)?,
            epoch: sum.epoch,
            wait: self.group.members().faults[sum.rank].bound(self.op),
        })
    }
}

impl SumSlots for NodeSums {
    unsafe fn sum(&self, stream: &Stream, sum: &NodeSum) -> flux_transport::Result<()> {
        let launcher = self.group.launcher(sum.rank);
        // SAFETY: the caller's promise.
        let enqueued = self
            .params(sum)
            .and_then(|params| Ok(unsafe { launcher.sum_beside(stream, self.dtype, &params) }?));
        enqueued.map_err(|error| flux_transport::Error::Transfer(Arc::new(error)))
    }
}
