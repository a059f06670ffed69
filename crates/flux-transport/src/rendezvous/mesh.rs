//! Connections between ranks that cannot address each other's memory, for a group that has found itself already, through
//! whatever channel.
//!
//! Each rank listens; the addresses, and a token made for this, go through the group's channel. A rank comes to all such ranks
//! before it, in order, and then waits for those behind it: rank 0 waits at once, so that all get to it, then rank 1, and so on.
//! Both ends prove to each other that they have the token, as those who form a group do.

use super::join::join;
use super::listen::gather;
use super::spec::RendezvousSpec;
use crate::{Error, Result, SocketExchange};
use flux_memory::{Peers, Reach};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long it may take until all ranks are connected: the group's channel has just brought them together.
const LIMIT: Duration = Duration::from_secs(60);
const TOKEN_BYTES: usize = 32;

/// Where a rank can be reached.
struct Place {
    /// None if it does not know.
    address: Option<IpAddr>,
    host: String,
    port: u16,
}

impl SocketExchange {
    /// Connects this rank with those of `peers` that it cannot reach. Collective: it fails on all ranks if it fails on one.
    pub fn among(peers: &Peers, reach: &Reach) -> Result<Self> {
        let rank = peers.rank();
        let token = peers.exchange("agree on a token", token(rank))?.swap_remove(0);
        let listening = listen(peers);
        let said = listening
            .as_ref()
            .map(|(_, place)| place.bytes())
            .map_err(|error| flux_memory::Error::System { call: "listen", reason: error.to_string() });
        let places = peers.exchange("say where they listen", said)?;
        let places: Vec<_> = places.iter().map(|bytes| Place::read(bytes)).collect();
        let connected = listening.map_err(|error| error.to_string()).and_then(|(listener, _)| {
            connect(peers, reach, &token, &places, listener).map_err(|error| error.to_string())
        });
        let connected = connected.map_err(|reason| flux_memory::Error::Failed {
            what: "connect by sockets with the ranks of other nodes".into(),
            reason,
        });
        Self::new(rank, peers.share("connect by sockets", connected)?)
    }
}

/// Rank 0's counts.
fn token(rank: usize) -> flux_memory::Result<Vec<u8>> {
    if rank != 0 {
        return Ok(Vec::new());
    }
    let mut token = vec![0; TOKEN_BYTES];
    match getrandom::fill(&mut token) {
        Ok(()) => Ok(token),
        Err(error) => Err(flux_memory::Error::System { call: "getrandom", reason: error.to_string() }),
    }
}

/// Ranks of one machine, which only play at being on several, listen where only this machine comes.
fn listen(peers: &Peers) -> std::io::Result<(TcpListener, Place)> {
    let known = match peers.machines().len() {
        0 | 1 => Some(IpAddr::from(Ipv4Addr::LOCALHOST)),
        _ => peers.bootstrap().address().filter(|address| !address.is_loopback()),
    };
    let listener = TcpListener::bind(SocketAddr::new(known.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), 0))?;
    listener.set_nonblocking(true)?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    let port = listener.local_addr()?.port();
    Ok((listener, Place { address: known, host, port }))
}

/// A connected socket for each rank out of reach.
fn connect(
    peers: &Peers,
    reach: &Reach,
    token: &[u8],
    places: &[Place],
    listener: TcpListener,
) -> Result<Vec<Option<OwnedFd>>> {
    let (rank, world_size) = (peers.rank(), peers.world_size());
    let deadline = Instant::now() + LIMIT;
    let spec = |place: &Place, host: String| {
        let mut spec = RendezvousSpec::new(rank, world_size, host, place.port, token);
        spec.forming_timeout =
            deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        spec
    };
    let out_of_reach = |peer: &usize| !reach.has(rank, *peer);
    let failed = |error: super::RendezvousError| Error::NotConnected { rank, reason: error.to_string() };
    // Who has ended comes to nobody any more; and whoever gives up for that ends the connections of those that wait for him.
    let lost = || peers.bootstrap().lost_rank();
    let mut streams: Vec<Option<TcpStream>> = (0..world_size).map(|_| None).collect();
    for peer in (0..rank).filter(out_of_reach) {
        let host = host(peers, places, peer);
        streams[peer] = Some(join(&spec(&places[peer], host), &lost).map_err(failed)?);
    }
    let expected: Vec<_> = (rank + 1..world_size).filter(out_of_reach).collect();
    let own = spec(&places[rank], places[rank].host.clone());
    let mut joined = gather(&own, &[listener], deadline, &expected, &lost).map_err(failed)?;
    for peer in expected {
        streams[peer] = joined[peer].take();
    }
    Ok(streams.into_iter().map(|stream| stream.map(OwnedFd::from)).collect())
}

/// The address of `peer`'s machine: as it says itself, or as another rank of it does; else its name.
fn host(peers: &Peers, places: &[Place], peer: usize) -> String {
    let machine = peers.machines().iter().find(|machine| machine.contains(&peer)).cloned();
    let addresses = machine.into_iter().flatten().filter_map(|rank| places[rank].address);
    let own = places[peer].address.into_iter();
    own.chain(addresses).next().map_or_else(|| places[peer].host.clone(), |address| address.to_string())
}

impl Place {
    fn bytes(&self) -> Vec<u8> {
        let address = self.address.map_or_else(String::new, |address| address.to_string());
        format!("{}\n{address}\n{}", self.port, self.host).into_bytes()
    }

    fn read(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.splitn(3, '\n');
        let mut next = || lines.next().unwrap_or_default();
        let port = next().parse().unwrap_or(0);
        let address = next().parse().ok();
        Self { address, host: next().to_owned(), port }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_place_is_understood() {
        for address in [None, Some(IpAddr::from([10, 0, 0, 7])), Some("fe80::1".parse().unwrap())] {
            let place = Place { address, host: "node-a".into(), port: 4711 };
            let read = Place::read(&place.bytes());
            assert_eq!((read.address, read.host.as_str(), read.port), (address, "node-a", 4711));
        }
        assert_eq!(Place::read(b"noise").port, 0);
    }
}
