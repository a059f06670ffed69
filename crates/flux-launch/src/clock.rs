//! How the clocks of a device hang together: kernels note the time by one, events by another, and every GPU has its own.

use crate::{Error, Result};
use bytemuck::{Pod, Zeroable};
use flux_memory::host::now_ns;
use flux_memory::{Address, Buffer, Device, Placement, Stamp, Stream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Attempts of a calibration: the fastest tells most. Each takes about 10 µs.
const ATTEMPTS: usize = 32;

/// Far longer than a kernel of one thread takes to begin.
const PATIENCE: Duration = Duration::from_secs(1);

/// Mirrors `ClockParams` in `kernels/params.cuh`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ClockParams {
    time: Address,
}

/// Brings what a device's kernels and streams have noted to the clock of this process
/// ([`flux_memory::host::now_ns`]), in nanoseconds.
///
/// On the host these are one clock. Of a GPU, the times of kernels keep their distances, to 32 ns; those of streams are
/// within about 1 µs of them; between two GPUs, times are within about 1 µs, since the host reads both through pinned memory.
#[derive(Debug)]
pub struct Clock {
    /// From the kernels' clock to the host's.
    offset_ns: i64,
    /// A stamp and its time; none where stamps are noted by the host's clock.
    reference: Option<(Stamp, u64)>,
}

impl Clock {
    /// The host's.
    pub(crate) const fn host() -> Self {
        Self { offset_ns: 0, reference: None }
    }

    /// Finds out, by running the clock kernel on `device`: `launch` enqueues it.
    pub(crate) fn calibrate(
        device: &Device,
        mut launch: impl FnMut(&Stream, &ClockParams) -> Result<()>,
    ) -> Result<Self> {
        let (stream, time) = (device.stream()?, Buffer::allocate(device, 8, Placement::PinnedHost)?);
        // SAFETY: the buffer is pinned host memory, aligned to 16 bytes, and outlives the reference, which ends with this.
        let word = unsafe { AtomicU64::from_ptr(time.address().as_ptr()) };
        let mut offset_ns = i64::MAX;
        let mut closest: Option<(Duration, Stamp, u64)> = None;
        for _ in 0..ATTEMPTS {
            word.store(0, Ordering::Release);
            let [before, after] = [Stamp::new(device)?, Stamp::new(device)?];
            before.note(&stream)?;
            launch(&stream, &ClockParams { time: time.address() })?;
            after.note(&stream)?;
            let asked = Instant::now();
            let kernel_ns = loop {
                match word.load(Ordering::Acquire) {
                    0 if asked.elapsed() < PATIENCE => std::hint::spin_loop(),
                    0 => break 0,
                    time => break time,
                }
            };
            let host_ns = now_ns();
            stream.synchronize()?;
            if kernel_ns == 0 {
                return Err(Error::NoClock { device: device.to_string() });
            }
            // The time travels to the host the faster, the smaller this is.
            offset_ns = offset_ns.min(host_ns.cast_signed().wrapping_sub(kernel_ns.cast_signed()));
            let around = after.since(&before)?;
            if closest.as_ref().is_none_or(|(least, ..)| around < *least) {
                closest = Some((around, before, kernel_ns));
            }
        }
        let reference = closest.map(|(around, before, kernel_ns)| {
            let half_ns = u64::try_from(around.as_nanos() / 2).unwrap_or(0);
            (before, kernel_ns.saturating_sub(half_ns).saturating_add_signed(offset_ns))
        });
        Ok(Self { offset_ns, reference })
    }

    /// The time that a kernel has noted.
    pub(crate) const fn of_kernel(&self, ns: u64) -> u64 {
        ns.saturating_add_signed(self.offset_ns)
    }

    /// The time at which a stream of the device passed `stamp`, before this clock was made.
    pub fn of_stamp(&self, stamp: &Stamp) -> Result<u64> {
        match &self.reference {
            Some((reference, at_ns)) => {
                let earlier_ns = u64::try_from(reference.since(stamp)?.as_nanos()).unwrap_or(u64::MAX);
                Ok(at_ns.saturating_sub(earlier_ns))
            }
            None => Ok(stamp.host_ns().unwrap_or(0)),
        }
    }
}
