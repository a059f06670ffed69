//! Bounds the waits of GPU streams, which have no time limit of their own.
//!
//! A stream marks in host memory when it begins a wait and when it has passed it. One thread of the process looks at
//! the marks. A wait that lasts longer than its budget is recorded, and ended by raising its signals from a stream kept
//! for this: the stream goes on, everything behind it ends, and the operation reports the fault.

use crate::{Fault, Result, WaitPoint, reached};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often the marks are looked at: far below any sensible budget, and invisible as a load.
const INTERVAL: Duration = Duration::from_millis(5);

struct Watched {
    point: Weak<WaitPoint>,
    since: Option<(u32, Instant)>,
}

#[derive(Default)]
struct Watchdog {
    points: Mutex<Vec<Watched>>,
}

static WATCHDOG: OnceLock<Arc<Watchdog>> = OnceLock::new();

/// Watches `point` until it is dropped.
pub(crate) fn watch(point: &Arc<WaitPoint>) {
    let watchdog = WATCHDOG.get_or_init(|| {
        let watchdog = Arc::new(Watchdog::default());
        let worker = Arc::clone(&watchdog);
        let started = std::thread::Builder::new().name("flux-watchdog".into()).spawn(move || worker.run());
        if let Err(error) = started {
            tracing::error!(%error, "no thread for the watchdog: waits of GPU streams are not bounded");
        }
        watchdog
    });
    let watched = Watched { point: Arc::downgrade(point), since: None };
    watchdog.points.lock().unwrap_or_else(PoisonError::into_inner).push(watched);
}

impl Watchdog {
    fn run(&self) -> ! {
        loop {
            std::thread::sleep(INTERVAL);
            let mut expired = Vec::new();
            let mut points = self.points.lock().unwrap_or_else(PoisonError::into_inner);
            points.retain_mut(|watched| {
                let Some(point) = watched.point.upgrade() else { return false };
                watched.since = point.waiting_for().map(|wanted| match watched.since {
                    Some((same, since)) if same == wanted => (wanted, since),
                    _ => (wanted, Instant::now()),
                });
                if let Some((wanted, since)) = watched.since
                    && since.elapsed() > point.log().budget()
                {
                    // Begin anew: if the rescue itself fails, it is tried again after another budget.
                    watched.since = Some((wanted, Instant::now()));
                    expired.push((point, wanted));
                }
                true
            });
            drop(points);
            for (point, wanted) in expired {
                if let Err(error) = end_wait(&point, wanted) {
                    tracing::error!(%error, "a stream's expired wait could not be ended");
                }
            }
        }
    }
}

/// Records the first signal of `point` that has not reached `wanted`, and raises all of them.
fn end_wait(point: &WaitPoint, wanted: u32) -> Result<()> {
    let Some((stream, scratch, flag)) = point.log().rescue() else { return Ok(()) };
    let bound = point.bound();
    for &(word, site) in point.signals() {
        // SAFETY: the scratch word is pinned host memory of the log, used by this thread only; the signal is live,
        // because a stream is waiting for it.
        let seen = unsafe {
            stream.copy(scratch, word, size_of::<u32>())?;
            stream.synchronize()?;
            scratch.as_ptr::<u32>().read_volatile()
        };
        if reached(seen, wanted) {
            continue;
        }
        point.log().report(Fault {
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
    stream.synchronize()
}
