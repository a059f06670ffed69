//! How long a stretch of a stream takes.

use crate::cuda::CudaEvent;
use crate::{Device, Error, Event, Result, Stream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Times a stretch of a stream from [`Timer::begin`] to [`Timer::end`], by the clock of whatever runs it: what the host
/// does meanwhile does not count.
#[derive(Debug)]
pub struct Timer(Kind);

#[derive(Debug)]
enum Kind {
    Host { begin: Arc<Mutex<Option<Instant>>>, end: Arc<Mutex<Option<Instant>>>, ended: Event },
    Cuda { begin: CudaEvent, end: CudaEvent },
}

impl Timer {
    /// A timer for streams of `device`.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self(match device {
            Device::Host(_) => {
                Kind::Host { begin: Arc::default(), end: Arc::default(), ended: Event::new(device)? }
            }
            Device::Cuda(gpu) => Kind::Cuda { begin: CudaEvent::timed(gpu)?, end: CudaEvent::timed(gpu)? },
        }))
    }

    /// The stretch begins when `stream` gets here.
    pub fn begin(&self, stream: &Stream) -> Result<()> {
        match (&self.0, stream) {
            (Kind::Host { begin, .. }, _) => note(begin, stream),
            (Kind::Cuda { begin, .. }, Stream::Cuda(stream)) => stream.record(begin),
            _ => Err(Error::BackendMismatch { what: "the timer" }),
        }
    }

    /// The stretch ends when `stream`, the one that it began on, gets here.
    pub fn end(&self, stream: &Stream) -> Result<()> {
        match (&self.0, stream) {
            (Kind::Host { end, ended, .. }, _) => note(end, stream).and_then(|()| stream.record(ended)),
            (Kind::Cuda { end, .. }, Stream::Cuda(stream)) => stream.record(end),
            _ => Err(Error::BackendMismatch { what: "the timer" }),
        }
    }

    /// Waits on this thread for the end of the stretch, and says how long it took. Only after [`Timer::begin`] and
    /// [`Timer::end`].
    pub fn elapsed(&self) -> Result<Duration> {
        match &self.0 {
            Kind::Host { begin, end, ended } => {
                ended.synchronize()?;
                let at = |instant: &Mutex<_>| *instant.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(at(end).zip(at(begin)).map_or(Duration::ZERO, |(end, begin)| end - begin))
            }
            Kind::Cuda { begin, end } => {
                end.synchronize()?;
                end.since(begin)
            }
        }
    }
}

/// Notes the time when a host stream gets here.
fn note(instant: &Arc<Mutex<Option<Instant>>>, stream: &Stream) -> Result<()> {
    let Stream::Host(stream) = stream else { return Err(Error::BackendMismatch { what: "the timer" }) };
    let instant = Arc::clone(instant);
    stream.launch(move || *instant.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_takes_as_long_as_its_work() {
        let device = Device::host();
        let stream = device.stream().unwrap();
        let timer = Timer::new(&device).unwrap();
        for sleep in [Duration::from_millis(20), Duration::ZERO] {
            let Stream::Host(host) = &stream else { panic!("not a host stream") };
            host.launch(|| std::thread::sleep(Duration::from_millis(50))).unwrap(); // before the stretch
            timer.begin(&stream).unwrap();
            host.launch(move || std::thread::sleep(sleep)).unwrap();
            timer.end(&stream).unwrap();
            let elapsed = timer.elapsed().unwrap();
            assert!(elapsed >= sleep && elapsed < sleep + Duration::from_secs(1), "{elapsed:?}");
        }
    }
}
