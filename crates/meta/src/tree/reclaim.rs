//! Background work, in bounded steps: freeing dead inodes, finishing truncations, making rested
//! blocks free.

use super::base::Effect;
use super::core::Core;
use super::transaction::{STEP_RECORDS, Transaction, contradiction};
use crate::records::{Key, key_tail};
use crate::store::{Direction, Error, Scan};
use protocol::{FILE_SIZE_MAX_BYTES, FreeEpoch, InodeId};

impl Transaction<'_> {
    /// Frees a part of a dead inode's content, or, at the end, the inode itself.
    fn bury_step(&mut self, id: InodeId) -> Result<(), Error> {
        if self.base.truncating.contains(&id) {
            // Its record says what is left of that, and not what is left of all.
            return self.truncate_step(id).map(drop);
        }
        let Some(mut inode) = self.stored_inode(id)? else {
            self.remove(&Key::Dead(id));
            self.effect(Effect::Gone(id));
            return Ok(());
        };
        self.clear_inline(&mut inode, std::iter::once(0..u64::MAX))?;
        let to = inode.truncating.map_or(FILE_SIZE_MAX_BYTES, |removal| removal.to);
        if !self.cut(&mut inode, 0, to)? {
            return self.put_inode(&inode);
        }
        if inode.xattrs > 0 {
            let xattrs = self.scan(Scan {
                prefix: &Key::Xattr(id, b"").prefix(1),
                from: None,
                direction: Direction::Forward,
                limit: STEP_RECORDS,
            })?;
            for (key, _) in &xattrs {
                self.remove(&Key::Xattr(id, key_tail(key, 1)));
            }
            if xattrs.len() == STEP_RECORDS {
                return self.put_inode(&inode);
            }
        }
        self.remove(&Key::Inode(id));
        self.remove(&Key::Dead(id));
        self.effect(Effect::Gone(id));
        if inode.attr.allocated_bytes > 0 {
            return Err(contradiction(&Key::Inode(id), "it counts bytes that it does not have"));
        }
        assert!(
            inode.is_dead && inode.truncating.is_none(),
            "{id} would be forgotten, and is in use: {inode:?}"
        );
        let Some(inodes) = self.counters.inodes.checked_sub(1) else {
            return Err(contradiction(&Key::Counters, "it counts fewer inodes than there are"));
        };
        self.counters.inodes = inodes;
        Ok(())
    }
}

impl Core {
    /// Does background work in transactions of about a hundred records each, until about `budget`
    /// records are written; returns whether more can be done at once. It must not be called between
    /// `execute` and the `record_reply` of the same call.
    pub fn reclaim_step(&mut self, budget: usize) -> Result<bool, Error> {
        let mut written = 0;
        while written < budget {
            written += match self.work() {
                Some(Work::Truncate(inode)) => {
                    let step = |step: &mut Transaction<'_>| step.truncate_step(inode).map(drop);
                    // Adjacent blocks share records: it reads more than it writes.
                    self.work_on(inode, step)?.max(STEP_RECORDS)
                }
                Some(Work::Bury(inode)) => self.work_on(inode, |step| step.bury_step(inode))?,
                Some(Work::Free(from, through)) => {
                    let (next, written) = self.transact(|transaction| {
                        let next = transaction.free_rested(from, through)?;
                        Ok((next, transaction.written()))
                    })?;
                    assert!(
                        next > from && self.base.resting_from == from,
                        "blocks that rested from {from:?} on are free, and those from {next:?} follow"
                    );
                    self.base.resting_from = next;
                    written
                }
                None => return Ok(false),
            }
            .max(1);
        }
        Ok(self.work().is_some())
    }

    /// Does a step of work on an inode; returns the number of records written. It sets the inode
    /// aside for this life of the service if its records contradict each other.
    fn work_on(
        &mut self,
        inode: InodeId,
        step: impl FnOnce(&mut Transaction<'_>) -> Result<(), Error>,
    ) -> Result<usize, Error> {
        let worked = self.transact(|transaction| {
            step(transaction)?;
            Ok(transaction.written())
        });
        if let Err(error @ Error::Corrupt { .. }) = &worked {
            tracing::error!(%error, inode = inode.0, "the space of a file cannot be freed: run `tsumugi check`");
            self.set_aside.insert(inode);
            return Ok(0);
        }
        worked
    }

    /// Returns whether there is background work: after calls that remove or free, after
    /// [`Core::ended_through`] and after the end of a session.
    pub fn has_work(&self) -> bool {
        self.work().is_some()
    }

    fn work(&self) -> Option<Work> {
        let is_sound = |inode: &&InodeId| !self.set_aside.contains(inode);
        // Calls may wait for these.
        if let Some(inode) = self.base.truncating.iter().find(is_sound) {
            return Some(Work::Truncate(*inode));
        }
        if let Some(inode) = self.base.dead.iter().find(is_sound) {
            return Some(Work::Bury(*inode));
        }
        let (from, through) = (self.base.resting_from, self.rested_through());
        (from <= through).then_some(Work::Free(from, through))
    }

    /// Returns the last epoch whose freed blocks can be reused. No session reads them any more, and
    /// the store cannot lose their freeing, because it is synced.
    fn rested_through(&self) -> FreeEpoch {
        let ended = self.base.sessions.values().map(|state| state.ended_through);
        let ended = if reactor::mutant!("any-ended-suffices") { ended.max() } else { ended.min() };
        if reactor::mutant!("freed-at-once") {
            return self.base.counters.free_epoch;
        }
        if reactor::mutant!("freed-unsynced") {
            return ended.unwrap_or(self.base.counters.free_epoch);
        }
        ended.unwrap_or(self.base.counters.free_epoch).min(self.synced_free_epoch())
    }
}

/// The next piece of background work.
enum Work {
    Bury(InodeId),
    Truncate(InodeId),
    Free(FreeEpoch, FreeEpoch),
}
