//! The cores that a rank's threads keep to.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Arc;

/// A rank's share of the cores that this process may use. Left to themselves, threads of two ranks share a core now and then while
/// another idles, and what a stream does lands in another place with each process: calls of four ranks on two cores took up to 1.7 times
/// as long, and how ways compare changed three times as much from run to run (`docs/measurements.md`).
///
/// Processes are taken to share all cores that each of them may use: where each is bound to cores of its own, it leaves some idle.
#[derive(Clone, Debug, Default)]
pub struct Cores(Option<Arc<[usize]>>);

impl Cores {
    /// No core in particular.
    pub const ANY: Self = Self(None);

    /// Those of one of `sharing` ranks, the one with that `place` among them: one for each of [`Cores::threads`]. They are none in
    /// particular where not all cores then have equally many threads.
    pub fn share(place: usize, sharing: usize) -> Self {
        Self(share_of(&own(), available(), place, sharing).map(Arc::from))
    }

    /// How many threads of each of `sharing` ranks run at once: as many for each, but at least one.
    pub fn threads(sharing: usize) -> usize {
        threads_of(available(), sharing)
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

/// The share of `cores`, of which the process may keep so many busy: where these are fewer, it may use a part of their time only.
fn share_of(cores: &[usize], available: usize, place: usize, sharing: usize) -> Option<Vec<usize>> {
    let threads = threads_of(available, sharing);
    let even = cores.len() == available && (threads * sharing.max(1)).is_multiple_of(available.max(1));
    let first = place % cores.len().max(1) * threads;
    (even && !cores.is_empty())
        .then(|| (0..threads).map(|index| cores[(first + index) % cores.len()]).collect())
}

fn threads_of(available: usize, sharing: usize) -> usize {
    (available / sharing.max(1)).max(1)
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
    use crate::{Device, Stream};

    #[test]
    fn cores_have_equally_many_threads_or_none_of_their_own() {
        let all = |cores: &[usize], available, sharing| -> Vec<_> {
            (0..sharing).map(|place| share_of(cores, available, place, sharing)).collect()
        };
        let some = |cores: &[usize]| Some(cores.to_vec());
        assert_eq!(all(&[0, 1], 2, 2), [some(&[0]), some(&[1])]);
        assert_eq!(all(&[3, 5], 2, 4), [some(&[3]), some(&[5]), some(&[3]), some(&[5])]);
        assert_eq!(all(&[0, 1, 2, 3], 4, 2), [some(&[0, 1]), some(&[2, 3])]);
        assert_eq!(all(&[7], 1, 2), [some(&[7]), some(&[7])], "bound to one core");
        assert_eq!(all(&[0, 1], 2, 3), [None, None, None], "one would have two, and the other one");
        assert_eq!(all(&[0, 1, 2, 3], 4, 3), [None, None, None], "one of them would have none");
        assert_eq!(all(&[0, 1, 2, 3], 2, 2), [None, None], "a part of the cores' time");
        assert_eq!(all(&[], 1, 1), [None], "unknown cores");
        assert_eq!(share_of(&[0, 1], 2, usize::MAX, 2), some(&[1]));
    }

    /// Threads of ranks that come out even, and their streams, run where they belong.
    #[test]
    fn threads_keep_to_their_cores() {
        let (all, ranks) = (own(), available());
        for (place, sharing) in [(0, ranks), (ranks - 1, ranks), (ranks, 2 * ranks)] {
            let cores = Cores::share(place, sharing);
            let of_thread =
                std::thread::scope(|scope| scope.spawn(|| (cores.keep_to_one(0), own()).1).join().unwrap());
            let Stream::Host(stream) = Device::host_of_rank(place, sharing).stream().unwrap() else {
                panic!("no stream of the host");
            };
            let (tell, told) = std::sync::mpsc::channel();
            stream.launch(move || tell.send(own()).unwrap()).unwrap();
            let expected = if all.len() == ranks { vec![all[place % ranks]] } else { all.clone() };
            assert_eq!(
                (of_thread, told.recv().unwrap()),
                (expected.clone(), expected),
                "{place} of {sharing}"
            );
        }
        assert_eq!(own(), all, "this thread is left alone");
        Cores::ANY.keep();
        assert_eq!(own(), all);
    }
}
