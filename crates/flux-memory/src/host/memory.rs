//! Memory of the host backend.

use crate::Address;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// What `cuMemAlloc` guarantees as well, and enough for any vector load.
const ALIGNMENT: usize = 256;

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), ALIGNMENT).ok()
}

/// Zeroed memory, or `None` if there is not enough.
pub(crate) fn allocate(bytes: usize) -> Option<Address> {
    let layout = layout(bytes)?;
    // SAFETY: the layout is not empty.
    let pointer = unsafe { alloc_zeroed(layout) };
    (!pointer.is_null()).then(|| Address::from(pointer))
}

/// # Safety
/// `address` comes from [`allocate`] with the same `bytes`, and is not used afterwards.
pub(crate) unsafe fn free(address: Address, bytes: usize) {
    if let Some(layout) = layout(bytes) {
        // SAFETY: the caller's promise.
        unsafe { dealloc(address.as_ptr(), layout) }
    }
}
