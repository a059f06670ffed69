//! A thread for what waits for all ranks without a limit, so that nobody else does.

use crate::{Error, Result};
use flux_memory::{Bootstrap, Error as MemoryError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How often it is asked whether a rank is lost.
const INTERVAL: Duration = Duration::from_millis(20);

type Job = Box<dyn FnOnce() + Send>;

/// The thread. It ends with this, unless it is stuck: then it is left to itself, and nothing more is asked of it.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Sender<Job>,
    stuck: AtomicBool,
    bootstrap: Arc<dyn Bootstrap>,
}

impl Worker {
    pub(super) fn start(bootstrap: &Arc<dyn Bootstrap>) -> Result<Self> {
        let (jobs, received) = channel::<Job>();
        std::thread::Builder::new()
            .name("flux-nvshmem".into())
            .spawn(move || received.into_iter().for_each(|job| job()))
            .map_err(|error| MemoryError::NoThread { reason: error.to_string() })?;
        Ok(Self { jobs, stuck: AtomicBool::new(false), bootstrap: Arc::clone(bootstrap) })
    }

    /// What `work` returns, if it does so within `limit`, and no rank is lost before.
    pub(super) fn run<T: Send + 'static>(
        &self,
        what: &'static str,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let failed = |reason: String| Err(Error::Nvshmem { what, reason });
        if self.stuck.load(Ordering::Relaxed) {
            return failed("an earlier call of NVSHMEM's has not come back: end this process".into());
        }
        let (done, result) = channel();
        let job = Box::new(move || {
            let _nobody_waits = done.send(work());
        });
        if self.jobs.send(job).is_err() {
            return failed("its thread has ended".into());
        }
        let begin = Instant::now();
        let reason = loop {
            match result.recv_timeout(INTERVAL) {
                Ok(value) => return Ok(value),
                Err(RecvTimeoutError::Disconnected) => break "its thread panicked".into(),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(rank) = self.bootstrap.lost_rank() {
                break format!("rank {rank} is lost");
            }
            if begin.elapsed() > limit {
                break format!("not all ranks came within {limit:?}");
            }
        };
        self.stuck.store(true, Ordering::Relaxed);
        failed(reason)
    }

    /// Whether something has not come back.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flux_memory::BootstrapError;
    use std::sync::atomic::AtomicUsize;

    /// A channel that knows of a lost rank from some time on.
    #[derive(Debug, Default)]
    struct Channel {
        asked: AtomicUsize,
        lost_after: Option<usize>,
    }

    impl Bootstrap for Channel {
        fn rank(&self) -> usize {
            0
        }

        fn world_size(&self) -> usize {
            2
        }

        fn all_gather(&self, _: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
            Ok(Vec::new())
        }

        fn lost_rank(&self) -> Option<usize> {
            let asked = self.asked.fetch_add(1, Ordering::Relaxed);
            self.lost_after.filter(|&after| asked >= after).map(|_| 1)
        }
    }

    fn worker(lost_after: Option<usize>) -> Worker {
        let bootstrap: Arc<dyn Bootstrap> = Arc::new(Channel { lost_after, ..Channel::default() });
        Worker::start(&bootstrap).unwrap()
    }

    #[test]
    fn what_does_not_come_back_is_an_error_in_time_and_the_last_thing_asked() {
        for (lost_after, limit, reason) in [
            (None, Duration::from_millis(50), "within 50ms"),
            (Some(2), Duration::from_secs(60), "rank 1 is lost"),
        ] {
            let worker = worker(lost_after);
            assert_eq!(worker.run("add", limit, || 1 + 1).unwrap(), 2);
            let begin = Instant::now();
            let error = worker.run("wait", limit, std::thread::park).unwrap_err().to_string();
            assert!(error.contains(reason) && begin.elapsed() < Duration::from_secs(10), "{error}");
            assert!(worker.is_stuck());
            let error = worker.run("add", limit, || 1 + 1).unwrap_err().to_string();
            assert!(error.contains("has not come back"), "{error}");
        }
    }

    #[test]
    fn a_panic_is_an_error() {
        let error = worker(None).run("panic", Duration::from_secs(60), || panic!("on purpose"));
        assert!(error.unwrap_err().to_string().contains("panicked"));
    }
}
