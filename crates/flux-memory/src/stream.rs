//! Streams and events, in the driver's terms: copy, write-value, wait-value, record, wait.

use crate::cuda::stream::Priority;
use crate::cuda::{CudaEvent, CudaStream};
use crate::host::{HostEvent, HostStream};
use crate::{Address, Device, Error, Result, WaitPoint};
use cudarc::driver::sys::CUstream;
use std::sync::Arc;

/// A queue of work of one device: what is enqueued runs in order, beside other streams. All methods only enqueue,
/// except those that say that they wait.
#[derive(Debug)]
pub enum Stream {
    /// A thread.
    Host(HostStream),
    /// A stream of a GPU.
    Cuda(CudaStream),
}

impl Stream {
    pub(crate) fn new(device: &Device, priority: Priority) -> Result<Self> {
        Ok(match device {
            Device::Host(cores) => Stream::Host(HostStream::new(cores.clone())?),
            Device::Cuda(device) => Stream::Cuda(CudaStream::new(device, priority)?),
        })
    }

    /// A stream that somebody else owns. cudarc's per-thread stream (handle 2) means another stream on every thread:
    /// use it only on the thread it stands for.
    ///
    /// # Safety
    /// `raw` is a stream of the primary context of `device` and outlives the result.
    pub unsafe fn borrow_cuda(device: &Device, raw: CUstream) -> Result<Self> {
        match device {
            // SAFETY: the caller's promise.
            Device::Cuda(device) => Ok(Stream::Cuda(unsafe { CudaStream::borrow(device, raw) })),
            Device::Host(_) => Err(Error::BackendMismatch { what: "a CUDA stream" }),
        }
    }

    /// The device that the stream's work runs on.
    pub fn device(&self) -> Device {
        match self {
            Stream::Host(stream) => Device::Host(stream.cores().clone()),
            Stream::Cuda(stream) => Device::Cuda(Arc::clone(stream.device())),
        }
    }

    /// Whether what is enqueued is captured into a CUDA graph, and not done.
    pub fn is_capturing(&self) -> Result<bool> {
        match self {
            Stream::Host(_) => Ok(false),
            Stream::Cuda(stream) => stream.is_capturing(),
        }
    }

    /// Copies `bytes` bytes, wherever the two addresses lie.
    ///
    /// # Safety
    /// Both ranges are live, reachable by this stream's device, and free of conflicting accesses, from now until the
    /// copy has ended.
    pub unsafe fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<()> {
        match self {
            // SAFETY: the caller's promise.
            Stream::Host(stream) => unsafe { stream.copy(to, from, bytes) },
            // SAFETY: the caller's promise.
            Stream::Cuda(stream) => unsafe { stream.copy(to, from, bytes) },
        }
    }

    /// Copies `rows` rows of `row_bytes` bytes. Each side is where its first row lies, and the bytes from one row to the
    /// next.
    ///
    /// # Safety
    /// As for [`Stream::copy`], for every row.
    pub unsafe fn copy_rows(
        &self,
        to: (Address, usize),
        from: (Address, usize),
        row_bytes: usize,
        rows: usize,
    ) -> Result<()> {
        match self {
            _ if rows == 0 || row_bytes == 0 => Ok(()),
            // SAFETY: the caller's promise; without gaps, all rows are one range.
            _ if rows == 1 || (to.1 == row_bytes && from.1 == row_bytes) => unsafe {
                self.copy(to.0, from.0, rows.saturating_mul(row_bytes))
            },
            // SAFETY: the caller's promise.
            Stream::Host(stream) => unsafe { stream.copy_rows(to, from, row_bytes, rows) },
            // SAFETY: the caller's promise.
            Stream::Cuda(stream) => unsafe { stream.copy_rows(to, from, row_bytes, rows) },
        }
    }

    /// Sets 32-bit words, in order, after making visible to every reader what the stream wrote before.
    ///
    /// # Safety
    /// Every word is 4-byte aligned, reachable by this stream's device, and live until it has been written.
    pub unsafe fn write_values(&self, values: &[(Address, u32)]) -> Result<()> {
        match self {
            _ if values.is_empty() => Ok(()),
            // SAFETY: the caller's promise.
            Stream::Host(stream) => unsafe { stream.write_values(values) },
            // SAFETY: the caller's promise.
            Stream::Cuda(stream) => unsafe { stream.write_values(values) },
        }
    }

    /// Waits until all signals of `point` have reached `wanted`, at most as long as its budget: then the fault is in
    /// the point's [`crate::FaultLog`], and the stream goes on.
    ///
    /// # Safety
    /// The point's signals are live until the wait has ended.
    pub unsafe fn wait_values(&self, point: &Arc<WaitPoint>, wanted: u32) -> Result<()> {
        match self {
            _ if point.signals().is_empty() => Ok(()),
            // SAFETY: the caller's promise.
            Stream::Host(stream) => unsafe { stream.wait_values(point, wanted) },
            // SAFETY: the caller's promise.
            Stream::Cuda(stream) => unsafe { stream.wait_values(point, wanted) },
        }
    }

    /// Marks this point of the stream.
    pub fn record(&self, event: &Event) -> Result<()> {
        match (self, event) {
            (Stream::Host(stream), Event::Host(event)) => stream.record(event),
            (Stream::Cuda(stream), Event::Cuda(event)) => stream.record(event),
            _ => Err(Error::BackendMismatch { what: "the event" }),
        }
    }

    /// Goes on only after the last [`Stream::record`] of `event`; at once if there was none.
    pub fn wait(&self, event: &Event) -> Result<()> {
        match (self, event) {
            (Stream::Host(stream), Event::Host(event)) => stream.wait(event),
            (Stream::Cuda(stream), Event::Cuda(event)) => stream.wait(event),
            _ => Err(Error::BackendMismatch { what: "the event" }),
        }
    }

    /// Waits on the calling thread until everything enqueued has ended.
    pub fn synchronize(&self) -> Result<()> {
        match self {
            Stream::Host(stream) => stream.synchronize(),
            Stream::Cuda(stream) => stream.synchronize(),
        }
    }

    /// Writes `data` after what is enqueued, and waits until it is done.
    ///
    /// # Safety
    /// The range at `to` is live, reachable and free of conflicting accesses until this returns.
    pub unsafe fn upload(&self, to: Address, data: &[u8]) -> Result<()> {
        match self {
            Stream::Host(stream) => {
                stream.synchronize()?;
                // SAFETY: the caller's promise.
                unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to.as_ptr(), data.len()) };
                Ok(())
            }
            // SAFETY: the caller's promise.
            Stream::Cuda(stream) => unsafe { stream.upload(to, data) },
        }
    }

    /// Reads into `data` after what is enqueued, and waits until it is done.
    ///
    /// # Safety
    /// The range at `from` is live, reachable and not written to until this returns.
    pub unsafe fn download(&self, data: &mut [u8], from: Address) -> Result<()> {
        match self {
            Stream::Host(stream) => {
                stream.synchronize()?;
                // SAFETY: the caller's promise.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), data.as_mut_ptr(), data.len()) };
                Ok(())
            }
            // SAFETY: the caller's promise.
            Stream::Cuda(stream) => unsafe { stream.download(data, from) },
        }
    }
}

/// A point in a stream that another stream can wait for. It orders streams, and takes no time.
#[derive(Debug)]
pub enum Event {
    /// Of the host backend.
    Host(HostEvent),
    /// Of the CUDA backend.
    Cuda(CudaEvent),
}

impl Event {
    /// A new event, not recorded yet.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(match device {
            Device::Host(_) => Event::Host(HostEvent::default()),
            Device::Cuda(device) => Event::Cuda(CudaEvent::new(device)?),
        })
    }

    /// Waits on the calling thread until the last [`Stream::record`] of this event has been reached; not at all if
    /// there was none.
    pub fn synchronize(&self) -> Result<()> {
        match self {
            Event::Host(event) => event.synchronize(),
            Event::Cuda(event) => event.synchronize()?,
        }
        Ok(())
    }
}
