//! Changes that an earlier process left without making them durable.
//!
//! A killed process leaves changes in the page cache. The next process sees them, although a loss
//! of power may still undo them. It cannot know which changes these are, because it has none of the
//! notes that [`super::dirty`] keeps. So it syncs the file system once (unions that need this at
//! the same time share the sync), before it promises durability, and before the journal forgets the
//! content that such a change has replaced.
//!
//! A symbolic link `WORKDIR/tsumugi/running` exists while a union may have such changes. It names
//! the boot: after a reboot all visible changes are durable. Which mount of the upper file system
//! it was does not matter, since all mounts of one file system share the page cache.

use std::cell::Cell;
use std::os::fd::OwnedFd;

use reactor::local::Notify;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::Durability;
use crate::copier::{Goal, ToSync};
use crate::layers::Upper;
use crate::options::SyncMode;
use crate::sys::errno_of;

/// The link, below the work directory.
pub(crate) const NAME: &str = "tsumugi/running";
/// The name used where the kernel does not report the boot.
const UNKNOWN: &[u8] = b"unknown";

/// The sign that a process may leave changes, and what an earlier one has left.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// The work directory; none without an upper layer.
    work: Option<OwnedFd>,
    /// Whether changes of an earlier process may not be durable.
    is_due: Cell<bool>,
    is_syncing: Cell<bool>,
    synced: Notify,
    /// Whether this process has no change that may not be durable.
    is_clean: Cell<bool>,
}

/// The sign that a union leaves. Any thread may leave it.
#[derive(Debug)]
pub(crate) struct Sign {
    work: OwnedFd,
    /// Whether changes of an earlier process may not be durable.
    pub(crate) is_due: bool,
}

impl Sign {
    /// Leaves the sign for the next process, and reads that of the last one.
    pub(crate) fn leave(upper: &Upper) -> Result<Self, Errno> {
        let work = upper.work_root.try_clone().map_err(errno_of)?;
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id");
        let boot = boot.map_or_else(|_| UNKNOWN.to_vec(), |boot| boot.trim_ascii().to_vec());
        let found = match rustix::fs::readlinkat(&work, NAME, Vec::new()) {
            Ok(found) => Some(found.into_bytes()),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno),
        };
        let is_due = found.as_ref() == Some(&boot);
        if !is_due {
            let left = || {
                if found.is_some() {
                    rustix::fs::unlinkat(&work, NAME, AtFlags::empty())?;
                }
                rustix::fs::symlinkat(&*boot, &work, NAME)
            };
            match left() {
                Ok(()) => {}
                // A full or read-only disk must not prevent a mount.
                Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::ROFS)) => tracing::warn!(
                    %errno, "after a kill of this union's server the next one does not sync what it left"
                ),
                Err(errno) => return Err(errno),
            }
        }
        Ok(Self { work, is_due })
    }
}

impl Inherited {
    /// The state of a union that has left its sign.
    pub(crate) fn of(Sign { work, is_due }: Sign) -> Self {
        Self {
            work: Some(work),
            is_due: Cell::new(is_due),
            is_syncing: Cell::new(false),
            synced: Notify::new(),
            is_clean: Cell::new(!is_due),
        }
    }

    /// Returns whether changes of an earlier process may not be durable.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due.get()
    }

    /// Notes that changes begin, or that all of them are durable.
    pub(crate) fn set_clean(&self, is_clean: bool) {
        self.is_clean.set(is_clean && !self.is_due.get());
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        if let (true, Some(work)) = (self.is_clean.get(), &self.work) {
            // If the link stays, the next process syncs once without need.
            let _ = rustix::fs::unlinkat(work, NAME, AtFlags::empty());
        }
    }
}

impl Durability {
    /// Makes the changes of an earlier process durable, once.
    pub(crate) async fn sync_inherited(&self) -> Result<(), Errno> {
        let inherited = &self.inherited;
        while inherited.is_due.get() && self.tree.options().sync != SyncMode::Volatile {
            if inherited.is_syncing.replace(true) {
                inherited.synced.notified().await;
                continue;
            }
            let synced = self.sync_all_of_upper().await;
            inherited.is_syncing.set(false);
            inherited.is_due.set(synced.is_err());
            if synced.is_ok() {
                self.record_inherited();
            }
            inherited.synced.notify();
            synced?;
        }
        Ok(())
    }

    /// Makes all names and attributes of the upper file system durable.
    pub(super) async fn sync_all_of_upper(&self) -> Result<(), Errno> {
        let upper = self.tree.upper()?;
        let root = upper.root.try_clone().map_err(errno_of)?;
        let root = ToSync::FileSystem(reactor::File::from_handle(reactor::Handle::from_fd(root)));
        let copier = &self.committer.copier;
        copier
            .sync(vec![root], upper.sync_method.clone(), Goal::Durable)
            .await
            .into_iter()
            .collect()
    }
}
