//! Finds the fault that explains an error or a long wait. An error or wait that no fault explains
//! is a violation.
//!
//! A fault explains a call if it lasted during the call, or ended shortly before
//! ([`Fault::reach`]), and if the call depends on what the fault struck. A wait may also be caused
//! by other clients, from which the service recalls rights. But a fault explains only the time that
//! it reaches: the remaining time must be a normal wait.

use crate::fault::Fault;
use reactor::time::{Instant, now};
use std::fmt::{self, Display};
use std::time::Duration;

/// The part of the cluster that a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultSite {
    /// A machine with client, target and agent, or all its links.
    Node(usize),
    /// The metadata service.
    Meta,
    /// A machine's device.
    Device(usize),
    /// The link between two machines; `None` stands for the metadata service.
    Link(usize, Option<usize>),
}

/// A call that failed or took long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Called {
    pub(crate) machine: usize,
    pub(crate) begun: Instant,
}

/// A fault and its time; `until` is `None` while the fault lasts.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    fault: Fault,
    from: Instant,
    until: Option<Instant>,
    /// Empty: the fault strikes everything.
    sites: Vec<FaultSite>,
}

impl FaultSite {
    /// Whether a call depends on this part. A client that cannot write data when the service
    /// recalls its rights loses its session, and then its calls on names fail too. So all calls
    /// depend on all devices, but not on links between other machines.
    fn matters(self, call: Called) -> bool {
        match self {
            FaultSite::Meta
            | FaultSite::Node(_)
            | FaultSite::Device(_)
            | FaultSite::Link(_, None) => true,
            FaultSite::Link(one, Some(other)) => one == call.machine || other == call.machine,
        }
    }
}

impl Span {
    /// Whether the fault lasted during the call, or had ended at most `after` before it began.
    fn meets(&self, begun: Instant, after: Duration) -> bool {
        // The call ends now, so each earlier fault has already begun.
        self.until.is_none_or(|until| begun <= until || begun - until <= after)
    }

    fn matters(&self, call: Called) -> bool {
        self.sites.is_empty() || self.sites.iter().any(|site| site.matters(call))
    }
}

impl Span {
    /// Whether it only makes the service pause. Its restart costs time, and no call fails.
    fn is_pause_of_service(&self) -> bool {
        // A suspension may last longer than sessions live.
        let pauses = [Fault::MetaKill, Fault::CrashTwice];
        let is_meta = |site: &FaultSite| *site == FaultSite::Meta;
        pauses.contains(&self.fault) && !self.sites.is_empty() && self.sites.iter().all(is_meta)
    }
}

impl Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?} ", self.fault, self.sites)?;
        match self.until {
            Some(until) => write!(f, "{:?}..{until:?}", self.from),
            None => write!(f, "since {:?}", self.from),
        }
    }
}

/// All faults of a run so far.
#[derive(Debug, Default)]
pub(crate) struct Causes(Vec<Span>);

impl Causes {
    /// Records the begin of a fault.
    pub(crate) fn begin(&mut self, fault: Fault) {
        self.0.push(Span { fault, from: now(), until: None, sites: Vec::new() });
    }

    /// Records another part that the fault strikes.
    pub(crate) fn strikes(&mut self, fault: Fault, sites: &[FaultSite]) {
        let lasts = |span: &&mut Span| span.fault == fault && span.until.is_none();
        if let Some(span) = self.0.iter_mut().find(lasts) {
            span.sites.extend(sites);
        }
    }

    /// Records the end of a fault of this kind.
    pub(crate) fn end_of(&mut self, fault: Fault) {
        let lasts = |span: &&mut Span| span.fault == fault && span.until.is_none();
        if let Some(span) = self.0.iter_mut().find(lasts) {
            span.until = Some(now());
        }
    }

    /// Returns the fault that explains that a call has just failed.
    pub(crate) fn of_error(&self, call: Called) -> Option<&Span> {
        let meets = |span: &&Span| {
            let after = span.fault.reach().errors.filter(|_| !span.is_pause_of_service());
            after.is_some_and(|after| span.meets(call.begun, after)) && span.matters(call)
        };
        self.0.iter().rev().find(meets)
    }

    /// Returns the latest of the faults that together explain why a call has lasted until now
    /// instead of its normal time.
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

    /// Returns each fault with its time, as text.
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

    fn span(fault: Fault, sites: &[FaultSite]) -> Causes {
        Causes(vec![Span { fault, from: at(100), until: Some(at(110)), sites: sites.to_vec() }])
    }

    fn explains(causes: &Causes, machine: usize, begun: u64) -> bool {
        causes.of_error(Called { machine, begun: at(begun) }).is_some()
    }

    /// Goal: a fault explains errors of calls that depend on what it struck, while it lasts and for
    /// as long after it as recovery takes.
    #[test]
    fn errors_need_a_cause_that_matters() {
        let cut = span(Fault::Cut, &[FaultSite::Link(0, Some(1))]);
        assert!(explains(&cut, 0, 105) && explains(&cut, 1, 105));
        assert!(!explains(&cut, 2, 105), "another link");
        assert!(explains(&cut, 0, 159) && !explains(&cut, 0, 161), "long over");
        assert!(!explains(&span(Fault::MetaKill, &[FaultSite::Meta]), 2, 105), "it restarts");
        assert!(explains(&span(Fault::StoreBroken, &[FaultSite::Meta]), 2, 105));
        assert!(!explains(&span(Fault::ClockStep, &[FaultSite::Meta]), 2, 105));
    }
}
