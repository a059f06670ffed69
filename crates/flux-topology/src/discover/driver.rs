//! Asks the CUDA driver, through `libcuda.so.1` opened at run time and plain function pointers.
//!
//! A missing library or symbol is an error that says so, and nothing here creates a context.

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uint};

use libloading::Library;

use super::{DriverDevice, DriverFacts, DriverPair};
use crate::{ComputeCapability, ProbeFailure};

const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

// The numbers of cuda.h: CUdevice_attribute, CUdevice_P2PAttribute, CUresult.
const SM_COUNT: c_int = 16;
const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;
const HOST_NUMA_ID: c_int = 134;
const P2P_PERFORMANCE_RANK: c_int = 1;
const P2P_ACCESS_SUPPORTED: c_int = 2;
const P2P_NATIVE_ATOMICS: c_int = 3;
const SUCCESS: c_int = 0;
const NO_DEVICE: c_int = 100;
const SYSTEM_NOT_READY: c_int = 802;
const SYSTEM_DRIVER_MISMATCH: c_int = 803;

/// The driver's functions that are needed here, by their C names without `cu`.
struct Cuda {
    init: unsafe extern "C" fn(flags: c_uint) -> c_int,
    driver_get_version: unsafe extern "C" fn(version: *mut c_int) -> c_int,
    device_get_count: unsafe extern "C" fn(count: *mut c_int) -> c_int,
    device_get: unsafe extern "C" fn(device: *mut c_int, ordinal: c_int) -> c_int,
    device_get_name: unsafe extern "C" fn(name: *mut c_char, bytes: c_int, device: c_int) -> c_int,
    device_get_attribute: unsafe extern "C" fn(value: *mut c_int, attribute: c_int, device: c_int) -> c_int,
    device_get_pci_bus_id: unsafe extern "C" fn(text: *mut c_char, bytes: c_int, device: c_int) -> c_int,
    device_total_mem: unsafe extern "C" fn(bytes: *mut usize, device: c_int) -> c_int,
    device_can_access_peer: unsafe extern "C" fn(can: *mut c_int, from: c_int, to: c_int) -> c_int,
    device_get_p2p_attribute:
        unsafe extern "C" fn(value: *mut c_int, attribute: c_int, from: c_int, to: c_int) -> c_int,
}

/// Opens the CUDA driver, initialises it and asks.
pub(crate) fn probe() -> Result<DriverFacts, ProbeFailure> {
    probe_in(&LIBRARIES)
}

fn probe_in(libraries: &[&str]) -> Result<DriverFacts, ProbeFailure> {
    let failure = |tried: &[&str], reason| ProbeFailure {
        what: "CUDA driver",
        tried: tried.iter().map(|&name| name.to_owned()).collect(),
        reason,
    };
    let cuda = open(libraries).map_err(|reason| failure(libraries, reason))?;
    read(&cuda).map_err(|reason| failure(&[], reason))
}

fn open(libraries: &[&str]) -> Result<Cuda, String> {
    let mut reasons = Vec::new();
    for &name in libraries {
        // SAFETY: opening runs the library's initialisers. The names are the CUDA driver's own, which is
        // made to be loaded this way.
        match unsafe { Library::new(name) } {
            Ok(library) => {
                let library: &'static Library = Box::leak(Box::new(library));
                return load(library, name);
            }
            // The loader's own words are in the source; the error itself only says that it failed.
            Err(error) => reasons.push(error.source().map_or(error.to_string(), ToString::to_string)),
        }
    }
    Err(reasons.join("; "))
}

/// The library stays open for good: the driver does not survive being closed once it is initialised, and
/// so the function pointers stay valid.
fn load(library: &'static Library, name: &str) -> Result<Cuda, String> {
    // SAFETY: the field that each symbol goes into has the type that cuda.h declares it with. CUdevice and
    // the enums are C ints there, size_t is usize.
    unsafe {
        Ok(Cuda {
            init: symbol(library, name, "cuInit")?,
            driver_get_version: symbol(library, name, "cuDriverGetVersion")?,
            device_get_count: symbol(library, name, "cuDeviceGetCount")?,
            device_get: symbol(library, name, "cuDeviceGet")?,
            device_get_name: symbol(library, name, "cuDeviceGetName")?,
            device_get_attribute: symbol(library, name, "cuDeviceGetAttribute")?,
            device_get_pci_bus_id: symbol(library, name, "cuDeviceGetPCIBusId")?,
            device_total_mem: symbol(library, name, "cuDeviceTotalMem_v2")?,
            device_can_access_peer: symbol(library, name, "cuDeviceCanAccessPeer")?,
            device_get_p2p_attribute: symbol(library, name, "cuDeviceGetP2PAttribute")?,
        })
    }
}

/// # Safety
/// `T` must be the function pointer type of that symbol.
unsafe fn symbol<T: Copy>(library: &'static Library, name: &str, symbol: &'static str) -> Result<T, String> {
    // SAFETY: the caller answers for the type.
    let found = unsafe { library.get::<T>(symbol) };
    found.map(|pointer| *pointer).map_err(|_| format!("{name} has no {symbol}; update the NVIDIA driver"))
}

fn read(cuda: &Cuda) -> Result<DriverFacts, String> {
    // SAFETY: flags must be 0, and any thread may call it any number of times.
    match unsafe { (cuda.init)(0) } {
        SUCCESS => {}
        NO_DEVICE => return Ok(DriverFacts { version: version(cuda), ..DriverFacts::default() }),
        code => return Err(explain("cuInit", code)),
    }
    // SAFETY: the function writes one int.
    let count = int(|value| unsafe { (cuda.device_get_count)(value) })
        .map_err(|code| explain("cuDeviceGetCount", code))?;

    let mut facts = DriverFacts { version: version(cuda), ..DriverFacts::default() };
    let mut handles = Vec::new();
    for ordinal in 0..count {
        // SAFETY: the function writes one int; it checks the ordinal.
        let handle = int(|value| unsafe { (cuda.device_get)(value, ordinal) });
        // A device that fails keeps its place, or all after it would get another's ordinal.
        facts.devices.push(handle.map_or_else(|_| DriverDevice::default(), |handle| device(cuda, handle)));
        if let Err(code) = handle {
            facts.notes.push(format!("GPU {ordinal}: {}", explain("cuDeviceGet", code)));
        }
        handles.push(handle.ok());
    }
    facts.pairs = pairs(cuda, &handles);
    Ok(facts)
}

fn version(cuda: &Cuda) -> Option<u32> {
    // SAFETY: the function writes one int.
    let version = int(|value| unsafe { (cuda.driver_get_version)(value) }).ok()?;
    u32::try_from(version).ok().filter(|&version| version > 0)
}

fn device(cuda: &Cuda, handle: c_int) -> DriverDevice {
    let attribute = |attribute| {
        // SAFETY: the function writes one int; it checks the attribute and the handle.
        let value = int(|value| unsafe { (cuda.device_get_attribute)(value, attribute, handle) });
        // A NUMA node that is not known is -1.
        u32::try_from(value.ok()?).ok()
    };
    let mut memory_bytes = 0usize;
    // SAFETY: the function writes one size_t.
    let memory_known = unsafe { (cuda.device_total_mem)(&raw mut memory_bytes, handle) } == SUCCESS;
    let capability = attribute(COMPUTE_CAPABILITY_MAJOR).zip(attribute(COMPUTE_CAPABILITY_MINOR));
    DriverDevice {
        // SAFETY: the function writes at most `bytes` bytes, and ends them with a zero.
        name: text(|text, bytes| unsafe { (cuda.device_get_name)(text, bytes, handle) }),
        // SAFETY: as above.
        pci: text(|text, bytes| unsafe { (cuda.device_get_pci_bus_id)(text, bytes, handle) })
            .and_then(|text| text.parse().ok()),
        compute_capability: capability.map(|(major, minor)| ComputeCapability { major, minor }),
        sm_count: attribute(SM_COUNT),
        memory_bytes: memory_known.then_some(memory_bytes as u64),
        numa_node: attribute(HOST_NUMA_ID),
    }
}

fn pairs(cuda: &Cuda, handles: &[Option<c_int>]) -> BTreeMap<(usize, usize), DriverPair> {
    let known = || handles.iter().enumerate().filter_map(|(ordinal, handle)| Some((ordinal, (*handle)?)));
    let mut pairs = BTreeMap::new();
    for (from, from_handle) in known() {
        for (to, to_handle) in known().filter(|&(to, _)| to != from) {
            let attribute = |attribute| {
                // SAFETY: the function writes one int; it checks the attribute and the handles.
                let call = |value| unsafe {
                    (cuda.device_get_p2p_attribute)(value, attribute, from_handle, to_handle)
                };
                int(call).ok()
            };
            // SAFETY: the function writes one int; it checks the handles.
            let can = int(|value| unsafe { (cuda.device_can_access_peer)(value, from_handle, to_handle) });
            let pair = DriverPair {
                can_access: can.ok().map(|can| can != 0),
                access_supported: attribute(P2P_ACCESS_SUPPORTED).map(|supported| supported != 0),
                native_atomics: attribute(P2P_NATIVE_ATOMICS).map(|supported| supported != 0),
                performance_rank: attribute(P2P_PERFORMANCE_RANK),
            };
            pairs.insert((from, to), pair);
        }
    }
    pairs
}

/// The int that a call writes, or the code that it returns.
fn int(call: impl FnOnce(*mut c_int) -> c_int) -> Result<c_int, c_int> {
    let mut value = 0;
    match call(&raw mut value) {
        SUCCESS => Ok(value),
        code => Err(code),
    }
}

/// The text that a call writes into a buffer of that many bytes.
fn text(call: impl FnOnce(*mut c_char, c_int) -> c_int) -> Option<String> {
    const BYTES: u8 = 255;
    // One byte more than the call is told of, so that there is a zero at the end whatever it writes.
    let mut buffer = [0u8; BYTES as usize + 1];
    if call(buffer.as_mut_ptr().cast(), c_int::from(BYTES)) != SUCCESS {
        return None;
    }
    let text = CStr::from_bytes_until_nul(&buffer).ok()?;
    Some(text.to_string_lossy().into_owned())
}

fn explain(call: &str, code: c_int) -> String {
    let hint = match code {
        SYSTEM_NOT_READY => ": the system is not ready; on machines with NVSwitch start the fabric manager",
        SYSTEM_DRIVER_MISMATCH => ": libcuda and the kernel driver are of different versions; reboot",
        _ => "",
    };
    format!("{call} failed with CUDA error {code}{hint}")
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
