//! With NCCL, wherever it is found; no GPU is needed.
#![allow(clippy::print_stdout)] // which library was tested

use nccl_sys::{Library, NCCL_MAJOR, ncclResult_t, ncclUniqueId};

#[test]
fn it_tells_its_version_and_makes_unique_ids() {
    let nccl = Library::load().unwrap();
    assert!(std::ptr::eq(nccl, Library::load().unwrap()));
    let mut code = 0;
    // SAFETY: `code` is a place to write to.
    nccl.check(unsafe { (nccl.ncclGetVersion)(&raw mut code) }).unwrap();
    println!("NCCL {} ({code}) from {}", nccl.version(), nccl.path().display());
    assert_eq!(nccl.version().major, NCCL_MAJOR);
    assert!(nccl.path().is_file(), "{}", nccl.path().display());
    let mut ids = [ncclUniqueId { internal: [0; 128] }; 2];
    for id in &mut ids {
        // SAFETY: `id` is a place to write to.
        nccl.check(unsafe { (nccl.ncclGetUniqueId)(id) }).unwrap();
    }
    assert_ne!(ids[0].internal, ids[1].internal);
}

#[test]
fn errors_speak_with_its_words() {
    let nccl = Library::load().unwrap();
    // SAFETY: a null pointer is refused before it is looked at.
    let result = unsafe { (nccl.ncclGetUniqueId)(std::ptr::null_mut()) };
    let error = nccl.check(result).unwrap_err();
    assert_eq!(error.code, ncclResult_t::ncclInvalidArgument);
    assert!(error.text.contains("invalid argument") && error.to_string().contains("(code 4)"), "{error}");
    assert!(nccl.check(ncclResult_t::ncclInProgress).unwrap_err().is_in_progress());
}
