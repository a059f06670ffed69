//! The signals that the launcher passes on.

use super::Event;
use crate::error::Error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::mpsc::Sender;

/// Sends an event for each signal, from a thread of its own, for as long as the process lives.
pub(super) fn watch(events: Sender<Event>) -> Result<(), Error> {
    // Whoever has made this process ignore a signal, as nohup does, wants the ranks to ignore it.
    let wanted = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|&signal| !is_ignored(signal));
    let failed = |source| Error::Launcher { what: "signal handlers", source };
    let mut signals = Signals::new(wanted).map_err(failed)?;
    let pass_on = move || {
        for signal in signals.forever() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    let spawned = std::thread::Builder::new().name("signals".into()).spawn(pass_on);
    spawned.map(drop).map_err(|source| Error::Launcher { what: "a thread", source })
}

/// Whether the signal is ignored, as far as the system tells: Linux does.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}
