//! Fused operations (base 3.4.2, NVM 2.1.1): Compare and Write, two commands that follow each other
//! in the queue and run as one.
//!
//! The first command waits for the next one of the queue. If that one is not its second, the first
//! ends with Command Aborted due to Missing Fused Command. A pair is handled as one command: it
//! counts once for limits, with the bytes of both, and has one permit. If one command of a pair
//! cannot be executed, the other ends with Command Aborted due to Failed Fused Command; a failed
//! write leaves the comparison's success.

use super::execute::{Executor, Open};
use super::io_command::IoCommand;
use super::work::{Outcome, Pending};
use crate::admission::{Moment, Refusal};
use crate::controller::check_in_capsule;
use crate::queue_pair::{Event, QueuePair, Tag};
use nvme::command::Fuse;
use nvme::opcode::NvmOpcode;
use nvme::{Status, SubmissionQueueEntry};
use reactor::Buffer;
use std::task::Context;

/// A fused pair that does not run yet.
#[derive(Debug)]
pub(super) struct FusedPair {
    first: Tag,
    second: Tag,
    /// Number of its commands whose requested data has not arrived.
    awaited: usize,
}

impl FusedPair {
    /// Returns whether one of its commands has this tag.
    pub(super) fn has(&self, tag: Tag) -> bool {
        tag == self.first || tag == self.second
    }
}

/// The result of sorting an event.
pub(super) enum Sorted {
    /// The driver has nothing to do until the next command or completion.
    Done,
    /// It belongs to a single command, or to a pair.
    Single,
}

/// A checked pair: the index of its namespace, and the command.
type Checked = (usize, IoCommand);

impl Executor {
    /// Puts fused commands together as they arrive.
    pub(super) fn sort_fused(&mut self, event: Event, pair: &mut QueuePair) -> Sorted {
        let Event::Command(tag) = event else { return Sorted::Single };
        let fuse = pair.command(tag).fuse();
        if fuse == Fuse::None && self.half.is_none() {
            return Sorted::Single;
        }
        match (self.half.take(), fuse) {
            (Some(first), Fuse::Second) => {
                self.pairs.push(FusedPair { first, second: tag, awaited: 0 });
                Sorted::Single
            }
            (half, fuse) => {
                if let Some(half) = half {
                    self.fail_missing(half, pair);
                }
                match fuse {
                    Fuse::First => self.half = Some(tag),
                    Fuse::Second => self.fail_missing(tag, pair),
                    // The check of the command refuses a reserved value.
                    Fuse::None | Fuse::Reserved => return Sorted::Single,
                }
                Sorted::Done
            }
        }
    }

    /// Ends a first command, because the queue's next command is not for this executor.
    pub(super) fn drop_half(&mut self, pair: &mut QueuePair) {
        if let Some(half) = self.half.take() {
            self.fail_missing(half, pair);
        }
    }

    fn fail_missing(&mut self, tag: Tag, pair: &mut QueuePair) {
        let sqe = *pair.command(tag);
        self.fail(pair, tag, &sqe, Status::FUSED_MISSING.do_not_retry());
    }

    /// Handles an event of a pair.
    pub(super) fn handle_pair(
        &mut self,
        index: usize,
        event: Event,
        is_limited: bool,
        pair: &mut QueuePair,
        (now, cx): (Moment, &mut Context<'_>),
    ) -> Result<(), Refusal> {
        let fused = &mut self.pairs[index];
        let (first, second) = (fused.first, fused.second);
        if matches!(event, Event::Data(_)) {
            fused.awaited -= 1;
            if fused.awaited > 0 {
                return Ok(());
            }
        }
        let is_new = matches!(event, Event::Command(_));
        let (open, command) = match self.check_pair((first, second), is_new, pair) {
            Ok(checked) => checked,
            Err(statuses) => {
                self.pairs.swap_remove(index);
                self.fail_pair(pair, (first, second), statuses);
                return Ok(());
            }
        };
        if is_limited && is_new && self.limit(open, command.cost_bytes(), event) {
            return Ok(());
        }
        let block_bytes = command.data_bytes_in() / 2;
        let missing = [first, second].into_iter().filter(|&tag| !pair.has_data(tag));
        let missing: Vec<Tag> = missing.collect();
        let bytes = missing.len() * block_bytes as usize;
        if is_new && bytes > 0 && !pair.reserve(second, bytes) {
            return Ok(());
        }
        if !missing.is_empty() {
            self.pairs[index].awaited = missing.len();
            for tag in missing {
                pair.request_data(tag, block_bytes);
            }
            return Ok(());
        }
        self.pairs.swap_remove(index);
        self.execute_pair((first, second), (open, command), pair, (now, cx))
    }

    fn execute_pair(
        &mut self,
        (first, second): (Tag, Tag),
        (open, command): Checked,
        pair: &mut QueuePair,
        (now, cx): (Moment, &mut Context<'_>),
    ) -> Result<(), Refusal> {
        let (error, other) = (Status::TRANSIENT_TRANSPORT_ERROR, failed_fused());
        let damage = match (pair.is_damaged(first), pair.is_damaged(second)) {
            (false, false) => None,
            (true, false) => Some((error, other)),
            (false, true) => Some((other, error)),
            (true, true) => Some((error, error)),
        };
        if let Some(statuses) = damage {
            self.fail_pair(pair, (first, second), statuses);
            return Ok(());
        }
        let permit = self.enter(open, now)?;
        let mut take = |tag| pair.take_data(tag).unwrap_or_else(|| Buffer::with_capacity(0));
        let (expected, data) = (take(first), take(second));
        let (Some(Some(known)), IoCommand::CompareAndWrite { extent, is_fua }) =
            (self.open.get(open), command)
        else {
            unreachable!("{command:?} is checked as Compare and Write on a namespace");
        };
        let work = Self::compare_and_write(known, (extent, is_fua), expected, data);
        let pending = Pending {
            tag: second,
            first: Some(first),
            permit,
            open,
            command,
            work,
            counted: None,
            started: now,
            tickets: Vec::new(),
        };
        self.execute(pair, pending, cx);
        Ok(())
    }

    /// Checks both commands of a pair, and that they fit together. Fails with the statuses of both.
    fn check_pair(
        &mut self,
        (first, second): (Tag, Tag),
        is_new: bool,
        pair: &mut QueuePair,
    ) -> Result<Checked, (Status, Status)> {
        let aborted = Status::ABORTED_PREEMPT.do_not_retry();
        if pair.is_aborted(first) || pair.is_aborted(second) {
            return Err((aborted, aborted));
        }
        let invalid = Status::INVALID_FIELD.do_not_retry();
        let opcodes = [first, second].map(|tag| pair.command(tag).nvm_opcode());
        if opcodes != [NvmOpcode::COMPARE, NvmOpcode::WRITE] {
            return Err((invalid, invalid));
        }
        let compare = self.check_half(first, is_new, pair);
        let (open, compare) = compare.map_err(|status| (status, failed_fused()))?;
        let write = self.check_half(second, is_new, pair);
        let (other, write) = write.map_err(|status| (failed_fused(), status))?;
        let (IoCommand::Compare(compared), IoCommand::Write { extent, is_fua }) = (compare, write)
        else {
            return Err((invalid, invalid));
        };
        let namespace = match self.open.get(open) {
            Some(Some(Open { namespace, .. })) if open == other && compared == extent => namespace,
            _ => return Err((invalid, invalid)),
        };
        if !namespace.allows_compare_and_write() {
            return Err((invalid, invalid));
        }
        // ACWU: one block.
        if extent.bytes > 1 << namespace.block_shift() {
            return Err((Status::ATOMIC_WRITE_UNIT_EXCEEDED.do_not_retry(), failed_fused()));
        }
        Ok((open, IoCommand::CompareAndWrite { extent, is_fua }))
    }

    /// Checks one command of a pair by itself.
    fn check_half(
        &mut self,
        tag: Tag,
        is_new: bool,
        pair: &mut QueuePair,
    ) -> Result<Checked, Status> {
        let sqe: SubmissionQueueEntry = pair.command(tag).with_fuse(Fuse::None);
        let checked = self.decode(&sqe).and_then(|(open, command)| {
            if is_new {
                check_in_capsule(&sqe, pair.data(tag).len())?;
            }
            self.check_same_namespace(open, tag, pair)?;
            self.check_rights(open, &command, pair)?;
            Ok((open, command))
        });
        // Another path may be open: then the host can repeat the pair there.
        checked
            .map_err(|status| if status.is_path_error() { status } else { status.do_not_retry() })
    }

    fn fail_pair(
        &mut self,
        pair: &mut QueuePair,
        (first, second): (Tag, Tag),
        statuses: (Status, Status),
    ) {
        for (tag, status) in [(first, statuses.0), (second, statuses.1)] {
            let sqe = *pair.command(tag);
            self.fail(pair, tag, &sqe, status);
        }
    }

    /// Ends both commands of a pair that has run.
    pub(super) fn finish_pair(
        &mut self,
        pair: &mut QueuePair,
        (first, second): (Tag, Tag),
        outcome: &Outcome,
    ) {
        match outcome {
            Outcome::Data(_) | Outcome::Done => {
                pair.complete(first, Status::SUCCESS, 0);
                pair.complete(second, Status::SUCCESS, 0);
            }
            Outcome::Failed(status) if status.is(Status::ABORTED_PREEMPT) => {
                self.fail_pair(pair, (first, second), (*status, *status));
            }
            Outcome::Failed(status) => {
                self.fail_pair(pair, (first, second), (*status, failed_fused()));
            }
            Outcome::FailedSecond(status) => {
                pair.complete(first, Status::SUCCESS, 0);
                let sqe = *pair.command(second);
                self.fail(pair, second, &sqe, *status);
            }
        }
    }
}

/// Returns the status of a command whose companion failed.
fn failed_fused() -> Status {
    Status::FUSED_FAILED.do_not_retry()
}
