//! What was asked of the file system and what it answered, in one order of all clients.
//!
//! Every call and every return has a *tick*. A change is *applied* at some tick between its call
//! and the tick by which that is certain; whether one change came before another is known only
//! where these spans do not overlap. Nothing is judged here ([`crate::check`] does, at the end).

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

/// After an answer that leaves open whether a change was made, it may still be made for so long:
/// the call may be under way, or its client not fenced yet.
const UNCERTAIN_FOR: Duration = Duration::from_mins(2);

/// What the metadata service's machine may forget when it loses power.
const META_WINDOW: Duration = Duration::from_secs(2);

/// Who acts: a client, in one life of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Actor {
    pub(crate) machine: usize,
    pub(crate) life: u64,
}

/// What a change does to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Write { offset: u64, length: u64, stamp: Stamp },
    Truncate { size: u64 },
    Punch { offset: u64, length: u64 },
    Extend { size: u64 },
    Copy { source: FileKey, source_offset: u64, offset: u64, length: u64 },
}

/// When something was asked, and since when and how far its effect is certain.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    /// The call.
    pub(crate) what: &'static str,
    pub(crate) actor: Actor,
    pub(crate) session: Option<SessionId>,
    pub(crate) start: Tick,
    pub(crate) returned: Option<Tick>,
    /// It is certain from here on that it was made.
    pub(crate) applied: Option<Tick>,
    applied_ns: u64,
    /// It is certain that it was not made later than this.
    pub(crate) latest: Option<Tick>,
    /// It may have been undone by a power loss here.
    pub(crate) undone: Option<Tick>,
    /// Survives power loss.
    is_durable: bool,
    /// It has failed in a way that leaves open whether it was made.
    is_uncertain: bool,
    /// It was not made.
    pub(crate) is_void: bool,
    bury_ns: u64,
}

/// A change of a file.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) file: FileKey,
    pub(crate) effect: Effect,
    pub(crate) life: Life,
    /// The file system chose where it went: to the end.
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
    /// Bytes may come from the kernel's pages, the end from its attributes.
    pub(crate) is_cached: bool,
}

/// How often what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that were answered.
    pub answered: u64,
    /// Of those, with an error that comes from faults.
    pub failed: u64,
    /// Bytes read and compared.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Faults that were injected.
    pub faults: u64,
    /// Of each kind, in the order of [`Fault::ALL`].
    pub kinds: [u64; Fault::ALL.len()],
    /// Calls that took longer than is normal, which a fault explains.
    pub long_waits: u64,
    /// Moments that misfortunes were aimed at and met.
    pub aimed: u64,
    /// Sessions whose client learned that they were lost.
    pub sessions_lost: u64,
    /// Sessions that the metadata service fenced and ended.
    pub fences: u64,
    /// Commands and connections that targets refused.
    pub refusals: u64,
    /// Recalls and invalidations.
    pub recalls: u64,
    /// Calls asked again that got their first answer from a reply slot.
    pub repeated: u64,
    /// Commits dropped because a truncation had come first.
    pub late_commits: u64,
    /// Blocks written more than once: those of space that was freed and used again, mostly.
    pub rewritten_blocks: u64,
    /// Locks that were given back in the session in which they were taken.
    pub locks: u64,
    /// Checks of the whole store.
    pub checks: u64,
    /// Rounds of an operator's questions.
    pub questions: u64,
    /// Groups of names for whose calls an order was found, or found not to be,
    pub orders: u64,
    /// and those of which that was not decided.
    pub undecided_orders: u64,
    /// Files of which data was on a node that was taken away.
    pub files_hit: u64,
}

impl Counts {
    /// All counts with their names.
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

/// Everything that happened.
#[derive(Debug, Default)]
pub(crate) struct History {
    tick: Tick,
    next_stamp: Stamp,
    pub(crate) changes: Vec<Change>,
    pub(crate) reads: Vec<Read>,
    pub(crate) names: Vec<crate::names::NameEvent>,
    /// Calls on names.
    pub(crate) calls: Vec<NameCall>,
    /// Names that power losses left open.
    pub(crate) losses: Vec<Loss>,
    /// Files that were ever locked.
    pub(crate) locked: BTreeSet<FileKey>,
    /// Files that could not be read when all was mended.
    pub(crate) unreadable: Vec<FileKey>,
    /// Appends of which it is not known where they went: file, stamp, length.
    pub(crate) unplaced: Vec<(FileKey, Stamp, u64)>,
    /// Values of extended attributes that were ever set: file, name, value.
    pub(crate) xattrs: Vec<(FileKey, Vec<u8>, Stamp)>,
    files: BTreeMap<InodeId, (FileKey, Tick)>,
    pub(crate) file_inodes: Vec<InodeId>,
    /// Inodes that somebody was told to have made.
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
            returned: None,
            applied: None,
            applied_ns: 0,
            latest: None,
            undone: None,
            is_durable: false,
            is_uncertain: false,
            is_void: false,
            bury_ns: u64::MAX,
        }
    }

    /// It was made, between its call and `tick`.
    pub(crate) fn apply(&mut self, tick: Tick) {
        if !self.is_uncertain && self.applied.is_none() {
            self.applied = Some(tick);
            self.latest = Some(tick);
            self.applied_ns = now_ns();
        }
    }

    /// It is not known whether it was, or still will be, made.
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

    /// Whether it certainly was made, and no loss of power can have undone it.
    pub(crate) fn is_lasting(&self) -> bool {
        self.applied.is_some() && self.undone.is_none() && !self.is_void
    }

    /// Whether it certainly was made, and must be there whatever loses power.
    pub(crate) fn is_safe(&self) -> bool {
        self.is_lasting() && self.is_durable
    }

    /// Whether it certainly is in force for who looks from `start` to `end`.
    pub(crate) fn holds(&self, start: Tick, end: Tick) -> bool {
        self.applied.is_some_and(|applied| applied < start)
            && self.undone.is_none_or(|undone| end < undone)
    }

    /// Whether its own client sees it already: written in the session that it still has.
    pub(crate) fn is_own(&self, actor: Actor, session: Option<SessionId>) -> bool {
        self.actor == actor
            && self.session.is_some()
            && self.session == session
            && !self.is_uncertain
            && self.undone.is_none()
    }

    /// Whether it certainly was made before `other` was.
    pub(crate) fn is_before(&self, other: &Life) -> bool {
        self.latest.is_some_and(|latest| latest < other.start)
            || self.actor == other.actor
                && self.returned.is_some_and(|returned| returned < other.start)
    }
}

/// The present moment, in nanoseconds since the start.
pub(crate) fn now_ns() -> u64 {
    (now() - reactor::time::Instant::from_ns(0)).as_nanos() as u64
}

impl History {
    /// The present moment.
    pub(crate) fn present(&self) -> Tick {
        self.tick
    }

    /// The next moment.
    pub(crate) fn tick(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    /// A stamp for a write.
    pub(crate) fn stamp(&mut self) -> Stamp {
        self.next_stamp += 1;
        self.next_stamp
    }

    /// The file that an inode's number stands for now.
    pub(crate) fn file(&mut self, inode: InodeId) -> FileKey {
        let (next, tick) = (self.file_inodes.len(), self.tick);
        let (key, _) = *self.files.entry(inode).or_insert((next, tick));
        if key == next {
            self.file_inodes.push(inode);
        }
        key
    }

    /// A file was made by a call that began at `start`: a number that was known before must not
    /// come again.
    pub(crate) fn born(&mut self, inode: InodeId, start: Tick) {
        let is_known = self.files.get(&inode).is_some_and(|(_, seen)| *seen < start);
        if is_known || !self.made.insert(inode) {
            self.violations.push(format!("inode number {inode:?} was given out again"));
        }
        self.file(inode);
    }

    /// A life that begins now.
    pub(crate) fn begin(
        &mut self,
        what: &'static str,
        actor: Actor,
        session: Option<SessionId>,
    ) -> Life {
        let start = self.tick();
        Life::new(what, actor, session, start)
    }

    /// A change is asked for; answers its number.
    pub(crate) fn change(&mut self, file: FileKey, effect: Effect, life: Life) -> usize {
        self.changes.push(Change { file, effect, life, is_append: false });
        self.changes.len() - 1
    }

    /// All that a client wrote to a file before `asked` is committed.
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

    /// All that a client wrote to a file before `asked` was committed at `done` at the latest.
    pub(crate) fn published(&mut self, file: FileKey, actor: Actor, asked: Tick, done: Tick) {
        for change in self.changes.iter_mut().filter(|change| change.file == file) {
            let life = &mut change.life;
            if life.actor == actor && life.returned.is_some_and(|returned| returned < asked) {
                life.apply(done);
            }
        }
    }

    /// Whatever anybody's commits had certainly put into a file before `asked` is durable.
    pub(crate) fn synced(&mut self, file: FileKey, asked: Tick) {
        for change in self.changes.iter_mut().filter(|change| change.file == file) {
            let life = &mut change.life;
            life.is_durable |= life.applied.is_some_and(|applied| applied < asked);
        }
    }

    /// A client was told that what it wrote to a file may be lost.
    pub(crate) fn lost(&mut self, file: FileKey, actor: Actor) {
        for change in self.changes.iter_mut().filter(|change| change.file == file) {
            if change.life.actor == actor {
                change.life.doubt();
            }
        }
    }

    /// A client's process was killed: what it had not committed may be lost.
    pub(crate) fn killed(&mut self, actor: Actor) {
        self.each_life(|life| {
            if life.actor == actor {
                life.doubt();
            }
        });
    }

    /// The metadata service forgot what its store had not synced.
    pub(crate) fn meta_lost_power(&mut self) {
        self.meta_power_lost = self.tick();
        let since_ns = now_ns().saturating_sub(META_WINDOW.as_nanos() as u64);
        let may_be_lost = |call: &&NameCall| {
            !call.life.is_void && (call.answer.is_none() || call.done_ns >= since_ns)
        };
        let paths = self.calls.iter().filter(may_be_lost).flat_map(NameCall::lost).collect();
        self.losses.push(Loss { at: self.meta_power_lost, paths });
        self.lose_recent();
    }

    /// The metadata service starts again after a loss of power. Until now clients answered from what they had
    /// cached, so what the service forgot shows from here on at the earliest.
    pub(crate) fn meta_has_power(&mut self) {
        let at = self.tick();
        let paths = self.losses.last().map(|loss| loss.paths.clone());
        self.losses.extend(paths.map(|paths| Loss { at, paths }));
    }

    /// A device lost what was not flushed.
    pub(crate) fn node_lost_power(&mut self) {
        self.lose_recent();
    }

    fn lose_recent(&mut self) {
        let (tick, now_ns) = (self.tick(), now_ns());
        let since_ns = now_ns.saturating_sub(META_WINDOW.as_nanos() as u64);
        self.each_life(|life| {
            if life.applied.is_none() {
                life.doubt();
            } else if life.applied_ns >= since_ns && !life.is_durable {
                life.undone.get_or_insert(tick);
            }
        });
    }

    /// Time goes on: what was uncertain for long will not be made any more.
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
    /// The bytes that it sets.
    pub(crate) fn range(&self) -> Range<u64> {
        match *self {
            Effect::Write { offset, length, .. }
            | Effect::Punch { offset, length }
            | Effect::Copy { offset, length, .. } => offset..offset + length,
            Effect::Truncate { size } => size..u64::MAX,
            Effect::Extend { .. } => 0..0,
        }
    }

    /// Up to where it makes the file reach at least.
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
