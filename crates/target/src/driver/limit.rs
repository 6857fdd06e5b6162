//! Commands that wait because of their namespaces' limits. They have taken neither a permit nor memory: a fence does not
//! wait for them, and they keep no memory from others.

use super::execute::Executor;
use super::plan::Plan;
use crate::admission::{Moment, Refusal};
use crate::queue_pair::{Event, QueuePair, Tag};
use crate::rate::{LOOK, Wait};
use nvme::Nsid;
use reactor::time::Instant;
use std::task::Context;

/// A command that waits.
pub(super) struct Limited {
    pub(super) tag: Tag,
    pub(super) nsid: Nsid,
    wait: Wait,
}

impl Executor {
    /// Has a new command wait if the namespace's limits ask for it; true if it waits.
    pub(super) fn limit(&mut self, open: usize, plan: &Plan, tag: Tag) -> bool {
        if matches!(plan, Plan::Reserve(_) | Plan::Report { .. }) {
            return false;
        }
        let Some(Some(open)) = self.open.get(open) else { return false };
        let Some(wait) =
            open.namespace.rate().take(plan.buffer_bytes() as u64, reactor::time::now())
        else {
            return false;
        };
        let nsid = open.namespace.nsid();
        self.limited_count += 1;
        self.limited.insert((wait.until, self.limited_count), Limited { tag, nsid, wait });
        true
    }

    /// When to look next at the commands that wait because of limits. Those that have waited long enough are not meant:
    /// they are looked at in this turn, or in the next one, which [`Self::has_due`] asks for.
    pub(super) fn next_limited(&self, now: Instant) -> Option<Instant> {
        let (until, _) = *self.limited.first_key_value()?.0;
        // Limits may be changed meanwhile.
        (until > now).then(|| until.min(now + LOOK))
    }

    /// Whether a command has waited long enough. No timer stands for it.
    pub(super) fn has_due(&self, now: Instant) -> bool {
        self.limited.first_key_value().is_some_and(|(key, _)| key.0 <= now)
    }

    /// Drops the commands that wait, because the connection ends.
    pub(super) fn drop_limited(&mut self) {
        for limited in std::mem::take(&mut self.limited).into_values() {
            if let Ok(index) = self.find(limited.nsid)
                && let Some(open) = &self.open[index]
            {
                open.namespace.rate().give_back(&limited.wait);
            }
        }
    }

    /// The next command that has waited long enough, or whose namespace has other limits now; then these hold for it.
    fn next_due(&mut self, now: Instant) -> Option<(Tag, bool)> {
        let (key, first) = self.limited.first_key_value()?;
        if key.0 <= now {
            let (key, tag) = (*key, first.tag);
            self.limited.remove(&key);
            return Some((tag, false));
        }
        let has_changed = |limited: &Limited| match self.find(limited.nsid) {
            Ok(index) => {
                let open = self.open[index].as_ref();
                open.is_none_or(|open| open.namespace.rate().has_changed(&limited.wait))
            }
            Err(_) => true,
        };
        let key = *self.limited.iter().find(|(_, limited)| has_changed(limited))?.0;
        let limited = self.limited.remove(&key)?;
        Some((limited.tag, true))
    }

    /// Goes on with commands that have waited because of limits. Fails as [`Self::handle`] does.
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
            && let Some((tag, is_limited)) = self.next_due(clock)
        {
            is_any = true;
            self.handle_as(Event::Command(tag), is_limited, pair, (now, cx))?;
        }
        Ok(is_any)
    }
}
