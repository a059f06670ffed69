//! Memory of the host that several processes map: a file that has no name, handed from process to process.
//!
//! It lives as long as somebody has it open or mapped, and leaves nothing behind.

use crate::{Address, Error, Result};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::OwnedFd;

/// What `mmap` maps, and what a GPU's driver pins.
const PAGE: usize = 4096;

fn failed(call: &'static str) -> impl FnOnce(Errno) -> Error {
    move |error| Error::System { call, reason: error.to_string() }
}

/// A memory file that this process has open.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    file: OwnedFd,
    bytes: usize,
}

impl MemoryFile {
    /// So many zeroed bytes, rounded up to pages, or `None` if there are not enough.
    pub(crate) fn create(bytes: usize) -> Result<Option<Self>> {
        let Some(bytes) = bytes.max(1).checked_next_multiple_of(PAGE) else { return Ok(None) };
        if !super::is_available(bytes) {
            return Ok(None);
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("flux", flags).map_err(failed("memfd_create"))?;
        // Really there, not only promised: a page that cannot be had when it is touched ends the process.
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64) {
            Err(Errno::NOMEM | Errno::NOSPC | Errno::FBIG | Errno::INVAL) => return Ok(None),
            allocated => allocated.map_err(failed("fallocate"))?,
        }
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        Ok(Some(Self { file, bytes }))
    }

    /// A peer's, which must be as large as one of `bytes` bytes, and stay so: pages that went away under a mapping would end
    /// this process.
    pub(crate) fn open(file: OwnedFd, bytes: usize) -> Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let size = rustix::fs::fstat(&file).map_err(failed("fstat"))?.st_size;
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(failed("fcntl(F_GET_SEALS)"))?;
        if u64::try_from(size) != Ok(bytes as u64) || !seals.contains(SealFlags::SHRINK) {
            let reason = format!("{size} bytes, sealed {seals:?}, are not {bytes} that stay");
            return Err(Error::System { call: "a peer's memory file", reason });
        }
        Ok(Self { file, bytes })
    }

    /// The file, to hand out.
    pub(crate) fn into_file(self) -> OwnedFd {
        self.file
    }

    /// Maps all of it, for reading and writing; `None` if this process may have no more.
    pub(crate) fn map(&self) -> Result<Option<Mapping>> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at a place that the kernel chooses.
        match unsafe { rustix::mm::mmap(std::ptr::null_mut(), self.bytes, access, flags, &self.file, 0) } {
            Err(Errno::NOMEM) => Ok(None),
            Err(error) => Err(failed("mmap")(error)),
            Ok(pointer) => Ok(Some(Mapping { address: Address::from(pointer), bytes: self.bytes })),
        }
    }
}

/// A memory file's bytes in this process; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: Address,
    bytes: usize,
}

impl Mapping {
    pub(crate) const fn address(&self) -> Address {
        self.address
    }

    /// Whole pages.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by this type, unmapped once; the owner drops it only after the last use.
        if let Err(error) = unsafe { rustix::mm::munmap(self.address.as_ptr(), self.bytes) } {
            tracing::warn!(%error, "shared memory could not be unmapped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let own = MemoryFile::create(5000).unwrap().unwrap();
        let peer = MemoryFile::open(own.file.try_clone().unwrap(), 5000).unwrap();
        let [first, second] = [&own, &peer].map(|file| file.map().unwrap().unwrap());
        assert_ne!(first.address(), second.address());
        // SAFETY: both are mappings of 8192 bytes, used by this thread only.
        unsafe {
            assert_eq!(first.address().add(4999).as_ptr::<u8>().read_volatile(), 0);
            first.address().add(4999).as_ptr::<u8>().write_volatile(7);
            assert_eq!(second.address().add(4999).as_ptr::<u8>().read_volatile(), 7);
        }
    }

    #[test]
    fn a_file_that_could_shrink_or_has_another_size_is_refused() {
        let own = MemoryFile::create(1).unwrap().unwrap();
        assert!(rustix::fs::ftruncate(&own.file, 0).is_err());
        let again = || own.file.try_clone().unwrap();
        assert!(MemoryFile::open(again(), PAGE).is_ok());
        assert!(MemoryFile::open(again(), PAGE + 1).is_err());
        let unsealed = rustix::fs::memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, PAGE as u64).unwrap();
        assert!(MemoryFile::open(unsealed, PAGE).is_err());
        assert!(MemoryFile::create(usize::MAX).unwrap().is_none());
        assert!(MemoryFile::create(1 << 60).unwrap().is_none());
    }
}
