//! With NVSHMEM, wherever it is found; no GPU is needed.
#![allow(clippy::print_stdout)] // which library was tested

use nvshmem_sys::{DeviceCode, Library, NVSHMEM_VENDOR_MAJOR_VERSION, nvshmemx_init_status_t};

#[test]
fn it_tells_its_version_and_that_it_is_not_initialised() {
    let nvshmem = Library::load().unwrap();
    assert!(std::ptr::eq(nvshmem, Library::load().unwrap()));
    println!("NVSHMEM {} from {}", nvshmem.version(), nvshmem.path().display());
    assert_eq!(nvshmem.version().major, NVSHMEM_VENDOR_MAJOR_VERSION);
    assert!(nvshmem.path().is_file(), "{}", nvshmem.path().display());
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are places to write to.
    unsafe { (nvshmem.nvshmem_info_get_version)(&raw mut major, &raw mut minor) };
    assert_eq!(major, 1, "OpenSHMEM's version");
    // SAFETY: only reads a variable of the library's.
    let status = unsafe { (nvshmem.nvshmemx_init_status)() };
    assert_eq!(status.cast_unsigned(), nvshmemx_init_status_t::NVSHMEM_STATUS_NOT_INITIALIZED.0);
}

#[test]
fn the_device_code_lies_beside_it() {
    let nvshmem = Library::load().unwrap();
    for form in [DeviceCode::Archive, DeviceCode::Bitcode { sm: 90 }] {
        let path = nvshmem.device_code(form).unwrap();
        assert_eq!(path.parent(), nvshmem.path().parent());
    }
}
