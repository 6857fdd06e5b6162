//! System calls that change names.

use super::attributes::data;
use super::inode::Inode;
use super::walk::{Looking, Path, name, twice};
use super::{Answer, Caller, Kernel};
use fuse::{Creation, Entry, Extensions, NodeId, Operation, Response};
use protocol::{Errno, InodeId};
use std::rc::Rc;
use std::time::Duration;

/// The flags of renameat2(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renaming {
    /// Replaces the file that has the new name.
    Replace,
    /// `RENAME_NOREPLACE`.
    NoReplace,
    /// `RENAME_EXCHANGE`.
    Exchange,
}

fn entry_of(answer: &Response) -> Entry {
    let Response::Entry(entry) = answer else { panic!("an entry is wanted, not {answer:?}") };
    *entry
}

impl Kernel {
    /// unlink(2).
    pub(crate) async fn unlink(self: &Rc<Self>, caller: Caller, path: Path<'_>) -> Answer<()> {
        twice(async |looking| self.remove(caller, path, looking, false).await).await
    }

    /// rmdir(2).
    pub(crate) async fn rmdir(self: &Rc<Self>, caller: Caller, path: Path<'_>) -> Answer<()> {
        twice(async |looking| self.remove(caller, path, looking, true).await).await
    }

    async fn remove(
        self: &Rc<Self>,
        caller: Caller,
        path: Path<'_>,
        looking: Looking,
        is_directory: bool,
    ) -> Answer<()> {
        let parent = self.parent(caller, path, looking).await?;
        let _lock = parent.lock().await;
        let last = path.name.as_bytes();
        let found = self.find_locked(caller, &parent, last, looking).await?;
        let inode = found.ok_or(Errno::ENOENT)?;
        if inode.is_directory() != is_directory {
            return Err(if is_directory { Errno::ENOTDIR } else { Errno::EISDIR });
        }
        let _inode_lock = inode.lock().await;
        let name = name(last);
        let operation = if is_directory {
            Operation::RemoveDirectory { name }
        } else {
            Operation::Unlink { name }
        };
        match self.request(caller, parent.node, operation).await {
            Ok(_) => {
                self.invalidate(parent.node, last);
                self.enter(&parent, last, None, Duration::ZERO, self.epoch.get());
                inode.expire_attributes();
                parent.expire_attributes();
                Ok(())
            }
            Err(errno) => {
                if errno == Errno::ENOENT {
                    self.invalidate(parent.node, last);
                }
                Err(errno)
            }
        }
    }

    /// mkdir(2). Returns the new inode.
    pub(crate) async fn mkdir(self: &Rc<Self>, caller: Caller, path: Path<'_>) -> Answer<InodeId> {
        self.make(caller, path, |name| Operation::MakeDirectory { name, creation: creation(0o755) })
            .await
    }

    /// symlink(2).
    pub(crate) async fn symlink(
        self: &Rc<Self>,
        caller: Caller,
        path: Path<'_>,
        target: &[u8],
    ) -> Answer<InodeId> {
        self.make(caller, path, |name| Operation::Symlink {
            name,
            target: target.into(),
            extensions: Extensions::default(),
        })
        .await
    }

    /// mknod(2) of a FIFO.
    pub(crate) async fn mkfifo(self: &Rc<Self>, caller: Caller, path: Path<'_>) -> Answer<InodeId> {
        self.make(caller, path, |name| Operation::MakeNode {
            name,
            creation: creation(libc::S_IFIFO | 0o644),
            rdev: 0,
        })
        .await
    }

    /// readlink(2).
    pub(crate) async fn readlink(
        self: &Rc<Self>,
        caller: Caller,
        path: Path<'_>,
    ) -> Answer<Vec<u8>> {
        twice(async |looking| {
            let inode = self.walk(caller, path, looking).await?;
            let answer = self.request(caller, inode.node, Operation::ReadLink).await?;
            Ok(data(&answer))
        })
        .await
    }

    async fn make(
        self: &Rc<Self>,
        caller: Caller,
        path: Path<'_>,
        operation: impl Fn(fuse::Name) -> Operation,
    ) -> Answer<InodeId> {
        twice(async |looking| {
            let parent = self.parent(caller, path, looking).await?;
            let _lock = parent.lock().await;
            let last = path.name.as_bytes();
            self.must_be_free(caller, &parent, last, looking).await?;
            let epoch = self.epoch.get();
            let answer = self.request(caller, parent.node, operation(name(last))).await;
            self.made(&parent, last, answer, epoch).await
        })
        .await
    }

    async fn must_be_free(
        self: &Rc<Self>,
        caller: Caller,
        parent: &Rc<Inode>,
        name: &[u8],
        looking: Looking,
    ) -> Answer<()> {
        let looking = Looking { exclusive: true, ..looking };
        match self.find_locked(caller, parent, name, looking).await? {
            Some(_) => Err(Errno::EEXIST),
            None => Ok(()),
        }
    }

    /// Handles the answer to a request that makes a name (`create_new_entry`).
    async fn made(
        self: &Rc<Self>,
        parent: &Rc<Inode>,
        name: &[u8],
        answer: Answer<Response>,
        epoch: u64,
    ) -> Answer<InodeId> {
        match answer {
            Ok(answer) => {
                let entry = entry_of(&answer);
                let inode = self.inode(&entry, 0).await;
                self.invalidate(parent.node, name);
                self.splice(parent, name, &inode, entry.entry_valid, epoch)?;
                parent.expire_attributes();
                Ok(inode.number())
            }
            Err(errno) => {
                if errno == Errno::EEXIST {
                    self.invalidate(parent.node, name);
                }
                Err(errno)
            }
        }
    }

    /// link(2). Returns the inode that got the name; `acts` gets it before the request.
    pub(crate) async fn link(
        self: &Rc<Self>,
        caller: Caller,
        from: Path<'_>,
        to: Path<'_>,
        acts: impl Fn(InodeId),
    ) -> Answer<InodeId> {
        twice(async |looking| {
            let inode = self.walk(caller, from, looking).await?;
            let parent = self.parent(caller, to, looking).await?;
            let _lock = parent.lock().await;
            let last = to.name.as_bytes();
            self.must_be_free(caller, &parent, last, looking).await?;
            if inode.is_directory() {
                return Err(Errno(libc::EPERM as u16));
            }
            let _inode_lock = inode.lock().await;
            acts(inode.number());
            let (linked, new_name) = (NodeId(inode.node), name(last));
            let operation = Operation::Link { inode: linked, new_name };
            let epoch = self.epoch.get();
            let answer = self.request(caller, parent.node, operation).await;
            inode.expire_attributes();
            self.made(&parent, last, answer, epoch).await
        })
        .await
    }

    /// renameat2(2).
    pub(crate) async fn rename(
        self: &Rc<Self>,
        caller: Caller,
        from: Path<'_>,
        to: Path<'_>,
        how: Renaming,
    ) -> Answer<()> {
        twice(async |looking| self.rename_once(caller, from, to, how, looking).await).await
    }

    async fn rename_once(
        self: &Rc<Self>,
        caller: Caller,
        from: Path<'_>,
        to: Path<'_>,
        how: Renaming,
        looking: Looking,
    ) -> Answer<()> {
        let old = self.parent(caller, from, looking).await?;
        let new = self.parent(caller, to, looking).await?;
        let is_same = Rc::ptr_eq(&old, &new);
        let _renames = if is_same { None } else { Some(self.renames.acquire(1).await) };
        // Ancestors are locked first, directories on one level in the order of their numbers.
        let is_in_order = old.node <= new.node;
        let (first, second) = if is_in_order { (&old, &new) } else { (&new, &old) };
        let _first = first.lock().await;
        let _second = if is_same { None } else { Some(second.lock().await) };
        let (old_name, new_name) = (from.name.as_bytes(), to.name.as_bytes());
        let source = self.find_locked(caller, &old, old_name, looking).await?;
        let exclusive = how == Renaming::NoReplace;
        let target_looking = Looking { exclusive, ..looking };
        let target = self.find_locked(caller, &new, new_name, target_looking).await?;
        if how == Renaming::NoReplace && target.is_some() {
            return Err(Errno::EEXIST);
        }
        let source = source.ok_or(Errno::ENOENT)?;
        if how == Renaming::Exchange && target.is_none() {
            return Err(Errno::ENOENT);
        }
        if target.as_ref().is_some_and(|target| Rc::ptr_eq(target, &source)) {
            return Ok(());
        }
        if let Some(target) = target.as_ref().filter(|_| how != Renaming::Exchange)
            && target.is_directory() != source.is_directory()
        {
            return Err(if source.is_directory() { Errno::ENOTDIR } else { Errno::EISDIR });
        }
        let _inodes = lock_both(&source, target.as_ref()).await;
        let operation = Operation::Rename {
            name: name(old_name),
            new_parent: NodeId(new.node),
            new_name: name(new_name),
            flags: match how {
                Renaming::Replace => 0,
                Renaming::NoReplace => libc::RENAME_NOREPLACE,
                Renaming::Exchange => libc::RENAME_EXCHANGE,
            },
        };
        match self.request(caller, old.node, operation).await {
            Ok(_) => {
                let other = target.as_ref().filter(|_| how == Renaming::Exchange);
                self.moved((&old, old_name), (&new, new_name), &source, other);
                Ok(())
            }
            Err(errno) => {
                if errno == Errno::ENOENT {
                    self.invalidate(old.node, old_name);
                    if target.is_some() {
                        self.invalidate(new.node, new_name);
                    }
                }
                Err(errno)
            }
        }
    }

    /// Changes the cached names as a rename does (`d_move`, `d_exchange`). Names below a directory
    /// move with it.
    fn moved(
        &self,
        (old, old_name): (&Rc<Inode>, &[u8]),
        (new, new_name): (&Rc<Inode>, &[u8]),
        source: &Rc<Inode>,
        other: Option<&Rc<Inode>>,
    ) {
        let place = |directory: &Rc<Inode>, name: &[u8]| Some((directory.node, Box::from(name)));
        // A name keeps its expiry time and the epoch of its lookup.
        let life = |directory: &Rc<Inode>, name: &[u8]| {
            let dentries = self.dentries.borrow();
            let dentry = dentries.get(&(directory.node, Box::from(name)));
            let life = dentry.map(|d| (d.valid_until.since(reactor::time::now()), d.epoch));
            life.unwrap_or((Duration::ZERO, self.epoch.get()))
        };
        let (old_life, new_life) = (life(old, old_name), life(new, new_name));
        if other.is_none() {
            self.invalidate(new.node, new_name);
        }
        if source.is_directory() {
            source.place.replace(place(new, new_name));
        }
        if let Some(other) = other.filter(|other| other.is_directory()) {
            other.place.replace(place(old, old_name));
        }
        self.enter(new, new_name, Some(source), old_life.0, old_life.1);
        let old_life = if other.is_some() { new_life } else { (Duration::ZERO, new_life.1) };
        self.enter(old, old_name, other, old_life.0, old_life.1);
        for inode in [Some(old), Some(new), Some(source), other].into_iter().flatten() {
            inode.expire_attributes();
        }
    }
}

/// Locks the inodes that a rename moves and replaces.
async fn lock_both(source: &Rc<Inode>, target: Option<&Rc<Inode>>) -> impl Sized {
    let Some(target) = target else { return (source.lock().await, None) };
    let is_in_order = source.node <= target.node;
    let (first, second) = if is_in_order { (source, target) } else { (target, source) };
    let first = first.lock().await;
    (first, Some(second.lock().await))
}

fn creation(mode: u32) -> Creation {
    Creation { mode, umask: 0o022, extensions: Extensions::default() }
}
