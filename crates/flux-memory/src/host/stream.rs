//! Streams of the host backend: first in, first out, each on a thread of its own.

use super::Cores;
use crate::{Address, Error, Result, WaitPoint, host};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

type Work = Box<dyn FnOnce() + Send>;

/// A queue of work and the thread that does it.
#[derive(Debug)]
pub struct HostStream {
    queue: Option<Sender<Work>>,
    worker: Option<JoinHandle<()>>,
    cores: Cores,
    panicked: Arc<Mutex<Option<String>>>,
}

impl HostStream {
    pub(crate) fn new(cores: Cores) -> Result<Self> {
        let (queue, work) = channel::<Work>();
        let panicked = Arc::new(Mutex::new(None));
        let (failure, kept) = (Arc::clone(&panicked), cores.clone());
        let worker = std::thread::Builder::new()
            .name("flux-stream".into())
            .spawn(move || {
                kept.keep();
                for item in work {
                    // A panic must not end the thread: those who wait for later work would wait for ever.
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(item)) {
                        let message = panic
                            .downcast_ref::<String>()
                            .cloned()
                            .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
                            .unwrap_or_default();
                        lock(&failure).get_or_insert(message);
                    }
                }
            })
            .map_err(|error| Error::NoThread { reason: error.to_string() })?;
        Ok(Self { queue: Some(queue), worker: Some(worker), cores, panicked })
    }

    pub(crate) const fn cores(&self) -> &Cores {
        &self.cores
    }

    /// Enqueues `work`, the host backend's kernel launch.
    pub fn launch(&self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        if let Some(message) = lock(&self.panicked).clone() {
            return Err(Error::StreamPanicked { message });
        }
        let gone = || Error::StreamPanicked { message: "the stream's thread is gone".into() };
        self.queue.as_ref().ok_or_else(gone)?.send(Box::new(work)).map_err(|_| gone())
    }

    /// # Safety
    /// As for [`crate::Stream::copy`].
    pub(crate) unsafe fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<()> {
        self.launch(move || {
            // SAFETY: both ranges are live and not accessed by others until this is done, as the caller promised.
            unsafe { std::ptr::copy(from.as_ptr::<u8>(), to.as_ptr::<u8>(), bytes) }
        })
    }

    /// # Safety
    /// As for [`crate::Stream::copy_rows`].
    pub(crate) unsafe fn copy_rows(
        &self,
        (to, to_pitch): (Address, usize),
        (from, from_pitch): (Address, usize),
        row_bytes: usize,
        rows: usize,
    ) -> Result<()> {
        self.launch(move || {
            for row in 0..rows {
                let (to, from) = (to.add(row * to_pitch), from.add(row * from_pitch));
                // SAFETY: as above.
                unsafe { std::ptr::copy(from.as_ptr::<u8>(), to.as_ptr::<u8>(), row_bytes) }
            }
        })
    }

    /// # Safety
    /// As for [`crate::Stream::write_values`].
    pub(crate) unsafe fn write_values(&self, values: &[(Address, u32)]) -> Result<()> {
        let values = values.to_vec();
        self.launch(move || {
            for (word, value) in values {
                // SAFETY: a live, aligned word, as the caller promised.
                unsafe { host::raise(word, value) };
            }
        })
    }

    /// # Safety
    /// As for [`crate::Stream::wait_values`].
    pub(crate) unsafe fn wait_values(&self, point: &Arc<WaitPoint>, wanted: u32) -> Result<()> {
        let point = Arc::clone(point);
        self.launch(move || {
            let bound = point.place().bound();
            for &(word, site) in point.signals() {
                // SAFETY: the wait point's words outlive the op that enqueued this.
                if !unsafe { host::wait(&bound, word, wanted, site) } {
                    break;
                }
            }
        })
    }

    pub(crate) fn record(&self, event: &HostEvent) -> Result<()> {
        let state = Arc::clone(&event.0);
        let number = {
            let mut state = lock(&state.progress);
            state.recorded += 1;
            state.recorded
        };
        let done = Arc::clone(&state);
        let launched = self.launch(move || done.finish(number));
        if launched.is_err() {
            state.finish(number); // nobody may wait for a record that was never enqueued
        }
        launched
    }

    pub(crate) fn wait(&self, event: &HostEvent) -> Result<()> {
        let state = Arc::clone(&event.0);
        let number = lock(&state.progress).recorded;
        self.launch(move || HostEvent(state).block_until(number))
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        let event = HostEvent::default();
        self.record(&event)?;
        event.block_until(1);
        match lock(&self.panicked).clone() {
            Some(message) => Err(Error::StreamPanicked { message }),
            None => Ok(()),
        }
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        // Closing the queue lets the worker finish what is in it; every wait in it is bounded.
        self.queue = None;
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

/// A point in a stream that other streams and the host can wait for.
#[derive(Debug, Default, Clone)]
pub struct HostEvent(Arc<EventState>);

#[derive(Debug, Default)]
struct EventState {
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    recorded: u64,
    done: u64,
}

impl EventState {
    fn finish(&self, number: u64) {
        let mut progress = lock(&self.progress);
        progress.done = progress.done.max(number);
        self.changed.notify_all();
    }
}

impl HostEvent {
    pub(crate) fn synchronize(&self) {
        let recorded = lock(&self.0.progress).recorded;
        self.block_until(recorded);
    }

    /// Bounded, because the work before the record is: streams end all they were given.
    fn block_until(&self, number: u64) {
        let mut progress = lock(&self.0.progress);
        while progress.done < number {
            progress = self.0.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
