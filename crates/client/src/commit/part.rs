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

/// The outcome of a part of a commit.
pub(crate) enum PartOutcome {
    /// Nothing was left to commit.
    Nothing,
    /// The part is committed. The next part, if there may be one, begins here.
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
    /// Commits the dirty data of a small file with its bytes. `None` if the data goes to devices.
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

    /// Commits the next of the runs in `asked`, from `from` on, after an earlier call was answered.
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
        // The answer to the last part covers everything that was committed before.
        let durable = durable && next.is_none();
        self.send_commit(inode, data, durable).await.map(|()| PartOutcome::Done(next))
    }

    /// Sends a commit and records its outcome. The caller holds the lock of parts.
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
                    // A truncation came first: the service dropped the commit, and the blocks stay
                    // with this client.
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
                    // Extents may name the blocks, so they are not used again before the session
                    // returns its space at its end. Cached data may be older than what was
                    // committed.
                    drop(dirty);
                    inode.state.borrow_mut().forget_data();
                }
                self.invalidate_kernel_pages(inode);
                Err(reported_as(failure.errno))
            }
        }
    }
}

/// Returns the error that users of a file see when a commit fails with `errno`. ESTALE and EINVAL
/// mean that the service no longer knows the incarnation or the inode, or that the blocks belong to
/// a session that has ended. Then the data is gone, and the caller's arguments were right.
fn reported_as(errno: Errno) -> Errno {
    if matches!(errno, Errno::ESTALE | Errno::EINVAL) { Errno::EIO } else { errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: if data is gone, or the service does not take it any more, the caller that closes the
    /// file gets an I/O error: no ESTALE, and no EINVAL for arguments that were right. Errors that
    /// the user can act on stay as they are.
    #[test]
    fn failures_of_a_commit_are_reported_as_users_understand_them() {
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
