//! A driver made of Rust functions: two devices of which only the first can access the other.

use super::*;
use crate::PciAddress;

unsafe extern "C" fn init(_: c_uint) -> c_int {
    SUCCESS
}

unsafe extern "C" fn init_without_device(_: c_uint) -> c_int {
    NO_DEVICE
}

unsafe extern "C" fn init_not_ready(_: c_uint) -> c_int {
    SYSTEM_NOT_READY
}

unsafe extern "C" fn driver_get_version(version: *mut c_int) -> c_int {
    // SAFETY: the caller passes a valid pointer, here and below.
    unsafe { version.write(13000) };
    SUCCESS
}

unsafe extern "C" fn device_get_count(count: *mut c_int) -> c_int {
    // SAFETY: as above.
    unsafe { count.write(2) };
    SUCCESS
}

unsafe extern "C" fn device_get(device: *mut c_int, ordinal: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { device.write(ordinal + 40) };
    SUCCESS
}

unsafe extern "C" fn device_get_fails_for_the_first(device: *mut c_int, ordinal: c_int) -> c_int {
    // SAFETY: as above.
    if ordinal == 0 { 999 } else { unsafe { device_get(device, ordinal) } }
}

fn write_text(target: *mut c_char, bytes: c_int, text: &CStr) -> c_int {
    let text = text.to_bytes_with_nul();
    assert!(text.len() <= usize::try_from(bytes).unwrap());
    // SAFETY: the caller says that there is room for `bytes` bytes.
    unsafe { target.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    SUCCESS
}

unsafe extern "C" fn device_get_name(name: *mut c_char, bytes: c_int, _: c_int) -> c_int {
    write_text(name, bytes, c"NVIDIA H200")
}

unsafe extern "C" fn device_get_pci_bus_id(text: *mut c_char, bytes: c_int, device: c_int) -> c_int {
    write_text(text, bytes, if device == 40 { c"0000:05:00.0" } else { c"0000:06:00.0" })
}

unsafe extern "C" fn device_get_attribute(value: *mut c_int, attribute: c_int, _: c_int) -> c_int {
    let answer = match attribute {
        SM_COUNT => 132,
        COMPUTE_CAPABILITY_MAJOR => 9,
        COMPUTE_CAPABILITY_MINOR => 0,
        HOST_NUMA_ID => -1,
        _ => return 1,
    };
    // SAFETY: as above.
    unsafe { value.write(answer) };
    SUCCESS
}

unsafe extern "C" fn device_total_mem(bytes: *mut usize, _: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { bytes.write(150_000_000_000) };
    SUCCESS
}

unsafe extern "C" fn device_can_access_peer(can: *mut c_int, from: c_int, _: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { can.write(c_int::from(from == 40)) };
    SUCCESS
}

unsafe extern "C" fn device_get_p2p_attribute(v: *mut c_int, attribute: c_int, _: c_int, _: c_int) -> c_int {
    if attribute == P2P_NATIVE_ATOMICS {
        return 1;
    }
    // SAFETY: as above.
    unsafe { v.write(c_int::from(attribute == P2P_ACCESS_SUPPORTED)) };
    SUCCESS
}

const FAKE: Cuda = Cuda {
    init,
    driver_get_version,
    device_get_count,
    device_get,
    device_get_name,
    device_get_attribute,
    device_get_pci_bus_id,
    device_total_mem,
    device_can_access_peer,
    device_get_p2p_attribute,
};

#[test]
fn reads_devices_and_pairs() {
    let facts = read(&FAKE).unwrap();
    assert_eq!(facts.version, Some(13000));
    let want = DriverDevice {
        name: Some("NVIDIA H200".to_owned()),
        pci: Some(PciAddress { domain: 0, bus: 6, device: 0, function: 0 }),
        compute_capability: Some(ComputeCapability { major: 9, minor: 0 }),
        sm_count: Some(132),
        memory_bytes: Some(150_000_000_000),
        numa_node: None,
    };
    assert_eq!(facts.devices.get(1), Some(&want));
    let pair = DriverPair {
        can_access: Some(true),
        access_supported: Some(true),
        native_atomics: None,
        performance_rank: Some(0),
    };
    let back = DriverPair { can_access: Some(false), ..pair.clone() };
    assert_eq!(facts.pairs, BTreeMap::from([((0, 1), pair), ((1, 0), back)]));
}

#[test]
fn no_device_is_no_failure() {
    let facts = read(&Cuda { init: init_without_device, ..FAKE }).unwrap();
    assert_eq!((facts.version, facts.devices.len()), (Some(13000), 0));
}

#[test]
fn a_failing_init_says_what_to_do() {
    let reason = read(&Cuda { init: init_not_ready, ..FAKE }).unwrap_err();
    assert!(reason.contains("802") && reason.contains("fabric manager"), "{reason}");
}

#[test]
fn a_failing_device_keeps_its_place() {
    let facts = read(&Cuda { device_get: device_get_fails_for_the_first, ..FAKE }).unwrap();
    assert_eq!(facts.devices.first(), Some(&DriverDevice::default()));
    assert_eq!(facts.devices.get(1).and_then(|device| device.sm_count), Some(132));
    assert!(facts.pairs.is_empty());
    assert_eq!(facts.notes, ["GPU 0: cuDeviceGet failed with CUDA error 999"]);
}

#[test]
fn a_missing_library_lists_what_was_tried() {
    let failure = probe_in(&["libflux-no-such-driver.so.1", "libflux-no-such-driver.so"]).unwrap_err();
    assert_eq!(failure.tried.len(), 2);
    assert!(failure.reason.contains("libflux-no-such-driver.so"), "{}", failure.reason);
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn a_missing_symbol_is_an_error() {
    let failure = probe_in(&["libc.so.6"]).unwrap_err();
    assert_eq!(failure.reason, "libc.so.6 has no cuInit; update the NVIDIA driver");
}
