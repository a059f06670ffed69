//! The host's clock.

use std::sync::OnceLock;
use std::time::Instant;

/// Nanoseconds since this process first asked; from then on it only grows, and is the same for all threads. Never 0.
pub fn now_ns() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    let elapsed = BEGIN.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX).max(1)
}
