//! What each process says when it comes to form a group.

use super::error::RendezvousError;
use super::handshake::{MAX_BUILD_BYTES, Terms};
use std::time::Duration;

/// What a process says when it comes to form a group. All ranks give the same, but for `rank`.
#[derive(Clone)]
#[non_exhaustive]
pub struct RendezvousSpec {
    /// This process's rank.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// Where rank 0 listens: a name, or an IPv4 or IPv6 address. Rank 0 listens on what this means on its machine, and on
    /// nothing else: only loopback, if that is what it means.
    pub host: String,
    /// The TCP port on which rank 0 listens.
    pub port: u16,
    /// Whether ranks of other machines come. A host's own name often means loopback on that host; rank 0 then listens on
    /// all of its addresses.
    pub several_nodes: bool,
    /// What only this group's ranks know. Nothing of what a peer says is looked at before it has proven that it does.
    pub token: Vec<u8>,
    /// Which build of the program this is, in at most 200 bytes: ranks of different builds do not mix. The version of
    /// this crate is compared in any case.
    pub build: String,
    /// How long to wait for all ranks to come.
    pub forming_timeout: Duration,
    /// How long rank 0 listens to one that has connected and does not say who it is.
    pub handshake_timeout: Duration,
    /// How long a collective call waits for ranks that do not come.
    pub collective_timeout: Duration,
    /// How often a rank shows that it is alive.
    pub heartbeat: Duration,
    /// After how long without a sign of life a rank counts as lost. One whose process ends is noticed at once.
    pub silence: Duration,
}

impl RendezvousSpec {
    /// A group at `host` and `port` with the usual timeouts: a minute to form it and for a collective call, a heartbeat
    /// each second, and 10 seconds of silence.
    pub fn new(
        rank: usize,
        world_size: usize,
        host: impl Into<String>,
        port: u16,
        token: impl Into<Vec<u8>>,
    ) -> Self {
        RendezvousSpec {
            rank,
            world_size,
            host: host.into(),
            port,
            several_nodes: false,
            token: token.into(),
            build: String::new(),
            forming_timeout: Duration::from_secs(60),
            handshake_timeout: Duration::from_secs(5),
            collective_timeout: Duration::from_secs(60),
            heartbeat: Duration::from_secs(1),
            silence: Duration::from_secs(10),
        }
    }

    /// Host and port, as people write them.
    pub(super) fn address(&self) -> String {
        let host = self.bare_host();
        if host.contains(':') { format!("[{host}]:{}", self.port) } else { format!("{host}:{}", self.port) }
    }

    /// The host without the brackets that some write around an IPv6 address.
    pub(super) fn bare_host(&self) -> &str {
        self.host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&self.host)
    }

    pub(super) fn terms(&self) -> Terms {
        let build = format!("{} {}", env!("CARGO_PKG_VERSION"), self.build);
        Terms { token: self.token.clone(), build: build.trim_end().to_owned(), world_size: self.world_size }
    }

    pub(super) fn check(&self) -> Result<(), RendezvousError> {
        /// A thread and a socket for each rank are rank 0's.
        const MOST_RANKS: usize = 4096;
        /// Instants may not reach further.
        const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
        let invalid = |what: String| Err(RendezvousError::Invalid { what });
        if self.world_size == 0 || self.world_size > MOST_RANKS {
            return invalid(format!(
                "a world of {} ranks cannot be; give a number from 1 to {MOST_RANKS}",
                self.world_size
            ));
        }
        if self.rank >= self.world_size {
            let last = self.world_size - 1;
            return invalid(format!(
                "there is no rank {}; give each process one from 0 to {last}",
                self.rank
            ));
        }
        if self.world_size > 1 && self.port == 0 {
            return invalid("port 0 is none; give the port on which rank 0 listens".into());
        }
        if self.world_size > 1 && self.bare_host().is_empty() {
            return invalid("no host is given; say where rank 0 listens".into());
        }
        if self.world_size > 1 && self.token.is_empty() {
            return invalid("no token is given; give all ranks the same secret".into());
        }
        if self.terms().build.len() > MAX_BUILD_BYTES {
            return invalid("the name of the build is too long; give at most 200 bytes".into());
        }
        let times = [
            ("forming_timeout", self.forming_timeout),
            ("handshake_timeout", self.handshake_timeout),
            ("collective_timeout", self.collective_timeout),
            ("heartbeat", self.heartbeat),
            ("silence", self.silence),
        ];
        for (name, time) in times {
            if time.is_zero() || time > LONGEST {
                return invalid(format!("{name} is {time:?}; give more than nothing and at most a year"));
            }
        }
        if self.silence < self.heartbeat * 2 {
            return invalid(format!(
                "silence ({:?}) must be at least two heartbeats ({:?}) long",
                self.silence, self.heartbeat
            ));
        }
        Ok(())
    }
}

impl std::fmt::Debug for RendezvousSpec {
    /// Everything but the token, which has no place in a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RendezvousSpec")
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .field("address", &self.address())
            .field("several_nodes", &self.several_nodes)
            .field("build", &self.build)
            .field("forming_timeout", &self.forming_timeout)
            .field("handshake_timeout", &self.handshake_timeout)
            .field("collective_timeout", &self.collective_timeout)
            .field("heartbeat", &self.heartbeat)
            .field("silence", &self.silence)
            .finish()
    }
}
