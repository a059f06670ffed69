//! Bounds what a communicator does: a thread looks every few milliseconds whether a step takes too long, whether NCCL has noticed
//! an error, and whether the rank has given up for another reason. Then it aborts the communicator: its kernels end, the streams
//! go on, and the operation reports why.

use super::communicator::Communicator;
use crate::Result;
use flux_memory::{ExchangeFailure, FaultLog};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(5);
/// How long after an error of NCCL's a lost rank may be named by the channel that formed the group.
const NAMING_LIMIT: Duration = Duration::from_millis(500);

/// The thread; it ends with this.
#[derive(Debug)]
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// What goes wrong is left in `log`; when that or `other` has given up, nothing is waited for any more.
    pub(super) fn start(
        communicator: &Arc<Communicator>,
        log: &Arc<FaultLog>,
        other: Option<&Arc<FaultLog>>,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, watched, log) = (Arc::clone(&stop), Arc::downgrade(communicator), Arc::clone(log));
        let other = other.cloned();
        let thread = std::thread::Builder::new()
            .name("flux-nccl-watch".into())
            .spawn(move || run(&stopped, &watched, &log, other.as_deref()))
            .map_err(|error| flux_memory::Error::NoThread { reason: error.to_string() })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

fn run(stop: &AtomicBool, watched: &Weak<Communicator>, log: &FaultLog, other: Option<&FaultLog>) {
    let mut since: BTreeMap<usize, (u32, Instant)> = BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(INTERVAL);
        let Some(communicator) = watched.upgrade() else { return };
        let has_given_up = log.has_given_up() || other.is_some_and(FaultLog::has_given_up);
        let error = communicator.asynchronous_error();
        let is_error = error.is_some();
        let Some(reason) = reason(&communicator, error, has_given_up, &mut since) else { continue };
        if is_error {
            wait_for_name(|| {
                stop.load(Ordering::Relaxed)
                    || log.has_given_up()
                    || other.is_some_and(FaultLog::has_given_up)
            });
        }
        // Before the abort: it ends kernels, and who waits for their stream must not take what they leave for a result. A loss that
        // is known already says more.
        if !log.has_given_up() {
            let failure = ExchangeFailure { peer: None, reason: reason.clone() };
            if let Err(error) = log.fail_exchange(failure) {
                tracing::error!(%error, "kernels could not be told of an aborted communicator");
            }
        }
        // Somebody who uses it at this moment has a limit of his own; then it is tried again.
        if communicator.abort() {
            tracing::error!(reason, "a NCCL communicator is aborted");
            return;
        }
    }
}

/// Waits until `known` says that it is known which rank is lost, but not long: a peer that goes is an error of NCCL's, too.
fn wait_for_name(known: impl Fn() -> bool) {
    let begin = Instant::now();
    while !known() && begin.elapsed() < NAMING_LIMIT {
        std::thread::sleep(INTERVAL);
    }
}

/// Why the communicator is to be aborted, if it is.
fn reason(
    communicator: &Communicator,
    error: Option<nccl_sys::Error>,
    has_given_up: bool,
    since: &mut BTreeMap<usize, (u32, Instant)>,
) -> Option<String> {
    if let Some(error) = error {
        return Some(error.to_string());
    }
    if has_given_up {
        return Some("the rank has given up".into());
    }
    let steps: Vec<_> = communicator.steps_in_progress().collect();
    since.retain(|slot, (number, _)| steps.iter().any(|step| (step.0, step.1) == (*slot, *number)));
    steps.into_iter().find_map(|(slot, number, budget)| {
        let (_, begin) = *since.entry(slot).or_insert_with(|| (number, Instant::now()));
        let expired = begin.elapsed() > budget;
        expired.then(|| format!("NCCL: a step was not complete within {budget:?}: a peer did not take part"))
    })
}
