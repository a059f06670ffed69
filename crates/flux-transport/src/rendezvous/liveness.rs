//! The threads of a formed group: one reads each connection, one sends heartbeats and listens for silence.

use super::channel::{Channel, Peer};
use super::error::RendezvousError;
use super::frame::{Call, Frame};
use std::net::Shutdown;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const STACK_BYTES: usize = 256 << 10;

/// Starts the threads. If one cannot be started, those before it end.
pub(super) fn start(channel: &Arc<Channel>) -> Result<Vec<JoinHandle<()>>, RendezvousError> {
    let mut threads = Vec::new();
    if channel.peers.iter().flatten().next().is_none() {
        return Ok(threads);
    }
    let mut spawn = |name: String, work: Box<dyn FnOnce() + Send>| {
        let spawned = std::thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(work);
        spawned.map(|thread| threads.push(thread))
    };
    let mut started = Ok(());
    for rank in channel.peers.iter().flatten().map(|peer| peer.rank) {
        let own = Arc::clone(channel);
        channel.state().readers += 1;
        started =
            started.and_then(|()| spawn(format!("flux-peer-{rank}"), Box::new(move || read(&own, rank))));
    }
    let own = Arc::clone(channel);
    started = started.and_then(|()| spawn("flux-heartbeat".into(), Box::new(move || keep_watch(&own))));
    match started {
        Ok(()) => Ok(threads),
        Err(error) => {
            channel.leave(false);
            threads.into_iter().for_each(|thread| drop(thread.join()));
            Err(RendezvousError::system("a thread", error))
        }
    }
}

/// Reads what one peer sends, until its connection ends.
fn read(channel: &Channel, rank: usize) {
    let Some(peer) = channel.peers[rank].as_ref() else { return };
    // Left over from the handshake; from now on the watch ends a connection that is silent.
    if let Err(error) = peer.stream.set_read_timeout(None) {
        channel.lose(rank, &error.to_string());
    }
    loop {
        match Frame::read(&peer.stream, channel.world_size) {
            Ok(frame) => {
                channel.state().heard[rank] = Instant::now();
                if let Err(how) = take(channel, peer, frame) {
                    tracing::warn!(
                        rank = channel.rank,
                        peer = rank,
                        how,
                        "a peer does not keep to the protocol"
                    );
                    channel.lose(rank, how);
                    break;
                }
            }
            Err(error) => {
                channel.lose(rank, &error.to_string());
                break;
            }
        }
    }
    channel.state().readers -= 1;
    channel.changed.notify_all();
}

/// Takes in a frame of `peer`, or says why it cannot be.
fn take(channel: &Channel, peer: &Peer, frame: Frame) -> Result<(), &'static str> {
    let rank = peer.rank;
    let is_root = channel.rank == 0;
    match frame {
        Frame::Heartbeat => {}
        Frame::Contribution(call, bytes) if is_root => {
            let mut state = channel.state();
            if state.contributions[rank].is_some() && state.failure.is_none() {
                return Err("it did not wait for the end of a call");
            }
            state.contributions[rank] = Some((call, bytes));
            drop(state);
            channel.changed.notify_all();
        }
        Frame::Result(call, parts) if !is_root => {
            channel.state().result = Some((call, parts));
            channel.changed.notify_all();
        }
        Frame::Goodbye => {
            channel.state().left[rank] = true;
            channel.changed.notify_all();
            if is_root {
                channel.broadcast(&Frame::Left(rank), Some(rank));
            }
            let _ = peer.stream.shutdown(Shutdown::Write);
        }
        Frame::Left(left) if !is_root => {
            channel.state().left[left] = true;
            channel.changed.notify_all();
        }
        Frame::Lost(lost) if !is_root => channel.fail(RendezvousError::Lost { rank: lost }),
        Frame::Late(call, missing) => {
            let failure = RendezvousError::Late { missing: missing.clone(), call: call.number };
            if is_root {
                channel.fail_all(failure, &Frame::Late(call, missing));
            } else {
                channel.fail(failure);
            }
        }
        Frame::OutOfStep { rank, theirs, ours } if !is_root => {
            channel.fail(out_of_step(rank, theirs, ours));
        }
        _ => return Err("it sent what only rank 0 sends, or what rank 0 never sends"),
    }
    Ok(())
}

pub(super) fn out_of_step(rank: usize, theirs: Call, ours: Call) -> RendezvousError {
    RendezvousError::OutOfStep { rank, theirs: theirs.to_string(), ours: ours.to_string() }
}

/// Sends heartbeats, and notices who sends none: a host that is gone closes no connection.
fn keep_watch(channel: &Channel) {
    let beat = Frame::Heartbeat.encode();
    let mut previous = Instant::now();
    loop {
        let state = channel.state();
        let waited = channel.changed.wait_timeout_while(state, channel.heartbeat, |state| !state.leaving);
        if waited.is_ok_and(|(state, _)| state.leaving) {
            return;
        }
        // A process that was stopped itself has heard nobody, and reads in a moment what has come meanwhile.
        let now = Instant::now();
        if now.duration_since(previous) > channel.heartbeat + channel.silence / 2 {
            let mut state = channel.state();
            state.heard.iter_mut().for_each(|heard| *heard = now);
        }
        previous = now;
        for peer in channel.peers.iter().flatten() {
            let (left, heard) = {
                let state = channel.state();
                (state.left[peer.rank], state.heard[peer.rank])
            };
            if left {
                continue;
            }
            if now.saturating_duration_since(heard) > channel.silence {
                channel.lose(peer.rank, "it is silent");
            } else if let Err(error) = channel.send(peer, &beat) {
                channel.lose(peer.rank, &error.to_string());
            }
        }
    }
}

/// What a rank allows beyond the time that rank 0 waits, so that rank 0, which knows who is missing, speaks first.
pub(super) fn grace(timeout: Duration) -> Duration {
    (timeout / 2).min(Duration::from_secs(1))
}
