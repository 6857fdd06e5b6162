//! Attributes, links' targets, durability.

use std::os::fd::AsFd;
use std::rc::Rc;

use fuse::{FileSystemStatistics, Ioctl, NodeId, Response, SetAttributes, SetTime, Time};
use rustix::io::Errno;

use super::Answer;
use super::Union;
use super::privileges::{Announced, Caller, note_mode};
use super::status::IOCTL_STATUS;
use crate::copyup::Keep;
use crate::sys;
use crate::tree::Node;

/// On the root: waits until everything that was copied up has its name and is durable.
/// `_IO('u', 0x51)`
pub const IOCTL_SYNC: u32 = 0x7551;

impl Union {
    pub(super) async fn on_get_attributes(&self, id: NodeId, node: &Rc<Node>) -> Answer {
        self.insist(async || self.attributes_answer(id, node)).await
    }

    pub(super) async fn on_set_attributes(
        self: &Rc<Self>,
        id: NodeId,
        node: &Rc<Node>,
        set: &SetAttributes,
        caller: Caller,
    ) -> Answer {
        if set.names_nothing() && node.file().is_some() {
            self.announce_change(node, caller).await?;
        } else {
            self.set_attributes(node, set, caller).await?;
        }
        self.tree.invalidate_present_number(id, node);
        self.attributes_answer(id, node)
    }

    pub(super) fn read_link(&self, node: &Rc<Node>) -> Answer {
        let object = self.tree.object(node)?;
        let target = rustix::fs::readlinkat(&object, c"", Vec::new())?;
        Ok(Response::bytes(target.as_bytes()))
    }

    pub(super) async fn on_ioctl(self: &Rc<Self>, ioctl: &Ioctl) -> Answer {
        match ioctl.command {
            IOCTL_SYNC => {
                self.durability.sync_all().await?;
                Ok(Response::Ioctl { result: 0, output: fuse::Chunks::new() })
            }
            IOCTL_STATUS => {
                let mut text = self.status_text().into_bytes();
                text.truncate(ioctl.output_size as usize);
                let output = std::iter::once(reactor::Chunk::copy_from(&text)).collect();
                Ok(Response::Ioctl { result: 0, output })
            }
            _ => Err(Errno::NOTTY),
        }
    }

    pub(super) fn statistics(&self) -> Answer {
        let root = self.tree.object(self.tree.root())?;
        let found = rustix::fs::fstatvfs(&root)?;
        Ok(Response::Statistics(FileSystemStatistics {
            blocks: found.f_blocks,
            blocks_free: found.f_bfree,
            blocks_available: found.f_bavail,
            files: found.f_files,
            files_free: found.f_ffree,
            block_size: found.f_bsize as u32,
            fragment_size: found.f_frsize as u32,
            name_length_max: found.f_namemax as u32,
        }))
    }

    async fn set_attributes(
        self: &Rc<Self>,
        node: &Rc<Node>,
        set: &SetAttributes,
        caller: Caller,
    ) -> Result<(), Errno> {
        // Partial files have no suid and sgid that could be dropped.
        let is_inode_changed = set.uid.is_some() || set.gid.is_some() || set.mode.is_some();
        let keep = match set.size {
            Some(size) => Keep::First(size),
            None if is_inode_changed || !node.is_changeable() => Keep::All,
            None => Keep::Written,
        };
        self.copy_up.make_changeable(node, keep).await?;
        let is_done = self.set_partial(node, set, is_inode_changed).await?;
        if is_done {
            return Ok(());
        }
        if let Some(size) = set.size {
            let backing = self.tree.backing(node, true)?;
            let announced = Announced::ByFlag(set.kill_suid_sgid);
            backing.with(|fd| self.take_privileges(node, fd, caller, announced))?;
            backing.with(|fd| rustix::fs::ftruncate(fd, size))?;
        }
        self.durability.note_dirty(node);
        let object = self.tree.object(node)?;
        let object = object.as_fd();
        if set.uid.is_some() || set.gid.is_some() {
            let uid = set.uid.map(|uid| self.tree.options().disk_uid(uid));
            let gid = set.gid.map(|gid| self.tree.options().disk_gid(gid));
            let is_file = node.file().is_some();
            let lost = if is_file { self.lost_by_chown(node, caller)? } else { 0 };
            self.tree.set_owner(object, uid, gid)?;
            self.take_left(object, lost)?;
        }
        if let Some(mode) = set.mode {
            self.tree.set_mode(object, mode)?;
            note_mode(node, mode);
        }
        if set.atime.is_some() || set.mtime.is_some() {
            sys::set_times(object, set.atime.map(time), set.mtime.map(time))?;
        }
        Ok(())
    }
}

pub(crate) fn time(time: SetTime) -> Time {
    match time {
        SetTime::At(time) => time,
        SetTime::Now => {
            let ns = reactor::time::system_time();
            Time { seconds: (ns / 1_000_000_000) as i64, nanoseconds: (ns % 1_000_000_000) as u32 }
        }
    }
}
