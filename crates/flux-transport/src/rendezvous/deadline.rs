//! Reads and writes that end in time, however slowly the other side drips.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// What is left until `deadline`, or the error that nothing is.
pub(super) fn remaining(deadline: Instant) -> Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    // A socket takes a timeout of zero for none at all.
    if left.is_zero() { Err(Error::new(ErrorKind::TimedOut, "too slow")) } else { Ok(left) }
}

/// Fills `bytes`. The deadline holds for all of them: a timeout of the socket alone would begin anew with each byte.
pub(super) fn read_exact(mut stream: &TcpStream, bytes: &mut [u8], deadline: Instant) -> Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        stream.set_read_timeout(Some(remaining(deadline)?))?;
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `bytes`.
pub(super) fn write_all(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(remaining(deadline)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether to look at the clock and go on. An expired timeout of a socket is `WouldBlock` on some systems.
fn is_transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
