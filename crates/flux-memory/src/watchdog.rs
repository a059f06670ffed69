//! Bounds the waits of GPU streams, which have no time limit of their own, and ends all waits of a rank whose peer is lost.
//!
//! A stream marks in host memory when it begins a wait and when it has passed it. One thread of the process looks at
//! the marks. A wait that lasts longer than its budget is recorded, and ended by raising its signals from a stream kept
//! for this: the stream goes on, everything behind it ends, and the operation reports the fault.

use crate::wait::WaitPlace;
use crate::{Bootstrap, Error, Fault, FaultLog, Result, reached};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the marks are looked at: far below any sensible budget, and invisible as a load.
const INTERVAL: Duration = Duration::from_millis(5);

/// How long reading or raising a signal may take: copies of four bytes on a stream of their own.
const RESCUE_LIMIT: Duration = Duration::from_secs(2);

struct Watched {
    place: Arc<WaitPlace>,
    since: Option<(u32, Instant)>,
}

/// A rank among processes.
struct WatchedRank {
    number: u64,
    log: Arc<FaultLog>,
    bootstrap: Arc<dyn Bootstrap>,
}

struct Watchdog {
    running: bool,
    watched: Vec<Watched>,
    ranks: Vec<WatchedRank>,
    /// Ranks watched so far.
    numbers: u64,
}

impl Watchdog {
    fn start(&mut self) -> Result<()> {
        if !self.running {
            let thread = std::thread::Builder::new().name("flux-watchdog".into());
            thread.spawn(run).map_err(|error| Error::NoThread { reason: error.to_string() })?;
            self.running = true;
        }
        Ok(())
    }
}

static WATCHDOG: Mutex<Watchdog> =
    Mutex::new(Watchdog { running: false, watched: Vec::new(), ranks: Vec::new(), numbers: 0 });

fn lock() -> MutexGuard<'static, Watchdog> {
    WATCHDOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches `place` until it is forgotten.
pub(crate) fn watch(place: &Arc<WaitPlace>) -> Result<()> {
    let mut watchdog = lock();
    watchdog.start()?;
    watchdog.watched.push(Watched { place: Arc::clone(place), since: None });
    Ok(())
}

/// Returns when the watchdog does not use `place` any more, and will not again.
pub(crate) fn forget(place: &Arc<WaitPlace>) {
    lock().watched.retain(|watched| !Arc::ptr_eq(&watched.place, place));
}

/// As long as it lives, a rank's waits end when the process of one of its peers is found to have gone: at once, not when their
/// budget is spent.
#[derive(Debug)]
pub struct PeerWatch {
    number: u64,
}

impl PeerWatch {
    /// Ends the waits of `log`'s rank when `bootstrap` knows of a lost rank.
    pub fn new(log: &Arc<FaultLog>, bootstrap: &Arc<dyn Bootstrap>) -> Result<Self> {
        let mut watchdog = lock();
        watchdog.start()?;
        let number = watchdog.numbers;
        watchdog.numbers += 1;
        let (log, bootstrap) = (Arc::clone(log), Arc::clone(bootstrap));
        watchdog.ranks.push(WatchedRank { number, log, bootstrap });
        Ok(Self { number })
    }
}

impl Drop for PeerWatch {
    fn drop(&mut self) {
        // What it held is dropped here, not by the watchdog, and not under the lock: a channel may take its leave then.
        let mut watchdog = lock();
        let place = watchdog.ranks.iter().position(|rank| rank.number == self.number);
        let rank = place.map(|place| watchdog.ranks.swap_remove(place));
        drop(watchdog);
        drop(rank);
    }
}

fn run() {
    loop {
        std::thread::sleep(INTERVAL);
        // Held while a wait is ended: its signals cannot be freed meanwhile.
        let mut watchdog = lock();
        for WatchedRank { log, bootstrap, .. } in &watchdog.ranks {
            let Some(lost) = bootstrap.lost_rank().filter(|_| log.lost_rank().is_none()) else { continue };
            tracing::error!(rank = bootstrap.rank(), lost, "a rank is lost: all waits end");
            if let Err(error) = log.give_up(lost) {
                tracing::error!(%error, "kernels could not be told of a lost rank");
            }
        }
        for Watched { place, since } in &mut watchdog.watched {
            *since = place.waiting_for().map(|wanted| match *since {
                Some((same, begin)) if same == wanted => (wanted, begin),
                _ => (wanted, Instant::now()),
            });
            let Some((wanted, begin)) = *since else { continue };
            // After a rank's first fault, of whatever kind, nothing of it is waited for any more.
            let log = place.log();
            if begin.elapsed() > log.budget() || log.has_given_up() {
                *since = Some((wanted, Instant::now())); // if the rescue itself fails, it is tried again
                if let Err(error) = end_wait(place, wanted) {
                    tracing::error!(%error, "a stream's expired wait could not be ended");
                }
            }
        }
    }
}

/// Records the first signal of `place` that has not reached `wanted`, and raises all of them.
fn end_wait(place: &WaitPlace, wanted: u32) -> Result<()> {
    let Some((stream, scratch, flag)) = place.log().rescue() else { return Ok(()) };
    let bound = place.bound();
    let settle = || match stream.synchronize_within(RESCUE_LIMIT)? {
        true => Ok(()),
        false => Err(Error::Driver {
            call: "cuStreamQuery",
            name: "timeout".into(),
            description: "the stream that ends expired waits is stuck itself".into(),
        }),
    };
    for &(word, site) in &place.signals {
        // SAFETY: the scratch word is pinned host memory of the log, used by this thread only; the signal is live,
        // because its place is forgotten before it is freed.
        let seen = unsafe {
            stream.copy(scratch, word, size_of::<u32>())?;
            settle()?;
            scratch.as_ptr::<u32>().read_volatile()
        };
        if reached(seen, wanted) || place.waiting_for() != Some(wanted) {
            continue;
        }
        place.log().report(Fault {
            state: 1,
            rank: bound.rank,
            peer: site.peer,
            op: bound.op,
            tile: site.tile,
            signal: site.signal,
            seen,
            wanted,
        });
        // SAFETY: the flag belongs to the log; the signal is live, as above.
        unsafe { stream.write_values(&[(flag, 1), (word, wanted)])? };
    }
    settle()
}
