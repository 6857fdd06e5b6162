//! The directories that a union is made of, held open.
//!
//! Everything below a layer is reached relative to its descriptor, never through a symbolic link or
//! another mount. Lower layers are private clones of their mounts where that is allowed, so that
//! later mounts over them (above all this union itself) are not visible, as in the kernel. Upper
//! and work directory stay on their own mount, since a rename does not cross mounts.

mod index;
mod lock;
mod ordered;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;

use crate::copier::SyncMethod;
use crate::error::UnionError;
use crate::format::{Opaque, Origin, Prefix, suffix};
use crate::options::{Options, OwnerXattr, XattrClass};
use crate::sys::{self, Stat};

pub(crate) use index::existing as existing_index;
pub(crate) use lock::DirectoryLock;

/// The kernel's subdirectory of the work directory: for objects that live shorter than an
/// operation.
pub(crate) const WORK: &str = "work";
/// The union's own: for state that outlives the process.
pub(crate) const OWN: &str = "tsumugi";
/// In the kernel's subdirectory: with entries here, the kernel refuses to mount.
pub(crate) const INCOMPATIBLE: &str = "incompat";
/// In that directory: the mark of a union that is mounted, or was killed.
pub(crate) const MOUNTED: &str = "tsumugi-mounted";
/// In the union's own: copies that wait for their names.
pub(crate) const PENDING: &str = "pending";

/// Owner and mode of the root of an upper directory in which owners are to be kept in attributes.
const FIRST_OWNER: &[u8] = b"0:0:555";

/// `BTRFS_SUPER_MAGIC` of linux/magic.h.
const BTRFS_MAGIC: u64 = 0x9123_683e;

/// Number of a lower layer, counted from the top.
pub(crate) type LayerIndex = u16;

/// One lower layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) root: OwnedFd,
    /// Whether whiteouts may be attributes in its root.
    pub(crate) holds_whiteouts: bool,
    /// Its file system's number, if it has one.
    pub(crate) uuid: Option<[u8; 16]>,
    /// The attribute in which it keeps owners, if it does.
    pub(crate) owners: Option<OwnerXattr>,
}

/// The upper layer and its work directory.
#[derive(Debug)]
pub(crate) struct Upper {
    pub(crate) root: OwnedFd,
    /// The work directory itself.
    pub(crate) work_root: OwnedFd,
    /// Where new things are made before they get their name.
    pub(crate) work: OwnedFd,
    /// Where copies wait for their name.
    pub(crate) pending: Arc<OwnedFd>,
    /// The file system's device number.
    pub(crate) device: u64,
    /// How files and directories become durable.
    pub(crate) sync_method: SyncMethod,
    /// Whether a clone must be synced before it gets its name (btrfs).
    pub(crate) has_loose_clones: bool,
    /// Whether the end of a name can become durable without the whiteout in its place (btrfs, whose
    /// log of synced files has the end with any later sync, and the whiteout only with its
    /// directory).
    pub(crate) has_loose_whiteouts: bool,
    /// The attribute in which owners are kept, if they are.
    owners: Option<OwnerXattr>,
    _mark: Option<MountedMark>,
    _locks: [DirectoryLock; 2],
}

/// All layers of a union.
#[derive(Debug)]
pub(crate) struct Layers {
    pub(crate) upper: Option<Upper>,
    pub(crate) lower: Vec<Layer>,
    /// How many layers from the top take part in lookups; the rest holds data only.
    pub(crate) merged_count: usize,
    pub(crate) prefix: Prefix,
    /// The index of hard links; none without `index=on`.
    pub(crate) index: Option<OwnedFd>,
    /// Device numbers of the file systems that the layers' roots lie on.
    devices: Vec<u64>,
}

impl Layers {
    /// Opens all layers, and locks upper and work directory.
    pub(crate) fn open(options: &Options) -> Result<Self, UnionError> {
        Self::assemble(options, &Directories::open(options)?)
    }

    /// Makes layers of open directories, and locks upper and work directory. Waits for a process
    /// that is about to give them up.
    pub(crate) fn assemble(
        options: &Options,
        directories: &Directories,
    ) -> Result<Self, UnionError> {
        let mut devices = Vec::new();
        let mut upper = match (&options.upper, &options.work, &directories.upper) {
            (Some(upper), Some(work), Some((root, work_root))) => {
                Some(open_upper(upper, root.as_fd(), work, work_root.as_fd())?)
            }
            _ => None,
        };
        if let Some(upper) = &upper {
            devices.push(upper.device);
        }
        let prefix = match (options.xattrs, &upper) {
            (XattrClass::Auto, Some(upper)) => writable_prefix(upper.work.as_fd()),
            (XattrClass::Auto, None) if rustix::process::geteuid().is_root() => Prefix::TRUSTED,
            _ => Prefix::USER,
        };
        let mut lower = Vec::with_capacity(options.lower.len());
        for (path, root) in options.lower.iter().zip(&directories.lower) {
            lower.push(open_lower(path, root.as_fd(), prefix, &mut devices)?);
        }
        if let (Some(upper), Some(path)) = (&mut upper, &options.upper) {
            upper.owners = owners_of_upper(upper.root.as_fd(), options.owner_xattr, &lower)
                .map_err(|errno| UnionError::layer("upperdir", path, errno))?;
        }
        let merged_count = lower.len() - options.data_only_count;
        let mut layers = Self { upper, lower, merged_count, prefix, index: None, devices };
        layers.index = index::open(options, &layers)?;
        Ok(layers)
    }

    /// Returns the lower inode that a copy was made from, if it can be found; this needs the right
    /// to open by handle.
    pub(crate) fn original(&self, origin: &Origin) -> Option<Stat> {
        let layer = self.layer_on(&origin.uuid)?;
        let object = origin.handle.open(layer.root.as_fd()).ok()?;
        sys::stat_at(object.as_fd(), b"").ok()
    }

    /// Returns a lower layer on the file system with this number. Some have none but zeros, which
    /// names one only if there is no other file system to confuse it with.
    fn layer_on(&self, uuid: &[u8; 16]) -> Option<&Layer> {
        if *uuid == [0; 16] && self.devices.len() > 1 {
            return None;
        }
        self.lower.iter().find(|layer| layer.uuid.as_ref() == Some(uuid))
    }

    /// Returns the attribute in which the upper layer keeps owners, if it does.
    pub(crate) fn owners(&self) -> Option<OwnerXattr> {
        self.upper.as_ref().and_then(|upper| upper.owners)
    }

    /// Returns the number of the file system that a device is, for inode numbers.
    pub(crate) fn file_system_of(&self, device: u64) -> u8 {
        let found = self.devices.iter().position(|&known| known == device);
        found.unwrap_or(self.devices.len()) as u8
    }
}

fn open_directory(what: &'static str, path: &Path) -> Result<OwnedFd, UnionError> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| UnionError::layer(what, path, errno))
}

/// The directories of a union, opened by the caller with its rights, in its mount namespace. They
/// can be passed to another process.
#[derive(Debug)]
pub(crate) struct Directories {
    /// Upper and work directory.
    upper: Option<(OwnedFd, OwnedFd)>,
    /// The lower layers from the top.
    lower: Vec<OwnedFd>,
}

impl Directories {
    /// Opens them.
    ///
    /// # Errors
    /// Which, and why not.
    pub(crate) fn open(options: &Options) -> Result<Self, UnionError> {
        let upper = match (&options.upper, &options.work) {
            (Some(upper), Some(work)) => {
                let pair = (open_directory("upperdir", upper)?, open_directory("workdir", work)?);
                check_pair(upper, work)?;
                Some(pair)
            }
            _ => None,
        };
        let mut lower = Vec::with_capacity(options.lower.len());
        for path in &options.lower {
            lower.push(clone_lower(path)?);
        }
        Ok(Self { upper, lower })
    }

    /// Returns all descriptors: upper and work directory if there are any, then the lower layers.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let upper = self.upper.iter().flat_map(|(root, work)| [root.as_fd(), work.as_fd()]);
        upper.chain(self.lower.iter().map(OwnedFd::as_fd)).collect()
    }

    /// Returns the same, open once more.
    pub(crate) fn try_clone(&self) -> std::io::Result<Self> {
        let upper = match &self.upper {
            Some((root, work)) => Some((root.try_clone()?, work.try_clone()?)),
            None => None,
        };
        let lower: std::io::Result<_> = self.lower.iter().map(OwnedFd::try_clone).collect();
        Ok(Self { upper, lower: lower? })
    }

    /// Makes directories of the result of [`Directories::descriptors`]; `None` if their number does
    /// not fit the options.
    pub(crate) fn from_descriptors(options: &Options, descriptors: Vec<OwnedFd>) -> Option<Self> {
        let has_upper = options.upper.is_some() && options.work.is_some();
        let mut descriptors = descriptors.into_iter();
        let upper = if has_upper { Some((descriptors.next()?, descriptors.next()?)) } else { None };
        let lower: Vec<OwnedFd> = descriptors.collect();
        (lower.len() == options.lower.len()).then_some(Self { upper, lower })
    }
}

/// Returns a private clone of a lower directory's mount, or the directory itself.
fn clone_lower(path: &Path) -> Result<OwnedFd, UnionError> {
    let error = |errno| UnionError::layer("lowerdir", path, errno);
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    match rustix::mount::open_tree(CWD, path, clone) {
        Ok(root) => Ok(root),
        Err(Errno::NOENT) => Err(error(Errno::NOENT)),
        // Not permitted, or not supported by the kernel: the directory itself.
        Err(_) => rustix::fs::open(
            path,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(error),
    }
}

fn open_lower(
    path: &Path,
    root: BorrowedFd<'_>,
    prefix: Prefix,
    devices: &mut Vec<u64>,
) -> Result<Layer, UnionError> {
    let error = |errno| UnionError::layer("lowerdir", path, errno);
    let root = root.try_clone_to_owned().map_err(crate::sys::errno_of).map_err(error)?;
    let stat = sys::stat_at(root.as_fd(), b"").map_err(error)?;
    if !stat.is_directory() {
        return Err(error(Errno::NOTDIR));
    }
    if !devices.contains(&stat.device) {
        devices.push(stat.device);
    }
    let opaque = sys::xattr(root.as_fd(), &prefix.name(suffix::OPAQUE)).map_err(error)?;
    let holds_whiteouts =
        opaque.is_some_and(|value| Opaque::parse(&value) == Opaque::HoldsWhiteouts);
    // Opening by handle, and asking for the number, take a descriptor that is really open.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let root = sys::open_below(root.as_fd(), b"", flags).unwrap_or(root);
    let uuid = reactor::file::file_system_uuid(root.as_fd()).ok();
    let owners = detect_owners(root.as_fd()).map_err(error)?;
    Ok(Layer { root, holds_whiteouts, uuid, owners })
}

/// Returns the attribute in which a layer keeps owners: its root has it.
fn detect_owners(root: BorrowedFd<'_>) -> Result<Option<OwnerXattr>, Errno> {
    OwnerXattr::detect(|name| Ok(sys::xattr(root, name)?.is_some()))
}

/// Returns the attribute in which the upper layer keeps owners: that which is asked for, or which
/// it has already. Its root gets it from a lower layer, else the value that fuse-overlayfs begins
/// with.
fn owners_of_upper(
    root: BorrowedFd<'_>,
    asked: Option<OwnerXattr>,
    lower: &[Layer],
) -> Result<Option<OwnerXattr>, Errno> {
    let found = detect_owners(root)?;
    let form = match (asked, found) {
        (None, found) => return Ok(found),
        (Some(OwnerXattr::Containers), Some(OwnerXattr::FuseOverlayfs)) => return Ok(found),
        (Some(form), found) if found == Some(form) => return Ok(found),
        (Some(form), _) => form,
    };
    let mut value = None;
    for layer in lower {
        if let (None, Some(below)) = (&value, layer.owners) {
            value = sys::xattr(layer.root.as_fd(), below.attribute())?;
        }
    }
    let value = value.unwrap_or_else(|| FIRST_OWNER.to_vec());
    sys::set_xattr(root, form.attribute(), &value, XattrFlags::empty())?;
    Ok(Some(form))
}

fn open_upper(
    upper_path: &Path,
    root: BorrowedFd<'_>,
    work_path: &Path,
    work_root: BorrowedFd<'_>,
) -> Result<Upper, UnionError> {
    let error = |errno| UnionError::layer("workdir", work_path, errno);
    // Open file descriptions of their own: a lock must not outlive this process because another
    // process holds the directories too.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let root = sys::open_below(root, b"", flags)
        .map_err(|errno| UnionError::layer("upperdir", upper_path, errno))?;
    let work_root = sys::open_below(work_root, b"", flags).map_err(error)?;
    let locks = [
        DirectoryLock::take(upper_path, root.as_fd())?,
        DirectoryLock::take(work_path, work_root.as_fd())?,
    ];
    let work = make_directory(work_root.as_fd(), WORK).map_err(error)?;
    let own = make_directory(work_root.as_fd(), OWN).map_err(error)?;
    let pending = Arc::new(make_directory(own.as_fd(), PENDING).map_err(error)?);
    for directory in [&work, &own, &pending] {
        remove_acls(directory.as_fd()).map_err(error)?;
    }
    let device = sys::stat_at(root.as_fd(), b"").map_err(error)?.device;
    if device != sys::stat_at(work.as_fd(), b"").map_err(error)?.device {
        return Err(UnionError::UpperAndWork {
            upper: upper_path.into(),
            work: work_path.into(),
            reason: "must be on the same file system",
        });
    }
    clear_work(work.as_fd()).map_err(error)?;
    let mark = MountedMark::set(work.as_fd());
    let kind = rustix::fs::fstatfs(&root).map_err(error)?.f_type;
    let has_loose_clones = kind as u64 == BTRFS_MAGIC;
    let owners = None;
    let sync_method = sync_method_of(&pending, device).map_err(error)?;
    Ok(Upper {
        root,
        work_root,
        work,
        pending,
        device,
        sync_method,
        has_loose_clones,
        has_loose_whiteouts: has_loose_clones,
        owners,
        _mark: mark,
        _locks: locks,
    })
}

/// Returns how files on the file system of the waiting copies become durable.
fn sync_method_of(pending: &OwnedFd, device: u64) -> Result<SyncMethod, Errno> {
    if !ordered::is_proven(pending.as_fd(), device) {
        return Ok(SyncMethod::Each { device });
    }
    let mark = pending.try_clone().map_err(crate::sys::errno_of)?;
    Ok(SyncMethod::Commit {
        device,
        mark: reactor::File::from_handle(reactor::Handle::from_fd(mark)),
    })
}

/// Refuses a work directory in the upper one and the reverse.
fn check_pair(upper: &Path, work: &Path) -> Result<(), UnionError> {
    let canonical = |what, path: &Path| {
        path.canonicalize().map_err(|source| UnionError::Layer { what, path: path.into(), source })
    };
    let (upper_real, work_real) = (canonical("upperdir", upper)?, canonical("workdir", work)?);
    if upper_real.starts_with(&work_real) || work_real.starts_with(&upper_real) {
        let reason = "must not lie in one another";
        return Err(UnionError::UpperAndWork { upper: upper.into(), work: work.into(), reason });
    }
    Ok(())
}

pub(crate) fn make_directory(parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    sys::open_below(parent, name.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Removes the access control lists that a directory of ours has from a default one of WORKDIR. New
/// files and copies are made in these directories and would inherit it.
fn remove_acls(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    for acl in ["system.posix_acl_default", "system.posix_acl_access"] {
        match sys::remove_xattr(directory, acl.as_bytes()) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Removes the leftovers of an earlier process, except for the mark by which the kernel refuses
/// directories with partial copies. That mark must never be missing.
fn clear_work(work: BorrowedFd<'_>) -> Result<(), Errno> {
    for entry in sys::list(work)? {
        if entry.name != INCOMPATIBLE.as_bytes() {
            remove(work, &entry.name)?;
            continue;
        }
        let inner = sys::open_below(work, &entry.name, OFlags::RDONLY | OFlags::DIRECTORY)?;
        for mark in sys::list(inner.as_fd())? {
            if mark.name != OWN.as_bytes() && mark.name != MOUNTED.as_bytes() {
                remove(inner.as_fd(), &mark.name)?;
            }
        }
        match rustix::fs::unlinkat(work, INCOMPATIBLE, rustix::fs::AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// The mark that makes the kernel's overlayfs refuse the directories of a mounted union; it has no
/// other sign of the union. After a kill the mark stays for the next union, which finishes the work
/// of the killed one.
#[derive(Debug)]
struct MountedMark {
    work: OwnedFd,
}

impl MountedMark {
    fn set(work: BorrowedFd<'_>) -> Option<Self> {
        let made = (|| {
            let inner = make_directory(work, INCOMPATIBLE)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            rustix::fs::openat(&inner, MOUNTED, flags, Mode::RUSR | Mode::WUSR)?;
            work.try_clone_to_owned().map_err(crate::sys::errno_of)
        })();
        let warned = made.inspect_err(|errno| {
            tracing::warn!(%errno, "the kernel's overlayfs will not be kept from this union's directories");
        });
        warned.ok().map(|work| Self { work })
    }
}

impl Drop for MountedMark {
    fn drop(&mut self) {
        use rustix::fs::AtFlags;
        if let Ok(inner) = make_directory(self.work.as_fd(), INCOMPATIBLE) {
            let _ = rustix::fs::unlinkat(&inner, MOUNTED, AtFlags::empty());
        }
        // The mark of partial files may lie there still.
        let _ = rustix::fs::unlinkat(&self.work, INCOMPATIBLE, AtFlags::REMOVEDIR);
    }
}

/// Removes everything in a directory.
pub(crate) fn clear(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    for entry in sys::list(directory)? {
        remove(directory, &entry.name)?;
    }
    Ok(())
}

/// Removes a name with everything below it. Work directories are a few levels deep at most, because
/// a removed directory has no visible entries.
pub(crate) fn remove(directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    use rustix::fs::{AtFlags, unlinkat};
    match unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        Err(Errno::NOENT) => return Ok(()),
        other => return other,
    }
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        other => return other,
    }
    let inner = sys::open_below(directory, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
    clear(inner.as_fd())?;
    unlinkat(directory, name, AtFlags::REMOVEDIR)
}

/// Returns the attribute class that can be written to the upper file system.
fn writable_prefix(work: BorrowedFd<'_>) -> Prefix {
    let name = Prefix::TRUSTED.name(suffix::OPAQUE);
    match sys::set_xattr(work, &name, b"n", XattrFlags::empty()) {
        Ok(()) => {
            // If removal fails, the attribute has no effect.
            let _ = sys::remove_xattr(work, &name);
            Prefix::TRUSTED
        }
        Err(_) => Prefix::USER,
    }
}
