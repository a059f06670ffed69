//! Where memory is.

use bytemuck::{Pod, Zeroable};

/// An address that the device of the backend can use: a host address on the host backend, a unified virtual address
/// (device or pinned host memory) on the CUDA backend. It says nothing of what lies there, nor for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Pod, Zeroable)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// No address.
    pub const NULL: Address = Address(0);

    /// The address `bytes` further on.
    #[must_use]
    pub const fn add(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(bytes as u64))
    }

    /// Whether this is [`Address::NULL`].
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Whether the address is a multiple of `bytes`.
    pub const fn is_aligned_to(self, bytes: u64) -> bool {
        bytes != 0 && self.0.is_multiple_of(bytes)
    }

    /// The address as a pointer of this process; only memory of the host backend and pinned host memory may be
    /// followed through it.
    #[allow(clippy::cast_possible_truncation)] // on a 32-bit host, an address of the host fits
    pub fn as_ptr<T>(self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.0 as usize)
    }
}

impl<T> From<*mut T> for Address {
    fn from(pointer: *mut T) -> Self {
        Self(pointer.expose_provenance() as u64)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
