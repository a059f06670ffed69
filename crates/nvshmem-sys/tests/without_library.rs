//! What one is told where there is no NVSHMEM, or a wrong one. The wrong ones are made here, by the C compiler.
#![cfg(unix)]

#[path = "../../flux-dylib/tests/support/child.rs"]
mod child;
#[path = "../../flux-dylib/tests/support/compile.rs"]
mod compile;

use child::in_a_child;
use compile::compile;
use nvshmem_sys::{Library, LoadError, NVSHMEM, Search};

#[test]
fn every_path_tried_is_listed_and_what_to_do() {
    let error =
        Library::open(&Search::of(["/nonexistent/a.so", "libflux-nvshmem-nowhere.so.3"])).unwrap_err();
    assert!(matches!(error, LoadError::NotFound { .. }));
    let text = error.to_string();
    for part in [
        "/nonexistent/a.so: cannot open shared object file",
        "libflux-nvshmem-nowhere.so.3: cannot open",
        "pip install nvidia-nvshmem-cu13",
        NVSHMEM.variable,
    ] {
        assert!(text.contains(part) || !cfg!(target_os = "linux"), "{part:?} is not in\n{text}");
    }
    assert_eq!(error.tried().len(), 2);
}

#[test]
fn other_versions_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let of = |version: [u32; 3]| {
        let [major, minor, patch] = version;
        let source = format!(
            "void nvshmemx_vendor_get_version_info(int *major, int *minor, int *patch) \
             {{ *major = {major}; *minor = {minor}; *patch = {patch}; }}"
        );
        compile(folder.path(), &format!("nvshmem-{major}.{minor}.{patch}"), &source)
    };
    for version in [[1, 0, 0], [2, 11, 0], [3, 1, 7], [4, 0, 0]] {
        let error = Library::open(&Search::of([of(version)])).unwrap_err().to_string();
        let found = version.map(|number| number.to_string()).join(".");
        let expected = format!("has version {found}; wanted is 3.2.0 or a newer 3.x");
        assert!(error.contains(&expected), "{error}");
    }
    // Of the right version, but without what that version has.
    let error = Library::open(&Search::of([of([3, 4, 5])])).unwrap_err().to_string();
    assert!(error.contains("NVSHMEM 3.4.5 has no nvshmem"), "{error}");
}

#[test]
fn a_library_that_fails_to_say_its_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let silent = "void nvshmemx_vendor_get_version_info(int *major, int *minor, int *patch) {}";
    let silent = compile(folder.path(), "silent", silent);
    let error = Library::open(&Search::of([silent])).unwrap_err().to_string();
    assert!(error.contains("does not tell its version"), "{error}");
    let other = compile(folder.path(), "other", "int other(void) { return 0; }");
    let error = Library::open(&Search::of([other])).unwrap_err().to_string();
    assert!(error.contains("is not NVSHMEM: it has no function nvshmemx_vendor_get_version_info"), "{error}");
}

/// A failed load is an error and does not end in some other library; `load` in a process of its own, as it remembers.
#[test]
fn a_bad_override_is_an_error() {
    const NOWHERE: &str = "/nonexistent/libnvshmem_host.so.3";
    in_a_child("a_bad_override_is_an_error", NVSHMEM.variable, NOWHERE, || {
        let [first, second] = [Library::load().unwrap_err(), Library::load().unwrap_err()];
        assert_eq!(first.to_string(), second.to_string());
        assert_eq!(first.tried().len(), 1);
        assert!(first.to_string().contains("FLUX_NVSHMEM_LIBRARY names"), "{first}");
        assert!(first.to_string().contains(NOWHERE), "{first}");
    });
}
