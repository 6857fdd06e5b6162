//! Asynchronous events (base 5.1.2): report to hosts that namespaces or the discovery log have
//! changed.
//!
//! Each thing that changes has a generation, and a controller remembers the last generation that it
//! has reported. So a change only has to wake the admin queue pairs, and nothing is lost while no
//! request is outstanding.

use super::{Association, Completion, Controller, Reply};
use crate::queue_pair::Tag;
use crate::target::Target;
use nvme::async_event::AsyncEvent;
use nvme::command::Abort;
use nvme::feature::AsyncEventConfig;
use nvme::{Nsid, Status, SubmissionQueueEntry};
use std::collections::{BTreeSet, VecDeque};

/// Maximum number of changed namespaces that are listed; more are reported as "many" (base
/// 5.1.12.1.5).
const CHANGED_MAX: usize = 1024;

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Namespaces were added, removed or changed.
    Namespaces,
    /// The discovery log page changed.
    Discovery,
}

/// The state of the report of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notice {
    /// There is nothing to report.
    Idle,
    /// The event has happened, but no request could report it yet.
    Pending,
    /// The event was reported, and the host has not read the log page since (base 5.1.2: masked
    /// until then).
    Reported,
}

/// The events of one controller.
#[derive(Debug)]
pub(crate) struct Events {
    kind: EventKind,
    requests: VecDeque<Tag>,
    /// Requests that a reset has aborted.
    aborted: VecDeque<Tag>,
    pub(super) config: AsyncEventConfig,
    notice: Notice,
    /// The state of the report of a temperature warning.
    temperature: Notice,
    /// The state of the report of a reservation notification.
    reservation: Notice,
    /// The state of the report of a change of asymmetric access; [`None`] without such reports.
    ana: Option<Notice>,
    /// The generation of the last noticed change of asymmetric access.
    ana_generation: u64,
    /// The generation of the last noticed change.
    generation: u64,
    changed: BTreeSet<Nsid>,
    /// The namespaces that the host saw at `generation`. It gets no reports about others.
    seen: BTreeSet<Nsid>,
}

/// Returns the identifiers of the namespaces that the host of a controller sees.
fn seen_by(association: &Association) -> BTreeSet<Nsid> {
    association.namespaces().iter().map(|namespace| namespace.nsid()).collect()
}

impl Events {
    pub(super) fn new(association: &Association, target: &Target) -> Self {
        let subsystem = association.subsystem();
        let (kind, generation) = if subsystem.is_discovery() {
            (EventKind::Discovery, target.discovery_generation())
        } else {
            (EventKind::Namespaces, subsystem.generation())
        };
        Self {
            kind,
            requests: VecDeque::new(),
            aborted: VecDeque::new(),
            config: AsyncEventConfig(0),
            notice: Notice::Idle,
            temperature: Notice::Idle,
            reservation: Notice::Idle,
            ana: subsystem.ana().map(|_| Notice::Idle),
            ana_generation: subsystem.ana_generation(),
            generation,
            changed: BTreeSet::new(),
            seen: seen_by(association),
        }
    }

    /// Returns the bits of the configuration that this controller supports.
    pub(super) fn supported(&self) -> u32 {
        match self.kind {
            EventKind::Namespaces if self.ana.is_some() => {
                AsyncEventConfig::NAMESPACE_ATTRIBUTES | AsyncEventConfig::ANA_CHANGE
            }
            EventKind::Namespaces => AsyncEventConfig::NAMESPACE_ATTRIBUTES,
            EventKind::Discovery => AsyncEventConfig::DISCOVERY_CHANGE,
        }
    }

    pub(super) fn reset(&mut self) {
        self.config = AsyncEventConfig(0);
        self.notice = Notice::Idle;
        self.temperature = Notice::Idle;
        self.reservation = Notice::Idle;
        self.ana = self.ana.map(|_| Notice::Idle);
        self.changed.clear();
        self.aborted.append(&mut self.requests);
    }

    /// Returns the changed namespaces, or [`None`] if there are more than the list can hold.
    /// `is_retained` keeps the list and the event's mask.
    pub(super) fn read_changed(&mut self, is_retained: bool) -> Option<Vec<Nsid>> {
        let list =
            (self.changed.len() <= CHANGED_MAX).then(|| self.changed.iter().copied().collect());
        if !is_retained {
            self.changed.clear();
            self.notice = Notice::Idle;
        }
        list
    }

    /// Records that a temperature threshold was set. `is_warning`: the temperature is out of range
    /// now.
    pub(super) fn note_temperature(&mut self, is_warning: bool) {
        match (is_warning, self.temperature) {
            (true, Notice::Idle) => self.temperature = Notice::Pending,
            (false, Notice::Pending) => self.temperature = Notice::Idle,
            _ => {}
        }
    }

    /// Records that the host has read the SMART / health log page.
    pub(super) fn note_health_read(&mut self, is_retained: bool) {
        if !is_retained && self.temperature == Notice::Reported {
            self.temperature = Notice::Idle;
        }
    }

    /// Records that the host has read the reservation notification log page.
    pub(super) fn note_reservation_read(&mut self, is_retained: bool) {
        if !is_retained {
            self.reservation = Notice::Idle;
        }
    }

    /// Returns the event to report now, if there is one that the host has enabled.
    fn next_event(&mut self) -> Option<AsyncEvent> {
        if self.requests.is_empty() {
            return None;
        }
        let wants_temperature = self.config.has(AsyncEventConfig::TEMPERATURE_WARNING);
        if self.temperature == Notice::Pending && wants_temperature {
            self.temperature = Notice::Reported;
            return Some(AsyncEvent::TEMPERATURE_THRESHOLD);
        }
        // The host masks this event by a feature of its own, so the configuration has no bit for
        // it.
        if self.reservation == Notice::Pending {
            self.reservation = Notice::Reported;
            return Some(AsyncEvent::RESERVATION_LOG_AVAILABLE);
        }
        // Before changes of namespaces: the host looks for the group of a new namespace at once.
        if self.ana == Some(Notice::Pending) && self.config.has(AsyncEventConfig::ANA_CHANGE) {
            self.ana = Some(Notice::Reported);
            return Some(AsyncEvent::ANA_CHANGED);
        }
        let wanted = self.supported() & !AsyncEventConfig::ANA_CHANGE;
        if self.notice != Notice::Pending || !self.config.has(wanted) {
            return None;
        }
        self.notice = Notice::Reported;
        Some(match self.kind {
            EventKind::Namespaces => AsyncEvent::NAMESPACE_ATTRIBUTES_CHANGED,
            EventKind::Discovery => AsyncEvent::DISCOVERY_CHANGED,
        })
    }

    /// Records that the host has read the ANA log page, which showed the changes up to
    /// `generation`.
    pub(super) fn note_ana_read(&mut self, generation: u64, is_retained: bool) {
        if !is_retained {
            self.ana_generation = generation;
            self.ana = self.ana.map(|_| Notice::Idle);
        }
    }

    /// Records a change of asymmetric access.
    fn notice_ana(&mut self, generation: u64) {
        if generation != self.ana_generation {
            self.ana_generation = generation;
            if self.ana == Some(Notice::Idle) {
                self.ana = Some(Notice::Pending);
            }
        }
    }

    /// Records a change of a namespace that the host sees: the members of its ANA group may have
    /// changed.
    fn notice_members(&mut self) {
        if self.ana == Some(Notice::Idle) {
            self.ana = Some(Notice::Pending);
        }
    }

    /// Records that the host has read the discovery log page.
    pub(super) fn note_discovery_read(&mut self, generation: u64, is_retained: bool) {
        if !is_retained {
            self.generation = generation;
            self.notice = Notice::Idle;
        }
    }
}

impl Controller {
    pub(super) fn hold_event_request(&mut self, tag: Tag) -> Reply {
        if self.events.requests.len() >= usize::from(self.limits().async_events_max) {
            return Status::ASYNC_EVENT_LIMIT_EXCEEDED.do_not_retry().into();
        }
        self.events.requests.push_back(tag);
        Reply::Held
    }

    /// Ends a held request if there is something to report or a reset has aborted it. The caller
    /// repeats the call after each command and after each signal to the queue pair until it returns
    /// [`None`].
    pub fn poll_event(&mut self) -> Option<Completion> {
        if let Some(tag) = self.events.aborted.pop_front() {
            return Some(Completion { tag, status: Status::ABORT_REQUESTED, result: 0 });
        }
        if let Some(completion) = self.later.take() {
            return Some(completion);
        }
        self.notice_changes();
        let event = self.events.next_event()?;
        let tag = self.events.requests.pop_front()?;
        let result = u64::from(event.to_dword());
        Some(Completion { tag, status: Status::SUCCESS, result })
    }

    fn notice_changes(&mut self) {
        if self.events.reservation == Notice::Idle && !self.association.notices().is_empty() {
            self.events.reservation = Notice::Pending;
        }
        let events = &mut self.events;
        match events.kind {
            EventKind::Discovery => {
                let generation = self.target.discovery_generation();
                if generation == events.generation {
                    return;
                }
                events.generation = generation;
            }
            EventKind::Namespaces => {
                let subsystem = &self.association.subsystem;
                events.notice_ana(subsystem.ana_generation());
                if subsystem.generation() == events.generation {
                    return;
                }
                let (generation, changed) = subsystem.changes_since(events.generation);
                events.generation = generation;
                let before = std::mem::replace(&mut events.seen, seen_by(&self.association));
                let is_visible = |nsid: &Nsid| before.contains(nsid) || events.seen.contains(nsid);
                let changed: Vec<Nsid> = changed.into_iter().filter(is_visible).collect();
                if changed.is_empty() {
                    return;
                }
                events.notice_members();
                // One more than the list can hold shows that there are too many.
                let room = (CHANGED_MAX + 1).saturating_sub(events.changed.len());
                events.changed.extend(changed.into_iter().take(room));
            }
        }
        if events.notice == Notice::Idle {
            events.notice = Notice::Pending;
        }
    }

    /// Executes Abort (base 5.1.1). `meant` is the outstanding command that it names, if there is
    /// one. Only held event requests can be aborted; all other commands end soon. The second part
    /// of the result is the completion of the aborted command.
    pub fn abort(
        &mut self,
        sqe: &SubmissionQueueEntry,
        meant: Option<Tag>,
    ) -> (Reply, Option<Completion>) {
        const NOT_ABORTED: u64 = 1;
        self.association.note_traffic();
        if let Err(status) = self.check_admin(sqe) {
            return (status.into(), None);
        }
        let abort = Abort::decode(sqe);
        if !abort.sqid.is_admin()
            && !self.association.io_queue_map().contains_key(&abort.sqid.get())
        {
            return (Status::INVALID_FIELD.do_not_retry().into(), None);
        }
        let requests = &mut self.events.requests;
        let held = meant.and_then(|tag| requests.iter().position(|&held| held == tag));
        match held.and_then(|index| requests.remove(index)) {
            Some(tag) => {
                let status = Status::ABORT_REQUESTED;
                (Reply::result(0), Some(Completion { tag, status, result: 0 }))
            }
            None => (Reply::result(NOT_ABORTED), None),
        }
    }
}
