//! The simulated machines: nodes, their objects (sockets, files) and the planned events.

use super::SimConfig;
use super::copies::Copies;
use super::disk::{Disk, OpenFile};
use super::moment::Watch;
use super::node::{DiskFault, DiskPace};
use super::rng::Rng;
use super::streams::{Delivery, Listener, Stream};
use crate::context::try_with_context;
use crate::handle::{Handle, HandleInner};
use crate::operation::Operation;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Wall-clock time at which the world starts: 2026-01-01 in nanoseconds.
const EPOCH_NS: u64 = 1_767_225_600 * 1_000_000_000;
/// First port that is assigned automatically.
const EPHEMERAL_PORT_FIRST: u16 = 32_768;

/// An owner of an object of the world; closes it when dropped.
#[derive(Debug)]
pub(crate) struct SimHandle(pub(crate) u64);

impl SimHandle {
    pub(crate) fn into_handle(object: u64) -> Handle {
        Handle(Arc::new(HandleInner::Sim(Self(object))))
    }
}

impl Drop for SimHandle {
    fn drop(&mut self) {
        let _ = try_with_context(|context| {
            let Some(sim) = context.sim() else { return };
            match sim.world.try_borrow_mut() {
                Ok(mut world) => world.close(self.0),
                Err(_) => sim.closing.borrow_mut().push(self.0),
            }
        });
    }
}

/// A planned event.
#[derive(Debug)]
pub(crate) enum Event {
    /// An operation ends.
    Complete { key: u32, code: i32 },
    /// A file operation takes place and ends; a sync covers writes numbered below `covered`.
    Disk { key: u32, object: u64, epoch: u64, covered: u64 },
    /// A connection request arrives.
    Connect { key: u32, socket: u64, address: SocketAddr, attempts: u32 },
    /// The answer to a connection request arrives.
    Connected { key: u32, socket: u64 },
    /// A payload arrives at a stream.
    Deliver(Delivery),
    /// A socket is shut down.
    Shutdown { key: u32, object: u64, how: Shutdown },
    /// A socket has operations that may continue.
    Pump(u64),
}

struct Planned {
    at_ns: u64,
    sequence: u64,
    event: Event,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.sequence).cmp(&(other.at_ns, other.sequence))
    }
}

pub(crate) struct NodeState {
    pub(crate) name: String,
    /// Counts power losses: disk operations of an earlier epoch have no effect.
    pub(crate) epoch: u64,
    pub(crate) has_power: bool,
    /// Its processor, network and disk are suspended.
    pub(crate) is_suspended: bool,
    /// When the present or the last suspension began.
    suspended_ns: u64,
    /// Sum of the earlier suspensions.
    asleep_ns: u64,
    /// The errors of its disk, if it fails.
    pub(crate) disk_fault: DiskFault,
    /// The times of its disk, if not as configured.
    pub(crate) pace: Option<DiskPace>,
    /// The error of its wall clock.
    pub(crate) wall_offset_ns: i64,
    next_port: u16,
}

/// An object with a handle.
pub(crate) enum Object {
    /// A socket that is neither connected nor listening; the key of its pending connect.
    Socket {
        node: u32,
        connect: Option<u32>,
    },
    Listener(Listener),
    Stream(Box<Stream>),
    File(OpenFile),
}

pub(crate) struct World {
    pub(crate) config: SimConfig,
    pub(crate) rng: Rng,
    pub(crate) now_ns: u64,
    pub(crate) trace: u64,
    pub(crate) nodes: Vec<NodeState>,
    pub(crate) objects: BTreeMap<u64, Object>,
    /// Listeners by node and port.
    pub(crate) listeners: BTreeMap<(u32, u16), u64>,
    /// Pairs of nodes: data from the first does not reach the second.
    pub(crate) cut: BTreeSet<(u32, u32)>,
    /// Latencies of one direction between pairs of nodes (lesser first).
    pub(crate) slow_links: BTreeMap<(u32, u32), (Duration, Duration)>,
    /// Disk operations of suspended machines, kept until they wake.
    pub(crate) frozen: Vec<(u32, Event)>,
    pub(crate) disk: Disk,
    /// Copies of the data of connections, if a middlebox keeps them.
    pub(crate) copies: Option<Copies>,
    /// The tasks that wait for a moment.
    pub(crate) watches: Vec<Watch>,
    events: BinaryHeap<Reverse<Planned>>,
    sequence: u64,
    next_object: u64,
}

impl World {
    pub(crate) fn new(seed: u64, config: SimConfig) -> Self {
        let mut world = Self {
            config,
            rng: Rng::new(seed),
            now_ns: 0,
            trace: 0xcbf2_9ce4_8422_2325,
            nodes: Vec::new(),
            objects: BTreeMap::new(),
            listeners: BTreeMap::new(),
            cut: BTreeSet::new(),
            slow_links: BTreeMap::new(),
            frozen: Vec::new(),
            disk: Disk::default(),
            copies: None,
            watches: Vec::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            next_object: 0,
        };
        world.add_node("root");
        world
    }

    pub(crate) fn add_node(&mut self, name: &str) -> u32 {
        let next_port = EPHEMERAL_PORT_FIRST;
        let (name, pace) = (name.into(), None);
        let wall_offset_ns = 0;
        self.nodes.push(NodeState {
            name,
            epoch: 0,
            has_power: true,
            is_suspended: false,
            suspended_ns: 0,
            asleep_ns: 0,
            disk_fault: DiskFault::default(),
            pace,
            wall_offset_ns,
            next_port,
        });
        self.nodes.len() as u32 - 1
    }

    /// Returns the time of a node's clock that stops while the node is suspended.
    pub(crate) fn awake_ns(&self, node: u32) -> u64 {
        let node = &self.nodes[node as usize];
        let present_ns = if node.is_suspended { node.suspended_ns } else { self.now_ns };
        present_ns - node.asleep_ns
    }

    /// Returns the time of a node's wall clock.
    pub(crate) fn wall_ns(&self, node: u32) -> u64 {
        let offset_ns = self.nodes[node as usize].wall_offset_ns;
        (EPOCH_NS + self.now_ns).saturating_add_signed(offset_ns)
    }

    /// Returns a node's address: 10.77.0.1 for the first.
    pub(crate) fn address(node: u32) -> IpAddr {
        let number = node + 1;
        Ipv4Addr::new(10, 77, (number >> 8) as u8, number as u8).into()
    }

    /// Returns the node that `from` reaches at an address.
    pub(crate) fn node_at(&self, from: u32, address: IpAddr) -> Option<u32> {
        if address.is_loopback() || address.is_unspecified() {
            return Some(from);
        }
        (0..self.nodes.len() as u32).find(|&node| Self::address(node) == address)
    }

    pub(crate) fn free_port(&mut self, node: u32) -> u16 {
        loop {
            let next = &mut self.nodes[node as usize].next_port;
            let port = *next;
            *next = next.checked_add(1).unwrap_or(EPHEMERAL_PORT_FIRST);
            if !self.listeners.contains_key(&(node, port)) {
                return port;
            }
        }
    }

    /// Mixes an event into the trace.
    pub(crate) fn note(&mut self, what: u64, a: u64, b: u64) {
        for word in [what, self.now_ns, a, b] {
            self.trace = (self.trace ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        }
    }

    pub(crate) fn add(&mut self, object: Object) -> u64 {
        self.next_object += 1;
        self.objects.insert(self.next_object, object);
        self.next_object
    }

    /// Plans an event `delay_ns` from now.
    pub(crate) fn plan(&mut self, delay_ns: u64, event: Event) {
        self.plan_at(self.now_ns + delay_ns, event);
    }

    pub(crate) fn plan_at(&mut self, at_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse(Planned { at_ns, sequence: self.sequence, event }));
    }

    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.events.peek().map(|planned| planned.0.at_ns)
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        let planned = self.events.pop()?.0;
        self.note(1, planned.sequence, 0);
        Some(planned.event)
    }

    /// Returns all disk operations in flight: key and object.
    pub(crate) fn disk_operations(&self) -> Vec<(u32, u64)> {
        let mut found: Vec<_> = self
            .events
            .iter()
            .filter_map(|planned| match &planned.0.event {
                Event::Disk { key, object, .. } => Some((planned.0.sequence, *key, *object)),
                _ => None,
            })
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, key, object)| (key, object)).collect()
    }

    /// Keeps an event of a suspended machine's disk for later; returns any other event.
    pub(crate) fn freeze(&mut self, event: Event) -> Option<Event> {
        if let Event::Disk { object, .. } = event
            && let Some(Object::File(file)) = self.objects.get(&object)
            && self.nodes[file.node as usize].is_suspended
        {
            self.frozen.push((file.node, event));
            return None;
        }
        Some(event)
    }

    /// Suspends or wakes a machine.
    pub(crate) fn set_suspended(&mut self, node: u32, is_suspended: bool) {
        let now_ns = self.now_ns;
        let state = &mut self.nodes[node as usize];
        let was_suspended = std::mem::replace(&mut state.is_suspended, is_suspended);
        match (was_suspended, is_suspended) {
            (false, true) => state.suspended_ns = now_ns,
            (true, false) => state.asleep_ns += now_ns - state.suspended_ns,
            _ => {}
        }
        if is_suspended {
            return;
        }
        for (owner, event) in std::mem::take(&mut self.frozen) {
            if owner == node {
                self.plan(1, event);
            } else {
                self.frozen.push((owner, event));
            }
        }
        self.release_held();
    }

    /// Starts an operation.
    pub(crate) fn start(&mut self, key: u32, object: u64, operation: &Operation) {
        self.note(2, u64::from(key), object);
        match operation {
            Operation::Accept => self.start_accept(key, object),
            Operation::Connect(address) => self.start_connect(key, object, *address),
            Operation::Receive(_) => self.start_receive(key, object),
            Operation::Send { chunks, skip } => self.start_send(key, object, chunks, *skip),
            Operation::Shutdown(how) => {
                let event = Event::Shutdown { key, object, how: *how };
                self.plan(1, event);
            }
            Operation::Read { .. }
            | Operation::Write { .. }
            | Operation::WriteOne { .. }
            | Operation::Sync { .. }
            | Operation::Allocate { .. } => self.start_disk(key, object, operation),
            Operation::WriteBack => self.plan(1, Event::Complete { key, code: 0 }),
            Operation::Poll(_) | Operation::Command(_) => self.fail(key, libc::EOPNOTSUPP),
        }
    }

    pub(crate) fn fail(&mut self, key: u32, errno: i32) {
        self.plan(1, Event::Complete { key, code: -errno });
    }

    /// Cancels an operation that waits. Disk operations are not cancelled.
    pub(crate) fn cancel(&mut self, key: u32, object: u64) {
        let was_waiting = match self.objects.get_mut(&object) {
            Some(Object::Socket { connect, .. }) => connect.take_if(|k| *k == key).is_some(),
            Some(Object::Listener(listener)) => listener.cancel(key),
            Some(Object::Stream(stream)) => stream.cancel(key),
            Some(Object::File(_)) | None => false,
        };
        if was_waiting {
            self.fail(key, libc::ECANCELED);
        }
    }

    /// Closes all that a node's program has open, as at its death. Its file operations in flight
    /// still take place.
    pub(crate) fn close_all(&mut self, node: u32) {
        let mut sockets = Vec::new();
        for (&id, object) in &self.objects {
            let owner = match object {
                Object::Socket { node, .. } => *node,
                Object::Listener(listener) => listener.node,
                Object::Stream(stream) => stream.node,
                Object::File(file) => {
                    if file.node == node {
                        self.disk.close(id, file);
                    }
                    continue;
                }
            };
            if owner == node {
                sockets.push(id);
            }
        }
        for id in sockets {
            self.close(id);
        }
    }

    /// Closes an object whose last handle was dropped.
    pub(crate) fn close(&mut self, object: u64) {
        self.note(3, object, 0);
        match self.objects.remove(&object) {
            Some(Object::Listener(listener)) => self.close_listener(listener),
            Some(Object::Stream(stream)) => self.close_stream(&stream),
            Some(Object::File(file)) => self.disk.close(object, &file),
            Some(Object::Socket { .. }) | None => {}
        }
    }
}
