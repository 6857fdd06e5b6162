//! Encoding of [`Response`]: a fixed part, stored in place, and chunks.

use std::time::Duration;

use zerocopy::{Immutable, IntoBytes};

use super::{Attributes, Chunks, Entry, FileSystemStatistics, Opened, Response, Statx};
use crate::abi::{self, OutHeader, opcode};
use crate::types::{Errno, Time, Unique, lifetime};

/// Room for the largest fixed part (`fuse_statx_out`).
const FIXED_BYTES_MAX: usize = size_of::<abi::StatxOut>();

/// An answer ready to send.
#[derive(Debug)]
pub(crate) struct Encoded {
    header: OutHeader,
    fixed: [u8; FIXED_BYTES_MAX],
    fixed_len: usize,
    /// Payload behind the fixed part.
    pub(crate) chunks: Chunks,
}

impl Encoded {
    fn new(error: i32) -> Self {
        Self {
            header: OutHeader { error, ..OutHeader::default() },
            fixed: [0; FIXED_BYTES_MAX],
            fixed_len: 0,
            chunks: Chunks::new(),
        }
    }

    fn push(&mut self, value: &(impl IntoBytes + Immutable)) {
        let bytes = value.as_bytes();
        self.fixed[self.fixed_len..][..bytes.len()].copy_from_slice(bytes);
        self.fixed_len += bytes.len();
    }

    /// Returns the fixed part.
    pub(crate) fn fixed(&self) -> &[u8] {
        &self.fixed[..self.fixed_len]
    }

    /// Returns the number of bytes behind the header.
    pub(crate) fn body_len(&self) -> usize {
        self.fixed_len + self.chunks.iter().map(reactor::Chunk::len).sum::<usize>()
    }

    /// Returns the header for the request with this number.
    pub(crate) fn header(&self, unique: Unique) -> OutHeader {
        let len = (size_of::<OutHeader>() + self.body_len()) as u32;
        OutHeader { len, error: self.header.error, unique: unique.0 }
    }
}

/// Encodes an error.
pub(crate) fn encode_error(errno: Errno) -> Encoded {
    Encoded::new(-errno.raw_os_error())
}

/// Encodes the answer to an operation with this code (which matters only for copies).
pub(crate) fn encode(response: Response, code: u32) -> Encoded {
    if let Response::Error(errno) = response {
        return encode_error(errno);
    }
    let mut encoded = Encoded::new(0);
    match response {
        Response::Error(_) | Response::Done => {}
        Response::Entry(entry) => encoded.push(&entry_out(&entry)),
        Response::Attributes { attributes, valid } => encoded.push(&attr_out(&attributes, valid)),
        Response::Statx { statx, valid } => encoded.push(&statx_out(&statx, valid)),
        Response::Opened(opened) => encoded.push(&open_out(&opened)),
        Response::Created(entry, opened) => {
            encoded.push(&entry_out(&entry));
            encoded.push(&open_out(&opened));
        }
        Response::Data(chunks) => encoded.chunks = chunks,
        Response::Written(size) => encoded.push(&abi::WriteOut { size, padding: 0 }),
        Response::Copied(bytes_copied) if code == opcode::COPY_FILE_RANGE_64 => {
            encoded.push(&abi::CopyFileRangeOut { bytes_copied });
        }
        Response::Copied(bytes) => {
            let size = u32::try_from(bytes).unwrap_or(u32::MAX);
            encoded.push(&abi::WriteOut { size, padding: 0 });
        }
        Response::Directory(directory) => {
            let buffer = directory.into_buffer();
            if !buffer.is_empty() {
                encoded.chunks.push(buffer.into());
            }
        }
        Response::XattrSize(size) => encoded.push(&abi::GetxattrOut { size, padding: 0 }),
        Response::Statistics(statistics) => encoded.push(&kstatfs(&statistics)),
        Response::Lock(lock) => encoded.push(&abi::LkOut {
            lk: abi::FileLock {
                start: lock.start,
                end: lock.end,
                kind: lock.kind.to_raw(),
                pid: lock.pid,
            },
        }),
        Response::Offset(offset) => encoded.push(&abi::LseekOut { offset }),
        Response::Events(revents) => encoded.push(&abi::PollOut { revents, padding: 0 }),
        Response::Ioctl { result, output } => {
            encoded.push(&abi::IoctlOut { result, ..Default::default() });
            encoded.chunks = output;
        }
        Response::Block(block) => encoded.push(&abi::BmapOut { block }),
    }
    encoded
}

fn attr(attributes: &Attributes) -> abi::Attr {
    abi::Attr {
        ino: attributes.inode,
        size: attributes.size,
        blocks: attributes.blocks,
        atime: attributes.atime.seconds as u64,
        mtime: attributes.mtime.seconds as u64,
        ctime: attributes.ctime.seconds as u64,
        atimensec: attributes.atime.nanoseconds,
        mtimensec: attributes.mtime.nanoseconds,
        ctimensec: attributes.ctime.nanoseconds,
        mode: attributes.mode,
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.rdev,
        blksize: attributes.block_size,
        flags: 0,
    }
}

/// Returns the wire form of an entry.
pub(super) fn entry_out(entry: &Entry) -> abi::EntryOut {
    let (entry_valid, entry_valid_nsec) = lifetime(entry.entry_valid);
    let (attr_valid, attr_valid_nsec) = lifetime(entry.attributes_valid);
    abi::EntryOut {
        nodeid: entry.node.0,
        generation: entry.generation,
        entry_valid,
        attr_valid,
        entry_valid_nsec,
        attr_valid_nsec,
        attr: attr(&entry.attributes),
    }
}

fn attr_out(attributes: &Attributes, valid: Duration) -> abi::AttrOut {
    let (attr_valid, attr_valid_nsec) = lifetime(valid);
    abi::AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: attr(attributes) }
}

fn sx_time(time: Time) -> abi::SxTime {
    abi::SxTime { tv_sec: time.seconds, tv_nsec: time.nanoseconds, reserved: 0 }
}

fn statx_out(statx: &Statx, valid: Duration) -> abi::StatxOut {
    let (attr_valid, attr_valid_nsec) = lifetime(valid);
    let attributes = &statx.attributes;
    let birth = if statx.btime.is_some() { libc::STATX_BTIME } else { 0 };
    let stat = abi::Statx {
        mask: libc::STATX_BASIC_STATS | birth,
        blksize: attributes.block_size,
        attributes: statx.flags,
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        mode: attributes.mode as u16,
        ino: attributes.inode,
        size: attributes.size,
        blocks: attributes.blocks,
        attributes_mask: statx.flags_mask,
        atime: sx_time(attributes.atime),
        btime: sx_time(statx.btime.unwrap_or_default()),
        ctime: sx_time(attributes.ctime),
        mtime: sx_time(attributes.mtime),
        rdev_major: libc::major(attributes.rdev.into()),
        rdev_minor: libc::minor(attributes.rdev.into()),
        ..Default::default()
    };
    abi::StatxOut { attr_valid, attr_valid_nsec, flags: 0, spare: [0; 2], stat }
}

fn open_out(opened: &Opened) -> abi::OpenOut {
    let backing_id = opened.backing.as_ref().map_or(0, crate::BackingId::raw);
    abi::OpenOut { fh: opened.handle.0, open_flags: opened.flags.bits(), backing_id }
}

fn kstatfs(statistics: &FileSystemStatistics) -> abi::Kstatfs {
    abi::Kstatfs {
        blocks: statistics.blocks,
        bfree: statistics.blocks_free,
        bavail: statistics.blocks_available,
        files: statistics.files,
        ffree: statistics.files_free,
        bsize: statistics.block_size,
        namelen: statistics.name_length_max,
        frsize: statistics.fragment_size,
        ..Default::default()
    }
}
