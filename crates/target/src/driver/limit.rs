//! Commands that wait, above all because of their namespaces' limits. Limited commands hold no
//! permit and no memory: a fence does not wait for them, and they take no memory from other
//! connections.

use super::execute::{Executor, Open};
use super::io_command::IoCommand;
use crate::admission::{Moment, Refusal};
use crate::queue_pair::{Event, QueuePair, Tag};
use crate::rate::{LOOK, Wait};
use nvme::command::CopyRange;
use nvme::{Nsid, Status};
use reactor::time::Instant;
use std::task::Context;

/// A waiting command.
pub(super) struct Limited {
    pub(super) tag: Tag,
    /// The event that continues it.
    event: Event,
    pub(super) nsid: Nsid,
    /// The identity of the namespace.
    namespace: u64,
    wait: Wait,
}

impl Executor {
    /// Checks that a command which may have waited runs on the namespace for which it was checked
    /// first. Another one may have its identifier now.
    pub(super) fn check_same_namespace(
        &self,
        open: usize,
        tag: Tag,
        pair: &mut QueuePair,
    ) -> Result<(), Status> {
        let Some(Some(open)) = self.open.get(open) else { return Ok(()) };
        let is_same = pair.is_for(tag, open.namespace.identity());
        if is_same { Ok(()) } else { Err(Status::INVALID_NAMESPACE) }
    }

    /// Returns the bytes that a command counts for its namespace's limits, if it counts at this
    /// event: when it arrives, or for Copy when its list is complete.
    pub(super) fn cost(
        &self,
        open: usize,
        command: &IoCommand,
        event: Event,
        data: &[u8],
        has_all: bool,
    ) -> Option<u64> {
        match command {
            IoCommand::Reserve(_) | IoCommand::Report { .. } => None,
            IoCommand::Copy { list_bytes, bytes_max, .. } => {
                let is_complete = match event {
                    Event::Command(_) => has_all,
                    Event::Data(_) => true,
                    Event::Reserved(_) => false,
                };
                let open = self.open.get(open)?.as_ref()?;
                let list = &data[..data.len().min(*list_bytes as usize)];
                let blocks = CopyRange::list(list).iter().map(|it| u64::from(it.blocks()));
                let bytes = blocks.sum::<u64>() << open.namespace.block_shift();
                // Longer lists are refused.
                is_complete.then_some(bytes.min(u64::from(*bytes_max)))
            }
            _ => matches!(event, Event::Command(_)).then(|| command.cost_bytes()),
        }
    }

    /// Makes a command wait if the namespace's limits require it. Returns true if it waits.
    pub(super) fn limit(&mut self, open: usize, bytes: u64, event: Event) -> bool {
        let (Event::Command(tag) | Event::Reserved(tag) | Event::Data(tag)) = event;
        let Some(Some(open)) = self.open.get(open) else { return false };
        let Some(wait) = open.namespace.rate().take(bytes, reactor::time::now()) else {
            return false;
        };
        let (nsid, namespace) = (open.namespace.nsid(), open.namespace.identity());
        let limited = Limited { tag, event, nsid, namespace, wait };
        self.limited_count += 1;
        self.limited.insert((limited.wait.until, self.limited_count), limited);
        true
    }

    /// Returns the time of the next look at the waiting commands. It disregards commands that have
    /// waited long enough: this turn handles them, or the next one, which [`Self::has_due`]
    /// requests.
    pub(super) fn next_limited(&self, now: Instant) -> Option<Instant> {
        let (until, _) = *self.limited.first_key_value()?.0;
        // The limits may change meanwhile.
        (until > now).then(|| until.min(now + LOOK))
    }

    /// Returns whether a command has waited long enough. Such a command has no timer.
    pub(super) fn has_due(&self, now: Instant) -> bool {
        self.limited.first_key_value().is_some_and(|(key, _)| key.0 <= now)
    }

    /// Drops the waiting commands, because the connection ends.
    pub(super) fn drop_limited(&mut self) {
        for limited in std::mem::take(&mut self.limited).into_values() {
            if let Some(open) = self.open_of(&limited) {
                open.namespace.rate().give_back(&limited.wait);
            }
        }
    }

    /// Returns the namespace of a waiting command, unless it was removed.
    fn open_of(&self, limited: &Limited) -> Option<&Open> {
        let open = self.open[self.find(limited.nsid).ok()?].as_ref();
        open.filter(|open| open.namespace.identity() == limited.namespace)
    }

    /// Returns the next command to continue: one that has waited long enough, or one whose
    /// namespace has new limits, which then apply to it.
    fn next_due(&mut self, now: Instant) -> Option<(Event, bool)> {
        let (key, first) = self.limited.first_key_value()?;
        if key.0 <= now {
            let (key, event) = (*key, first.event);
            self.limited.remove(&key);
            return Some((event, false));
        }
        let has_changed = |limited: &Limited| {
            let open = self.open_of(limited);
            open.is_none_or(|open| open.namespace.rate().has_changed(&limited.wait))
        };
        let key = *self.limited.iter().find(|(_, limited)| has_changed(limited))?.0;
        let limited = self.limited.remove(&key)?;
        Some((limited.event, true))
    }

    /// Continues commands that have waited because of limits. Fails as [`Self::handle`] does.
    pub(super) fn handle_limited(
        &mut self,
        pair: &mut QueuePair,
        now: Moment,
        cx: &mut Context<'_>,
    ) -> Result<bool, Refusal> {
        if self.limited.is_empty() {
            return Ok(false);
        }
        let (mut is_any, clock) = (false, reactor::time::now());
        while self.pace().has_room()
            && let Some((event, is_limited)) = self.next_due(clock)
        {
            is_any = true;
            self.handle_as(event, is_limited, pair, (now, cx))?;
        }
        Ok(is_any)
    }
}
