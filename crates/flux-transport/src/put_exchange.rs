//! Exchanging by puts: a rank writes into memory of a peer that it has no address of, and raises a signal behind it, without the
//! peer's help.
//!
//! Two words for each pair of ranks and direction keep them apart. The receiver counts up `ready` at the sender, once for each
//! message that it has room for; the sender waits for that, puts the message, and counts up `came` at the receiver, which waits
//! for it in turn. Both are counted in the order of the steps, which is the same at both ends, and compare modulo 2³²: who waits
//! reads the lower half of the 64-bit words that a put raises. In a step `ready` is said first, before anything is waited for: so
//! the argument of `exchange.rs` holds.

use crate::link::stream_site;
use crate::{Exchange, Message, Result};
use flux_memory::{Address, Device, Event, FaultLog, Stream, SymmetricBuffer, WaitPoint};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

/// A way to write to symmetric memory of peers that have no address here.
pub trait Put: Debug + Send + Sync {
    /// Enqueues on `stream`: `message`, and then `value`, as 64 bits, into the word of the peer that corresponds to `signal` of
    /// this rank's symmetric memory. The message may be overwritten when the stream has done this, and has come before the word.
    ///
    /// # Safety
    /// As for [`Exchange::step`]; the message lies in symmetric memory, or in what else can be put from, and `signal` is aligned to
    /// 8 bytes.
    unsafe fn put(&self, stream: &Stream, message: &Message, signal: Address, value: u32) -> Result<()>;

    /// Enqueues the signal alone.
    ///
    /// # Safety
    /// As for [`Put::put`].
    unsafe fn signal(&self, stream: &Stream, peer: usize, signal: Address, value: u32) -> Result<()>;
}

/// One rank's exchange by puts with all ranks of its group.
#[derive(Debug)]
pub struct PutExchange {
    put: Arc<dyn Put>,
    rank: usize,
    world_size: usize,
    /// Of each peer: it has room.
    ready: Vec<Arc<WaitPoint>>,
    /// Of each peer: its message is here.
    came: Vec<Arc<WaitPoint>>,
    progress: Mutex<Progress>,
    /// Last: the wait points are in it.
    words: SymmetricBuffer,
}

/// How far the enqueued steps have come.
#[derive(Debug)]
struct Progress {
    sent: Vec<u32>,
    received: Vec<u32>,
    /// The end of the last step: each operation has a stream of its own.
    last: Event,
}

impl PutExchange {
    /// The operation in fault records, for a wait that belongs to none.
    pub const NO_OP: u32 = u32::MAX;

    /// Bytes of symmetric memory that [`PutExchange::new`] takes.
    pub const fn bytes(world_size: usize) -> usize {
        2 * world_size * size_of::<u64>()
    }

    /// `rank`'s, on `device`; `words` are [`PutExchange::bytes`] of what is put into.
    pub fn new(
        put: Arc<dyn Put>,
        device: &Device,
        (rank, world_size): (usize, usize),
        words: SymmetricBuffer,
        log: &Arc<FaultLog>,
    ) -> Result<Self> {
        // A peer may itself be waiting for another: whoever waits for its tiles is to be the one that reports it.
        let log = log.with_budget(log.budget().saturating_mul(2));
        let points = |row: usize| {
            let of_peer = |peer| {
                let index = row * world_size + peer;
                vec![(words.address(rank).add(index * size_of::<u64>()), stream_site(peer, index))]
            };
            log.wait_points(Self::NO_OP, (0..world_size).map(of_peer).collect())
        };
        let progress =
            Progress { sent: vec![0; world_size], received: vec![0; world_size], last: Event::new(device)? };
        let (ready, came, progress) = (points(READY)?, points(CAME)?, Mutex::new(progress));
        Ok(Self { put, rank, world_size, ready, came, progress, words })
    }

    /// This rank's word at a peer, in a row of them.
    fn own_word(&self, row: usize) -> Address {
        self.words.address(self.rank).add((row * self.world_size + self.rank) * size_of::<u64>())
    }
}

const READY: usize = 0;
const CAME: usize = 1;

impl Exchange for PutExchange {
    unsafe fn step(
        &self,
        stream: &Stream,
        log: &Arc<FaultLog>,
        sends: &[Message],
        receives: &[Message],
    ) -> Result<()> {
        if log.has_given_up() {
            return Ok(()); // nor do peers that have gone
        }
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let Progress { sent, received, last } = &mut *progress;
        stream.wait(last)?;
        let is_message = |message: &&Message| message.bytes > 0;
        for Message { peer, .. } in receives.iter().filter(is_message) {
            received[*peer] = received[*peer].wrapping_add(1);
        }
        // Once for each peer, however many messages it sends.
        let senders =
            || (0..received.len()).filter(|&peer| receives.iter().any(|m| m.peer == peer && m.bytes > 0));
        // SAFETY: the caller's promise; the words live as long as this.
        unsafe {
            for peer in senders() {
                self.put.signal(stream, peer, self.own_word(READY), received[peer])?;
            }
            for message in sends.iter().filter(is_message) {
                let count = &mut sent[message.peer];
                *count = count.wrapping_add(1);
                stream.wait_values(&self.ready[message.peer], *count)?;
                self.put.put(stream, message, self.own_word(CAME), *count)?;
            }
            for peer in senders() {
                stream.wait_values(&self.came[peer], received[peer])?;
            }
        }
        Ok(stream.record(last)?)
    }

    fn put(&self) -> Option<&Arc<dyn Put>> {
        Some(&self.put)
    }
}
