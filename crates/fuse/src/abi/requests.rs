//! The arguments of requests (`fuse_*_in`).

use super::wire;

wire! {
    /// `fuse_file_lock`
    FileLock[24] { start: u64, end: u64, kind: u32, pid: u32 }
}
wire! {
    /// `fuse_forget_in`
    ForgetIn[8] { nlookup: u64 }
}
wire! {
    /// `fuse_forget_one`
    ForgetOne[16] { nodeid: u64, nlookup: u64 }
}
wire! {
    /// `fuse_batch_forget_in`
    BatchForgetIn[8] { count: u32, dummy: u32 }
}
wire! {
    /// `fuse_getattr_in`
    GetattrIn[16] { getattr_flags: u32, dummy: u32, fh: u64 }
}
wire! {
    /// `fuse_statx_in`
    StatxIn[24] { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
}
wire! {
    /// `fuse_mknod_in`
    MknodIn[16] { mode: u32, rdev: u32, umask: u32, padding: u32 }
}
wire! {
    /// `fuse_mkdir_in`
    MkdirIn[8] { mode: u32, umask: u32 }
}
wire! {
    /// `fuse_rename_in`
    RenameIn[8] { newdir: u64 }
}
wire! {
    /// `fuse_rename2_in`
    Rename2In[16] { newdir: u64, flags: u32, padding: u32 }
}
wire! {
    /// `fuse_link_in`
    LinkIn[8] { oldnodeid: u64 }
}
wire! {
    /// `fuse_setattr_in`
    SetattrIn[88] {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
}
wire! {
    /// `fuse_open_in`
    OpenIn[8] { flags: u32, open_flags: u32 }
}
wire! {
    /// `fuse_create_in`
    CreateIn[16] { flags: u32, mode: u32, umask: u32, open_flags: u32 }
}
wire! {
    /// `fuse_release_in`
    ReleaseIn[24] { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
}
wire! {
    /// `fuse_flush_in`
    FlushIn[24] { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
}
wire! {
    /// `fuse_read_in`
    ReadIn[40] {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
}
wire! {
    /// `fuse_write_in`
    WriteIn[40] {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
}
wire! {
    /// `fuse_fsync_in`
    FsyncIn[16] { fh: u64, fsync_flags: u32, padding: u32 }
}
wire! {
    /// The short form of `fuse_setxattr_in`, without `FUSE_SETXATTR_EXT`.
    SetxattrInCompat[8] { size: u32, flags: u32 }
}
wire! {
    /// `fuse_setxattr_in`
    SetxattrIn[16] { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
}
wire! {
    /// `fuse_getxattr_in`
    GetxattrIn[8] { size: u32, padding: u32 }
}
wire! {
    /// `fuse_lk_in`
    LkIn[48] { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
}
wire! {
    /// `fuse_access_in`
    AccessIn[8] { mask: u32, padding: u32 }
}
wire! {
    /// The first four fields of `fuse_init_in`, all that minors before 36 send.
    InitInCompat[16] { major: u32, minor: u32, max_readahead: u32, flags: u32 }
}
wire! {
    /// `fuse_init_in`
    InitIn[64] {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
}
wire! {
    /// `fuse_interrupt_in`
    InterruptIn[8] { unique: u64 }
}
wire! {
    /// `fuse_bmap_in`
    BmapIn[16] { block: u64, blocksize: u32, padding: u32 }
}
wire! {
    /// `fuse_ioctl_in`
    IoctlIn[32] { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
}
wire! {
    /// `fuse_poll_in`
    PollIn[24] { fh: u64, kh: u64, flags: u32, events: u32 }
}
wire! {
    /// `fuse_fallocate_in`
    FallocateIn[32] { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
}
wire! {
    /// `fuse_lseek_in`
    LseekIn[24] { fh: u64, offset: u64, whence: u32, padding: u32 }
}
wire! {
    /// `fuse_copy_file_range_in`
    CopyFileRangeIn[56] {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
}
wire! {
    /// `fuse_syncfs_in`
    SyncfsIn[8] { padding: u64 }
}
wire! {
    /// `fuse_ext_header`; a security context's header has its count in the place of `kind`.
    ExtHeader[8] { size: u32, kind: u32 }
}
wire! {
    /// `fuse_secctx`
    Secctx[8] { size: u32, padding: u32 }
}

/// The largest `kind` of an extension that means a number of security contexts.
pub(crate) const MAX_NR_SECCTX: u32 = 31;
/// `FUSE_EXT_GROUPS`
pub(crate) const EXT_GROUPS: u32 = 32;

/// Bits of `fuse_setattr_in.valid`.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const LOCKOWNER: u32 = 1 << 9;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// `FUSE_GETATTR_FH`
pub(crate) const GETATTR_FH: u32 = 1;
/// `FUSE_OPEN_KILL_SUIDGID`
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1;
/// `FUSE_LK_FLOCK`
pub(crate) const LK_FLOCK: u32 = 1;
/// `FUSE_RELEASE_FLUSH`
pub(crate) const RELEASE_FLUSH: u32 = 1;
/// `FUSE_RELEASE_FLOCK_UNLOCK`
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 2;
/// `FUSE_READ_LOCKOWNER`
pub(crate) const READ_LOCKOWNER: u32 = 2;
/// `FUSE_WRITE_CACHE`
pub(crate) const WRITE_CACHE: u32 = 1;
/// `FUSE_WRITE_LOCKOWNER`
pub(crate) const WRITE_LOCKOWNER: u32 = 2;
/// `FUSE_WRITE_KILL_SUIDGID`
pub(crate) const WRITE_KILL_SUIDGID: u32 = 4;
/// `FUSE_FSYNC_FDATASYNC`
pub(crate) const FSYNC_FDATASYNC: u32 = 1;
/// `FUSE_POLL_SCHEDULE_NOTIFY`
pub(crate) const POLL_SCHEDULE_NOTIFY: u32 = 1;
/// `FUSE_IOCTL_DIR`
pub(crate) const IOCTL_DIR: u32 = 1 << 4;
/// `FUSE_IOCTL_32BIT`, `FUSE_IOCTL_COMPAT` and `FUSE_IOCTL_COMPAT_X32`
pub(crate) const IOCTL_COMPAT_ANY: u32 = 1 | (1 << 3) | (1 << 5);
