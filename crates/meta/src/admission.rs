//! The targets' agents: the devices they serve, the expiry of their admissions, and fencing.
//!
//! Every call of an agent carries a [`Beat`]: the agent's own clock at the moment of sending.
//! `Admit` and `Renew` name the newest beat that the service has received. The target lets the
//! admission lapse a fixed span after that beat, by its own clock. The service counts the same span
//! from the *receipt* of the beat, which is later than its sending. So an `Admit` or `Renew` never
//! admits a session for longer than the service counts, even if it arrives late. After a restart
//! the service knows no earlier beats, so it takes its start as the receipt of the last one.

use protocol::DeviceId;
use protocol::agent::{Beat, Demand, DeviceCounts};
use reactor::local::Notify;
use reactor::time::Instant;
use rpc::{Acceptor, Agent, Connection};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The metadata service's end of an agent's connection.
pub(crate) type AgentConnection = Connection<Acceptor<Agent>>;

/// The target of an agent.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeTarget {
    /// The node that the target is part of.
    pub(crate) node: String,
    /// What the target demands of each connection.
    pub(crate) demand: Demand,
}

/// An agent in contact.
pub(crate) struct AgentState {
    /// What the agent last reported of its target, with the node that owns the agent's key.
    pub(crate) target: RefCell<NodeTarget>,
    pub(crate) connection: RefCell<Option<AgentConnection>>,
    pub(crate) devices: RefCell<Vec<DeviceId>>,
    /// The newest beat, and the time of its receipt.
    beat: Cell<(Beat, Instant)>,
    /// Notified at every beat.
    pub(crate) beaten: Notify,
}

impl std::fmt::Debug for AgentState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("AgentState");
        debug.field("devices", &self.devices.borrow()).finish_non_exhaustive()
    }
}

impl AgentState {
    pub(crate) fn new() -> Rc<AgentState> {
        Rc::new(AgentState {
            target: RefCell::default(),
            connection: RefCell::new(None),
            devices: RefCell::default(),
            // Has lapsed long ago if a message ever names it.
            beat: Cell::new((Beat(0), reactor::time::now())),
            beaten: Notify::new(),
        })
    }

    /// Records the receipt of a call with this beat.
    pub(crate) fn heard(&self, beat: Beat) {
        let (newest, _) = self.beat.get();
        self.beat.set((newest.max(beat), reactor::time::now()));
        self.beaten.notify();
    }

    /// Returns the time of the last call from the agent.
    pub(crate) fn last_heard(&self) -> Instant {
        self.beat.get().1
    }

    pub(crate) fn connection(&self) -> Option<AgentConnection> {
        self.connection.borrow().clone()
    }
}

/// All agents in contact, by the devices they registered.
#[derive(Debug)]
pub(crate) struct Agents {
    by_device: RefCell<BTreeMap<DeviceId, Rc<AgentState>>>,
    /// For each device, the receipt time of the beat that the last `Admit` or `Renew` named.
    named: RefCell<BTreeMap<DeviceId, Instant>>,
    /// For devices that have lost contact, the time of the loss.
    lost_at: RefCell<BTreeMap<DeviceId, Instant>>,
    counts: RefCell<BTreeMap<DeviceId, DeviceCounts>>,
    started: Instant,
    /// Notified when an agent registers.
    pub(crate) registered: Notify,
}

impl Agents {
    pub(crate) fn new() -> Agents {
        Agents {
            by_device: RefCell::default(),
            named: RefCell::default(),
            lost_at: RefCell::default(),
            counts: RefCell::default(),
            started: reactor::time::now(),
            registered: Notify::new(),
        }
    }

    /// Records that the agent serves these devices from now on. Returns the agents that served some
    /// of them before.
    pub(crate) fn register(
        &self,
        agent: &Rc<AgentState>,
        devices: &[DeviceId],
    ) -> Vec<Rc<AgentState>> {
        let mut replaced: Vec<Rc<AgentState>> = Vec::new();
        for device in devices {
            let before = self.by_device.borrow_mut().insert(*device, Rc::clone(agent));
            if let Some(before) = before
                && !Rc::ptr_eq(&before, agent)
                && !replaced.iter().any(|known| Rc::ptr_eq(known, &before))
            {
                replaced.push(before);
            }
        }
        *agent.devices.borrow_mut() = devices.to_vec();
        self.registered.notify();
        replaced
    }

    /// Records that the agent is out of contact. Returns the devices that are offline because of
    /// it.
    pub(crate) fn lost(&self, agent: &Rc<AgentState>) -> Vec<DeviceId> {
        let mut by_device = self.by_device.borrow_mut();
        let mut lost = std::mem::take(&mut *agent.devices.borrow_mut());
        lost.retain(|device| by_device.get(device).is_some_and(|known| Rc::ptr_eq(known, agent)));
        let now = reactor::time::now();
        for device in &lost {
            by_device.remove(device);
            self.lost_at.borrow_mut().insert(*device, now);
        }
        lost
    }

    /// Returns the time at which a device lost contact; the service's start if it had none.
    pub(crate) fn lost_at(&self, device: DeviceId) -> Instant {
        self.lost_at.borrow().get(&device).copied().unwrap_or(self.started)
    }

    /// Returns a device's agent, if it is in contact.
    pub(crate) fn agent(&self, device: DeviceId) -> Option<Rc<AgentState>> {
        self.by_device.borrow().get(&device).cloned()
    }

    /// Returns the connection to a device's agent, if it is in contact.
    pub(crate) fn connection(&self, device: DeviceId) -> Option<AgentConnection> {
        self.by_device.borrow().get(&device)?.connection()
    }

    /// Returns the devices in contact whose targets take data in the clear.
    pub(crate) fn plain(&self) -> Vec<DeviceId> {
        let by_device = self.by_device.borrow();
        let plain = by_device.iter().filter(|(_, agent)| agent.target.borrow().demand.is_plain());
        plain.map(|(device, _)| *device).collect()
    }

    /// Returns all agents, each once.
    pub(crate) fn all(&self) -> Vec<Rc<AgentState>> {
        let mut agents: Vec<Rc<AgentState>> = Vec::new();
        for agent in self.by_device.borrow().values() {
            if !agents.iter().any(|known| Rc::ptr_eq(known, agent)) {
                agents.push(Rc::clone(agent));
            }
        }
        agents
    }

    /// Returns the beat for an `Admit` or `Renew` that is about to be sent for the devices, and
    /// records that it was named.
    pub(crate) fn name(&self, agent: &AgentState, devices: &[DeviceId]) -> Beat {
        let (beat, received) = agent.beat.get();
        let mut named = self.named.borrow_mut();
        for device in devices {
            let latest = named.entry(*device).or_insert(received);
            if !reactor::mutant!("named-beat-forgotten") {
                *latest = received.max(*latest);
            }
        }
        beat
    }

    /// Returns the latest time at which the agent can have sent the newest beat that an admission
    /// at the device counts from.
    pub(crate) fn last_named(&self, device: DeviceId) -> Instant {
        self.named.borrow().get(&device).copied().unwrap_or(self.started).max(self.started)
    }

    /// Records what a target has counted.
    pub(crate) fn count(&self, counts: &[DeviceCounts]) {
        let mut known = self.counts.borrow_mut();
        known.extend(counts.iter().map(|counts| (counts.device, *counts)));
    }

    /// Returns what all targets last reported.
    pub(crate) fn counts(&self) -> Vec<DeviceCounts> {
        self.counts.borrow().values().copied().collect()
    }
}
