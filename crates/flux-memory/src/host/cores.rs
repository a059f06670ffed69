//! The cores that a rank's threads keep to.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Arc;

/// A rank's share of the cores that this process may use. Left to themselves, threads of two ranks share a core now and then while
/// another idles, and what a stream does lands in another place with each process: calls of four ranks on two cores took up to 1.7 times
/// as long, and ways of equal length differed by a fifth from run to run (`docs/measurements.md`).
#[derive(Clone, Debug, Default)]
pub struct Cores(Option<Arc<[usize]>>);

impl Cores {
    /// No core in particular.
    pub const ANY: Self = Self(None);

    /// Those of one of `sharing` ranks, the one with that `place` among them: one for each of [`Cores::threads`]. They are none in
    /// particular where not all cores then have equally many threads.
    pub fn share(place: usize, sharing: usize) -> Self {
        let (all, threads) = (own(), Self::threads(sharing));
        // Where the process may use a part of its cores' time only, it has more of these than it can keep busy.
        let even = all.len() == available() && (threads * sharing.max(1)).is_multiple_of(all.len().max(1));
        let of_thread = |index| all.get((place * threads + index) % all.len().max(1)).copied();
        Self((even && !all.is_empty()).then(|| (0..threads).filter_map(of_thread).collect()))
    }

    /// How many threads of each of `sharing` ranks run at once: as many for each, but at least one.
    pub fn threads(sharing: usize) -> usize {
        (available() / sharing.max(1)).max(1)
    }

    /// This thread is to run on the core of the rank's thread of that number. It is faster so, not more right: where that is
    /// refused, it goes on.
    pub fn keep_to_one(&self, thread: usize) {
        if let Some(core) = self.0.as_ref().and_then(|cores| cores.get(thread)) {
            keep_to(&[*core]);
        }
    }

    /// This thread is to run on the rank's cores, whichever of them.
    pub fn keep(&self) {
        if let Some(cores) = &self.0 {
            keep_to(cores);
        }
    }
}

fn available() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The cores that this thread may use; none if that cannot be found out.
fn own() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect()
}

fn keep_to(cores: &[usize]) {
    let mut set = CpuSet::new();
    cores.iter().for_each(|&core| set.set(core));
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::debug!(%error, ?cores, "a thread is not kept to its cores");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All cores have equally many threads, or none of their own.
    #[test]
    fn ranks_share_the_cores_evenly_or_leave_it_to_the_system() {
        let all = own();
        for sharing in 1..=2 * available() + 1 {
            let shares: Vec<_> = (0..sharing).map(|place| Cores::share(place, sharing)).collect();
            let threads = Cores::threads(sharing);
            let mut of_core = vec![0; CpuSet::MAX_CPU];
            for cores in shares.iter().filter_map(|share| share.0.as_ref()) {
                assert_eq!(cores.len(), threads);
                cores.iter().for_each(|&core| of_core[core] += 1);
            }
            let even = all.len() == available() && (threads * sharing).is_multiple_of(all.len());
            let each = if even { threads * sharing / all.len() } else { 0 };
            assert!(all.iter().all(|&core| of_core[core] == each), "{sharing} ranks");
        }
    }

    #[test]
    fn threads_run_where_they_belong() {
        let (all, ranks) = (own(), available());
        for place in [0, ranks - 1, ranks] {
            let cores = Cores::share(place, if place < ranks { ranks } else { 2 * ranks });
            let (one, any) = std::thread::scope(|scope| {
                let one = scope.spawn(|| (cores.keep_to_one(0), own()).1).join().unwrap();
                (one, scope.spawn(|| (cores.keep(), own()).1).join().unwrap())
            });
            let expected = if all.len() == ranks { vec![all[place % ranks]] } else { all.clone() };
            assert_eq!((one, any), (expected.clone(), expected), "{place}");
        }
        assert_eq!(own(), all, "this thread is left alone");
        Cores::ANY.keep();
        assert_eq!(own(), all);
    }
}
