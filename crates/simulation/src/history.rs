//! The calls of all clients and their answers, in one order.
//!
//! Every call and every return has a *tick*. A change is *applied* at some tick between its call
//! and the tick by which that is certain. Whether one change came before another is known only
//! where these spans do not overlap. This module judges nothing ([`crate::check`] does, at the
//! end).

use crate::fault::Fault;
use crate::linear::Loss;
use crate::names::NameCall;
use crate::pattern::Stamp;
use protocol::{InodeId, SessionId};
use reactor::time::now;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{AddAssign, Range};
use std::time::Duration;

/// A moment in the order of all events.
pub(crate) type Tick = u64;

/// A file of the checker: the position of its inode's number.
pub(crate) type FileKey = usize;

/// How long a change may still be made after an answer that leaves this open: the call may be under
/// way, or its client not fenced yet.
const UNCERTAIN_FOR: Duration = Duration::from_mins(2);

/// The period whose changes the metadata service's machine may lose when it loses power.
const META_WINDOW: Duration = Duration::from_secs(2);

/// A client, in one life of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Actor {
    pub(crate) machine: usize,
    pub(crate) life: u64,
}

/// The effect of a change on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Write { offset: u64, length: u64, stamp: Stamp },
    Truncate { size: u64 },
    Punch { offset: u64, length: u64 },
    Extend { size: u64 },
    Copy { source: FileKey, source_offset: u64, offset: u64, length: u64 },
}

/// The time of a call, and since when and how far its effect is certain.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    /// The call.
    pub(crate) what: &'static str,
    pub(crate) actor: Actor,
    pub(crate) session: Option<SessionId>,
    pub(crate) start: Tick,
    pub(crate) start_ns: u64,
    pub(crate) returned: Option<Tick>,
    /// From this tick on it is certain that the change was made.
    pub(crate) applied: Option<Tick>,
    applied_ns: u64,
    /// The change was certainly made at this tick or before.
    pub(crate) latest: Option<Tick>,
    /// A power loss at this tick may have undone the change.
    pub(crate) undone: Option<Tick>,
    /// Whether this was a loss of a device's power alone: what is lost, an fsync reports.
    is_told: bool,
    /// Whether it survives power loss.
    is_durable: bool,
    /// The call failed in a way that leaves open whether the change was made.
    is_uncertain: bool,
    /// The change was not made.
    pub(crate) is_void: bool,
    bury_ns: u64,
}

/// A change of a file.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) file: FileKey,
    pub(crate) effect: Effect,
    pub(crate) life: Life,
    /// The file system chose the offset: the end of the file.
    pub(crate) is_append: bool,
}

/// A read that succeeded.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) file: FileKey,
    pub(crate) actor: Actor,
    pub(crate) session: Option<SessionId>,
    pub(crate) start: Tick,
    pub(crate) end: Tick,
    /// The end of the file may be as old as this.
    pub(crate) ends_since: Tick,
    pub(crate) offset: u64,
    pub(crate) asked: u64,
    pub(crate) bytes: Vec<u8>,
    /// The bytes may come from the kernel's pages, and the end from its cached attributes.
    pub(crate) is_cached: bool,
    /// Whether pages must nevertheless have changes, and which.
    pub(crate) fresh: Option<Fresh>,
}

/// Changes that cached pages have, because no page was locked when they were made: those that began
/// after pages were last filled, and were certain before a tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    /// When pages were last filled, in nanoseconds.
    pub(crate) since_ns: u64,
    /// When the read began.
    pub(crate) start: Tick,
}

/// A size that stat(2) returned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeSeen {
    pub(crate) file: FileKey,
    pub(crate) actor: Actor,
    pub(crate) session: Option<SessionId>,
    pub(crate) start: Tick,
    pub(crate) end: Tick,
    pub(crate) size: u64,
}

/// Numbers of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that failed because of faults.
    pub failed: u64,
    /// Bytes read and compared.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Faults that were injected.
    pub faults: u64,
    /// Faults of each kind, in the order of [`Fault::ALL`].
    pub kinds: [u64; Fault::ALL.len()],
    /// Calls that took longer than normal because of a fault.
    pub long_waits: u64,
    /// Aimed faults that met their moment.
    pub aimed: u64,
    /// Sessions whose client learned that they were lost.
    pub sessions_lost: u64,
    /// Sessions that the metadata service fenced and ended.
    pub fences: u64,
    /// Commands and connections that targets refused.
    pub refusals: u64,
    /// Recalls and invalidations.
    pub recalls: u64,
    /// Repeated calls that got their first answer from a reply slot.
    pub repeated: u64,
    /// Commits dropped because a truncation came first.
    pub late_commits: u64,
    /// Blocks written more than once, mostly in space that was freed and used again.
    pub rewritten_blocks: u64,
    /// Locks that were released in the session in which they were taken.
    pub locks: u64,
    /// Checks of the whole store.
    pub checks: u64,
    /// Rounds of an operator's requests.
    pub questions: u64,
    /// Groups of names with a decision whether an order of their calls exists.
    pub orders: u64,
    /// Groups of names without such a decision.
    pub undecided_orders: u64,
    /// Files with data on the node that was removed.
    pub files_hit: u64,
}

impl Counts {
    /// Returns all counts with their names.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        let kinds = Fault::ALL.into_iter().map(|(fault, name)| (name, self.kinds[fault as usize]));
        let others = [
            ("long_waits", self.long_waits),
            ("answered", self.answered),
            ("failed", self.failed),
            ("read_bytes", self.read_bytes),
            ("written_bytes", self.written_bytes),
            ("faults", self.faults),
            ("aimed", self.aimed),
            ("sessions_lost", self.sessions_lost),
            ("fences", self.fences),
            ("refusals", self.refusals),
            ("recalls", self.recalls),
            ("repeated", self.repeated),
            ("late_commits", self.late_commits),
            ("rewritten_blocks", self.rewritten_blocks),
            ("locks", self.locks),
            ("checks", self.checks),
            ("questions", self.questions),
            ("orders", self.orders),
            ("undecided_orders", self.undecided_orders),
            ("files_hit", self.files_hit),
        ];
        others.into_iter().chain(kinds).collect()
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.faults += other.faults;
        self.kinds.iter_mut().zip(other.kinds).for_each(|(own, other)| *own += other);
        self.long_waits += other.long_waits;
        self.aimed += other.aimed;
        self.sessions_lost += other.sessions_lost;
        self.fences += other.fences;
        self.refusals += other.refusals;
        self.recalls += other.recalls;
        self.repeated += other.repeated;
        self.late_commits += other.late_commits;
        self.rewritten_blocks += other.rewritten_blocks;
        self.locks += other.locks;
        self.checks += other.checks;
        self.questions += other.questions;
        self.orders += other.orders;
        self.undecided_orders += other.undecided_orders;
        self.files_hit += other.files_hit;
    }
}

/// All events of a run.
#[derive(Debug, Default)]
pub(crate) struct History {
    tick: Tick,
    next_stamp: Stamp,
    pub(crate) changes: Vec<Change>,
    pub(crate) reads: Vec<Read>,
    pub(crate) sizes: Vec<SizeSeen>,
    pub(crate) names: Vec<crate::names::NameEvent>,
    /// Calls on names.
    pub(crate) calls: Vec<NameCall>,
    /// Names whose state is unknown after power losses.
    pub(crate) losses: Vec<Loss>,
    /// Files that ever had a lock.
    pub(crate) locked: BTreeSet<FileKey>,
    /// Files that could not be read after all faults were repaired.
    pub(crate) unreadable: Vec<FileKey>,
    /// Appends whose offset is unknown: file, stamp, length.
    pub(crate) unplaced: Vec<(FileKey, Stamp, u64)>,
    /// Values of extended attributes that were ever set: file, name, value.
    pub(crate) xattrs: Vec<(FileKey, Vec<u8>, Stamp)>,
    /// Files, with whether all changes of their modes are known.
    pub(crate) modes: BTreeMap<InodeId, bool>,
    files: BTreeMap<InodeId, (FileKey, Tick)>,
    pub(crate) file_inodes: Vec<InodeId>,
    /// Inodes whose creation was reported to a caller.
    made: BTreeSet<InodeId>,
    /// When the metadata service last lost power.
    pub(crate) meta_power_lost: Tick,
    pub(crate) counts: Counts,
    pub(crate) violations: Vec<String>,
}

impl Life {
    fn new(what: &'static str, actor: Actor, session: Option<SessionId>, start: Tick) -> Life {
        Life {
            what,
            actor,
            session,
            start,
            start_ns: now_ns(),
            returned: None,
            applied: None,
            applied_ns: 0,
            latest: None,
            undone: None,
            is_told: false,
            is_durable: false,
            is_uncertain: false,
            is_void: false,
            bury_ns: u64::MAX,
        }
    }

    /// Records that the change was made between its call and `tick`.
    pub(crate) fn apply(&mut self, tick: Tick) {
        if !self.is_uncertain && self.applied.is_none() {
            self.applied = Some(tick);
            self.latest = Some(tick);
            self.applied_ns = now_ns();
        }
    }

    /// Records that it is unknown whether the change was, or still will be, made.
    pub(crate) fn doubt(&mut self) {
        if self.applied.is_none() && !self.is_uncertain && !self.is_void {
            self.is_uncertain = true;
            self.bury_ns = now_ns() + UNCERTAIN_FOR.as_nanos() as u64;
        }
    }

    fn expire(&mut self, tick: Tick, now_ns: u64) {
        if self.is_uncertain && self.latest.is_none() && self.bury_ns <= now_ns {
            self.latest = Some(tick);
        }
    }

    /// Whether the change was certainly made and no loss of power can have undone it.
    pub(crate) fn is_lasting(&self) -> bool {
        self.applied.is_some() && self.undone.is_none() && !self.is_void
    }

    /// Whether the change was certainly made and survives any loss of power.
    pub(crate) fn is_safe(&self) -> bool {
        self.is_lasting() && self.is_durable
    }

    /// Whether the change is certainly in force for an observer from `start` to `end`.
    pub(crate) fn holds(&self, start: Tick, end: Tick) -> bool {
        self.applied.is_some_and(|applied| applied < start)
            && self.undone.is_none_or(|undone| end < undone)
    }

    /// Whether its own client already sees it, because the session that wrote it still exists.
    pub(crate) fn is_own(&self, actor: Actor, session: Option<SessionId>) -> bool {
        self.actor == actor
            && self.session.is_some()
            && self.session == session
            && !self.is_uncertain
            && self.undone.is_none()
    }

    /// Whether it was certainly made before `other`.
    pub(crate) fn is_before(&self, other: &Life) -> bool {
        self.latest.is_some_and(|latest| latest < other.start)
            || self.actor == other.actor
                && self.returned.is_some_and(|returned| returned < other.start)
    }
}

/// Returns the present time, in nanoseconds since the start.
pub(crate) fn now_ns() -> u64 {
    (now() - reactor::time::Instant::from_ns(0)).as_nanos() as u64
}

impl History {
    /// Returns the present tick.
    pub(crate) fn present(&self) -> Tick {
        self.tick
    }

    /// Advances to the next tick and returns it.
    pub(crate) fn tick(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    /// Returns a new stamp for a write.
    pub(crate) fn stamp(&mut self) -> Stamp {
        self.next_stamp += 1;
        self.next_stamp
    }

    /// Returns the file that an inode number stands for now.
    pub(crate) fn file(&mut self, inode: InodeId) -> FileKey {
        let (next, tick) = (self.file_inodes.len(), self.tick);
        let (key, _) = *self.files.entry(inode).or_insert((next, tick));
        if key == next {
            self.file_inodes.push(inode);
        }
        key
    }

    /// Records that a call that began at `start` made a file. A number that was known before must
    /// not come again.
    pub(crate) fn born(&mut self, inode: InodeId, start: Tick) {
        let is_known = self.files.get(&inode).is_some_and(|(_, seen)| *seen < start);
        if is_known || !self.made.insert(inode) {
            self.violations.push(format!("inode number {inode:?} was given out again"));
        }
        self.file(inode);
    }

    /// Returns a life that begins now.
    pub(crate) fn begin(
        &mut self,
        what: &'static str,
        actor: Actor,
        session: Option<SessionId>,
    ) -> Life {
        let start = self.tick();
        Life::new(what, actor, session, start)
    }

    /// Records the call of a change. Returns its number.
    pub(crate) fn change(&mut self, file: FileKey, effect: Effect, life: Life) -> usize {
        self.changes.push(Change { file, effect, life, is_append: false });
        self.changes.len() - 1
    }

    /// Records that all earlier writes of a client to a file, from before `asked`, are committed.
    pub(crate) fn committed(&mut self, file: FileKey, actor: Actor, asked: Tick, durable: bool) {
        let tick = self.tick();
        for change in self.changes.iter_mut().filter(|change| change.file == file) {
            let life = &mut change.life;
            if life.actor == actor && life.returned.is_some_and(|returned| returned < asked) {
                life.apply(tick);
                life.is_durable |= durable;
            }
        }
    }

    /// Records that all writes of a client to a file from before `asked` were committed by `done`.
    pub(crate) fn published(&mut self, file: FileKey, actor: Actor, asked: Tick, done: Tick) {
        for change in self.changes.iter_mut().filter(|change| change.file == file) {
            let life = &mut change.life;
            if life.actor == actor && life.returned.is_some_and(|returned| returned < asked) {
                life.apply(done);
            }
        }
    }

    /// Records that everything that commits of any client had certainly put into a file before
    /// `asked` is durable.
    pub(crate) fn synced(&mut self, file: FileKey, asked: Tick) {
        for change in self.changes.iter_mut().filter(|change| change.file == file) {
            let life = &mut change.life;
            if life.applied.is_none_or(|applied| applied >= asked) {
                continue;
            }
            if life.is_told && life.undone.is_some_and(|undone| undone < asked) {
                // The device has not lost it: the fsync would have failed.
                life.undone = None;
            }
            life.is_durable |= life.undone.is_none();
        }
    }

    /// Records that a client got an error: its writes to a file may be lost.
    pub(crate) fn lost(&mut self, file: FileKey, actor: Actor) {
        for change in self.changes.iter_mut().filter(|change| change.file == file) {
            if change.life.actor == actor {
                change.life.doubt();
            }
        }
    }

    /// Records that a client's process was killed: its uncommitted writes may be lost.
    pub(crate) fn killed(&mut self, actor: Actor) {
        self.each_life(|life| {
            if life.actor == actor {
                life.doubt();
            }
        });
    }

    /// Records that the metadata service lost what its store had not synced.
    pub(crate) fn meta_lost_power(&mut self) {
        self.meta_power_lost = self.tick();
        let since_ns = now_ns().saturating_sub(META_WINDOW.as_nanos() as u64);
        let may_be_lost = |call: &&NameCall| {
            !call.life.is_void && (call.answer.is_none() || call.done_ns >= since_ns)
        };
        let paths = self.calls.iter().filter(may_be_lost).flat_map(NameCall::lost).collect();
        self.losses.push(Loss { at: self.meta_power_lost, paths });
        self.lose_recent(false);
    }

    /// Records that the metadata service starts again after a loss of power. Until now clients
    /// answered from their caches, so the loss becomes visible now at the earliest.
    pub(crate) fn meta_has_power(&mut self) {
        let at = self.tick();
        let paths = self.losses.last().map(|loss| loss.paths.clone());
        self.losses.extend(paths.map(|paths| Loss { at, paths }));
    }

    /// Records that a device lost unflushed data.
    pub(crate) fn node_lost_power(&mut self) {
        self.lose_recent(true);
    }

    fn lose_recent(&mut self, is_told: bool) {
        let (tick, now_ns) = (self.tick(), now_ns());
        let since_ns = now_ns.saturating_sub(META_WINDOW.as_nanos() as u64);
        self.each_life(|life| {
            if life.applied.is_none() {
                life.doubt();
            } else if life.applied_ns >= since_ns && !life.is_durable {
                life.is_told = is_told && (life.undone.is_none() || life.is_told);
                life.undone.get_or_insert(tick);
            }
        });
    }

    /// Records that time has passed: a change that was uncertain for long will not be made any
    /// more.
    pub(crate) fn expire(&mut self) {
        let (tick, now_ns) = (self.tick(), now_ns());
        self.each_life(|life| life.expire(tick, now_ns));
    }

    fn each_life(&mut self, mut f: impl FnMut(&mut Life)) {
        self.changes.iter_mut().for_each(|change| f(&mut change.life));
        self.names.iter_mut().for_each(|event| f(&mut event.life));
        self.calls.iter_mut().for_each(|call| f(&mut call.life));
    }
}

impl Effect {
    /// Returns the bytes that the change sets.
    pub(crate) fn range(&self) -> Range<u64> {
        match *self {
            Effect::Write { offset, length, .. }
            | Effect::Punch { offset, length }
            | Effect::Copy { offset, length, .. } => offset..offset + length,
            Effect::Truncate { size } => size..u64::MAX,
            Effect::Extend { .. } => 0..0,
        }
    }

    /// Returns the offset that the file reaches at least after the change.
    pub(crate) fn reach(&self) -> u64 {
        match *self {
            Effect::Punch { .. } | Effect::Copy { length: 0, .. } => 0,
            Effect::Write { offset, length, .. } | Effect::Copy { offset, length, .. } => {
                offset + length
            }
            Effect::Truncate { size } | Effect::Extend { size } => size,
        }
    }
}
