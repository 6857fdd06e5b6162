//! Paths: the cache of names, LOOKUP, and the second walk after ESTALE.

use super::inode::{Dentry, Inode};
use super::{Answer, Caller, Kernel};
use fuse::{Attributes, Entry, Name, Operation, Response};
use protocol::Errno;
use reactor::time::now;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// How a name is looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Looking {
    /// `LOOKUP_REVAL`: cached names are looked up again.
    pub(super) again: bool,
    /// `LOOKUP_EXCL`: the caller will create the name.
    pub(super) exclusive: bool,
}

/// The path of a file: a directory under the root, or none for the root itself, and a name in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path<'a> {
    /// A name under the root.
    pub(crate) directory: Option<&'a str>,
    /// The last name.
    pub(crate) name: &'a str,
}

pub(super) fn name(bytes: &[u8]) -> Name {
    Name::new(bytes).expect("names of workers are names")
}

/// Runs a function on a path. After ESTALE it runs it once more with every name looked up again.
pub(super) async fn twice<T>(act: impl AsyncFn(Looking) -> Answer<T>) -> Answer<T> {
    match act(Looking::default()).await {
        Err(Errno::ESTALE) => act(Looking { again: true, ..Looking::default() }).await,
        answer => answer,
    }
}

impl Kernel {
    /// Returns the directory of a path's last name.
    pub(super) async fn parent(
        self: &Rc<Self>,
        caller: Caller,
        path: Path<'_>,
        looking: Looking,
    ) -> Answer<Rc<Inode>> {
        self.shrink();
        let Some(directory) = path.directory else { return Ok(Rc::clone(&self.root)) };
        let root = Rc::clone(&self.root);
        let found = self.find(caller, &root, directory.as_bytes(), looking).await?;
        match found {
            Some(inode) if inode.is_directory() => Ok(inode),
            Some(_) => Err(Errno::ENOTDIR),
            None => Err(Errno::ENOENT),
        }
    }

    /// Returns what a path leads to.
    pub(super) async fn walk(
        self: &Rc<Self>,
        caller: Caller,
        path: Path<'_>,
        looking: Looking,
    ) -> Answer<Rc<Inode>> {
        let parent = self.parent(caller, path, looking).await?;
        let found = self.find(caller, &parent, path.name.as_bytes(), looking).await?;
        found.ok_or(Errno::ENOENT)
    }

    /// Looks a name up, for a caller without the directory's lock.
    pub(super) async fn find(
        self: &Rc<Self>,
        caller: Caller,
        directory: &Rc<Inode>,
        name: &[u8],
        looking: Looking,
    ) -> Answer<Option<Rc<Inode>>> {
        if let Some(found) = self.find_known(caller, directory, name, looking).await {
            return Ok(found);
        }
        let _lock = directory.lock_shared().await;
        let key = (directory.node, Box::from(name));
        // Only one LOOKUP of a name runs at a time; a second caller uses the result of the first.
        while self.in_lookup.borrow().contains(&key) {
            self.looked_up.notified().await;
        }
        self.in_lookup.borrow_mut().insert(key.clone());
        let found = self.find_locked(caller, directory, name, looking).await;
        self.in_lookup.borrow_mut().remove(&key);
        self.looked_up.notify();
        found
    }

    /// Looks a name up, for a caller with the directory's lock.
    pub(super) async fn find_locked(
        self: &Rc<Self>,
        caller: Caller,
        directory: &Rc<Inode>,
        name: &[u8],
        looking: Looking,
    ) -> Answer<Option<Rc<Inode>>> {
        if let Some(found) = self.find_known(caller, directory, name, looking).await {
            return Ok(found);
        }
        self.look_up(caller, directory, name).await
    }

    /// Returns what the cache of names knows; nothing if that is not valid any more. An expired
    /// name that leads to an inode is looked up again.
    pub(super) async fn find_known(
        self: &Rc<Self>,
        caller: Caller,
        directory: &Rc<Inode>,
        name: &[u8],
        looking: Looking,
    ) -> Option<Option<Rc<Inode>>> {
        let (inode, valid_until, is_current) = {
            let dentries = self.dentries.borrow();
            let dentry = dentries.get(&(directory.node, Box::from(name)))?;
            (dentry.inode.clone(), dentry.valid_until, dentry.epoch == self.epoch.get())
        };
        if !is_current {
            self.invalidate(directory.node, name);
            return None;
        }
        if valid_until > now() && !looking.again && !looking.exclusive {
            return Some(inode);
        }
        if let Some(inode) = inode {
            let version = self.attr_version.get();
            let operation = Operation::Lookup { name: self::name(name) };
            let answer = self.request(caller, directory.node, operation).await;
            if let Ok(Response::Entry(entry)) = answer
                && entry.node.0 != 0
            {
                if entry.node.0 == inode.node && kind(&entry.attributes) == inode.kind() {
                    inode.looked_up();
                    self.change_attributes(&inode, &entry, version).await;
                    let mut dentries = self.dentries.borrow_mut();
                    if let Some(dentry) = dentries.get_mut(&(directory.node, Box::from(name))) {
                        dentry.valid_until = now() + entry.entry_valid;
                    }
                    return Some(Some(inode));
                }
                self.forgets.push(entry.node.0, 1);
            }
        }
        self.invalidate(directory.node, name);
        None
    }

    /// Sends LOOKUP.
    async fn look_up(
        self: &Rc<Self>,
        caller: Caller,
        directory: &Rc<Inode>,
        name: &[u8],
    ) -> Answer<Option<Rc<Inode>>> {
        let version = self.attr_version.get();
        let epoch = self.epoch.get();
        let operation = Operation::Lookup { name: self::name(name) };
        let answer = self.request(caller, directory.node, operation).await;
        let entry = match answer {
            Ok(Response::Entry(entry)) => entry,
            Ok(other) => panic!("LOOKUP is answered with {other:?}"),
            Err(Errno::ENOENT) => {
                self.enter(directory, name, None, Duration::ZERO, epoch);
                return Ok(None);
            }
            Err(errno) => return Err(errno),
        };
        if entry.node.0 == 0 {
            self.enter(directory, name, None, entry.entry_valid, epoch);
            return Ok(None);
        }
        let inode = self.inode(&entry, version).await;
        self.splice(directory, name, &inode, entry.entry_valid, epoch)?;
        directory.wants_plus.set(true);
        Ok(Some(inode))
    }

    /// Returns the inode of an entry (`fuse_iget`), and counts the lookup.
    pub(super) async fn inode(self: &Rc<Self>, entry: &Entry, version: u64) -> Rc<Inode> {
        let known = self.inodes.borrow().get(&entry.node.0).and_then(Weak::upgrade);
        let known = known.filter(|inode| inode.kind() == kind(&entry.attributes));
        if let Some(inode) = known {
            inode.looked_up();
            self.change_attributes(&inode, entry, version).await;
            return inode;
        }
        let forgets = Rc::clone(&self.forgets);
        let inode = Rc::new(Inode::new(entry.node.0, entry.attributes, forgets));
        inode.set(entry.attributes, entry.attributes_valid, self.next_version());
        inode.looked_up();
        let mut inodes = self.inodes.borrow_mut();
        inodes.retain(|_, inode| inode.strong_count() > 0);
        inodes.insert(entry.node.0, Rc::downgrade(&inode));
        inode
    }

    /// Sets the attributes of an entry, unless they changed after the request (version 0: always).
    pub(super) async fn change_attributes(&self, inode: &Rc<Inode>, entry: &Entry, version: u64) {
        self.update(inode, entry.attributes, entry.attributes_valid, version).await;
    }

    pub(super) async fn update(
        &self,
        inode: &Rc<Inode>,
        attributes: Attributes,
        valid: Duration,
        version: u64,
    ) -> bool {
        if version != 0 && (inode.version() > version || inode.is_size_unstable.get()) {
            return false;
        }
        let before = inode.set(attributes, valid, self.next_version());
        if inode.is_file() && before != attributes.size {
            inode.truncate_pages(attributes.size).await;
        }
        true
    }

    /// Gives an inode a name (`d_splice_alias`). A directory has only one: it is moved there, which
    /// needs locks that must be free.
    pub(super) fn splice(
        &self,
        directory: &Rc<Inode>,
        name: &[u8],
        inode: &Rc<Inode>,
        valid: Duration,
        epoch: u64,
    ) -> Answer<()> {
        if inode.is_directory() {
            let key = (directory.node, Box::from(name));
            let place = inode.place.borrow().clone().filter(|place| *place != key);
            let old = place.and_then(|place| {
                let dentries = self.dentries.borrow();
                let dentry = dentries.get(&place)?;
                let is_same = dentry.inode.as_ref().is_some_and(|known| Rc::ptr_eq(known, inode));
                is_same.then(|| (place.clone(), Rc::clone(&dentry.parent)))
            });
            if let Some((place, parent)) = old {
                let is_near = parent.node == directory.node;
                let _locks = if is_near {
                    None
                } else {
                    let renames = self.renames.try_acquire(1).ok_or(Errno::ESTALE)?;
                    Some((renames, parent.try_lock_shared().ok_or(Errno::ESTALE)?))
                };
                self.dentries.borrow_mut().remove(&place);
            }
            inode.place.replace(Some(key));
        }
        self.enter(directory, name, Some(inode), valid, epoch);
        Ok(())
    }

    /// Enters a name into the cache, as looked up in an epoch.
    pub(super) fn enter(
        &self,
        directory: &Rc<Inode>,
        name: &[u8],
        inode: Option<&Rc<Inode>>,
        valid: Duration,
        epoch: u64,
    ) {
        let (inode, valid_until) = (inode.cloned(), now() + valid);
        let dentry = Dentry { inode, valid_until, epoch, parent: Rc::clone(directory) };
        let key = (directory.node, Box::from(name));
        let old = self.dentries.borrow_mut().insert(key, dentry);
        drop(old);
    }

    /// Drops a name and all names below it (`d_invalidate`).
    pub(super) fn invalidate(&self, parent: u64, name: &[u8]) {
        let dropped = self.dentries.borrow_mut().remove(&(parent, Box::from(name)));
        let Some(inode) = dropped.as_ref().and_then(|dentry| dentry.inode.clone()) else { return };
        if !inode.is_directory() {
            return;
        }
        let below: Vec<Box<[u8]>> = {
            let dentries = self.dentries.borrow();
            let from = (inode.node, Box::default());
            let all = dentries.range(from..).take_while(|((node, _), _)| *node == inode.node);
            all.map(|((_, name), _)| name.clone()).collect()
        };
        for name in below {
            self.invalidate(inode.node, &name);
        }
    }

    /// fstat(2).
    pub(crate) async fn fstat(
        self: &Rc<Self>,
        caller: Caller,
        file: &super::OpenFile,
    ) -> Answer<Attributes> {
        Ok(self.fstat_seen(caller, file).await?.0)
    }

    /// Like [`Kernel::fstat`], with whether the attributes are those of the answer
    /// ([`Kernel::get_attributes`]).
    pub(crate) async fn fstat_seen(
        self: &Rc<Self>,
        caller: Caller,
        file: &super::OpenFile,
    ) -> Answer<(Attributes, bool)> {
        let is_fresh = self.get_attributes(caller, &file.inode).await?;
        Ok((file.inode.attributes(), is_fresh))
    }

    /// stat(2).
    pub(crate) async fn stat(
        self: &Rc<Self>,
        caller: Caller,
        path: Path<'_>,
    ) -> Answer<Attributes> {
        Ok(self.stat_seen(caller, path).await?.0)
    }

    /// Like [`Kernel::stat`], with whether the attributes are those of the answer
    /// ([`Kernel::get_attributes`]).
    pub(crate) async fn stat_seen(
        self: &Rc<Self>,
        caller: Caller,
        path: Path<'_>,
    ) -> Answer<(Attributes, bool)> {
        twice(async |looking| {
            let inode = self.walk(caller, path, looking).await?;
            let is_fresh = self.get_attributes(caller, &inode).await?;
            Ok((inode.attributes(), is_fresh))
        })
        .await
    }
}

fn kind(attributes: &Attributes) -> u32 {
    attributes.mode & libc::S_IFMT
}
