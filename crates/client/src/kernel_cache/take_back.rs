//! Taking back names and attributes that the kernel was lent.

use crate::change::Change;
use crate::client::Client;
use crate::inode::Inode;
use crate::inode::lent::{ON_ITS_WAY, TakenBack};
use protocol::{FileKind, InodeId};
use reactor::time::{Instant, now, sleep, timeout, timeout_at};
use std::rc::Rc;
use std::time::Duration;

/// How long the kernel may take to drop names one by one.
const PATIENCE: Duration = Duration::from_millis(5);

/// First and longest pause before the kernel is asked again about an inode that it does not know.
const RETRY: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(2));

impl Client {
    /// Takes back the attributes of an inode that this client changes without the kernel's
    /// knowledge.
    pub async fn take_back_attributes(self: &Rc<Self>, id: InodeId) {
        let taken = self.known_inode(id).and_then(|inode| inode.lent.taken(id, Vec::new()));
        if let Some(taken) = taken {
            self.take_back(taken).await;
        }
    }

    /// Takes back what was lent. Completes when the kernel no longer uses it.
    pub(crate) async fn take_back(self: &Rc<Self>, taken: TakenBack) {
        if taken.attributes && !reactor::mutant!("attributes-not-taken-back") {
            self.count_lent(|counts| counts.attributes_taken_back += 1);
            self.drop_attributes(taken.inode, taken.until).await;
        }
        if !taken.names.is_empty() && !reactor::mutant!("names-not-taken-back") {
            let count = taken.names.len() as u64;
            self.count_lent(|counts| counts.names_taken_back += count);
            self.drop_names(&taken).await;
            // A lookup of such a name may have made it valid again, by an older answer.
            if let Some(youngest) = taken.youngest
                && youngest.elapsed() < ON_ITS_WAY
            {
                sleep(ON_ITS_WAY.saturating_sub(youngest.elapsed())).await;
                self.drop_names(&taken).await;
            }
        }
    }

    /// Takes back attributes of inodes that this client has changed, if the kernel may not count
    /// that as a change of attributes.
    pub fn changed_here(self: &Rc<Self>, changed: impl Iterator<Item = InodeId>) {
        for id in changed {
            let taken = self.known_inode(id).and_then(|inode| inode.lent.changed_here(id));
            let Some(taken) = taken.filter(|_| !reactor::mutant!("own-change-untold")) else {
                continue;
            };
            let (client, under_way) = (Rc::clone(self), self.own_taking_back.enter());
            reactor::spawn(async move {
                client.take_back(taken).await;
                drop(under_way);
            });
        }
    }

    /// Waits until the kernel has dropped what this client has changed itself, before a change is
    /// answered.
    pub async fn own_changes_told(&self) {
        self.own_taking_back.wait_zero().await;
    }

    /// Takes back everything that is lent, because the connection that reports others' changes is
    /// lost.
    pub(crate) fn take_back_all(self: &Rc<Self>) {
        if self.lent_until.get() <= now() || reactor::mutant!("lost-connection-takes-nothing-back")
        {
            return;
        }
        let inodes: Vec<Rc<Inode>> = self.inodes.borrow().values().cloned().collect();
        let taken: Vec<TakenBack> =
            inodes.iter().filter_map(|inode| inode.lent.take_all(inode.id)).collect();
        if taken.is_empty() {
            return;
        }
        let under_way = self.session.taking_back.enter();
        let client = Rc::clone(self);
        reactor::spawn(async move {
            for taken in taken {
                client.take_back(taken).await;
            }
            drop(under_way);
        });
    }

    /// Has the kernel drop the attributes of an inode. Completes when it has, or when they have
    /// expired.
    async fn drop_attributes(self: &Rc<Self>, id: InodeId, until: Instant) {
        let Some(changes) = &self.changes else { return };
        let mut pause = RETRY.0;
        while now() < until && self.is_lending() {
            let (answer, mut answered) = reactor::mailbox::channel(1);
            let attr = self.known_inode(id).and_then(|inode| inode.committed_attr());
            let is_directory = attr.is_some_and(|attr| attr.kind == FileKind::Directory);
            changes(Change::Attributes { inode: id, is_directory, known: answer });
            match timeout_at(until, answered.recv()).await {
                Ok(Some(true)) => return,
                // The kernel does not know the inode, or not yet.
                Ok(Some(false)) => {
                    let is_forgotten = self
                        .known_inode(id)
                        .is_none_or(|inode| inode.state.borrow().references == 0);
                    if is_forgotten || reactor::mutant!("unknown-counts-as-dropped") {
                        return;
                    }
                }
                Ok(None) | Err(_) => {}
            }
            sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
        self.count_lent(|counts| counts.expired += 1);
    }

    /// Has the kernel drop names, at first one by one, then all of the mount at once. Completes
    /// when it has, or when they have expired.
    async fn drop_names(self: &Rc<Self>, taken: &TakenBack) {
        let Some(changes) = &self.changes else { return };
        let (answer, mut answered) = reactor::mailbox::channel(1);
        changes(Change::Names(taken.inode, taken.names.clone(), answer));
        if let Ok(Some(())) = timeout(PATIENCE, answered.recv()).await {
            return;
        }
        if now() >= taken.until || !self.is_lending() || reactor::mutant!("busy-counts-as-dropped")
        {
            return;
        }
        let (raised, mut all_dropped) = reactor::mailbox::channel(1);
        changes(Change::AllNames(raised));
        if let Ok(Some(true)) = timeout_at(taken.until, all_dropped.recv()).await {
            self.count_lent(|counts| counts.epochs_raised += 1);
            return;
        }
        if !matches!(timeout_at(taken.until, answered.recv()).await, Ok(Some(()))) {
            // The kernel's front end may be gone and send no answer.
            reactor::time::sleep_until(taken.until).await;
            self.count_lent(|counts| counts.expired += 1);
        }
    }
}
