//! Memory of the host backend.

use crate::Address;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// What 16-byte accesses need, and the most for which the allocator hands out fresh zeroed pages untouched.
const ALIGNMENT: usize = 16;

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), ALIGNMENT).ok()
}

/// Below this, an allocation is not compared with what is available.
const SMALL_BYTES: usize = 64 << 20;

/// Whether the machine has that much memory to give. Where the system promises more memory than there is, an allocation
/// succeeds and its use ends the process: so this is asked first.
pub fn is_available(bytes: usize) -> bool {
    if bytes < SMALL_BYTES {
        return true;
    }
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix(" kB")?.parse::<usize>().ok()
    });
    available.is_none_or(|kilobytes| bytes / 1024 <= kilobytes)
}

/// Zeroed memory, or `None` if there is not enough.
pub(crate) fn allocate(bytes: usize) -> Option<Address> {
    let layout = layout(bytes).filter(|_| is_available(bytes))?;
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
