//! The bounded wait of the host backend: what `kernels/signals.cuh` does on a GPU.

use crate::{Address, Fault, WaitBound, WaitSite, reached};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Waits until the signal at `signal` has reached `wanted`. Returns false if the budget ran out (the first wait of the
/// rank to expire leaves its record) or if another wait of this rank has expired.
///
/// # Safety
/// `signal` is a live, 4-byte aligned word of the host backend, and `bound` comes from a live [`crate::FaultLog`] of a
/// host device.
pub unsafe fn wait(bound: &WaitBound, signal: Address, wanted: u32, site: WaitSite) -> bool {
    // SAFETY: the caller's promise; signals are only ever accessed as atomics.
    let (word, flag) = unsafe { (atomic(signal), atomic(bound.flag)) };
    let mut deadline = None;
    for turn in 0_u32.. {
        // Acquire: what was written before the signal was raised is visible afterwards.
        let seen = word.load(Ordering::Acquire);
        if reached(seen, wanted) {
            return true;
        }
        if flag.load(Ordering::Acquire) != 0 {
            return false;
        }
        let now = Instant::now();
        let deadline = *deadline.get_or_insert_with(|| now + Duration::from_nanos(bound.budget_ns));
        if now >= deadline {
            // SAFETY: the caller's promise.
            unsafe { record(bound, site, seen, wanted) };
            return false;
        }
        // Ranks outnumber cores as a rule: give the core away soon, it may be what the signal waits for.
        if turn < 16 { std::thread::yield_now() } else { std::thread::sleep(Duration::from_micros(20)) }
    }
    false
}

/// Whether the signal at `signal` has reached `wanted`: a wait would end at once, and well.
///
/// # Safety
/// `signal` is a live, 4-byte aligned word of the host backend.
pub unsafe fn is_up(signal: Address, wanted: u32) -> bool {
    // SAFETY: the caller's promise. Acquire: as in [`wait`].
    reached(unsafe { atomic(signal) }.load(Ordering::Acquire), wanted)
}

/// # Safety
/// As for [`wait`].
unsafe fn record(bound: &WaitBound, site: WaitSite, seen: u32, wanted: u32) {
    // SAFETY: the caller's promise.
    let (flag, claim) = unsafe { (atomic(bound.flag), atomic(bound.flag.add(size_of::<u32>()))) };
    if claim.swap(1, Ordering::AcqRel) != 0 {
        return; // somebody else was first
    }
    let fault = Fault {
        state: 0,
        rank: bound.rank,
        peer: site.peer,
        op: bound.op,
        tile: site.tile,
        signal: site.signal,
        seen,
        wanted,
    };
    // SAFETY: the claim made this thread the record's only writer; readers look at it after `state`.
    unsafe {
        bound.record.as_ptr::<Fault>().write_volatile(fault);
        atomic(bound.record).store(1, Ordering::Release);
    }
    flag.store(1, Ordering::Release); // after the record: whoever gives up for the flag's sake finds the reason there
}

/// # Safety
/// `address` is a live, 4-byte aligned word that is only accessed atomically while the reference lives.
unsafe fn atomic<'a>(address: Address) -> &'a AtomicU32 {
    // SAFETY: the caller's promise.
    unsafe { AtomicU32::from_ptr(address.as_ptr()) }
}
