//! What a mount counts, and shows as JSON in an extended attribute of its root.

use client::ClientCounts;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// How often the kernel has asked for each operation: the rest its caches answered.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct RequestCounts(RefCell<BTreeMap<&'static str, u64>>);

impl RequestCounts {
    /// Counts a request.
    pub(crate) fn add(&self, request: &fuse::Request) {
        *self.0.borrow_mut().entry(request.operation.opcode_name()).or_default() += 1;
    }
}

/// Everything that a mount counts.
#[derive(Debug, Serialize)]
pub(crate) struct MountCounts<'a> {
    #[serde(flatten)]
    pub(crate) client: ClientCounts,
    /// Requests of the kernel, by operation.
    pub(crate) requests: &'a RequestCounts,
}
