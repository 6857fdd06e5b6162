//! Conversion of an operation to a submission queue entry.

use crate::chunk::{Chunk, Segment};
use crate::engine::Arguments;
use crate::handle::UringCmd;
use crate::operation::Operation;
use crate::slots::Slot;
use io_uring::squeue::{Entry, Entry128};
use io_uring::{opcode, types};
use std::net::Shutdown;
use std::os::fd::RawFd;

const _: () = assert!(size_of::<Entry>() == 64 && size_of::<Entry128>() == 128);

/// An entry of either size.
pub(super) enum Built {
    Normal(Entry),
    Wide(Entry128),
}

impl Built {
    pub(super) fn into_wide(self) -> Entry128 {
        match self {
            Self::Normal(entry) => entry.into(),
            Self::Wide(entry) => entry,
        }
    }
}

/// Returns the first half of a wide entry. (So a wide command on a narrow ring loses its end, and
/// the kernel answers `EINVAL` or the driver refuses it.)
pub(super) fn narrow(entry: &Entry128) -> &Entry {
    // SAFETY: an `Entry128` is `repr(C)` and begins with an `Entry`; sizes are asserted above.
    unsafe { &*std::ptr::from_ref(entry).cast::<Entry>() }
}

/// Returns the entry for the operation in `slot`, with pointers into the slot.
pub(super) fn build(slot: &mut Slot) -> Built {
    let fd = slot.handle.as_ref().expect("a pending slot has a handle").raw_fd();
    let arguments = &mut slot.arguments;
    let entry = match slot.operation.as_ref().expect("a pending slot has an operation") {
        Operation::Accept => {
            arguments.address_len = size_of::<libc::sockaddr_storage>() as u32;
            let address = (&raw mut arguments.address).cast();
            opcode::Accept::new(types::Fd(fd), address, &raw mut arguments.address_len)
                .flags(libc::SOCK_CLOEXEC)
                .build()
        }
        Operation::Connect(address) => {
            arguments.set_address(*address);
            let address = (&raw const arguments.address).cast();
            opcode::Connect::new(types::Fd(fd), address, arguments.address_len).build()
        }
        Operation::Receive(segments) => receive(fd, segments, arguments),
        Operation::Send { chunks, skip } => send(fd, chunks, *skip, arguments),
        Operation::Shutdown(how) => {
            let how = match how {
                Shutdown::Read => libc::SHUT_RD,
                Shutdown::Write => libc::SHUT_WR,
                Shutdown::Both => libc::SHUT_RDWR,
            };
            opcode::Shutdown::new(types::Fd(fd), how).build()
        }
        Operation::Read { segments, offset } => read(fd, segments, *offset, arguments),
        Operation::Write { chunks, offset, skip } => write(fd, chunks, *skip, *offset, arguments),
        Operation::WriteOne { chunk, offset, skip } => {
            write(fd, std::slice::from_ref(chunk), *skip, *offset, arguments)
        }
        Operation::Sync { data } => {
            let flags =
                if *data { types::FsyncFlags::DATASYNC } else { types::FsyncFlags::empty() };
            opcode::Fsync::new(types::Fd(fd)).flags(flags).build()
        }
        Operation::WriteBack => {
            let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
                | libc::SYNC_FILE_RANGE_WRITE
                | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            // A length of 0 reaches to the end of the file.
            opcode::SyncFileRange::new(types::Fd(fd), 0).flags(flags).build()
        }
        Operation::Allocate { mode, offset, len } => {
            opcode::Fallocate::new(types::Fd(fd), *len).offset(*offset).mode(*mode).build()
        }
        Operation::Poll(events) => opcode::PollAdd::new(types::Fd(fd), *events).build(),
        Operation::Command(command) => return Built::Wide(wide_command(fd, command)),
    };
    Built::Normal(entry)
}

fn receive(fd: RawFd, segments: &[Segment], arguments: &mut Arguments) -> Entry {
    if let [segment] = segments {
        let vector = segment.as_iovec();
        let len = vector.iov_len.min(u32::MAX as usize) as u32;
        return opcode::Recv::new(types::Fd(fd), vector.iov_base.cast(), len).build();
    }
    arguments.set_segments(segments);
    arguments.set_message();
    opcode::RecvMsg::new(types::Fd(fd), &raw mut arguments.message).build()
}

fn send(fd: RawFd, chunks: &[Chunk], skip: usize, arguments: &mut Arguments) -> Entry {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
    arguments.set_chunks(chunks, skip);
    if let [vector] = arguments.vectors[..] {
        let len = vector.iov_len.min(u32::MAX as usize) as u32;
        return opcode::Send::new(types::Fd(fd), vector.iov_base.cast(), len).flags(flags).build();
    }
    arguments.set_message();
    opcode::SendMsg::new(types::Fd(fd), &raw const arguments.message).flags(flags as u32).build()
}

fn read(fd: RawFd, segments: &[Segment], offset: u64, arguments: &mut Arguments) -> Entry {
    if let [segment] = segments {
        let vector = segment.as_iovec();
        let len = vector.iov_len.min(u32::MAX as usize) as u32;
        return opcode::Read::new(types::Fd(fd), vector.iov_base.cast(), len)
            .offset(offset)
            .build();
    }
    arguments.set_segments(segments);
    let vectors = &arguments.vectors;
    opcode::Readv::new(types::Fd(fd), vectors.as_ptr(), vectors.len() as u32).offset(offset).build()
}

fn write(
    fd: RawFd,
    chunks: &[Chunk],
    skip: usize,
    offset: u64,
    arguments: &mut Arguments,
) -> Entry {
    // `u64::MAX` (the current position) does not change.
    let offset = if offset == u64::MAX { offset } else { offset + skip as u64 };
    arguments.set_chunks(chunks, skip);
    if let [vector] = arguments.vectors[..] {
        let len = vector.iov_len.min(u32::MAX as usize) as u32;
        return opcode::Write::new(types::Fd(fd), vector.iov_base.cast(), len)
            .offset(offset)
            .build();
    }
    let vectors = &arguments.vectors;
    opcode::Writev::new(types::Fd(fd), vectors.as_ptr(), vectors.len() as u32)
        .offset(offset)
        .build()
}

fn wide_command(fd: RawFd, command: &UringCmd) -> Entry128 {
    /// Byte offset of `len` in an entry; the crate's builder has no setter for it.
    const LEN_OFFSET: usize = 24;
    let mut entry = opcode::UringCmd80::new(types::Fd(fd), command.operation)
        .cmd(command.command)
        .addr(Some(command.address))
        .build();
    // SAFETY: bytes 24 to 28 of the `repr(C)` entry of 128 bytes are `sqe.len`, a u32; no alignment
    // is assumed.
    unsafe {
        let field = std::ptr::from_mut(&mut entry).cast::<[u8; 4]>().byte_add(LEN_OFFSET);
        std::ptr::copy_nonoverlapping((&raw const command.len).cast(), field, 1);
    }
    entry
}
