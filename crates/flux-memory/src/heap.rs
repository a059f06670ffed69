//! Memory that a library makes symmetric, out of a heap of its own.

use crate::{Address, Result};

/// GPU memory that is allocated by all processes of a group together, each of which knows where its peers' parts lie as far as
/// it can address them. What a space [is given](crate::SymmetricSpace::with_heap), its ranks allocate device memory from.
///
/// [`SymmetricHeap::allocate`] and [`SymmetricHeap::free`] are collective. Each ends, with an error if a rank does not come.
pub trait SymmetricHeap: std::fmt::Debug + Send + Sync {
    /// This rank's part of an allocation of `bytes` bytes for each rank, aligned to 256 bytes; not zeroed.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// Where `peer`'s part of the allocation that this rank has at `own` is; null if this rank cannot address it.
    fn address(&self, own: Address, peer: usize) -> Address;

    /// Frees an allocation.
    ///
    /// # Safety
    /// No rank uses any part of it any more.
    unsafe fn free(&self, own: Address) -> Result<()>;
}
