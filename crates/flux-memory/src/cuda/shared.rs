//! Memory of GPUs, and pinned memory of the host, that several processes use.

use super::{CudaDevice, check};
use crate::host::shared::Mapping;
use crate::{Address, Error, Result};
use cudarc::driver::sys::{self, CUdevice_attribute, CUmemAllocationHandleType_enum, CUresult};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// In what form an allocation is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// An open file.
    File,
    /// A fabric handle: bytes.
    Fabric,
}

impl Form {
    /// By its number in `cuda.h`: headers older than CUDA 12.3 do not know fabric handles.
    const fn handle_type(self) -> CUmemAllocationHandleType_enum {
        match self {
            Form::File => CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            Form::Fabric => CUmemAllocationHandleType_enum(8),
        }
    }
}

/// What is handed out.
#[derive(Debug)]
pub(crate) enum Exported {
    File(OwnedFd),
    /// `CUmemFabricHandle`.
    Fabric([u8; 64]),
}

impl Exported {
    /// A fabric handle that a peer has told.
    pub(crate) fn fabric(bytes: &[u8]) -> Result<Self> {
        let call = "cuMemImportFromShareableHandle";
        let wrong = |_| Error::System { call, reason: format!("a handle of {} bytes", bytes.len()) };
        bytes.try_into().map(Exported::Fabric).map_err(wrong)
    }
}

/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED` of `cuda.h`, since CUDA 12.3.
const FABRIC_SUPPORTED: i32 = 128;

impl CudaDevice {
    /// Whether its memory can be handed to other processes as an open file.
    pub(crate) fn shares_by_file(&self) -> bool {
        let has = |attribute| self.attribute(attribute).is_ok_and(|value| value != 0);
        has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
            && has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
    }

    /// Whether its driver knows fabric handles of its memory. Whether this process may make any is another matter.
    pub(crate) fn knows_fabric_handles(&self) -> bool {
        self.attribute_by_number(FABRIC_SUPPORTED).is_ok_and(|value| value != 0)
    }

    /// What `cuMemCreate` and `cuMemSetAccess` call this device.
    fn location(&self) -> sys::CUmemLocation {
        // Newer drivers' headers have a union where older ones have the device's number: the same four bytes.
        const { assert!(size_of::<sys::CUmemLocation>() == 2 * size_of::<i32>()) };
        // SAFETY: all zeroes are a valid value: an invalid location.
        let mut location: sys::CUmemLocation = unsafe { std::mem::zeroed() };
        location.type_ = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
        // SAFETY: the second of two 32-bit words of a structure that is ours.
        unsafe { (&raw mut location).cast::<i32>().add(1).write(self.context().cu_device()) };
        location
    }

    /// The kind of allocation that can be handed out in this form.
    fn allocation(&self, form: Form) -> sys::CUmemAllocationProp {
        // SAFETY: all zeroes are a valid value: an invalid type, no flags, no metadata.
        let mut allocation: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
        allocation.type_ = sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
        allocation.requestedHandleTypes = form.handle_type();
        allocation.location = self.location();
        allocation
    }
}

/// A VMM allocation, mapped for this process's GPU. The mapping keeps it alive, whoever made it.
#[derive(Debug)]
pub(crate) struct VmmMemory {
    device: Arc<CudaDevice>,
    address: sys::CUdeviceptr,
    /// Whole granules.
    bytes: usize,
    /// Kept where peers may still come with a handle that is no reference by itself, as a file is.
    _exported: Option<Allocation>,
}

impl VmmMemory {
    /// Zeroed memory, and what to hand out; `None` if there is not enough.
    pub(crate) fn create(
        device: &Arc<CudaDevice>,
        bytes: usize,
        form: Form,
    ) -> Result<Option<(Self, Exported)>> {
        device.bind()?;
        let allocation = device.allocation(form);
        let Some(bytes) = granules(&allocation, bytes)? else { return Ok(None) };
        let mut handle = 0;
        // SAFETY: both are valid for the call.
        let status = unsafe { sys::cuMemCreate(&raw mut handle, bytes, &raw const allocation, 0) };
        if status == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Ok(None);
        }
        check("cuMemCreate", status)?;
        let allocated = Allocation(handle);
        let export = |place: *mut c_void| {
            // SAFETY: there is room for a handle of this type: see below.
            let status =
                unsafe { sys::cuMemExportToShareableHandle(place, allocated.0, form.handle_type(), 0) };
            check("cuMemExportToShareableHandle", status)
        };
        let exported = match form {
            Form::File => {
                let mut file: RawFd = -1;
                export((&raw mut file).cast())?;
                // SAFETY: the driver has just opened it, for the caller to close.
                Exported::File(unsafe { OwnedFd::from_raw_fd(file) })
            }
            Form::Fabric => {
                let mut handle = [0; 64];
                export(handle.as_mut_ptr().cast())?;
                Exported::Fabric(handle)
            }
        };
        let mut memory = Self::map(device, &allocated, bytes)?;
        // SAFETY: the range was just mapped.
        unsafe { super::memory::zero(device, memory.address(), bytes)? };
        memory._exported = (form == Form::Fabric).then_some(allocated);
        Ok(Some((memory, exported)))
    }

    /// A peer's memory of `bytes` bytes.
    pub(crate) fn open(device: &Arc<CudaDevice>, exported: Exported, bytes: usize) -> Result<Self> {
        device.bind()?;
        let form = match &exported {
            Exported::File(_) => Form::File,
            Exported::Fabric(_) => Form::Fabric,
        };
        // The peers' GPUs are of the same kind, so theirs have the same granules.
        let too_large = || Error::OutOfBounds { offset: 0, end: bytes, bytes: usize::MAX };
        let bytes = granules(&device.allocation(form), bytes)?.ok_or_else(too_large)?;
        let mut handle = 0;
        let mut import = |from: *mut c_void| {
            // SAFETY: for files the pointer is the descriptor's number, of which the driver keeps its own reference; fabric
            // handles it points to.
            let status =
                unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, from, form.handle_type()) };
            check("cuMemImportFromShareableHandle", status)
        };
        match exported {
            Exported::File(file) => {
                let number = usize::try_from(file.as_raw_fd()).unwrap_or(usize::MAX);
                import(std::ptr::without_provenance_mut(number))?;
            }
            Exported::Fabric(mut bytes) => import(bytes.as_mut_ptr().cast())?,
        }
        Self::map(device, &Allocation(handle), bytes)
    }

    /// Maps the allocation, of that size, for reading and writing by `device`.
    fn map(device: &Arc<CudaDevice>, allocation: &Allocation, bytes: usize) -> Result<Self> {
        let mut address = 0;
        // SAFETY: `address` is a valid place for the result.
        check("cuMemAddressReserve", unsafe { sys::cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0) })?;
        // SAFETY: the range was just reserved. The driver refuses more bytes than the allocation has.
        let mapped = check("cuMemMap", unsafe { sys::cuMemMap(address, bytes, 0, allocation.0, 0) });
        if let Err(error) = mapped {
            // SAFETY: reserved above, and nothing is mapped there.
            let _freed = unsafe { sys::cuMemAddressFree(address, bytes) };
            return Err(error);
        }
        let device = Arc::clone(device);
        let memory = Self { device, address, bytes, _exported: None }; // from here on its drop unmaps
        let access = sys::CUmemAccessDesc {
            location: memory.device.location(),
            flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range is mapped, and there is one descriptor.
        check("cuMemSetAccess", unsafe { sys::cuMemSetAccess(address, bytes, &raw const access, 1) })?;
        Ok(memory)
    }

    pub(crate) const fn address(&self) -> Address {
        Address(self.address)
    }
}

impl Drop for VmmMemory {
    fn drop(&mut self) {
        let unmapped = self.device.bind().and_then(|()| {
            // SAFETY: mapped by this type, unmapped once; the owner drops it only after the last use.
            check("cuMemUnmap", unsafe { sys::cuMemUnmap(self.address, self.bytes) })?;
            // SAFETY: reserved by this type, freed once, and nothing is mapped there any more.
            check("cuMemAddressFree", unsafe { sys::cuMemAddressFree(self.address, self.bytes) })
        });
        if let Err(error) = unmapped {
            tracing::warn!(%error, "shared GPU memory could not be unmapped");
        }
    }
}

/// The driver's handle of an allocation. When it is released, the allocation lives as long as its mappings, and the files
/// that it was exported to.
#[derive(Debug)]
struct Allocation(sys::CUmemGenericAllocationHandle);

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: made or imported by this process, released once.
        if let Err(error) = check("cuMemRelease", unsafe { sys::cuMemRelease(self.0) }) {
            tracing::warn!(%error, "a handle of GPU memory could not be released");
        }
    }
}

/// `bytes` rounded up to what the driver allocates in; `None` if that is too much to count.
fn granules(allocation: &sys::CUmemAllocationProp, bytes: usize) -> Result<Option<usize>> {
    let mut granule = 0;
    let minimum = sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: both are valid for the call.
    check("cuMemGetAllocationGranularity", unsafe {
        sys::cuMemGetAllocationGranularity(&raw mut granule, std::ptr::from_ref(allocation), minimum)
    })?;
    Ok(bytes.max(1).checked_next_multiple_of(granule.max(1)))
}

/// A peer's memory, opened by its CUDA IPC handle; closed on drop.
#[derive(Debug)]
pub(crate) struct IpcMemory {
    device: Arc<CudaDevice>,
    address: sys::CUdeviceptr,
}

impl IpcMemory {
    /// The driver hands out whole blocks of this size: what is smaller would share its block with other memory, and hand that
    /// out too.
    const BLOCK: usize = 2 << 20;

    pub(crate) const fn round_up(bytes: usize) -> Option<usize> {
        let bytes = if bytes == 0 { 1 } else { bytes };
        bytes.checked_next_multiple_of(Self::BLOCK)
    }

    /// The handle of memory of this process that `cuMemAlloc` has allocated, whose context is current.
    pub(crate) fn handle(address: Address) -> Result<Vec<u8>> {
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: a valid place for the result, and the base of an allocation.
        check("cuIpcGetMemHandle", unsafe { sys::cuIpcGetMemHandle(&raw mut handle, address.0) })?;
        Ok(handle.reserved.iter().map(|&byte| byte as u8).collect())
    }

    pub(crate) fn open(device: &Arc<CudaDevice>, handle: &[u8]) -> Result<Self> {
        device.bind()?;
        let handle: &[u8; 64] = handle.try_into().map_err(|_| Error::System {
            call: "cuIpcOpenMemHandle",
            reason: format!("a handle of {} bytes", handle.len()),
        })?;
        let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as _) };
        let flags = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: a valid place for the result; the handle is a peer's, who keeps the memory until this is closed.
        check("cuIpcOpenMemHandle", unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, flags) })?;
        Ok(Self { device: Arc::clone(device), address })
    }

    pub(crate) const fn address(&self) -> Address {
        Address(self.address)
    }
}

impl Drop for IpcMemory {
    fn drop(&mut self) {
        let closed = self.device.bind().and_then(|()| {
            // SAFETY: opened by this type, closed once; the owner drops it only after the last use.
            check("cuIpcCloseMemHandle", unsafe { sys::cuIpcCloseMemHandle(self.address) })
        });
        if let Err(error) = closed {
            tracing::warn!(%error, "a peer's GPU memory could not be closed");
        }
    }
}

/// A mapped memory file, pinned, so that this process's GPUs can address it.
#[derive(Debug)]
pub(crate) struct PinnedMapping {
    device: Arc<CudaDevice>,
    mapping: Mapping,
}

impl PinnedMapping {
    pub(crate) fn new(device: &Arc<CudaDevice>, mapping: Mapping) -> Result<Self> {
        device.bind()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        let pointer = mapping.address().as_ptr::<c_void>();
        // SAFETY: whole pages of this process, which stay mapped until this is dropped.
        check("cuMemHostRegister", unsafe { sys::cuMemHostRegister_v2(pointer, mapping.bytes(), flags) })?;
        let pinned = Self { device: Arc::clone(device), mapping }; // from here on its drop unpins
        let mut address = 0;
        // SAFETY: a valid place for the result, and memory that was just registered.
        check("cuMemHostGetDevicePointer", unsafe {
            sys::cuMemHostGetDevicePointer_v2(&raw mut address, pointer, 0)
        })?;
        if address != pinned.mapping.address().0 {
            let reason = "the GPU sees registered host memory at another address than the host does".into();
            return Err(Error::System { call: "cuMemHostGetDevicePointer", reason });
        }
        Ok(pinned)
    }

    pub(crate) const fn address(&self) -> Address {
        self.mapping.address()
    }
}

impl Drop for PinnedMapping {
    fn drop(&mut self) {
        let unpinned = self.device.bind().and_then(|()| {
            // SAFETY: registered by this type, unregistered once, before the mapping goes.
            check("cuMemHostUnregister", unsafe { sys::cuMemHostUnregister(self.mapping.address().as_ptr()) })
        });
        if let Err(error) = unpinned {
            tracing::warn!(%error, "shared host memory could not be unpinned");
        }
    }
}
