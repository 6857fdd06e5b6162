//! Requests for durability: of one file, one directory, everything.

use std::rc::Rc;

use rustix::io::Errno;

use super::Durability;
use crate::options::SyncMode;
use crate::sys::errno_of;
use crate::tree::Node;

impl Durability {
    /// Makes everything durable: waiting copies, and later changes.
    pub(crate) async fn sync_all(self: &Rc<Self>) -> Result<(), Errno> {
        let finished = self.finish_all().await;
        let inherited = self.sync_inherited().await;
        let committed = self.commit_partials().await;
        let flushed = self.flush_dirty().await;
        let ended = self.commit_ends().await;
        let earlier = self.take_unreported();
        let result = flushed.and(finished).and(committed).and(inherited).and(ended).and(earlier);
        if let Err(errno) = result {
            self.tree.note_error("syncing everything", errno);
        }
        result
    }

    /// The same at the end of a union.
    pub(crate) async fn sync_at_end(self: &Rc<Self>) -> Result<(), Errno> {
        self.sync_all().await?;
        match self.tree.store() {
            Some(store) => store.flush_mark().await,
            None => Ok(()),
        }
    }

    pub(crate) async fn sync_file(
        self: &Rc<Self>,
        node: &Rc<Node>,
        data_only: bool,
    ) -> Result<(), Errno> {
        if self.tree.options().sync == SyncMode::Volatile || !node.is_changeable() {
            return Ok(());
        }
        self.sync_inherited().await?;
        if let Some(partial) = node.partial() {
            partial.commit().await?;
            return match node.link() {
                Some(link) => self.sync_directories(vec![link.parent]).await,
                None => Ok(()),
            };
        }
        if let Some(pending) = node.pending() {
            self.finish(&pending).await?;
        }
        self.flushed(node).await?;
        let backing = self.tree.backing_to_sync(node)?;
        if !data_only {
            self.forget_dirty(node);
        }
        match backing {
            Some(backing) if data_only => backing.file.sync_data().await.map_err(errno_of)?,
            Some(backing) => backing.file.sync_all().await.map_err(errno_of)?,
            None => self.sync_all_of_upper().await?,
        }
        match node.link() {
            Some(link) => self.sync_directories(vec![link.parent]).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn sync_directory(self: &Rc<Self>, node: &Rc<Node>) -> Result<(), Errno> {
        if self.tree.options().sync == SyncMode::Volatile {
            return Ok(());
        }
        self.sync_inherited().await?;
        self.finish_all().await?;
        self.commit_partials().await?;
        if node.is_in_upper() {
            self.note_new_name(node);
        }
        self.sync_directories(vec![Rc::clone(node)]).await
    }

    /// Makes a whiteout in the place of an upper file durable, where a later sync of another file
    /// could make the end of that file durable without it: a crash would show the lower file.
    pub(crate) async fn sync_whiteout(&self, directory: &Rc<Node>) {
        let is_loose = self.tree.upper().is_ok_and(|upper| upper.has_loose_whiteouts);
        if !is_loose || self.tree.options().sync == SyncMode::Volatile {
            return;
        }
        if let Err(errno) = self.sync_directories(vec![Rc::clone(directory)]).await {
            // The rename is done. The next sync of the directory reports the error.
            tracing::error!(%errno, "a whiteout could not be made durable");
        }
    }
}
