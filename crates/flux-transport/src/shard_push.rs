//! A whole shard pushed to all peers at once, where the way of moving data can do that: then the host's part does not grow
//! with the peers and chunks.

use crate::moves::Comes;
use crate::{AllGather, Awaited, Chunk, Direction, Members, Result, Rows};
use flux_memory::{Address, Device};
use flux_swizzle::Taper;

/// Where a rank's shard goes at one peer.
#[derive(Clone, Copy, Debug)]
pub struct PushRoute {
    /// Its gathered rows.
    pub gathered: Address,
    /// Its signal of the rank's first chunk, which the next chunks' follow; [`Address::NULL`] if they are not to be raised.
    pub signals: Address,
    /// Its signal of the rank's whole shard; [`Address::NULL`] likewise.
    pub arrived: Address,
}

/// What stays the same of a rank's pushes.
#[derive(Clone, Debug)]
pub struct PushPlan<'a> {
    /// The rank that pushes.
    pub rank: usize,
    /// Its device.
    pub device: &'a Device,
    /// In the order in which the peers are served.
    pub routes: Vec<PushRoute>,
    /// The most chunks of a shard.
    pub chunks: usize,
}

/// A rank's shard in one call. It has at least one chunk.
#[derive(Clone, Copy, Debug)]
pub struct ShardPush {
    /// The rank that pushes.
    pub rank: usize,
    /// Its shard.
    pub shard: Address,
    /// Where the shard begins among the gathered rows, in bytes.
    pub offset: usize,
    /// Its size.
    pub bytes: usize,
    /// Size of a chunk; the last one may be shorter.
    pub chunk_bytes: usize,
    /// How many chunks it is.
    pub chunks: usize,
    /// What signals are raised to. The peers have acknowledged the call before.
    pub epoch: u32,
    /// Which signals are raised.
    pub awaited: Awaited,
}

/// How a shard is to be pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushWay {
    /// Each chunk to each peer by itself: [`crate::DataTransfer::move_chunk`].
    ByChunks,
    /// All at once, when the stream has seen all acknowledgements: [`crate::DataTransfer::push_shard`].
    Acknowledged,
}

impl AllGather {
    /// Whether a shard is cut alike for all peers, into chunks of one size: which of them are finer depends on the receiver.
    fn is_cut_alike(&self) -> bool {
        self.spec.taper == Taper::NONE
    }

    /// The peers that `rank`'s own shard is copied to, in order; none if not all of that could be one move, the first of one lane.
    fn pushed_at_once(&self, rank: usize) -> impl Iterator<Item = usize> {
        let own = self.ranks[rank].part.copies().filter(|(_, copied)| copied.comes == Comes::Own);
        let at_once = own.clone().all(|(round, copied)| round == 0 && copied.lane == 0);
        own.filter(move |_| at_once).map(|(_, copied)| copied.peer)
    }

    /// Tells the way of moving data what stays the same from call to call.
    pub(crate) fn plan_pushes(&mut self, members: &Members) -> Result<()> {
        let world_size = members.world_size();
        // A traced push goes chunk by chunk, each between its stamps.
        let by_chunks = members.trace || !self.is_cut_alike();
        if self.spec.direction != Direction::Push || by_chunks || world_size < 2 {
            return Ok(());
        }
        for rank in members.local_ranks() {
            let route = |peer| {
                let word = |word: Address| if self.is_lost(rank, peer) { Address::NULL } else { word };
                PushRoute {
                    gathered: self.gathered(peer),
                    signals: word(self.gates.word(peer, self.largest.signal(rank, 0))),
                    arrived: word(self.arrived.word(&self.signals, peer, rank)),
                }
            };
            let plan = PushPlan {
                rank,
                device: &members.devices[rank],
                routes: self.pushed_at_once(rank).map(route).collect(),
                chunks: self.largest.signal(1, 0),
            };
            if !plan.routes.is_empty() {
                self.transfer.plan_push(&plan)?;
            }
        }
        Ok(())
    }

    /// Pushes `rank`'s shard to all peers at once; false, with nothing done, if it is to go chunk by chunk.
    ///
    /// # Safety
    /// As for [`AllGather::stage`].
    pub(crate) unsafe fn push_whole(
        &self,
        rank: usize,
        epoch: u32,
        rows: usize,
        shard: Rows,
        awaited: Awaited,
    ) -> Result<bool> {
        if !self.is_cut_alike() {
            return Ok(false);
        }
        let chunks = self.chunks(rank, rows)?;
        let (rows, row_bytes) = (chunks.shards().range(rank), self.spec.row_bytes);
        let push = ShardPush {
            rank,
            shard: shard.rows,
            offset: rows.start * row_bytes,
            bytes: rows.len() * row_bytes,
            chunk_bytes: chunks.chunk_rows().saturating_mul(row_bytes),
            chunks: chunks.count(rank),
            epoch,
            awaited,
        };
        let link = &self.ranks[rank].link;
        let at_once = self.pushed_at_once(rank).next().is_some();
        if !at_once || link.log.is_some() || push.chunks == 0 || push.bytes == 0 {
            return Ok(false);
        }
        // SAFETY: the caller's promise; the peers have acknowledged the previous call before their rows are overwritten.
        unsafe {
            match self.transfer.push_way(&push) {
                PushWay::ByChunks => return Ok(false),
                PushWay::Acknowledged => {
                    link.lane(0).wait_values(&self.ranks[rank].all_acked, epoch.wrapping_sub(1))?;
                }
            }
            // What is beside the rows goes ahead, at once to each peer: it is little, and the rows' signals cover it.
            for peer in self.pushed_at_once(rank) {
                let to = self.gathered_layout.rows_at(self.gathered(peer), rows.start, true).side;
                if let (Some(from), Some(to)) = (shard.side, to) {
                    let bytes = rows.len() * self.spec.side_bytes;
                    let side = Chunk { from, to, bytes, signal: Address::NULL };
                    self.transfer.move_chunk(link.lane(0), &side, epoch)?;
                }
            }
            self.transfer.push_shard(link.lane(0), &push)?;
        }
        Ok(true)
    }
}
