//! Open files: open, close, read, write.

use super::inode::Inode;
use super::pages::PAGE;
use super::walk::{Looking, Path, name, twice};
use super::{Answer, Caller, Kernel};
use fuse::{
    Creation, Extensions, FileHandle, LockOwner, OpenFlags, Opened, Operation, Release, Response,
};
use protocol::Errno;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Flags of a caller that the kernel does not send with OPEN.
const NOT_SENT: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY;

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) inode: Rc<Inode>,
    pub(super) handle: FileHandle,
    pub(super) treatment: OpenFlags,
    /// As given by the caller.
    pub(super) flags: u32,
    /// Identifies the open file: the owner of its flock locks.
    number: u64,
    pub(super) has_flock: Cell<bool>,
    /// Whether the open has created the file.
    pub(crate) is_created: bool,
    /// The last read used an older size, because the kernel dropped the answer with the present
    /// one.
    pub(crate) is_end_old: Cell<bool>,
}

impl OpenFile {
    fn has(&self, flag: i32) -> bool {
        self.flags & flag.cast_unsigned() != 0
    }

    /// Whether the open file allows writing.
    pub(crate) fn is_writable(&self) -> bool {
        self.flags.cast_signed() & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// Whether the open file allows reading.
    pub(crate) fn is_readable(&self) -> bool {
        self.flags.cast_signed() & libc::O_ACCMODE != libc::O_WRONLY
    }

    /// Whether each write goes to the end of the file.
    pub(crate) fn is_appending(&self) -> bool {
        self.has(libc::O_APPEND)
    }

    /// Whether close(2) sends FLUSH, which ends record locks, before it returns.
    pub(crate) fn is_flushed(&self) -> bool {
        !self.treatment.contains(OpenFlags::NOFLUSH)
    }

    /// Returns the number that identifies the open file.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    fn is_direct(&self) -> bool {
        self.treatment.contains(OpenFlags::DIRECT_IO)
    }

    /// Whether reads may be answered from cached pages.
    pub(crate) fn is_cached(&self) -> bool {
        !self.is_direct() && !self.has(libc::O_DIRECT)
    }
}

impl Kernel {
    /// open(2).
    pub(crate) async fn open(
        self: &Rc<Self>,
        caller: Caller,
        path: Path<'_>,
        flags: i32,
    ) -> Answer<Rc<OpenFile>> {
        twice(async |looking| self.open_once(caller, path, flags, looking).await).await
    }

    async fn open_once(
        self: &Rc<Self>,
        caller: Caller,
        path: Path<'_>,
        flags: i32,
        looking: Looking,
    ) -> Answer<Rc<OpenFile>> {
        let parent = self.parent(caller, path, looking).await?;
        let last = path.name.as_bytes();
        let creates = flags & libc::O_CREAT != 0;
        let inode = if creates {
            // Without O_EXCL an existing name is used without the directory's lock.
            let is_known = flags & libc::O_EXCL == 0
                && self.dentries.borrow().contains_key(&(parent.node, Box::from(last)));
            let found = if is_known {
                self.find_positive(caller, &parent, last, looking).await
            } else {
                None
            };
            match found {
                Some(inode) => inode,
                None => match self.find_or_create(caller, &parent, last, flags, looking).await? {
                    Found::Made(file) => return Ok(file),
                    Found::Known(_) if flags & libc::O_EXCL != 0 => return Err(Errno::EEXIST),
                    Found::Known(inode) => inode,
                },
            }
        } else {
            self.find(caller, &parent, last, looking).await?.ok_or(Errno::ENOENT)?
        };
        if inode.is_directory() {
            return Err(Errno::EISDIR);
        }
        if !inode.is_file() {
            return Err(Errno::ENXIO);
        }
        // With default_permissions the kernel asks for attributes that are not valid before it checks
        // the mode (fuse_permission).
        self.get_attributes(caller, &inode).await?;
        self.open_inode(caller, &inode, flags).await
    }

    /// Returns what a cached name leads to, after a new LOOKUP if it has expired.
    async fn find_positive(
        self: &Rc<Self>,
        caller: Caller,
        parent: &Rc<Inode>,
        name: &[u8],
        looking: Looking,
    ) -> Option<Rc<Inode>> {
        self.find_known(caller, parent, name, looking).await.flatten()
    }

    /// Finds a name, or creates a file of that name, under the directory's lock (`atomic_open`).
    async fn find_or_create(
        self: &Rc<Self>,
        caller: Caller,
        parent: &Rc<Inode>,
        last: &[u8],
        flags: i32,
        looking: Looking,
    ) -> Answer<Found> {
        let _lock = parent.lock().await;
        if let Some(inode) = self.find_locked(caller, parent, last, looking).await? {
            return Ok(Found::Known(inode));
        }
        let creation = Creation {
            mode: libc::S_IFREG | 0o644,
            umask: 0o022,
            extensions: Extensions::default(),
        };
        let flags = flags.cast_unsigned();
        let operation =
            Operation::Create { name: name(last), creation, flags, kill_suid_sgid: false };
        let epoch = self.epoch.get();
        match self.request(caller, parent.node, operation).await {
            Ok(Response::Created(entry, opened)) => {
                let inode = self.inode(&entry, 0).await;
                self.enter(parent, last, Some(&inode), entry.entry_valid, epoch);
                parent.expire_attributes();
                let file = self.opened(&inode, &opened, flags, true);
                self.begin(&file).await;
                Ok(Found::Made(file))
            }
            Ok(other) => panic!("CREATE is answered with {other:?}"),
            Err(errno) => {
                if errno == Errno::EEXIST {
                    self.invalidate(parent.node, last);
                }
                Err(errno)
            }
        }
    }

    async fn open_inode(
        self: &Rc<Self>,
        caller: Caller,
        inode: &Rc<Inode>,
        flags: i32,
    ) -> Answer<Rc<OpenFile>> {
        let sent = (flags & !NOT_SENT).cast_unsigned();
        let operation = Operation::Open { flags: sent, kill_suid_sgid: false };
        match self.request(caller, inode.node, operation).await? {
            Response::Opened(opened) => {
                let file = self.opened(inode, &opened, sent, false);
                self.begin(&file).await;
                Ok(file)
            }
            other => panic!("OPEN is answered with {other:?}"),
        }
    }

    fn opened(
        &self,
        inode: &Rc<Inode>,
        opened: &Opened,
        flags: u32,
        is_created: bool,
    ) -> Rc<OpenFile> {
        self.files.set(self.files.get() + 1);
        let is_direct = opened.flags.contains(OpenFlags::DIRECT_IO);
        inode.cached_opens.set(inode.cached_opens.get() + u32::from(!is_direct));
        Rc::new(OpenFile {
            inode: Rc::clone(inode),
            handle: opened.handle,
            treatment: opened.flags,
            flags,
            number: self.files.get(),
            has_flock: Cell::new(false),
            is_created,
            is_end_old: Cell::new(false),
        })
    }

    /// Changes the page cache as an open does (`fuse_finish_open`).
    async fn begin(&self, file: &OpenFile) {
        let inode = &file.inode;
        if file.has(libc::O_TRUNC) {
            inode.change_version(self.next_version());
            inode.set_size(0);
            inode.expire_attributes();
            inode.truncate_pages(0).await;
        } else if !file.treatment.contains(OpenFlags::KEEP_CACHE) {
            inode.drop_pages(0, u64::MAX).await;
        }
    }

    /// close(2) of the last descriptor. Sends FLUSH, unless the mount does not want it, and returns
    /// its error; then sends RELEASE without waiting.
    pub(crate) async fn close(self: &Rc<Self>, caller: Caller, file: &Rc<OpenFile>) -> Answer<()> {
        let flushed = self.flush(caller, file).await;
        let opens = &file.inode.cached_opens;
        opens.set(opens.get() - u32::from(!file.is_direct()));
        let owner = LockOwner(file.number << 32);
        let release = Release {
            handle: file.handle,
            flags: file.flags,
            flush: false,
            flock_unlock: file.has_flock.get().then_some(owner),
        };
        self.request_in_background(file.inode.node, Operation::Release(release), Rc::clone(file));
        flushed
    }

    /// `fuse_flush`.
    async fn flush(self: &Rc<Self>, caller: Caller, file: &Rc<OpenFile>) -> Answer<()> {
        if !file.is_flushed() {
            return Ok(());
        }
        let lock = file.inode.lock().await;
        drop(lock);
        let lock_owner = LockOwner(u64::from(caller.0));
        let operation = Operation::Flush { handle: file.handle, lock_owner };
        self.request(caller, file.inode.node, operation).await.map(drop)
    }

    /// fsync(2).
    pub(crate) async fn fsync(self: &Rc<Self>, caller: Caller, file: &Rc<OpenFile>) -> Answer<()> {
        let _lock = file.inode.lock().await;
        let operation = Operation::Fsync { handle: file.handle, data_only: false };
        self.request(caller, file.inode.node, operation).await.map(drop)
    }

    /// pread(2).
    pub(crate) async fn read(
        self: &Rc<Self>,
        caller: Caller,
        file: &Rc<OpenFile>,
        offset: u64,
        length: u64,
    ) -> Answer<Vec<u8>> {
        if file.is_cached() {
            return self.read_cached(caller, file, offset, length).await;
        }
        if file.is_direct() {
            return self.read_in_turn(caller, file, offset, length).await;
        }
        self.read_at_once(caller, file, offset, length).await
    }

    /// Reads a file that bypasses the cache, one READ after the other.
    async fn read_in_turn(
        self: &Rc<Self>,
        caller: Caller,
        file: &Rc<OpenFile>,
        offset: u64,
        length: u64,
    ) -> Answer<Vec<u8>> {
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < length {
            let left = length - bytes.len() as u64;
            let size = left.min(u64::from(mount::READ_BYTES_MAX)) as u32;
            let at = offset + bytes.len() as u64;
            // Linux returns the bytes before a failure; the next read gets the error.
            let piece = self.read_once(caller, file, at, size).await?;
            let is_short = piece.len() < size as usize;
            bytes.extend_from_slice(&piece);
            if is_short {
                break;
            }
        }
        Ok(bytes)
    }

    /// Reads with `O_DIRECT` from a file that has a cache: sends all READs at once, up to the end
    /// that the kernel knows.
    async fn read_at_once(
        self: &Rc<Self>,
        caller: Caller,
        file: &Rc<OpenFile>,
        offset: u64,
        length: u64,
    ) -> Answer<Vec<u8>> {
        let inode = &file.inode;
        let reaches_end = offset + length > inode.size();
        file.is_end_old.set(reaches_end && !self.get_attributes(caller, inode).await?);
        let end = (offset + length).min(inode.size());
        let mut jobs = Vec::new();
        let mut at = offset;
        while at < end {
            let size = (end - at).min(u64::from(mount::READ_BYTES_MAX)) as u32;
            let (kernel, file) = (Rc::clone(self), Rc::clone(file));
            let read = async move { kernel.read_once(caller, &file, at, size).await };
            jobs.push((size, reactor::spawn(read)));
            at += u64::from(size);
        }
        let mut bytes = Vec::new();
        let mut is_short = false;
        let mut failed = None;
        for (size, job) in jobs {
            match job.await.unwrap_or(Err(super::ECONNABORTED)) {
                Ok(piece) if !is_short && failed.is_none() => {
                    is_short = piece.len() < size as usize;
                    bytes.extend_from_slice(&piece);
                }
                Ok(_) => {}
                Err(errno) => failed = failed.or(Some(errno)),
            }
        }
        failed.map_or(Ok(bytes), Err)
    }

    /// pwrite(2), or write(2) with `O_APPEND`.
    pub(crate) async fn write(
        self: &Rc<Self>,
        caller: Caller,
        file: &Rc<OpenFile>,
        offset: u64,
        bytes: &[u8],
    ) -> Answer<()> {
        if !file.is_direct() {
            return self.write_through(caller, file, offset, bytes).await;
        }
        let inode = &file.inode;
        let length = bytes.len() as u64;
        let is_parallel = file.treatment.contains(OpenFlags::PARALLEL_DIRECT_WRITES);
        let extends = file.is_appending() || offset + length > inode.size();
        let _lock = if is_parallel && !extends && inode.cached_opens.get() == 0 {
            inode.lock_shared().await
        } else {
            inode.lock().await
        };
        let offset = if file.is_appending() { inode.size() } else { offset };
        inode.drop_range(offset, length).await;
        let step = self.negotiated.max_write_bytes as usize;
        let mut at = offset;
        for piece in bytes.chunks(step) {
            self.write_once(caller, file, at, piece).await?;
            at += piece.len() as u64;
        }
        inode.change_version(self.next_version());
        inode.expire_attributes();
        if at > inode.size() {
            inode.set_size(at);
        }
        Ok(())
    }

    /// fallocate(2).
    pub(crate) async fn fallocate(
        self: &Rc<Self>,
        caller: Caller,
        file: &Rc<OpenFile>,
        (offset, length): (u64, u64),
        mode: i32,
    ) -> Answer<()> {
        let inode = &file.inode;
        let _lock = inode.lock().await;
        let operation = Operation::Fallocate {
            handle: file.handle,
            offset,
            length,
            mode: mode.cast_unsigned(),
        };
        self.request(caller, inode.node, operation).await?;
        inode.change_version(self.next_version());
        inode.expire_attributes();
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && offset + length > inode.size() {
            inode.set_size(offset + length);
        }
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0 {
            inode.drop_range(offset, length).await;
        }
        Ok(())
    }

    /// `copy_file_range(2)`.
    pub(crate) async fn copy(
        self: &Rc<Self>,
        caller: Caller,
        (from, offset_in): (&Rc<OpenFile>, u64),
        (to, offset_out): (&Rc<OpenFile>, u64),
        length: u64,
    ) -> Answer<u64> {
        let inode = &to.inode;
        let _lock = inode.lock().await;
        let copy = fuse::CopyFileRange {
            handle_in: from.handle,
            offset_in,
            node_out: fuse::NodeId(inode.node),
            handle_out: to.handle,
            offset_out,
            length,
            flags: 0,
        };
        let answer = self.request(caller, from.inode.node, Operation::CopyFileRange(copy)).await?;
        let Response::Copied(copied) = answer else {
            panic!("COPY_FILE_RANGE is answered with {answer:?}")
        };
        let first = offset_out / PAGE * PAGE;
        inode.drop_range(first, offset_out + copied - first).await;
        inode.change_version(self.next_version());
        inode.expire_attributes();
        if copied > 0 && offset_out + copied > inode.size() {
            inode.set_size(offset_out + copied);
        }
        Ok(copied)
    }

    /// lseek(2) for data or a hole.
    pub(crate) async fn seek(
        self: &Rc<Self>,
        caller: Caller,
        file: &Rc<OpenFile>,
        offset: u64,
        whence: i32,
    ) -> Answer<u64> {
        let whence = whence.cast_unsigned();
        let operation = Operation::Lseek { handle: file.handle, offset, whence };
        match self.request(caller, file.inode.node, operation).await? {
            Response::Offset(found) => Ok(found),
            other => panic!("LSEEK is answered with {other:?}"),
        }
    }

    /// flock(2) and fcntl(2), with a wait of at most `patience` (`None`: without waiting).
    pub(crate) async fn lock(
        self: &Rc<Self>,
        caller: Caller,
        file: &Rc<OpenFile>,
        lock: Locking,
        patience: Option<Duration>,
    ) -> Answer<()> {
        let wait = patience.is_some();
        let operation = Operation::SetLock { lock: file.lock_request(caller, lock), wait };
        self.request_until(caller, file.inode.node, operation, patience).await.map(drop)
    }

    /// fcntl(2) with `F_GETLK`. Returns whether a lock could be taken.
    pub(crate) async fn test_lock(
        self: &Rc<Self>,
        caller: Caller,
        file: &Rc<OpenFile>,
        lock: Locking,
    ) -> Answer<bool> {
        let operation = Operation::GetLock(file.lock_request(caller, lock));
        match self.request(caller, file.inode.node, operation).await? {
            Response::Lock(found) => Ok(found.kind == fuse::LockKind::Unlock),
            other => panic!("GETLK is answered with {other:?}"),
        }
    }
}

impl OpenFile {
    fn lock_request(&self, caller: Caller, lock: Locking) -> fuse::LockRequest {
        let owner = if lock.is_flock {
            self.has_flock.set(true);
            LockOwner(self.number << 32)
        } else {
            LockOwner(u64::from(caller.0))
        };
        fuse::LockRequest {
            handle: self.handle,
            owner,
            start: lock.start,
            end: lock.last.min(i64::MAX as u64),
            kind: lock.kind,
            pid: caller.0,
            is_flock: lock.is_flock,
        }
    }
}

/// A requested lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Locking {
    pub(crate) is_flock: bool,
    pub(crate) start: u64,
    pub(crate) last: u64,
    pub(crate) kind: fuse::LockKind,
}

/// What a name leads to that the caller wants to create.
enum Found {
    Known(Rc<Inode>),
    Made(Rc<OpenFile>),
}
