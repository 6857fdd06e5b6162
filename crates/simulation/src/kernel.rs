//! A model of the Linux kernel in front of one mount. System calls become FUSE requests as in
//! `fs/namei.c` and `fs/fuse` of Linux 6.12 to 6.18, and caches are kept as long as the mount
//! allows.
//!
//! One [`Kernel`] stands for the mount of one process. Applications call it on a simulated node of
//! their own, so they survive that process: requests in flight then get `ECONNABORTED`, later ones
//! `ENOTCONN`. Each request may be delayed on its way to the process, and each answer on its way
//! back.

mod attributes;
mod directories;
mod files;
mod inode;
mod names;
mod pages;
mod through;
mod walk;

use crate::random::Random;
use client::Client;
use fuse::{FileSystem, Negotiated, NodeId, Operation, Registry, Request, Response, Unique};
use inode::{Dentry, Forgets, Inode};
use mount::Server;
use protocol::Errno;
use reactor::local::Semaphore;
use reactor::sim::Node;
use reactor::time::sleep;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

pub(crate) use files::{Locking, OpenFile};
pub(crate) use names::Renaming;
pub(crate) use walk::Path;

/// The result of a system call.
pub(crate) type Answer<T> = Result<T, Errno>;

/// The connection to the process was lost while the process had the request.
const ECONNABORTED: Errno = Errno(103);
/// No process serves the mount any more.
const ENOTCONN: Errno = Errno(107);

/// How long FORGETs wait to be sent together, at most.
const FORGET_DELAY: Duration = Duration::from_millis(50);

/// How often the model compares the references of mount and kernel until they are equal.
const COUNTS_MAX: usize = 40;

/// A directory's number and a name in it.
type Key = (u64, Box<[u8]>);

/// The thread that makes a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller(pub(crate) u32);

/// One mount in the kernel.
pub(crate) struct Kernel {
    /// Server and client of the process that serves the mount; `None` when it is dead.
    served: RefCell<Option<(Rc<Server>, Rc<Client>)>>,
    process: Node,
    negotiated: Negotiated,
    random: RefCell<Random>,
    requests: Registry,
    unique: Cell<u64>,
    /// Counts changes of attributes. An answer does not overwrite attributes that changed after its
    /// request.
    attr_version: Cell<u64>,
    /// Names from an earlier epoch are not valid.
    epoch: Cell<u64>,
    inodes: RefCell<BTreeMap<u64, Weak<Inode>>>,
    dentries: RefCell<BTreeMap<Key, Dentry>>,
    /// Names with a LOOKUP under way.
    in_lookup: RefCell<BTreeSet<Key>>,
    looked_up: reactor::local::Notify,
    root: Rc<Inode>,
    /// `s_vfs_rename_mutex`.
    renames: Semaphore,
    forgets: Rc<Forgets>,
    files: Cell<u64>,
    /// Percentage of notifications about pages that come late, and the longest delay.
    late_pages: (u64, Duration),
}

impl Kernel {
    /// Mounts: negotiates with the server. The process calls this.
    pub(crate) fn mount(
        (server, client): (Rc<Server>, Rc<Client>),
        process: Node,
        applications: &Node,
        mut random: Random,
        late_pages: (u64, Duration),
    ) -> Rc<Kernel> {
        let options = mount::session_options(fuse::TransportChoice::Auto);
        let negotiated = Negotiated {
            minor: 45,
            capabilities: options.capabilities,
            max_write_bytes: options.max_write_bytes,
            max_readahead_bytes: options.max_readahead_bytes,
            transport: fuse::Transport::IoUring,
            transport_reason: "simulated".into(),
        };
        server.init(&negotiated);
        let forgets = Rc::new(Forgets::default());
        let forget_random = Random::new(random.next());
        let kernel = Rc::new(Kernel {
            served: RefCell::new(Some((server, client))),
            process,
            negotiated,
            random: RefCell::new(random),
            requests: Registry::default(),
            unique: Cell::new(0),
            attr_version: Cell::new(1),
            epoch: Cell::new(0),
            inodes: RefCell::default(),
            dentries: RefCell::default(),
            in_lookup: RefCell::default(),
            looked_up: reactor::local::Notify::new(),
            root: Rc::new(Inode::root(Rc::clone(&forgets))),
            renames: Semaphore::new(1),
            forgets,
            files: Cell::new(0),
            late_pages,
        });
        drop(applications.spawn(forget(Rc::downgrade(&kernel), forget_random)));
        kernel
    }

    /// Aborts the connection, because the process has died.
    pub(crate) fn abort(&self) {
        self.served.take();
    }

    /// Whether the process that served the mount has died.
    pub(crate) fn is_dead(&self) -> bool {
        self.served.borrow().is_none()
    }

    fn server(&self) -> Answer<Rc<Server>> {
        let served = self.served.borrow();
        served.as_ref().map(|(server, _)| Rc::clone(server)).ok_or(ENOTCONN)
    }

    /// Returns the client of the process, for actions that no system call can express.
    pub(crate) fn client(&self) -> Option<Rc<Client>> {
        self.served.borrow().as_ref().map(|(_, client)| Rc::clone(client))
    }

    /// Runs a function in the process, as a request to the process would run.
    pub(crate) async fn in_process<T: 'static>(
        &self,
        job: impl Future<Output = Answer<T>> + 'static,
    ) -> Answer<T> {
        self.server()?;
        self.process.spawn(job).await.unwrap_or(Err(ECONNABORTED))
    }

    fn chance(&self, percent: u64) -> bool {
        self.random.borrow_mut().chance(percent)
    }

    /// Delays a request or an answer: usually not at all, now and then as a busy machine does.
    async fn delay(&self) {
        let us = {
            let mut random = self.random.borrow_mut();
            match random.below(100) {
                0..75 => return,
                75..98 => random.between(1, 200),
                _ => random.between(1, 10_000),
            }
        };
        sleep(Duration::from_micros(us)).await;
    }

    /// Sends a request and waits for its answer.
    async fn request(&self, caller: Caller, node: u64, operation: Operation) -> Answer<Response> {
        self.request_until(caller, node, operation, None).await
    }

    /// Like [`Kernel::request`], but a signal interrupts the caller after `patience`.
    async fn request_until(
        &self,
        Caller(pid): Caller,
        node: u64,
        operation: Operation,
        patience: Option<Duration>,
    ) -> Answer<Response> {
        self.delay().await;
        let server = self.server()?;
        self.unique.set(self.unique.get() + 2);
        let unique = Unique(self.unique.get());
        let cancellation = self.requests.enter(unique);
        let key = cancellation.key();
        let node = NodeId(node);
        let (uid, gid, is_resent) = (0, 0, false);
        let request = Request { unique, node, uid, gid, pid, is_resent, operation, cancellation };
        let mut job = self.process.spawn(server.handle(request));
        let answer = match patience {
            None => job.await,
            Some(patience) => {
                if let Ok(answer) = reactor::time::timeout(patience, &mut job).await {
                    answer
                } else {
                    self.requests.interrupt(unique);
                    job.await
                }
            }
        };
        self.requests.leave(key);
        self.delay().await;
        match answer {
            Ok(Response::Error(errno)) => Err(Errno(errno.raw_os_error() as u16)),
            Ok(response) => Ok(response),
            Err(_) => Err(ECONNABORTED),
        }
    }

    /// Sends a request without waiting for the answer.
    fn request_in_background(
        self: &Rc<Self>,
        node: u64,
        operation: Operation,
        held: impl Sized + 'static,
    ) {
        let kernel = Rc::clone(self);
        drop(reactor::spawn(async move {
            // The kernel ignores the answer to RELEASE.
            let _ = kernel.request(Caller(0), node, operation).await;
            drop(held);
        }));
    }

    fn known(&self, node: u64) -> Option<Rc<Inode>> {
        if node == self.root.node {
            return Some(Rc::clone(&self.root));
        }
        self.inodes.borrow().get(&node).and_then(Weak::upgrade)
    }

    /// The notification `INVAL_INODE`: drops attributes, and pages when no read fills them any
    /// more.
    pub(crate) async fn invalidate_inode(&self, node: u64) {
        self.delay().await;
        let (late_percent, late_max) = self.late_pages;
        if self.chance(late_percent) {
            let late_us = self.random.borrow_mut().between(1, late_max.as_micros() as u64);
            sleep(Duration::from_micros(late_us)).await;
        }
        let Some(inode) = self.known(node) else { return };
        inode.change_version(self.next_version());
        inode.expire_attributes();
        inode.drop_pages(0, u64::MAX).await;
    }

    /// The notification `INVAL_INODE` for attributes alone. Returns whether the inode is known.
    pub(crate) async fn drop_attributes(&self, node: u64) -> bool {
        self.delay().await;
        let Some(inode) = self.known(node) else {
            return false;
        };
        inode.change_version(self.next_version());
        inode.expire_attributes();
        true
    }

    /// The notification `INVAL_ENTRY`. It takes the directory's lock; a caller that makes, moves or
    /// removes a name there holds this lock until the process has answered.
    pub(crate) async fn drop_name(&self, directory: u64, name: &[u8], expires_only: bool) {
        self.delay().await;
        let Some(inode) = self.known(directory) else {
            return;
        };
        let _lock = inode.lock().await;
        if !expires_only {
            return self.invalidate(directory, name);
        }
        let mut dentries = self.dentries.borrow_mut();
        if let Some(dentry) = dentries.get_mut(&(directory, Box::from(name))) {
            dentry.valid_until = reactor::time::now();
        }
    }

    /// The notification `INC_EPOCH`: cached names, and names on their way, are not valid any more.
    /// Something may be mounted below; then the mount does not send this notification.
    pub(crate) async fn increase_epoch(&self) -> bool {
        self.delay().await;
        if self.chance(25) {
            return false;
        }
        self.epoch.set(self.epoch.get() + 1);
        true
    }

    fn next_version(&self) -> u64 {
        self.attr_version.set(self.attr_version.get() + 1);
        self.attr_version.get()
    }

    /// Returns the number of references that the mount keeps for this kernel, and the number that
    /// the kernel has: that of the root, and one for each time that it received an inode. When
    /// nothing is under way, both must be equal.
    pub(crate) async fn references(&self) -> Answer<(u64, u64)> {
        let mut counted = (0, 0);
        for _ in 0..COUNTS_MAX {
            // FORGETs are under way.
            sleep(FORGET_DELAY).await;
            let known = self.inodes.borrow().values().filter_map(Weak::upgrade).collect::<Vec<_>>();
            let lookups: u64 = known.iter().map(|inode| inode.lookups()).sum();
            counted = (self.server()?.kept().references, 1 + lookups + self.forgets.count());
            if counted.0 == counted.1 {
                break;
            }
        }
        Ok(counted)
    }

    /// Drops all names, as the shrinker does, and waits until the process has received that.
    /// Returns what the process still keeps.
    pub(crate) async fn unused(&self) -> Answer<mount::Kept> {
        let dentries = std::mem::take(&mut *self.dentries.borrow_mut());
        drop(dentries);
        // RELEASEs and FORGETs are under way.
        sleep(FORGET_DELAY * 100).await;
        Ok(self.server()?.kept())
    }

    /// Simulates a shortage of memory now and then.
    fn shrink(&self) {
        let victim = {
            let mut random = self.random.borrow_mut();
            let dentries = self.dentries.borrow();
            let count = dentries.len() as u64;
            if count == 0 || !random.chance(3) {
                return;
            }
            let key = dentries.keys().nth(random.below(count) as usize);
            key.cloned()
        };
        if let Some((parent, name)) = victim {
            self.invalidate(parent, &name);
        }
    }
}

/// Sends FORGETs late and several together.
async fn forget(kernel: Weak<Kernel>, mut random: Random) {
    loop {
        sleep(Duration::from_nanos(random.between(1, FORGET_DELAY.as_nanos() as u64))).await;
        let Some(kernel) = kernel.upgrade() else { return };
        let Ok(server) = kernel.server() else { return };
        let forgets = kernel.forgets.take();
        if forgets.is_empty() {
            continue;
        }
        drop(kernel.process.spawn(async move { server.forget(&forgets) }));
    }
}
