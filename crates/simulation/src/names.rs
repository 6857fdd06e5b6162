//! Events at directory entries.

use crate::history::{History, Life, Tick, now_ns};
use crate::linear::{Answer, Call, Loss, Op, Verdict};
use protocol::{Errno, InodeId};

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub(crate) parent: InodeId,
    pub(crate) name: String,
}

/// What an event did to an entry, or observed of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NameEffect {
    /// The entry names this from now on; nothing if `None`.
    Set(Option<InodeId>),
    /// The entry names something unknown from now on.
    SetSome,
    /// The entry names what another entry named at that time.
    MovedFrom(Slot),
    /// A caller saw that the entry names this.
    Saw(Option<InodeId>),
    /// A caller saw that the entry names something.
    SawSome,
}

/// An event at an entry.
#[derive(Clone, Debug)]
pub(crate) struct NameEvent {
    pub(crate) slot: Slot,
    pub(crate) effect: NameEffect,
    pub(crate) life: Life,
}

impl NameEvent {
    /// Whether it changes the entry.
    pub(crate) fn is_change(&self) -> bool {
        matches!(self.effect, NameEffect::Set(_) | NameEffect::SetSome | NameEffect::MovedFrom(_))
    }
}

/// A call on names, for the search for an order of all such calls.
#[derive(Clone, Debug)]
pub(crate) struct NameCall {
    pub(crate) op: Op,
    /// `None`: not answered yet, or the answer was lost.
    pub(crate) answer: Option<Answer>,
    /// Time of the answer that reported success; 0 without one. The call's life does not show this
    /// if it was doubted before.
    pub(crate) done_ns: u64,
    pub(crate) life: Life,
}

/// Returns what an error states about names, if anything.
pub(crate) fn error_answer(op: &Op, errno: Errno) -> Option<Answer> {
    match errno {
        Errno::EEXIST => Some(Answer::Exists),
        Errno::EAGAIN if matches!(op, Op::Lock { .. }) => Some(Answer::Exists),
        // The error may concern the file, which has no name any more.
        Errno::ENOENT if matches!(op, Op::Link { .. }) => None,
        Errno::ENOENT => Some(Answer::Absent),
        Errno::EISDIR => Some(Answer::IsDirectory),
        Errno::ENOTDIR => Some(Answer::NotDirectory),
        Errno::ENOTEMPTY => Some(Answer::NotEmpty),
        _ => None,
    }
}

impl NameCall {
    /// Returns a call that begins.
    pub(crate) fn new(op: Op, life: Life) -> NameCall {
        NameCall { op, answer: None, done_ns: 0, life }
    }

    /// Records that the call succeeded, with this answer.
    pub(crate) fn done(&mut self, answer: Answer, tick: Tick) {
        self.answer = Some(answer);
        self.done_ns = now_ns();
        self.life.apply(tick);
    }

    /// Returns the names that the call changes. Their state is unknown if the change was lost while
    /// its answer was under way, or after that.
    pub(crate) fn lost(&self) -> impl Iterator<Item = String> + '_ {
        self.op.paths().into_iter().filter(|_| !self.op.is_look()).cloned()
    }
}

/// Searches for an order of all calls on names.
pub(crate) fn order(history: &History) -> Verdict {
    let calls = history.calls.iter().filter(|call| !call.life.is_void).map(|call| {
        let (life, op) = (&call.life, &call.op);
        let machine = life.actor.machine;
        Call {
            who: format!("node{machine}"),
            op: op.clone(),
            answer: call.answer.unwrap_or(Answer::Lost),
            begin: life.start,
            // A lock that was not released ends when its session has been fenced, however late that
            // is.
            end: match (call.answer, op) {
                (Some(_), _) => life.returned,
                (None, Op::Lock { .. } | Op::Unlock { .. }) => None,
                (None, _) => life.latest,
            },
        }
    });
    let calls: Vec<Call> =
        calls.filter(|call| call.answer != Answer::Lost || !call.op.is_look()).collect();
    let losses: &[Loss] = &history.losses;
    crate::linear::check(&calls, losses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Actor;

    fn call(history: &mut History, op: Op) -> usize {
        let life = history.begin("call", Actor { machine: 0, life: 0 }, None);
        history.calls.push(NameCall::new(op, life));
        history.calls.len() - 1
    }

    fn done(history: &mut History, call: usize, answer: Answer) {
        let tick = history.tick();
        history.calls[call].life.returned = Some(tick);
        history.calls[call].done(answer, tick);
    }

    /// Goal: a file whose creation was answered just before the service lost power may be gone,
    /// even if a node lost power while the call was under way (seed 646). If the service did not
    /// lose power, the file must be there.
    #[test]
    fn what_was_just_done_may_be_lost_with_the_service() {
        for is_lost in [true, false] {
            let mut history = History::default();
            let path = String::from("/left/d");
            let create = call(&mut history, Op::Create { path: path.clone(), exclusive: true });
            history.node_lost_power();
            done(&mut history, create, Answer::Inode(4, None));
            if is_lost {
                history.meta_lost_power();
                history.meta_has_power();
            }
            let look = call(&mut history, Op::Lookup { path });
            done(&mut history, look, Answer::Absent);
            let violations = order(&history).violations;
            assert_eq!(violations.is_empty(), is_lost, "{violations:?}");
        }
    }
}
