//! Opening libraries that a C compiler makes here: of the right version, of a wrong one, of another kind, and none at all.
#![cfg(unix)]

#[path = "support/compile.rs"]
mod compile;

use compile::compile;
use flux_dylib::{Description, Environment, LoadError, Opened, Refusal, Search, Version};
use std::path::PathBuf;

static EXAMPLE: Description = Description {
    name: "Example",
    variable: "EXAMPLE_LIBRARY",
    loader_names: &["libflux-example-nowhere.so.2"],
    in_site_packages: "example/lib/libexample.so.2",
    system_paths: &[],
    wheel: "example-wheel",
    version_symbol: "example_version",
    oldest: Version::new(2, 3, 0),
};

type Number = unsafe extern "C" fn() -> u32;

fn open(search: &Search) -> Result<Opened<Number>, LoadError> {
    let version = |symbols: &flux_dylib::Symbols<'_>| {
        // SAFETY: the sources below define it so.
        let version = unsafe { symbols.get::<Number>("example_version")?() };
        Ok(Version::new(version / 100, version % 100, 0))
    };
    // SAFETY: likewise.
    EXAMPLE.open(search, version, |symbols| unsafe { symbols.get::<Number>("example_answer") })
}

#[test]
fn the_first_that_will_do_is_taken_and_called() {
    let folder = tempfile::tempdir().unwrap();
    let old = compile(folder.path(), "old", "unsigned example_version(void) { return 202; }");
    let good = "unsigned example_version(void) { return 207; } unsigned example_answer(void) { return 42; }";
    let good = compile(folder.path(), "good", good);
    let opened = open(&Search::of([folder.path().join("absent.so"), old, good.clone()])).unwrap();
    assert_eq!((opened.version, opened.path), (Version::new(2, 7, 0), good));
    // SAFETY: the source above defines it so.
    assert_eq!(unsafe { (opened.functions)() }, 42);
}

#[test]
fn each_refusal_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.so");
    std::fs::write(&text, "not a library\n".repeat(100)).unwrap();
    let paths = [
        folder.path().join("absent.so"),
        text,
        compile(folder.path(), "old", "unsigned example_version(void) { return 202; }"),
        compile(folder.path(), "next", "unsigned example_version(void) { return 300; }"),
        compile(folder.path(), "other", "int other;"),
        compile(folder.path(), "poor", "unsigned example_version(void) { return 203; }"),
        compile(
            folder.path(),
            "broken",
            "unsigned nobody(void); unsigned example_version(void) { return nobody(); }",
        ),
    ];
    let error = open(&Search::of(paths.clone())).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, LoadError::NotFound { .. }));
    let expected = [
        "No such file or directory",
        "invalid ELF header",
        "has version 2.2.0; wanted is 2.3.0 or a newer 2.x",
        "has version 3.0.0; wanted is 2.3.0 or a newer 2.x",
        "is not Example: it has no function example_version",
        "Example 2.3.0 has no example_answer",
        "undefined symbol: nobody",
    ];
    for ((attempt, path), expected) in error.tried().iter().zip(&paths).zip(expected) {
        assert_eq!(attempt.path, *path);
        // macOS words the loader's reasons in its own way.
        let loader = matches!(attempt.refusal, Refusal::Loader(_));
        assert!(
            attempt.refusal.to_string().contains(expected) || (loader && !cfg!(target_os = "linux")),
            "{}",
            attempt.refusal
        );
        assert!(message.contains(&format!("\n  {}: ", path.display())), "{message}");
    }
    assert_eq!(error.tried().len(), paths.len());
    assert!(
        message.contains("pip install example-wheel") && message.contains("EXAMPLE_LIBRARY"),
        "{message}"
    );
}

#[test]
fn a_bad_override_is_not_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("wrong.so");
    let environment = Environment { named_library: Some(wrong.clone().into()), ..Environment::default() };
    let error = open(&Search::new(&EXAMPLE, &environment)).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, LoadError::BadOverride { .. }));
    assert_eq!(error.tried().len(), 1);
    assert!(
        message.contains("EXAMPLE_LIBRARY names") && message.contains(&*wrong.to_string_lossy()),
        "{message}"
    );
}

#[test]
fn nothing_to_try_is_an_error_too() {
    let error = open(&Search::of(Vec::<PathBuf>::new())).unwrap_err();
    assert!(error.to_string().contains("the list of places is empty"), "{error}");
}
