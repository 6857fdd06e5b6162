//! Scenes of a mount's server: requests in an order in which a kernel may send them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{Change, Client, Dropping, Lending, OpenMode, Setting};
use fuse::{
    Creation, Extensions, FileHandle, FileSystem, LockKind, LockOwner, LockRequest, Name, NodeId,
    OpenFlags, Opened, Operation, Read, ReadDirectory, Registry, Release, Request, Response,
    Unique, Write,
};
use mount::Server;
use protocol::client::RenameMode;
use protocol::lock::{Lock, LockFamily, LockMode};
use protocol::times::{HEARTBEAT, REQUEST_DEADLINE};
use protocol::{Errno, InodeId};
use reactor::time::{sleep, timeout};
use stage::gate::Gate;
use stage::{BLOCK_BYTES, Changes, DEVICE_BYTES, make, play, play_on_one};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Owners of locks.
const X: LockOwner = LockOwner(11);
const Y: LockOwner = LockOwner(12);
/// The end of the file in the kernel's locks.
const END: u64 = i64::MAX as u64;
/// Longest time for everything that follows a return of the service.
const SETTLED: Duration = Duration::from_mins(2);

/// The server of a mount, and the kernel's side of it.
#[derive(Clone)]
struct Mounted {
    server: Rc<Server>,
    requests: Registry,
    unique: Rc<Cell<u64>>,
    gid: u32,
}

impl Mounted {
    fn new(client: &Rc<Client>) -> Mounted {
        let (notices, ..) = mount::notices();
        let (agreed, _) = reactor::local::oneshot();
        let server = Server::new(Rc::clone(client), agreed, &notices);
        Mounted { server, requests: Registry::default(), unique: Rc::default(), gid: 0 }
    }

    async fn ask(&self, node: NodeId, operation: Operation) -> Result<Response, Errno> {
        self.unique.set(self.unique.get() + 2);
        let unique = Unique(self.unique.get());
        let cancellation = self.requests.enter(unique);
        let key = cancellation.key();
        let (uid, gid, pid, is_resent) = (0, self.gid, 1, false);
        let request = Request { unique, node, uid, gid, pid, is_resent, operation, cancellation };
        let answer = Rc::clone(&self.server).handle(request).await;
        self.requests.leave(key);
        match answer {
            Response::Error(errno) => Err(Errno(errno.raw_os_error() as u16)),
            response => Ok(response),
        }
    }

    async fn open(&self, file: InodeId, flags: i32) -> FileHandle {
        self.opened(file, flags).await.handle
    }

    async fn opened(&self, file: InodeId, flags: i32) -> Opened {
        let open = Operation::Open { flags: flags.cast_unsigned(), kill_suid_sgid: false };
        match self.ask(NodeId(file.0), open).await.unwrap() {
            Response::Opened(opened) => opened,
            other => panic!("OPEN is answered with {other:?}"),
        }
    }

    async fn set_lock(
        &self,
        file: InodeId,
        (handle, owner): (FileHandle, LockOwner),
        is_flock: bool,
        wait: bool,
    ) -> Result<(), Errno> {
        let (start, end, kind, pid) = (0, END, LockKind::Write, 1);
        let lock = LockRequest { handle, owner, start, end, kind, pid, is_flock };
        self.ask(NodeId(file.0), Operation::SetLock { lock, wait }).await.map(drop)
    }

    async fn release(&self, file: InodeId, handle: FileHandle, flock: Option<LockOwner>) {
        let release = Release { handle, flags: 0, flush: false, flock_unlock: flock };
        self.ask(NodeId(file.0), Operation::Release(release)).await.unwrap();
    }
}

fn whole(inode: InodeId) -> Lock {
    Lock {
        inode,
        family: LockFamily::Flock,
        owner: protocol::lock::LockOwner(1),
        start: 0,
        last: u64::MAX,
        mode: LockMode::Exclusive,
        pid: 1,
    }
}

/// Goal: a RELEASE that comes after the next open file has locked under the same owner number
/// releases nothing. (The number is the address of the kernel's open file, which the kernel uses
/// again; RELEASE is a background request.)
#[test]
fn a_late_release_keeps_the_next_lock() {
    for is_flock in [true, false] {
        play(1, async move |stage| {
            let scene = async move |client: Rc<Client>| {
                let file = make(&client, b"a", 1, 100).await;
                let mount = Mounted::new(&client);
                let unlocked = |owner| is_flock.then_some(owner);
                let first = mount.open(file, libc::O_RDWR).await;
                let second = mount.open(file, libc::O_RDWR).await;
                let third = mount.open(file, libc::O_RDWR).await;
                mount.set_lock(file, (first, X), is_flock, false).await.unwrap();
                mount.set_lock(file, (second, X), is_flock, false).await.unwrap();
                mount.release(file, first, unlocked(X)).await;
                let taken = mount.set_lock(file, (third, Y), is_flock, false).await;
                assert_eq!(taken, Err(Errno::EAGAIN), "two owners hold the lock");
                mount.release(file, second, unlocked(X)).await;
                mount.set_lock(file, (third, Y), is_flock, false).await.unwrap();
                mount.release(file, third, unlocked(Y)).await;
                assert_eq!(mount.server.kept().lock_owners, 0);
            };
            stage.on(0, scene).await;
        });
    }
}

/// Goal: a lock that could not be released at the close, because the service was away, is released
/// once the service is back.
#[test]
fn a_failed_release_is_repeated() {
    for is_flock in [true, false] {
        play(2, async move |stage| {
            let locked = async move |client: Rc<Client>| {
                let file = make(&client, b"a", 1, 100).await;
                let mount = Mounted::new(&client);
                let handle = mount.open(file, libc::O_RDWR).await;
                mount.set_lock(file, (handle, X), is_flock, false).await.unwrap();
                (mount, file, handle)
            };
            let (mount, file, handle) = stage.on(0, locked).await;
            let lock = Lock {
                family: if is_flock { LockFamily::Flock } else { LockFamily::Posix },
                ..whole(file)
            };
            let refused = async move |client: Rc<Client>| client.lock(lock, false).await;
            assert_eq!(stage.on(1, refused).await, Err(Errno::EAGAIN));
            let flock = is_flock.then_some(X);
            let close = async move |_| mount.release(file, handle, flock).await;
            stage.meta.kill();
            // The client knows that there is no connection, and sends nothing.
            sleep(HEARTBEAT).await;
            let mut closed = stage.begin(0, close);
            // Longer than a call waits.
            sleep(REQUEST_DEADLINE + HEARTBEAT).await;
            stage.restart_meta();
            timeout(SETTLED, &mut closed).await.expect("the close ends").unwrap();
            let taken = stage.begin(1, async move |client| client.lock(lock, true).await);
            timeout(SETTLED, taken).await.expect("the lock is free").unwrap().unwrap();
        });
    }
}

/// Goal: a reader that opens a file that is written here and has grown on another node goes past the
/// kernel's pages: the kernel drops an answer with a size if a write ends meanwhile, and would end
/// reads at the old size. Readers of a file whose end the kernel knows, or that only others write,
/// use the pages.
#[test]
fn who_reads_a_file_that_grows_here_and_elsewhere_goes_past_the_pages() {
    play(2, async move |stage| {
        let prepare = async move |client: Rc<Client>| {
            client.set_lending(Lending { attributes: SETTLED, names: SETTLED });
            let file = make(&client, b"a", 1, 100).await;
            let mount = Mounted::new(&client);
            let writer = mount.open(file, libc::O_WRONLY).await;
            mount.ask(NodeId(file.0), Operation::GetAttributes { handle: None }).await.unwrap();
            (mount, file, writer)
        };
        let (mount, file, writer) = stage.on(0, prepare).await;
        let read = |mount: Mounted| {
            stage.on(0, async move |_| {
                let reader = mount.opened(file, libc::O_RDONLY).await;
                mount.release(file, reader.handle, None).await;
                reader.flags.contains(OpenFlags::DIRECT_IO)
            })
        };
        assert!(!read(mount.clone()).await, "the kernel knows the end");
        let grow = async move |client: Rc<Client>| {
            let (handle, _) = client.open(file, stage::WRITE).await.unwrap();
            client.write(&handle, 100, stage::filled(2, 8192), false).await.unwrap();
            client.release(&handle).await.unwrap();
        };
        stage.on(1, grow).await;
        assert!(read(mount.clone()).await, "the file has grown");
        let ended = mount.clone();
        stage.on(0, async move |_| ended.release(file, writer, None).await).await;
        assert!(!read(mount).await, "no writer is left here");
    });
}

/// Goal: a read through the kernel's pages that ends before a write past them has its bytes is
/// counted from the arrival of the write, also if the mount changes the file's mode first.
#[test]
fn a_write_past_the_pages_begins_when_it_arrives() {
    let dropped: Rc<Cell<u32>> = Rc::default();
    let counted = Rc::clone(&dropped);
    let changes = move |_| -> Option<Changes> {
        let counted = Rc::clone(&counted);
        Some(Box::new(move |change| {
            if let Change::Pages(_, done) = change {
                counted.set(counted.get() + 1);
                let _ = done.try_send(Dropping::Done);
            }
        }))
    };
    let device = Arc::new(Gate::new(DEVICE_BYTES, BLOCK_BYTES));
    play_on_one(device, 1, changes, async |stage| {
        let direct = libc::O_DIRECT.cast_unsigned();
        let prepare = async move |client: Rc<Client>| {
            let setting = Setting { mode: 0o2755, uid: 0, gid: 5 };
            let mode = OpenMode { write: true, append: false, sync: false };
            let (made, attr) = client.create(InodeId::ROOT, b"a", setting, mode).await.unwrap();
            client.write(&made, 0, stage::filled(1, 4096), false).await.unwrap();
            client.release(&made).await.unwrap();
            let mount = Mounted { gid: 6, ..Mounted::new(&client) };
            let writer = mount.open(attr.inode, libc::O_WRONLY | libc::O_DIRECT).await;
            let reader = mount.open(attr.inode, libc::O_RDONLY).await;
            (mount, attr.inode, writer, reader)
        };
        let (mount, file, writer, reader) = stage.on(0, prepare).await;
        let read = Read {
            handle: reader,
            offset: 0,
            size: 4096,
            lock_owner: None,
            flags: 0,
            destination: None,
        };
        let write = Write {
            handle: writer,
            offset: 0,
            data: stage::filled(2, 4096),
            lock_owner: None,
            flags: direct,
            is_from_cache: false,
            kill_suid_sgid: true,
        };
        let slow = Duration::from_millis(150);
        stage.network.set_latency(&stage.meta, &stage.nodes[0], Some((slow, slow)));
        let scene = async move |_| {
            let writing = mount.clone();
            let node = NodeId(file.0);
            let written =
                reactor::spawn(async move { writing.ask(node, Operation::Write(write)).await });
            sleep(Duration::from_millis(10)).await;
            mount.ask(node, Operation::Read(read)).await.unwrap();
            written.await.unwrap().unwrap();
        };
        stage.on(0, scene).await;
        assert!(dropped.get() > 0, "the page that was read keeps the old bytes");
    });
}

/// Goal: a listing gives `..` the number of the parent, also if this client knows all names of the
/// directory.
#[test]
fn a_known_directory_lists_its_parent() {
    play(1, async |stage| {
        let scene = async |client: Rc<Client>| {
            let mount = Mounted::new(&client);
            let make = |name: &[u8]| Operation::MakeDirectory {
                name: Name::new(name).unwrap(),
                creation: Creation { mode: 0o755, umask: 0, extensions: Extensions::default() },
            };
            let make_in =
                async |parent, name: &[u8]| match mount.ask(parent, make(name)).await.unwrap() {
                    Response::Entry(entry) => entry.node,
                    other => panic!("MKDIR is answered with {other:?}"),
                };
            let parent = make_in(NodeId(InodeId::ROOT.0), b"parent").await;
            // The maker of a directory knows that it is empty.
            let child = make_in(parent, b"child").await;
            let Response::Opened(opened) =
                mount.ask(child, Operation::OpenDirectory { flags: 0 }).await.unwrap()
            else {
                panic!("OPENDIR is answered otherwise")
            };
            let read = ReadDirectory { handle: opened.handle, offset: 1, size: 4096 };
            let Response::Directory(listed) =
                mount.ask(child, Operation::ReadDirectory(read)).await.unwrap()
            else {
                panic!("READDIR is answered otherwise")
            };
            let listed = listed.into_buffer().to_vec();
            let number = u64::from_le_bytes(listed[..8].try_into().unwrap());
            let is = client.lookup(InodeId::ROOT, b"parent").await.unwrap().inode;
            assert_eq!(number, is.0, "`..` is another directory");
        };
        stage.on(0, scene).await;
    });
}

/// Goal: a create that another node's create has overtaken is repeated by the kernel (ESTALE), also if
/// the caller's second walk for an earlier name ended in the kernel, which then looked up no further
/// name (seed 433: the create failed with EIO).
#[test]
fn a_walk_does_not_outlive_its_name() {
    play(2, async |stage| {
        let scene = async |client: Rc<Client>| {
            let mount = Mounted::new(&client);
            let name = |name: &[u8]| Name::new(name).unwrap();
            let create = async |path: &[u8]| {
                let creation =
                    Creation { mode: 0o644, umask: 0, extensions: Extensions::default() };
                let flags = (libc::O_CREAT | libc::O_RDWR).cast_unsigned();
                let (name, kill_suid_sgid) = (name(path), false);
                let create = Operation::Create { name, creation, flags, kill_suid_sgid };
                mount.ask(NodeId(InodeId::ROOT.0), create).await.map(drop)
            };
            let look_up = async |path: &[u8]| {
                let lookup = Operation::Lookup { name: name(path) };
                mount.ask(NodeId(InodeId::ROOT.0), lookup).await.map(drop)
            };
            for path in [b"first", b"other"] {
                make(&client, path, 1, 100).await;
                assert_eq!(create(path).await, Err(Errno::ESTALE), "the kernel walks once more");
                // The second walk finds what the kernel refuses by itself.
                look_up(path).await.unwrap();
            }
            // The inode has another name now, and the caller's last LOOKUP has found the old one.
            let (from, to) = ((InodeId::ROOT, &b"other"[..]), (InodeId::ROOT, &b"moved"[..]));
            client.rename(from, to, RenameMode::Replace).await.unwrap();
            assert_eq!(look_up(b"moved").await, Err(Errno::ENOENT), "for a rename of both");
            assert_eq!(create(b"moved").await, Err(Errno::ESTALE), "the kernel walks once more");
            look_up(b"moved").await.unwrap();
        };
        stage.on(0, scene).await;
    });
}
