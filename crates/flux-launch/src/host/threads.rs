//! The threads that compute for a rank.

use crate::{Error, Result};
use flux_memory::host::Cores;
use rayon::{ThreadPool, ThreadPoolBuilder};
use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::gettid;
use std::sync::Arc;

/// By how much computing is less urgent, as `nice` has it, than what streams do, which takes a moment and which others wait for.
const NICER: i32 = 5;
/// Nothing is less urgent.
const NICEST: i32 = 19;

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

/// This thread is to make room at once for threads of streams that have something to do. Otherwise these wait now and then until its share of
/// the core's time is over, a millisecond or so. (It makes room for all else that runs on the machine as well.)
fn give_way() {
    let own = Some(gettid());
    let nicer = getpriority_process(own).map(|nice| (nice + NICER).min(NICEST));
    if let Err(error) = nicer.and_then(|nice| setpriority_process(own, nice)) {
        tracing::debug!(%error, "a thread is not made less urgent");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity};

    #[test]
    fn threads_that_compute_keep_to_cores_and_give_way() {
        let urgency = || getpriority_process(Some(gettid())).unwrap();
        let own = urgency();
        let pool = of_rank(0, 1).unwrap();
        assert_eq!(pool.current_num_threads(), Cores::threads(1));
        let of_pool = pool.broadcast(|_| urgency());
        let kept = pool.broadcast(|_| sched_getaffinity(None).unwrap());
        let mut cores = CpuSet::new();
        kept.iter().for_each(|of| {
            (0..CpuSet::MAX_CPU).filter(|&core| of.is_set(core)).for_each(|core| cores.set(core))
        });
        assert_eq!(cores, sched_getaffinity(None).unwrap(), "one rank has all cores");
        let quota = std::thread::available_parallelism().unwrap().get() < cores.count() as usize;
        assert!(quota || kept.iter().all(|of| of.count() == 1), "each thread has one");
        assert!(of_pool.iter().all(|&nice| nice == (own + NICER).min(NICEST)), "{of_pool:?}");
        assert_eq!(urgency(), own, "other threads stay as urgent as they were");
    }
}
