//! Committing: making written data part of the file.
//!
//! Order is all: written out and acknowledged by the device, flushed if it must survive power loss,
//! then named in a commit. A failure is kept with the inode and told to every handle, at its next
//! close or fsync; what a commit that failed has named is lost, and a failed flush is never tried again.

use crate::client::Client;
use crate::compact::small_pieces;
use crate::dirty::{At, Cursor, Fill, FillState, Named, RUNS_PER_COMMIT_MAX};
use crate::extent_map::Run;
use crate::inode::Inode;
use protocol::client::{Answer, Call, ChangeCall, SessionCall};
use protocol::inline::InlineRun;
use protocol::sums::Sums;
use protocol::{Errno, Extent, ExtentList};
use std::rc::Rc;

/// What a part of a commit was.
enum Part {
    /// There was nothing left to commit.
    Nothing,
    /// One after which there may be more from here on, if anything.
    Done(Option<Cursor>),
}

/// The data that a commit makes part of the file.
#[derive(Default)]
struct Cargo {
    runs: Vec<Run<At>>,
    extents: Vec<Extent>,
    named: Named,
    inline: Vec<InlineRun>,
}

impl Client {
    /// Commits all that was written to the inode before this call; with `durable` it survives power
    /// loss then, also what another commit has meanwhile left nothing of to commit here. What fails
    /// stays with the inode, too, to be told to each handle.
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
        // Boxed, or every request of the mount would carry (and move) the state that this needs.
        Box::pin(self.commit_dirty(inode, durable)).await
    }

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
        // Also of what was being written out.
        dirty.failures.since(before)
    }

    async fn commit_runs(self: &Rc<Self>, inode: &Rc<Inode>, durable: bool) -> Result<(), Errno> {
        if let Some(result) = self.commit_inline(inode, durable).await {
            return result;
        }
        self.write_out_inode(inode);
        // What is dirty now, also where it is overwritten while it goes to its device: others would
        // see neither the old bytes nor the new, which a later commit brings.
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
                Part::Done(next) => next,
                Part::Nothing => break,
            };
            is_durable = from.is_none();
        }
        if durable && !is_durable && !reactor::mutant!("overtaken-fsync-skipped") {
            // Another commit took what was left, which this one waited for.
            self.session.call(Call::Session(SessionCall::Sync(Some(inode.id)))).await?;
        }
        Ok(())
    }

    /// Commits what is dirty of a small file with its bytes. `None` if it goes to devices.
    async fn commit_inline(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        durable: bool,
    ) -> Option<Result<(), Errno>> {
        let _lock = inode.part_lock.acquire(1).await;
        let (runs, inline) = self.small_runs(inode)?;
        let cargo = Cargo { runs, inline, ..Cargo::default() };
        let result = self.send_commit(inode, cargo, durable).await;
        inode.dirty.borrow_mut().drop_gathered();
        Some(result)
    }

    /// Publishes changes of attributes that wait for a commit, as another session is to see the inode. The
    /// data, and a commit that waits for it, may have to wait for a device; this does not.
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

    /// Commits the next of the runs `asked` for, from `from` on. An earlier call is answered before.
    async fn commit_part(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        asked: &[Run<At>],
        from: Cursor,
        durable: bool,
    ) -> Result<Part, Errno> {
        let _lock = inode.part_lock.acquire(1).await;
        let (cargo, next) = {
            let mut dirty = inode.dirty.borrow_mut();
            let (runs, next) = dirty.committable(asked, from, RUNS_PER_COMMIT_MAX);
            let is_timed = dirty.mtime().is_some() || dirty.deferral.is_waiting();
            if runs.is_empty() && !is_timed {
                return Ok(Part::Nothing);
            }
            let mut extents = Vec::with_capacity(runs.len());
            for run in &runs {
                extents.extend(dirty.extents(run));
            }
            let is_flushed = |device, number| self.is_flushed(device, number);
            let named = dirty.name(&runs, is_flushed);
            (Cargo { runs, extents, named, inline: Vec::new() }, next)
        };
        // The answer says so of all that was committed before.
        let durable = durable && next.is_none();
        self.send_commit(inode, cargo, durable).await.map(|()| Part::Done(next))
    }

    /// Sends a commit, and takes note of what came of it. The caller holds the lock of parts.
    async fn send_commit(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        cargo: Cargo,
        durable: bool,
    ) -> Result<(), Errno> {
        let Cargo { runs, extents, named, inline } = cargo;
        let generation = inode.state.borrow().generation;
        let pieces = small_pieces(&extents);
        let call = {
            let mut dirty = inode.dirty.borrow_mut();
            Call::Change(ChangeCall::Commit {
                inode: inode.id,
                generation,
                allocations: named.allocations.clone(),
                sums: Sums(named.sums.clone()),
                extents: ExtentList(extents),
                inline,
                mtime: dirty.take_mtime(),
                kill_privileges: std::mem::take(&mut dirty.kill_privileges),
                attributes: dirty.deferral.send(),
                durable,
            })
        };
        let answer = self.session.call_or_know(call).await;
        inode.end_sole();
        let mut dirty = inode.dirty.borrow_mut();
        dirty.deferral.answered();
        dirty.committed(&runs);
        match answer {
            Ok(Answer::Attr(attr) | Answer::NotDurable(attr)) => {
                self.commits.set(self.commits.get() + 1);
                inode.last_commit.set(self.commits.get());
                if attr.generation == generation {
                    self.compaction.note(inode.id, &pieces);
                } else {
                    // A truncation came first: the service dropped the commit, the blocks are ours.
                    dirty.unname(&named);
                }
                if matches!(answer, Ok(Answer::NotDurable(_)))
                    && !reactor::mutant!("not-durable-is-done")
                {
                    Err(Errno::EIO)
                } else {
                    Ok(())
                }
            }
            Ok(_) => Err(Errno::EPROTO),
            Err(failure) => {
                if failure.is_refusal && !reactor::mutant!("refused-blocks-kept")
                    || reactor::mutant!("doubtful-blocks-reused")
                {
                    dirty.unname(&named);
                } else {
                    // Extents may name the blocks: they are not used again before the session returns
                    // its space at its end. What is cached may be older than what was committed.
                    drop(dirty);
                    inode.state.borrow_mut().forget_data();
                }
                self.tell_kernel(inode);
                Err(told_as(failure.errno))
            }
        }
    }

    /// Makes all of the inode's uncommitted data that devices have acknowledged durable.
    async fn flush_dirty(self: &Rc<Self>, inode: &Rc<Inode>) -> Result<(), Errno> {
        let mut result = Ok(());
        let writes = inode.dirty.borrow().writes();
        for (device, number) in writes {
            result = result.and(self.flush_device(device, number).await);
        }
        result
    }

    /// Gives back blocks of written fills that no commit named.
    fn give_back_done(&self, inode: &Inode) {
        let done = inode.dirty.borrow_mut().take_done();
        let mut space = self.space.borrow_mut();
        for fill in done {
            give_back(&mut space, &fill);
        }
    }

    /// Drops uncommitted data that nobody can reach any more.
    pub(crate) fn discard_dirty(&self, inode: &Rc<Inode>) {
        inode.dirty.borrow_mut().discard_gathering();
        inode.dirty.borrow_mut().forget_runs();
        self.give_back_done(inode);
        if inode.dirty.borrow().is_clean() {
            self.dirty_inodes.borrow_mut().remove(&inode.id);
        }
    }
}

/// What the users of a file are told when a commit fails with this. The service does not know the
/// incarnation or the inode any more, or the blocks are those of a session that has ended: the data is
/// gone, and the caller's arguments were not wrong.
fn told_as(errno: Errno) -> Errno {
    if matches!(errno, Errno::ESTALE | Errno::EINVAL) { Errno::EIO } else { errno }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what says that data is gone, or that the service does not take it any more, is an error of
    /// I/O to who closes a file: no ESTALE, and no EINVAL for arguments that were right. Causes that the
    /// user can do something about stay what they are.
    #[test]
    fn failures_of_a_commit_are_told_as_what_they_are_to_users() {
        let told = [
            (Errno::EINVAL, Errno::EIO),
            (Errno::ESTALE, Errno::EIO),
            (Errno::EIO, Errno::EIO),
            (Errno::ENOSPC, Errno::ENOSPC),
            (Errno::EFBIG, Errno::EFBIG),
            (Errno::ETIMEDOUT, Errno::ETIMEDOUT),
        ];
        for (errno, expected) in told {
            assert_eq!(told_as(errno), expected, "{errno:?}");
        }
    }
}
