//! The counts of a mount, which an extended attribute of its root shows as JSON.

use client::ClientCounts;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The number of requests that the kernel sent, by operation. The kernel's caches answered the
/// rest.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct RequestCounts(RefCell<BTreeMap<&'static str, u64>>);

impl RequestCounts {
    /// Counts a request.
    pub(crate) fn add(&self, request: &fuse::Request) {
        *self.0.borrow_mut().entry(request.operation.opcode_name()).or_default() += 1;
    }
}

/// All counts of a mount.
#[derive(Debug, Serialize)]
pub(crate) struct MountCounts<'a> {
    #[serde(flatten)]
    pub(crate) client: ClientCounts,
    /// Requests of the kernel, by operation.
    pub(crate) requests: &'a RequestCounts,
}
