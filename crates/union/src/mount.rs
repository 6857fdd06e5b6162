//! Mounting and serving a union.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use fuse::{
    Capabilities, FileSystem, MountOptions, Negotiated, Session, SessionOptions, TransportChoice,
    Unmounter,
};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::durability::{self, Inherited, Sign};
use crate::error::UnionError;
use crate::layers::Layers;
use crate::ops::IOCTL_SYNC;
use crate::ops::{Shared, Union};
use crate::options::{FillMode, Options, Pass, SyncMode};
use crate::record;
use crate::store::{Recovered, Store};
use crate::sys::{self, Stat};
use crate::tree::Tree;

/// How long an ending mount waits for open files, and how often it looks.
pub(crate) const END_WAIT_MAX: Duration = Duration::from_secs(10);
const END_WAIT_STEP: Duration = Duration::from_millis(50);
/// Interval of the messages about a long end.
const END_STEP: Duration = Duration::from_secs(5);

/// A mounted union, to be served by [`UnionMount::run`].
#[derive(Debug)]
pub struct UnionMount {
    session: Session,
    union: Rc<Union>,
    /// Whether the kernel has released the mount.
    is_over: Cell<bool>,
    is_cut_off: Cell<bool>,
}

impl UnionMount {
    /// Opens the layers, finishes what an earlier process has left, and mounts.
    ///
    /// # Errors
    /// States what is wrong, where, and how to fix it.
    pub fn new(
        options: &Options,
        mountpoint: &std::path::Path,
        transport: TransportChoice,
    ) -> Result<Self, UnionError> {
        let options = options.with_real_paths()?;
        options.check()?;
        let layers = Layers::open(&options)?;
        let union = Ready::of_mount(options, layers)?.union(&Shared::default());
        let mount_options =
            mount_options(union.tree().options(), union.tree().layers().upper.is_none());
        let session_options = session_options(union.tree().options(), transport);
        let session = Session::mount(mountpoint, &mount_options, session_options)?;
        Ok(Self::of(session, union))
    }

    fn of(session: Session, union: Rc<Union>) -> Self {
        Self { session, union, is_over: Cell::new(false), is_cut_off: Cell::new(false) }
    }

    /// Continues to serve a union that another process has mounted; with `agreed`, one whose server
    /// is gone.
    pub(crate) fn adopt(
        union: &Rc<Union>,
        device: OwnedFd,
        unmounter: Unmounter,
        agreed: Option<Negotiated>,
    ) -> Result<Self, UnionError> {
        let mut options = session_options(union.tree().options(), TransportChoice::Device);
        options.capabilities |= Capabilities::HAS_RESEND;
        options.agreed = agreed;
        let session = Session::adopt(device, unmounter, options)?;
        Ok(Self::of(session, Rc::clone(union)))
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
        self.union
            .tree()
            .passthrough()
            .register_with(self.session.backings(), self.session.notifier());
        self.union.durability().set_clean(false);
        self.union.unmount_by(self.session.unmounter());
        self.union.partials().start_filling();
        self.union.durability().start_flushing();
        let served = self.session.run(around).await;
        self.is_over.set(true);
        let finish = async {
            self.union.partials().stop_filling().await;
            self.union.durability().stop_flushing().await;
            let filled = self.fill_at_end().await;
            (filled, self.union.durability().sync_at_end().await)
        };
        let (finish, logged) = (std::pin::pin!(finish), std::pin::pin!(self.log_end()));
        let (filled, finished) = match reactor::race(finish, logged).await {
            reactor::Either::First(done) => done,
            reactor::Either::Second(never) => match never {},
        };
        if !self.is_cut_off.get() {
            served?;
        }
        let upper = self.union.tree().options().upper.clone().unwrap_or_default();
        finished.map_err(|errno| UnionError::layer("upperdir", &upper, errno))?;
        self.union.durability().set_clean(self.union.tree().options().sync != SyncMode::Volatile);
        filled
    }

    /// Logs at intervals that the end takes long, and the remaining work.
    async fn log_end(&self) -> std::convert::Infallible {
        loop {
            reactor::time::sleep(END_STEP).await;
            let partial = self.union.tree().store().map_or(0, |store| store.status().len());
            tracing::warn!(
                changed = self.union.durability().dirty_count(),
                partial,
                "unmounted; what was written is being made durable"
            );
        }
    }

    /// Ends the mount, as SIGTERM requests: its names are gone at once, and programs that still
    /// have a file open after ten seconds are cut off. What such a program has written by then is
    /// kept.
    pub async fn end(&self) {
        let unmounter = self.session.unmounter();
        in_background("unmount", move || unmounter.unmount());
        let mut waited = Duration::ZERO;
        while !self.is_over.get() && waited < END_WAIT_MAX {
            reactor::time::sleep(END_WAIT_STEP).await;
            waited += END_WAIT_STEP;
        }
        if self.is_over.get() {
            return;
        }
        tracing::warn!("files of this union are still open, and are cut off: it was told to end");
        self.is_cut_off.set(true);
        let unmounter = self.session.unmounter();
        in_background("cut-off", move || unmounter.abort());
    }

    /// Completes partial files, if the options request it at unmount.
    async fn fill_at_end(&self) -> Result<(), UnionError> {
        let options = &self.union.tree().options();
        if options.fill != FillMode::Unmount || options.read_only {
            return Ok(());
        }
        let upper = options.upper.clone().unwrap_or_default();
        let completed = self.union.partials().complete_all().await;
        let (_, unfinished) =
            completed.map_err(|errno| UnionError::layer("upperdir", &upper, errno))?;
        UnionError::unfinished(&upper, &unfinished).map_or(Ok(()), Err)
    }

    /// Returns a handle that ends the mount, from any thread.
    pub fn unmounter(&self) -> Unmounter {
        self.session.unmounter()
    }
}

/// Runs a call that may wait for the serving thread on a thread of its own.
pub(crate) fn in_background(
    name: &str,
    call: impl FnOnce() -> Result<(), fuse::FuseError> + Send + 'static,
) {
    let call = move || {
        if let Err(error) = call() {
            tracing::error!(%error, "cannot end a mount");
        }
    };
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(call) {
        tracing::error!(%error, "cannot start a thread to end a mount");
    }
}

/// Opens the layers and finishes what an earlier process has left.
pub(crate) fn open(options: Options) -> Result<Rc<Union>, UnionError> {
    Ok(Ready::open(options)?.union(&Shared::default()))
}

/// The parts of a union, after all work that may take long: waiting for another process that has
/// the directories, recovering the journal, and giving waiting copies their names. This work runs
/// on another thread than the one that will serve the union, because the other unions of that
/// thread would wait for it.
#[derive(Debug)]
pub(crate) struct Ready {
    options: Options,
    layers: Layers,
    journal: Option<Recovered>,
    /// Changes that an earlier process left without making them durable.
    sign: Option<Sign>,
    /// Attributes of the top layer's root.
    top: Stat,
    /// Whether the layers of the union could be recorded.
    recorded: Result<(), Errno>,
}

impl Ready {
    fn open(options: Options) -> Result<Self, UnionError> {
        options.check()?;
        let layers = Layers::open(&options)?;
        Self::of(options, layers)
    }

    /// Finishes what an earlier process has left in these layers.
    fn of(mut options: Options, layers: Layers) -> Result<Self, UnionError> {
        // Access control lists would name other users than those that the union shows.
        options.no_acl |= layers.owners().is_some() || options.maps_owners();
        let (mut journal, mut sign) = (None, None);
        if let (Some(upper), Some(work)) = (&layers.upper, &options.work) {
            // Before the work files of unfinished publications go.
            let found =
                Sign::leave(upper).map_err(|errno| UnionError::layer("workdir", work, errno))?;
            let opened = Recovered::open(upper, layers.prefix, &options, found.is_due)?;
            let is_filling = options.fill == FillMode::Background;
            let is_kept = |name: &[u8]| is_filling && opened.is_filling(name);
            durability::recover(upper, is_kept)
                .map_err(|errno| UnionError::layer("workdir", work, errno))?;
            (journal, sign) = (Some(opened), Some(found));
        }
        let path = options.upper.as_ref().unwrap_or(&options.lower[0]);
        let root = layers.upper.as_ref().map_or(&layers.lower[0].root, |upper| &upper.root);
        let top = sys::stat_at(root.as_fd(), b"")
            .map_err(|errno| UnionError::layer("top layer", path, errno))?;
        Ok(Self { options, layers, journal, sign, top, recorded: Ok(()) })
    }

    /// Does the same, and records the layers of the mount.
    pub(crate) fn of_mount(options: Options, layers: Layers) -> Result<Self, UnionError> {
        let ready = Self::of(options, layers)?;
        let has_segments = ready.journal.as_ref().is_some_and(Recovered::has_segments);
        let recorded = record::write(&ready.options, &ready.layers, has_segments);
        Ok(Self { recorded, ..ready })
    }

    /// Makes the union, on the thread that it belongs to.
    pub(crate) fn union(self, shared: &Shared) -> Rc<Union> {
        let Self { options, layers, journal, sign, top, recorded } = self;
        let opened = journal.zip(layers.upper.as_ref());
        let opened =
            opened.map(|(journal, upper)| Store::new(journal, upper, &options, shared.copier()));
        let (store, ended) = opened.unzip();
        let inherited = sign.map(Inherited::of).unwrap_or_default();
        let tree = Tree::new(options, layers, &top, store, Rc::clone(shared.kept()));
        let union = Union::new(tree, shared, inherited, &ended.unwrap_or_default());
        let union = Rc::new(union);
        if let Err(errno) = recorded {
            union.tree().note_error("recording the layers for union status and complete", errno);
        }
        union
    }
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
    let may_pass = rustix::process::geteuid().is_root()
        && !options.writeback
        && options.passthrough != Pass::Off;
    if may_pass {
        capabilities |= Capabilities::PASSTHROUGH;
    }
    let max_stack_depth = u32::from(may_pass);
    SessionOptions { capabilities, transport, max_stack_depth, ..SessionOptions::default() }
}

/// Waits until everything that was copied up in a mounted union has its name and is durable.
///
/// # Errors
/// Errors of opening the mount point and of the ioctl; `ENOTTY` if it is not a union of this
/// program.
pub fn sync_mount(mountpoint: &std::path::Path) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(mountpoint, flags, Mode::empty())?;
    fuse::send_ioctl(root.as_fd(), IOCTL_SYNC).map(drop)
}
