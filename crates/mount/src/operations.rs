//! What is done for each FUSE operation.

use crate::convert::{attributes, changes, setting};
use crate::file_system::{Tsumugi, UNSUPPORTED};
use client::{NamesHeld, OpenMode, SeekTo};
use fuse::{
    CopyFileRange, Creation, Entry, Extensions, FileSystemStatistics, Name, OpenFlags, Opened,
    Operation, Request, Response, SetAttributes, Write,
};
use protocol::attr::AttrChanges;
use protocol::client::{Creation as Make, FallocateMode, RenameMode};
use protocol::{Attr, Errno, FileKind};
use std::rc::Rc;
use std::time::Duration;

/// Unit in which `statfs` counts, in bytes.
const FRAGMENT_BYTES: u64 = 4096;

type Answer = Result<Response, Errno>;

fn attributes_response(attr: &Attr) -> Response {
    Response::Attributes { attributes: attributes(attr), valid: Duration::ZERO }
}

fn open_mode(flags: u32) -> OpenMode {
    let flags = flags as i32;
    OpenMode {
        write: flags & libc::O_ACCMODE != libc::O_RDONLY,
        append: flags & libc::O_APPEND != 0,
        sync: flags & (libc::O_SYNC | libc::O_DSYNC) != 0,
    }
}

impl Tsumugi {
    /// Answers a request.
    pub(crate) async fn answer(self: &Rc<Self>, request: Request) -> Answer {
        match &request.operation {
            Operation::Lookup { .. }
            | Operation::Symlink { .. }
            | Operation::MakeNode { .. }
            | Operation::MakeDirectory { .. }
            | Operation::Unlink { .. }
            | Operation::RemoveDirectory { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. }
            | Operation::ReadLink => self.on_names(request).await,
            Operation::GetAttributes { .. }
            | Operation::SetAttributes(_)
            | Operation::StatFs
            | Operation::Fsync { .. }
            | Operation::FsyncDirectory { .. } => self.on_inode(request).await,
            Operation::OpenDirectory { .. }
            | Operation::ReadDirectory(_)
            | Operation::ReadDirectoryPlus(_)
            | Operation::ReleaseDirectory(_) => self.on_directory(request).await,
            Operation::SetXattr { .. }
            | Operation::GetXattr { .. }
            | Operation::ListXattr { .. }
            | Operation::RemoveXattr { .. } => self.on_xattr(request).await,
            Operation::GetLock(_) | Operation::SetLock { .. } => self.on_lock(request).await,
            Operation::Open { .. }
            | Operation::Create { .. }
            | Operation::Read(_)
            | Operation::Write(_)
            | Operation::Flush { .. }
            | Operation::Release(_)
            | Operation::Fallocate { .. }
            | Operation::Lseek { .. }
            | Operation::CopyFileRange(_) => self.on_file(request).await,
            // The kernel checks permissions by the attributes, and makes do without the others.
            Operation::Access { .. }
            | Operation::Statx(_)
            | Operation::TemporaryFile { .. }
            | Operation::Ioctl(_)
            | Operation::Poll { .. }
            | Operation::SyncFs
            | Operation::BlockMap { .. } => Ok(Response::Error(UNSUPPORTED)),
        }
    }

    async fn on_names(self: &Rc<Self>, request: Request) -> Answer {
        let parent = self.inode(request.node);
        let client = &self.client;
        let entry_of = |attr: Attr| Ok(Response::Entry(self.entry(request.node, &attr)));
        match &request.operation {
            Operation::Lookup { name } => {
                entry_of(self.look_up(request.pid, parent, name.as_bytes()).await?)
            }
            Operation::ReadLink => Ok(Response::bytes(&client.read_link(parent).await?)),
            Operation::Symlink { name, target, .. } => {
                let make = Make::Symlink(target.to_vec());
                let extensions = Extensions::default();
                let creation = Creation { mode: 0o777, umask: 0, extensions };
                let setting = setting(&request, &creation);
                entry_of(client.make(parent, name.as_bytes(), make, setting).await?)
            }
            Operation::MakeDirectory { name, creation } => {
                let setting = setting(&request, creation);
                entry_of(client.make(parent, name.as_bytes(), Make::Directory, setting).await?)
            }
            Operation::MakeNode { name, creation, rdev } => {
                let make = match FileKind::from_mode(creation.mode) {
                    None | Some(FileKind::File) => Make::File,
                    Some(FileKind::Directory | FileKind::Symlink) => return Err(Errno::EINVAL),
                    Some(kind) => Make::Special(kind, *rdev),
                };
                let setting = setting(&request, creation);
                entry_of(client.make(parent, name.as_bytes(), make, setting).await?)
            }
            Operation::Unlink { name } => done(client.unlink(parent, name.as_bytes()).await),
            Operation::RemoveDirectory { name } => {
                done(client.rmdir(parent, name.as_bytes()).await)
            }
            Operation::Link { inode: linked, new_name } => {
                entry_of(client.link(self.inode(*linked), parent, new_name.as_bytes()).await?)
            }
            Operation::Rename { name, new_parent, new_name, flags } => {
                let mode = rename_mode(*flags)?;
                let to = (self.inode(*new_parent), new_name.as_bytes());
                let renamed = client.rename((parent, name.as_bytes()), to, mode).await?;
                let mut nodes = self.nodes.borrow_mut();
                nodes.moved(request.node, *new_parent, renamed.moved);
                if let Some(other) = renamed.other {
                    nodes.moved(*new_parent, request.node, other);
                }
                Ok(Response::Done)
            }
            _ => Ok(Response::Error(UNSUPPORTED)),
        }
    }

    async fn on_inode(self: &Rc<Self>, request: Request) -> Answer {
        let id = self.inode(request.node);
        match &request.operation {
            Operation::GetAttributes { .. } => {
                Ok(attributes_response(&self.client.attr(id).await?))
            }
            Operation::SetAttributes(set) => self.set_attributes(&request, set).await,
            Operation::Fsync { handle, .. } => {
                done(self.client.fsync_file(&*self.file(*handle)?).await)
            }
            Operation::FsyncDirectory { .. } => done(self.client.fsync(id).await),
            Operation::StatFs => {
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
            _ => Ok(Response::Error(UNSUPPORTED)),
        }
    }

    async fn set_attributes(self: &Rc<Self>, request: &Request, set: &SetAttributes) -> Answer {
        let id = self.inode(request.node);
        let changes = changes(set);
        // The flag comes with every change of the owner or group, root's too.
        let is_roots = request.uid == 0 && changes.size.is_none();
        if changes.kill_privileges && changes.mode.is_none() && !is_roots {
            self.clear_of_stranger(id, request.gid).await?;
        }
        let attr = if changes.size.is_some() {
            self.client.truncate(id, changes).await?
        } else {
            self.client.set_attr(id, changes).await?
        };
        Ok(attributes_response(&attr))
    }

    async fn on_file(self: &Rc<Self>, request: Request) -> Answer {
        let id = self.inode(request.node);
        match request.operation {
            Operation::Open { flags, kill_suid_sgid } => {
                Ok(Response::Opened(self.open(&request, flags, kill_suid_sgid).await?))
            }
            Operation::Create { ref name, ref creation, flags, .. } => {
                let (entry, opened) = self.create(&request, name, creation, flags, None).await?;
                Ok(Response::Created(entry, opened))
            }
            Operation::Read(read) => {
                let (size, room) = (read.size as usize, read.destination.as_ref());
                if read.flags & libc::O_DIRECT.cast_unsigned() != 0 {
                    self.client.look_ahead(id, read.offset, size);
                }
                let chunks = self.client.read(id, read.offset, size, room).await?;
                Ok(Response::Data(chunks.into_iter().collect()))
            }
            Operation::Write(write) => {
                if write.kill_suid_sgid && !write.data.is_empty() {
                    self.clear_of_stranger(id, request.gid).await?;
                }
                self.write(write).await
            }
            Operation::Flush { handle, lock_owner } => {
                let file = self.file(handle)?;
                let flushed = self.client.flush(&file).await;
                let unlocked = self.release_posix(id, lock_owner).await;
                done(flushed.and(unlocked))
            }
            Operation::Release(release) => {
                let file = self.take_file(release.handle)?;
                self.release_own(id, release.handle).await;
                if let Some(owner) = release.flock_unlock {
                    self.unlock_flock(id, owner).await;
                }
                done(self.client.release(&file).await)
            }
            Operation::Fallocate { offset, length, mode, .. } => {
                let mode = fallocate_mode(mode as i32)?;
                self.clear_privileges(id, (request.uid, request.gid)).await?;
                done(self.client.fallocate(id, offset, length, mode).await)
            }
            Operation::Lseek { offset, whence, .. } => {
                let to = match whence as i32 {
                    libc::SEEK_DATA => SeekTo::Data,
                    libc::SEEK_HOLE => SeekTo::Hole,
                    _ => return Err(Errno::EINVAL),
                };
                Ok(Response::Offset(self.client.seek(id, offset, to).await?))
            }
            Operation::CopyFileRange(copy) => {
                if copy.length > 0 && copy.offset_in < self.client.attr(id).await?.size {
                    let destination = self.inode(copy.node_out);
                    self.clear_privileges(destination, (request.uid, request.gid)).await?;
                }
                self.copy(id, &copy).await
            }
            _ => Ok(Response::Error(UNSUPPORTED)),
        }
    }

    async fn open(
        self: &Rc<Self>,
        request: &Request,
        flags: u32,
        kill_privileges: bool,
    ) -> Result<Opened, Errno> {
        let id = self.inode(request.node);
        let mode = open_mode(flags);
        let truncates = flags as i32 & libc::O_TRUNC != 0;
        if truncates {
            if kill_privileges {
                self.clear_of_stranger(id, request.gid).await?;
            }
            let mtime = Some(crate::convert::now());
            let size = Some(0);
            let changes = AttrChanges { size, mtime, kill_privileges, ..AttrChanges::default() };
            self.client.truncate(id, changes).await?;
        }
        let (handle, attr) = self.client.open(id, mode).await?;
        Ok(self.opened(handle, &attr))
    }

    /// A file open for writing bypasses the kernel's cache; one opened read-only uses it, and keeps
    /// what it has if the data is still the same. With `O_DIRECT` the kernel passes it by all the
    /// same, and sends the requests of one read at once; `DIRECT_IO` would have it send one after
    /// the other.
    fn opened(&self, handle: client::Handle, attr: &Attr) -> Opened {
        let flags = if handle.mode.write {
            OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES
        } else if self.client.keeps_cache(attr) {
            OpenFlags::KEEP_CACHE
        } else {
            OpenFlags::default()
        };
        Opened { handle: self.keep_file(handle), flags, backing: None }
    }

    /// Makes and opens a file; `held` are the names of the directory, if they are.
    pub(crate) async fn create(
        self: &Rc<Self>,
        request: &Request,
        name: &Name,
        creation: &Creation,
        flags: u32,
        held: Option<NamesHeld>,
    ) -> Result<(Entry, Opened), Errno> {
        let parent = self.inode(request.node);
        let name = name.as_bytes();
        let setting = setting(request, creation);
        let mode = open_mode(flags);
        let created = match held {
            Some(held) => self.client.create_held(held, name, setting, mode).await,
            None => self.client.create(parent, name, setting, mode).await,
        };
        match created {
            Ok((handle, attr)) => Ok((self.entry(request.node, &attr), self.opened(handle, &attr))),
            // Another node was faster. What it made is not opened here, as the kernel checks nothing
            // after a CREATE: it walks the path again (crate::walks).
            Err(Errno::EEXIST) if flags as i32 & libc::O_EXCL == 0 => Err(Errno::ESTALE),
            Err(errno) => Err(errno),
        }
    }

    async fn write(self: &Rc<Self>, write: Write) -> Answer {
        let file = self.file(write.handle)?;
        let length = write.data.len();
        let bytes = write.data;
        if write.is_from_cache {
            // Pages of a shared mapping go where they are, whatever the file was opened with.
            self.client.write_at(&file, write.offset, bytes, write.kill_suid_sgid).await?;
        } else {
            self.client.write(&file, write.offset, bytes, write.kill_suid_sgid).await?;
        }
        Ok(Response::Written(length as u32))
    }

    async fn copy(self: &Rc<Self>, source: protocol::InodeId, copy: &CopyFileRange) -> Answer {
        let destination = (self.inode(copy.node_out), copy.offset_out);
        let from = (source, copy.offset_in);
        Ok(Response::Copied(self.client.copy_range(from, destination, copy.length).await?))
    }

    async fn unlock_flock(&self, id: protocol::InodeId, owner: fuse::LockOwner) {
        if let Err(error) = self.client.unlock(crate::locks::whole_flock(id, owner)).await {
            tracing::warn!(inode = id.0, %error, "a flock could not be released at close");
        }
    }
}

fn done(result: Result<(), Errno>) -> Answer {
    result.map(|()| Response::Done)
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
