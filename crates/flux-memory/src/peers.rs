//! The processes of a group, one rank each: the steps that they take together, and the files that they hand each other.

use crate::sockets::{Listening, Sockets};
use crate::{Bootstrap, Error, Result};
use std::fmt::Display;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// This process among those of its group, on one machine or several.
///
/// Whatever takes a step together is collective: all ranks make the same sequence of these calls, from one thread at a time.
/// A rank that fails says so in its step, so that all of them fail and nobody waits for it.
#[derive(Debug)]
pub struct Peers {
    bootstrap: Arc<dyn Bootstrap>,
    sockets: Sockets,
    /// The ranks of each machine.
    machines: Vec<Range<usize>>,
    /// Files handed out so far.
    exchanges: AtomicU64,
    /// A failure was told to all ranks, or the channel itself failed: then it need not be told again.
    failure_told: AtomicBool,
}

impl Peers {
    /// Connects this process with the others that `bootstrap` knows: by a socket with those of its machine. Fails on all ranks
    /// if it fails on one, and if ranks do not count up machine by machine.
    pub fn connect(bootstrap: Arc<dyn Bootstrap>) -> Result<Arc<Self>> {
        let (rank, world_size) = (bootstrap.rank(), bootstrap.world_size());
        let mut peers = Self {
            bootstrap,
            sockets: Sockets::default(),
            machines: Vec::new(),
            exchanges: AtomicU64::new(0),
            failure_told: AtomicBool::new(false),
        };
        let own = Introduction::own();
        let path = Listening::choose_path();
        let all = peers.exchange("introduce each other", Ok(own.bytes(&path)))?;
        let all: Vec<_> = all.iter().map(|bytes| Introduction::read(bytes)).collect();
        peers.machines = machines(&all)?;
        // What a rank of another machine says of its process and its socket's name means nothing here.
        let address = |peer: &Introduction| match peer.machine == own.machine {
            true => (peer.pid, peer.path.clone()),
            false => Sockets::ELSEWHERE,
        };
        let addresses: Vec<_> = all.iter().map(address).collect();
        let connected = peers.share("listen for each other", Listening::open(&path)).and_then(|listening| {
            let sockets = Sockets::connect(rank, &addresses, &listening, || peers.bootstrap.lost_rank());
            // When all are connected, nobody needs the sockets' names any more.
            drop(listening);
            peers.share("connect with each other", sockets)
        });
        // Whoever has been killed meanwhile has removed nothing.
        peers.sockets =
            connected.inspect_err(|_| addresses.iter().for_each(|(_, path)| crate::sockets::remove(path)))?;
        let machines = peers.machines.len();
        tracing::debug!(rank, world_size, machines, "connected with the other processes of the group");
        Ok(Arc::new(peers))
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.bootstrap.rank()
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.bootstrap.world_size()
    }

    /// Which of the machine's processes this is.
    pub fn local_rank(&self) -> usize {
        self.rank() - self.machine().start
    }

    /// The ranks of this process's machine.
    pub fn machine(&self) -> Range<usize> {
        let rank = self.rank();
        self.machines.iter().find(|machine| machine.contains(&rank)).map_or(rank..rank + 1, Range::clone)
    }

    /// The ranks of each machine, in order.
    pub fn machines(&self) -> &[Range<usize>] {
        &self.machines
    }

    /// The channel that the processes were connected through.
    pub fn bootstrap(&self) -> &Arc<dyn Bootstrap> {
        &self.bootstrap
    }

    /// Takes the step that is called `step`: every rank's `own` bytes, in rank order. An error on all ranks if one brings an
    /// error, or takes another step.
    pub fn exchange(&self, step: &str, own: Result<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        let said =
            Said { step: step.to_owned(), outcome: own.as_ref().map_err(ToString::to_string).cloned() };
        let heard = self.bootstrap.all_gather(&said.bytes()).map_err(|error| {
            self.failure_told.store(true, Ordering::Relaxed);
            Error::Channel { step: step.to_owned(), reason: error.to_string() }
        });
        let heard = match (own, heard) {
            (Err(error), heard) => {
                self.failure_told.store(true, Ordering::Relaxed);
                return match heard {
                    // What fails when a rank has gone may fail because of that: others tidy up behind it.
                    Err(channel) if self.bootstrap.lost_rank().is_some() => {
                        tracing::warn!(%error, "an error when a rank had gone");
                        Err(channel)
                    }
                    Err(channel) => {
                        tracing::warn!(%channel, "the other ranks could not be told of an error");
                        Err(error)
                    }
                    Ok(_) => Err(error),
                };
            }
            (Ok(_), heard) => heard?,
        };
        let outcomes = heard.iter().enumerate().map(|(rank, bytes)| Said::read(bytes).of(rank, step));
        outcomes.collect::<Result<_>>().inspect_err(|_| self.failure_told.store(true, Ordering::Relaxed))
    }

    /// Takes a step that has nothing to say but whether it was possible: `own` on all ranks, or an error on all.
    pub fn share<T>(&self, step: &str, own: Result<T>) -> Result<T> {
        let (own, said) = match own {
            Ok(own) => (Some(own), Ok(Vec::new())),
            Err(error) => (None, Err(error)),
        };
        self.exchange(step, said)?;
        own.ok_or_else(|| Error::Channel { step: step.to_owned(), reason: "an error was lost".into() })
    }

    /// What all ranks do with the same `terms`, which takes further steps together: if it fails on one rank, wherever in
    /// its course, it fails on all.
    pub fn together<T, E: From<Error> + Display>(
        &self,
        terms: &str,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.exchange(terms, Ok(Vec::new()))?;
        self.failure_told.store(false, Ordering::Relaxed);
        let outcome = work();
        match &outcome {
            Err(_) if self.failure_told.load(Ordering::Relaxed) => {}
            Err(error) => {
                let failed = Error::Failed { what: terms.to_owned(), reason: error.to_string() };
                let _told = self.exchange(terms, Err(failed));
            }
            Ok(_) => drop(self.exchange(terms, Ok(Vec::new()))?),
        }
        outcome
    }

    /// Whether the last thing that was done [together](Peers::together) has failed, on whichever rank, or the channel has.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure_told.load(Ordering::Relaxed)
    }

    /// Hands `own` to those of the machine's peers that are `wanted`, and who want this rank's in turn, in a step of its own:
    /// the files of those ranks, each in its place.
    pub(crate) fn exchange_files(
        &self,
        own: BorrowedFd<'_>,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<Vec<Option<OwnedFd>>> {
        let number = self.exchanges.fetch_add(1, Ordering::Relaxed);
        self.share("hand out memory", self.sockets.exchange(self.rank(), own, number, wanted))
    }
}

/// What a rank says in a step.
struct Said {
    step: String,
    outcome: Result<Vec<u8>, String>,
}

impl Said {
    fn bytes(&self) -> Vec<u8> {
        let (failed, rest) = match &self.outcome {
            Ok(bytes) => (0, bytes.as_slice()),
            Err(reason) => (1, reason.as_bytes()),
        };
        let length = u32::try_from(self.step.len()).unwrap_or(u32::MAX).to_le_bytes();
        [&[failed], length.as_slice(), self.step.as_bytes(), rest].concat()
    }

    /// Whatever was said is read as something: by a peer of the same version it is what that said.
    fn read(bytes: &[u8]) -> Self {
        let (failed, bytes) = bytes.split_first().unwrap_or((&0, &[]));
        let (length, bytes) = bytes.split_first_chunk().unwrap_or((&[0; 4], &[]));
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (step, rest) = bytes.split_at(length.min(bytes.len()));
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let outcome = if *failed == 0 { Ok(rest.to_vec()) } else { Err(text(rest)) };
        Self { step: text(step), outcome }
    }

    /// What `rank` said, if it took `step`, and could.
    fn of(self, rank: usize, step: &str) -> Result<Vec<u8>> {
        match self.outcome {
            Err(reason) => Err(Error::PeerFailed { rank, step: self.step, reason }),
            Ok(_) if self.step != step => {
                Err(Error::OutOfStep { rank, theirs: self.step, ours: step.to_owned() })
            }
            Ok(bytes) => Ok(bytes),
        }
    }
}

/// The ranks of each machine: ranks count up machine by machine.
fn machines(all: &[Introduction]) -> Result<Vec<Range<usize>>> {
    let mut machines: Vec<Range<usize>> = Vec::new();
    for (rank, peer) in all.iter().enumerate() {
        match machines.last_mut() {
            Some(last) if all[last.start].machine == peer.machine => last.end = rank + 1,
            _ => {
                if let Some(other) = all[..rank].iter().position(|before| before.machine == peer.machine) {
                    return Err(Error::ScatteredRanks { rank, other, host: peer.host.clone() });
                }
                machines.push(rank..rank + 1);
            }
        }
    }
    Ok(machines)
}

/// How a process presents itself.
#[derive(Debug, PartialEq, Eq)]
struct Introduction {
    pid: i32,
    /// The same for all processes of a machine, and for no other.
    machine: String,
    host: String,
    /// Where it can be connected to.
    path: String,
}

impl Introduction {
    fn own() -> Self {
        let read = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}"));
            text.map(|text| text.trim().to_owned()).unwrap_or_default()
        };
        let (boot, host) = (read("random/boot_id"), read("hostname"));
        let machine = if boot.is_empty() { host.clone() } else { boot };
        Self { pid: rustix::process::getpid().as_raw_nonzero().get(), machine, host, path: String::new() }
    }

    fn bytes(&self, path: &str) -> Vec<u8> {
        format!("{}\n{}\n{}\n{path}", self.pid, self.machine, self.host).into_bytes()
    }

    fn read(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut parts = text.splitn(4, '\n').map(str::to_owned);
        let pid = parts.next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
        let mut next = || parts.next().unwrap_or_default();
        Self { pid, machine: next(), host: next(), path: next() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BootstrapError;

    #[test]
    fn ranks_count_up_machine_by_machine() {
        let on = |names: &str| -> Vec<_> {
            let on = |name: char| Introduction { machine: name.into(), ..Introduction::own() };
            names.chars().map(on).collect()
        };
        assert_eq!(machines(&on("aabccc")).unwrap(), [0..2, 2..3, 3..6]);
        assert_eq!(machines(&on("")).unwrap(), []);
        assert!(matches!(machines(&on("abab")), Err(Error::ScatteredRanks { rank: 2, other: 0, .. })));
    }

    /// A channel over which nothing comes, because a rank has gone or for another reason.
    #[derive(Debug)]
    struct Broken {
        lost: Option<usize>,
    }

    impl Bootstrap for Broken {
        fn rank(&self) -> usize {
            0
        }

        fn world_size(&self) -> usize {
            2
        }

        fn all_gather(&self, _: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
            Err("the channel is broken".into())
        }

        fn lost_rank(&self) -> Option<usize> {
            self.lost
        }
    }

    #[test]
    fn a_rank_that_has_gone_is_the_reason_for_what_fails_then() {
        for lost in [Some(1), None] {
            let peers = Peers {
                bootstrap: Arc::new(Broken { lost }),
                sockets: Sockets::default(),
                machines: Vec::new(),
                exchanges: AtomicU64::new(0),
                failure_told: AtomicBool::new(false),
            };
            let own = Err::<(), _>(Error::System { call: "chmod", reason: "gone".into() });
            let error = peers.share("listen for each other", own).unwrap_err();
            assert_eq!(matches!(error, Error::Channel { .. }), lost.is_some(), "{error}");
            assert!(peers.has_failed());
        }
    }

    #[test]
    fn what_is_said_is_understood() {
        let own = Introduction { path: "/tmp/x\ny".into(), ..Introduction::own() };
        assert_eq!(Introduction::read(&own.bytes(&own.path)), own);
        for outcome in [Ok(vec![1, 2, 3]), Ok(Vec::new()), Err("no memory".to_owned())] {
            let said = Said { step: "count".into(), outcome: outcome.clone() };
            let read = Said::read(&said.bytes());
            assert_eq!((read.step.as_str(), &read.outcome), ("count", &outcome));
            match read.of(3, "count") {
                Ok(bytes) => assert_eq!(Ok(bytes), outcome),
                Err(error) => assert!(matches!(error, Error::PeerFailed { rank: 3, .. }) && outcome.is_err()),
            }
        }
        for noise in [&[][..], &[0], &[0, 255, 255, 255, 255, 7], &[1, 0, 0, 0, 0, 200]] {
            assert!(Said::read(noise).of(0, "count").is_err(), "{noise:?}");
        }
    }
}
