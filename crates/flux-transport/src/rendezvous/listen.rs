//! How rank 0 gathers its group: it listens until all ranks are there, and lets nobody else in.

use super::error::RendezvousError;
use super::handshake::{Terms, admit, refuse, tell_refusal, welcome};
use super::resolve::{pause, resolve};
use super::spec::RendezvousSpec;
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How often rank 0 looks for who has come.
const POLL: Duration = Duration::from_millis(3);
/// A port may be taken for a moment, by a connection that goes elsewhere or by a process that is just ending.
const BIND_PATIENCE: Duration = Duration::from_secs(2);
/// How many connections may be undecided, besides one for each rank. Of more, the oldest is dropped: those who say nothing
/// cannot keep others out.
const SPARE_PENDING: usize = 64;
/// How many refusals an error repeats.
const REFUSALS_KEPT: usize = 4;
/// How many are logged: who comes a thousand times a second must not fill the log, or hold up those who write it.
const REFUSALS_LOGGED: usize = 20;
/// Handshake threads do little.
const STACK_BYTES: usize = 256 << 10;

/// A connection that has not yet proven who it is.
struct Pending {
    id: u64,
    stream: TcpStream,
    thread: std::thread::JoinHandle<()>,
}

/// What became of a connection.
enum Outcome {
    Admitted { rank: usize, stream: TcpStream, from: SocketAddr },
    Refused { from: SocketAddr, reason: String },
}

/// Waits for the `expected` ranks to come to sockets that do not block, and returns their connections: `[rank]`, with none for the
/// others. Gives up when a rank is `lost`, as far as that can be known before the group is formed.
pub(super) fn gather(
    spec: &RendezvousSpec,
    listeners: &[TcpListener],
    deadline: Instant,
    expected: &[usize],
    lost: &dyn Fn() -> Option<usize>,
) -> Result<Vec<Option<TcpStream>>, RendezvousError> {
    let mut door = Door::new(spec, expected);
    let formed = loop {
        door.accept(listeners);
        door.take_outcomes();
        door.drop_the_gone();
        if door.missing().is_empty() {
            door.welcome_all();
            break Ok(());
        }
        if let Some(rank) = lost() {
            break Err(RendezvousError::Lost { rank });
        }
        if Instant::now() >= deadline {
            break Err(door.not_formed());
        }
        pause(POLL, deadline);
    };
    door.close();
    formed.map(|()| door.joined)
}

/// Rank 0's door: who stands before it, and who is in.
struct Door<'s> {
    spec: &'s RendezvousSpec,
    expected: &'s [usize],
    terms: Arc<Terms>,
    pending: Vec<Pending>,
    outcomes: Receiver<(u64, Outcome)>,
    outcome: Sender<(u64, Outcome)>,
    next_id: u64,
    joined: Vec<Option<TcpStream>>,
    refused: Vec<String>,
    refusals: usize,
    accept_failed: bool,
}

impl<'s> Door<'s> {
    fn new(spec: &'s RendezvousSpec, expected: &'s [usize]) -> Self {
        let (outcome, outcomes) = channel();
        let joined = (0..spec.world_size).map(|_| None).collect();
        let (pending, refused) = (Vec::new(), Vec::new());
        Door {
            spec,
            expected,
            terms: Arc::new(spec.terms()),
            pending,
            outcomes,
            outcome,
            next_id: 0,
            joined,
            refused,
            refusals: 0,
            accept_failed: false,
        }
    }

    /// Gives each new connection a thread, so that none waits for another.
    fn accept(&mut self, listeners: &[TcpListener]) {
        self.pending.retain(|pending| !pending.thread.is_finished());
        for listener in listeners {
            // Not for ever: a flood must not keep those who are through from being let in.
            for _ in 0..SPARE_PENDING {
                match listener.accept() {
                    Ok((stream, from)) => self.receive(stream, from),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => {
                        // Once: it may last, and this is tried again in a few milliseconds.
                        if !std::mem::replace(&mut self.accept_failed, true) {
                            tracing::warn!(%error, "cannot accept a connection");
                        }
                        break;
                    }
                }
            }
        }
    }

    fn receive(&mut self, stream: TcpStream, from: SocketAddr) {
        if self.pending.len() >= SPARE_PENDING + self.spec.world_size {
            let oldest = self.pending.remove(0);
            let _ = oldest.stream.shutdown(Shutdown::Both);
        }
        let id = self.next_id();
        let (terms, outcome) = (Arc::clone(&self.terms), self.outcome.clone());
        let deadline = Instant::now() + self.spec.handshake_timeout;
        let spawned = prepare(&stream).and_then(|copy| {
            let greet = move || {
                let result = match admit(&copy, &terms, deadline) {
                    Ok(rank) => Outcome::Admitted { rank, stream: copy, from },
                    Err(reason) => Outcome::Refused { from, reason },
                };
                let _ = outcome.send((id, result));
            };
            std::thread::Builder::new().name("flux-door".into()).stack_size(STACK_BYTES).spawn(greet)
        });
        match spawned {
            Ok(thread) => self.pending.push(Pending { id, stream, thread }),
            Err(error) => self.refused(from, format!("no thread or socket for it: {error}")),
        }
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn take_outcomes(&mut self) {
        while let Ok((id, outcome)) = self.outcomes.try_recv() {
            // Decided: from here on nobody may close it as undecided.
            if let Some(at) = self.pending.iter().position(|pending| pending.id == id) {
                let _ = self.pending.remove(at).thread.join();
            }
            match outcome {
                Outcome::Refused { from, reason } => self.refused(from, reason),
                Outcome::Admitted { rank, stream, from } => {
                    // A rank whose first connection broke comes again, perhaps before this is noticed.
                    let taken = self.joined[rank].as_ref().is_some_and(is_there);
                    if taken {
                        self.turn_away(rank, stream, from);
                    } else {
                        tracing::debug!(rank, %from, "joined");
                        self.joined[rank] = Some(stream);
                    }
                }
            }
        }
    }

    /// Refuses a second process of one rank; on a thread, for the refusal may take its time.
    fn turn_away(&mut self, rank: usize, stream: TcpStream, from: SocketAddr) {
        let reason = format!("another process is rank {rank} already; give each process a rank of its own");
        self.refused(from, reason.clone());
        let deadline = Instant::now() + self.spec.handshake_timeout;
        let copy = stream.try_clone();
        let spawned = std::thread::Builder::new()
            .name("flux-door".into())
            .stack_size(STACK_BYTES)
            .spawn(move || drop(refuse(&stream, &reason, deadline)));
        if let (Ok(stream), Ok(thread)) = (copy, spawned) {
            let id = self.next_id();
            self.pending.push(Pending { id, stream, thread });
        }
    }

    fn refused(&mut self, from: SocketAddr, reason: String) {
        self.refusals += 1;
        match self.refusals {
            ..=REFUSALS_LOGGED => tracing::warn!(%from, reason, "refused a peer"),
            number => tracing::debug!(%from, reason, number, "refused a peer"),
        }
        if self.refusals == REFUSALS_LOGGED {
            tracing::warn!("of peers that are refused from now on, nothing is said here");
        }
        if self.refused.len() < REFUSALS_KEPT {
            self.refused.push(format!("{from}: {reason}"));
        }
    }

    /// Forgets ranks that have joined and ended since.
    fn drop_the_gone(&mut self) {
        for (rank, joined) in self.joined.iter_mut().enumerate() {
            if joined.as_ref().is_some_and(|stream| !is_there(stream)) {
                tracing::warn!(rank, "disconnected before the group was formed");
                *joined = None;
            }
        }
    }

    fn missing(&self) -> Vec<usize> {
        self.expected.iter().copied().filter(|&rank| self.joined[rank].is_none()).collect()
    }

    /// Tells all ranks that the group is formed. One that cannot be told has just ended; those that were told see it lost.
    fn welcome_all(&self) {
        let deadline = Instant::now() + self.spec.handshake_timeout;
        for (rank, joined) in self.joined.iter().enumerate() {
            let Some(stream) = joined else { continue };
            let told = stream.set_nonblocking(false).and_then(|()| welcome(stream, deadline));
            if let Err(error) = told {
                tracing::warn!(rank, %error, "disconnected while the group was formed");
            }
        }
    }

    /// Time is up: tells those who came, and says who did not.
    fn not_formed(&self) -> RendezvousError {
        let error = RendezvousError::RanksMissing {
            missing: self.missing(),
            world_size: self.spec.world_size,
            address: self.spec.address(),
            waited: self.spec.forming_timeout,
            refused: self.refused.clone(),
        };
        let reason = error.to_string();
        for stream in self.joined.iter().flatten() {
            // They wait for an answer and say nothing: there is nothing to read first, and little to write.
            let _ = stream.set_nonblocking(false);
            let _ = tell_refusal(stream, &reason, Instant::now() + Duration::from_millis(100));
        }
        error
    }

    /// Ends what is undecided, and its threads.
    fn close(&mut self) {
        for pending in &self.pending {
            let _ = pending.stream.shutdown(Shutdown::Both);
        }
        for pending in self.pending.drain(..) {
            let _ = pending.thread.join();
        }
    }
}

/// A new connection's other handle, for its thread; the socket waits, whatever the listener does.
fn prepare(stream: &TcpStream) -> Result<TcpStream, Error> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.try_clone()
}

/// Whether a rank that waits to be welcomed is still connected: it says nothing, so that there is nothing to read but the end.
fn is_there(stream: &TcpStream) -> bool {
    let looked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    matches!(looked, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted))
}

/// Listens wherever the host's name points to on this machine.
pub(super) fn listen(spec: &RendezvousSpec, deadline: Instant) -> Result<Vec<TcpListener>, RendezvousError> {
    let addresses = addresses(spec, deadline)?;
    let patience = deadline.min(Instant::now() + BIND_PATIENCE);
    let failed = |reason: String| RendezvousError::CannotListen { address: spec.address(), reason };
    let mut unavailable = None;
    let mut listeners = Vec::new();
    for address in addresses {
        loop {
            let bound = TcpListener::bind(address);
            match bound.and_then(|listener| listener.set_nonblocking(true).map(|()| listener)) {
                Ok(listener) => break listeners.push(listener),
                Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < patience => {
                    pause(Duration::from_millis(50), patience);
                }
                // Somebody else's port: ranks that come to this address would meet that one.
                Err(error) if error.kind() == ErrorKind::AddrInUse => return Err(failed(error.to_string())),
                // A name may mean IPv6 where there is none.
                Err(error) => break unavailable = Some(error),
            }
        }
    }
    match unavailable {
        Some(error) if listeners.is_empty() => Err(failed(error.to_string())),
        _ => Ok(listeners),
    }
}

fn addresses(spec: &RendezvousSpec, deadline: Instant) -> Result<Vec<SocketAddr>, RendezvousError> {
    let found = resolve(spec.bare_host(), spec.port, deadline)?;
    let is_name = spec.bare_host().parse::<IpAddr>().is_err() && spec.bare_host() != "localhost";
    if spec.several_nodes && is_name && found.iter().all(|address| address.ip().is_loopback()) {
        let any = if found.iter().any(SocketAddr::is_ipv4) {
            IpAddr::from(Ipv4Addr::UNSPECIFIED)
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        return Ok(vec![SocketAddr::new(any, spec.port)]);
    }
    Ok(found)
}
