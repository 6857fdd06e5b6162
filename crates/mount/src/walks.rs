//! Paths that the kernel walks a second time, and renames between two names of one file.
//!
//! The kernel walks a path by LOOKUPs, checks permissions, and then sends the operation on the
//! inode or name that it has found. Another node may change both in between. Then the answer is
//! ESTALE: the kernel walks the whole path again, once, and looks every name up anew
//! (`LOOKUP_REVAL`). A create that another node's create has overtaken gets the same answer: the
//! kernel has to check the permissions of the file that won.
//!
//! A second ESTALE would reach the program. So the second walk of a caller is made safe:
//!
//! - An inode that it finds is pinned (`client::Pin`) until the caller acts: the inode cannot
//!   vanish any more, and works like an unlinked file of a local file system.
//! - Where it finds no inode, no other node adds names to the directory (`client::NamesHeld`) until
//!   the caller acts, or for [`NAME_HELD`]: the caller's create cannot lose again. On this node the
//!   kernel holds the directory's lock from that LOOKUP to the CREATE.
//!
//! A caller is identified by its thread. Callers of other process namespaces all have the number 0.
//! Such callers of one user share a second walk, which pins more than is needed and never less.
//!
//! The kernel itself answers a rename(2) between two names of one inode: it does nothing and
//! reports success. If another node renames the old name to the new one between the two LOOKUPs,
//! the kernel takes both for names of one inode, and two nodes would have moved one file. So when a
//! LOOKUP finds the same inode as the caller's previous LOOKUP did under another name, it looks
//! that other name up again. If that name is gone, the answer is ESTALE, and the second walk ends
//! with ENOENT.

use crate::server::Server;
use client::{NamesHeld, Pin};
use fuse::{Creation, Name, NodeId, Operation, Request, Response};
use protocol::{Attr, Errno, InodeId};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

/// Longest time of a second walk. After it the pins are released: later requests belong to another
/// walk.
const WALK_LASTS: Duration = Duration::from_secs(5);

/// Longest time for which a directory gets no new names because a second walk found a name absent.
/// The caller's CREATE follows within microseconds; other nodes' creates in that directory wait for
/// it.
const NAME_HELD: Duration = Duration::from_secs(1);

/// How often a second walk looks up a name again whose inode has gone.
const LOOKUPS_MAX: usize = 3;

/// Most second walks at a time; further ones are not made safe.
const WALKS_MAX: usize = 1024;

/// Number of callers whose last LOOKUP is remembered.
const SEEN: usize = 256;

/// The caller that walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Caller {
    thread: u32,
    uid: u32,
    gid: u32,
}

/// The meaning of a request for its caller's walk.
#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    /// Finds a name.
    Lookup(&'a Name),
    /// Looks at what was found, perhaps for the kernel's checks.
    Look,
    /// Ends the walk.
    Act(Act<'a>),
}

/// The purpose of a walk.
#[derive(Clone, Copy, Debug)]
enum Act<'a> {
    /// Makes and opens a file, with these open flags.
    Create(&'a Name, &'a Creation, u32),
    /// Moves a name.
    Rename,
    /// Gives this inode a further name.
    Link(NodeId),
    /// Any other operation on what the walk has found.
    Other,
}

/// The result of a LOOKUP.
#[derive(Debug)]
enum Named {
    Inode(Attr),
    /// An inode that the caller's previous LOOKUP has found under another name, which has gone.
    Lost,
}

/// A name that a second walk has found absent.
#[derive(Debug)]
struct Absent {
    number: u64,
    name: Box<[u8]>,
    held: NamesHeld,
    is_repeated: bool,
}

/// The meaning of a LOOKUP with regard to an earlier one that found a name absent.
#[derive(Debug)]
enum After {
    /// There was no such LOOKUP.
    Nothing,
    /// It is for the same name.
    Same,
    /// It is for another name: the earlier walk is over.
    Other(Option<Walk>),
}

/// A second walk.
#[derive(Debug, Default)]
struct Walk {
    number: u64,
    pins: Vec<Pin>,
    absent: Option<Absent>,
    /// The directory and the name that the caller has looked up last in it.
    looked_up: Option<(InodeId, Box<[u8]>)>,
    /// The walk is for a rename whose old name has gone.
    has_lost_name: bool,
}

/// A caller's last LOOKUP, if no other request followed it.
#[derive(Debug)]
struct Seen {
    thread: u32,
    parent: InodeId,
    name: Box<[u8]>,
    inode: InodeId,
}

/// All second walks and all last LOOKUPs.
#[derive(Debug)]
pub(crate) struct Walks {
    second: RefCell<HashMap<Caller, Walk>>,
    /// The last number given to a walk or an absent name.
    count: Cell<u64>,
    seen: RefCell<Vec<Option<Seen>>>,
}

impl Default for Walks {
    fn default() -> Walks {
        let seen = std::iter::repeat_with(|| None).take(SEEN).collect();
        Walks { second: RefCell::default(), count: Cell::new(0), seen: RefCell::new(seen) }
    }
}

impl Walks {
    fn number(&self) -> u64 {
        self.count.set(self.count.get() + 1);
        self.count.get()
    }

    fn is_second(&self, caller: Caller) -> bool {
        let second = self.second.borrow();
        !second.is_empty() && second.contains_key(&caller)
    }

    /// Records what a LOOKUP has found. Returns the caller's previous LOOKUP if it has found the
    /// same inode under another name.
    fn note(&self, thread: u32, parent: InodeId, name: &[u8], inode: InodeId) -> Option<Seen> {
        let new = Seen { thread, parent, name: name.into(), inode };
        let last = self.seen.borrow_mut()[thread as usize % SEEN].replace(new)?;
        let is_same_name = (last.parent, &*last.name) == (parent, name);
        (last.thread == thread && last.inode == inode && !is_same_name).then_some(last)
    }

    /// Returns what a LOOKUP means for a walk that has found a name absent. The kernel may look up
    /// the same name once more, with the directory's lock; other LOOKUPs belong to another walk.
    fn after_absent(&self, caller: Caller, parent: InodeId, name: &[u8]) -> After {
        let mut second = self.second.borrow_mut();
        let Some(absent) = second.get_mut(&caller).and_then(|walk| walk.absent.as_mut()) else {
            return After::Nothing;
        };
        let is_same = absent.held.directory() == parent && *absent.name == *name;
        if is_same && !std::mem::replace(&mut absent.is_repeated, true) {
            return After::Same;
        }
        After::Other(second.remove(&caller))
    }

    fn forget_seen(&self, thread: u32) {
        self.seen.borrow_mut()[thread as usize % SEEN] = None;
    }
}

fn step(operation: &Operation) -> Step<'_> {
    match operation {
        Operation::Lookup { name } => Step::Lookup(name),
        Operation::GetAttributes { .. }
        | Operation::ReadLink
        | Operation::GetXattr { .. }
        | Operation::Read(_)
        | Operation::Flush { .. }
        | Operation::Release(_) => Step::Look,
        Operation::Create { name, creation, flags, .. } => {
            Step::Act(Act::Create(name, creation, *flags))
        }
        Operation::Rename { .. } => Step::Act(Act::Rename),
        Operation::Link { inode, .. } => Step::Act(Act::Link(*inode)),
        Operation::Statx(_)
        | Operation::SetAttributes(_)
        | Operation::Symlink { .. }
        | Operation::MakeNode { .. }
        | Operation::MakeDirectory { .. }
        | Operation::Unlink { .. }
        | Operation::RemoveDirectory { .. }
        | Operation::Open { .. }
        | Operation::TemporaryFile { .. }
        | Operation::Write(_)
        | Operation::Fsync { .. }
        | Operation::OpenDirectory { .. }
        | Operation::ReadDirectory(_)
        | Operation::ReadDirectoryPlus(_)
        | Operation::ReleaseDirectory(_)
        | Operation::FsyncDirectory { .. }
        | Operation::StatFs
        | Operation::SetXattr { .. }
        | Operation::ListXattr { .. }
        | Operation::RemoveXattr { .. }
        | Operation::Access { .. }
        | Operation::GetLock(_)
        | Operation::SetLock { .. }
        | Operation::Fallocate { .. }
        | Operation::Lseek { .. }
        | Operation::CopyFileRange(_)
        | Operation::Ioctl(_)
        | Operation::Poll { .. }
        | Operation::SyncFs
        | Operation::BlockMap { .. } => Step::Act(Act::Other),
    }
}

impl Server {
    /// Answers a request as a step of its caller's walk.
    pub(crate) async fn answer_walk(self: &Rc<Self>, request: Request) -> Result<Response, Errno> {
        let caller = Caller { thread: request.pid, uid: request.uid, gid: request.gid };
        if !matches!(step(&request.operation), Step::Lookup(_)) {
            self.walks.forget_seen(caller.thread);
        }
        if !self.walks.is_second(caller) {
            let answer = self.answer(request).await;
            if matches!(answer, Err(Errno::ESTALE)) {
                self.begin_second(caller);
            }
            return answer;
        }
        let is_safe = self.is_safe(caller, &request);
        let answer = match step(&request.operation) {
            Step::Lookup(name) => {
                let parent = self.inode(request.node);
                match self.walks.after_absent(caller, parent, name.as_bytes()) {
                    After::Nothing => {}
                    After::Same => return Err(Errno::ENOENT),
                    After::Other(ended) => {
                        drop(ended);
                        return Box::pin(self.answer_walk(request)).await;
                    }
                }
                let attr = Box::pin(self.look_up_again(caller, parent, name.as_bytes())).await;
                attr.map(|attr| Response::Entry(self.entry(request.node, name.as_bytes(), &attr)))
            }
            Step::Look => Box::pin(self.answer(request)).await,
            Step::Act(_) => Box::pin(self.act_after_second(caller, request)).await,
        };
        if !matches!(answer, Err(Errno::ESTALE)) {
            return answer;
        }
        if is_safe {
            // What the walk found is pinned, so the reason is that the session has ended.
            return Err(Errno::EIO);
        }
        // The kernel ignored the first ESTALE and has walked only once: some of its checks need no
        // answer.
        self.begin_second(caller);
        answer
    }

    /// Returns whether a caller's second walk has led to what its request acts on.
    fn is_safe(&self, caller: Caller, request: &Request) -> bool {
        let second = self.walks.second.borrow();
        let Some(walk) = second.get(&caller) else { return false };
        let node = match step(&request.operation) {
            // A create that lost again because it came too late: see NAME_HELD. A create of another
            // name belongs to a later walk, whose LOOKUPs the kernel has answered from its cache.
            Step::Act(Act::Create(name, ..)) => {
                let is_same = |(directory, looked_up): &(InodeId, Box<[u8]>)| {
                    *directory == self.inode(request.node) && **looked_up == *name.as_bytes()
                };
                // A name that was called lost may be there for who does not rename.
                let is_second = !walk.has_lost_name && walk.looked_up.as_ref().is_some_and(is_same);
                return caller.thread != 0 && is_second;
            }
            Step::Act(Act::Link(inode)) => inode,
            Step::Act(Act::Rename | Act::Other) | Step::Look | Step::Lookup(_) => request.node,
        };
        let inode = self.inode(node);
        walk.pins.iter().any(|pin| pin.inode() == inode)
    }

    fn begin_second(self: &Rc<Self>, caller: Caller) {
        let mut second = self.walks.second.borrow_mut();
        if second.len() >= WALKS_MAX {
            return;
        }
        let number = self.walks.number();
        second.insert(caller, Walk { number, ..Walk::default() });
        let mount = Rc::downgrade(self);
        reactor::spawn(async move {
            reactor::time::sleep(WALK_LASTS).await;
            let Some(mount) = mount.upgrade() else { return };
            let mut second = mount.walks.second.borrow_mut();
            let is_same = second.get(&caller).is_some_and(|walk| walk.number == number);
            let ended = is_same.then(|| second.remove(&caller));
            drop(second);
            drop(ended);
        });
    }

    /// Answers a LOOKUP in a second walk.
    async fn look_up_again(
        self: &Rc<Self>,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
    ) -> Result<Attr, Errno> {
        if let Some(walk) = self.walks.second.borrow_mut().get_mut(&caller) {
            walk.looked_up = Some((parent, name.into()));
        }
        let mut held = None;
        let mut has_directory = true;
        let mut tries = 0;
        loop {
            match self.name_of(caller.thread, parent, name).await {
                Ok(Named::Inode(attr)) => match self.client.pin(attr.inode).await {
                    Ok(pin) => {
                        let mut second = self.walks.second.borrow_mut();
                        if let Some(walk) = second.get_mut(&caller)
                            && !reactor::mutant!("second-walk-unpinned")
                        {
                            walk.pins.push(pin);
                        }
                        return Ok(attr);
                    }
                    // The inode has gone in between; while names are held, no other takes its name.
                    Err(Errno::ESTALE) => {
                        self.client.forget(attr.inode, 1);
                        if held.is_none() {
                            held = Some(self.client.hold_names(parent).await?);
                        }
                    }
                    Err(errno) => {
                        self.client.forget(attr.inode, 1);
                        return Err(errno);
                    }
                },
                Err(Errno::ENOENT)
                    if held.is_none()
                        && has_directory
                        && !reactor::mutant!("second-walk-unheld") =>
                {
                    match self.client.hold_names(parent).await {
                        // The directory itself has gone: no file can be made in it any more. Or the
                        // session has ended, which the next answer shows.
                        Err(Errno::ESTALE) => has_directory = false,
                        names => held = Some(names?),
                    }
                }
                Err(Errno::ENOENT) => {
                    if let Some(held) = held {
                        self.keep_absent(caller, name, held);
                    }
                    return Err(Errno::ENOENT);
                }
                Ok(Named::Lost) => {
                    // Two names of one inode, and one of the names has gone: see the module's head.
                    let mut second = self.walks.second.borrow_mut();
                    if let Some(walk) = second.get_mut(&caller) {
                        walk.has_lost_name = true;
                    }
                    return Err(Errno::ENOENT);
                }
                // The inode of the name has gone, or the session has ended: then this node knows
                // nothing about names.
                Err(Errno::ESTALE) if reactor::mutant!("ended-session-finds-nothing") => {
                    return Err(Errno::ENOENT);
                }
                Err(Errno::ESTALE) if tries < LOOKUPS_MAX => tries += 1,
                Err(Errno::ESTALE) => return Err(Errno::EIO),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Keeps a directory's names held until the caller acts, or for [`NAME_HELD`].
    fn keep_absent(self: &Rc<Self>, caller: Caller, name: &[u8], held: NamesHeld) {
        let number = self.walks.number();
        {
            let mut second = self.walks.second.borrow_mut();
            let Some(walk) = second.get_mut(&caller) else { return };
            walk.absent = Some(Absent { number, name: name.into(), held, is_repeated: false });
        }
        let mount = Rc::downgrade(self);
        reactor::spawn(async move {
            reactor::time::sleep(NAME_HELD).await;
            let Some(mount) = mount.upgrade() else { return };
            let mut second = mount.walks.second.borrow_mut();
            let walk = second.get_mut(&caller);
            let is_same = |absent: &mut Absent| absent.number == number;
            let ended = walk.and_then(|walk| walk.absent.take_if(is_same));
            drop(second);
            drop(ended);
        });
    }

    /// Executes the operation that the second walk was for.
    async fn act_after_second(
        self: &Rc<Self>,
        caller: Caller,
        request: Request,
    ) -> Result<Response, Errno> {
        let ended = self.walks.second.borrow_mut().remove(&caller);
        // The pins last until the end of this function.
        let Walk { absent, pins: _pins, has_lost_name, .. } = ended.unwrap_or_default();
        match step(&request.operation) {
            Step::Act(Act::Rename) if has_lost_name => Err(Errno::ENOENT),
            Step::Act(Act::Create(name, creation, flags)) => {
                let parent = self.inode(request.node);
                let is_same = |absent: &Absent| {
                    absent.held.directory() == parent && *absent.name == *name.as_bytes()
                };
                let held = absent.filter(is_same).map(|absent| absent.held);
                self.create(&request, name, creation, flags, held).await
            }
            Step::Act(Act::Rename | Act::Link(_) | Act::Other) | Step::Look | Step::Lookup(_) => {
                drop(absent);
                self.answer(request).await
            }
        }
    }

    /// Answers a LOOKUP: returns the inode of a name, with a reference. Returns ESTALE if an inode
    /// had two names one after the other and the caller may take them for names at the same time.
    pub(crate) async fn look_up(
        self: &Rc<Self>,
        thread: u32,
        parent: InodeId,
        name: &[u8],
    ) -> Result<Attr, Errno> {
        match self.name_of(thread, parent, name).await? {
            Named::Inode(attr) => Ok(attr),
            Named::Lost => Err(Errno::ESTALE),
        }
    }

    async fn name_of(
        self: &Rc<Self>,
        thread: u32,
        parent: InodeId,
        name: &[u8],
    ) -> Result<Named, Errno> {
        let attr = self.client.lookup(parent, name).await?;
        if let Some(last) = self.walks.note(thread, parent, name, attr.inode) {
            let again = self.client.lookup(last.parent, &last.name).await;
            if let Ok(again) = &again {
                self.client.forget(again.inode, 1);
            }
            let is_still = again.is_ok_and(|again| again.inode == attr.inode);
            if !is_still && !reactor::mutant!("second-name-unchecked") {
                self.client.forget(attr.inode, 1);
                return Ok(Named::Lost);
            }
        }
        Ok(Named::Inode(attr))
    }
}
