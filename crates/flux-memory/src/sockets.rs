//! Connected Unix sockets between the processes of a group, for what only a socket can carry: open files.
//!
//! A process listens in a directory that only its user can enter. It accepts exactly the processes that the group's channel
//! has named, by what the kernel says of who has connected. When all are connected, the directory is removed: what is left
//! are open sockets, which end with their processes.

use crate::{Error, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::fs::{DirBuilder, Permissions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// How long one step with sockets may take: all processes take it at the same time, since the channel has just brought them
/// together.
const LIMIT: Duration = Duration::from_secs(30);

/// How long a process that has connected may take to say its rank.
const GREETING_LIMIT: Duration = Duration::from_secs(5);

/// A Unix socket's name has room for this, its final zero included.
const MOST_PATH_BYTES: usize = 108;

fn failed(call: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |error| Error::System { call, reason: error.to_string() }
}

/// A socket in a private directory. Both are removed on drop.
#[derive(Debug)]
pub(crate) struct Listening {
    listener: UnixListener,
    _directory: Directory,
}

impl Listening {
    /// A name for a socket that no other has. Peers know it before there is such a socket, so that they can remove it if this
    /// process ends without ([`remove`]).
    pub(crate) fn choose_path() -> String {
        let usual = std::env::temp_dir().to_str().map(str::to_owned);
        let parent = usual.filter(|path| path.len() + 50 < MOST_PATH_BYTES).unwrap_or_else(|| "/tmp".into());
        let random = RandomState::new().build_hasher().finish();
        format!("{parent}/flux-{}-{random:016x}/socket", std::process::id())
    }

    pub(crate) fn open(path: &str) -> Result<Self> {
        let directory = path.strip_suffix("/socket").unwrap_or(path);
        // Made by this call, or refused: nobody else can have prepared it.
        DirBuilder::new().mode(0o700).create(directory).map_err(failed("mkdir"))?;
        let directory = Directory(directory.to_owned());
        let listener = UnixListener::bind(path).map_err(failed("bind"))?;
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed("chmod"))?;
        Ok(Self { listener, _directory: directory })
    }
}

/// A directory of its own, only for this user.
#[derive(Debug)]
struct Directory(String);

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = remove_directory(&self.0) {
            tracing::warn!(%error, directory = self.0, "a directory could not be removed");
        }
    }
}

/// Removes what a process has left that was to listen at `path`, if there is anything.
pub(crate) fn remove(path: &str) {
    let Some(directory) = path.strip_suffix("/socket") else { return };
    if let Err(error) = remove_directory(directory) {
        tracing::warn!(%error, directory, "what a rank has left could not be removed");
    }
}

/// With the socket in it and nothing else: it is no error if there is none.
fn remove_directory(directory: &str) -> std::io::Result<()> {
    let removed = [std::fs::remove_file(format!("{directory}/socket")), std::fs::remove_dir(directory)];
    let is_there = |error: &std::io::Error| error.kind() != ErrorKind::NotFound;
    removed.into_iter().filter_map(std::io::Result::err).find(is_there).map_or(Ok(()), Err)
}

/// A socket to each peer.
#[derive(Debug, Default)]
pub(crate) struct Sockets(Vec<Option<UnixStream>>);

impl Sockets {
    /// Stands for a peer on another machine, with which this one is not connected.
    pub(crate) const ELSEWHERE: (i32, String) = (0, String::new());

    /// Connects with all of `peers` that are not elsewhere, of each its process and its socket's name: with those before `rank`
    /// by asking, with those behind it by being asked. Gives up when one is `lost`.
    pub(crate) fn connect(
        rank: usize,
        peers: &[(i32, String)],
        listening: &Listening,
        lost: impl Fn() -> Option<usize>,
    ) -> Result<Self> {
        let deadline = Instant::now() + LIMIT;
        let mut streams: Vec<Option<UnixStream>> = peers.iter().map(|_| None).collect();
        let is_here = |peer: usize| peers[peer].0 != Self::ELSEWHERE.0;
        for (peer, (pid, path)) in peers.iter().enumerate().take(rank).filter(|&(peer, _)| is_here(peer)) {
            let gone = |error| Error::BadPeer { rank: peer, reason: format!("its socket {path}: {error}") };
            let mut stream = UnixStream::connect(path).map_err(gone)?;
            check_credentials(&stream, *pid).map_err(|reason| Error::BadPeer { rank: peer, reason })?;
            stream.write_all(&(rank as u64).to_le_bytes()).map_err(failed("write"))?;
            streams[peer] = Some(stream);
        }
        listening.listener.set_nonblocking(true).map_err(failed("fcntl"))?;
        while let Some(missing) =
            (rank + 1..peers.len()).find(|&peer| is_here(peer) && streams[peer].is_none())
        {
            match listening.listener.accept() {
                Ok((stream, _)) => match greeted(stream, peers) {
                    Ok((peer, stream)) if peer > rank && streams[peer].is_none() => {
                        streams[peer] = Some(stream)
                    }
                    Ok((peer, _)) => tracing::warn!(peer, "refused a second connection of a rank"),
                    Err(reason) => tracing::warn!(reason, "refused a connection"),
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if let Some(rank) = lost() {
                        return Err(Error::BadPeer { rank, reason: "its process has ended".into() });
                    }
                    if Instant::now() >= deadline {
                        let reason = format!("it has not connected within {LIMIT:?}");
                        return Err(Error::BadPeer { rank: missing, reason });
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(failed("accept")(error)),
            }
        }
        for stream in streams.iter().flatten() {
            stream.set_read_timeout(Some(LIMIT)).map_err(failed("setsockopt"))?;
            stream.set_write_timeout(Some(LIMIT)).map_err(failed("setsockopt"))?;
        }
        Ok(Self(streams))
    }

    /// Sends `own` to all peers that are `wanted` and receives theirs, each rank's in its place. `number` is the same on all
    /// ranks.
    pub(crate) fn exchange(
        &self,
        rank: usize,
        own: BorrowedFd<'_>,
        number: u64,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<Vec<Option<OwnedFd>>> {
        // A few bytes to each: the kernel keeps them, and nobody has to read before all are sent.
        for (_, stream) in self.0.iter().enumerate().filter(|&(peer, _)| wanted(peer)) {
            stream.as_ref().map_or(Ok(()), |stream| send(stream, own, number))?;
        }
        let receive = |(peer, stream): (usize, &Option<UnixStream>)| match stream {
            Some(stream) if wanted(peer) => {
                receive(stream, number).map(Some).map_err(|reason| Error::BadPeer { rank: peer, reason })
            }
            _ => Ok(None),
        };
        let mut files: Vec<_> = self.0.iter().enumerate().map(receive).collect::<Result<_>>()?;
        files.resize_with(files.len().max(rank + 1), || None);
        Ok(files)
    }
}

/// The rank that has connected, if it is one of `peers`.
fn greeted(mut stream: UnixStream, peers: &[(i32, String)]) -> Result<(usize, UnixStream), String> {
    let said = |error: std::io::Error| error.to_string();
    // By credentials first: nothing that a stranger sends is read.
    let pid = peer_of(&stream)?;
    if !peers.iter().any(|&(expected, _)| expected == pid) {
        return Err(format!("process {pid} is not of this group"));
    }
    stream.set_nonblocking(false).map_err(said)?;
    stream.set_read_timeout(Some(GREETING_LIMIT)).map_err(said)?;
    let mut greeting = [0; 8];
    stream.read_exact(&mut greeting).map_err(said)?;
    let rank = usize::try_from(u64::from_le_bytes(greeting)).unwrap_or(usize::MAX);
    match peers.get(rank) {
        Some(&(expected, _)) if expected == pid => Ok((rank, stream)),
        _ => Err(format!("process {pid} is not rank {rank}")),
    }
}

/// Whoever is at the other end is process `pid`, of the same user.
fn check_credentials(stream: &UnixStream, pid: i32) -> Result<(), String> {
    match peer_of(stream)? {
        found if found == pid => Ok(()),
        found => Err(format!(
            "process {found} listens where process {pid} should (are they in one PID namespace?)"
        )),
    }
}

/// The process at the other end, which must be of the same user.
fn peer_of(stream: &UnixStream) -> Result<i32, String> {
    let peer = rustix::net::sockopt::socket_peercred(stream).map_err(|error| error.to_string())?;
    if peer.uid != rustix::process::geteuid() {
        return Err(format!("it runs as user {}", peer.uid.as_raw()));
    }
    Ok(peer.pid.as_raw_nonzero().get())
}

fn send(stream: &UnixStream, file: BorrowedFd<'_>, number: u64) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    with.push(SendAncillaryMessage::ScmRights(&files));
    let bytes = number.to_le_bytes();
    rustix::net::sendmsg(stream, &[IoSlice::new(&bytes)], &mut with, SendFlags::NOSIGNAL)
        .map(drop)
        .map_err(|error| failed("sendmsg")(error.into()))
}

fn receive(stream: &UnixStream, number: u64) -> Result<OwnedFd, String> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 8];
    let received =
        rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut with, RecvFlags::CMSG_CLOEXEC);
    let received = received.map_err(|error| format!("it sent no memory: {error}"))?;
    let mut files = with.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    match files.next().and_then(|mut files| files.next()) {
        _ if received.bytes == 0 => Err("it has gone".into()),
        Some(file) if received.bytes == bytes.len() && u64::from_le_bytes(bytes) == number => Ok(file),
        _ => Err("it sent something else than the memory that was expected".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::path::Path;

    #[test]
    fn only_processes_of_the_group_are_let_in() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let greet = |said: &[u8], peers: &[(i32, String)]| {
            let (mut one, other) = UnixStream::pair().unwrap();
            one.write_all(said).unwrap();
            drop(one);
            greeted(other, peers).map(|(rank, _)| rank)
        };
        let peers = [(1, String::new()), (own, String::new())];
        assert_eq!(greet(&1_u64.to_le_bytes(), &peers), Ok(1));
        for (said, peers) in [
            (&0_u64.to_le_bytes()[..], &peers[..]), // another process's rank
            (&7_u64.to_le_bytes(), &peers),
            (&1_u64.to_le_bytes(), &peers[..1]), // not of the group
            (b"GET /", &peers),
        ] {
            assert!(greet(said, peers).is_err(), "{said:?}");
        }
    }

    #[test]
    fn files_arrive_in_the_order_of_the_steps() {
        let (one, other) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        for number in 0..3 {
            send(&one, file.as_fd(), number).unwrap();
        }
        assert!(receive(&other, 0).is_ok() && receive(&other, 1).is_ok());
        assert!(receive(&other, 7).is_err());
        drop(one);
        assert_eq!(receive(&other, 3).unwrap_err(), "it has gone");
    }

    #[test]
    fn what_listens_is_private_and_leaves_nothing() {
        let path = Listening::choose_path();
        let (socket, directory) = (Path::new(&path), Path::new(&path).parent().unwrap());
        let listening = Listening::open(&path).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(socket), mode(directory)), (0o600, 0o700));
        assert!(Listening::open(&path).is_err(), "a directory that was prepared is taken");
        drop(listening);
        assert!(!directory.exists());
        // What was not removed by its process is by its peers, at whatever point it ended.
        remove(&path);
        std::mem::forget(Listening::open(&path).unwrap());
        remove(&path);
        assert!(!directory.exists());
        std::fs::create_dir(directory).unwrap();
        remove(&path);
        assert!(!directory.exists());
    }

    #[test]
    fn a_lost_peer_is_not_waited_for() {
        let path = Listening::choose_path();
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let peers = [(own, path.clone()), (own, "/nowhere/socket".into())];
        let listening = Listening::open(&path).unwrap();
        let begin = Instant::now();
        let error = Sockets::connect(0, &peers, &listening, || Some(1)).unwrap_err();
        assert!(matches!(error, Error::BadPeer { rank: 1, .. }) && begin.elapsed() < LIMIT / 2, "{error}");
        let error =
            Sockets::connect(1, &[peers[1].clone(), peers[0].clone()], &listening, || None).unwrap_err();
        assert!(matches!(error, Error::BadPeer { rank: 0, .. }), "{error}");
    }
}
