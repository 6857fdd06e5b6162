//! The mount in the kernel: its start, its end, and the agreement about capabilities.

use crate::notices::{NameQueue, Notices, PageQueue, notices};
use crate::server::Server;
use client::{Change, Client};
use fuse::{
    Capabilities, FuseError, MountOptions, Mounter, Name, Negotiated, Notifier, Session,
    SessionOptions, TransportChoice, Unmounter,
};
use reactor::local::OneshotSender;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Most bytes of one READ. The kernel sends all requests of an `O_DIRECT` read or of a read-ahead
/// at once, so it copies what has arrived while the device reads the rest. (With reads of 1 MiB as
/// one request the device is idle during copies and wake-ups, and reaches three quarters of its
/// rate.)
pub const READ_BYTES_MAX: u32 = 256 << 10;

/// Entries in the ring of a thread that notifies the kernel: the thread waits only for its queue.
const NOTICE_ENTRIES: u32 = 8;

/// The settings of a mount.
#[derive(Clone, Debug)]
pub struct MountSettings {
    /// The mount point; the directory must exist.
    pub mountpoint: PathBuf,
    /// Lets users other than the mounting one access the mount. Root may always ask for it; others
    /// need `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Mount read-only.
    pub read_only: bool,
    /// The FUSE transport to use.
    pub transport: TransportChoice,
    /// The process that mounts, if this process is confined and cannot.
    pub mounter: Option<Arc<Mounter>>,
}

/// A mounted file system.
#[derive(Debug)]
pub struct Mount {
    session: Session,
    notices: Notices,
}

impl Mount {
    /// Mounts; requests wait until [`Mount::run`] serves them.
    ///
    /// # Errors
    /// A [`FuseError`] says what failed and where, and how to fix it.
    pub fn new(settings: &MountSettings) -> Result<Mount, FuseError> {
        let mount_options = mount_options(settings);
        let options = session_options(settings.transport);
        let mounter = settings.mounter.clone();
        let session = Session::mount_by(mounter, &settings.mountpoint, &mount_options, options)?;
        let notices = notice_threads(&session)?;
        Ok(Mount { session, notices })
    }

    /// Returns what the client calls with changes by others, so that the kernel learns of them.
    pub fn changes(&self) -> Box<dyn Fn(Change)> {
        self.notices.changes()
    }

    /// Serves the mount until it is unmounted. `agreed` receives what was agreed with the kernel;
    /// from then on the mount answers.
    ///
    /// # Errors
    /// If the kernel and the mount could not agree, or the connection to the kernel broke.
    pub async fn run(
        &self,
        client: Rc<Client>,
        agreed: OneshotSender<Negotiated>,
    ) -> Result<(), FuseError> {
        let server = Server::new(Rc::clone(&client), agreed, &self.notices);
        let ended = self.session.run(server).await;
        client.end_lending();
        ended
    }

    /// Returns a handle that ends the mount, from any thread.
    pub fn unmounter(&self) -> Unmounter {
        self.session.unmounter()
    }
}

/// Serves the [`Mounter`] at the other end of `socket`: mounts with these settings when it asks.
/// This runs in a process of its own and returns when the other side ends.
///
/// # Errors
/// If the socket fails.
pub fn serve_mounter(socket: &OwnedFd, settings: &MountSettings) -> std::io::Result<()> {
    fuse::serve_mounter(socket, &settings.mountpoint, &mount_options(settings))
}

/// Returns the options that [`Server`] requests from the kernel.
pub fn session_options(transport: TransportChoice) -> SessionOptions {
    SessionOptions {
        capabilities: SessionOptions::default().capabilities
            | Capabilities::POSIX_LOCKS
            | Capabilities::FLOCK_LOCKS
            | Capabilities::DO_READDIRPLUS
            | Capabilities::READDIRPLUS_AUTO
            // The target of a symbolic link never changes, and its inode number is never used
            // again.
            | Capabilities::CACHE_SYMLINKS
            | Capabilities::EXPLICIT_INVAL_DATA
            | Capabilities::DIRECT_IO_ALLOW_MMAP
            | Capabilities::NO_EXPORT_SUPPORT,
        transport,
        ring_payload_in_huge_pages: true,
        ..SessionOptions::default()
    }
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

/// Starts the threads that notify the kernel of changes. They are separate threads because a
/// notification may wait for requests that this process has yet to answer.
fn notice_threads(session: &Session) -> Result<Notices, FuseError> {
    let (notices, pages, names, prompt) = notices();
    let config = reactor::Config { entries: NOTICE_ENTRIES, ..reactor::Config::default() };
    let of_pages = page_thread(&config, session.notifier(), pages);
    let of_names = name_thread(&config, session.notifier(), names);
    let (notifier, mountpoint) = (session.notifier(), session.mountpoint().to_owned());
    let prompt = reactor::thread::spawn("attributes", &config, move || async move {
        let drop_attributes = async |node| notifier.drop_attributes(node);
        prompt.serve(drop_attributes, async || drop_all_names(&notifier, &mountpoint)).await;
    });
    for thread in [of_pages, of_names, prompt] {
        let failed = |source| FuseError::Transport { action: "start a thread", source };
        thread.map(drop).map_err(failed)?;
    }
    Ok(notices.drop_at_once(session.notifier()))
}

/// Starts a thread that has the kernel drop pages. It starts another one if it is the last that
/// does not wait for a file.
fn page_thread(
    config: &reactor::Config,
    notifier: Notifier,
    pages: PageQueue,
) -> io::Result<reactor::thread::JoinHandle<()>> {
    let next = (config.clone(), notifier.clone());
    let start_another = move |pages| {
        let (config, notifier) = next.clone();
        if let Err(error) = page_thread(&config, notifier, pages) {
            tracing::warn!(%error, "a file with locked pages may delay others: no further thread");
        }
    };
    reactor::thread::spawn("pages", config, move || async move {
        let drop_pages = async |node| notifier.invalidate_inode(node, 0, 0);
        pages.serve(drop_pages, start_another).await;
    })
}

/// Starts a thread that has the kernel drop names. It starts another one if it is the last that does
/// not wait for a directory.
fn name_thread(
    config: &reactor::Config,
    notifier: Notifier,
    names: NameQueue,
) -> io::Result<reactor::thread::JoinHandle<()>> {
    let next = (config.clone(), notifier.clone());
    let start_another = move |names| {
        let (config, notifier) = next.clone();
        if let Err(error) = name_thread(&config, notifier, names) {
            tracing::warn!(%error, "a locked directory may delay others: no further thread");
        }
    };
    reactor::thread::spawn("names", config, move || async move {
        let drop_name = async |directory, name: &Name, expires_only| {
            if expires_only {
                notifier.expire_entry(directory, name)
            } else {
                notifier.invalidate_entry(directory, name)
            }
        };
        names.serve(drop_name, start_another).await;
    })
}

/// Drops all names of the mount, unless that would detach what is mounted below it.
fn drop_all_names(notifier: &Notifier, mountpoint: &Path) -> bool {
    if fuse::has_mounts_below(mountpoint).unwrap_or(true) {
        return false;
    }
    notifier.increase_epoch().is_ok()
}
