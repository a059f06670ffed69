//! How the shards of an AllGather are pushed: a copy for each chunk and peer, or one kernel for each rank.

use crate::{Group, Placement, Result};
use flux_launch::{PushParams, PushPeer};
use flux_memory::{Buffer, PerRank, Stream};
use flux_transport::{Awaited, Chunk, DataTransfer, PeerCopy, PushPlan, PushRoute, PushWay, ShardPush};
use std::sync::Arc;

/// How the shards of an AllGather get from a rank to its peers, where [`crate::Direction::Push`] is the direction. Where the
/// kernel cannot do it (rows that do not begin at multiples of 16 bytes, peers in pinned host memory, traced groups, chunks
/// that are finer at one end: [`crate::OpSpec::taper`]), copies do, whatever was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Push {
    /// By kernel where ranks share a GPU: there copies run on SMs anyway, and each costs the host 4 µs, measured on an H200.
    /// By copy elsewhere.
    #[default]
    Auto,
    /// By copies, one for each chunk and peer. Between GPUs they take no SM.
    Copies,
    /// By one kernel for each rank, which costs the host one launch: only where ranks share a GPU, whose GEMMs leave SMs free
    /// for it (and on the host, where threads interpret it). A rank that has its GPU to itself uses copies all the same: on
    /// two H200s a push by kernel found no SM beside a GEMM that fills them, and each rank's GEMM waited for the other's push.
    Kernel,
}

impl std::fmt::Display for Push {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Push::Auto => "auto",
            Push::Copies => "copies",
            Push::Kernel => "kernel",
        })
    }
}

/// What the choice depends on.
#[derive(Clone, Copy, Debug)]
struct Surroundings {
    on_gpu: bool,
    shares_gpu: bool,
    peer_memory: Placement,
}

/// Whether shards are pushed by kernel.
fn by_kernel(asked: Push, at: Surroundings) -> bool {
    match asked {
        Push::Copies => false,
        _ if at.peer_memory == Placement::PinnedHost => false,
        _ if at.on_gpu => at.shares_gpu,
        Push::Kernel => true,
        Push::Auto => false,
    }
}

/// Pushes whole shards by kernel where that is chosen; everything else by copy engine.
#[derive(Debug)]
pub(crate) struct KernelPush {
    asked: Push,
    ranks: PerRank<Option<Pusher>>,
    group: Group,
}

/// What one rank's launches take.
#[derive(Debug)]
struct Pusher {
    peers: Buffer,
    peer_count: u32,
    counters: Buffer,
}

impl KernelPush {
    pub(crate) fn boxed(asked: Push, group: &Group) -> Box<dyn DataTransfer> {
        let ranks = PerRank::new(group.local_ranks(), |_| None);
        Box::new(Self { asked, ranks, group: group.clone() })
    }

    fn pusher(&self, plan: &PushPlan<'_>) -> Result<Option<Pusher>> {
        let shares_gpu = !self.group.is_alone(plan.rank);
        let on_gpu = plan.device.as_cuda().is_some();
        let at = Surroundings { on_gpu, shares_gpu, peer_memory: self.group.config().peer_memory };
        if !by_kernel(self.asked, at) {
            return Ok(None);
        }
        self.group.launcher(plan.rank).prepare_push()?;
        let peers: Vec<_> = plan.routes.iter().map(entry).collect();
        let stream = plan.device.stream()?;
        let upload = |bytes: &[u8]| {
            let buffer = Buffer::allocate(plan.device, bytes.len(), Placement::Device)?;
            buffer.upload(&stream, 0, bytes).map(|()| buffer)
        };
        Ok(Some(Pusher {
            peer_count: number(peers.len()),
            counters: upload(&vec![0; peers.len() * plan.chunks.max(1) * size_of::<u32>()])?,
            peers: upload(bytemuck::cast_slice(&peers))?,
        }))
    }
}

fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn entry(route: &PushRoute) -> PushPeer {
    PushPeer { gathered: route.gathered, signals: route.signals, arrived: route.arrived }
}

impl Pusher {
    fn params(&self, push: &ShardPush) -> PushParams {
        PushParams {
            shard: push.shard,
            offset: push.offset as u64,
            bytes: push.bytes as u64,
            // Of a single chunk, which the shard need not fill, the size says nothing.
            chunk_bytes: push.chunk_bytes.min(push.bytes) as u64,
            peers: self.peers.address(),
            counters: self.counters.address(),
            peer_count: self.peer_count,
            chunks: number(push.chunks),
            epoch: push.epoch,
            by_shard: u32::from(push.awaited == Awaited::Shards),
        }
    }
}

impl DataTransfer for KernelPush {
    unsafe fn move_chunk(&self, stream: &Stream, chunk: &Chunk, epoch: u32) -> flux_transport::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { PeerCopy.move_chunk(stream, chunk, epoch) }
    }

    fn plan_push(&mut self, plan: &PushPlan<'_>) -> flux_transport::Result<()> {
        let pusher = self.pusher(plan).map_err(|error| flux_transport::Error::Transfer(Arc::new(error)))?;
        if let Some(rank) = self.ranks.get_mut(plan.rank) {
            *rank = pusher;
        }
        Ok(())
    }

    fn push_way(&self, push: &ShardPush) -> PushWay {
        match self.ranks.get(push.rank) {
            Some(Some(pusher)) if pusher.params(push).is_aligned() => PushWay::Acknowledged,
            _ => PushWay::ByChunks,
        }
    }

    unsafe fn push_shard(&self, stream: &Stream, push: &ShardPush) -> flux_transport::Result<()> {
        let Some(Some(pusher)) = self.ranks.get(push.rank) else {
            return Err(flux_transport::Error::NotWhole { rank: push.rank });
        };
        // SAFETY: the caller's promise; the table and the counters live as long as this, and a rank's pushes come one after
        // the other, on its transfer stream.
        unsafe { self.group.launcher(push.rank).push(stream, &pusher.params(push)) }
            .map_err(|error| flux_transport::Error::Transfer(Arc::new(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_has_its_gpu_to_itself_never_pushes_by_kernel() {
        use Placement::{Device, PinnedHost};
        for (on_gpu, shares_gpu, peer_memory, auto, asked) in [
            (true, true, Device, true, true),
            (true, false, Device, false, false),
            (true, true, PinnedHost, false, false),
            (true, false, PinnedHost, false, false),
            (false, false, Device, false, true),
            (false, false, PinnedHost, false, false),
        ] {
            let at = Surroundings { on_gpu, shares_gpu, peer_memory };
            assert_eq!(by_kernel(Push::Auto, at), auto, "{at:?}");
            assert_eq!(by_kernel(Push::Kernel, at), asked, "{at:?}");
            assert!(!by_kernel(Push::Copies, at), "{at:?}");
        }
    }
}
