//! From a host's name to its addresses, in bounded time.

use super::error::RendezvousError;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// What `host` means here. The system's resolver knows no deadline: a thread asks it, and is left behind if it takes too long.
pub(super) fn resolve(host: &str, port: u16, deadline: Instant) -> Result<Vec<SocketAddr>, RendezvousError> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let failed = |reason: String| RendezvousError::NoAddress { host: host.to_owned(), reason };
    let (answer, answered) = sync_channel(1);
    let name = host.to_owned();
    std::thread::Builder::new()
        .name("flux-resolve".into())
        .spawn(move || {
            let found = (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
            let _ = answer.send(found);
        })
        .map_err(|error| RendezvousError::system("a thread", error))?;
    match answered.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Ok(mut found)) => {
            let mut seen = std::collections::HashSet::new();
            found.retain(|address| seen.insert(*address));
            if found.is_empty() { Err(failed("it has none".into())) } else { Ok(found) }
        }
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(RecvTimeoutError::Timeout) => Err(failed("the name service does not answer".into())),
        Err(RecvTimeoutError::Disconnected) => Err(failed("the name service failed".into())),
    }
}

/// A pause that ends with the deadline.
pub(super) fn pause(time: Duration, deadline: Instant) {
    std::thread::sleep(time.min(deadline.saturating_duration_since(Instant::now())));
}
