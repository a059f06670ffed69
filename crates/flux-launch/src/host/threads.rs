//! The threads that compute for a rank.

use crate::{Error, Result};
use flux_memory::host::Cores;
use rayon::{ThreadPool, ThreadPoolBuilder};
use rustix::process::setpriority_process;
use rustix::thread::gettid;
use std::sync::Arc;

/// How much less urgent computing is than what streams do (as `nice` has it), which takes a moment and which others wait for.
const NICENESS: i32 = 5;

/// The threads of one of `sharing` ranks that share the host's cores, the one with that `place` among them, each on a core of its
/// [`Cores::share`].
pub(crate) fn of_rank(place: usize, sharing: usize) -> Result<Arc<ThreadPool>> {
    let (cores, threads) = (Cores::share(place, sharing), Cores::threads(sharing));
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("flux-gemm-{index}"))
        .start_handler(move |index| {
            cores.keep_to_one(index);
            give_way();
        })
        .build()
        .map_err(|error| Error::NoThreads { threads, reason: error.to_string() })?;
    Ok(Arc::new(pool))
}

/// This thread is to make room at once for threads of streams that have something to do. Otherwise these wait for a while now and
/// then, until its share of the core's time is over: an unfused AllGather of four ranks on two cores took 2.5 or 3.7 ms.
fn give_way() {
    if let Err(error) = setpriority_process(Some(gettid()), NICENESS) {
        tracing::debug!(%error, "a thread is not made less urgent");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpriority_process;

    #[test]
    fn threads_that_compute_give_way() {
        let own = getpriority_process(None).unwrap();
        let pool = of_rank(0, 1).unwrap();
        assert_eq!(pool.current_num_threads(), Cores::threads(1));
        let urgency = pool.broadcast(|_| getpriority_process(Some(gettid())).unwrap());
        assert!(urgency.iter().all(|&of_thread| of_thread == NICENESS.max(own)), "{urgency:?}");
        assert_eq!(getpriority_process(None).unwrap(), own, "other threads stay as urgent as they were");
    }
}
