//! Notifications of the kernel: its cached data is not valid any more.
//!
//! A notification takes kernel locks that an operation in progress may hold while it waits for an
//! answer of this process. So the thread that serves the mount must never send one (it could then
//! not answer), nor may anything that the answer to a request waits for, except where a function
//! says so. [`Notifier`] is `Send` and blocks: use it on a thread of its own.

use std::io::{self, IoSlice};

use reactor::Handle;
use zerocopy::IntoBytes;

use crate::abi::{
    EXPIRE_ONLY, NotifyDeleteOut, NotifyInvalEntryOut, NotifyInvalInodeOut, NotifyPollWakeupOut,
    NotifyStoreOut, OutHeader, notify,
};
use crate::error::FuseError;
use crate::types::{Name, NodeId, PollHandle};

/// Sends notifications; clones use the same connection. Each call blocks until the kernel is done,
/// which may take as long as operations in progress. The module's head says which threads may call.
#[derive(Debug, Clone)]
pub struct Notifier {
    device: Handle,
}

impl Notifier {
    pub(crate) fn new(device: Handle) -> Self {
        Self { device }
    }

    /// Drops an inode's cached attributes, and its pages from `offset` on for `length` bytes (0: to
    /// the end; negative offset: attributes only).
    pub fn invalidate_inode(
        &self,
        node: NodeId,
        offset: i64,
        length: i64,
    ) -> Result<(), FuseError> {
        let out = NotifyInvalInodeOut { ino: node.0, off: offset, len: length };
        self.send("inval_inode", notify::INVAL_INODE, &[out.as_bytes()]).map(drop)
    }

    /// Drops an inode's cached attributes. Waits for nothing, so the thread that serves the mount
    /// may call it.
    pub fn invalidate_attributes(&self, node: NodeId) -> Result<(), FuseError> {
        self.drop_attributes(node).map(drop)
    }

    /// As [`Notifier::invalidate_attributes`]; returns whether the kernel knows the inode. The
    /// kernel does not know yet an inode that it will learn from an answer on its way.
    pub fn drop_attributes(&self, node: NodeId) -> Result<bool, FuseError> {
        let out = NotifyInvalInodeOut { ino: node.0, off: -1, len: 0 };
        self.send("inval_inode", notify::INVAL_INODE, &[out.as_bytes()])
    }

    /// Makes the kernel look up all cached names of the mount again at their next use, also those
    /// of answers on their way (kernels from
    /// [`Negotiated::EPOCH_MINOR`](crate::Negotiated::EPOCH_MINOR) on). Waits for nothing. A mount
    /// below such a name is detached when the name is walked next.
    pub fn increase_epoch(&self) -> Result<(), FuseError> {
        self.send("inc_epoch", notify::INC_EPOCH, &[]).map(drop)
    }

    /// Drops a cached name, and what is cached below it.
    pub fn invalidate_entry(&self, parent: NodeId, name: &Name) -> Result<(), FuseError> {
        self.entry("inval_entry", parent, name, 0)
    }

    /// Makes the kernel look up a cached name again at its next use (`HAS_EXPIRE_ONLY`).
    pub fn expire_entry(&self, parent: NodeId, name: &Name) -> Result<(), FuseError> {
        self.entry("expire_entry", parent, name, EXPIRE_ONLY)
    }

    fn entry(
        &self,
        kind: &'static str,
        parent: NodeId,
        name: &Name,
        flags: u32,
    ) -> Result<(), FuseError> {
        let namelen = name.as_bytes().len() as u32;
        let out = NotifyInvalEntryOut { parent: parent.0, namelen, flags };
        self.send(kind, notify::INVAL_ENTRY, &[out.as_bytes(), name.as_bytes(), &[0]]).map(drop)
    }

    /// Reports that a name of this inode was removed, so that watchers (inotify) learn of it.
    pub fn delete(&self, parent: NodeId, child: NodeId, name: &Name) -> Result<(), FuseError> {
        let namelen = name.as_bytes().len() as u32;
        let out = NotifyDeleteOut { parent: parent.0, child: child.0, namelen, padding: 0 };
        self.send("delete", notify::DELETE, &[out.as_bytes(), name.as_bytes(), &[0]]).map(drop)
    }

    /// Puts bytes into an inode's page cache. Returns whether the kernel knows the inode. Waits for
    /// locked pages of that range, such as those of READs under way. The thread that serves the
    /// mount may call it for files that are not open.
    pub fn store(&self, node: NodeId, offset: u64, bytes: &[u8]) -> Result<bool, FuseError> {
        let size = u32::try_from(bytes.len()).map_err(|_| FuseError::Limit {
            name: "bytes to store",
            value: bytes.len() as u64,
            range: "below 4 GiB",
        })?;
        let out = NotifyStoreOut { nodeid: node.0, offset, size, padding: 0 };
        self.send("store", notify::STORE, &[out.as_bytes(), bytes])
    }

    /// Makes the kernel send again the requests that a process has received and will not answer.
    /// Each such request has [`Request::is_resent`](crate::Request::is_resent) set. Waits for
    /// nothing.
    pub fn resend(&self) -> Result<(), FuseError> {
        self.send("resend", notify::RESEND, &[]).map(drop)
    }

    /// Wakes the callers that poll.
    pub fn wake_poll(&self, handle: PollHandle) -> Result<(), FuseError> {
        let out = NotifyPollWakeupOut { kh: handle.0 };
        self.send("poll", notify::POLL, &[out.as_bytes()]).map(drop)
    }

    /// Sends a notification. Returns whether the kernel knows its subject.
    fn send(&self, kind: &'static str, code: i32, parts: &[&[u8]]) -> Result<bool, FuseError> {
        let body: usize = parts.iter().map(|part| part.len()).sum();
        let len = (size_of::<OutHeader>() + body) as u32;
        let header = OutHeader { len, error: code, unique: 0 };
        let slices: Vec<IoSlice<'_>> = std::iter::once(header.as_bytes())
            .chain(parts.iter().copied())
            .map(IoSlice::new)
            .collect();
        let notify = |source: io::Error| FuseError::Notify { kind, source };
        let device = self.device.as_fd().map_err(notify)?;
        loop {
            match rustix::io::writev(device, &slices) {
                Ok(_) => return Ok(true),
                // Not cached, or not any more.
                Err(rustix::io::Errno::NOENT) => return Ok(false),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(notify(errno.into())),
            }
        }
    }
}
