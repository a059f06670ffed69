//! How a rank finds rank 0: it tries until the deadline, for processes do not start at the same time.

use super::deadline::remaining;
use super::error::RendezvousError;
use super::handshake::{JoinFailure, await_welcome, introduce};
use super::liveness::grace;
use super::resolve::{pause, resolve};
use super::spec::RendezvousSpec;
use std::io::{Error, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// A host that is switched off answers nothing; it may have several addresses.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Joins rank 0, and returns when the group is formed; or when a rank is `lost`, as far as that can be known before.
pub(super) fn join(
    spec: &RendezvousSpec,
    lost: &dyn Fn() -> Option<usize>,
) -> Result<TcpStream, RendezvousError> {
    let deadline = Instant::now() + spec.forming_timeout;
    let mut wait = FIRST_PAUSE;
    loop {
        // Asked again each time: a name may come to be known while machines start.
        let failure = match resolve(spec.bare_host(), spec.port, deadline) {
            Ok(addresses) => match attempt(spec, &addresses, deadline) {
                Ok(stream) => return Ok(stream),
                Err(JoinFailure::Stranger(reason)) => {
                    let reason = reason.to_owned();
                    return Err(RendezvousError::NotRankZero { address: spec.address(), reason });
                }
                Err(JoinFailure::Refused(reason)) => {
                    return Err(RendezvousError::Refused {
                        rank: spec.rank,
                        address: spec.address(),
                        reason,
                    });
                }
                Err(JoinFailure::Connection(error)) => describe(&error),
            },
            Err(error @ RendezvousError::NoAddress { .. }) => error.to_string(),
            Err(error) => return Err(error),
        };
        tracing::debug!(rank = spec.rank, address = spec.address(), failure, "no rank 0 yet");
        if let Some(rank) = lost() {
            return Err(RendezvousError::Lost { rank });
        }
        pause(wait, deadline);
        wait = (wait * 2).min(LONGEST_PAUSE);
        // Before another attempt, which would fail for want of time, and say no more than that.
        if remaining(deadline).is_err() {
            return Err(RendezvousError::NoRankZero {
                rank: spec.rank,
                address: spec.address(),
                waited: spec.forming_timeout,
                reason: failure,
            });
        }
    }
}

/// Tries all addresses: a name may have some at which nobody, or somebody else, listens.
pub(super) fn attempt(
    spec: &RendezvousSpec,
    addresses: &[SocketAddr],
    deadline: Instant,
) -> Result<TcpStream, JoinFailure> {
    let mut failure = JoinFailure::Connection(ErrorKind::TimedOut.into());
    for address in addresses {
        match meet(spec, address, deadline) {
            Ok(stream) => return Ok(stream),
            // Rank 0 has spoken.
            Err(refused @ JoinFailure::Refused(_)) => return Err(refused),
            // A stranger will be none the next time.
            Err(_) if matches!(failure, JoinFailure::Stranger(_)) => {}
            Err(other) => failure = other,
        }
    }
    Err(failure)
}

fn meet(spec: &RendezvousSpec, address: &SocketAddr, deadline: Instant) -> Result<TcpStream, JoinFailure> {
    let stream = TcpStream::connect_timeout(address, remaining(deadline)?.min(CONNECT_TIMEOUT))?;
    let stream = not_to_itself(stream)?;
    stream.set_nodelay(true)?;
    let in_time = deadline.min(Instant::now() + spec.handshake_timeout * 2);
    introduce(&stream, &spec.terms(), spec.rank, in_time)?;
    // Rank 0, which knows who is missing, speaks first.
    await_welcome(&stream, deadline + grace(spec.forming_timeout))?;
    Ok(stream)
}

/// Who connects to a free port of its own machine may be given that very port as its own, and meets itself.
fn not_to_itself(stream: TcpStream) -> Result<TcpStream, Error> {
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

fn describe(error: &Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "nothing listens there".into(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "rank 0 ended, or closed the connection".into()
        }
        ErrorKind::TimedOut => "not all ranks came, or the connection got no answer".into(),
        _ => error.to_string(),
    }
}
