//! Signals of the host backend: what `kernels/signals.cuh` does on a GPU. Whoever waits sleeps, for ranks outnumber cores as a rule, and
//! what the signal waits for may need the core. Whoever raises it wakes him, in whatever process.

use crate::{Address, Fault, WaitBound, WaitSite, reached};
use rustix::io::Errno;
use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// So often a sleeping thread looks whether another wait of its rank has expired, which wakes nobody.
const GLANCE: Duration = Duration::from_millis(1);

/// Raises the signal at `signal` to `value`, visible only after what this thread has written before.
///
/// # Safety
/// `signal` is a live, 4-byte aligned word of the host backend.
pub unsafe fn raise(signal: Address, value: u32) {
    // SAFETY: the caller's promise.
    let word = unsafe { atomic(signal) };
    word.store(value, Ordering::Release);
    // What cannot be woken looks by itself, at its next glance.
    let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
}

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
    loop {
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
        sleep(word, seen, GLANCE.min(deadline - now));
    }
}

/// Until somebody raises the signal, if it is still as it was seen, or the time is up, or for no reason at all.
fn sleep(word: &AtomicU32, seen: u32, time: Duration) {
    let seconds = time.as_secs().try_into().unwrap_or(i64::MAX);
    let at_most = futex::Timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() };
    match futex::wait(word, futex::Flags::empty(), seen, Some(&at_most)) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
        // Where that is not allowed, who waits looks often, and leaves the core to others in between.
        Err(_) => std::thread::sleep(time.min(Duration::from_micros(20))),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::shared::MemoryFile;

    /// By whoever has the signal at another address, as another process does. The value stays as it was: who sleeps has no other reason
    /// to wake.
    #[test]
    fn a_signal_wakes_who_sleeps() {
        let file = MemoryFile::create(4).unwrap().unwrap();
        let [here, there] = [(); 2].map(|()| file.map().unwrap().unwrap());
        let long = Duration::from_secs(5);
        let slept = std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let begin = Instant::now();
                // SAFETY: the word is mapped until the test ends.
                sleep(unsafe { atomic(here.address()) }, 0, long);
                begin.elapsed()
            });
            while !sleeper.is_finished() {
                // SAFETY: as above.
                unsafe { raise(there.address(), 0) };
                std::thread::sleep(Duration::from_millis(1));
            }
            sleeper.join().unwrap()
        });
        assert!(slept < long / 2, "{slept:?}");
    }
}
