//! Checks whether the observations are allowed by mode `close`.
//!
//! Each observation must be the effect of a change that may have been made by then and that no
//! certainly later, certainly made change had replaced. Changes that overlap in time may have
//! happened in any order. Where close and open order them, exactly one value is allowed.

mod appends;
mod bytes;
mod names;

use crate::history::{Actor, Fresh, History, Life, Tick};
use protocol::SessionId;

/// Largest number of violations that are reported.
const REPORTED_MAX: usize = 20;

/// The time span of an observation and the client that made it.
#[derive(Clone, Copy, Debug)]
struct View {
    start: Tick,
    end: Tick,
    /// A client that sees its own writes before they are committed.
    own: Option<(Actor, Option<SessionId>)>,
    /// Further changes that are certainly in force.
    fresh: Option<Fresh>,
}

impl View {
    /// Whether a change is certainly in force for this view.
    fn has(&self, life: &Life) -> bool {
        if life.is_void {
            return false;
        }
        let holds_since = |start| {
            life.holds(start, self.end)
                || self.own.is_some_and(|(actor, session)| {
                    life.is_own(actor, session) && life.returned.is_some_and(|at| at < start)
                })
        };
        let is_fresh = |fresh: Fresh| life.start_ns > fresh.since_ns && holds_since(fresh.start);
        holds_since(self.start) || self.fresh.is_some_and(is_fresh)
    }

    /// Whether a change may be in force for this view.
    fn may_have(&self, life: &Life) -> bool {
        !life.is_void && life.start <= self.end
    }
}

/// Checks a whole history. Returns the violations.
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
