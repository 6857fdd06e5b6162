//! Shared code of the tests with real mounts: an in-memory file system, and its mount in a
//! temporary directory for the length of one test.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses a part")]

pub mod harness;
pub mod locks;
pub mod memory;
mod operations;
pub mod tree;
