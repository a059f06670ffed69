//! Owned memory of a device.

use crate::{Address, Device, Error, Result, Stream, cuda, host};

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// The device's own memory.
    Device,
    /// Page-locked memory of the host that the device can address: copies to and from it really use PCIe. On the host
    /// backend the same as [`Placement::Device`].
    PinnedHost,
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Placement::Device => "device",
            Placement::PinnedHost => "pinned-host",
        })
    }
}

/// Owned memory, zeroed at first, aligned to 16 bytes at least, freed on drop.
///
/// The owner drops it only after the last stream operation on it has ended.
#[derive(Debug)]
pub struct Buffer {
    device: Device,
    placement: Placement,
    address: Address,
    bytes: usize,
}

impl Buffer {
    /// Allocates and zeroes `bytes` bytes; 0 bytes are allowed.
    pub fn allocate(device: &Device, bytes: usize, placement: Placement) -> Result<Self> {
        let address = match device {
            Device::Host(_) => host::memory::allocate(bytes),
            Device::Cuda(device) => cuda::memory::allocate(device, bytes, placement)?,
        };
        let address =
            address.ok_or_else(|| Error::OutOfMemory { bytes, placement, device: device.to_string() })?;
        Ok(Self { device: device.clone(), placement, address, bytes })
    }

    /// The first byte.
    pub const fn address(&self) -> Address {
        self.address
    }

    /// The size in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it lies.
    pub const fn placement(&self) -> Placement {
        self.placement
    }

    /// The device it was allocated for.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Writes `data` at byte `offset`, after everything enqueued on `stream`; returns when it is done.
    pub fn upload(&self, stream: &Stream, offset: usize, data: &[u8]) -> Result<()> {
        self.check(stream, offset, data.len())?;
        // SAFETY: the range lies in this buffer, which outlives the blocking call.
        unsafe { stream.upload(self.address.add(offset), data) }
    }

    /// Reads from byte `offset` into `data`, after everything enqueued on `stream`; returns when it is done.
    pub fn download(&self, stream: &Stream, offset: usize, data: &mut [u8]) -> Result<()> {
        self.check(stream, offset, data.len())?;
        // SAFETY: the range lies in this buffer, which outlives the blocking call.
        unsafe { stream.download(data, self.address.add(offset)) }
    }

    fn check(&self, stream: &Stream, offset: usize, bytes: usize) -> Result<()> {
        self.device.require_same(&stream.device(), "the buffer")?;
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            end => Err(Error::OutOfBounds { offset, end: end.unwrap_or(usize::MAX), bytes: self.bytes }),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &self.device {
            // SAFETY: allocated by the same module with the same size, and freed once.
            Device::Host(_) => unsafe { host::memory::free(self.address, self.bytes) },
            // SAFETY: as above.
            Device::Cuda(device) => unsafe { cuda::memory::free(device, self.address, self.placement) },
        }
    }
}
