//! The targets' agents: which devices they serve, when their admissions lapse, fencing.
//!
//! Every call of an agent carries a [`Beat`], the agent's own clock when it sent it; `Admit` and
//! `Renew` name the newest beat received, and the target lets the admission lapse so long after that
//! beat by its own clock. The service counts the same span from the *receipt* of the beat, which is
//! later than its sending. So however late an `Admit` or `Renew` arrives, it never admits anybody
//! for longer than the service counts.
//! After a restart nothing is known of the beats before it, so the start counts as the receipt of the
//! last one.

use protocol::DeviceId;
use protocol::agent::{Beat, DeviceCounts};
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
    /// The node that it is part of.
    pub(crate) node: String,
    /// It takes connections under TLS alone.
    pub(crate) takes_tls: bool,
}

/// An agent in contact.
pub(crate) struct AgentState {
    /// What it last said of its target, with the node that its key is of.
    pub(crate) target: RefCell<NodeTarget>,
    pub(crate) connection: RefCell<Option<AgentConnection>>,
    pub(crate) devices: RefCell<Vec<DeviceId>>,
    /// The newest beat, and when it was received.
    beat: Cell<(Beat, Instant)>,
    /// Told of every beat.
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
            // Lapsed since long, should it ever be named.
            beat: Cell::new((Beat(0), reactor::time::now())),
            beaten: Notify::new(),
        })
    }

    /// A call with this beat has been received.
    pub(crate) fn heard(&self, beat: Beat) {
        let (newest, _) = self.beat.get();
        self.beat.set((newest.max(beat), reactor::time::now()));
        self.beaten.notify();
    }

    /// When the agent was last heard of.
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
    /// When the beat was received that was last named in an `Admit` or `Renew` for a device.
    named: RefCell<BTreeMap<DeviceId, Instant>>,
    /// Since when devices have been out of contact that were in contact before.
    lost_at: RefCell<BTreeMap<DeviceId, Instant>>,
    counts: RefCell<BTreeMap<DeviceId, DeviceCounts>>,
    started: Instant,
    /// Told when an agent has registered.
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

    /// The agent serves these devices from now on; answers the agents that served some of them
    /// before.
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

    /// The agent is out of contact; answers the devices that are offline by that.
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

    /// Since when a device that is out of contact has been so.
    pub(crate) fn lost_at(&self, device: DeviceId) -> Instant {
        self.lost_at.borrow().get(&device).copied().unwrap_or(self.started)
    }

    /// A device's agent, if it is in contact.
    pub(crate) fn agent(&self, device: DeviceId) -> Option<Rc<AgentState>> {
        self.by_device.borrow().get(&device).cloned()
    }

    /// The connection to a device's agent, if it is in contact.
    pub(crate) fn connection(&self, device: DeviceId) -> Option<AgentConnection> {
        self.by_device.borrow().get(&device)?.connection()
    }

    /// The devices in contact whose targets take no TLS.
    pub(crate) fn plain(&self) -> Vec<DeviceId> {
        let by_device = self.by_device.borrow();
        let plain = by_device.iter().filter(|(_, agent)| !agent.target.borrow().takes_tls);
        plain.map(|(device, _)| *device).collect()
    }

    /// All agents, each once.
    pub(crate) fn all(&self) -> Vec<Rc<AgentState>> {
        let mut agents: Vec<Rc<AgentState>> = Vec::new();
        for agent in self.by_device.borrow().values() {
            if !agents.iter().any(|known| Rc::ptr_eq(known, agent)) {
                agents.push(Rc::clone(agent));
            }
        }
        agents
    }

    /// The beat to name in an `Admit` or `Renew` for the devices, which is about to be sent.
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

    /// When the last beat that an admission at a device counts from can have been sent, at the
    /// latest.
    pub(crate) fn last_named(&self, device: DeviceId) -> Instant {
        self.named.borrow().get(&device).copied().unwrap_or(self.started).max(self.started)
    }

    /// What a target has counted.
    pub(crate) fn count(&self, counts: &[DeviceCounts]) {
        let mut known = self.counts.borrow_mut();
        known.extend(counts.iter().map(|counts| (counts.device, *counts)));
    }

    /// What all targets last reported.
    pub(crate) fn counts(&self) -> Vec<DeviceCounts> {
        self.counts.borrow().values().copied().collect()
    }
}
