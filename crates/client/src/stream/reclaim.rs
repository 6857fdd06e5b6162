//! Frees space when the service reports that the pool is short of it.

use crate::client::Client;
use crate::inode::Inode;
use crate::session::handler::{PushReply, answer};
use protocol::FreeEpoch;
use protocol::client::PushAnswer;
use reactor::time::{now, sleep, timeout_at};
use std::rc::Rc;
use std::time::Duration;

/// How long the answer to a demand for space waits for reads to end.
const READS_PATIENCE: Duration = Duration::from_millis(500);

/// How long commits that free space may take.
const COMMIT_PATIENCE: Duration = Duration::from_millis(500);

impl Client {
    /// Answers a demand for space: returns unused leased space, and waits for reads to end.
    pub(crate) async fn reclaim(self: Rc<Self>, reply: PushReply, free_epoch: FreeEpoch) {
        if !reactor::mutant!("dirty-kept-in-full-pool") {
            self.commit_for_space().await;
        }
        // Files that were deleted while open, and are closed since, hold space too.
        self.give_back().await;
        self.return_unused_space().await;
        // Reads are short. So are the calls that are under way, as far as they hold blocks back.
        let deadline = now() + READS_PATIENCE;
        while self.session.life.ended_through() < free_epoch && now() < deadline {
            sleep(Duration::from_millis(1)).await;
        }
        answer(reply, &PushAnswer::Ended(self.session.life.ended_through()));
    }

    /// Commits dirty data, which frees the blocks that it replaces. Does not wait long, because a
    /// commit may wait for a device, or for this very space.
    async fn commit_for_space(self: &Rc<Self>) {
        let dirty: Vec<Rc<Inode>> = self.dirty_inodes.borrow().values().cloned().collect();
        let commit = |inode: Rc<Inode>| {
            let client = Rc::clone(self);
            // A failure stays with the inode; close or fsync reports it.
            reactor::spawn(async move { client.commit(&inode, false).await })
        };
        let committing: Vec<_> = dirty.into_iter().map(commit).collect();
        let deadline = now() + COMMIT_PATIENCE;
        for commit in committing {
            if timeout_at(deadline, commit).await.is_err() {
                return;
            }
        }
    }
}
