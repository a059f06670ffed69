//! A formed group as one rank sees it: its connections, what has come in, and who is still there.

use super::deadline::write_all;
use super::error::RendezvousError;
use super::frame::{Call, Frame};
use super::spec::RendezvousSpec;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a rank that leaves waits for the others' ends of its connections to close.
const LEAVING: Duration = Duration::from_millis(500);
const NOBODY: usize = usize::MAX;

/// A formed group as one rank sees it.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) collective_timeout: Duration,
    pub(super) heartbeat: Duration,
    pub(super) silence: Duration,
    /// On rank 0 those of all others, by rank; elsewhere only rank 0's.
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) state: Mutex<State>,
    /// Something in `state` has changed.
    pub(super) changed: Condvar,
    /// Held while something goes to all peers, so that all of them see the same order: no rank hears that another has left
    /// before it has the result of the last call that one took part in.
    broadcasting: Mutex<()>,
    /// Held during a collective call: how many there have been.
    pub(super) calls: Mutex<u64>,
    /// The rank in `state.failure`, if that is a loss; apart, so that a look at it waits for nobody.
    lost: AtomicUsize,
}

/// A connection to another rank.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) rank: usize,
    pub(super) stream: TcpStream,
    /// Held while a frame is written.
    writing: Mutex<()>,
}

#[derive(Debug)]
pub(super) struct State {
    /// Rank 0: what has come for its next call, by rank.
    pub(super) contributions: Vec<Option<(Call, Vec<u8>)>>,
    /// Elsewhere: what rank 0 has sent last.
    pub(super) result: Option<(Call, Vec<Vec<u8>>)>,
    /// Why there will be no more collective calls. The first reason stays: what follows is its consequence.
    pub(super) failure: Option<RendezvousError>,
    /// Rank 0 is telling the others why, and will put it down: who leaves now does so for that reason, which is not known here yet.
    pub(super) is_failing: bool,
    /// Ranks that have left in good order.
    pub(super) left: Vec<bool>,
    /// When each rank gave a sign of life, on whose connection this rank listens.
    pub(super) heard: Vec<Instant>,
    /// Threads that read.
    pub(super) readers: usize,
    /// This rank leaves: its connections end.
    pub(super) leaving: bool,
}

impl Channel {
    pub(super) fn new(spec: &RendezvousSpec, streams: Vec<Option<TcpStream>>) -> Self {
        let peer = |(rank, stream): (usize, Option<TcpStream>)| {
            stream.map(|stream| Peer { rank, stream, writing: Mutex::new(()) })
        };
        let world_size = spec.world_size;
        Channel {
            rank: spec.rank,
            world_size,
            collective_timeout: spec.collective_timeout,
            heartbeat: spec.heartbeat,
            silence: spec.silence,
            peers: streams.into_iter().enumerate().map(peer).collect(),
            state: Mutex::new(State {
                contributions: vec![None; world_size],
                result: None,
                failure: None,
                is_failing: false,
                left: vec![false; world_size],
                heard: vec![Instant::now(); world_size],
                readers: 0,
                leaving: false,
            }),
            changed: Condvar::new(),
            broadcasting: Mutex::new(()),
            calls: Mutex::new(0),
            lost: AtomicUsize::new(NOBODY),
        }
    }

    pub(super) fn lost_rank(&self) -> Option<usize> {
        let lost = self.lost.load(Ordering::Acquire);
        (lost != NOBODY).then_some(lost)
    }

    /// What is behind the lock is whole after each statement, so that a thread that panicked left nothing half done.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts down why the group has come apart, unless that is known.
    pub(super) fn fail(&self, failure: RendezvousError) {
        let mut state = self.state();
        if state.failure.is_none() && !state.leaving {
            if let RendezvousError::Lost { rank } = failure {
                self.lost.store(rank, Ordering::Release);
                tracing::warn!(rank = self.rank, lost = rank, "a rank is lost");
            }
            state.failure = Some(failure);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Rank 0: tells all others why the group has come apart, and puts it down, unless that is known. They are told first:
    /// a process that hears of a loss may end at once, and must not be taken for the one that was lost.
    pub(super) fn fail_all(&self, failure: RendezvousError, frame: &Frame) {
        let turn = self.turn();
        {
            let mut state = self.state();
            if state.failure.is_some() || state.leaving {
                return;
            }
            state.is_failing = true;
        }
        let lost = if let RendezvousError::Lost { rank } = failure { Some(rank) } else { None };
        let broken = self.send_to_all(frame, lost);
        self.fail(failure);
        drop(turn);
        for (rank, error) in broken {
            self.lose(rank, &error.to_string());
        }
    }

    /// A connection has broken, or its rank is silent: unless that rank has left, it is lost, and rank 0 tells the others.
    pub(super) fn lose(&self, rank: usize, how: &str) {
        {
            let state = self.state();
            if state.leaving || state.left[rank] {
                return;
            }
        }
        tracing::debug!(rank = self.rank, peer = rank, how, "a connection has ended");
        let failure = RendezvousError::Lost { rank };
        if self.rank == 0 {
            self.fail_all(failure, &Frame::Lost(rank));
        } else {
            self.fail(failure);
        }
        if let Some(peer) = self.peers.get(rank).and_then(Option::as_ref) {
            let _ = peer.stream.shutdown(Shutdown::Both);
        }
    }

    /// Sends to all peers that are still there, but for one.
    pub(super) fn broadcast(&self, frame: &Frame, except: Option<usize>) {
        let turn = self.turn();
        let broken = self.send_to_all(frame, except);
        drop(turn);
        for (rank, error) in broken {
            self.lose(rank, &error.to_string());
        }
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.broadcasting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With the turn: who could not be sent to, which must be dealt with after it.
    fn send_to_all(&self, frame: &Frame, except: Option<usize>) -> Vec<(usize, std::io::Error)> {
        let bytes = frame.encode();
        let mut broken = Vec::new();
        for peer in self.peers.iter().flatten() {
            let gone = Some(peer.rank) == except || self.state().left[peer.rank];
            if !gone && let Err(error) = self.send(peer, &bytes) {
                broken.push((peer.rank, error));
            }
        }
        broken
    }

    /// Sends a frame. A peer that does not read holds the sender up for less than the silence that others put up with.
    pub(super) fn send(&self, peer: &Peer, bytes: &[u8]) -> std::io::Result<()> {
        let _turn = peer.writing.lock().unwrap_or_else(PoisonError::into_inner);
        write_all(&peer.stream, bytes, Instant::now() + self.silence / 2)
    }

    /// Leaves the group, with a goodbye if this is a normal end; returns in bounded time, with all connections ended.
    pub(super) fn leave(&self, normally: bool) {
        // From here on no end of a connection is a loss.
        self.state().leaving = true;
        self.changed.notify_all();
        if normally {
            let goodbye = Frame::Goodbye.encode();
            let turn = self.turn();
            for peer in self.peers.iter().flatten() {
                let writing = peer.writing.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = write_all(&peer.stream, &goodbye, Instant::now() + LEAVING);
                let _ = peer.stream.shutdown(Shutdown::Write);
                drop(writing);
            }
            drop(turn);
            // The others close their ends when they have read the goodbye. To close before could destroy it on its way.
            let state = self.state();
            let still_open = |state: &mut State| state.readers > 0;
            drop(self.changed.wait_timeout_while(state, LEAVING, still_open));
        }
        for peer in self.peers.iter().flatten() {
            let _ = peer.stream.shutdown(Shutdown::Both);
        }
    }
}
