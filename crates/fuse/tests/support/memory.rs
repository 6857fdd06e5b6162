//! A small file system in memory that answers every operation.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fuse::{
    Capabilities, Errno, FileSystem, FileSystemStatistics, LockKind, LockRequest, Negotiated,
    NodeId, Opened, Operation, PollHandle, Request, Response, SessionOptions, Statx,
};

use super::locks::Locks;
use super::operations::{
    allocate, copy_range, list_directory, opened, seek, set_attributes, xattr,
};
use super::tree::{Result, Tree};

/// The ioctl of this file system: returns its input, reversed (`_IOWR('t', 1, [u8; 8])`).
pub const IOCTL_REVERSE: u32 = 0xc008_7401;
/// Reading this file never ends, until it is cancelled.
pub const HANGING: &str = "hangs";

/// The behaviour of the file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct Behaviour {
    /// Answer later, out of order.
    pub is_delayed: bool,
    /// How long the kernel may cache names and attributes.
    pub valid: Duration,
    /// How long a WRITE takes.
    pub write_time: Duration,
    /// Ignore cancellation of reads of [`HANGING`] for this long.
    pub stubborn_time: Duration,
}

/// The observations that a test can read.
#[derive(Debug, Default)]
pub struct Observed {
    negotiated: Mutex<Option<Negotiated>>,
    is_destroyed: AtomicBool,
    pub writes: AtomicUsize,
    writes_now: AtomicUsize,
    pub writes_max: AtomicUsize,
    pub misaligned_writes: AtomicUsize,
    pub cancelled: AtomicUsize,
    pub hanging: AtomicUsize,
    pub poll: Mutex<Option<PollHandle>>,
    pub is_poll_ready: AtomicBool,
    pub bytes_behind: Mutex<Option<Vec<u8>>>,
}

impl Observed {
    pub fn negotiated(&self) -> Negotiated {
        self.negotiated.lock().expect("not poisoned").clone().expect("negotiated")
    }

    pub fn is_destroyed(&self) -> bool {
        self.is_destroyed.load(Ordering::SeqCst)
    }
}

/// Returns the options that the tests request.
pub fn options() -> SessionOptions {
    let options = SessionOptions::default();
    let capabilities = options.capabilities
        | Capabilities::POSIX_LOCKS
        | Capabilities::FLOCK_LOCKS
        | Capabilities::DO_READDIRPLUS
        | Capabilities::READDIRPLUS_AUTO
        | Capabilities::EXPLICIT_INVAL_DATA
        | Capabilities::DONT_MASK
        | Capabilities::HAS_IOCTL_DIR
        | Capabilities::SECURITY_CTX
        | Capabilities::CREATE_SUPP_GROUP
        | Capabilities::DIRECT_IO_ALLOW_MMAP;
    SessionOptions { capabilities, ring_payload_in_huge_pages: true, ..options }
}

/// The file system.
pub struct Memory {
    tree: RefCell<Tree>,
    locks: RefCell<Locks>,
    behaviour: Behaviour,
    observed: Arc<Observed>,
    on_init: Box<dyn Fn()>,
    turn: Cell<u64>,
}

impl Memory {
    pub fn new(
        behaviour: Behaviour,
        observed: Arc<Observed>,
        on_init: impl Fn() + 'static,
    ) -> Self {
        Self {
            tree: RefCell::new(Tree::new(behaviour.valid)),
            locks: RefCell::default(),
            behaviour,
            observed,
            on_init: Box::new(on_init),
            turn: Cell::new(0),
        }
    }

    async fn respond(&self, request: &mut Request) -> Result<Response> {
        let node = request.node;
        match &mut request.operation {
            Operation::Read(_) => self.read(request).await,
            Operation::Write(write) => self.write(node, write.offset, &write.data).await,
            Operation::SetLock { lock, wait } => {
                let (lock, wait) = (*lock, *wait);
                self.set_lock(request, &lock, wait).await
            }
            Operation::GetLock(lock) => {
                let none = fuse::Lock { start: 0, end: 0, kind: LockKind::Unlock, pid: 0 };
                let conflict = self.locks.borrow().conflict(node, lock);
                Ok(Response::Lock(conflict.unwrap_or(none)))
            }
            Operation::Flush { lock_owner, .. } => {
                self.locks.borrow_mut().drop_all(node, *lock_owner, false);
                Ok(Response::Done)
            }
            Operation::Release(release) => {
                if let Some(owner) = release.flock_unlock {
                    self.locks.borrow_mut().drop_all(node, owner, true);
                }
                let mut tree = self.tree.borrow_mut();
                tree.inode(node)?.opens -= 1;
                tree.reap(node.0);
                Ok(Response::Done)
            }
            _ => {
                let name = self.name_operation(request);
                name.unwrap_or_else(|| self.inode_operation(request))
            }
        }
    }

    fn name_operation(&self, request: &Request) -> Option<Result<Response>> {
        let tree = &mut *self.tree.borrow_mut();
        let (parent, uid, gid) = (request.node, request.uid, request.gid);
        let make = |tree: &mut Tree, name, mode, rdev| {
            let inode = tree.add(mode, uid, gid, rdev);
            tree.insert(parent, name, inode)
        };
        let masked = |creation: &fuse::Creation| creation.mode & !creation.umask;
        Some(match &request.operation {
            Operation::Lookup { name } => tree
                .find(parent, name.as_bytes())
                .and_then(|inode| tree.entry(inode))
                .map(Response::Entry),
            Operation::Symlink { name, target, .. } => make(tree, name, libc::S_IFLNK | 0o777, 0)
                .and_then(|entry| {
                    tree.inode(entry.node)?.resize(target.len() as u64);
                    tree.inode(entry.node)?.data = target.to_vec();
                    Ok(Response::Entry(entry))
                }),
            Operation::MakeNode { name, creation, rdev } => {
                make(tree, name, masked(creation), *rdev).map(Response::Entry)
            }
            Operation::MakeDirectory { name, creation } => {
                make(tree, name, libc::S_IFDIR | masked(creation), 0).map(Response::Entry)
            }
            Operation::Create { name, creation, .. } => make(tree, name, masked(creation), 0)
                .and_then(|entry| {
                    tree.inode(entry.node)?.opens += 1;
                    Ok(Response::Created(entry, opened()))
                }),
            Operation::TemporaryFile { creation, .. } => {
                let inode = tree.add(masked(creation), uid, gid, 0);
                tree.entry(inode).and_then(|mut entry| {
                    let kept = tree.inode(entry.node)?;
                    kept.attributes.nlink = 0;
                    kept.opens += 1;
                    entry.attributes = kept.attributes;
                    Ok(Response::Created(entry, opened()))
                })
            }
            Operation::Link { inode, new_name } => tree
                .inode(*inode)
                .map(|inode| {
                    inode.attributes.nlink += 1;
                    inode.attributes.inode
                })
                .and_then(|inode| tree.insert(parent, new_name, inode))
                .map(Response::Entry),
            Operation::Unlink { name } => {
                tree.remove(parent, name.as_bytes(), false).map(|()| Response::Done)
            }
            Operation::RemoveDirectory { name } => {
                tree.remove(parent, name.as_bytes(), true).map(|()| Response::Done)
            }
            Operation::Rename { name, new_parent, new_name, flags } => tree
                .rename((parent, name), (*new_parent, new_name), *flags)
                .map(|()| Response::Done),
            Operation::ReadDirectory(list) => list_directory(tree, parent, list, false),
            Operation::ReadDirectoryPlus(list) => list_directory(tree, parent, list, true),
            _ => return None,
        })
    }

    fn inode_operation(&self, request: &Request) -> Result<Response> {
        let tree = &mut *self.tree.borrow_mut();
        let valid = tree.valid;
        if let Operation::CopyFileRange(copy) = &request.operation {
            return copy_range(tree, request.node, copy);
        }
        let inode = tree.inode(request.node)?;
        let attributes = inode.attributes;
        match &request.operation {
            Operation::GetAttributes { .. } => Ok(Response::Attributes { attributes, valid }),
            Operation::Statx(_) => {
                let statx = Statx { attributes, btime: Some(inode.btime), ..Statx::default() };
                Ok(Response::Statx { statx, valid })
            }
            Operation::SetAttributes(set) => {
                set_attributes(inode, set);
                Ok(Response::Attributes { attributes: inode.attributes, valid })
            }
            Operation::ReadLink => Ok(Response::bytes(&inode.data)),
            Operation::Open { flags, .. } => {
                inode.opens += 1;
                if flags & libc::O_TRUNC as u32 != 0 {
                    inode.resize(0);
                }
                Ok(Response::Opened(opened()))
            }
            Operation::OpenDirectory { .. } => Ok(Response::Opened(Opened::default())),
            Operation::Fallocate { offset, length, mode, .. } => {
                allocate(inode, *offset, *length, *mode);
                Ok(Response::Done)
            }
            Operation::Lseek { offset, whence, .. } => seek(inode, *offset, *whence),
            Operation::SetXattr { .. }
            | Operation::GetXattr { .. }
            | Operation::ListXattr { .. }
            | Operation::RemoveXattr { .. } => xattr(inode, &request.operation),
            Operation::Ioctl(ioctl) if ioctl.command == IOCTL_REVERSE => {
                let reversed: Vec<u8> = ioctl.input.iter().rev().copied().collect();
                let Response::Data(output) = Response::bytes(&reversed) else {
                    return Err(Errno::IO);
                };
                Ok(Response::Ioctl { result: 7, output })
            }
            Operation::Ioctl(_) => Err(Errno::NOTTY),
            Operation::Poll { notify, .. } => Ok(self.poll(*notify)),
            Operation::StatFs => Ok(Response::Statistics(FileSystemStatistics {
                blocks: 1 << 20,
                blocks_free: 1 << 19,
                blocks_available: 1 << 18,
                files: 1000,
                files_free: 500,
                block_size: 4096,
                fragment_size: 4096,
                name_length_max: 255,
            })),
            Operation::Fsync { .. }
            | Operation::FsyncDirectory { .. }
            | Operation::ReleaseDirectory(_)
            | Operation::Access { .. } => Ok(Response::Done),
            _ => Err(Errno::NOSYS),
        }
    }

    fn poll(&self, notify: Option<PollHandle>) -> Response {
        if let Some(handle) = notify {
            *self.observed.poll.lock().expect("not poisoned") = Some(handle);
        }
        let is_ready = self.observed.is_poll_ready.load(Ordering::SeqCst);
        Response::Events(if is_ready { libc::POLLIN as u32 } else { 0 })
    }

    async fn read(&self, request: &Request) -> Result<Response> {
        let Operation::Read(read) = &request.operation else { return Err(Errno::IO) };
        let is_hanging = {
            let tree = self.tree.borrow();
            let root = &tree.inodes[&NodeId::ROOT.0];
            root.entries.get(HANGING.as_bytes()) == Some(&request.node.0)
        };
        if is_hanging {
            self.observed.hanging.fetch_add(1, Ordering::SeqCst);
            request.cancellation.cancelled().await;
            reactor::time::sleep(self.behaviour.stubborn_time).await;
            self.observed.cancelled.fetch_add(1, Ordering::SeqCst);
            return Err(Errno::INTR);
        }
        let mut tree = self.tree.borrow_mut();
        let inode = tree.inode(request.node)?;
        if let Some(bytes) = self.observed.bytes_behind.lock().expect("not poisoned").take() {
            inode.data = bytes;
        }
        let start = inode.data.len().min(read.offset as usize);
        let end = inode.data.len().min(start + read.size as usize);
        // In two chunks, so that answers of several chunks are seen too.
        let middle = start + (end - start) / 3;
        if let (Some(destination), true) = (&read.destination, start.is_multiple_of(3)) {
            destination.copy_in(&inode.data[start..end]);
            let [front, back] = [(0, middle - start), (middle - start, end - middle)];
            let chunks = [front, back].map(|(offset, len)| destination.range(offset, len).into());
            return Ok(Response::Data(chunks.into_iter().collect()));
        }
        let chunks = [&inode.data[start..middle], &inode.data[middle..end]];
        let chunks = chunks.into_iter().filter(|bytes| !bytes.is_empty());
        Ok(Response::Data(chunks.map(reactor::Chunk::copy_from).collect()))
    }

    async fn write(&self, node: NodeId, offset: u64, data: &reactor::Chunk) -> Result<Response> {
        let observed = &self.observed;
        observed.writes.fetch_add(1, Ordering::SeqCst);
        let now = observed.writes_now.fetch_add(1, Ordering::SeqCst) + 1;
        observed.writes_max.fetch_max(now, Ordering::SeqCst);
        if !data.as_ptr().addr().is_multiple_of(4096) {
            observed.misaligned_writes.fetch_add(1, Ordering::SeqCst);
        }
        if !self.behaviour.write_time.is_zero() {
            reactor::time::sleep(self.behaviour.write_time).await;
        }
        observed.writes_now.fetch_sub(1, Ordering::SeqCst);
        let mut tree = self.tree.borrow_mut();
        let inode = tree.inode(node)?;
        let bytes = data.to_bytes();
        let end = offset as usize + bytes.len();
        if inode.data.len() < end {
            inode.resize(end as u64);
        }
        inode.data[offset as usize..end].copy_from_slice(&bytes);
        inode.touch();
        Ok(Response::Written(bytes.len() as u32))
    }

    async fn set_lock(
        &self,
        request: &Request,
        lock: &LockRequest,
        wait: bool,
    ) -> Result<Response> {
        while lock.kind != LockKind::Unlock
            && self.locks.borrow().conflict(request.node, lock).is_some()
        {
            if !wait {
                return Err(Errno::AGAIN);
            }
            let cancelled = std::pin::pin!(request.cancellation.cancelled());
            let unlocked = std::pin::pin!(reactor::time::sleep(Duration::from_millis(1)));
            reactor::race(cancelled, unlocked).await;
            if request.cancellation.is_cancelled() {
                self.observed.cancelled.fetch_add(1, Ordering::SeqCst);
                return Err(Errno::INTR);
            }
        }
        self.locks.borrow_mut().set(request.node, lock);
        Ok(Response::Done)
    }
}

impl FileSystem for Memory {
    fn init(&self, negotiated: &Negotiated) {
        *self.observed.negotiated.lock().expect("not poisoned") = Some(negotiated.clone());
        (self.on_init)();
    }

    async fn handle(self: Rc<Self>, mut request: Request) -> Response {
        if self.behaviour.is_delayed {
            let turn = self.turn.get();
            self.turn.set(turn + 1);
            // Every third answer comes at once and others after a while, so answers overtake each
            // other.
            if !turn.is_multiple_of(3) {
                reactor::time::sleep(Duration::from_micros(turn * 37 % 400)).await;
            }
        }
        let response = self.respond(&mut request).await;
        Response::from(response)
    }

    fn forget(&self, forgets: &[(NodeId, u64)]) {
        for &(node, lookups) in forgets {
            self.tree.borrow_mut().forget(node, lookups);
        }
    }

    fn destroy(&self) {
        self.observed.is_destroyed.store(true, Ordering::SeqCst);
    }
}
