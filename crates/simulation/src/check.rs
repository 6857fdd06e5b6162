//! Whether what was seen is what mode `close` allows.
//!
//! Everything seen must be the effect of a change that may have been made by then, and that no
//! other, certainly later and certainly made change had replaced. Where changes overlap in time any
//! order of them is allowed; where close and open order them, exactly one value is.

mod appends;
mod bytes;
mod names;

use crate::history::{Actor, History, Life, Tick};
use protocol::SessionId;

/// Violations that are reported at most.
const REPORTED_MAX: usize = 20;

/// From when to when somebody looked, and who.
#[derive(Clone, Copy, Debug)]
struct View {
    start: Tick,
    end: Tick,
    /// Who sees its own writes before they are committed.
    own: Option<(Actor, Option<SessionId>)>,
}

impl View {
    /// Whether a change certainly is in force for this view.
    fn has(&self, life: &Life) -> bool {
        if life.is_void {
            return false;
        }
        life.holds(self.start, self.end)
            || self.own.is_some_and(|(actor, session)| {
                life.is_own(actor, session) && life.returned.is_some_and(|at| at < self.start)
            })
    }

    /// Whether a change may be in force for this view.
    fn may_have(&self, life: &Life) -> bool {
        !life.is_void && life.start <= self.end
    }
}

/// Checks a whole history; answers what is wrong.
pub(crate) fn check(history: &mut History) -> Vec<String> {
    let mut violations = std::mem::take(&mut history.violations);
    violations.extend(bytes::check(history));
    violations.extend(appends::check(history));
    let order = crate::names::order(history);
    history.counts.orders = order.decided;
    history.counts.undecided_orders = order.undecided;
    violations.extend(order.violations);
    violations.extend(names::check(history));
    violations.truncate(REPORTED_MAX);
    violations
}
