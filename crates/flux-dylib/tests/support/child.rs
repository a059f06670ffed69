//! Checks of what a process does once, or by its environment: in a process of their own. Also for the crates that open a library:
//! they include this file by its path.

use std::process::Command;

/// Runs `check` in a new process, where `variable` is set to `value`. That process runs the test `test` alone, which is the one that
/// calls this.
pub(crate) fn in_a_child(test: &str, variable: &str, value: &str, check: impl FnOnce()) {
    const CHILD: &str = "FLUX_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return check();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", test]).env(CHILD, "1").env(variable, value).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "the child ran another test");
}
