//! When a stream gets somewhere.

use crate::cuda::CudaEvent;
use crate::host::now_ns;
use crate::{Device, Error, Result, Stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Notes when a stream gets to a point, by the clock of whatever runs it. It may be noted again: the last time counts.
#[derive(Debug)]
pub struct Stamp(Kind);

#[derive(Debug)]
enum Kind {
    /// By [`now_ns`].
    Host(Arc<AtomicU64>),
    Cuda(CudaEvent),
}

impl Stamp {
    /// A stamp for streams of `device`.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self(match device {
            Device::Host(_) => Kind::Host(Arc::default()),
            Device::Cuda(gpu) => Kind::Cuda(CudaEvent::timed(gpu)?),
        }))
    }

    /// Enqueues on `stream`: note the time.
    pub fn note(&self, stream: &Stream) -> Result<()> {
        match (&self.0, stream) {
            (Kind::Host(time), Stream::Host(stream)) => {
                let time = Arc::clone(time);
                stream.launch(move || time.store(now_ns(), Ordering::Release))
            }
            (Kind::Cuda(event), Stream::Cuda(stream)) => stream.record(event),
            _ => Err(Error::BackendMismatch { what: "the stamp" }),
        }
    }

    /// The time by [`now_ns`] in nanoseconds, if it was noted by the host's clock; 0 before it was noted.
    pub fn host_ns(&self) -> Option<u64> {
        match &self.0 {
            Kind::Host(time) => Some(time.load(Ordering::Acquire)),
            Kind::Cuda(_) => None,
        }
    }

    /// How much later this was noted than `earlier`, which is of the same device; nothing if it was not later. Streams have
    /// passed both. A GPU's events tell about half a microsecond.
    pub fn since(&self, earlier: &Self) -> Result<Duration> {
        match (&self.0, &earlier.0) {
            (Kind::Host(later), Kind::Host(earlier)) => {
                let at = |time: &AtomicU64| time.load(Ordering::Acquire);
                Ok(Duration::from_nanos(at(later).saturating_sub(at(earlier))))
            }
            (Kind::Cuda(later), Kind::Cuda(earlier)) => later.since(earlier),
            _ => Err(Error::BackendMismatch { what: "the stamp" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_noted_in_the_order_of_their_stream() {
        let device = Device::host();
        let (stream, begin) = (device.stream().unwrap(), now_ns());
        let [first, second] = [Stamp::new(&device).unwrap(), Stamp::new(&device).unwrap()];
        for _ in 0..2 {
            first.note(&stream).unwrap();
            let Stream::Host(host) = &stream else { panic!("not a host stream") };
            host.launch(|| std::thread::sleep(Duration::from_millis(2))).unwrap();
            second.note(&stream).unwrap();
            stream.synchronize().unwrap();
            assert!(second.since(&first).unwrap() >= Duration::from_millis(2));
            assert_eq!(first.since(&second).unwrap(), Duration::ZERO);
            assert!(begin <= first.host_ns().unwrap() && second.host_ns().unwrap() <= now_ns());
        }
    }
}
