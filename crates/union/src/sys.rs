//! System calls on layers, by descriptor.
//!
//! Extended attributes and modes of files behind an `O_PATH` descriptor are reached through
//! `/proc/self/fd/N`: no other interface of the kernel takes such descriptors. Fully open files are
//! asked directly, which saves a walk through /proc. All calls here are short calls on metadata,
//! and block no longer than a local file system does.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use fuse::Time;
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, ResolveFlags, StatxFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

/// Most bytes of an extended attribute and of a list of names (`XATTR_SIZE_MAX`).
const XATTR_BYTES_MAX: usize = 65_536;
/// Bytes that are tried first, on the stack.
const XATTR_BYTES_FIRST: usize = 256;
/// A path that is opened in one step; longer ones are walked in several (`PATH_MAX` is 4096).
const PATH_BYTES_MAX: usize = 3800;

/// The attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// File type and permissions.
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) block_size: u32,
    pub(crate) rdev: (u32, u32),
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
}

impl Stat {
    pub(crate) fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    pub(crate) fn is_regular(&self) -> bool {
        self.kind() == libc::S_IFREG
    }

    /// Returns a character device 0:0.
    pub(crate) fn is_whiteout_device(&self) -> bool {
        self.kind() == libc::S_IFCHR && self.rdev == (0, 0)
    }
}

/// Returns the attributes of `name` in a directory, not following a symbolic link; of the
/// descriptor itself if the name is empty.
pub(crate) fn stat_at(directory: BorrowedFd<'_>, name: &[u8]) -> Result<Stat, Errno> {
    let mut flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    if name.is_empty() {
        flags |= AtFlags::EMPTY_PATH;
    }
    let found = rustix::fs::statx(directory, name, flags, StatxFlags::BASIC_STATS)?;
    let time =
        |time: rustix::fs::StatxTimestamp| Time { seconds: time.tv_sec, nanoseconds: time.tv_nsec };
    Ok(Stat {
        device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        mode: found.stx_mode.into(),
        nlink: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        size: found.stx_size,
        blocks: found.stx_blocks,
        block_size: found.stx_blksize,
        rdev: (found.stx_rdev_major, found.stx_rdev_minor),
        atime: time(found.stx_atime),
        mtime: time(found.stx_mtime),
        ctime: time(found.stx_ctime),
    })
}

/// As [`stat_at`], with nothing there as `None`.
pub(crate) fn find_at(directory: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Stat>, Errno> {
    match stat_at(directory, name) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Opens below a directory: never out of it, through a symbolic link or onto another mount.
pub(crate) fn open_below(
    directory: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let beneath = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let open = |directory: BorrowedFd<'_>, path: &[u8], flags| {
        let path = if path.is_empty() { b"." } else { path };
        loop {
            match rustix::fs::openat2(
                directory,
                path,
                flags | OFlags::CLOEXEC,
                Mode::empty(),
                beneath,
            ) {
                // A rename went on meanwhile; the kernel asks to try again.
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
    };
    let (mut held, mut rest): (Option<OwnedFd>, &[u8]) = (None, path);
    while rest.len() > PATH_BYTES_MAX {
        let cut = rest[..PATH_BYTES_MAX].iter().rposition(|&byte| byte == b'/');
        let cut = cut.ok_or(Errno::NAMETOOLONG)?;
        let at = held.as_ref().map_or(directory, AsFd::as_fd);
        held = Some(open(at, &rest[..cut], OFlags::PATH | OFlags::DIRECTORY)?);
        rest = &rest[cut + 1..];
    }
    open(held.as_ref().map_or(directory, AsFd::as_fd), rest, flags)
}

/// Returns the name by which the kernel knows a descriptor of ours; follows to the object itself.
pub(crate) fn proc_path(object: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", object.as_raw_fd())
}

/// Opens an object again with other flags.
pub(crate) fn reopen(object: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(proc_path(object), flags | OFlags::CLOEXEC, Mode::empty())
}

/// Returns an extended attribute of an object; `None` if it has none of this name or cannot have
/// any.
///
/// By its name in /proc, as most objects are open with `O_PATH`, which fgetxattr(2) refuses.
pub(crate) fn xattr(object: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    let path = proc_path(object);
    or_none(read_growing(|buffer| rustix::fs::getxattr(&path, name, buffer)))
}

/// Returns the names of an object's extended attributes.
pub(crate) fn xattr_names(object: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    let path = proc_path(object);
    names_of_list(read_growing(|buffer| rustix::fs::listxattr(&path, buffer)))
}

/// As [`xattr_names`], of a name in a directory, not following a symbolic link: one call, where
/// opening the name first would take four.
pub(crate) fn xattr_names_at(
    directory: BorrowedFd<'_>,
    name: &[u8],
) -> Result<Vec<Vec<u8>>, Errno> {
    let path = proc_path_of(directory, name);
    names_of_list(read_growing(|buffer| rustix::fs::llistxattr(&path[..], buffer)))
}

/// As [`xattr`], of a name in a directory, not following a symbolic link.
pub(crate) fn xattr_at(
    directory: BorrowedFd<'_>,
    name: &[u8],
    attribute: &[u8],
) -> Result<Option<Vec<u8>>, Errno> {
    let path = proc_path_of(directory, name);
    or_none(read_growing(|buffer| rustix::fs::lgetxattr(&path[..], attribute, buffer)))
}

/// Returns the name by which the kernel knows a name in a directory that we have open.
fn proc_path_of(directory: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    [proc_path(directory).as_bytes(), b"/", name].concat()
}

/// Turns the error of a missing or unsupported attribute into `None`.
fn or_none(value: Result<Option<Vec<u8>>, Errno>) -> Result<Option<Vec<u8>>, Errno> {
    match value {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        other => other,
    }
}

fn names_of_list(list: Result<Option<Vec<u8>>, Errno>) -> Result<Vec<Vec<u8>>, Errno> {
    let list = or_none(list)?.unwrap_or_default();
    let names = list.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

fn read_growing(
    read: impl Fn(&mut [u8]) -> Result<usize, Errno>,
) -> Result<Option<Vec<u8>>, Errno> {
    let mut first = [0; XATTR_BYTES_FIRST];
    match read(&mut first) {
        Ok(len) => return Ok(Some(first[..len].to_vec())),
        Err(Errno::RANGE) => {}
        Err(errno) => return Err(errno),
    }
    let mut all = vec![0; XATTR_BYTES_MAX];
    let len = read(&mut all)?;
    all.truncate(len);
    Ok(Some(all))
}

/// Sets an extended attribute.
pub(crate) fn set_xattr(
    object: BorrowedFd<'_>,
    name: &[u8],
    value: &[u8],
    flags: XattrFlags,
) -> Result<(), Errno> {
    match rustix::fs::fsetxattr(object, name, value, flags) {
        // `O_PATH`
        Err(Errno::BADF) => rustix::fs::setxattr(proc_path(object), name, value, flags),
        other => other,
    }
}

/// Removes an extended attribute.
pub(crate) fn remove_xattr(object: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    rustix::fs::removexattr(proc_path(object), name)
}

/// Sets permission bits (not of symbolic links, which have none).
pub(crate) fn chmod(object: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    rustix::fs::chmod(proc_path(object), Mode::from_raw_mode(mode & 0o7777))
}

/// Sets owner and group, where given.
pub(crate) fn chown(
    object: BorrowedFd<'_>,
    uid: Option<u32>,
    gid: Option<u32>,
) -> Result<(), Errno> {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    rustix::fs::chownat(object, c"", uid, gid, AtFlags::EMPTY_PATH)
}

/// Sets the times; `None` leaves one as it is.
pub(crate) fn set_times(
    object: BorrowedFd<'_>,
    atime: Option<Time>,
    mtime: Option<Time>,
) -> Result<(), Errno> {
    let time = |time: Option<Time>| match time {
        Some(time) => Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) },
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
    };
    let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
    rustix::fs::utimensat(object, c"", &times, AtFlags::EMPTY_PATH)
}

/// One name in a directory as getdents returns it.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) name: Vec<u8>,
    pub(crate) inode: u64,
    /// `S_IFMT` bits, 0 if not known.
    pub(crate) kind: u32,
}

/// Writes all bytes at an offset.
pub(crate) fn write_all_at(file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> Result<(), Errno> {
    let mut written = 0;
    while written < bytes.len() {
        match rustix::io::pwrite(file, &bytes[written..], offset + written as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes bytes at an offset up to the first error. Returns the number of bytes written, and the
/// error only if there are none, as write(2) does.
pub(crate) fn write_up_to_error_at(
    file: BorrowedFd<'_>,
    bytes: &[u8],
    offset: u64,
) -> Result<usize, Errno> {
    let mut written = 0;
    while written < bytes.len() {
        match rustix::io::pwrite(file, &bytes[written..], offset + written as u64) {
            Err(Errno::INTR) => {}
            Ok(count) if count > 0 => written += count,
            _ if written > 0 => break,
            Ok(_) => return Err(Errno::IO),
            Err(errno) => return Err(errno),
        }
    }
    Ok(written)
}

/// Returns all names of a directory but `.` and `..`.
pub(crate) fn list(directory: BorrowedFd<'_>) -> Result<Vec<Listed>, Errno> {
    let open = open_below(directory, b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(open)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let kind = match entry.file_type() {
            rustix::fs::FileType::Unknown => 0,
            kind => kind.as_raw_mode(),
        };
        names.push(Listed { name: name.to_vec(), inode: entry.ino(), kind });
    }
    Ok(names)
}

/// A shared descriptor.
pub(crate) type Fd = Rc<OwnedFd>;

/// Returns the system's number of an error of the reactor.
#[allow(clippy::needless_pass_by_value, reason = "the shape that `map_err` wants")]
pub(crate) fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Makes a change in a directory that must not show in its times.
pub(crate) fn keeping_times<T>(
    directory: BorrowedFd<'_>,
    change: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let before = stat_at(directory, b"")?;
    let done = change()?;
    set_times(directory, Some(before.atime), Some(before.mtime))?;
    Ok(done)
}

/// Returns a name below a path.
pub(crate) fn join(path: &[u8], name: &[u8]) -> Rc<[u8]> {
    if path.is_empty() {
        return name.into();
    }
    [path, b"/", name].concat().into()
}
