//! The admissions in force, those that are draining, and the fenced hosts.

use crate::admission::lane::Slot;
use crate::admission::{Epoch, Moment, Refusal};
use auth::TlsKey;
use nvme::HostId;
use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Maximum number of fenced hosts that are remembered, to refuse an admission that arrives after
/// its fence. Forgetting the oldest is safe, because an admission is refused after the lapse that
/// it states.
const FENCED_MAX: usize = 65_536;

const NEVER: Moment = Moment::from_ns(u64::MAX);

#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: BTreeMap<HostId, Arc<Slot>>,
    /// Closed, but with lanes still open.
    closing: Vec<Arc<Slot>>,
    fenced: BTreeMap<HostId, Epoch>,
    fenced_order: VecDeque<HostId>,
}

impl Table {
    /// Returns the slot of an admitted host.
    pub(crate) fn slot(&self, host: HostId, now: Moment) -> Result<Arc<Slot>, Refusal> {
        match self.slots.get(&host) {
            Some(slot) if slot.is_lapsed(now) => Err(Refusal::Lapsed),
            Some(slot) => Ok(Arc::clone(slot)),
            None if self.fenced.contains_key(&host) => Err(Refusal::Fenced),
            None if self.slots.is_empty() && reactor::mutant!("empty-table-admits") => {
                Ok(Slot::new(host, 0, NEVER, None))
            }
            None => Err(Refusal::NotAdmitted),
        }
    }

    /// Returns the slot of a host that needs no admission, and creates it if needed.
    pub(crate) fn slot_on_demand(&mut self, host: HostId) -> Arc<Slot> {
        // In these modes nothing reports that a host has left: drop the slots without a queue pair.
        self.slots.retain(|&other, slot| other == host || slot.has_lanes());
        let slot = self.slots.entry(host).or_insert_with(|| Slot::new(host, 0, NEVER, None));
        Arc::clone(slot)
    }

    pub(crate) fn admit(
        &mut self,
        host: HostId,
        epoch: Epoch,
        lapse: Moment,
        key: Option<TlsKey>,
    ) -> Result<(), Refusal> {
        if self.fenced.get(&host).is_some_and(|&fenced| fenced >= epoch)
            && !reactor::mutant!("fenced-admitted-again")
        {
            return Err(Refusal::Fenced);
        }
        match self.slots.get(&host) {
            Some(slot) if slot.epoch == epoch && !slot.is_closed() && slot.key() == key => {
                slot.extend(lapse);
            }
            Some(slot) if slot.epoch > epoch => return Err(Refusal::Fenced),
            _ => {
                self.close(host);
                self.slots.insert(host, Slot::new(host, epoch, lapse, key));
            }
        }
        let slot = &self.slots[&host];
        assert!(
            slot.host == host && slot.epoch == epoch && !slot.is_closed(),
            "{host:?} was admitted under {epoch:?}, but its admission has {:?}",
            slot.epoch
        );
        Ok(())
    }

    /// Closes lapsed admissions. Returns all lapsed admissions that may have I/O in flight.
    pub(crate) fn sweep(&mut self, now: Moment) -> Vec<Arc<Slot>> {
        let lapsed: Vec<HostId> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.is_lapsed(now))
            .map(|(&host, _)| host)
            .collect();
        for host in lapsed {
            self.close(host);
        }
        self.forget_closed();
        self.closing.iter().filter(|slot| slot.is_lapsed(now)).cloned().collect()
    }

    /// Extends all admissions until `lapse`. Returns the number of admissions.
    pub(crate) fn renew(&mut self, lapse: Moment) -> usize {
        for slot in self.slots.values() {
            slot.extend(lapse);
        }
        self.slots.len()
    }

    /// Ends a host's admissions up to `epoch`. Returns those that may have I/O in flight.
    pub(crate) fn fence(&mut self, host: HostId, epoch: Epoch) -> Vec<Arc<Slot>> {
        self.note_fenced(host, epoch);
        let is_ended = |slot: &Arc<Slot>| {
            slot.epoch < epoch || slot.epoch == epoch && !reactor::mutant!("fence-epoch-lt")
        };
        if self.slots.get(&host).is_some_and(is_ended) {
            self.close(host);
        }
        let left = self.slots.get(&host).map(|slot| slot.epoch);
        assert!(
            left.is_none_or(|left| left > epoch) || reactor::mutant!("fence-epoch-lt"),
            "{host:?} was fenced through {epoch:?}, but is admitted under {left:?}"
        );
        self.forget_closed();
        let is_meant = |slot: &&Arc<Slot>| slot.host == host && slot.epoch <= epoch;
        self.closing.iter().filter(is_meant).cloned().collect()
    }

    /// Ends all admissions. Returns those that may have I/O in flight.
    pub(crate) fn close_all(&mut self) -> Vec<Arc<Slot>> {
        let hosts: Vec<HostId> = self.slots.keys().copied().collect();
        for host in hosts {
            self.close(host);
        }
        self.forget_closed();
        self.closing.clone()
    }

    fn close(&mut self, host: HostId) {
        if let Some(slot) = self.slots.remove(&host) {
            slot.close();
            assert!(slot.is_closed(), "the admission of {host:?} is open after its end");
            self.closing.push(slot);
        }
    }

    fn forget_closed(&mut self) {
        self.closing.retain(|slot| slot.has_lanes());
    }

    fn note_fenced(&mut self, host: HostId, epoch: Epoch) {
        if let Some(fenced) = self.fenced.get_mut(&host) {
            *fenced = epoch.max(*fenced);
            return;
        }
        if self.fenced_order.len() == FENCED_MAX
            && let Some(oldest) = self.fenced_order.pop_front()
        {
            self.fenced.remove(&oldest);
        }
        self.fenced.insert(host, epoch);
        self.fenced_order.push_back(host);
        assert!(
            self.fenced.len() == self.fenced_order.len() && self.fenced.len() <= FENCED_MAX,
            "{} fenced hosts are recorded, but their order lists {}",
            self.fenced.len(),
            self.fenced_order.len()
        );
    }
}

/// A future that completes when no command of the given closed admissions is in execution.
#[derive(Debug)]
#[must_use = "a fence stands only when this has completed"]
pub struct Drained {
    slots: Vec<Arc<Slot>>,
}

impl Drained {
    pub(crate) fn new(slots: Vec<Arc<Slot>>) -> Self {
        Self { slots }
    }

    /// Returns the number of commands still in execution.
    pub fn in_flight(&self) -> u64 {
        self.slots.iter().map(|slot| slot.in_flight()).sum()
    }
}

impl Future for Drained {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let is_waited_for = |slot: &Arc<Slot>| slot.poll_in_flight(cx.waker()) != 0;
        self.slots.retain(|slot| is_waited_for(slot) && !reactor::mutant!("fence-not-drained"));
        if self.slots.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }
}
