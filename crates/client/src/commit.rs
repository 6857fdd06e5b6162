//! Committing: making written data part of the file.
//!
//! The order is: the device acknowledges the data, flushes it if it must survive power loss, and
//! then a commit names it. A failure stays with the inode, and every handle reports it at its next
//! close or fsync. Data that a failed commit has named is lost, and a failed flush is never tried
//! again.

mod inline;
mod part;

use crate::client::Client;
use crate::commit::part::PartOutcome;
use crate::dirty::fill::{Fill, FillState};
use crate::dirty::parts::Cursor;
use crate::inode::Inode;
use protocol::Errno;
use protocol::client::{Call, SessionCall};
use std::rc::Rc;

impl Client {
    /// Commits everything that was written to the inode before this call. With `durable` it
    /// survives power loss then, also the part that another commit has meanwhile taken. A failure
    /// stays with the inode, too, for each handle to report.
    ///
    /// # Errors
    /// The first failure of this commit: EIO, ENOSPC, ETIMEDOUT.
    pub(crate) async fn commit(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        durable: bool,
    ) -> Result<(), Errno> {
        if inode.dirty.borrow().is_clean() && !durable {
            return Ok(());
        }
        // Boxed: otherwise every request of the mount would carry (and move) this state.
        Box::pin(self.commit_dirty(inode, durable)).await
    }

    /// Commits under the commit lock, and notes a failure.
    async fn commit_dirty(self: &Rc<Self>, inode: &Rc<Inode>, durable: bool) -> Result<(), Errno> {
        let _lock = inode.commit_lock.acquire(1).await;
        let before = inode.dirty.borrow().failures.count();
        let result = self.commit_runs(inode, durable).await;
        self.give_back_done(inode);
        let mut dirty = inode.dirty.borrow_mut();
        if dirty.is_clean() {
            self.dirty_inodes.borrow_mut().remove(&inode.id);
        }
        if let Err(errno) = result
            && !reactor::mutant!("commit-failure-untold")
        {
            dirty.failures.note(errno);
        }
        // This includes failures of fills that were being written out.
        dirty.failures.since(before)
    }

    /// Writes out, flushes if `durable`, then commits the runs that are dirty now, in parts.
    async fn commit_runs(self: &Rc<Self>, inode: &Rc<Inode>, durable: bool) -> Result<(), Errno> {
        if let Some(result) = self.commit_inline(inode, durable).await {
            return result;
        }
        self.write_out_inode(inode);
        // All runs that are dirty now, also if they are overwritten while they go to their device.
        // Otherwise others would see neither the old bytes nor the new ones, which a later commit
        // brings.
        let (asked, limit) = {
            let dirty = inode.dirty.borrow();
            (dirty.present(), dirty.limit())
        };
        loop {
            let written = inode.written.notified();
            let is_written = inode.dirty.borrow().is_written_before(limit);
            if is_written || reactor::mutant!("commit-of-what-is-there") {
                break;
            }
            written.await;
        }
        if durable && !reactor::mutant!("durable-commit-unflushed") {
            self.flush_dirty(inode).await?;
        }
        let mut from = Some(Cursor::default());
        let mut is_durable = false;
        while let Some(cursor) = from {
            from = match self.commit_part(inode, &asked, cursor, durable).await? {
                PartOutcome::Done(next) => next,
                PartOutcome::Nothing => break,
            };
            is_durable = from.is_none();
        }
        if durable && !is_durable && !reactor::mutant!("overtaken-fsync-skipped") {
            // Another commit, which this one waited for, took what was left.
            self.session.call(Call::Session(SessionCall::Sync(Some(inode.id)))).await?;
        }
        Ok(())
    }

    /// Publishes changes of attributes that wait for a commit, because another session is about to
    /// see the inode. Unlike the data, and a commit that waits for the data, this never waits for a
    /// device.
    pub(crate) async fn publish_attributes(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
    ) -> Result<(), Errno> {
        if reactor::mutant!("deferred-kept-at-recall") {
            return Ok(());
        }
        let late = reactor::mutant!("shown-after-data");
        let _lock = if late { Some(inode.commit_lock.acquire(1).await) } else { None };
        let result = self.commit_part(inode, &[], Cursor::default(), false).await;
        let mut dirty = inode.dirty.borrow_mut();
        if dirty.is_clean() {
            self.dirty_inodes.borrow_mut().remove(&inode.id);
        }
        if let Err(errno) = result {
            dirty.failures.note(errno);
        }
        result.map(drop)
    }

    /// Makes the inode's uncommitted data durable, as far as devices have acknowledged it.
    async fn flush_dirty(self: &Rc<Self>, inode: &Rc<Inode>) -> Result<(), Errno> {
        let mut result = Ok(());
        let writes = inode.dirty.borrow().writes();
        for (device, number) in writes {
            result = result.and(self.flush_device(device, number).await);
        }
        result
    }

    /// Returns blocks of written fills that no commit has named to the leased space.
    fn give_back_done(&self, inode: &Inode) {
        let done = inode.dirty.borrow_mut().take_done();
        let mut space = self.space.borrow_mut();
        for fill in done {
            give_back(&mut space, &fill);
        }
    }

    /// Drops uncommitted data that no name and no handle leads to any more.
    pub(crate) fn discard_dirty(&self, inode: &Rc<Inode>) {
        inode.dirty.borrow_mut().discard_gathering();
        inode.dirty.borrow_mut().forget_runs();
        self.give_back_done(inode);
        if inode.dirty.borrow().is_clean() {
            self.dirty_inodes.borrow_mut().remove(&inode.id);
        }
    }
}

/// Returns the blocks of a written fill that no commit has named.
fn give_back(space: &mut crate::space::Space, fill: &Fill) {
    assert!(
        matches!(fill.state, FillState::Written),
        "blocks are given back under a write: {fill:?}"
    );
    if reactor::mutant!("named-blocks-reused") {
        return fill.pieces.iter().for_each(|(_, piece)| space.give_back(piece));
    }
    fill.unnamed().iter().for_each(|piece| space.give_back(piece));
}
