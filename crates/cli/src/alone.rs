//! Tests that need a process of their own, because they change it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::process::Command;

/// Runs a test that is marked as a part of another, in a process of its own.
pub(crate) fn run(test: &str) {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args(["--ignored", "--exact", test]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// Does something while this process has no free descriptors.
pub(crate) fn without_descriptors<T>(work: impl FnOnce() -> T) -> T {
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
    let result = work();
    setrlimit(Resource::Nofile, before).unwrap();
    result
}
