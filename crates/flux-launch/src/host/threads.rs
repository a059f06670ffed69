//! The threads that compute for a rank, and the cores that they keep to.

use crate::{Error, Result};
use rayon::{ThreadPool, ThreadPoolBuilder};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Arc;

/// The threads of one of `sharing` ranks that share the host's cores, the one with that `place` among them: as many for each, but at
/// least one. Each keeps to a core where all cores then have equally many threads. Left to themselves, two of them share a core
/// now and then while another idles: calls of four ranks on two cores took up to 1.7 times as long (`docs/measurements.md`).
pub(crate) fn of_rank(place: usize, sharing: usize) -> Result<Arc<ThreadPool>> {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (available / sharing.max(1)).max(1);
    // Where the process may use a part of its cores' time only, it has more of these than it can keep busy.
    let cores = Some(own_cores()).filter(|cores| cores.len() == available).unwrap_or_default();
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("flux-gemm-{index}"))
        .start_handler(move |index| {
            if let Some(core) = core_of(place * threads + index, threads * sharing, &cores) {
                keep_to(core);
            }
        })
        .build()
        .map_err(|error| Error::NoThreads { threads, reason: error.to_string() })?;
    Ok(Arc::new(pool))
}

/// The core of one of `threads` threads, if all `cores` have equally many.
fn core_of(thread: usize, threads: usize, cores: &[usize]) -> Option<usize> {
    let even = !cores.is_empty() && threads.is_multiple_of(cores.len());
    even.then(|| cores[thread % cores.len()])
}

/// The cores that this thread may use; none if that cannot be found out.
fn own_cores() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect()
}

/// This thread is to run on that core only. It is faster so, not more right: where that is refused, it goes on.
fn keep_to(core: usize) {
    let mut one = CpuSet::new();
    one.set(core);
    if let Err(error) = sched_setaffinity(None, &one) {
        tracing::debug!(%error, core, "a thread is not kept to a core");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_have_equally_many_threads_or_none_of_their_own() {
        let cores = |threads: usize, of: &[usize]| -> Vec<_> {
            (0..threads).map(|thread| core_of(thread, threads, of)).collect()
        };
        assert_eq!(cores(2, &[0, 1]), [Some(0), Some(1)]);
        assert_eq!(cores(4, &[3, 5]), [Some(3), Some(5), Some(3), Some(5)]);
        assert_eq!(cores(3, &[0, 1]), [None; 3], "one would have two, and the other one");
        assert_eq!(cores(3, &[0, 1, 2, 3]), [None; 3], "one of them would have none");
        assert_eq!(cores(2, &[]), [None; 2]);
    }

    /// Threads of ranks that come out even run where they belong.
    #[test]
    fn threads_keep_to_their_cores() {
        let all = own_cores();
        let available = std::thread::available_parallelism().unwrap().get();
        for (place, sharing) in [(0, available), (available - 1, available), (available, 2 * available)] {
            let cores = of_rank(place, sharing).unwrap().broadcast(|_| own_cores());
            let expected = if all.len() == available { vec![all[place % available]] } else { all.clone() };
            assert_eq!(cores, [expected], "{place} of {sharing}");
        }
        assert_eq!(own_cores(), all, "this thread is left alone");
    }
}
