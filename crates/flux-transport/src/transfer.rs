//! How one chunk gets from one rank's memory to another's.

use crate::{Error, PushPlan, PushWay, Result, ShardPush};
use flux_memory::{Address, Stream};

/// Who moves the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The sender writes to the receiver's memory. Over NVLink the faster way for small chunks (2.4–2.8 times at 1 MiB,
    /// measured on two H200s), since nothing is asked for first.
    #[default]
    Push,
    /// The receiver reads from the sender's memory, once the sender says that it is ready.
    Pull,
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Direction::Push => "push",
            Direction::Pull => "pull",
        })
    }
}

/// What of a gathered call is waited for: only those signals are raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Each chunk, by a GEMM whose gates are the chunks' signals.
    Chunks,
    /// Whole shards, by streams.
    Shards,
}

/// A contiguous block of rows on its way, and the signal that follows it.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Where it is.
    pub from: Address,
    /// Where it goes.
    pub to: Address,
    /// Its size.
    pub bytes: usize,
    /// The receiver's signal word; [`Address::NULL`] if nobody waits for this chunk alone.
    pub signal: Address,
}

/// Moves chunks: the way depends on what lies between the two ranks.
pub trait DataTransfer: std::fmt::Debug + Send + Sync {
    /// Enqueues on `stream`: move `chunk`, then raise its signal to `epoch`, visible only after the data.
    ///
    /// # Safety
    /// Both ranges and the signal are live, and reachable by the stream's device, until the stream has done this; nobody
    /// else writes to the target meanwhile.
    unsafe fn move_chunk(&self, stream: &Stream, chunk: &Chunk, epoch: u32) -> Result<()>;

    /// Told once for each rank that pushes, before any transfer.
    fn plan_push(&mut self, _plan: &PushPlan<'_>) -> Result<()> {
        Ok(())
    }

    /// How `push` is to be made; by default chunk by chunk.
    fn push_way(&self, _push: &ShardPush) -> PushWay {
        PushWay::ByChunks
    }

    /// Enqueues on `stream`: move a shard along all routes of its rank's plan, and raise the signals, each visible only after
    /// its data. Called only if [`DataTransfer::push_way`] says so.
    ///
    /// # Safety
    /// As for [`DataTransfer::move_chunk`]; the peers have acknowledged the previous call.
    unsafe fn push_shard(&self, _stream: &Stream, push: &ShardPush) -> Result<()> {
        Err(Error::NotWhole { rank: push.rank })
    }
}

/// Copies by the copy engine, between ranks that can address each other's memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerCopy;

impl DataTransfer for PeerCopy {
    unsafe fn move_chunk(&self, stream: &Stream, chunk: &Chunk, epoch: u32) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            stream.copy(chunk.to, chunk.from, chunk.bytes)?;
            if !chunk.signal.is_null() {
                stream.write_values(&[(chunk.signal, epoch)])?;
            }
        }
        Ok(())
    }
}
