//! Message headers, operation codes, notification codes and the io_uring transport's areas.

use super::wire;

/// The major version that this crate supports.
pub(crate) const KERNEL_VERSION: u32 = 7;
/// The newest minor version that this crate supports.
pub(crate) const KERNEL_MINOR_VERSION: u32 = 45;
/// The oldest minor version that this crate supports (Linux 5.4).
pub(crate) const KERNEL_MINOR_VERSION_MIN: u32 = 31;

wire! {
    /// `fuse_in_header`: starts every request.
    InHeader[40] {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
}

wire! {
    /// `fuse_out_header`: starts every reply and notification (`unique` 0, code in `error`).
    OutHeader[16] { len: u32, error: i32, unique: u64 }
}

/// Operation codes (`enum fuse_opcode`).
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const GETLK: u32 = 31;
    pub(crate) const SETLK: u32 = 32;
    pub(crate) const SETLKW: u32 = 33;
    pub(crate) const ACCESS: u32 = 34;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const BMAP: u32 = 37;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const POLL: u32 = 40;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
    pub(crate) const COPY_FILE_RANGE_64: u32 = 53;
}

/// `FUSE_UNIQUE_RESEND`: a bit in a request's number; the kernel sent the request before.
pub(crate) const RESENT: u64 = 1 << 63;

/// Notification codes (`enum fuse_notify_code`).
pub(crate) mod notify {
    pub(crate) const POLL: i32 = 1;
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const INVAL_ENTRY: i32 = 3;
    pub(crate) const STORE: i32 = 4;
    pub(crate) const DELETE: i32 = 6;
    pub(crate) const RESEND: i32 = 7;
    pub(crate) const INC_EPOCH: i32 = 8;
}

wire! {
    /// `fuse_notify_poll_wakeup_out`
    NotifyPollWakeupOut[8] { kh: u64 }
}
wire! {
    /// `fuse_notify_inval_inode_out`
    NotifyInvalInodeOut[24] { ino: u64, off: i64, len: i64 }
}
wire! {
    /// `fuse_notify_inval_entry_out`
    NotifyInvalEntryOut[16] { parent: u64, namelen: u32, flags: u32 }
}
wire! {
    /// `fuse_notify_delete_out`
    NotifyDeleteOut[24] { parent: u64, child: u64, namelen: u32, padding: u32 }
}
wire! {
    /// `fuse_notify_store_out`
    NotifyStoreOut[24] { nodeid: u64, offset: u64, size: u32, padding: u32 }
}

/// `FUSE_EXPIRE_ONLY`: let the entry expire instead of dropping it.
pub(crate) const EXPIRE_ONLY: u32 = 1;

wire! {
    /// `fuse_uring_ent_in_out`
    UringEntInOut[32] { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64 }
}

/// `fuse_uring_req_header`: the headers that the kernel writes and reads, one set per ring entry.
#[repr(C)]
#[derive(
    Clone,
    Copy,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::KnownLayout,
    zerocopy::Immutable,
)]
pub(crate) struct UringReqHeader {
    /// `fuse_in_header` on fetch, `fuse_out_header` on commit.
    pub(crate) in_out: [u8; 128],
    /// The operation's first argument.
    pub(crate) op_in: [u8; 128],
    /// Sizes and the commit identifier.
    pub(crate) ring_ent_in_out: UringEntInOut,
}
const _: () = assert!(size_of::<UringReqHeader>() == 288);

wire! {
    /// `fuse_uring_cmd_req`: in the second half of a 128-byte submission entry.
    UringCmdReq[24] { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6] }
}

/// `FUSE_IO_URING_CMD_REGISTER`
pub(crate) const URING_CMD_REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`
pub(crate) const URING_CMD_COMMIT_AND_FETCH: u32 = 2;

wire! {
    /// `fuse_backing_map`
    BackingMap[16] { fd: i32, flags: u32, padding: u64 }
}
