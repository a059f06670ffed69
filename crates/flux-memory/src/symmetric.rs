//! Symmetric memory: every rank owns one buffer of the same size, and can address those of its peers that it can reach.

use crate::shared::SharedPieces;
use crate::space::Ranks;
use crate::{Address, Buffer, Placement, Result, SymmetricSpace};

/// One buffer per rank, all of the same size; a rank may address those of the ranks that [`crate::Reach`] says.
///
/// The owner drops it only after the last stream operation of this process on it has ended. Peers in other processes may still
/// use this rank's then: what they have mapped stays until they drop theirs.
#[derive(Debug)]
pub struct SymmetricBuffer {
    /// By rank.
    addresses: Vec<Address>,
    bytes: usize,
    _memory: Memory,
}

/// What the addresses lie in.
#[derive(Debug)]
enum Memory {
    Here { _buffers: Vec<Buffer> },
    AmongProcesses { _pieces: SharedPieces },
}

impl SymmetricBuffer {
    /// Allocates `bytes` zeroed bytes for each rank of `space` (devices, for ranks that all live in this process). Among
    /// processes it is collective, and fails on all ranks if it fails on one.
    pub fn allocate(space: impl Into<SymmetricSpace>, bytes: usize, placement: Placement) -> Result<Self> {
        match space.into().ranks() {
            Ranks::Here(devices) => {
                let allocate = |device| Buffer::allocate(device, bytes, placement);
                let buffers: Vec<_> = devices.iter().map(allocate).collect::<Result<_>>()?;
                let addresses = buffers.iter().map(Buffer::address).collect();
                Ok(Self { addresses, bytes, _memory: Memory::Here { _buffers: buffers } })
            }
            Ranks::AmongProcesses(one, reach) => {
                let pieces = SharedPieces::allocate(one, reach, bytes, placement)?;
                let addresses = pieces.addresses();
                Ok(Self { addresses, bytes, _memory: Memory::AmongProcesses { _pieces: pieces } })
            }
        }
    }

    /// The address of `rank`'s buffer, valid on the device of every rank of this process that can
    /// reach it; null for a rank outside the group, or one of another process that this one's cannot reach.
    pub fn address(&self, rank: usize) -> Address {
        self.addresses.get(rank).copied().unwrap_or(Address::NULL)
    }

    /// Size of one rank's buffer in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// One array of 32-bit signals per rank. In the rank's own device memory waiting is local and raising remote; in pinned
/// host memory devices that cannot address each other's memory can still signal.
#[derive(Debug)]
pub struct SymmetricSignals {
    words: SymmetricBuffer,
}

impl SymmetricSignals {
    /// Allocates `len` signals for each rank, all at epoch 0; as [`SymmetricBuffer::allocate`].
    pub fn allocate(space: impl Into<SymmetricSpace>, len: usize, placement: Placement) -> Result<Self> {
        Ok(Self { words: SymmetricBuffer::allocate(space, len.saturating_mul(size_of::<u32>()), placement)? })
    }

    /// The address of signal `index` of `rank`, to wait on or to raise; null for a rank outside the group.
    pub fn word(&self, rank: usize, index: usize) -> Address {
        match self.words.address(rank) {
            Address::NULL => Address::NULL,
            base => base.add(index * size_of::<u32>()),
        }
    }

    /// Signals per rank.
    pub const fn len(&self) -> usize {
        self.words.bytes() / size_of::<u32>()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
