//! Bringing its data to an upper inode that has attributes only, as the kernel leaves it with
//! `metacopy=on`.
//!
//! It may have several names and be open, so the same inode gets the data. Its mark is removed only
//! when the data is durable: until then all readers, after a crash too, get the lower file.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;

use reactor::{File, Handle};

use super::{CopyUp, Keep};
use crate::backing::Backing;
use crate::copier::{Copy, To};
use crate::format::suffix;
use crate::options::SyncMode;
use crate::sys;
use crate::sys::errno_of;
use crate::tree::{CAPABILITY, FileState, Node, Place};

impl CopyUp {
    /// Gives a node's upper inode the data of the lower file.
    pub(super) async fn bring_data(
        &self,
        node: &Rc<Node>,
        state: &FileState,
        keep: Keep,
        lower: OwnedFd,
    ) -> Result<(), Errno> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW;
        let upper =
            self.tree.at_upper(node, |directory, name| sys::open_below(directory, name, flags))?;
        let backing = Backing::new(upper, true);
        let (stat, capability) = backing
            .with(|upper| Ok((sys::stat_at(upper, b"")?, sys::xattr(upper, CAPABILITY)?)))?;
        let length = match keep {
            Keep::All | Keep::Written => stat.size,
            Keep::First(length) => stat.size.min(length),
        };
        let writes_back = self.tree.options().sync != SyncMode::Volatile;
        let source = File::from_handle(Handle::from_fd(lower));
        let copy = Copy::new(source, length, To::Existing(backing.file.clone()), writes_back);
        self.durability.copier().copy(copy, None).await?;
        backing.with(|upper| {
            if let Some(value) = capability {
                sys::set_xattr(upper, CAPABILITY, &value, XattrFlags::empty())?;
            }
            if sys::stat_at(upper, b"")?.mode != stat.mode {
                sys::chmod(upper, stat.mode)?;
            }
            sys::set_times(upper, Some(stat.atime), Some(stat.mtime))
        })?;
        if length > 0 && self.tree.options().sync != SyncMode::Volatile {
            backing.file.sync_all().await.map_err(errno_of)?;
        }

        // Nothing waits from here on: the tree does not change.
        backing.with(|upper| {
            if length < stat.size {
                rustix::fs::ftruncate(upper, length)?;
            }
            sys::remove_xattr(upper, &self.tree.layers().prefix.name(suffix::METACOPY))
        })?;
        state.lacks_data.set(false);
        let place = node.place.borrow().clone();
        if let Place::Gone { fd, .. } = place {
            node.set_place(Place::Gone { fd, is_own: true });
        }
        state.note_move();
        *state.writable.borrow_mut() = Rc::downgrade(&backing);
        Ok(())
    }
}
