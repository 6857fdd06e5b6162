//! Records of partial files: made durable with the directories that have their names.

use std::rc::Rc;

use rustix::io::Errno;

use super::Durability;
use crate::tree::Node;

impl Durability {
    /// Records a change of a partial file that the journal knows.
    pub(crate) fn note_partial_change(&self) {
        self.flusher.signal.raise();
        self.flush_new_segment();
    }

    /// Makes a new segment of the journal durable before it is full.
    fn flush_new_segment(&self) {
        let Some(store) = self.tree.store().filter(|store| store.wants_early_flush()) else {
            return;
        };
        let store = Rc::clone(store);
        drop(reactor::spawn(async move {
            if let Err(errno) = store.commit().await {
                tracing::error!(%errno, "partial copies could not be made durable");
            }
        }));
    }

    /// Makes what was recorded of partial files durable.
    pub(crate) async fn commit_partials(self: &Rc<Self>) -> Result<(), Errno> {
        let Some(store) = self.tree.store() else { return Ok(()) };
        let parents = std::mem::take(&mut *self.new_partials.borrow_mut());
        let committed = store.commit().await;
        if store.is_volatile() {
            return committed;
        }
        self.sync_directories(parents).await.and(committed)
    }

    /// Flushes the journal if it has recorded ends of files: with the last of these the marker goes
    /// that keeps the kernel's overlayfs away.
    pub(crate) async fn commit_ends(&self) -> Result<(), Errno> {
        match self.tree.store() {
            Some(store) if store.take_ends() => store.commit().await,
            _ => Ok(()),
        }
    }

    /// Notes a new partial file, which becomes durable within the batch time.
    pub(crate) fn note_new_partial(self: &Rc<Self>, parent: &Rc<Node>) {
        let mut parents = self.new_partials.borrow_mut();
        if parents.iter().any(|known| Rc::ptr_eq(known, parent)) {
            return;
        }
        parents.push(Rc::clone(parent));
        if parents.len() > 1 || self.tree.store().is_none_or(|store| store.is_volatile()) {
            return;
        }
        let durability = Rc::clone(self);
        drop(reactor::spawn(async move {
            reactor::time::sleep(durability.tree.options().batch_time).await;
            if let Err(errno) = durability.commit_partials().await {
                tracing::error!(%errno, "partial copies could not be made durable");
            }
        }));
    }
}
