//! Telling the kernel that what it caches is not true any more.
//!
//! A notification takes kernel locks that an operation in progress may hold while it waits for our
//! answer. So it must never be sent by the thread that serves the mount (which then could not
//! answer), and never by anything that the answer to a request waits for, except where it says so.
//! [`Notifier`] is `Send` and blocks: use it on a thread of its own.

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
/// which may be as long as operations in progress take: see the module's head for who may call.
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

    /// Drops an inode's cached attributes. Waits for nobody, so that whoever serves the mount may call it.
    pub fn invalidate_attributes(&self, node: NodeId) -> Result<(), FuseError> {
        self.drop_attributes(node).map(drop)
    }

    /// As [`Notifier::invalidate_attributes`]; answers whether the kernel knows the inode. One that it is
    /// about to learn of, from an answer that is on its way, it does not know yet.
    pub fn drop_attributes(&self, node: NodeId) -> Result<bool, FuseError> {
        let out = NotifyInvalInodeOut { ino: node.0, off: -1, len: 0 };
        self.send("inval_inode", notify::INVAL_INODE, &[out.as_bytes()])
    }

    /// Lets all cached names of the mount, also those of answers on their way, be looked up again at
    /// their next use (kernels from [`Negotiated::EPOCH_MINOR`](crate::Negotiated::EPOCH_MINOR) on). Waits for
    /// nobody. What is mounted below them is detached when that name is walked next.
    pub fn increase_epoch(&self) -> Result<(), FuseError> {
        self.send("inc_epoch", notify::INC_EPOCH, &[]).map(drop)
    }

    /// Drops a cached name, and what is cached below it.
    pub fn invalidate_entry(&self, parent: NodeId, name: &Name) -> Result<(), FuseError> {
        self.entry("inval_entry", parent, name, 0)
    }

    /// Lets a cached name expire: it is looked up again at its next use (`HAS_EXPIRE_ONLY`).
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

    /// Tells that a name of this inode was removed, so that watchers hear of it.
    pub fn delete(&self, parent: NodeId, child: NodeId, name: &Name) -> Result<(), FuseError> {
        let namelen = name.as_bytes().len() as u32;
        let out = NotifyDeleteOut { parent: parent.0, child: child.0, namelen, padding: 0 };
        self.send("delete", notify::DELETE, &[out.as_bytes(), name.as_bytes(), &[0]]).map(drop)
    }

    /// Puts bytes into an inode's page cache.
    /// Answers whether the kernel knows the inode. Waits for pages of that range that are locked, as by READs under
    /// way: whoever serves the mount may call it for files that are not open.
    pub fn store(&self, node: NodeId, offset: u64, bytes: &[u8]) -> Result<bool, FuseError> {
        let size = u32::try_from(bytes.len()).map_err(|_| FuseError::Limit {
            name: "bytes to store",
            value: bytes.len() as u64,
            range: "below 4 GiB",
        })?;
        let out = NotifyStoreOut { nodeid: node.0, offset, size, padding: 0 };
        self.send("store", notify::STORE, &[out.as_bytes(), bytes])
    }

    /// Lets the kernel send again what was received by somebody who will not answer it: each such
    /// request comes with [`Request::is_resent`](crate::Request::is_resent). Waits for nobody.
    pub fn resend(&self) -> Result<(), FuseError> {
        self.send("resend", notify::RESEND, &[]).map(drop)
    }

    /// Wakes those who poll.
    pub fn wake_poll(&self, handle: PollHandle) -> Result<(), FuseError> {
        let out = NotifyPollWakeupOut { kh: handle.0 };
        self.send("poll", notify::POLL, &[out.as_bytes()]).map(drop)
    }

    /// Sends a notification; answers whether the kernel knows what it is about.
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
                // Not cached, or no longer.
                Err(rustix::io::Errno::NOENT) => return Ok(false),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(notify(errno.into())),
            }
        }
    }
}
