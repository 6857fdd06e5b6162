//! Which misfortune explains an error or a long wait. What none explains is a violation.
//!
//! It has to have lasted when the call was under way, or ended not long before ([`Fault::reach`]), and the call
//! has to depend on what it befell. A wait may also be for other clients, which are asked for their rights. But only
//! the time that misfortunes reach is explained: what is left must be a normal wait.

use crate::fault::Fault;
use reactor::time::{Instant, now};
use std::fmt::{self, Display};
use std::time::Duration;

/// What a misfortune befell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A machine with client, target and agent, or all its links.
    Node(usize),
    /// The metadata service.
    Meta,
    /// A machine's device.
    Device(usize),
    /// What connects two machines; `None` is that of the metadata service.
    Link(usize, Option<usize>),
}

/// A call that failed or took long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Called {
    pub(crate) machine: usize,
    pub(crate) begun: Instant,
}

/// A misfortune and its time; `until` is `None` while it lasts.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    fault: Fault,
    from: Instant,
    until: Option<Instant>,
    /// Nothing: everything.
    places: Vec<Place>,
}

impl Place {
    /// Whether a call depends on it. A client that cannot write what is asked back from it loses its
    /// session, and then its calls on names fail too; so all depend on all devices, but not on what connects others.
    fn matters(self, call: Called) -> bool {
        match self {
            Place::Meta | Place::Node(_) | Place::Device(_) | Place::Link(_, None) => true,
            Place::Link(one, Some(other)) => one == call.machine || other == call.machine,
        }
    }
}

impl Span {
    /// Whether it lasted, or had ended not longer than `after` before, when a call was under way.
    fn meets(&self, begun: Instant, after: Duration) -> bool {
        // All that lies before the end of the call, which is now, has begun by then.
        self.until.is_none_or(|until| begun <= until || begun - until <= after)
    }

    fn matters(&self, call: Called) -> bool {
        self.places.is_empty() || self.places.iter().any(|place| place.matters(call))
    }
}

impl Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?} ", self.fault, self.places)?;
        match self.until {
            Some(until) => write!(f, "{:?}..{until:?}", self.from),
            None => write!(f, "since {:?}", self.from),
        }
    }
}

/// All misfortunes of a run so far.
#[derive(Debug, Default)]
pub(crate) struct Causes(Vec<Span>);

impl Causes {
    /// A misfortune begins.
    pub(crate) fn begin(&mut self, fault: Fault) {
        self.0.push(Span { fault, from: now(), until: None, places: Vec::new() });
    }

    /// It befalls this, too.
    pub(crate) fn befalls(&mut self, fault: Fault, places: &[Place]) {
        let lasts = |span: &&mut Span| span.fault == fault && span.until.is_none();
        if let Some(span) = self.0.iter_mut().find(lasts) {
            span.places.extend(places);
        }
    }

    /// A misfortune of this kind is over.
    pub(crate) fn end_of(&mut self, fault: Fault) {
        let lasts = |span: &&mut Span| span.fault == fault && span.until.is_none();
        if let Some(span) = self.0.iter_mut().find(lasts) {
            span.until = Some(now());
        }
    }

    /// What explains that a call has just failed.
    pub(crate) fn of_error(&self, call: Called) -> Option<&Span> {
        let meets = |span: &&Span| {
            let after = span.fault.reach().errors;
            after.is_some_and(|after| span.meets(call.begun, after)) && span.matters(call)
        };
        self.0.iter().rev().find(meets)
    }

    /// What explains, last of all, that a call has lasted until now, of which so much would be normal.
    pub(crate) fn of_wait(&self, call: Called, normal: Duration) -> Option<&Span> {
        let present = now();
        let mut explained = Duration::ZERO;
        let mut last = None;
        let mut reached = call.begun;
        for span in &self.0 {
            let Some(after) = span.fault.reach().waits else { continue };
            if !span.meets(call.begun, after) {
                continue;
            }
            last = Some(span);
            let until = span.until.map_or(present, |until| present.min(until + after));
            let from = span.from.max(reached);
            if until > from {
                explained += until - from;
                reached = until;
            }
        }
        let is_explained = call.begun.elapsed().saturating_sub(explained) <= normal;
        last.filter(|_| is_explained)
    }

    /// Each misfortune with its time, as text.
    pub(crate) fn describe(&self) -> String {
        self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_ns(seconds * 1_000_000_000)
    }

    fn span(fault: Fault, places: &[Place]) -> Causes {
        Causes(vec![Span { fault, from: at(100), until: Some(at(110)), places: places.to_vec() }])
    }

    fn explains(causes: &Causes, machine: usize, begun: u64) -> bool {
        causes.of_error(Called { machine, begun: at(begun) }).is_some()
    }

    /// Goal: a misfortune explains errors of calls that depend on what it befell, while it lasts and for as
    /// long after it as recovery takes.
    #[test]
    fn errors_need_a_cause_that_matters() {
        let cut = span(Fault::Cut, &[Place::Link(0, Some(1))]);
        assert!(explains(&cut, 0, 105) && explains(&cut, 1, 105));
        assert!(!explains(&cut, 2, 105), "another link");
        assert!(explains(&cut, 0, 159) && !explains(&cut, 0, 161), "long over");
        assert!(explains(&span(Fault::MetaKill, &[Place::Meta]), 2, 105));
        assert!(!explains(&span(Fault::ClockStep, &[Place::Meta]), 2, 105));
    }
}
