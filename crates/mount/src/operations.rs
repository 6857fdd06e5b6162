//! The work for each FUSE operation.

use crate::convert::{attributes, changes, setting};
use crate::server::{Server, UNSUPPORTED};
use crate::writers::WriteCaching;
use client::{NamesHeld, OpenMode, SeekTo};
use fuse::{
    CopyFileRange, Creation, Extensions, FileHandle, FileSystemStatistics, Name, NodeId, OpenFlags,
    Opened, Operation, Read, Release, Request, Response, SetAttributes, Write,
};
use protocol::attr::AttrChanges;
use protocol::client::{Creation as Make, FallocateMode, RenameMode};
use protocol::files::FILES_XATTR;
use protocol::{Attr, Errno, FileKind, InodeId};
use std::rc::Rc;
use std::time::Duration;

/// Unit in which `statfs` counts, in bytes.
const FRAGMENT_BYTES: u64 = 4096;

/// Largest size of reads and writes that suggests a file of small accesses, which pages serve best.
const SMALL_READ_BYTES: usize = 16 << 10;

/// With this flag reads bypass the kernel's pages.
const O_DIRECT: u32 = libc::O_DIRECT.cast_unsigned();

type Answer = Result<Response, Errno>;

fn attributes_response(attr: &Attr, valid: Duration) -> Response {
    Response::Attributes { attributes: attributes(attr), valid }
}

fn open_mode(flags: u32) -> OpenMode {
    let flags = flags as i32;
    OpenMode {
        write: flags & libc::O_ACCMODE != libc::O_RDONLY,
        append: flags & libc::O_APPEND != 0,
        sync: flags & (libc::O_SYNC | libc::O_DSYNC) != 0,
    }
}

impl Server {
    /// Answers a request. This is the only list of operations; each gets the parts of the request
    /// that it needs. A future is copied as a whole when it begins. So an operation with a large
    /// state boxes it; otherwise it would enlarge the state of all other operations.
    pub(crate) async fn answer(self: &Rc<Self>, request: Request) -> Answer {
        let id = self.inode(request.node);
        let client = &self.client;
        match request.operation {
            Operation::Lookup { ref name } => self.lookup(&request, name).await,
            Operation::ReadLink => Ok(Response::bytes(&client.read_link(id).await?)),
            Operation::Symlink { ref name, ref target, .. } => {
                self.symlink(&request, name, target).await
            }
            Operation::MakeDirectory { ref name, ref creation } => {
                self.make(&request, name, creation, Make::Directory).await
            }
            Operation::MakeNode { ref name, ref creation, rdev } => {
                self.make(&request, name, creation, node_kind(creation.mode, rdev)?).await
            }
            Operation::Unlink { name } => done(client.unlink(id, name.as_bytes()).await),
            Operation::RemoveDirectory { name } => done(client.rmdir(id, name.as_bytes()).await),
            Operation::Link { inode, new_name } => self.link(request.node, inode, &new_name).await,
            Operation::Rename { name, new_parent, new_name, flags } => {
                self.rename((request.node, &name), (new_parent, &new_name), flags).await
            }
            Operation::GetAttributes { .. } => self.attributes(id).await,
            Operation::SetAttributes(ref set) => self.set_attributes(&request, set).await,
            Operation::StatFs => self.statistics().await,
            Operation::Fsync { handle, .. } => done(client.fsync_file(&*self.file(handle)?).await),
            Operation::FsyncDirectory { .. } => done(client.fsync(id).await),
            Operation::OpenDirectory { .. } => self.open_directory(id).await,
            Operation::ReadDirectory(read) => self.list(request.node, read, false).await,
            Operation::ReadDirectoryPlus(read) => self.list(request.node, read, true).await,
            Operation::ReleaseDirectory(release) => Ok(self.drop_directory(release.handle)),
            Operation::GetXattr { name, size } => self.xattr(id, &name, size).await,
            Operation::ListXattr { size } => self.xattrs(id, size, request.uid).await,
            Operation::SetXattr { name, value, .. } if *name == *FILES_XATTR.as_bytes() => {
                let owner = (request.uid, request.gid);
                done(Box::pin(self.create_files(id, owner, &value)).await)
            }
            Operation::SetXattr { name, value, flags, .. } => {
                self.change_here(id, self.set_xattr(id, &name, &value, flags)).await
            }
            Operation::RemoveXattr { name } => {
                self.change_here(id, client.remove_xattr(id, &name)).await
            }
            Operation::GetLock(ref wanted) => self.test_lock(id, wanted).await,
            Operation::SetLock { ref lock, wait } => self.set_lock(&request, lock, wait).await,
            Operation::Open { flags, kill_suid_sgid } => {
                self.open(&request, flags, kill_suid_sgid).await
            }
            Operation::Create { ref name, ref creation, flags, .. } => {
                Box::pin(self.create(&request, name, creation, flags, None)).await
            }
            Operation::Read(read) => self.read(id, read).await,
            Operation::Write(write) => self.write(id, request.gid, write).await,
            Operation::Flush { handle, lock_owner } => self.flush(id, handle, lock_owner).await,
            Operation::Release(release) => self.release(id, release).await,
            Operation::Fallocate { offset, length, mode, .. } => {
                self.fallocate(&request, (offset, length), mode as i32).await
            }
            Operation::Lseek { offset, whence, .. } => {
                Ok(Response::Offset(client.seek(id, offset, seek_to(whence)?).await?))
            }
            Operation::CopyFileRange(ref copy) => self.copy(&request, copy).await,
            // The kernel checks permissions by the attributes, and has fallbacks for the others.
            Operation::Access { .. }
            | Operation::Statx(_)
            | Operation::TemporaryFile { .. }
            | Operation::Ioctl(_)
            | Operation::Poll { .. }
            | Operation::SyncFs
            | Operation::BlockMap { .. } => Ok(Response::Error(UNSUPPORTED)),
        }
    }

    async fn lookup(self: &Rc<Self>, request: &Request, name: &Name) -> Answer {
        let parent = self.inode(request.node);
        match self.look_up(request.pid, parent, name.as_bytes()).await {
            Ok(attr) => Ok(Response::Entry(self.entry(request.node, name.as_bytes(), &attr))),
            Err(Errno::ENOENT) => match self.absent(request.node, name.as_bytes()) {
                Some(absent) => Ok(Response::Entry(absent)),
                None => Err(Errno::ENOENT),
            },
            Err(errno) => Err(errno),
        }
    }

    async fn symlink(self: &Rc<Self>, request: &Request, name: &Name, target: &[u8]) -> Answer {
        let creation = Creation { mode: 0o777, umask: 0, extensions: Extensions::default() };
        self.make(request, name, &creation, Make::Symlink(target.to_vec())).await
    }

    async fn make(
        self: &Rc<Self>,
        request: &Request,
        name: &Name,
        creation: &Creation,
        make: Make,
    ) -> Answer {
        let parent = self.inode(request.node);
        let setting = setting(request, creation);
        let made = self.client.make(parent, name.as_bytes(), make, setting);
        let attr = Box::pin(made).await?;
        Ok(Response::Entry(self.new_entry(request.node, name.as_bytes(), &attr)))
    }

    async fn link(self: &Rc<Self>, parent: NodeId, linked: NodeId, new_name: &Name) -> Answer {
        let (linked, directory) = (self.inode(linked), self.inode(parent));
        let attr = Box::pin(self.client.link(linked, directory, new_name.as_bytes())).await?;
        Ok(Response::Entry(self.new_entry(parent, new_name.as_bytes(), &attr)))
    }

    async fn rename(
        self: &Rc<Self>,
        (parent, name): (NodeId, &Name),
        (new_parent, new_name): (NodeId, &Name),
        flags: u32,
    ) -> Answer {
        let mode = rename_mode(flags)?;
        let from = (self.inode(parent), name.as_bytes());
        let to = (self.inode(new_parent), new_name.as_bytes());
        let renamed = Box::pin(self.client.rename(from, to, mode)).await?;
        let mut nodes = self.nodes.borrow_mut();
        nodes.moved(parent, new_parent, renamed.moved);
        if let Some(other) = renamed.other {
            nodes.moved(new_parent, parent, other);
        }
        Ok(Response::Done)
    }

    /// Changes something of an inode that the kernel does not count as one of its attributes.
    fn change_here<'a>(
        &'a self,
        id: InodeId,
        change: impl Future<Output = Result<(), Errno>> + 'a,
    ) -> impl Future<Output = Answer> + 'a {
        // Not moved into the future, which would reserve space for it twice.
        let change = Box::pin(change);
        async move {
            let changed = change.await;
            self.client.changed_here([id].into_iter());
            done(changed)
        }
    }

    async fn attributes(&self, id: InodeId) -> Answer {
        self.client.late_drops_end(id).await;
        let attr = self.client.attr(id).await?;
        Ok(attributes_response(&attr, self.client.lend_attributes(&attr)))
    }

    async fn statistics(&self) -> Answer {
        let pool_use = self.client.pool_use().await?;
        let free = pool_use.free_bytes / FRAGMENT_BYTES;
        Ok(Response::Statistics(FileSystemStatistics {
            blocks: pool_use.total_bytes / FRAGMENT_BYTES,
            blocks_free: free,
            blocks_available: free,
            files: pool_use.inodes + free,
            files_free: free,
            block_size: FRAGMENT_BYTES as u32,
            fragment_size: FRAGMENT_BYTES as u32,
            name_length_max: protocol::NAME_MAX_BYTES as u32,
        }))
    }

    async fn set_attributes(self: &Rc<Self>, request: &Request, set: &SetAttributes) -> Answer {
        let id = self.inode(request.node);
        let changes = changes(set);
        // The flag comes with every change of the owner or group, even one by root.
        let is_roots = request.uid == 0 && changes.size.is_none();
        if changes.kill_privileges && changes.mode.is_none() && !is_roots {
            Box::pin(self.clear_of_stranger(id, request.gid)).await?;
        }
        let attr = if changes.size.is_some() {
            Box::pin(self.client.truncate(id, changes)).await?
        } else {
            Box::pin(self.client.set_attr(id, changes)).await?
        };
        // An older answer to a request for attributes may reach the kernel after this one.
        Ok(attributes_response(&attr, Duration::ZERO))
    }

    async fn read(&self, id: InodeId, read: Read) -> Answer {
        let (size, room) = (read.size as usize, read.destination.as_ref());
        let (_, caching) = self.file_and_caching(read.handle)?;
        if size <= SMALL_READ_BYTES && caching.is_some() {
            self.client.note_use(id, size);
        }
        let is_direct = read.flags & libc::O_DIRECT.cast_unsigned() != 0;
        let is_through = !is_direct && caching != Some(WriteCaching::Past);
        let _reading = is_through.then(|| self.client.reads_through_pages(id));
        self.client.look_ahead(id, read.offset, size);
        let chunks =
            if size <= SMALL_READ_BYTES && caching == Some(WriteCaching::Past) && !is_direct {
                self.client.read_small(id, read.offset, size).await?
            } else {
                self.client.read(id, read.offset, size, room).await?
            };
        Ok(Response::Data(chunks.into_iter().collect()))
    }

    async fn flush(
        self: &Rc<Self>,
        id: InodeId,
        handle: FileHandle,
        lock_owner: fuse::LockOwner,
    ) -> Answer {
        let file = self.file(handle)?;
        let flushed = self.client.flush(&file).await;
        if reactor::mutant!("close-keeps-record-locks") {
            return done(flushed);
        }
        let unlocked = self.release_posix(id, lock_owner).await;
        done(flushed.and(unlocked))
    }

    async fn release(self: &Rc<Self>, id: InodeId, release: Release) -> Answer {
        let file = if reactor::mutant!("release-keeps-file") {
            self.file(release.handle)?
        } else {
            self.take_file(release.handle)?
        };
        self.release_own(id, release.handle).await;
        done(self.client.release(&file).await)
    }

    async fn open(self: &Rc<Self>, request: &Request, flags: u32, kill_privileges: bool) -> Answer {
        let id = self.inode(request.node);
        let mode = open_mode(flags);
        self.client.late_drops_end(id).await;
        let truncates = flags as i32 & libc::O_TRUNC != 0;
        if truncates {
            if kill_privileges {
                Box::pin(self.clear_of_stranger(id, request.gid)).await?;
            }
            let mtime = Some(crate::convert::now());
            let size = Some(0);
            let changes = AttrChanges { size, mtime, kill_privileges, ..AttrChanges::default() };
            Box::pin(self.client.truncate(id, changes)).await?;
        }
        let (handle, attr) = self.client.open(id, mode).await?;
        let knows_end = self.client.kernel_knows_end(id);
        Ok(Response::Opened(self.opened(handle, &attr, flags, knows_end)))
    }

    /// Returns the answer to an open. A file that is open only for reading uses the kernel's pages;
    /// one that is open for writing uses them or not, as [`crate::writers`] chooses, and so does a
    /// reader meanwhile. The kernel keeps the present pages if the data is still the same. With
    /// `O_DIRECT` the kernel bypasses them in any case, and sends the requests of one read at once;
    /// with `DIRECT_IO` it would send them one after the other. `knows_end` says whether the kernel
    /// knows the file's end, or learns it from this answer.
    fn opened(&self, handle: client::Handle, attr: &Attr, flags: u32, knows_end: bool) -> Opened {
        let id = handle.inode();
        let habit = self.client.habit(id);
        let size = knows_end.then_some(attr.size);
        let is_written = self.writers.has_writers(id) && !reactor::mutant!("growing-read-by-pages");
        let caching = handle.mode.write.then(|| self.writers.enter(id, flags, size, habit));
        let mut flags = if caching.is_none() && !knows_end && is_written {
            OpenFlags::DIRECT_IO | OpenFlags::KEEP_CACHE
        } else if caching == Some(WriteCaching::Past) {
            self.client.opened_past_pages(id);
            OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES
        } else if self.client.keeps_cache(attr)
            || reactor::mutant!("pages-always-kept")
            || caching.is_none() && flags & O_DIRECT == 0 && self.fill_pages(attr)
        {
            OpenFlags::KEEP_CACHE
        } else {
            OpenFlags::default()
        };
        if caching.is_none() && self.closes.go_unreported(id, &self.lock_owners) {
            flags |= OpenFlags::NOFLUSH;
        }
        Opened { handle: self.keep_file(handle, caching), flags, backing: None }
    }

    /// Makes and opens a file. `held` holds the names of the directory, after a second walk.
    pub(crate) async fn create(
        self: &Rc<Self>,
        request: &Request,
        name: &Name,
        creation: &Creation,
        flags: u32,
        held: Option<NamesHeld>,
    ) -> Answer {
        let parent = self.inode(request.node);
        let name = name.as_bytes();
        let setting = setting(request, creation);
        let mode = open_mode(flags);
        let created = match held {
            Some(held) => self.client.create_held(held, name, setting, mode).await,
            None => self.client.create(parent, name, setting, mode).await,
        };
        match created {
            Ok((handle, attr)) => {
                let entry = self.new_entry(request.node, name, &attr);
                let knows_end = self.client.kernel_learns_end(&attr);
                Ok(Response::Created(entry, self.opened(handle, &attr, flags, knows_end)))
            }
            Err(Errno::EEXIST) if reactor::mutant!("lost-create-opens-other") => {
                let won = self.client.lookup(parent, name).await?.inode;
                let (handle, attr) = self.client.open(won, mode).await?;
                let entry = self.new_entry(request.node, name, &attr);
                let knows_end = self.client.kernel_knows_end(won);
                Ok(Response::Created(entry, self.opened(handle, &attr, flags, knows_end)))
            }
            // Another node was faster. This does not open its file, because the kernel checks
            // nothing after a CREATE. With ESTALE the kernel walks the path again (crate::walks).
            Err(Errno::EEXIST) if flags as i32 & libc::O_EXCL == 0 => Err(Errno::ESTALE),
            Err(errno) => Err(errno),
        }
    }

    async fn write(self: &Rc<Self>, id: InodeId, gid: u32, write: Write) -> Answer {
        // Before the first wait: the kernel has dropped pages before it sent the write, and may read
        // them again from now on.
        let came = reactor::time::now();
        let (file, caching) = self.file_and_caching(write.handle)?;
        let is_direct = write.flags & libc::O_DIRECT.cast_unsigned() != 0;
        // Pages of a shared mapping are written in place, independent of the flags of the open
        // file.
        let passes_by =
            !write.is_from_cache && (is_direct || caching != Some(WriteCaching::Through));
        let passing = passes_by.then(|| self.client.pass_pages_by(id));
        let _using = (!passes_by).then(|| self.client.uses_pages(id));
        if write.kill_suid_sgid && !write.data.is_empty() {
            Box::pin(self.clear_of_stranger(id, gid)).await?;
        }
        let length = write.data.len();
        let bytes = write.data;
        self.client.note_use(id, length);
        if write.is_from_cache {
            self.client.write_at(&file, write.offset, bytes, write.kill_suid_sgid).await?;
            return Ok(Response::Written(length as u32));
        }
        self.client.write(&file, write.offset, bytes, write.kill_suid_sgid).await?;
        if passing.is_some() {
            self.client.written_past(id, came).await;
        } else {
            self.client.written_through(id, came).await;
        }
        Ok(Response::Written(length as u32))
    }

    async fn fallocate(
        self: &Rc<Self>,
        request: &Request,
        (offset, length): (u64, u64),
        mode: i32,
    ) -> Answer {
        let id = self.inode(request.node);
        let mode = fallocate_mode(mode)?;
        Box::pin(self.clear_privileges(id, (request.uid, request.gid))).await?;
        self.change_here(id, self.client.fallocate(id, offset, length, mode)).await
    }

    async fn copy(self: &Rc<Self>, request: &Request, copy: &CopyFileRange) -> Answer {
        let source = self.inode(request.node);
        let destination = self.inode(copy.node_out);
        if copy.length > 0 && copy.offset_in < self.client.attr(source).await?.size {
            Box::pin(self.clear_privileges(destination, (request.uid, request.gid))).await?;
        }
        let file = self.file(copy.handle_out)?;
        let (from, to) = ((source, copy.offset_in), (&*file, copy.offset_out));
        let copied = Box::pin(self.client.copy(from, to, copy.length)).await;
        self.client.changed_here([destination].into_iter());
        Ok(Response::Copied(copied?))
    }
}

fn done(result: Result<(), Errno>) -> Answer {
    result.map(|()| Response::Done)
}

fn node_kind(mode: u32, rdev: u32) -> Result<Make, Errno> {
    match FileKind::from_mode(mode) {
        None | Some(FileKind::File) => Ok(Make::File),
        Some(FileKind::Directory | FileKind::Symlink) => Err(Errno::EINVAL),
        Some(kind) => Ok(Make::Special(kind, rdev)),
    }
}

fn seek_to(whence: u32) -> Result<SeekTo, Errno> {
    match whence as i32 {
        libc::SEEK_DATA => Ok(SeekTo::Data),
        libc::SEEK_HOLE => Ok(SeekTo::Hole),
        _ => Err(Errno::EINVAL),
    }
}

fn rename_mode(flags: u32) -> Result<RenameMode, Errno> {
    Ok(match flags {
        0 => RenameMode::Replace,
        libc::RENAME_NOREPLACE => RenameMode::NoReplace,
        libc::RENAME_EXCHANGE => RenameMode::Exchange,
        libc::RENAME_WHITEOUT => RenameMode::Whiteout,
        flags if flags == libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE => {
            RenameMode::WhiteoutNoReplace
        }
        _ => return Err(Errno::EINVAL),
    })
}

fn fallocate_mode(mode: i32) -> Result<FallocateMode, Errno> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Ok(FallocateMode::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Ok(FallocateMode::Punch),
        libc::FALLOC_FL_ZERO_RANGE => Ok(FallocateMode::Zero { keep_size }),
        _ => Err(Errno::EOPNOTSUPP),
    }
}
