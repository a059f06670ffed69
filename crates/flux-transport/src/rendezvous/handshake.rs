//! Who may join: what rank 0 and a rank that joins it say to each other before they are a group.
//!
//! 1. Rank 0 sends what it is (8 bytes) and 32 random bytes.
//! 2. The rank sends 32 random bytes of its own and a digest of the token and both. Rank 0 reads these 64 bytes and nothing
//!    else: who cannot prove the token is refused here.
//! 3. Rank 0 answers with its own proof: the rank, too, knows whom it talks to.
//! 4. The rank sends the version of the protocol, the world size, its rank and its build. Rank 0 refuses what does not
//!    fit, with a reason, or says welcome as soon as all ranks are there.
//!
//! The token never travels, and each digest is good for one connection.

use super::deadline::{read_exact, write_all};
use sha2::{Digest, Sha256};
use std::io::{Error, ErrorKind};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Rises with every change of what is said here or in the frames of a formed group.
const PROTOCOL: u32 = 1;
const GREETING: &[u8; 8] = b"fluxrdv\n";
/// The longest name of a build.
pub(super) const MAX_BUILD_BYTES: usize = 256;
/// The longest reason of a refusal.
const MAX_REASON_BYTES: usize = 1024;
const WELCOME: u8 = 1;
const REFUSED: u8 = 2;
const PROVEN: u8 = 3;
/// How long a refused rank has to take note: closing at once, with its words unread, could destroy the refusal on its way.
const FAREWELL: Duration = Duration::from_millis(500);

type Nonce = [u8; 32];
type Proof = [u8; 32];

/// What all ranks of a group must have in common.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) token: Vec<u8>,
    pub(super) build: String,
    pub(super) world_size: usize,
}

/// How a rank's attempt to join ended, if not well.
#[derive(Debug)]
pub(super) enum JoinFailure {
    /// The connection failed: rank 0 may be busy or not yet there, so that another attempt may go better.
    Connection(Error),
    /// Whoever answered is not rank 0 of this group.
    Stranger(&'static str),
    /// Rank 0 says no.
    Refused(String),
}

impl From<Error> for JoinFailure {
    fn from(error: Error) -> Self {
        JoinFailure::Connection(error)
    }
}

/// Rank 0's side: the rank that has joined, or why it is refused.
pub(super) fn admit(stream: &TcpStream, terms: &Terms, deadline: Instant) -> Result<usize, String> {
    let io = |error: Error| match error.kind() {
        ErrorKind::UnexpectedEof => "it disconnected halfway".to_owned(),
        ErrorKind::TimedOut => "it was silent, or too slow".to_owned(),
        _ => format!("the connection failed: {error}"),
    };
    let ours = nonce().map_err(io)?;
    write_all(stream, &[&GREETING[..], &ours].concat(), deadline).map_err(io)?;
    let mut answer = [0; 64];
    read_exact(stream, &mut answer, deadline).map_err(io)?;
    let (theirs, given) = answer.split_at(32);
    if !equal(given, &proof(b"rank", &terms.token, &ours, theirs)) {
        let reason = "its token is wrong; all ranks need the same (FLUX_TOKEN, or that of the same job)";
        return Err(refuse(stream, reason, deadline));
    }
    let own = proof(b"root", &terms.token, &ours, theirs);
    write_all(stream, &[&[PROVEN][..], &own].concat(), deadline).map_err(io)?;

    // The version comes first and by itself: another one may say something else after it.
    let version = u32::from_le_bytes(read_array(stream, deadline).map_err(io)?);
    if version != PROTOCOL {
        let reason = format!(
            "it speaks version {version} of the protocol, rank 0 speaks {PROTOCOL}; install one build of flux"
        );
        return Err(refuse(stream, &reason, deadline));
    }
    let world_size = u64::from_le_bytes(read_array(stream, deadline).map_err(io)?);
    let rank = u64::from_le_bytes(read_array(stream, deadline).map_err(io)?);
    let length = usize::from(u16::from_le_bytes(read_array(stream, deadline).map_err(io)?));
    if length > MAX_BUILD_BYTES {
        return Err(refuse(stream, "its build has too long a name", deadline));
    }
    let mut build = vec![0; length];
    read_exact(stream, &mut build, deadline).map_err(io)?;
    if build != terms.build.as_bytes() {
        let theirs = String::from_utf8_lossy(&build).into_owned();
        let reason = format!(
            "its build of flux is `{theirs}`, rank 0's is `{}`; install the same for all ranks",
            terms.build
        );
        return Err(refuse(stream, &reason, deadline));
    }
    if world_size != terms.world_size as u64 {
        let reason = format!(
            "its world size is {world_size}, rank 0's is {}; start all ranks with the same",
            terms.world_size
        );
        return Err(refuse(stream, &reason, deadline));
    }
    match usize::try_from(rank) {
        Ok(0) => {
            Err(refuse(stream, "there is a rank 0 already; give each process a rank of its own", deadline))
        }
        Ok(rank) if rank < terms.world_size => Ok(rank),
        _ => {
            let reason =
                format!("there is no rank {rank} in a world of {}; give it one of them", terms.world_size);
            Err(refuse(stream, &reason, deadline))
        }
    }
}

/// Tells a rank why it may not join, gives it time to hear that, and returns the reason.
pub(super) fn refuse(stream: &TcpStream, reason: &str, deadline: Instant) -> String {
    let told = tell_refusal(stream, reason, deadline);
    if told.and_then(|()| stream.shutdown(Shutdown::Write)).is_ok() {
        let mut ignored = [0; 1024];
        let _ = read_exact(stream, &mut ignored, deadline.min(Instant::now() + FAREWELL));
    }
    reason.to_owned()
}

/// Tells a rank why it may not join.
pub(super) fn tell_refusal(stream: &TcpStream, reason: &str, deadline: Instant) -> Result<(), Error> {
    let reason = beginning(reason, MAX_REASON_BYTES);
    let mut frame = vec![REFUSED];
    frame.extend(u16::try_from(reason.len()).unwrap_or(0).to_le_bytes());
    frame.extend(reason.as_bytes());
    write_all(stream, &frame, deadline)
}

/// Tells a rank that the group is formed.
pub(super) fn welcome(stream: &TcpStream, deadline: Instant) -> Result<(), Error> {
    write_all(stream, &[WELCOME], deadline)
}

/// The side of a rank that joins: makes itself known, before `deadline`.
pub(super) fn introduce(
    stream: &TcpStream,
    terms: &Terms,
    rank: usize,
    deadline: Instant,
) -> Result<(), JoinFailure> {
    prove(stream, terms, deadline)?;
    let mut hello = Vec::from(PROTOCOL.to_le_bytes());
    hello.extend((terms.world_size as u64).to_le_bytes());
    hello.extend((rank as u64).to_le_bytes());
    hello.extend(u16::try_from(terms.build.len()).unwrap_or(u16::MAX).to_le_bytes());
    hello.extend(terms.build.as_bytes());
    Ok(write_all(stream, &hello, deadline)?)
}

/// Proves to rank 0 that this rank has the token, and lets rank 0 prove it.
pub(super) fn prove(stream: &TcpStream, terms: &Terms, deadline: Instant) -> Result<(), JoinFailure> {
    let mut greeting = [0; 8];
    read_exact(stream, &mut greeting, deadline)?;
    if &greeting != GREETING {
        return Err(JoinFailure::Stranger("it speaks another protocol"));
    }
    let theirs: Nonce = read_array(stream, deadline)?;
    let ours = nonce()?;
    let given = proof(b"rank", &terms.token, &theirs, &ours);
    write_all(stream, &[ours, given].concat(), deadline)?;
    answer_of(stream, PROVEN, deadline)?;
    let answer: Proof = read_array(stream, deadline)?;
    if !equal(&answer, &proof(b"root", &terms.token, &theirs, &ours)) {
        return Err(JoinFailure::Stranger("it does not know the token"));
    }
    Ok(())
}

/// Waits until rank 0 says that the group is formed.
pub(super) fn await_welcome(stream: &TcpStream, deadline: Instant) -> Result<(), JoinFailure> {
    answer_of(stream, WELCOME, deadline)
}

/// Reads one of rank 0's answers: the `expected` one, or a refusal.
fn answer_of(stream: &TcpStream, expected: u8, deadline: Instant) -> Result<(), JoinFailure> {
    match read_array(stream, deadline)? {
        [kind] if kind == expected => Ok(()),
        [REFUSED] => {
            let length = usize::from(u16::from_le_bytes(read_array(stream, deadline)?));
            if length > MAX_REASON_BYTES {
                return Err(JoinFailure::Stranger("it speaks another protocol"));
            }
            let mut reason = vec![0; length];
            read_exact(stream, &mut reason, deadline)?;
            Err(JoinFailure::Refused(String::from_utf8_lossy(&reason).into_owned()))
        }
        _ => Err(JoinFailure::Stranger("it speaks another protocol")),
    }
}

fn read_array<const N: usize>(stream: &TcpStream, deadline: Instant) -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    read_exact(stream, &mut bytes, deadline)?;
    Ok(bytes)
}

fn nonce() -> Result<Nonce, Error> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(Error::other)?;
    Ok(nonce)
}

/// All that is hashed has a fixed length, the token's digest instead of the token: no two inputs look alike.
fn proof(role: &[u8; 4], token: &[u8], root_nonce: &[u8], rank_nonce: &[u8]) -> Proof {
    let mut hash = Sha256::new();
    for part in [&b"flux rendezvous "[..], role, &Sha256::digest(token), root_nonce, rank_nonce] {
        hash.update(part);
    }
    hash.finalize().into()
}

/// Compares without stopping at the first difference: how long it takes says nothing about where that is.
fn equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && std::hint::black_box(a.iter().zip(b).fold(0, |acc, (a, b)| acc | (a ^ b))) == 0
}

/// The longest beginning of `text` that has at most so many bytes.
fn beginning(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
