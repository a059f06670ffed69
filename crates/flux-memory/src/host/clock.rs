//! The host's clock.

use std::sync::OnceLock;
use std::time::Instant;

/// What the clock shows when this process first asks: a day, so that what a GPU noted before can be told, too.
const FIRST_NS: u64 = 24 * 60 * 60 * 1_000_000_000;

/// Nanoseconds since a day before this process first asked; it only grows, and is the same for all threads.
pub fn now_ns() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    let elapsed = BEGIN.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX).saturating_add(FIRST_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_before_the_first_question_has_a_time_too() {
        let first = now_ns();
        assert!(first >= FIRST_NS && now_ns() >= first);
    }
}
