//! What ranks print, line by line, with the rank before each.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A longer line is cut in pieces: somebody may print without end.
const LONGEST_LINE: usize = 64 << 10;
/// How long output may stay open and silent after its rank has ended: something that the rank left running holds it.
const LINGER: Duration = Duration::from_secs(1);

/// Where output goes.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Stdout,
    Stderr,
}

/// The threads that carry output.
#[derive(Default)]
pub(super) struct Pumps {
    pumps: Vec<(JoinHandle<()>, Arc<Progress>)>,
    /// Something could not be written, though there was somebody to read it.
    lost: Arc<AtomicBool>,
}

/// How far a pump is.
#[derive(Default)]
struct Progress {
    reads: AtomicU64,
    writing: AtomicBool,
}

impl Pumps {
    /// Carries what comes from a rank until it is closed.
    pub(super) fn start(
        &mut self,
        rank: usize,
        from: impl Read + Send + 'static,
        target: Target,
    ) -> std::io::Result<()> {
        let progress = Arc::new(Progress::default());
        let own = Arc::clone(&progress);
        let lost = Arc::clone(&self.lost);
        let carry = move || carry(from, &format!("[{rank}] "), (target, &lost), &own);
        let thread = std::thread::Builder::new().name(format!("output-{rank}")).spawn(carry)?;
        self.pumps.push((thread, progress));
        Ok(())
    }

    /// Waits until everything that ranks have printed is written, however slowly it is read. It does not wait for what a rank
    /// has left running to print more. False if something could not be written: the disk is full, say.
    pub(super) fn finish(self) -> bool {
        let mut seen = None;
        let mut since = Instant::now();
        loop {
            let unfinished = || self.pumps.iter().filter(|(thread, _)| !thread.is_finished());
            let written = !self.lost.load(Ordering::Acquire);
            if unfinished().next().is_none() {
                return written;
            }
            let reads: u64 = unfinished().map(|(_, progress)| progress.reads.load(Ordering::Acquire)).sum();
            let writing = unfinished().any(|(_, progress)| progress.writing.load(Ordering::Acquire));
            if writing || seen != Some((unfinished().count(), reads)) {
                seen = Some((unfinished().count(), reads));
                since = Instant::now();
            } else if since.elapsed() > LINGER {
                return written;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn carry(mut from: impl Read, prefix: &str, (target, lost): (Target, &AtomicBool), progress: &Progress) {
    let mut line = Line { prefix, target, lost, bytes: Vec::new() };
    let mut chunk = vec![0; 16 << 10];
    loop {
        let count = match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        progress.writing.store(true, Ordering::Release);
        progress.reads.fetch_add(1, Ordering::AcqRel);
        for piece in chunk[..count].split_inclusive(|&byte| byte == b'\n') {
            line.push(piece);
        }
        progress.writing.store(false, Ordering::Release);
    }
    line.end();
}

/// A line that is not yet complete.
struct Line<'p> {
    prefix: &'p str,
    target: Target,
    lost: &'p AtomicBool,
    bytes: Vec<u8>,
}

impl Line<'_> {
    /// Takes up to and including the next end of a line.
    fn push(&mut self, piece: &[u8]) {
        self.bytes.extend(piece);
        if self.bytes.ends_with(b"\n") || self.bytes.len() >= LONGEST_LINE {
            self.write();
        }
    }

    /// There will be no more: writes what is left.
    fn end(&mut self) {
        if !self.bytes.is_empty() {
            self.write();
        }
    }

    /// Writes the line at once, so that lines of different ranks do not mix.
    fn write(&mut self) {
        let mut whole = Vec::from(self.prefix);
        whole.append(&mut self.bytes);
        if !whole.ends_with(b"\n") {
            whole.push(b'\n');
        }
        let written = match self.target {
            Target::Stdout => write_all(std::io::stdout().lock(), &whole),
            Target::Stderr => write_all(std::io::stderr().lock(), &whole),
        };
        // A reader that has gone wants no more of it. The ranks go on in any case: they may have other work than to print.
        if written.is_err_and(|error| error.kind() != ErrorKind::BrokenPipe) {
            self.lost.store(true, Ordering::Release);
        }
    }
}

fn write_all(mut to: impl Write, bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}
