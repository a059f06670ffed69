//! How processes become a group: over TCP, with rank 0 in the middle.
//!
//! Forming: rank 0 listens ([`listen`]), the others come to it ([`join`]), and both prove to each other that they belong
//! together ([`handshake`]). Afterwards each rank keeps its connection to rank 0 ([`channel`]), for collective calls
//! ([`collective`]) and to notice at once when a process has ended: rank 0 tells all others who it was.

mod channel;
mod collective;
mod deadline;
mod error;
mod frame;
mod handshake;
mod join;
mod listen;
mod liveness;
mod mesh;
mod resolve;
mod spec;
#[cfg(test)]
mod tests;

pub use error::RendezvousError;
pub use spec::RendezvousSpec;

use channel::Channel;
use flux_memory::{Bootstrap, BootstrapError};
use frame::Collective;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;

/// A group of processes over TCP, with rank 0 in the middle.
///
/// It holds as long as it lives: dropping it leaves the group in good order, after which [`Bootstrap::lost_rank`] of the
/// others does not name this rank. A process that ends without dropping it, or drops it while it unwinds from a panic, counts
/// as lost: the others learn that at once. Once a collective call has failed, all later ones of the group fail too,
/// on every rank: ranks whose calls came apart would otherwise get each other's data.
///
/// When rank 0 has left, the others no longer hear of each other. So make a last [`Bootstrap::barrier`] before leaving.
///
/// ```
/// use flux_memory::Bootstrap;
/// use flux_transport::{RendezvousSpec, TcpBootstrap};
///
/// // Every process does this, each with its own rank. Here the group has one rank, and needs no network.
/// let spec = RendezvousSpec::new(0, 1, "127.0.0.1", 29_500, *b"a secret of the job");
/// let bootstrap = TcpBootstrap::form(&spec)?;
/// assert_eq!(bootstrap.all_gather(b"hello")?, [b"hello"]);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug)]
pub struct TcpBootstrap {
    channel: Arc<Channel>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl TcpBootstrap {
    /// Waits for all ranks, at most `spec.forming_timeout`, and makes them a group. A group of one uses no network.
    ///
    /// # Errors
    ///
    /// [`RendezvousError::Invalid`] if `spec` makes no sense. On rank 0 [`RendezvousError::CannotListen`] and
    /// [`RendezvousError::RanksMissing`]; elsewhere [`RendezvousError::NoRankZero`], [`RendezvousError::NotRankZero`] and
    /// [`RendezvousError::Refused`]. [`RendezvousError::NoAddress`] and [`RendezvousError::System`] everywhere.
    pub fn form(spec: &RendezvousSpec) -> Result<Self, RendezvousError> {
        spec.check()?;
        if spec.rank == 0 && spec.world_size > 1 {
            let deadline = Instant::now() + spec.forming_timeout;
            let listeners = listen::listen(spec, deadline)?;
            return Self::start(spec, listen::gather(spec, &listeners, deadline, &others(spec), &unknown)?);
        }
        let streams = if spec.world_size == 1 { vec![None] } else { vec![Some(join::join(spec, &unknown)?)] };
        Self::start(spec, streams)
    }

    /// On rank 0, as [`Self::form`], with a socket that listens already: whoever made it could let the system choose the
    /// port, and tell the other ranks, without anybody taking that port in between.
    ///
    /// # Errors
    ///
    /// Those of [`Self::form`], and [`RendezvousError::Invalid`] on another rank.
    pub fn form_on(listener: TcpListener, spec: &RendezvousSpec) -> Result<Self, RendezvousError> {
        spec.check()?;
        if spec.rank != 0 {
            let what = format!("rank {} does not listen; only rank 0 forms a group on a socket", spec.rank);
            return Err(RendezvousError::Invalid { what });
        }
        if let Err(error) = listener.set_nonblocking(true) {
            return Err(RendezvousError::system("a socket", error));
        }
        let deadline = Instant::now() + spec.forming_timeout;
        Self::start(spec, listen::gather(spec, &[listener], deadline, &others(spec), &unknown)?)
    }

    fn start(spec: &RendezvousSpec, streams: Vec<Option<TcpStream>>) -> Result<Self, RendezvousError> {
        tracing::debug!(rank = spec.rank, world_size = spec.world_size, "formed a group");
        let channel = Arc::new(Channel::new(spec, streams));
        let mut bootstrap = TcpBootstrap { channel, threads: Vec::new() };
        // Should a thread fail to start, the drop of those before it takes this rank out of the group.
        bootstrap.threads = liveness::start(&bootstrap.channel)?;
        Ok(bootstrap)
    }
}

/// Who is lost, before there is a channel by which to hear of it.
fn unknown() -> Option<usize> {
    None
}

/// Who comes to rank 0.
fn others(spec: &RendezvousSpec) -> Vec<usize> {
    (1..spec.world_size).collect()
}

impl Bootstrap for TcpBootstrap {
    fn rank(&self) -> usize {
        self.channel.rank
    }

    fn world_size(&self) -> usize {
        self.channel.world_size
    }

    /// # Errors
    ///
    /// A boxed [`RendezvousError`]: [`RendezvousError::Lost`], [`RendezvousError::Left`], [`RendezvousError::Late`],
    /// [`RendezvousError::OutOfStep`], or [`RendezvousError::TooLarge`] for more than 1 MiB, which counts as no call.
    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        Ok(self.channel.collect(Collective::AllGather, bytes)?)
    }

    /// # Errors
    ///
    /// As those of [`Self::all_gather`].
    fn barrier(&self) -> Result<(), BootstrapError> {
        Ok(self.channel.collect(Collective::Barrier, &[]).map(drop)?)
    }

    fn lost_rank(&self) -> Option<usize> {
        self.channel.lost_rank()
    }

    /// This end of a connection to another rank, if one of them does not stay on this machine.
    fn address(&self) -> Option<IpAddr> {
        let ends = self.channel.peers.iter().flatten().filter_map(|peer| peer.stream.local_addr().ok());
        ends.map(|end| end.ip().to_canonical()).find(|address| !address.is_loopback())
    }
}

impl Drop for TcpBootstrap {
    fn drop(&mut self) {
        self.channel.leave(!std::thread::panicking());
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so already, and its group has felt it.
            let _ = thread.join();
        }
    }
}
