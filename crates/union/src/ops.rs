//! The operations of FUSE, by what they are about.

mod create;
mod directories;
mod inodes;
mod io;
mod names;
mod partials;
mod rename;
mod xattrs;

pub use inodes::IOCTL_SYNC;

use std::rc::Rc;
use std::time::Duration;

use fuse::{
    Attributes, Capabilities, Entry, FileSystem, Negotiated, NodeId, Operation, Request, Response,
};
use rustix::io::Errno;

use crate::format::NAMED_WHITEOUT;
use crate::node::Node;
use crate::partial::Filler;
use crate::sys::Stat;
use crate::tree::Union;

/// Longest name in bytes (`NAME_MAX`), on which all of Linux's disk file systems agree.
const NAME_BYTES_MAX: usize = 255;

/// How often what found no descriptor left is tried again, and after how long: those of copies that wait for their
/// names, and of files that are filled or flushed, come back soon.
const DESCRIPTOR_ATTEMPTS: u32 = 40;
const DESCRIPTOR_STEP: Duration = Duration::from_millis(50);

/// What an operation comes to.
type Answer = Result<Response, Errno>;

impl FileSystem for Union {
    fn init(&self, negotiated: &Negotiated) {
        tracing::debug!(transport = ?negotiated.transport, "the union is mounted");
        self.passthrough.agree(negotiated.capabilities.contains(Capabilities::PASSTHROUGH));
        let is_told = negotiated.capabilities.contains(Capabilities::HANDLE_KILLPRIV_V2);
        self.is_told_of_privileges.set(is_told);
    }

    async fn handle(self: Rc<Self>, request: Request) -> Response {
        let filler = self.store.as_deref().map(|store| &store.filler);
        let _in_flight = filler.map(Filler::request);
        match self.answer(request).await {
            Ok(response) => response,
            Err(errno) => {
                if matches!(errno, Errno::NOSPC | Errno::DQUOT) {
                    filler.inspect(|filler| filler.give_room());
                }
                Response::Error(errno)
            }
        }
    }

    fn forget(&self, forgets: &[(NodeId, u64)]) {
        for &(node, count) in forgets {
            Union::forget(self, node, count);
        }
    }
}

impl Union {
    async fn answer(self: &Rc<Self>, request: Request) -> Answer {
        match &request.operation {
            Operation::Lookup { .. }
            | Operation::Unlink { .. }
            | Operation::RemoveDirectory { .. }
            | Operation::Link { .. } => self.on_name(&request).await,
            Operation::Rename { .. } => self.on_rename(&request).await,
            Operation::Symlink { .. }
            | Operation::MakeNode { .. }
            | Operation::MakeDirectory { .. }
            | Operation::Create { .. }
            | Operation::TemporaryFile { .. } => self.on_create(&request).await,
            Operation::GetXattr { .. }
            | Operation::SetXattr { .. }
            | Operation::ListXattr { .. }
            | Operation::RemoveXattr { .. } => self.on_xattr(&request).await,
            Operation::GetAttributes { .. }
            | Operation::SetAttributes(_)
            | Operation::ReadLink
            | Operation::StatFs
            | Operation::Fsync { .. }
            | Operation::FsyncDirectory { .. }
            | Operation::Ioctl(_)
            | Operation::SyncFs => self.on_inode(&request).await,
            Operation::OpenDirectory { .. }
            | Operation::ReadDirectory(_)
            | Operation::ReadDirectoryPlus(_)
            | Operation::ReleaseDirectory(_) => self.on_directory(&request),
            Operation::Open { .. }
            | Operation::Read(_)
            | Operation::Write(_)
            | Operation::Flush { .. }
            | Operation::Release(_)
            | Operation::Fallocate { .. }
            | Operation::Lseek { .. }
            | Operation::CopyFileRange(_) => self.on_file(request).await,
            // The kernel checks permissions by the attributes, and the union keeps its locks.
            Operation::Access { .. }
            | Operation::Statx(_)
            | Operation::GetLock(_)
            | Operation::SetLock { .. }
            | Operation::Poll { .. }
            | Operation::BlockMap { .. } => Err(Errno::NOSYS),
        }
    }

    /// Does what is as well begun again until there is a descriptor for it, or patience ends. What is open only to
    /// be fast is closed for it.
    async fn insist<T>(&self, act: impl AsyncFn() -> Result<T, Errno>) -> Result<T, Errno> {
        for _ in 0..DESCRIPTOR_ATTEMPTS {
            match act().await {
                Err(Errno::MFILE) => {}
                other => return other,
            }
            self.shared.close_kept();
            ring::time::sleep(DESCRIPTOR_STEP).await;
        }
        act().await
    }

    /// Refuses names that cannot be: too long ones, and those that would hide another.
    fn check_new_name(name: &[u8]) -> Result<(), Errno> {
        match name {
            name if name.len() > NAME_BYTES_MAX => Err(Errno::NAMETOOLONG),
            name if name.starts_with(NAMED_WHITEOUT) => Err(Errno::INVAL),
            _ => Ok(()),
        }
    }

    /// An entry for the kernel, which counts as a reference.
    pub(crate) fn entry(&self, node: &Rc<Node>, stat: &Stat) -> Entry {
        self.refer(node);
        Entry {
            node: NodeId(node.id.get()),
            generation: 0,
            entry_valid: self.options.timeout,
            attributes_valid: self.options.timeout,
            attributes: self.attributes(node, stat),
        }
    }

    /// The answer that a name does not exist, which the kernel may remember.
    fn no_entry(&self) -> Response {
        Response::Entry(Entry {
            node: NodeId(0),
            generation: 0,
            entry_valid: self.options.timeout,
            attributes_valid: Duration::ZERO,
            attributes: Attributes::default(),
        })
    }

    /// A node's attributes as they are shown.
    pub(crate) fn attributes(&self, node: &Node, stat: &Stat) -> Attributes {
        // To count the directories of all layers would mean to list them.
        let is_uncounted = node.is_directory() && (node.has_lower() || self.options.static_nlink);
        let (major, minor) = stat.rdev;
        let disarmed = node.file().map_or(0, |state| state.disarmed.get());
        Attributes {
            inode: node.inode.get(),
            size: stat.size,
            blocks: stat.blocks,
            atime: stat.atime,
            mtime: stat.mtime,
            ctime: stat.ctime,
            mode: stat.mode & !disarmed,
            nlink: if is_uncounted { 1 } else { stat.nlink },
            uid: self.options.shown_uid(stat.uid),
            gid: self.options.shown_gid(stat.gid),
            // The kernel's 32-bit form of a device number.
            rdev: (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12),
            block_size: stat.block_size,
        }
    }

    /// A node's attributes, for who knows it by this number.
    fn attributes_answer(&self, id: NodeId, node: &Rc<Node>) -> Answer {
        let stat = self.stat(node)?;
        let attributes = self.attributes(node, &stat);
        // The kernel hears of changes by the present number only.
        let is_present = id.0 == node.id.get();
        let valid = if is_present { self.options.timeout } else { Duration::ZERO };
        Ok(Response::Attributes { attributes, valid })
    }
}
