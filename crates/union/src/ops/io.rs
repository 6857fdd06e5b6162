//! Opening, reading and writing.

use std::os::fd::AsFd;
use std::rc::Rc;

use fuse::{CopyFileRange, FileHandle, NodeId, OpenFlags, Opened, Read, Response, Write};
use reactor::{Buffer, Segment, Segments};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::Answer;
use super::Union;
use super::privileges::{Announced, Caller, Opener};
use crate::backing::Backing;
use crate::copyup::Keep;
use crate::sys::{self, errno_of};
use crate::tree::Node;
use crate::tree::OpenFile;

/// In an open's flags: execve(2) opens the file (`__FMODE_EXEC`).
const FOR_EXECUTION: u32 = 0x20;
/// Most bytes of one step of a copy within the union: other requests wait for this system call.
const COPY_STEP_BYTES: u64 = 1 << 20;

impl Union {
    pub(super) async fn on_open(
        self: &Rc<Self>,
        id: NodeId,
        thread: u32,
        flags: u32,
        opener: Opener,
    ) -> Answer {
        let node = self.tree.node(id)?;
        let for_writing = flags as i32 & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY;
        let is_changing = for_writing || flags & FOR_EXECUTION != 0;
        let is_direct = self.tree.is_left_behind(id, thread, is_changing)?;
        let open = async || self.open(&node, flags, opener).await;
        let backing = self.insist(open).await?;
        if !is_direct && node.id.get() != id.0 {
            // The kernel looks the name up again and finds the number that the node has now.
            return Err(Errno::STALE);
        }
        Ok(Response::Opened(self.keep_open(&node, backing, flags, is_direct)))
    }

    pub(super) fn release(self: &Rc<Self>, handle: FileHandle) -> Answer {
        let open = self.handles.remove_file(handle)?;
        let node = Rc::clone(&open.node);
        drop(open);
        self.rearm(&node);
        Ok(Response::Done)
    }

    pub(super) async fn fallocate(
        self: &Rc<Self>,
        handle: FileHandle,
        mode: i32,
        offset: u64,
        length: u64,
        caller: Caller,
    ) -> Answer {
        let open = self.open_file(handle)?;
        if self.fallocate_partial(&open.node, mode, offset, length).await? {
            return Ok(Response::Done);
        }
        let backing = self.writable_backing(&open)?;
        backing.with(|fd| self.take_privileges(&open.node, fd, caller, Announced::Earlier))?;
        let done = backing.file.fallocate(mode, offset, length).await;
        self.durability.note_dirty(&open.node);
        done.map(|()| Response::Done).map_err(errno_of)
    }

    /// Finds data or a hole. With `writeback` the kernel does not send the pages that it has not
    /// written yet before it asks, so programs would take new data for a hole. It takes all of a file
    /// for data after `ENOSYS`, and does not ask again.
    pub(super) fn seek(self: &Rc<Self>, handle: FileHandle, offset: u64, whence: i32) -> Answer {
        if self.tree.options().writeback {
            return Err(Errno::NOSYS);
        }
        let to = match whence {
            libc::SEEK_DATA => SeekFrom::Data(offset),
            libc::SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(Errno::INVAL),
        };
        let open = self.open_file(handle)?;
        if let Some(partial) = open.node.partial() {
            let for_data = whence == libc::SEEK_DATA;
            return partial
                .seek(&self.tree.lower_file(&open.node, &partial), offset, for_data)
                .map(Response::Offset);
        }
        let backing = self.tree.backing_of(&open)?;
        backing.with(|fd| rustix::fs::seek(fd, to)).map(Response::Offset)
    }

    /// Prepares a node for being open with these flags.
    pub(super) async fn open(
        self: &Rc<Self>,
        node: &Rc<Node>,
        flags: u32,
        opener: Opener,
    ) -> Result<Option<Rc<Backing>>, Errno> {
        let bits = flags as i32;
        let truncates = bits & libc::O_TRUNC != 0;
        let for_writing = bits & libc::O_ACCMODE != libc::O_RDONLY;
        if for_writing || truncates {
            let keep = if truncates { Keep::First(0) } else { Keep::Written };
            self.copy_up.make_changeable(node, keep).await?;
        }
        if truncates && self.truncate_partial(node, 0).await? {
            return self.tree.backing_to_open(node, for_writing);
        }
        let backing = self.tree.backing_to_open(node, for_writing || truncates)?;
        if let Some(backing) = backing.as_ref().filter(|_| truncates) {
            self.durability.note_dirty(node);
            backing.with(|fd| self.take_at_open(node, fd, opener))?;
            backing.with(|fd| rustix::fs::ftruncate(fd, 0))?;
        }
        Ok(backing)
    }

    /// Makes a handle of an open file; with `is_direct` one past the kernel's cache.
    pub(super) fn keep_open(
        &self,
        node: &Rc<Node>,
        backing: Option<Rc<Backing>>,
        flags: u32,
        is_direct: bool,
    ) -> Opened {
        let for_writing = flags as i32 & libc::O_ACCMODE != libc::O_RDONLY;
        let mode = self.tree.handle_mode(node, backing.as_deref(), for_writing || is_direct);
        let passed = mode.backing_id();
        let open = Rc::new(OpenFile::new(node, backing, for_writing, mode));
        let handle = self.handles.add_file(Rc::clone(&open));
        let mut open_flags = if passed.is_some() {
            OpenFlags::PASSTHROUGH
        } else if is_direct || self.goes_past_cache(&open, flags) {
            OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES
        } else {
            // The data changes through this mount only, so cached pages stay valid.
            OpenFlags::KEEP_CACHE
        };
        if !self.tree.options().writeback {
            open_flags |= OpenFlags::NOFLUSH;
        }
        Opened { handle, flags: open_flags, backing: passed }
    }

    fn open_file(&self, handle: FileHandle) -> Result<Rc<OpenFile>, Errno> {
        self.handles.file(handle)
    }

    /// Returns the backing of a file that is about to be changed. The caller notes the change after
    /// it is made, because a sync that began before does not cover it.
    fn writable_backing(self: &Rc<Self>, open: &OpenFile) -> Result<Rc<Backing>, Errno> {
        let backing = self.tree.backing_of(open)?;
        if backing.is_writable() { Ok(backing) } else { self.tree.backing(&open.node, true) }
    }

    pub(super) async fn read(&self, read: Read) -> Answer {
        let open = self.open_file(read.handle)?;
        let size = read.size as usize;
        if let Some(partial) = open.node.partial() {
            let bytes = partial
                .read(&self.tree.lower_file(&open.node, &partial), read.offset, size)
                .await?;
            return Ok(Response::chunk(bytes));
        }
        let backing = self.tree.backing_of(&open)?;
        if let Some(destination) = read.destination {
            let part = destination.range(0, size);
            let segments = Segments::from_iter([Segment::Region(part.clone())]);
            let (result, _) = backing.file.read_vectored_at(segments, read.offset).await;
            let count = result.map_err(errno_of)?;
            return Ok(Response::chunk(part.range(0, count)));
        }
        let buffer = Buffer::with_capacity(size);
        let (result, mut buffer) = backing.file.read_at(buffer, 0..size, read.offset).await;
        buffer.truncate(result.map_err(errno_of)?);
        Ok(Response::chunk(buffer))
    }

    /// Writes. After a write past its cache (`O_DIRECT`) the kernel does not request a sync, even
    /// if the file was opened with `O_SYNC` or `O_DSYNC`; after other writes it does.
    pub(super) async fn write_durably(self: &Rc<Self>, write: Write, caller: Caller) -> Answer {
        let (handle, flags) = (write.handle, write.flags as i32);
        let answer = self.write(write, caller).await?;
        if flags & libc::O_DIRECT != 0 && flags & libc::O_DSYNC != 0 {
            let node = Rc::clone(&self.open_file(handle)?.node);
            self.durability.sync_file(&node, flags & libc::O_SYNC != libc::O_SYNC).await?;
        }
        Ok(answer)
    }

    async fn write(self: &Rc<Self>, write: Write, caller: Caller) -> Answer {
        let open = self.open_file(write.handle)?;
        let (length, is_from_cache) = (write.data.len(), write.is_from_cache);
        if let Some(count) = self.write_partial(&open.node, write.offset, &write.data).await? {
            return written(count, length, is_from_cache);
        }
        let backing = self.writable_backing(&open)?;
        let announced = Announced::ByFlag(write.kill_suid_sgid);
        backing.with(|fd| self.take_privileges(&open.node, fd, caller, announced))?;
        let offset = write.offset;
        let run = self.mount.free_run.begin_at(offset, length as u32);
        let (result, data) = if let Some(_run) = run {
            (backing.with(|fd| write.data.write_all_at(fd, offset).map_err(errno_of)), write.data)
        } else {
            let (result, data) = backing.file.write_at(write.data, offset).await;
            (result.map_err(errno_of), data)
        };
        let result = match result {
            Ok(()) => Ok(length),
            Err(errno) if is_from_cache => Err(errno),
            // The file has the bytes before the error. A second write of the same bytes returns their number.
            Err(_) => backing.with(|fd| sys::write_up_to_error_at(fd, &data.to_bytes(), offset)),
        };
        drop(data);
        self.durability.note_dirty(&open.node);
        written(result?, length, is_from_cache)
    }

    pub(super) fn copy_range(self: &Rc<Self>, copy: &CopyFileRange, caller: Caller) -> Answer {
        let (from, to) = (self.open_file(copy.handle_in)?, self.open_file(copy.handle_out)?);
        if from.node.partial().is_some() || to.node.partial().is_some() {
            // The kernel reads and writes instead.
            return Err(Errno::OPNOTSUPP);
        }
        let from = self.tree.backing_of(&from)?;
        self.durability.note_dirty(&to.node);
        let node = Rc::clone(&to.node);
        let to = self.writable_backing(&to)?;
        to.with(|fd| self.take_privileges(&node, fd, caller, Announced::Earlier))?;
        let (mut offset_in, mut offset_out) = (copy.offset_in, copy.offset_out);
        let length = copy.length.min(COPY_STEP_BYTES) as usize;
        let from = from.file.handle().as_fd().map_err(errno_of)?;
        let to = to.file.handle().as_fd().map_err(errno_of)?;
        let copied = rustix::fs::copy_file_range(
            from.as_fd(),
            Some(&mut offset_in),
            to.as_fd(),
            Some(&mut offset_out),
            length,
        )?;
        Ok(Response::Copied(copied as u64))
    }
}

/// Answers a write of `length` bytes of which `count` are in the file. A program gets `count`, also if
/// space ran out on the way. The kernel ignores a short count when it writes back its pages. Such a
/// write gets ENOSPC, because otherwise stores through a mapping would be lost without an error.
fn written(count: usize, length: usize, is_from_cache: bool) -> Answer {
    if is_from_cache && count < length {
        return Err(Errno::NOSPC);
    }
    Ok(Response::Written(count as u32))
}
