//! Writing to standard output, which may be closed at any time.

use crate::error::Error;
use flux::Group;
use std::fmt::Display;
use std::io::{ErrorKind, Write};

/// Prints a line. A reader that has gone away wants no more of it: that is no error.
pub(crate) fn print(line: impl Display) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => {
            other.map_err(|source| Error::File { action: "write", path: "standard output".into(), source })
        }
    }
}

/// Whether this process prints and writes what is the same on all ranks: the one that rank 0 lives in.
pub(crate) fn speaks(group: &Group) -> bool {
    group.local_ranks().start == 0
}
