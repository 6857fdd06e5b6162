//! What was changed in the upper directory and is not known to be durable.
//!
//! Nobody tells a FUSE server of sync(2), syncfs(2) or umount(2), and flushing the whole file system
//! would flush everybody else's data too. So it is noted which files and directories were changed,
//! and these are synced when `union sync` asks, at the end of the mount, and when they become many.

use std::rc::Rc;

use rustix::io::Errno;

use super::errno_of;
use crate::node::Node;
use crate::options::SyncMode;
use crate::tree::Union;

/// Files that are synced at a time.
const FILES_AT_A_TIME: usize = 64;
/// From how many on they are synced unasked: what is noted takes memory.
const NOTED_MAX: usize = 4096;

impl Union {
    /// Notes that a file was changed.
    pub(crate) fn note_dirty(self: &Rc<Self>, node: &Rc<Node>) {
        if self.options.sync == SyncMode::Volatile {
            return;
        }
        self.dirty.borrow_mut().insert(node.id, Rc::clone(node));
        if self.dirty.borrow().len() >= NOTED_MAX && !self.is_flushing.replace(true) {
            let union = Rc::clone(self);
            drop(ring::spawn(async move {
                if let Err(errno) = union.flush_dirty().await {
                    tracing::error!(%errno, "changed files could not be made durable");
                }
                union.is_flushing.set(false);
            }));
        }
    }

    /// Notes that a directory has a name that is not known to be durable.
    pub(crate) fn note_new_name(&self, directory: &Rc<Node>) {
        if let Some(state) = directory.directory()
            && !state.has_new_names.replace(true)
            && self.options.sync != SyncMode::Volatile
        {
            self.dirty.borrow_mut().insert(directory.id, Rc::clone(directory));
        }
    }

    /// Makes everything durable that was changed before the call.
    pub(crate) async fn flush_dirty(self: &Rc<Self>) -> Result<(), Errno> {
        let dirty: Vec<Rc<Node>> =
            std::mem::take(&mut *self.dirty.borrow_mut()).into_values().collect();
        let (directories, files): (Vec<_>, Vec<_>) =
            dirty.into_iter().partition(|node| node.is_directory());
        let mut result = Ok(());
        for files in files.chunks(FILES_AT_A_TIME) {
            result = self.flush_files(files).await.and(result);
        }
        self.sync_directories(directories).await.and(result)
    }

    async fn flush_files(self: &Rc<Self>, nodes: &[Rc<Node>]) -> Result<(), Errno> {
        let mut backings = Vec::with_capacity(nodes.len());
        for node in nodes {
            // What was unlinked and closed meanwhile needs nothing.
            let is_gone = node.link().is_none() && node.lookups.get() == 0;
            if node.file().is_none() || is_gone || node.partial().is_some() {
                continue;
            }
            match self.backing(node, true) {
                Ok(backing) => backings.push(backing),
                Err(Errno::NOENT | Errno::STALE) => {}
                Err(errno) => return Err(errno),
            }
        }
        let files = backings.iter().map(|backing| backing.file.clone()).collect();
        self.shared.committer.write_back.run(files).await;
        let syncs: Vec<_> = backings.iter().map(|backing| backing.file.sync_all()).collect();
        let mut result = Ok(());
        for sync in syncs {
            result = sync.await.map_err(errno_of).and(result);
        }
        result
    }
}
