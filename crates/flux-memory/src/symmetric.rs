//! Symmetric memory: every rank owns one buffer of the same size, and can address its peers'.

use crate::{Address, Buffer, Device, Placement, Result};

/// One buffer per rank, all of the same size; every rank may address all of them.
#[derive(Debug)]
pub struct SymmetricBuffer {
    buffers: Vec<Buffer>,
}

impl SymmetricBuffer {
    /// Allocates `bytes` zeroed bytes for each rank, rank r's on `devices[r]`. Several ranks may share a device. Devices
    /// must be able to address one another's memory ([`Device::enable_peer_access`]) unless it is pinned host memory.
    pub fn allocate(devices: &[Device], bytes: usize, placement: Placement) -> Result<Self> {
        let buffers =
            devices.iter().map(|device| Buffer::allocate(device, bytes, placement)).collect::<Result<_>>()?;
        Ok(Self { buffers })
    }

    /// The address of `rank`'s buffer, valid on every rank's device; null for a rank outside the group.
    pub fn address(&self, rank: usize) -> Address {
        self.buffers.get(rank).map_or(Address::NULL, Buffer::address)
    }

    /// `rank`'s buffer.
    pub fn buffer(&self, rank: usize) -> Option<&Buffer> {
        self.buffers.get(rank)
    }

    /// Size of one rank's buffer in bytes.
    pub fn bytes(&self) -> usize {
        self.buffers.first().map_or(0, Buffer::bytes)
    }
}

/// One array of 32-bit signals per rank. In the rank's own device memory waiting is local and raising remote; in pinned
/// host memory devices that cannot address each other's memory can still signal.
#[derive(Debug)]
pub struct SymmetricSignals {
    words: SymmetricBuffer,
}

impl SymmetricSignals {
    /// Allocates `len` signals for each rank, all at epoch 0.
    pub fn allocate(devices: &[Device], len: usize, placement: Placement) -> Result<Self> {
        Ok(Self {
            words: SymmetricBuffer::allocate(devices, len.saturating_mul(size_of::<u32>()), placement)?,
        })
    }

    /// The address of signal `index` of `rank`, to wait on or to raise; null for a rank outside the group.
    pub fn word(&self, rank: usize, index: usize) -> Address {
        match self.words.address(rank) {
            Address::NULL => Address::NULL,
            base => base.add(index * size_of::<u32>()),
        }
    }

    /// Signals per rank.
    pub fn len(&self) -> usize {
        self.words.bytes() / size_of::<u32>()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
