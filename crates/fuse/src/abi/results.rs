//! The arguments of replies (`fuse_*_out`).

use super::requests::FileLock;
use super::wire;

wire! {
    /// `fuse_attr`
    Attr[88] {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
}
wire! {
    /// `fuse_sx_time`
    SxTime[16] { tv_sec: i64, tv_nsec: u32, reserved: i32 }
}
wire! {
    /// `fuse_statx`
    Statx[256] {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime,
        btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32, rdev_minor: u32,
        dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
}
wire! {
    /// `fuse_kstatfs`, which is all of `fuse_statfs_out`
    Kstatfs[80] {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
}
wire! {
    /// `fuse_entry_out`
    EntryOut[128] {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
}
wire! {
    /// `fuse_attr_out`
    AttrOut[104] { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
}
wire! {
    /// `fuse_statx_out`
    StatxOut[288] {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx,
    }
}
wire! {
    /// `fuse_open_out`
    OpenOut[16] { fh: u64, open_flags: u32, backing_id: i32 }
}
wire! {
    /// `fuse_write_out`
    WriteOut[8] { size: u32, padding: u32 }
}
wire! {
    /// `fuse_getxattr_out`
    GetxattrOut[8] { size: u32, padding: u32 }
}
wire! {
    /// `fuse_lk_out`
    LkOut[24] { lk: FileLock }
}
wire! {
    /// `fuse_init_out`
    InitOut[64] {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }
}
wire! {
    /// `fuse_bmap_out`
    BmapOut[8] { block: u64 }
}
wire! {
    /// `fuse_ioctl_out`
    IoctlOut[16] { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
}
wire! {
    /// `fuse_poll_out`
    PollOut[8] { revents: u32, padding: u32 }
}
wire! {
    /// `fuse_lseek_out`
    LseekOut[8] { offset: u64 }
}
wire! {
    /// `fuse_copy_file_range_out`
    CopyFileRangeOut[8] { bytes_copied: u64 }
}
wire! {
    /// The fixed part of `fuse_dirent`; the name follows, padded to eight bytes.
    Dirent[24] { ino: u64, off: u64, namelen: u32, kind: u32 }
}
