//! Devices: where memory lies and streams run.

use crate::cuda::CudaDevice;
use crate::cuda::stream::Priority;
use crate::host::Cores;
use crate::{Error, Result, Stream};
use std::sync::Arc;

/// Which kind of machine the work runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Threads and ordinary memory of this process.
    Host,
    /// NVIDIA GPUs through the CUDA driver.
    Cuda,
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Backend::Host => "host",
            Backend::Cuda => "cuda",
        })
    }
}

/// One device. Cloning gives another handle to the same one.
#[derive(Clone, Debug)]
pub enum Device {
    /// This process's memory; every stream is a thread, which keeps to these cores.
    Host(Cores),
    /// A GPU.
    Cuda(Arc<CudaDevice>),
}

impl Device {
    /// The host as a device.
    pub const fn host() -> Self {
        Device::Host(Cores::ANY)
    }

    /// The host as a device of one of `sharing` ranks, the one with that `place` among them, whose streams keep to its
    /// [`Cores::share`].
    pub fn host_of_rank(place: usize, sharing: usize) -> Self {
        Device::Host(Cores::share(place, sharing))
    }

    /// GPU `ordinal`, as the CUDA driver counts them; its primary context is retained.
    pub fn cuda(ordinal: usize) -> Result<Self> {
        CudaDevice::new(ordinal).map(|device| Device::Cuda(Arc::new(device)))
    }

    /// How many GPUs the CUDA driver shows; [`Error::NoCudaDriver`] where there is none.
    pub fn cuda_count() -> Result<usize> {
        crate::cuda::device_count()
    }

    /// The kind of device.
    pub const fn backend(&self) -> Backend {
        match self {
            Device::Host(_) => Backend::Host,
            Device::Cuda(_) => Backend::Cuda,
        }
    }

    /// The GPU, if it is one.
    pub const fn as_cuda(&self) -> Option<&Arc<CudaDevice>> {
        match self {
            Device::Host(_) => None,
            Device::Cuda(device) => Some(device),
        }
    }

    /// A new stream for computation.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self, Priority::Compute)
    }

    /// A new stream for transfers: of higher priority, so that a copy is not queued behind computation.
    pub fn transfer_stream(&self) -> Result<Stream> {
        Stream::new(self, Priority::Transfer)
    }

    /// Lets every one of `devices` address the memory of every other.
    pub fn enable_peer_access(devices: &[Device]) -> Result<()> {
        for from in devices.iter().filter_map(Device::as_cuda) {
            for to in devices.iter().filter_map(Device::as_cuda) {
                if from.ordinal() != to.ordinal() {
                    from.enable_peer_access(to)?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn require_same(&self, other: &Device, what: &'static str) -> Result<()> {
        if self.backend() == other.backend() { Ok(()) } else { Err(Error::BackendMismatch { what }) }
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Device::Host(_) => f.write_str("the host"),
            Device::Cuda(device) => write!(f, "GPU {} ({})", device.ordinal(), device.name()),
        }
    }
}
