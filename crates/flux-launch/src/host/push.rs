//! A rank's shard, pushed to all its peers.

use crate::{PushParams, PushPeer};
use flux_memory::{Address, host};

/// Moves the shard to each peer in turn, chunk by chunk, each followed by its signal.
///
/// # Safety
/// As for [`crate::Launcher::push`]; all addresses are of host memory.
pub(crate) unsafe fn run(params: &PushParams) {
    // SAFETY: the caller's promise.
    let peers =
        unsafe { std::slice::from_raw_parts(params.peers.as_ptr::<PushPeer>(), params.peer_count as usize) };
    for peer in peers {
        for chunk in 0..params.chunks as usize {
            let begin = chunk * params.chunk_bytes as usize;
            let bytes = (params.chunk_bytes as usize).min(params.bytes as usize - begin);
            let to = peer.gathered.add(params.offset as usize + begin);
            let signal = match params.by_shard {
                0 if !peer.signals.is_null() => peer.signals.add(chunk * size_of::<u32>()),
                0 => peer.signals,
                _ if chunk + 1 == params.chunks as usize => peer.arrived,
                _ => Address::NULL,
            };
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy(params.shard.add(begin).as_ptr::<u8>(), to.as_ptr::<u8>(), bytes) };
            if !signal.is_null() {
                // SAFETY: a live word.
                unsafe { host::raise(signal, params.epoch) };
            }
        }
    }
}
