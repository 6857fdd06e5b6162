//! Making inodes.
//!
//! A new object is created in the work directory, gets its owner, mode and attributes there, and
//! moves to its name in one step: no program, and no crash, sees it incomplete. Where a whiteout
//! has the name, the move replaces it.

use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use fuse::{Creation, Extensions, Name, NodeId, Opened, Request, Response};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use super::Answer;
use super::Union;
use super::acl;
use super::privileges::{Caller, Opener};
use crate::backing::Backing;
use crate::format::suffix;
use crate::layers;
use crate::sys::{self, Stat};
use crate::tree::{Node, Place};

/// The kind of inode to make.
#[derive(Debug)]
pub(super) enum Make<'a> {
    File,
    Directory,
    Symlink(&'a [u8]),
    Special(u32, u32),
}

impl Make<'_> {
    /// Returns the kind that MKNOD makes.
    pub(super) fn of(creation: &Creation, rdev: u32) -> Self {
        match creation.mode & libc::S_IFMT {
            0 | libc::S_IFREG => Make::File,
            kind => Make::Special(kind, rdev),
        }
    }
}

/// A new node, its attributes and, of a file, the open file.
type Made = (Rc<Node>, Stat, Option<Rc<Backing>>);

/// The directory of a new inode, and its attributes.
#[derive(Debug)]
pub(super) struct Setting<'a> {
    parent: NodeId,
    mode: u32,
    umask: u32,
    uid: u32,
    gid: u32,
    extensions: &'a Extensions,
}

impl<'a> Setting<'a> {
    pub(super) fn of(request: &Request, creation: &'a Creation) -> Self {
        let Creation { mode, umask, extensions } = creation;
        let Request { node: parent, uid, gid, .. } = *request;
        Self { parent, mode: *mode, umask: *umask, uid, gid, extensions }
    }

    /// Returns the setting of a symbolic link, which has no mode of its own.
    pub(super) fn of_link(request: &Request, extensions: &'a Extensions) -> Self {
        let Request { node: parent, uid, gid, .. } = *request;
        Self { parent, mode: 0o777, umask: 0, uid, gid, extensions }
    }
}

impl Union {
    pub(super) async fn make(&self, setting: &Setting<'_>, name: &Name, make: &Make<'_>) -> Answer {
        let parent = self.tree.node(setting.parent)?;
        let (node, stat, _) = self.make_named(&parent, name.as_bytes(), make, setting).await?;
        Ok(Response::Entry(self.entry(&node, &stat)))
    }

    pub(super) async fn create(
        self: &Rc<Self>,
        request: &Request,
        name: &Name,
        creation: &Creation,
        flags: u32,
    ) -> Answer {
        let (parent, name) = (&self.tree.node(request.node)?, name.as_bytes());
        let setting = Setting::of(request, creation);
        match self.make_named(parent, name, &Make::File, &setting).await {
            Ok((node, stat, backing)) => {
                let backing = backing.ok_or(Errno::IO)?;
                let opened = self.opened(&node, backing, flags);
                Ok(Response::Created(self.entry(&node, &stat), opened))
            }
            // The kernel did not know the file, so it has not checked whether the caller may open
            // it. It looks the name up again and checks.
            Err(Errno::EXIST) if flags & libc::O_EXCL as u32 == 0 && !request.is_resent => {
                Err(Errno::STALE)
            }
            // An earlier server has made the file for this very request.
            Err(Errno::EXIST) if flags & libc::O_EXCL as u32 == 0 => {
                let (node, _) = self.tree.lookup(parent, name)?.ok_or(Errno::NOENT)?;
                let backing =
                    self.open(&node, flags, Opener::new(Caller::of(request), false)).await?;
                let opened = self.keep_open(&node, backing, flags, false);
                let stat = self.tree.stat(&node)?;
                Ok(Response::Created(self.entry(&node, &stat), opened))
            }
            Err(errno) => Err(errno),
        }
    }

    /// Notes a file that has just been made as open.
    fn opened(&self, node: &Rc<Node>, backing: Rc<Backing>, flags: u32) -> Opened {
        if let Some(state) = node.file() {
            *state.writable.borrow_mut() = Rc::downgrade(&backing);
        }
        self.keep_open(node, Some(backing), flags, false)
    }

    async fn make_named(
        &self,
        parent: &Rc<Node>,
        name: &[u8],
        make: &Make<'_>,
        setting: &Setting<'_>,
    ) -> Result<Made, Errno> {
        Self::check_new_name(name)?;
        if self.tree.lookup(parent, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        // The kernel holds the directory: its names stay as they are while this waits.
        self.copy_up.copy_up_directory(parent).await?;
        let upper = self.tree.upper()?;
        let directory = self.tree.upper_part(parent)?;
        let work_name = self.tree.work_name();
        let made = (|| {
            let backing = self.make_in_work(&work_name, make)?;
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            let object = sys::open_below(upper.work.as_fd(), &work_name, flags)?;
            self.set_new(directory.as_fd(), object.as_fd(), make, setting)?;
            self.take_name(directory.as_fd(), name, &work_name, make)?;
            let stat = self.tree.upper_stat(object.as_fd())?;
            Ok((stat, backing))
        })();
        if made.is_err() {
            let _ = layers::remove(upper.work.as_fd(), &work_name);
        }
        let (stat, backing) = made?;
        self.durability.note_new_name(parent);
        let node = self.tree.make_node(stat.kind(), self.tree.shown_inode_of(&stat), Place::Upper);
        let node = Rc::new(node);
        node.add_link(parent, name);
        // A directory that is made has no names yet, so none of whiteouts.
        node.note_plain(0);
        Ok((node, stat, backing))
    }

    /// Makes the bare inode; a file comes open.
    fn make_in_work(
        &self,
        work_name: &[u8],
        make: &Make<'_>,
    ) -> Result<Option<Rc<Backing>>, Errno> {
        let work = &self.tree.upper()?.work;
        let private = Mode::RUSR | Mode::WUSR;
        match *make {
            Make::File => {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let file = rustix::fs::openat(work, work_name, flags, private)?;
                return Ok(Some(Backing::new(file, true)));
            }
            Make::Directory => rustix::fs::mkdirat(work, work_name, Mode::RWXU)?,
            Make::Symlink(target) => rustix::fs::symlinkat(target, work, work_name)?,
            Make::Special(kind, rdev) => {
                // The kernel's 32-bit form: 12 bits of major between 8 and 12 bits of minor.
                let (major, minor) =
                    ((rdev & 0xf_ff00) >> 8, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00));
                if kind == libc::S_IFCHR && (major, minor) == (0, 0) {
                    // It would be a whiteout.
                    return Err(Errno::PERM);
                }
                let device = rustix::fs::makedev(major, minor);
                let kind = FileType::from_raw_mode(kind);
                rustix::fs::mknodat(work, work_name, kind, private, device)?;
            }
        }
        Ok(None)
    }

    /// Gives a new inode its owner, mode, lists and labels.
    fn set_new(
        &self,
        parent: BorrowedFd<'_>,
        object: BorrowedFd<'_>,
        make: &Make<'_>,
        setting: &Setting<'_>,
    ) -> Result<(), Errno> {
        let above = self.tree.upper_stat(parent)?;
        let found = sys::stat_at(object, b"")?;
        let is_directory = matches!(make, Make::Directory);
        let mut mode = setting.mode & 0o7777;
        let mut gid = self.tree.options().disk_gid(setting.gid);
        if above.mode & libc::S_ISGID != 0 {
            gid = above.gid;
            if is_directory {
                mode |= libc::S_ISGID;
            }
        }
        let uid = self.tree.options().disk_uid(setting.uid);
        let wanted = |mode| Stat { uid, gid, mode: found.kind() | mode, ..found };
        for context in &setting.extensions.security_contexts {
            let names = self.tree.upper_xattr_names();
            let name = names.stored(&context.name).ok_or(Errno::PERM)?;
            sys::set_xattr(object, &name, &context.value, XattrFlags::empty())?;
        }
        if matches!(make, Make::Symlink(_)) {
            return self.tree.set_owner_and_mode(object, &wanted(0o777));
        }
        let default =
            if self.tree.options().no_acl { None } else { sys::xattr(parent, acl::DEFAULT)? };
        let inherited = default.as_deref().and_then(|list| acl::inherit(list, mode));
        match (inherited, default) {
            (Some(inherited), Some(default)) => {
                self.tree.set_owner_and_mode(object, &wanted((mode & 0o7000) | inherited.mode))?;
                let none = XattrFlags::empty();
                if let Some(access) = inherited.access {
                    sys::set_xattr(object, acl::ACCESS, &access, none)?;
                }
                if is_directory {
                    sys::set_xattr(object, acl::DEFAULT, &default, none)?;
                }
                Ok(())
            }
            (None, _) | (Some(_), None) => {
                self.tree.set_owner_and_mode(object, &wanted(mode & !setting.umask))
            }
        }
    }

    /// Moves a new inode to its name, which nothing visible has.
    fn take_name(
        &self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        work_name: &[u8],
        make: &Make<'_>,
    ) -> Result<(), Errno> {
        let work = &self.tree.upper()?.work;
        if sys::find_at(directory, name)?.is_none() || !matches!(make, Make::Directory) {
            return rustix::fs::renameat(work, work_name, directory, name);
        }
        // A directory does not replace a whiteout: they change places. Names that the whiteout has
        // hidden must stay hidden.
        let object = sys::open_below(work.as_fd(), work_name, OFlags::PATH)?;
        let opaque = self.tree.layers().prefix.name(suffix::OPAQUE);
        sys::set_xattr(object.as_fd(), &opaque, b"y", XattrFlags::empty())?;
        let exchange = RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(work, work_name, directory, name, exchange)?;
        let _ = rustix::fs::unlinkat(work, work_name, AtFlags::empty());
        Ok(())
    }

    pub(super) async fn make_nameless(&self, setting: &Setting<'_>, flags: u32) -> Answer {
        let parent = self.tree.node(setting.parent)?;
        self.copy_up.copy_up_directory(&parent).await?;
        let upper = self.tree.upper()?;
        let directory = self.tree.upper_part(&parent)?;
        let open = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let private = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&upper.work, c".", open, private)?;
        self.set_new(directory.as_fd(), file.as_fd(), &Make::File, setting)?;
        let stat = self.tree.upper_stat(file.as_fd())?;
        let object = Rc::new(file.try_clone().map_err(crate::sys::errno_of)?);
        let place = Place::Gone { fd: object, is_own: true };
        let node =
            Rc::new(self.tree.make_node(stat.kind(), self.tree.shown_inode_of(&stat), place));
        let opened = self.opened(&node, Backing::new(file, true), flags);
        Ok(Response::Created(self.entry(&node, &stat), opened))
    }
}
