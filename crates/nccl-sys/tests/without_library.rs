//! What one is told where there is no NCCL, or a wrong one. The wrong ones are made here, by the C compiler.
#![cfg(unix)]

#[path = "../../flux-dylib/tests/support/child.rs"]
mod child;
#[path = "../../flux-dylib/tests/support/compile.rs"]
mod compile;

use child::in_a_child;
use compile::compile;
use nccl_sys::{Library, LoadError, NCCL, Search};

#[test]
fn every_path_tried_is_listed_and_what_to_do() {
    let error = Library::open(&Search::of(["/nonexistent/a.so", "libflux-nccl-nowhere.so.2"])).unwrap_err();
    assert!(matches!(error, LoadError::NotFound { .. }));
    let text = error.to_string();
    for part in [
        "/nonexistent/a.so: cannot open shared object file",
        "libflux-nccl-nowhere.so.2: cannot open",
        "pip install nvidia-nccl-cu13",
        NCCL.variable,
    ] {
        assert!(text.contains(part) || !cfg!(target_os = "linux"), "{part:?} is not in\n{text}");
    }
    assert_eq!(error.tried().len(), 2);
}

#[test]
fn other_versions_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let of = |code: u32| {
        let source = format!("int ncclGetVersion(int *version) {{ *version = {code}; return 0; }}");
        compile(folder.path(), &format!("nccl-{code}"), &source)
    };
    for (code, found) in [(1, "0.0.1"), (2_708, "2.7.8"), (21_805, "2.18.5"), (30_000, "3.0.0")] {
        let error = Library::open(&Search::of([of(code)])).unwrap_err().to_string();
        let expected = format!("has version {found}; wanted is 2.19.0 or a newer 2.x");
        assert!(error.contains(&expected), "{error}");
    }
    // Of the right version, but without what that version has.
    let error = Library::open(&Search::of([of(22_000)])).unwrap_err().to_string();
    assert!(error.contains("NCCL 2.20.0 has no nccl"), "{error}");
}

#[test]
fn a_library_that_fails_to_say_its_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let failing = compile(folder.path(), "failing", "int ncclGetVersion(int *version) { return 3; }");
    let error = Library::open(&Search::of([failing])).unwrap_err().to_string();
    assert!(error.contains("does not tell its version: ncclGetVersion returned 3"), "{error}");
    let other = compile(folder.path(), "other", "int other(void) { return 0; }");
    let error = Library::open(&Search::of([other])).unwrap_err().to_string();
    assert!(error.contains("is not NCCL: it has no function ncclGetVersion"), "{error}");
}

/// A failed load is an error and does not end in some other library; `load` in a process of its own, as it remembers.
#[test]
fn a_bad_override_is_an_error() {
    const NOWHERE: &str = "/nonexistent/libnccl.so.2";
    in_a_child("a_bad_override_is_an_error", NCCL.variable, NOWHERE, || {
        let [first, second] = [Library::load().unwrap_err(), Library::load().unwrap_err()];
        assert_eq!(first.to_string(), second.to_string());
        assert_eq!(first.tried().len(), 1);
        assert!(first.to_string().contains("FLUX_NCCL_LIBRARY names"), "{first}");
        assert!(first.to_string().contains(NOWHERE), "{first}");
    });
}
