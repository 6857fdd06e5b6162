//! Steps that use attributes, extended attributes, modes, symbolic links, holes and the pool.

use super::{BALLAST, Worker};
use crate::history::Life;
use crate::linear::{Answer, Op};
use protocol::{Errno, InodeId};
use std::cell::Cell;

/// The extended attributes that workers use.
const XATTRS: [&[u8]; 2] = [b"user.one", b"user.two"];
/// Upper limit of offsets at which a step looks for holes.
const OFFSET_MAX: u64 = 200_000;

/// Returns what stands for a file's mode among the calls.
fn mode_of(inode: InodeId) -> String {
    format!("mode of inode {}", inode.0)
}

impl Worker {
    /// Changes or reads an attribute.
    pub(super) async fn attributes(&mut self) {
        let (parent, place) = self.any_place();
        let place = place.as_str();
        let name = *self.random.of(&XATTRS);
        match self.random.below(6) {
            0 | 1 => self.set_xattr((parent, place), name).await,
            2 | 3 => self.see_xattr((parent, place), name).await,
            4 => {
                let path = self.path(parent, place);
                self.note("remove xattr");
                let result = self.kernel.remove_xattr(self.caller(), path, name).await;
                self.answered("remove xattr", &result);
                self.note("list xattrs");
                let result = self.kernel.xattrs(self.caller(), path).await;
                self.answered("list xattrs", &result);
            }
            _ => self.chmod(parent, place).await,
        }
    }

    /// Changes the mode of a file.
    pub(super) async fn chmod(&mut self, parent: InodeId, name: &str) {
        let mode = *self.random.of(&[0o600, 0o640, 0o644, 0o666]);
        let life = self.begin("chmod");
        self.on_name(parent, name);
        self.on(|| format!(" to {mode:#o}"));
        let call = Cell::new(None);
        let acts = |inode| {
            let op = Op::Write { file: mode_of(inode), value: u64::from(mode) };
            if self.knows_modes(inode) {
                let at = call.get().unwrap_or_else(|| self.call(&life, op.clone()));
                self.history().calls[at].op = op;
                call.set(Some(at));
            } else {
                self.history().modes.insert(inode, false);
            }
        };
        let path = self.path(parent, name);
        let result = self.kernel.chmod(self.caller(), path, mode, acts).await;
        if let Some(call) = call.get() {
            self.call_ended(call, &result, |()| Answer::Done);
        }
        self.answered("chmod", &result);
    }

    /// Whether all changes of a file's mode are known. A node that ends may take those with it that
    /// it holds back until the first close.
    fn knows_modes(&self, inode: InodeId) -> bool {
        !self.shared.plan.has_faults() && self.history().modes.get(&inode) == Some(&true)
    }

    /// Records the mode of a file that this worker has just made.
    pub(super) fn made_with_mode(&self, life: &Life, inode: InodeId, mode: u32) {
        self.history().modes.entry(inode).or_insert(true);
        if !self.knows_modes(inode) {
            return;
        }
        let op = Op::Write { file: mode_of(inode), value: u64::from(mode) };
        let call = self.call(life, op);
        self.call_ended(call, &Ok::<_, Errno>(()), |()| Answer::Done);
    }

    /// Records the mode of a file that stat(2) has returned.
    pub(super) fn saw_mode(&self, life: &Life, inode: InodeId, mode: u32) {
        if !self.knows_modes(inode) {
            return;
        }
        let call = self.call(life, Op::Read { file: mode_of(inode), locked: false });
        let seen = Answer::Value(u64::from(mode & !libc::S_IFMT));
        self.call_ended(call, &Ok::<_, Errno>(()), |()| seen);
    }

    async fn set_xattr(&mut self, (parent, place): (InodeId, &str), name: &[u8]) {
        let stamp = self.history().stamp();
        let flags = *self.random.of(&[0, 0, libc::XATTR_CREATE]);
        self.note("set xattr");
        let set_on = Cell::new(None);
        // Other callers may see the value from now on.
        let acts = |inode| {
            let file = self.file(inode);
            set_on.set(Some(file));
            self.history().xattrs.push((file, name.to_vec(), stamp));
        };
        let value = stamp.to_le_bytes();
        let path = self.path(parent, place);
        let set = (name, &value[..], flags);
        let result = self.kernel.set_xattr(self.caller(), path, set, acts).await;
        self.answered("set xattr", &result);
        let Some(file) = set_on.get() else { return };
        let is_alone = self.history().xattrs.iter().filter(|(f, ..)| *f == file).count() == 1;
        if result.is_ok() && is_alone && self.session().is_some() {
            self.see_xattr((parent, place), name).await;
        }
    }

    /// Checks that the value of an extended attribute was once set on this file under this name.
    async fn see_xattr(&self, (parent, place): (InodeId, &str), name: &[u8]) {
        self.note("get xattr");
        let path = self.path(parent, place);
        let result = self.kernel.xattr(self.caller(), path, name).await;
        self.answered("get xattr", &result);
        let Ok((inode, value)) = result else { return };
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

    /// Takes one of the reading steps that no other step contains.
    pub(super) async fn look(&mut self) {
        match self.random.below(7) {
            5 | 6 => self.make_files().await,
            0 => {
                self.note("statfs");
                let result = self.kernel.statfs(self.caller()).await;
                self.answered("statfs", &result);
            }
            1 => self.symlink().await,
            2 => self.seek().await,
            3 => {
                // The kernel does not send sync(2) to the mount; this is `tsumugi sync`.
                let Some(client) = self.kernel.client() else { return };
                self.note("sync");
                let job = self.kernel.in_process(async move { client.sync_all().await });
                let result = job.await;
                self.answered("sync", &result);
            }
            _ => {
                let Some(open) = self.some_open_file(libc::O_RDWR).await else { return };
                self.note("fallocate");
                let range = (0, OFFSET_MAX);
                let mode = libc::FALLOC_FL_KEEP_SIZE;
                let result = self.kernel.fallocate(self.caller(), &open.file, range, mode).await;
                self.answered("fallocate", &result);
                self.close(&open).await;
            }
        }
    }

    async fn seek(&mut self) {
        let Some(open) = self.some_open_file(libc::O_RDONLY).await else { return };
        let offset = self.random.below(OFFSET_MAX);
        let whence = *self.random.of(&[libc::SEEK_DATA, libc::SEEK_HOLE]);
        self.note("seek");
        let result = self.kernel.seek(self.caller(), &open.file, offset, whence).await;
        self.answered("seek", &result);
        if let Ok(found) = result
            && found < offset
        {
            let inode = open.file.inode.number();
            let text = format!("seek of inode {} goes back to {found}", inode.0);
            self.history().violations.push(text);
        }
        self.close(&open).await;
    }

    /// Makes a symbolic link or a FIFO under a name that no other worker uses, checks it and
    /// removes it.
    async fn symlink(&mut self) {
        let number = self.history().stamp();
        let (name, target) = (format!("s{number}"), format!("../{BALLAST}/{number}").into_bytes());
        let path = self.path(InodeId::ROOT, &name);
        let is_link = self.random.below(3) > 0;
        self.note("symlink");
        let made = if is_link {
            self.kernel.symlink(self.caller(), path, &target).await
        } else {
            self.kernel.mkfifo(self.caller(), path).await
        };
        self.answered("symlink", &made);
        if made.is_ok() && is_link {
            self.note("readlink");
            let read = self.kernel.readlink(self.caller(), path).await;
            self.answered("readlink", &read);
            if read.is_ok_and(|read| read != target) {
                self.history().violations.push(format!("{name} points elsewhere"));
            }
        }
        self.note("unlink");
        let removed = self.kernel.unlink(self.caller(), path).await;
        self.answered("unlink", &removed);
        if matches!(removed, Err(Errno::EISDIR | Errno::ENOTDIR)) {
            self.history().violations.push(format!("{name} is no symbolic link"));
        }
    }
}
