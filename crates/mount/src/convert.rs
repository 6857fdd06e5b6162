//! Conversions between the types of the client and those of FUSE.

use client::Setting;
use fuse::{
    Attributes, Creation, Entry, Errno, FileType, NodeId, Request, SetAttributes, SetTime, Time,
};
use protocol::attr::AttrChanges;
use protocol::{Attr, FileKind, Timestamp};
use std::time::Duration;

/// The value of `st_blksize`: the size of I/O that suits the file system.
const PREFERRED_IO_BYTES: u32 = 1 << 20;

pub(crate) fn errno(errno: protocol::Errno) -> Errno {
    Errno::from_raw_os_error(errno.raw())
}

fn time(timestamp: Timestamp) -> Time {
    Time { seconds: timestamp.seconds(), nanoseconds: timestamp.nanoseconds() }
}

fn timestamp(time: SetTime) -> Timestamp {
    match time {
        SetTime::Now => now(),
        SetTime::At(time) => Timestamp::from_parts(time.seconds, time.nanoseconds),
    }
}

pub(crate) fn now() -> Timestamp {
    Timestamp(reactor::time::system_time() as i64)
}

pub(crate) fn attributes(attr: &Attr) -> Attributes {
    Attributes {
        inode: attr.inode.0,
        size: attr.size,
        blocks: attr.allocated_bytes.div_ceil(512),
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        mode: attr.kind.mode_bits() | u32::from(attr.mode),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        block_size: PREFERRED_IO_BYTES,
    }
}

pub(crate) fn entry(node: NodeId, attr: &Attr) -> Entry {
    Entry {
        node,
        generation: 0,
        entry_valid: Duration::ZERO,
        attributes_valid: Duration::ZERO,
        attributes: attributes(attr),
    }
}

pub(crate) fn file_type(kind: FileKind) -> FileType {
    FileType::from_mode(kind.mode_bits())
}

pub(crate) fn setting(request: &Request, creation: &Creation) -> Setting {
    Setting { mode: (creation.mode & 0o7777) as u16, uid: request.uid, gid: request.gid }
}

pub(crate) fn changes(set: &SetAttributes) -> AttrChanges {
    AttrChanges {
        mode: set.mode.map(|mode| (mode & 0o7777) as u16),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime.map(timestamp),
        mtime: set.mtime.map(timestamp),
        layout: None,
        kill_privileges: set.kill_suid_sgid,
    }
}
