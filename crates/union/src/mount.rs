//! Mounting and serving a union.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use fuse::{
    Capabilities, FileSystem, MountOptions, Negotiated, Session, SessionOptions, TransportChoice,
    Unmounter,
};

use rustix::fs::{Mode, OFlags};

use crate::commit;
use crate::error::UnionError;
use crate::layers::Layers;
use crate::ops::IOCTL_SYNC;
use crate::options::{FillMode, Options};
use crate::partial;
use crate::tree::{Shared, Union};

/// A mounted union, to be served by [`UnionMount::run`].
#[derive(Debug)]
pub struct UnionMount {
    session: Session,
    union: Rc<Union>,
}

impl UnionMount {
    /// Opens the layers, finishes what an earlier process has left, and mounts.
    ///
    /// # Errors
    /// What and where, and how to fix it.
    pub fn new(
        options: &Options,
        mountpoint: &std::path::Path,
        transport: TransportChoice,
    ) -> Result<Self, UnionError> {
        let union = open(options.with_real_paths()?)?;
        union.record();
        let mount_options = mount_options(&union.options, union.layers.upper.is_none());
        let session_options = session_options(&union.options, transport);
        let session = Session::mount(mountpoint, &mount_options, session_options)?;
        Ok(Self { session, union })
    }

    /// Takes a union over that another process has mounted; with `agreed`, from a server that is gone.
    pub(crate) fn adopt(
        union: &Rc<Union>,
        device: OwnedFd,
        unmounter: Unmounter,
        agreed: Option<Negotiated>,
    ) -> Result<Self, UnionError> {
        union.record();
        let mut options = session_options(&union.options, TransportChoice::Device);
        options.capabilities |= Capabilities::HAS_RESEND;
        options.agreed = agreed;
        let session = Session::adopt(device, unmounter, options)?;
        Ok(Self { session, union: Rc::clone(union) })
    }

    /// Serves the union until it is unmounted, and then waits until what was copied up is durable
    /// and has its names.
    ///
    /// # Errors
    /// If the connection to the kernel broke, or the last commit failed.
    pub async fn run(&self) -> Result<(), UnionError> {
        self.run_as(Rc::clone(&self.union)).await
    }

    /// As [`UnionMount::run`], with requests answered by something around the union.
    pub(crate) async fn run_as<F: FileSystem>(&self, around: Rc<F>) -> Result<(), UnionError> {
        self.union.passthrough.register_with(self.session.backings(), self.session.notifier());
        self.union.start_filling();
        self.union.start_flushing();
        let served = self.session.run(around).await;
        self.union.stop_filling().await;
        self.union.stop_flushing().await;
        let filled = self.fill_at_end().await;
        let finished = self.union.sync_all().await;
        served?;
        let upper = self.union.options.upper.clone().unwrap_or_default();
        finished.map_err(|errno| UnionError::layer("upperdir", &upper, errno))?;
        filled
    }

    /// Completes partial files, if that is to be done now.
    async fn fill_at_end(&self) -> Result<(), UnionError> {
        let options = &self.union.options;
        if options.fill != FillMode::Unmount || options.read_only {
            return Ok(());
        }
        let upper = options.upper.clone().unwrap_or_default();
        let completed = self.union.complete_all().await;
        let (_, unfinished) =
            completed.map_err(|errno| UnionError::layer("upperdir", &upper, errno))?;
        UnionError::unfinished(&upper, &unfinished).map_or(Ok(()), Err)
    }

    /// What ends the mount, from any thread.
    pub fn unmounter(&self) -> Unmounter {
        self.session.unmounter()
    }
}

/// Opens the layers and finishes what an earlier process has left.
pub(crate) fn open(options: Options) -> Result<Rc<Union>, UnionError> {
    options.check()?;
    let layers = Layers::open(&options)?;
    open_layers(options, layers, Rc::new(Shared::default()))
}

/// Finishes what an earlier process has left in these layers.
pub(crate) fn open_layers(
    mut options: Options,
    layers: Layers,
    shared: Rc<Shared>,
) -> Result<Rc<Union>, UnionError> {
    // Lists would name other owners than the inode's attribute does.
    options.no_acl |= layers.owners().is_some();
    let mut store = None;
    if let (Some(upper), Some(work)) = (&layers.upper, &options.work) {
        // Before the work files of unfinished publications go.
        let opened = partial::open(upper, &options, &shared.committer.copier)?;
        let is_filling = options.fill == FillMode::Background;
        let is_kept = |name: &[u8]| is_filling && opened.is_filling(name);
        commit::recover(upper, is_kept)
            .map_err(|errno| UnionError::layer("workdir", work, errno))?;
        store = Some(opened);
    }
    let top = options.upper.clone().unwrap_or_else(|| options.lower[0].clone());
    Union::new(options, layers, store, shared)
        .map(Rc::new)
        .map_err(|errno| UnionError::layer("top layer", &top, errno))
}

pub(crate) fn mount_options(options: &Options, has_no_upper: bool) -> MountOptions {
    let is_root = rustix::process::geteuid().is_root();
    MountOptions {
        fs_name: options.source.clone().unwrap_or_else(|| "tsumugi-union".into()),
        subtype: "tsumugi-union".into(),
        // As every mount of root's: a container's users are others.
        allow_other: options.allow_other || is_root,
        default_permissions: true,
        read_only: options.read_only || has_no_upper,
        allow_suid: is_root && !options.no_suid,
        allow_devices: is_root && !options.no_devices,
        no_exec: options.no_exec,
        no_atime: options.no_atime,
        ..MountOptions::default()
    }
}

fn session_options(options: &Options, transport: TransportChoice) -> SessionOptions {
    let mut capabilities = SessionOptions::default().capabilities
        | Capabilities::DO_READDIRPLUS
        | Capabilities::READDIRPLUS_AUTO
        | Capabilities::CACHE_SYMLINKS
        | Capabilities::DONT_MASK
        | Capabilities::HAS_IOCTL_DIR
        | Capabilities::EXPLICIT_INVAL_DATA
        | Capabilities::DIRECT_IO_ALLOW_MMAP;
    if !options.no_acl {
        capabilities |= Capabilities::POSIX_ACL;
    }
    if options.writeback {
        capabilities |= Capabilities::WRITEBACK_CACHE;
    }
    // Only root can have backing files, and the kernel does not gather writes besides.
    let may_pass = rustix::process::geteuid().is_root() && !options.writeback;
    if may_pass {
        capabilities |= Capabilities::PASSTHROUGH;
    }
    let max_stack_depth = u32::from(may_pass);
    SessionOptions { capabilities, transport, max_stack_depth, ..SessionOptions::default() }
}

/// Waits until everything that was copied up in a mounted union has its name and is durable.
///
/// # Errors
/// What opening the mount point or the ioctl answers; `ENOTTY` if it is not a union of ours.
pub fn sync_mount(mountpoint: &std::path::Path) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(mountpoint, flags, Mode::empty())?;
    fuse::send_ioctl(root.as_fd(), IOCTL_SYNC).map(drop)
}
