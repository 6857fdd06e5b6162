//! Steps about attributes: extended ones, modes, symbolic links, holes, the pool.

use super::{BALLAST, Worker};
use client::{SeekTo, Setting};
use protocol::attr::AttrChanges;
use protocol::client::{Creation, FallocateMode, XattrMode};
use protocol::{Errno, FileKind, InodeId};

/// The extended attributes that workers use.
const XATTRS: [&[u8]; 2] = [b"user.one", b"user.two"];
/// Offsets at which holes are looked for are below this.
const OFFSET_MAX: u64 = 200_000;

impl Worker {
    /// Changes an attribute, or looks at one.
    pub(super) async fn attributes(&mut self) {
        let Some(inode) = self.some_file().await else { return };
        let name = *self.random.of(&XATTRS);
        match self.random.below(6) {
            0 | 1 => self.set_xattr(inode, name).await,
            2 | 3 => self.see_xattr(inode, name).await,
            4 => {
                self.note("remove xattr");
                let result = self.client.remove_xattr(inode, name).await;
                self.answered("remove xattr", &result);
                let result = self.client.xattrs(inode).await;
                self.answered("list xattrs", &result);
            }
            _ => {
                self.note("chmod");
                let mode = *self.random.of(&[0o600, 0o644, 0o666]);
                let changes = AttrChanges { mode: Some(mode), ..AttrChanges::default() };
                let result = self.client.set_attr(inode, changes).await;
                self.answered("chmod", &result);
            }
        }
    }

    async fn set_xattr(&mut self, inode: InodeId, name: &[u8]) {
        let stamp = self.history().stamp();
        let file = self.file(inode);
        // It may be seen from now on.
        self.history().xattrs.push((file, name.to_vec(), stamp));
        let mode = *self.random.of(&[XattrMode::Set, XattrMode::Set, XattrMode::Create]);
        self.note("set xattr");
        let result = self.client.set_xattr(inode, name, &stamp.to_le_bytes(), mode).await;
        self.answered("set xattr", &result);
        let is_alone = self.history().xattrs.iter().filter(|(f, ..)| *f == file).count() == 1;
        if result.is_ok() && is_alone && self.session().is_some() {
            self.see_xattr(inode, name).await;
        }
    }

    /// What an extended attribute says must have been set, to this file and under this name.
    async fn see_xattr(&self, inode: InodeId, name: &[u8]) {
        self.note("get xattr");
        let result = self.client.xattr(inode, name).await;
        self.answered("get xattr", &result);
        let Ok(value) = result else { return };
        let file = self.file(inode);
        let mut history = self.history();
        let is_known = history.xattrs.iter().any(|(other, known, stamp)| {
            *other == file && known == name && stamp.to_le_bytes()[..] == value[..]
        });
        if !is_known {
            let text = format!("extended attribute of inode {} is {value:02x?}", inode.0);
            history.violations.push(text);
        }
    }

    /// Looks at what no other step looks at.
    pub(super) async fn look(&mut self) {
        match self.random.below(5) {
            0 => {
                self.note("statfs");
                let result = self.client.pool_use().await;
                self.answered("statfs", &result);
            }
            1 => self.symlink().await,
            2 => {
                let Some(inode) = self.some_file().await else { return };
                let offset = self.random.below(OFFSET_MAX);
                let to = *self.random.of(&[SeekTo::Data, SeekTo::Hole]);
                self.note("seek");
                let result = self.client.seek(inode, offset, to).await;
                self.answered("seek", &result);
                if let Ok(found) = result
                    && found < offset
                {
                    let text = format!("seek of inode {} goes back to {found}", inode.0);
                    self.history().violations.push(text);
                }
            }
            3 => {
                self.note("sync");
                let result = self.client.sync_all().await;
                self.answered("sync", &result);
            }
            _ => {
                let Some(inode) = self.some_file().await else { return };
                self.note("stat");
                let result = self.client.attr(inode).await;
                self.answered("stat", &result);
                let mode = FallocateMode::Allocate { keep_size: true };
                let result = self.client.fallocate(inode, 0, OFFSET_MAX, mode).await;
                self.answered("fallocate", &result);
            }
        }
    }

    /// Makes a symbolic link of a name that nobody else uses, reads it and removes it.
    async fn symlink(&mut self) {
        let number = self.history().stamp();
        let (name, target) = (format!("s{number}"), format!("../{BALLAST}/{number}").into_bytes());
        let parent = InodeId::ROOT;
        let setting = Setting { mode: 0o777, uid: 0, gid: 0 };
        self.note("symlink");
        let creation = match self.random.below(3) {
            0 => Creation::Special(FileKind::Fifo, 0),
            _ => Creation::Symlink(target.clone()),
        };
        let is_link = matches!(creation, Creation::Symlink(_));
        let made = self.client.make(parent, name.as_bytes(), creation, setting).await;
        self.answered("symlink", &made);
        if let Ok(attr) = made {
            if is_link {
                let read = self.client.read_link(attr.inode).await;
                self.answered("readlink", &read);
                if read.is_ok_and(|read| read[..] != target[..]) {
                    self.history().violations.push(format!("{name} points elsewhere"));
                }
            }
            self.client.forget(attr.inode, 1);
        }
        let removed = self.client.unlink(parent, name.as_bytes()).await;
        self.answered("unlink", &removed);
        if matches!(removed, Err(Errno::EISDIR | Errno::ENOTDIR)) {
            self.history().violations.push(format!("{name} is no symbolic link"));
        }
    }
}
