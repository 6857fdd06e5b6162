//! The operations of FUSE, by what they are about.

mod acl;
mod create;
mod directories;
mod handles;
mod inodes;
mod io;
mod names;
mod partials;
mod privileges;
mod rename;
mod shared;
mod status;
mod xattrs;

pub(crate) use handles::Handles;
pub use inodes::IOCTL_SYNC;
pub(crate) use shared::Shared;
pub use status::{IOCTL_STATUS, mount_status};

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::time::Duration;

use fuse::{
    Attributes, Capabilities, Entry, FileSystem, Negotiated, NodeId, Operation, Request, Response,
};
use rustix::io::Errno;

use self::create::{Make, Setting};
use self::privileges::{Caller, Opener};
use crate::copyup::CopyUp;
use crate::durability::{Durability, Inherited};
use crate::format::NAMED_WHITEOUT;
use crate::free_run::FreeRun;
use crate::journal::FileId;
use crate::partial::{Filler, PartialFiles};
use crate::sys::Stat;
use crate::tree::{Node, Tree};

/// Longest name in bytes (`NAME_MAX`), on which all of Linux's disk file systems agree.
const NAME_BYTES_MAX: usize = 255;

/// How often an operation that found no free descriptor is tried again, and after how long.
/// Descriptors of waiting copies, and of files that are filled or flushed, become free soon.
const DESCRIPTOR_ATTEMPTS: u32 = 40;
const DESCRIPTOR_STEP: Duration = Duration::from_millis(50);

/// The outcome of an operation.
type Answer = Result<Response, Errno>;

/// One mounted union: the operations of the kernel on it.
#[derive(Debug)]
pub(crate) struct Union {
    durability: Rc<Durability>,
    partials: Rc<PartialFiles>,
    copy_up: CopyUp,
    handles: Handles,
    mount: Mount,
    tree: Rc<Tree>,
}

/// The abilities of the mount and of this process.
#[derive(Debug)]
struct Mount {
    /// Whether the kernel's requests say which opens take privileges (Linux 5.11).
    announces_opens: Cell<bool>,
    /// Whether the kernel enforces labels of `SELinux`.
    has_labels: bool,
    /// Whether this process's writes leave set-user-ID and set-group-ID on disk.
    keeps_privileges: bool,
    /// When a write need not wait.
    free_run: Rc<FreeRun>,
    /// The handle that unmounts, once the union is served.
    unmounter: OnceCell<fuse::Unmounter>,
}

impl Union {
    /// Makes the union of a tree, with the changes and the ended partial files of an earlier
    /// process.
    pub(crate) fn new(tree: Tree, shared: &Shared, inherited: Inherited, ended: &[FileId]) -> Self {
        let tree = Rc::new(tree);
        let durability = Rc::new(Durability::new(&tree, &shared.committer, inherited, ended));
        let partials = Rc::new(PartialFiles::new(&tree, &durability, &shared.filling));
        let copy_up = CopyUp::new(&partials, &shared.free_run);
        let mount = Mount {
            announces_opens: Cell::new(true),
            has_labels: xattrs::has_labels(),
            keeps_privileges: shared.keeps_privileges,
            free_run: Rc::clone(&shared.free_run),
            unmounter: OnceCell::new(),
        };
        Self { durability, partials, copy_up, handles: Handles::default(), mount, tree }
    }

    pub(crate) fn tree(&self) -> &Rc<Tree> {
        &self.tree
    }

    pub(crate) fn durability(&self) -> &Rc<Durability> {
        &self.durability
    }

    pub(crate) fn partials(&self) -> &Rc<PartialFiles> {
        &self.partials
    }

    pub(crate) fn handles(&self) -> &Handles {
        &self.handles
    }

    /// Sets the handle that unmounts. A union is served once.
    pub(crate) fn unmount_by(&self, unmounter: fuse::Unmounter) {
        let _ = self.mount.unmounter.set(unmounter);
    }
}

impl FileSystem for Union {
    fn init(&self, negotiated: &Negotiated) {
        tracing::debug!(transport = ?negotiated.transport, "the union is mounted");
        self.tree.passthrough().agree(negotiated.capabilities.contains(Capabilities::PASSTHROUGH));
        let is_announced = negotiated.capabilities.contains(Capabilities::HANDLE_KILLPRIV_V2);
        self.mount.announces_opens.set(is_announced);
        let widened = self.mount.unmounter.get().map_or(Ok(()), fuse::Unmounter::widen_read_ahead);
        if let Err(error) = widened {
            tracing::debug!(error, "the kernel reads ahead of its pages by 128 KiB");
        }
    }

    async fn handle(self: Rc<Self>, request: Request) -> Response {
        let filler = self.tree.store().map(|_| self.partials.filler());
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
            self.tree.forget(node, count);
        }
    }
}

impl Union {
    /// Carries out a request. This is the only list of operations; each operation gets the parts of
    /// the request that it needs.
    async fn answer(self: &Rc<Self>, request: Request) -> Answer {
        let (id, caller) = (request.node, Caller::of(&request));
        let node = || self.tree.node(id);
        let durability = &self.durability;
        match request.operation {
            Operation::Lookup { name } => self.on_lookup(&node()?, name.as_bytes()).await,
            Operation::Unlink { name } => self.on_unlink(&node()?, name.as_bytes()).await,
            Operation::RemoveDirectory { name } => self.on_rmdir(&node()?, name.as_bytes()).await,
            Operation::Link { inode, new_name } => self.on_link(inode, id, &new_name).await,
            Operation::Rename { name, new_parent, new_name, flags } => {
                self.on_rename(id, &name, new_parent, &new_name, flags).await
            }
            Operation::Symlink { ref name, ref target, ref extensions } => {
                self.make(&Setting::of_link(&request, extensions), name, &Make::Symlink(target))
                    .await
            }
            Operation::MakeNode { ref name, ref creation, rdev } => {
                self.make(&Setting::of(&request, creation), name, &Make::of(creation, rdev)).await
            }
            Operation::MakeDirectory { ref name, ref creation } => {
                self.make(&Setting::of(&request, creation), name, &Make::Directory).await
            }
            Operation::Create { ref name, ref creation, flags, .. } => {
                self.create(&request, name, creation, flags).await
            }
            Operation::TemporaryFile { ref creation, flags } => {
                self.make_nameless(&Setting::of(&request, creation), flags).await
            }
            Operation::GetXattr { name, size } => self.xattr(&node()?, &name, size),
            Operation::ListXattr { size } => self.xattrs(&node()?, size, caller),
            Operation::SetXattr { name, value, flags, acl_kill_sgid } => {
                self.set_xattr(id, &node()?, &name, &value, flags, acl_kill_sgid).await
            }
            Operation::RemoveXattr { name } => self.remove_xattr(id, &node()?, &name, caller).await,
            Operation::GetAttributes { .. } => self.on_get_attributes(id, &node()?).await,
            Operation::SetAttributes(set) => {
                self.on_set_attributes(id, &node()?, &set, caller).await
            }
            Operation::ReadLink => self.read_link(&node()?),
            Operation::StatFs => node().and_then(|_| self.statistics()),
            Operation::Fsync { data_only, .. } => {
                done(durability.sync_file(&node()?, data_only).await)
            }
            Operation::FsyncDirectory { .. } => done(durability.sync_directory(&node()?).await),
            Operation::Ioctl(ioctl) => self.on_ioctl(&ioctl).await,
            Operation::SyncFs => done(durability.sync_all().await),
            Operation::OpenDirectory { .. } => node().map(|_| self.open_directory()),
            Operation::ReadDirectory(read) => self.read_directory(&node()?, &read, false),
            Operation::ReadDirectoryPlus(read) => self.read_directory(&node()?, &read, true),
            Operation::ReleaseDirectory(release) => self.release_directory(release.handle),
            Operation::Open { flags, kill_suid_sgid } => {
                self.on_open(id, request.pid, flags, Opener::new(caller, kill_suid_sgid)).await
            }
            Operation::Read(read) => self.read(read).await,
            Operation::Write(write) => self.write_durably(write, caller).await,
            // Writes went to the file at once: nothing is left to report.
            Operation::Flush { .. } => Ok(Response::Done),
            Operation::Release(release) => self.release(release.handle),
            Operation::Fallocate { handle, offset, length, mode } => {
                self.fallocate(handle, mode as i32, offset, length, caller).await
            }
            Operation::Lseek { handle, offset, whence } => self.seek(handle, offset, whence as i32),
            Operation::CopyFileRange(copy) => self.copy_range(&copy, caller),
            // The kernel checks permissions by the attributes, and the union keeps its locks.
            Operation::Access { .. }
            | Operation::Statx(_)
            | Operation::GetLock(_)
            | Operation::SetLock { .. }
            | Operation::Poll { .. }
            | Operation::BlockMap { .. } => Err(Errno::NOSYS),
        }
    }

    /// Repeats an operation until it finds a free descriptor, or too often. Before each retry it
    /// closes files that are open only for speed. The operation must be one that can start again.
    async fn insist<T>(&self, act: impl AsyncFn() -> Result<T, Errno>) -> Result<T, Errno> {
        for _ in 0..DESCRIPTOR_ATTEMPTS {
            match act().await {
                Err(Errno::MFILE) => {}
                other => return other,
            }
            self.tree.kept().close();
            reactor::time::sleep(DESCRIPTOR_STEP).await;
        }
        act().await
    }

    /// Refuses invalid names: names that are too long, and names that would hide another one.
    fn check_new_name(name: &[u8]) -> Result<(), Errno> {
        match name {
            name if name.len() > NAME_BYTES_MAX => Err(Errno::NAMETOOLONG),
            name if name.starts_with(NAMED_WHITEOUT) => Err(Errno::INVAL),
            _ => Ok(()),
        }
    }

    /// Returns an entry for the kernel, which counts as a reference.
    pub(crate) fn entry(&self, node: &Rc<Node>, stat: &Stat) -> Entry {
        self.tree.refer(node);
        Entry {
            node: NodeId(node.id.get()),
            generation: 0,
            entry_valid: self.tree.options().timeout,
            attributes_valid: self.tree.options().timeout,
            attributes: self.attributes(node, stat),
        }
    }

    /// Returns the answer that a name does not exist, which the kernel may remember.
    fn no_entry(&self) -> Response {
        Response::Entry(Entry {
            node: NodeId(0),
            generation: 0,
            entry_valid: self.tree.options().timeout,
            attributes_valid: Duration::ZERO,
            attributes: Attributes::default(),
        })
    }

    /// Returns a node's attributes as they are shown.
    pub(crate) fn attributes(&self, node: &Node, stat: &Stat) -> Attributes {
        // Counting the directories of all layers would require listing them.
        let is_uncounted =
            node.is_directory() && (node.has_lower() || self.tree.options().static_nlink);
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
            uid: self.tree.options().shown_uid(stat.uid),
            gid: self.tree.options().shown_gid(stat.gid),
            // The kernel's 32-bit form of a device number.
            rdev: (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12),
            block_size: stat.block_size,
        }
    }

    /// Returns a node's attributes, under this number.
    fn attributes_answer(&self, id: NodeId, node: &Rc<Node>) -> Answer {
        let stat = self.tree.stat(node)?;
        let attributes = self.attributes(node, &stat);
        // The kernel is notified of changes under the present number only.
        let is_present = id.0 == node.id.get();
        let valid = if is_present { self.tree.options().timeout } else { Duration::ZERO };
        Ok(Response::Attributes { attributes, valid })
    }
}

fn done(result: Result<(), Errno>) -> Answer {
    result.map(|()| Response::Done)
}
