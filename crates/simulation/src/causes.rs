//! Which misfortune explains an error or a long wait. What none explains is a violation.

use crate::fault::Fault;
use ring::time::{Instant, now};
use std::time::Duration;

/// A misfortune and its time; `until` is `None` while it lasts.
#[derive(Clone, Copy, Debug)]
struct Span {
    fault: Fault,
    from: Instant,
    until: Option<Instant>,
}

impl Span {
    /// Whether it lasted, or had ended not longer than `after` before, when a call was under way.
    fn meets(&self, begun: Instant, after: Duration) -> bool {
        // All that lies before the end of the call, which is now, has begun by then.
        self.until.is_none_or(|until| begun <= until || begun - until <= after)
    }
}

/// All misfortunes of a run so far.
#[derive(Debug, Default)]
pub(crate) struct Causes(Vec<Span>);

impl Causes {
    /// A misfortune begins.
    pub(crate) fn begin(&mut self, fault: Fault) {
        self.0.push(Span { fault, from: now(), until: None });
    }

    /// A misfortune of this kind is over.
    pub(crate) fn end_of(&mut self, fault: Fault) {
        let lasts = |span: &&mut Span| span.fault == fault && span.until.is_none();
        if let Some(span) = self.0.iter_mut().find(lasts) {
            span.until = Some(now());
        }
    }

    /// What explains that a call that began then has just failed.
    pub(crate) fn of_error(&self, begun: Instant) -> Option<Fault> {
        self.find(begun, |fault| fault.reach().errors)
    }

    /// What explains that a call that began then has lasted until now.
    pub(crate) fn of_wait(&self, begun: Instant) -> Option<Fault> {
        self.find(begun, |fault| fault.reach().waits)
    }

    fn find(&self, begun: Instant, after: impl Fn(Fault) -> Option<Duration>) -> Option<Fault> {
        let meets = |span: &&Span| after(span.fault).is_some_and(|after| span.meets(begun, after));
        self.0.iter().rev().find(meets).map(|span| span.fault)
    }

    /// Each misfortune with its time, as text.
    pub(crate) fn describe(&self) -> String {
        let text = |span: &Span| match span.until {
            Some(until) => format!("{:?} {:?}..{until:?}", span.fault, span.from),
            None => format!("{:?} since {:?}", span.fault, span.from),
        };
        self.0.iter().map(text).collect::<Vec<_>>().join(", ")
    }
}
