//! The mount itself: what is open, how it starts and ends, and telling the kernel of changes.

use crate::convert::errno;
use crate::nodes::Nodes;
use crate::walks::Walks;
use client::{Change, Client, Handle, Listing, Pin};
use fuse::{
    Capabilities, Errno, FileHandle, FileSystem, FuseError, MountOptions, Mounter, Negotiated,
    NodeId, Notifier, Request, Response, Session, SessionOptions, TransportChoice, Unmounter,
};
use ring::local::OneshotSender;
use ring::mailbox;
use slab::Slab;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// Changes that may wait to be told to the kernel. More are dropped: the kernel then keeps pages of
/// a file that is open until it is opened anew, which is what mode `close` promises anyway.
const NOTICES_MAX: usize = 65536;

/// Most bytes of one READ. The kernel sends all requests of an `O_DIRECT` read or of read-ahead at
/// once, so that it copies what has come while the device reads the rest. (Reads of 1 MiB as one
/// request leave the device idle during copy and wake-ups: three quarters of its rate.)
const READ_BYTES_MAX: u32 = 256 << 10;

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountSettings {
    /// Where; the directory must exist.
    pub mountpoint: PathBuf,
    /// Let other users than the mounting one in (root may always ask for it; others need
    /// `user_allow_other` in `/etc/fuse.conf`).
    pub allow_other: bool,
    /// Mount read-only.
    pub read_only: bool,
    /// Which FUSE transport to use.
    pub transport: TransportChoice,
    /// The process that mounts, where this one cannot because it is confined.
    pub mounter: Option<Arc<Mounter>>,
}

/// An open directory: the part of its listing that was fetched last.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    pub(crate) listing: Option<Rc<Listing>>,
    /// The cookie after which `listing` begins.
    pub(crate) after: u64,
    _pin: Pin,
}

/// The FUSE file system.
pub(crate) struct Tsumugi {
    pub(crate) client: Rc<Client>,
    pub(crate) nodes: RefCell<Nodes>,
    files: RefCell<Slab<Rc<Handle>>>,
    directories: RefCell<Slab<Rc<RefCell<OpenDirectory>>>>,
    /// Gets what was agreed with the kernel, once.
    agreed: RefCell<Option<OneshotSender<Negotiated>>>,
    /// The owners of POSIX locks, with the open files through which they took them. Other closes need no
    /// unlock. The owner of an open file description's lock (`F_OFD_SETLK`) is that file, of whose end only
    /// its release tells.
    pub(crate) posix_owners: RefCell<BTreeMap<(protocol::InodeId, u64), Vec<FileHandle>>>,
    pub(crate) walks: Walks,
}

/// A file whose pages the kernel is to drop, and where to send that it has.
type Notice = (NodeId, Option<mailbox::Sender<()>>);

/// A mounted file system.
#[derive(Debug)]
pub struct Mount {
    session: Session,
    notices: mailbox::Sender<Notice>,
}

impl Mount {
    /// Mounts; requests wait until [`Mount::run`] serves them.
    ///
    /// # Errors
    /// What and where, and how to fix it.
    pub fn new(settings: &MountSettings) -> Result<Mount, FuseError> {
        let mount_options = mount_options(settings);
        let options = SessionOptions {
            capabilities: SessionOptions::default().capabilities
                | Capabilities::POSIX_LOCKS
                | Capabilities::FLOCK_LOCKS
                | Capabilities::DO_READDIRPLUS
                | Capabilities::READDIRPLUS_AUTO
                | Capabilities::EXPLICIT_INVAL_DATA
                | Capabilities::DIRECT_IO_ALLOW_MMAP
                | Capabilities::NO_EXPORT_SUPPORT,
            transport: settings.transport,
            ring_payload_in_huge_pages: true,
            ..SessionOptions::default()
        };
        let mounter = settings.mounter.clone();
        let session = Session::mount_by(mounter, &settings.mountpoint, &mount_options, options)?;
        let notices = notice_thread(session.notifier())?;
        Ok(Mount { session, notices })
    }

    /// What to hand to the client, so that the kernel hears of changes by others.
    pub fn changes(&self) -> Box<dyn Fn(Change)> {
        let notices = self.notices.clone();
        Box::new(move |change| {
            let (inode, done) = match change {
                Change::Inode(inode) => (inode, None),
                Change::Pages(inode, done) => (inode, Some(done)),
            };
            if notices.try_send((NodeId(inode.0), done)).is_err() {
                tracing::debug!(inode = inode.0, "too many changes for the kernel to be told");
            }
        })
    }

    /// Serves the mount until it is unmounted. `agreed` gets what was agreed with the kernel: from
    /// then on the mount answers.
    ///
    /// # Errors
    /// If nothing could be agreed, or the connection to the kernel broke.
    pub async fn run(
        &self,
        client: Rc<Client>,
        agreed: OneshotSender<Negotiated>,
    ) -> Result<(), FuseError> {
        let tsumugi = Tsumugi {
            client,
            nodes: RefCell::default(),
            files: RefCell::default(),
            directories: RefCell::default(),
            agreed: RefCell::new(Some(agreed)),
            posix_owners: RefCell::default(),
            walks: Walks::default(),
        };
        self.session.run(Rc::new(tsumugi)).await
    }

    /// What ends the mount, from any thread.
    pub fn unmounter(&self) -> Unmounter {
        self.session.unmounter()
    }
}

/// Serves the [`Mounter`] at the other end of `socket`: mounts with these settings on its order. For
/// a process of its own; ends when the other side does.
///
/// # Errors
/// If the socket fails.
pub fn serve_mounter(socket: &OwnedFd, settings: &MountSettings) -> std::io::Result<()> {
    fuse::serve_mounter(socket, &settings.mountpoint, &mount_options(settings))
}

fn mount_options(settings: &MountSettings) -> MountOptions {
    MountOptions {
        fs_name: "tsumugi".into(),
        subtype: "tsumugi".into(),
        allow_other: settings.allow_other,
        default_permissions: true,
        read_only: settings.read_only,
        allow_suid: false,
        allow_devices: false,
        no_atime: true,
        max_read_bytes: Some(READ_BYTES_MAX),
        ..MountOptions::default()
    }
}

/// Tells the kernel of changes on a thread of its own: a notification may wait for requests that
/// this process has yet to answer.
fn notice_thread(notifier: Notifier) -> Result<mailbox::Sender<Notice>, FuseError> {
    let (sender, mut receiver) = mailbox::channel::<Notice>(NOTICES_MAX);
    let config = ring::Config::default();
    let thread = ring::thread::spawn("notices", &config, move || async move {
        while let Some((node, done)) = receiver.recv().await {
            // ENOENT: the kernel does not know the inode (any more).
            if let Err(error) = notifier.invalidate_inode(node, 0, 0) {
                tracing::debug!(node = node.0, %error, "the kernel was not told of a change");
            }
            if let Some(done) = done {
                let _ = done.try_send(());
            }
        }
    });
    thread.map(drop).map_err(|source| FuseError::Transport { action: "start a thread", source })?;
    Ok(sender)
}

impl FileSystem for Tsumugi {
    fn init(&self, negotiated: &Negotiated) {
        tracing::info!(
            transport = ?negotiated.transport,
            reason = negotiated.transport_reason,
            max_write_bytes = negotiated.max_write_bytes,
            "mounted"
        );
        self.client.refer(protocol::InodeId::ROOT);
        if let Some(agreed) = self.agreed.take() {
            let _ = agreed.send(negotiated.clone());
        }
    }

    async fn handle(self: Rc<Self>, request: Request) -> Response {
        match self.answer_walk(request).await {
            Ok(response) => response,
            Err(error) => Response::Error(errno(error)),
        }
    }

    fn forget(&self, forgets: &[(NodeId, u64)]) {
        for &(node, count) in forgets {
            let inode = self.nodes.borrow_mut().forget(node, count);
            self.client.forget(inode, count);
        }
    }
}

impl Tsumugi {
    /// The inode that the kernel means.
    pub(crate) fn inode(&self, node: NodeId) -> protocol::InodeId {
        self.nodes.borrow().inode(node)
    }

    /// Tells the kernel of an entry of `parent`, which it remembers until it says otherwise.
    pub(crate) fn entry(&self, parent: NodeId, attr: &protocol::Attr) -> fuse::Entry {
        let node = self.nodes.borrow_mut().tell(parent, attr.inode, attr.kind);
        crate::convert::entry(node, attr)
    }

    /// Keeps an open file; answers its handle.
    pub(crate) fn keep_file(&self, handle: Handle) -> FileHandle {
        FileHandle(self.files.borrow_mut().insert(Rc::new(handle)) as u64)
    }

    /// An open file.
    pub(crate) fn file(&self, handle: FileHandle) -> Result<Rc<Handle>, protocol::Errno> {
        let files = self.files.borrow();
        files.get(handle.0 as usize).cloned().ok_or(protocol::Errno::EBADF)
    }

    /// Takes an open file out.
    pub(crate) fn take_file(&self, handle: FileHandle) -> Result<Rc<Handle>, protocol::Errno> {
        let mut files = self.files.borrow_mut();
        files.try_remove(handle.0 as usize).ok_or(protocol::Errno::EBADF)
    }

    /// Keeps an open directory.
    pub(crate) fn keep_directory(&self, pin: Pin) -> FileHandle {
        let directory = OpenDirectory { listing: None, after: 0, _pin: pin };
        let directory = Rc::new(RefCell::new(directory));
        FileHandle(self.directories.borrow_mut().insert(directory) as u64)
    }

    /// An open directory.
    pub(crate) fn directory(
        &self,
        handle: FileHandle,
    ) -> Result<Rc<RefCell<OpenDirectory>>, protocol::Errno> {
        let directories = self.directories.borrow();
        directories.get(handle.0 as usize).cloned().ok_or(protocol::Errno::EBADF)
    }

    /// Takes an open directory out.
    pub(crate) fn drop_directory(&self, handle: FileHandle) -> Response {
        self.directories.borrow_mut().try_remove(handle.0 as usize);
        Response::Done
    }
}

/// Errors of FUSE operations that the client has no word for.
pub(crate) const UNSUPPORTED: Errno = Errno::NOSYS;
