//! Streams and events of the CUDA backend.

use super::{CudaDevice, check, driver_error};
use crate::{Address, Error, Result, WaitPoint};
use cudarc::driver::sys::{
    self, CUDA_MEMCPY2D_st, CUevent, CUmemorytype, CUresult, CUstream, CUstreamBatchMemOpParams,
    CUstreamBatchMemOpType, CUstreamCaptureStatus,
};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Operations of one `cuStreamBatchMemOp`, which takes at most 256: few, because room for all is zeroed for each batch, and
/// enough for a wait for 30 peers.
const BATCH: usize = 32;

/// `cuMemcpy2DAsync` takes no larger pitch: what every device's `CU_DEVICE_ATTRIBUTE_MAX_PITCH` says.
const MAX_PITCH: usize = i32::MAX.cast_unsigned() as usize;

/// What goes first where several streams have work. Streams of different priorities also do not share hardware queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Kernels that fill the GPU.
    Compute,
    /// What they wait for.
    Transfer,
    /// What ends a wait that has expired.
    Rescue,
}

/// A stream of a GPU, its own or borrowed from the caller.
#[derive(Debug)]
pub struct CudaStream {
    device: Arc<CudaDevice>,
    raw: CUstream,
    owned: bool,
}

// SAFETY: the driver's streams may be used from any thread.
unsafe impl Send for CudaStream {}
// SAFETY: as above.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    pub(crate) fn new(device: &Arc<CudaDevice>, priority: Priority) -> Result<Self> {
        device.bind()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both are valid places for the results.
        check("cuCtxGetStreamPriorityRange", unsafe {
            sys::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)
        })?;
        // Smaller numbers go first.
        let priority = match priority {
            Priority::Compute => least,
            Priority::Transfer => (greatest + 1).min(least),
            Priority::Rescue => greatest,
        };
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `raw` is a valid place for the result.
        check("cuStreamCreateWithPriority", unsafe {
            sys::cuStreamCreateWithPriority(&raw mut raw, flags, priority)
        })?;
        Ok(Self { device: Arc::clone(device), raw, owned: true })
    }

    /// # Safety
    /// `raw` is a stream of `device`'s primary context that outlives the result.
    pub(crate) unsafe fn borrow(device: &Arc<CudaDevice>, raw: CUstream) -> Self {
        Self { device: Arc::clone(device), raw, owned: false }
    }

    /// The driver's handle.
    pub const fn raw(&self) -> CUstream {
        self.raw
    }

    /// The device it belongs to.
    pub const fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    /// # Safety
    /// As for [`crate::Stream::copy`].
    pub(crate) unsafe fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the caller's promise; the driver finds out from the addresses where they lie.
        check("cuMemcpyAsync", unsafe { sys::cuMemcpyAsync(to.0, from.0, bytes, self.raw) })
    }

    /// # Safety
    /// As for [`crate::Stream::copy_rows`].
    pub(crate) unsafe fn copy_rows(
        &self,
        (to, to_pitch): (Address, usize),
        (from, from_pitch): (Address, usize),
        row_bytes: usize,
        rows: usize,
    ) -> Result<()> {
        if to_pitch.max(from_pitch) > MAX_PITCH {
            return (0..rows).try_for_each(|row| {
                let (to_offset, from_offset) = (row.wrapping_mul(to_pitch), row.wrapping_mul(from_pitch));
                // SAFETY: the caller's promise.
                unsafe { self.copy(to.add(to_offset), from.add(from_offset), row_bytes) }
            });
        }
        // The driver finds out from the addresses where they lie.
        let memory = CUmemorytype::CU_MEMORYTYPE_UNIFIED;
        let copy = CUDA_MEMCPY2D_st {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: memory,
            srcHost: std::ptr::null(),
            srcDevice: from.0,
            srcArray: std::ptr::null_mut(),
            srcPitch: from_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: memory,
            dstHost: std::ptr::null_mut(),
            dstDevice: to.0,
            dstArray: std::ptr::null_mut(),
            dstPitch: to_pitch,
            WidthInBytes: row_bytes,
            Height: rows,
        };
        self.device.bind()?;
        // SAFETY: the caller's promise.
        check("cuMemcpy2DAsync", unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, self.raw) })
    }

    /// # Safety
    /// As for [`crate::Stream::write_values`].
    pub(crate) unsafe fn write_values(&self, values: &[(Address, u32)]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.batch(values.iter().map(|&(word, value)| write_value(word, value))) }
    }

    /// The stream marks in host memory that it is about to wait, waits, and marks that it has passed: the watchdog
    /// reads the marks.
    ///
    /// # Safety
    /// As for [`crate::Stream::wait_values`].
    pub(crate) unsafe fn wait_values(&self, point: &Arc<WaitPoint>, wanted: u32) -> Result<()> {
        let Some(marks) = point.place().marks() else { return Ok(()) };
        let waits = point.signals().iter().map(|&(word, _)| wait_value(word, wanted));
        let before = std::iter::once(write_value(marks.before, wanted));
        let after = std::iter::once(write_value(marks.after, wanted));
        // SAFETY: the caller's promise; the marks live as long as the wait point.
        unsafe { self.batch(before.chain(waits).chain(after)) }
    }

    /// # Safety
    /// Every operation's address is a live, 4-byte aligned word that this device can address.
    unsafe fn batch(&self, operations: impl Iterator<Item = CUstreamBatchMemOpParams>) -> Result<()> {
        self.device.bind()?;
        // On the stack: a call of an op allocates nothing.
        let mut batch = [CUstreamBatchMemOpParams { pad: [0; 6] }; BATCH];
        let mut count = 0;
        let mut operations = operations.peekable();
        while let Some(operation) = operations.next() {
            batch[count] = operation;
            count += 1;
            if count == BATCH || operations.peek().is_none() {
                // SAFETY: `count` operations are initialised; the addresses are the caller's promise.
                check("cuStreamBatchMemOp", unsafe {
                    sys::cuStreamBatchMemOp_v2(
                        self.raw,
                        u32::try_from(count).unwrap_or(0),
                        batch.as_mut_ptr(),
                        0,
                    )
                })?;
                count = 0;
            }
        }
        Ok(())
    }

    pub(crate) fn record(&self, event: &CudaEvent) -> Result<()> {
        self.device.bind()?;
        // SAFETY: both handles are alive.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event.raw, self.raw) })
    }

    pub(crate) fn wait(&self, event: &CudaEvent) -> Result<()> {
        self.device.bind()?;
        // SAFETY: both handles are alive.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) })
    }

    pub(crate) fn is_capturing(&self) -> Result<bool> {
        self.device.bind()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the handle is alive, and `status` a valid place for the result.
        check("cuStreamIsCapturing", unsafe { sys::cuStreamIsCapturing(self.raw, &raw mut status) })?;
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        self.device.bind()?;
        // SAFETY: the handle is alive.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Waits until everything enqueued has ended, but not longer than `limit`; false if it has not.
    pub(crate) fn synchronize_within(&self, limit: Duration) -> Result<bool> {
        self.device.bind()?;
        let begin = Instant::now();
        loop {
            // SAFETY: the handle is alive.
            match unsafe { sys::cuStreamQuery(self.raw) } {
                CUresult::CUDA_ERROR_NOT_READY if begin.elapsed() < limit => {
                    std::thread::sleep(Duration::from_micros(100));
                }
                CUresult::CUDA_ERROR_NOT_READY => return Ok(false),
                other => return check("cuStreamQuery", other).map(|()| true),
            }
        }
    }

    /// # Safety
    /// As for [`crate::Stream::upload`].
    pub(crate) unsafe fn upload(&self, to: Address, data: &[u8]) -> Result<()> {
        // SAFETY: the caller's promise; `data` outlives the copy, because this waits for it.
        unsafe { self.copy(to, Address::from(data.as_ptr().cast_mut()), data.len())? };
        self.synchronize()
    }

    /// # Safety
    /// As for [`crate::Stream::download`].
    pub(crate) unsafe fn download(&self, data: &mut [u8], from: Address) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.copy(Address::from(data.as_mut_ptr()), from, data.len())? };
        self.synchronize()
    }

    /// Launches a kernel whose only parameter is `params`.
    ///
    /// # Safety
    /// `function` takes exactly one by-value parameter of type `P`, and everything that it reads and writes is live
    /// until it has ended. If it begins early, it waits itself for what is before it.
    pub unsafe fn launch<P: bytemuck::Pod>(
        &self,
        function: sys::CUfunction,
        shape: &LaunchShape,
        params: &P,
    ) -> Result<()> {
        use sys::CUlaunchAttributeID as Id;
        let &LaunchShape { blocks, cluster, threads, shared_bytes, begins_early } = shape;
        self.device.bind()?;
        let mut arguments = [std::ptr::from_ref(params).cast_mut().cast::<c_void>()];
        let attribute = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let early = sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
        let clusters = sys::CUlaunchAttributeValue {
            clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: cluster, y: 1, z: 1 },
        };
        let mut attributes = [
            attribute(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, early),
            attribute(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, clusters),
        ];
        let wanted = match (begins_early, cluster > 1) {
            (true, true) => &mut attributes[..],
            (true, false) => &mut attributes[..1],
            (false, true) => &mut attributes[1..],
            (false, false) => &mut [],
        };
        let config = sys::CUlaunchConfig {
            gridDimX: blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared_bytes,
            hStream: self.raw,
            attrs: wanted.as_mut_ptr(),
            numAttrs: u32::try_from(wanted.len()).unwrap_or(0),
        };
        // SAFETY: the driver copies the configuration and the parameter before it returns; the rest is the caller's promise.
        check("cuLaunchKernelEx", unsafe {
            sys::cuLaunchKernelEx(&raw const config, function, arguments.as_mut_ptr(), std::ptr::null_mut())
        })
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if self.owned {
            let destroyed = self.device.bind().and_then(|()| {
                // SAFETY: created by this type, destroyed once; the driver ends what is queued first.
                check("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(self.raw) })
            });
            if let Err(error) = destroyed {
                tracing::warn!(%error, "a stream could not be destroyed");
            }
        }
    }
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// How many blocks there are: a multiple of `cluster`.
    pub blocks: u32,
    /// How many of them make a cluster.
    pub cluster: u32,
    /// Of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Blocks may come while the kernel before on the stream still computes, if that one lets them: they wait themselves until all
    /// that it wrote is there.
    pub begins_early: bool,
}

/// An event of a GPU; without timing, unless it was made for that.
#[derive(Debug)]
pub struct CudaEvent {
    device: Arc<CudaDevice>,
    raw: CUevent,
}

// SAFETY: the driver's events may be used from any thread.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    pub(crate) fn new(device: &Arc<CudaDevice>) -> Result<Self> {
        Self::with_flags(device, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// An event that knows when it was reached.
    pub(crate) fn timed(device: &Arc<CudaDevice>) -> Result<Self> {
        Self::with_flags(device, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with_flags(device: &Arc<CudaDevice>, flags: sys::CUevent_flags) -> Result<Self> {
        device.bind()?;
        let raw = cudarc::driver::result::event::create(flags)
            .map_err(|error| driver_error("cuEventCreate", error))?;
        Ok(Self { device: Arc::clone(device), raw })
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        self.device.bind()?;
        // SAFETY: the handle is alive.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.raw) })
    }

    /// From `begin` to this event, both [`CudaEvent::timed`], of one device, and passed by its streams.
    pub(crate) fn since(&self, begin: &CudaEvent) -> Result<Duration> {
        // Not through cudarc: built for CUDA 13, it calls a newer function of the same signature, which drivers before 570
        // lack; this one every driver has.
        type ElapsedTime = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;
        let missing = |error: libloading::Error| Error::NoCudaDriver {
            library: super::LIBRARY,
            reason: error.to_string(),
        };
        self.device.bind()?;
        // SAFETY: loading the driver's library again runs nothing.
        let driver = unsafe { libloading::Library::new(super::LIBRARY) }.map_err(missing)?;
        // SAFETY: the driver's function of this name has this type.
        let elapsed_time = unsafe { driver.get::<ElapsedTime>(c"cuEventElapsedTime") }.map_err(missing)?;
        let mut milliseconds = 0.0;
        // SAFETY: a valid place for the result, and live events.
        check("cuEventElapsedTime", unsafe { elapsed_time(&raw mut milliseconds, begin.raw, self.raw) })?;
        Ok(Duration::from_secs_f32(milliseconds.max(0.0) / 1e3))
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        let destroyed = self.device.bind().and_then(|()| {
            // SAFETY: created by this type, destroyed once.
            check("cuEventDestroy", unsafe { sys::cuEventDestroy_v2(self.raw) })
        });
        if let Err(error) = destroyed {
            tracing::warn!(%error, "an event could not be destroyed");
        }
    }
}

fn write_value(word: Address, value: u32) -> CUstreamBatchMemOpParams {
    CUstreamBatchMemOpParams {
        writeValue: sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
            operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32,
            address: word.0,
            __bindgen_anon_1:
                sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 { value },
            // The default flags fence: what the stream wrote before is visible before the value is.
            flags: sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32,
            alias: 0,
        },
    }
}

fn wait_value(word: Address, value: u32) -> CUstreamBatchMemOpParams {
    CUstreamBatchMemOpParams {
        waitValue: sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
            operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32,
            address: word.0,
            __bindgen_anon_1:
                sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 { value },
            // Cyclic: (seen - value) as i32 >= 0.
            flags: sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32,
            alias: 0,
        },
    }
}
