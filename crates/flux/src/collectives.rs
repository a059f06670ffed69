//! NCCL's own collectives among a group's ranks: what an unfused call is made of elsewhere, to measure beside.

use crate::call::check_stream;
use crate::{DType, Error, Group, Result};
use flux_memory::{Address, Stream};
use flux_transport::{NcclCollectives, SummandType};
use std::sync::PoisonError;

/// `ncclAllGather`, `ncclReduceScatter` and `ncclAllReduce` on streams of the caller's, for all ranks of this process at once.
///
/// No operation of flux uses them: they sum in another order than [`crate::GemmRs`], and round after each addition. A call is
/// ordered with all other calls of the group's ranks, and lasts no longer than [`crate::GroupConfig::wait_budget`] from when its
/// stream has come to it. What goes wrong with a collective is told by [`Collectives::check`] and leaves the group usable. Calls
/// cannot be captured into CUDA graphs.
#[derive(Debug)]
pub struct Collectives {
    /// First, so that it ends before the group does.
    nccl: NcclCollectives,
    group: Group,
}

impl Group {
    /// NCCL's collectives among the ranks, with communicators of their own, which may take as many SMs as NCCL wants. Collective:
    /// every rank calls it. An error, on all ranks, where there is no NCCL, where ranks of one process share a GPU (processes may,
    /// with NCCL 2.30 or newer and `NCCL_MULTI_RANK_GPU_ENABLE=1`), and on the host.
    pub fn collectives(&self) -> Result<Collectives> {
        let members = self.members();
        let nccl = members.space.together("make collectives", || -> Result<_> {
            Ok(match members.space.peers() {
                None => NcclCollectives::here(&members.devices, &members.faults)?,
                Some(peers) => {
                    let rank = peers.rank();
                    NcclCollectives::among(peers, &members.devices[rank], &members.faults[rank])?
                }
            })
        })?;
        Ok(Collectives { nccl, group: self.clone() })
    }
}

impl Collectives {
    /// The version of NCCL, such as `2.30.1`.
    pub fn version(&self) -> String {
        self.nccl.version().to_string()
    }

    /// Reports the first failure of a collective of this process's ranks, in NCCL's words: then no more are enqueued. Cheap, and final
    /// for everything that a synchronised stream has done.
    pub fn check(&self) -> Result<()> {
        Ok(self.nccl.check()?)
    }

    /// Every rank's `bytes` bytes, one behind the other in rank order, to every rank. `places` has for each rank of this process where
    /// it reads, and where it writes; `streams` its stream.
    ///
    /// # Safety
    /// A rank reads `bytes` bytes, and writes as many times that as there are ranks; it may read its own part of what it writes. The
    /// memory is live, the device's, and free of conflicting accesses until the stream has done this.
    pub unsafe fn all_gather(
        &self,
        bytes: usize,
        places: &[(Address, Address)],
        streams: &[&Stream],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        self.in_turn(places, streams, || unsafe { self.nccl.all_gather(bytes, places, streams) })
    }

    /// Rank r gets the sum of all ranks' r-th `elements` elements, which are bf16 or f16.
    ///
    /// # Safety
    /// As for [`Collectives::all_gather`]: a rank reads `elements` elements times the ranks, and writes `elements`.
    pub unsafe fn reduce_scatter(
        &self,
        dtype: DType,
        elements: usize,
        places: &[(Address, Address)],
        streams: &[&Stream],
    ) -> Result<()> {
        let of = (summand(dtype)?, elements);
        // SAFETY: the caller's promise.
        self.in_turn(places, streams, || unsafe { self.nccl.reduce_scatter(of, places, streams) })
    }

    /// Every rank gets the sum of all ranks' `elements` elements, which are bf16 or f16.
    ///
    /// # Safety
    /// As for [`Collectives::all_gather`]: a rank reads and writes `elements` elements, maybe in one place.
    pub unsafe fn all_reduce(
        &self,
        dtype: DType,
        elements: usize,
        places: &[(Address, Address)],
        streams: &[&Stream],
    ) -> Result<()> {
        let of = (summand(dtype)?, elements);
        // SAFETY: the caller's promise.
        self.in_turn(places, streams, || unsafe { self.nccl.all_reduce(of, places, streams) })
    }

    /// Checks a call, and makes it one of its ranks' calls, which come one after the other: beside a collective that has no limit
    /// to its SMs, no call may wait for peers.
    fn in_turn(
        &self,
        places: &[(Address, Address)],
        streams: &[&Stream],
        enqueue: impl FnOnce() -> Result<(), flux_transport::Error>,
    ) -> Result<()> {
        let (ranks, members) = (self.group.local_ranks(), self.group.members());
        for (what, given) in [("places", places.len()), ("streams", streams.len())] {
            if given != ranks.len() {
                return Err(Error::NotOnePerRank { what, given, world_size: ranks.len() });
            }
        }
        for (rank, stream) in ranks.clone().zip(streams) {
            check_stream(&self.group, rank, stream)?;
        }
        let _turn = self.group.turns().all.write().unwrap_or_else(PoisonError::into_inner);
        self.group.check()?;
        for (rank, stream) in ranks.clone().zip(streams) {
            stream.wait(&members.last_calls[rank])?;
        }
        enqueue()?;
        for (rank, stream) in ranks.zip(streams) {
            stream.record(&members.last_calls[rank])?;
        }
        Ok(())
    }
}

fn summand(dtype: DType) -> Result<SummandType> {
    match dtype {
        DType::Bf16 => Ok(SummandType::Bf16),
        DType::F16 => Ok(SummandType::F16),
        DType::E4m3 => Err(Error::NotSummable { dtype }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BackendChoice, GroupConfig};

    #[test]
    fn the_host_has_none_and_its_group_goes_on() {
        let config = GroupConfig { backend: BackendChoice::Host, ..GroupConfig::default() };
        let group = Group::local_with(2, config).unwrap();
        let error = group.collectives().unwrap_err().to_string();
        assert!(error.contains("run on the host"), "{error}");
        group.check().unwrap();
    }

    #[test]
    fn sums_are_of_result_types() {
        for dtype in [DType::Bf16, DType::F16, DType::E4m3] {
            assert!(summand(dtype.result()).is_ok());
            assert_eq!(summand(dtype).is_err(), dtype.is_scaled());
        }
    }
}
