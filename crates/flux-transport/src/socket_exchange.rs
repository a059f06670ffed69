//! Sending and receiving over sockets: how ranks of the host backend exchange with those on other nodes.
//!
//! A step runs on the stream's own thread. No socket blocks: the thread goes around all that still has something to do, and
//! sleeps while none has. Each message has a header that says how long it is and which it is, so that ranks whose calls differ
//! are told, and nobody takes one message for another.

use crate::{Error, Exchange, Message, Result};
use flux_memory::{ExchangeFailure, FaultLog, Reach, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a step that waits looks whether its rank has given up.
const INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// How long a closed connection may wait for an explanation: the group's channel may be about to say that another rank is lost,
/// of which the peer's end is only a consequence. It knows within milliseconds, if it knows at all.
const EXPLANATION: Duration = Duration::from_secs(2);

/// The message's number, from 1, and its size.
const HEADER_BYTES: usize = 16;

/// One rank's sockets to the ranks that it cannot address.
#[derive(Debug)]
pub struct SocketExchange {
    lines: Arc<Lines>,
}

#[derive(Debug)]
struct Lines {
    rank: usize,
    /// By peer. One step at a time uses them.
    sockets: Mutex<Vec<Option<Line>>>,
}

/// A connection, and how many messages have gone each way.
#[derive(Debug)]
struct Line {
    socket: OwnedFd,
    sent: u64,
    received: u64,
}

impl SocketExchange {
    /// Of ranks that all live in this process: one for each.
    pub fn here(reach: &Reach) -> Result<Vec<Self>> {
        let world_size = reach.world_size();
        let mut sockets: Vec<Vec<Option<OwnedFd>>> =
            (0..world_size).map(|_| (0..world_size).map(|_| None).collect()).collect();
        let pairs = (0..world_size).flat_map(|peer| (0..peer).map(move |rank| (rank, peer)));
        for (rank, peer) in pairs.filter(|&(rank, peer)| !reach.has(rank, peer)) {
            let failed = |error: std::io::Error| Error::NotConnected { rank, reason: error.to_string() };
            let (one, other) = UnixStream::pair().map_err(failed)?;
            (sockets[rank][peer], sockets[peer][rank]) = (Some(one.into()), Some(other.into()));
        }
        sockets.into_iter().enumerate().map(|(rank, sockets)| Self::new(rank, sockets)).collect()
    }

    /// `rank`'s, with a connected socket for each peer out of reach.
    pub(crate) fn new(rank: usize, sockets: Vec<Option<OwnedFd>>) -> Result<Self> {
        let failed = |errno: Errno| Error::NotConnected { rank, reason: errno.to_string() };
        for socket in sockets.iter().flatten() {
            rustix::io::ioctl_fionbio(socket, true).map_err(failed)?;
        }
        let line = |socket| Line { socket, sent: 0, received: 0 };
        let sockets = sockets.into_iter().map(|socket| socket.map(line)).collect();
        Ok(Self { lines: Arc::new(Lines { rank, sockets: Mutex::new(sockets) }) })
    }
}

impl Exchange for SocketExchange {
    unsafe fn step(
        &self,
        stream: &Stream,
        log: &Arc<FaultLog>,
        sends: &[Message],
        receives: &[Message],
    ) -> Result<()> {
        let Stream::Host(stream) = stream else {
            return Err(flux_memory::Error::BackendMismatch { what: "an exchange over sockets" }.into());
        };
        let (lines, log) = (Arc::clone(&self.lines), Arc::clone(log));
        let (sends, receives) = (sends.to_vec(), receives.to_vec());
        // SAFETY: the caller's promise: the memory is live and nobody else's until the stream has done this.
        Ok(stream.launch(move || unsafe { lines.step(&log, &sends, &receives) })?)
    }
}

/// A message on its way.
struct Way {
    message: Message,
    sends: bool,
    /// What is written, or what is read and then compared.
    header: [u8; HEADER_BYTES],
    /// Bytes that have gone or come, the header's among them.
    done: usize,
}

/// Why a step cannot go on.
enum Stop {
    /// The peer's end is closed.
    Gone(usize),
    Failed(ExchangeFailure),
}

impl Lines {
    /// Takes a step; if it fails, `log` says why, and this rank takes no more.
    ///
    /// # Safety
    /// The messages' memory is live, and nobody else accesses it.
    unsafe fn step(&self, log: &FaultLog, sends: &[Message], receives: &[Message]) {
        // After a failure nobody knows what the next bytes belong to.
        if log.has_given_up() {
            return;
        }
        let mut lines = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller's promise.
        let told = match unsafe { self.exchange(&mut lines, log, sends, receives) } {
            Ok(()) => return,
            Err(Stop::Gone(peer)) => {
                let begin = Instant::now();
                while begin.elapsed() < EXPLANATION && !log.has_given_up() {
                    std::thread::sleep(Duration::from_millis(2));
                }
                if log.has_given_up() { Ok(()) } else { log.give_up(peer) }
            }
            Err(Stop::Failed(failure)) => log.fail_exchange(failure),
        };
        if let Err(error) = told {
            tracing::error!(%error, "a failed exchange could not be told");
        }
    }

    /// # Safety
    /// As for [`Lines::step`].
    unsafe fn exchange(
        &self,
        lines: &mut [Option<Line>],
        log: &FaultLog,
        sends: &[Message],
        receives: &[Message],
    ) -> Result<(), Stop> {
        let mut ways = Vec::with_capacity(sends.len() + receives.len());
        for (message, sends) in sends.iter().map(|m| (m, true)).chain(receives.iter().map(|m| (m, false))) {
            if message.bytes > 0 {
                ways.push(Way::new(*message, sends, lines)?);
            }
        }
        let mut moved_last = Instant::now();
        while !ways.is_empty() {
            let mut moved = false;
            let mut waiting: Vec<(usize, bool)> = Vec::with_capacity(ways.len());
            for way in &mut ways {
                // Messages between two ranks come one after the other.
                let line = (way.message.peer, way.sends);
                if waiting.contains(&line) {
                    continue;
                }
                // SAFETY: the caller's promise.
                moved |= unsafe { way.go_on(lines)? };
                if !way.is_done() {
                    waiting.push(line);
                }
            }
            ways.retain(|way| !way.is_done());
            if moved {
                moved_last = Instant::now();
                continue;
            }
            if log.has_given_up() {
                return Ok(());
            }
            if let Some(way) = ways.first().filter(|_| moved_last.elapsed() > log.budget()) {
                let (what, done) =
                    (if way.sends { "take" } else { "send" }, way.done.saturating_sub(HEADER_BYTES));
                let reason = format!(
                    "it did not {what} a message of {} bytes, of which {done} went, within {:?}",
                    way.message.bytes,
                    log.budget()
                );
                return Err(Stop::Failed(ExchangeFailure { peer: Some(way.message.peer), reason }));
            }
            let events = |sends| if sends { PollFlags::OUT } else { PollFlags::IN };
            let mut ready: Vec<_> = waiting
                .iter()
                .filter_map(|&(peer, sends)| {
                    Some(PollFd::new(&lines.get(peer)?.as_ref()?.socket, events(sends)))
                })
                .collect();
            let _interrupted = poll(&mut ready, Some(&INTERVAL));
        }
        tracing::trace!(rank = self.rank, sends = sends.len(), receives = receives.len(), "exchanged");
        Ok(())
    }
}

impl Way {
    fn new(message: Message, sends: bool, lines: &mut [Option<Line>]) -> Result<Self, Stop> {
        let Some(Some(line)) = lines.get_mut(message.peer) else {
            let reason = "there is no connection with it".to_owned();
            return Err(Stop::Failed(ExchangeFailure { peer: Some(message.peer), reason }));
        };
        let count = if sends { &mut line.sent } else { &mut line.received };
        *count += 1;
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&count.to_le_bytes());
        header[8..].copy_from_slice(&(message.bytes as u64).to_le_bytes());
        Ok(Self { message, sends, header, done: 0 })
    }

    const fn is_done(&self) -> bool {
        self.done == HEADER_BYTES + self.message.bytes
    }

    /// Sends or receives what can be at once; whether that was anything.
    ///
    /// # Safety
    /// The message's memory is live, and nobody else accesses it.
    unsafe fn go_on(&mut self, lines: &[Option<Line>]) -> Result<bool, Stop> {
        let peer = self.message.peer;
        let Some(Some(line)) = lines.get(peer) else { return Err(Stop::Gone(peer)) };
        let begin = self.done;
        while !self.is_done() {
            let offset = self.done.saturating_sub(HEADER_BYTES);
            let memory = self.message.memory.add(offset).as_ptr::<u8>();
            let left = self.message.bytes - offset;
            let in_header = self.done < HEADER_BYTES;
            let moved = match (self.sends, in_header) {
                (true, true) => {
                    rustix::net::send(&line.socket, &self.header[self.done..], SendFlags::NOSIGNAL)
                }
                (true, false) => {
                    // SAFETY: the caller's promise; inside of the message.
                    let memory = unsafe { std::slice::from_raw_parts(memory, left) };
                    rustix::net::send(&line.socket, memory, SendFlags::NOSIGNAL)
                }
                (false, true) => {
                    let mut come = [0; HEADER_BYTES];
                    let come = &mut come[self.done..];
                    let received = rustix::net::recv(&line.socket, &mut *come, RecvFlags::empty());
                    let received = received.map(|(count, _)| count);
                    if let Ok(count) = received
                        && come[..count] != self.header[self.done..self.done + count]
                    {
                        return Err(Stop::Failed(self.unexpected()));
                    }
                    received
                }
                (false, false) => {
                    // SAFETY: as above.
                    let memory = unsafe { std::slice::from_raw_parts_mut(memory, left) };
                    rustix::net::recv(&line.socket, memory, RecvFlags::empty()).map(|(count, _)| count)
                }
            };
            match moved {
                Ok(0) => return Err(Stop::Gone(peer)),
                Ok(count) => self.done += count,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED | Errno::HOSTUNREACH) => {
                    return Err(Stop::Gone(peer));
                }
                Err(errno) => {
                    let reason = format!("the connection failed: {errno}");
                    return Err(Stop::Failed(ExchangeFailure { peer: Some(peer), reason }));
                }
            }
        }
        Ok(self.done > begin)
    }

    fn unexpected(&self) -> ExchangeFailure {
        let reason = format!(
            "it sent something else than the {} bytes that were expected; all ranks must make the same sequence of calls, with \
             the same rows",
            self.message.bytes
        );
        ExchangeFailure { peer: Some(self.message.peer), reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flux_memory::{Address, Device};

    fn logs(count: u32, budget: Duration) -> Vec<Arc<FaultLog>> {
        (0..count).map(|rank| FaultLog::new(&Device::host(), rank, budget).unwrap()).collect()
    }

    fn message(peer: usize, memory: &mut [u8]) -> Message {
        let at = Address::from(memory.as_mut_ptr());
        Message { peer, memory: at, place: at, bytes: memory.len() }
    }

    /// Far more than sockets hold, both ways at once, in several messages.
    #[test]
    fn what_is_sent_is_received() {
        let exchanges = SocketExchange::here(&Reach::split(3, 3)).unwrap();
        let logs = logs(3, Duration::from_secs(20));
        std::thread::scope(|scope| {
            for (rank, exchange) in exchanges.iter().enumerate() {
                let log = &logs[rank];
                scope.spawn(move || {
                    let stream = Device::host().stream().unwrap();
                    let fill = |from: usize, to: usize| u8::try_from(from * 3 + to).unwrap();
                    for step in [1, 2] {
                        let (to, from) = ((rank + step) % 3, (rank + 3 - step) % 3);
                        let (mut side, mut rows) = (vec![fill(rank, to); 3], vec![fill(rank, to); 3_000_001]);
                        let (mut got_side, mut got) = (vec![9; 3], vec![9; 3_000_001]);
                        let sends = [message(to, &mut side), message(to, &mut []), message(to, &mut rows)];
                        let receives = [message(from, &mut got_side), message(from, &mut got)];
                        // SAFETY: the memory lives until the stream has done this.
                        unsafe { exchange.step(&stream, log, &sends, &receives).unwrap() };
                        stream.synchronize().unwrap();
                        assert!(got.iter().chain(&got_side).all(|&byte| byte == fill(from, rank)));
                    }
                    assert!(!log.has_given_up());
                });
            }
        });
    }

    #[test]
    fn what_does_not_come_is_an_error_in_time() {
        let mut exchanges = SocketExchange::here(&Reach::split(2, 2)).unwrap();
        let logs = logs(2, Duration::from_millis(50));
        let stream = Device::host().stream().unwrap();
        let (mut sent, mut received) = ([1; 5], [0; 4]);
        // SAFETY: the memory lives until the stream has done this.
        let step = |rank: usize, exchange: &SocketExchange, sends: &[Message], receives: &[Message]| unsafe {
            exchange.step(&stream, &logs[rank], sends, receives).unwrap();
            stream.synchronize().unwrap();
            logs[rank].exchange_failure().map(|failure| failure.reason.clone())
        };
        // Of another size than expected.
        assert_eq!(step(0, &exchanges[0], &[message(1, &mut sent)], &[]), None);
        let failure = step(1, &exchanges[1], &[], &[message(0, &mut received)]).unwrap();
        assert!(failure.contains("something else than the 4 bytes"), "{failure}");
        // Never.
        let failure = step(0, &exchanges[0], &[], &[message(1, &mut received)]).unwrap();
        assert!(
            failure.contains("did not send a message of 4 bytes, of which 0 went, within 50ms"),
            "{failure}"
        );
        // And never again.
        assert!(step(0, &exchanges[0], &[message(1, &mut sent)], &[]).is_some());
        exchanges.pop();
    }

    #[test]
    fn a_closed_connection_is_a_lost_rank() {
        let mut exchanges = SocketExchange::here(&Reach::split(2, 2)).unwrap();
        let logs = logs(2, Duration::from_secs(60));
        let stream = Device::host().stream().unwrap();
        exchanges.pop();
        let mut received = [0; 4];
        // SAFETY: the memory lives until the stream has done this.
        unsafe { exchanges[0].step(&stream, &logs[0], &[], &[message(1, &mut received)]).unwrap() };
        stream.synchronize().unwrap();
        assert_eq!(logs[0].lost_rank(), Some(1));
    }
}
