//! The CUDA backend, over cudarc's driver bindings.
//!
//! cudarc panics when it is called without a driver, so the driver's library is looked for here first.

pub(crate) mod memory;
pub(crate) mod shared;
pub(crate) mod stream;

pub use stream::{CudaEvent, CudaStream, LaunchShape};

use crate::{Error, Result};
use cudarc::driver::sys::{CUdevice_attribute, CUresult};
use cudarc::driver::{CudaContext, DriverError, result, sys};
use std::sync::Arc;

const LIBRARY: &str = "libcuda.so.1";

/// A GPU and its primary context.
#[derive(Debug)]
pub struct CudaDevice {
    context: Arc<CudaContext>,
    name: String,
    multiprocessors: u32,
}

impl CudaDevice {
    pub(crate) fn new(ordinal: usize) -> Result<Self> {
        let count = device_count()?;
        if ordinal >= count {
            return Err(Error::NoSuchDevice { ordinal, count });
        }
        let context =
            CudaContext::new(ordinal).map_err(|error| driver_error("cuDevicePrimaryCtxRetain", error))?;
        let name = context.name().unwrap_or_else(|_| "unknown".into());
        let mut device = Self { context, name, multiprocessors: 0 };
        let count = device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        device.multiprocessors = u32::try_from(count).unwrap_or(1);
        Ok(device)
    }

    /// The driver's number of this device.
    pub fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    /// The driver's name of this device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many SMs it has.
    pub const fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Its primary context, for use with cudarc.
    pub const fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// What tells it from every other GPU, also in other processes.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: a valid place for the result.
        check("cuDeviceGetUuid", unsafe {
            sys::cuDeviceGetUuid_v2(&raw mut uuid, self.context.cu_device())
        })?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    /// Reads a device attribute.
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32> {
        self.context.attribute(attribute).map_err(|error| driver_error("cuDeviceGetAttribute", error))
    }

    /// Reads a device attribute that the headers which cudarc was built for need not know.
    pub(crate) fn attribute_by_number(&self, attribute: i32) -> Result<i32> {
        type Get = unsafe extern "C" fn(*mut i32, i32, sys::CUdevice) -> i32;
        let failed = |reason: String| Error::System { call: "cuDeviceGetAttribute", reason };
        let mut value = 0;
        // SAFETY: the driver is loaded already. The function has this type, enumerations being as wide as `int`; `value` is a place
        // for the result.
        let status = unsafe {
            let driver = libloading::Library::new(LIBRARY).map_err(|error| failed(error.to_string()))?;
            let get = driver.get::<Get>(b"cuDeviceGetAttribute\0").map_err(|e| failed(e.to_string()))?;
            get(&raw mut value, attribute, self.context.cu_device())
        };
        if status == 0 { Ok(value) } else { Err(failed(format!("attribute {attribute}: status {status}"))) }
    }

    /// Makes its context current on this thread, as every driver call on it needs.
    pub fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(|error| driver_error("cuCtxSetCurrent", error))
    }

    pub(crate) fn enable_peer_access(&self, peer: &CudaDevice) -> Result<()> {
        let refused = || Error::NoPeerAccess { from: self.ordinal(), to: peer.ordinal() };
        let mut possible = 0;
        // SAFETY: both devices are valid while their contexts live.
        let asked = unsafe {
            sys::cuDeviceCanAccessPeer(&raw mut possible, self.context.cu_device(), peer.context.cu_device())
        };
        check("cuDeviceCanAccessPeer", asked)?;
        if possible == 0 {
            return Err(refused());
        }
        self.bind()?;
        // SAFETY: the peer's context is alive.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.context.cu_ctx(), 0) } {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            other => check("cuCtxEnablePeerAccess", other),
        }
    }
}

/// How many GPUs the driver shows.
pub(crate) fn device_count() -> Result<usize> {
    // SAFETY: loading the driver's library runs only its own initialisers.
    if let Err(error) = unsafe { libloading::Library::new(LIBRARY) } {
        return Err(Error::NoCudaDriver { library: LIBRARY, reason: error.to_string() });
    }
    match result::init() {
        Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => return Ok(0),
        other => other.map_err(|error| driver_error("cuInit", error))?,
    }
    let count = result::device::get_count().map_err(|error| driver_error("cuDeviceGetCount", error))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Turns a driver's status into a result that names the call.
pub fn check(call: &'static str, status: CUresult) -> Result<()> {
    status.result().map_err(|error| driver_error(call, error))
}

/// Describes a failed driver call.
pub fn driver_error(call: &'static str, error: DriverError) -> Error {
    let describe = |text: Result<&std::ffi::CStr, DriverError>| {
        text.map_or_else(|_| "unknown error".into(), |text| text.to_string_lossy().into_owned())
    };
    Error::Driver { call, name: describe(error.error_name()), description: describe(error.error_string()) }
}
