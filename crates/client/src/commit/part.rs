//! One commit call: the data that it carries, and its outcome.

use crate::client::Client;
use crate::dirty::RUNS_PER_COMMIT_MAX;
use crate::dirty::fill::FillPlace;
use crate::dirty::named::Named;
use crate::dirty::parts::Cursor;
use crate::extent_map::Run;
use crate::inode::Inode;
use crate::small_pieces::small_pieces;
use protocol::client::{Answer, Call, ChangeCall};
use protocol::inline::InlineRun;
use protocol::sums::Sums;
use protocol::{Errno, Extent, ExtentList};
use std::rc::Rc;

/// What a part of a commit was.
pub(crate) enum PartOutcome {
    /// There was nothing left to commit.
    Nothing,
    /// One after which there may be more from here on, if anything.
    Done(Option<Cursor>),
}

/// The data that a commit makes part of the file.
#[derive(Default)]
struct CommitData {
    runs: Vec<Run<FillPlace>>,
    extents: Vec<Extent>,
    named: Named,
    inline: Vec<InlineRun>,
}

impl Client {
    /// Commits what is dirty of a small file with its bytes. `None` if it goes to devices.
    pub(crate) async fn commit_inline(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        durable: bool,
    ) -> Option<Result<(), Errno>> {
        let _lock = inode.part_lock.acquire(1).await;
        let (runs, inline) = self.small_runs(inode)?;
        let data = CommitData { runs, inline, ..CommitData::default() };
        let result = self.send_commit(inode, data, durable).await;
        inode.dirty.borrow_mut().drop_gathered();
        Some(result)
    }

    /// Commits the next of the runs `asked` for, from `from` on. An earlier call is answered before.
    pub(crate) async fn commit_part(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        asked: &[Run<FillPlace>],
        from: Cursor,
        durable: bool,
    ) -> Result<PartOutcome, Errno> {
        let _lock = inode.part_lock.acquire(1).await;
        let (data, next) = {
            let mut dirty = inode.dirty.borrow_mut();
            let (runs, next) = dirty.committable(asked, from, RUNS_PER_COMMIT_MAX);
            let is_timed = dirty.mtime().is_some() || dirty.deferral.is_waiting();
            if runs.is_empty() && !is_timed {
                return Ok(PartOutcome::Nothing);
            }
            let mut extents = Vec::with_capacity(runs.len());
            for run in &runs {
                extents.extend(dirty.extents(run));
            }
            let is_flushed = |device, number| self.is_flushed(device, number);
            let named = dirty.name(&runs, is_flushed);
            (CommitData { runs, extents, named, inline: Vec::new() }, next)
        };
        // The answer says so of all that was committed before.
        let durable = durable && next.is_none();
        self.send_commit(inode, data, durable).await.map(|()| PartOutcome::Done(next))
    }

    /// Sends a commit, and takes note of what came of it. The caller holds the lock of parts.
    async fn send_commit(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        data: CommitData,
        durable: bool,
    ) -> Result<(), Errno> {
        let CommitData { runs, extents, named, inline } = data;
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
        let answer = self.session.call_or_failure(call).await;
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
                self.invalidate_kernel_pages(inode);
                Err(reported_as(failure.errno))
            }
        }
    }
}

/// What the users of a file are told when a commit fails with this. The service does not know the
/// incarnation or the inode any more, or the blocks are those of a session that has ended: the data is
/// gone, and the caller's arguments were not wrong.
fn reported_as(errno: Errno) -> Errno {
    if matches!(errno, Errno::ESTALE | Errno::EINVAL) { Errno::EIO } else { errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what says that data is gone, or that the service does not take it any more, is an error of
    /// I/O to who closes a file: no ESTALE, and no EINVAL for arguments that were right. Causes that the
    /// user can do something about stay what they are.
    #[test]
    fn failures_of_a_commit_are_told_as_what_they_are_to_users() {
        let reported = [
            (Errno::EINVAL, Errno::EIO),
            (Errno::ESTALE, Errno::EIO),
            (Errno::EIO, Errno::EIO),
            (Errno::ENOSPC, Errno::ENOSPC),
            (Errno::EFBIG, Errno::EFBIG),
            (Errno::ETIMEDOUT, Errno::ETIMEDOUT),
        ];
        for (errno, expected) in reported {
            assert_eq!(reported_as(errno), expected, "{errno:?}");
        }
    }
}
