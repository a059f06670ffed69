//! Signals are epochs.
//!
//! A signal is a 32-bit word that only ever grows, modulo 2³²: each call of an operation raises its signals to that
//! call's epoch. Nothing is reset between calls, so nothing races with a reset.

/// Whether a signal that shows `seen` has reached `wanted`, modulo 2³².
///
/// ```
/// use flux_memory::reached;
/// assert!(reached(5, 5) && reached(6, 5) && !reached(4, 5));
/// assert!(reached(1, u32::MAX), "the count has wrapped around");
/// ```
pub const fn reached(seen: u32, wanted: u32) -> bool {
    seen.wrapping_sub(wanted).cast_signed() >= 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_compare_across_the_wrap() {
        for start in [0_u32, 1, u32::MAX - 3, u32::MAX, 1 << 31] {
            let mut epoch = start;
            for _ in 0..8 {
                let next = epoch.wrapping_add(1_u32);
                assert!(reached(next, epoch) && !reached(epoch, next));
                epoch = next;
            }
        }
    }
}
