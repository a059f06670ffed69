//! What the ranks of a formed group send each other: frames of a header and a body.

use std::io::{Error, ErrorKind, Read};
use std::net::TcpStream;

/// The most bytes that a rank contributes to a collective call.
pub(super) const MAX_CONTRIBUTION: usize = 1 << 20;
const HEADER_BYTES: usize = 13;
/// A body grows by at most this much ahead of what has arrived.
const STEP_BYTES: usize = 64 << 10;

/// Which collective call it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Collective {
    AllGather,
    Barrier,
}

impl std::fmt::Display for Collective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Collective::AllGather => "an all-gather",
            Collective::Barrier => "a barrier",
        })
    }
}

/// A collective call: the `number`th of the channel, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) number: u64,
    pub(super) collective: Collective,
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} as its collective call {}", self.collective, self.number)
    }
}

/// What ranks send each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// To rank 0: this rank's part of a call.
    Contribution(Call, Vec<u8>),
    /// From rank 0: all parts, in rank order.
    Result(Call, Vec<Vec<u8>>),
    /// The sender is alive.
    Heartbeat,
    /// The sender leaves in good order, and sends nothing more.
    Goodbye,
    /// From rank 0: this rank has left in good order.
    Left(usize),
    /// From rank 0: this rank is lost.
    Lost(usize),
    /// These ranks did not come to this call in time.
    Late(Call, Vec<usize>),
    /// From rank 0: `rank` makes the call `theirs` where rank 0 makes `ours`.
    OutOfStep { rank: usize, theirs: Call, ours: Call },
}

impl Frame {
    /// The frame in bytes: kind, collective and number of the call, length of the body, body.
    pub(super) fn encode(&self) -> Vec<u8> {
        let none = Call { number: 0, collective: Collective::AllGather };
        let rank_bytes = |rank: &usize| (*rank as u64).to_le_bytes();
        let (kind, call, body) = match self {
            Frame::Contribution(call, bytes) => (1, *call, bytes.clone()),
            Frame::Result(call, parts) => {
                let mut body = Vec::new();
                for part in parts {
                    body.extend((part.len() as u64).to_le_bytes());
                    body.extend(part);
                }
                (2, *call, body)
            }
            Frame::Heartbeat => (3, none, Vec::new()),
            Frame::Goodbye => (4, none, Vec::new()),
            Frame::Left(rank) => (5, none, rank_bytes(rank).to_vec()),
            Frame::Lost(rank) => (6, none, rank_bytes(rank).to_vec()),
            Frame::Late(call, ranks) => (7, *call, ranks.iter().flat_map(rank_bytes).collect()),
            Frame::OutOfStep { rank, theirs, ours } => {
                let mut body = rank_bytes(rank).to_vec();
                body.extend(theirs.number.to_le_bytes());
                body.push(code(theirs.collective));
                (8, *ours, body)
            }
        };
        let mut frame = vec![kind << 1 | code(call.collective)];
        frame.extend(call.number.to_le_bytes());
        // No body reaches 4 GiB: parts are limited, and so are ranks.
        frame.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
        frame.extend(body);
        frame
    }

    /// Reads the next frame of a group of `world_size`. No memory is taken for what has only been announced.
    pub(super) fn read(mut stream: &TcpStream, world_size: usize) -> Result<Frame, Error> {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header)?;
        let (head, length) = header.split_at(9);
        let mut number = [0; 8];
        number.copy_from_slice(&head[1..]);
        let call = Call { number: u64::from_le_bytes(number), collective: collective(head[0] & 1) };
        let length = length.iter().rev().fold(0_usize, |length, &byte| length << 8 | usize::from(byte));
        let kind = head[0] >> 1;
        let limit = match kind {
            1 => MAX_CONTRIBUTION,
            2 => world_size * (MAX_CONTRIBUTION + 8),
            3 | 4 => 0,
            5 | 6 => 8,
            7 => world_size * 8,
            8 => 17,
            _ => return Err(malformed("of an unknown kind")),
        };
        if length > limit {
            return Err(malformed("too long"));
        }
        let mut body = Vec::new();
        while body.len() < length {
            let filled = body.len();
            body.resize(length.min(filled + STEP_BYTES), 0);
            stream.read_exact(&mut body[filled..])?;
        }
        Self::decode(kind, call, &body, world_size).ok_or_else(|| malformed("not what it says it is"))
    }

    fn decode(kind: u8, call: Call, mut body: &[u8], world_size: usize) -> Option<Frame> {
        let rest = &mut body;
        let frame = match kind {
            1 => Frame::Contribution(call, std::mem::take(rest).to_vec()),
            2 => {
                let mut parts = Vec::with_capacity(world_size);
                for _ in 0..world_size {
                    let length = usize::try_from(take_number(rest)?).ok()?;
                    parts.push(take(rest, length)?.to_vec());
                }
                Frame::Result(call, parts)
            }
            3 => Frame::Heartbeat,
            4 => Frame::Goodbye,
            5 => Frame::Left(take_rank(rest, world_size)?),
            6 => Frame::Lost(take_rank(rest, world_size)?),
            7 => {
                let mut ranks = Vec::new();
                while !rest.is_empty() {
                    ranks.push(take_rank(rest, world_size)?);
                }
                Frame::Late(call, ranks)
            }
            8 => {
                let rank = take_rank(rest, world_size)?;
                let number = take_number(rest)?;
                let theirs = Call { number, collective: collective(*take(rest, 1)?.first()?) };
                Frame::OutOfStep { rank, theirs, ours: call }
            }
            _ => return None,
        };
        rest.is_empty().then_some(frame)
    }
}

fn malformed(how: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("a frame is {how}"))
}

fn code(collective: Collective) -> u8 {
    u8::from(collective == Collective::Barrier)
}

fn collective(code: u8) -> Collective {
    if code == 0 { Collective::AllGather } else { Collective::Barrier }
}

fn take<'b>(bytes: &mut &'b [u8], count: usize) -> Option<&'b [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes, 8)?.try_into().ok().map(u64::from_le_bytes)
}

fn take_rank(bytes: &mut &[u8], world_size: usize) -> Option<usize> {
    usize::try_from(take_number(bytes)?).ok().filter(|&rank| rank < world_size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;
    use std::net::TcpListener;

    /// What a peer reads if these bytes are sent, and then nothing more.
    fn received(bytes: &[u8], world_size: usize) -> Result<Frame, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        let bytes = bytes.to_vec();
        let writer = std::thread::spawn(move || sender.write_all(&bytes));
        let frame = Frame::read(&receiver, world_size);
        drop(receiver);
        let _ = writer.join().unwrap();
        frame
    }

    fn frames() -> impl Strategy<Value = Frame> {
        let call = || {
            (any::<u64>(), any::<bool>())
                .prop_map(|(number, barrier)| Call { number, collective: collective(u8::from(barrier)) })
        };
        let bytes = || proptest::collection::vec(any::<u8>(), 0..200);
        prop_oneof![
            (call(), bytes()).prop_map(|(call, bytes)| Frame::Contribution(call, bytes)),
            (call(), [bytes(), bytes(), bytes()]).prop_map(|(call, parts)| Frame::Result(call, parts.into())),
            Just(Frame::Heartbeat),
            Just(Frame::Goodbye),
            (0..3_usize).prop_map(Frame::Left),
            (0..3_usize).prop_map(Frame::Lost),
            (call(), proptest::collection::vec(0..3_usize, 0..3))
                .prop_map(|(call, ranks)| Frame::Late(call, ranks)),
            (0..3_usize, call(), call()).prop_map(|(rank, theirs, ours)| Frame::OutOfStep {
                rank,
                theirs,
                ours
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_written_is_read(frame in frames()) {
            prop_assert_eq!(received(&frame.encode(), 3).unwrap(), frame);
        }

        #[test]
        fn a_frame_cut_short_is_an_error(frame in frames(), cut in any::<proptest::sample::Index>()) {
            let bytes = frame.encode();
            let end = cut.index(bytes.len());
            prop_assert!(received(&bytes[..end], 3).is_err());
        }

        #[test]
        fn garbage_is_an_error_or_a_frame(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = received(&bytes, 3);
        }
    }

    #[test]
    fn announced_lengths_are_limited() {
        for kind in 0..=255 {
            let mut bytes = vec![kind];
            bytes.extend([0; 8]);
            bytes.extend(u32::MAX.to_le_bytes());
            let error = received(&bytes, 3).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "kind {kind}: {error}");
        }
    }
}
