//! The registry: which subsystems there are, where they can be reached, and which controllers live.
//!
//! Only connecting, discovery and administration come here, so that its locks are never on the way
//! of an I/O command.

mod change;
mod connect;
mod discovery;
mod generated;
mod proof;
mod reservation;
mod takeover;
mod tls;

pub use connect::{Attached, ConnectFailure, Connected, IoQueue, Link, Transport};
pub use proof::HostProof;
pub(crate) use proof::Proof;
pub(crate) use takeover::Ended;
pub use tls::HostTls;

use crate::admission::Admissions;
use crate::budget::Budget;
use crate::controller::Association;
use crate::error::Error;
use crate::handshakes::Handshakes;
use crate::limits::Limits;
use crate::subsystem::{HostAccess, Subsystem};
use nvme::{ControllerId, Nqn};
use reactor::time::Instant;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

const MODEL_DISCOVERY: &str = "Tsumugi discovery";

#[derive(Debug, Default)]
struct Registry {
    subsystems: BTreeMap<Nqn, Arc<Subsystem>>,
    /// The hosts that have to prove themselves, and how.
    proofs: BTreeMap<Nqn, HostProof>,
    /// To the discovery service too.
    is_discovery_proved: bool,
    listeners: Vec<(SocketAddr, Transport)>,
    controllers: BTreeMap<ControllerId, Arc<Association>>,
    /// Controllers that have ended but may have I/O in flight: as many as live connections.
    ending: Vec<Weak<Association>>,
    /// Where to look for the next free controller identifier.
    next_id: u16,
}

/// A target.
#[derive(Debug)]
pub struct Target {
    limits: Limits,
    admissions: Arc<Admissions>,
    budget: Arc<Budget>,
    handshakes: Arc<Handshakes>,
    discovery: Arc<Subsystem>,
    /// Number of the last change of the discovery log.
    generation: AtomicU64,
    registry: Mutex<Registry>,
    keyring: Arc<tls::Keyring>,
    generated: Arc<generated::Generated>,
    /// Set where hosts have to, or may, connect under TLS.
    tls: OnceLock<tls::Required>,
    started: Instant,
}

impl Target {
    /// A target with only its discovery subsystem.
    ///
    /// # Errors
    /// [`Error::Limits`].
    pub fn new(limits: Limits, admissions: Arc<Admissions>) -> Result<Arc<Self>, Error> {
        if let Some(fault) = limits.fault() {
            return Err(Error::Limits(fault));
        }
        let discovery = Subsystem::new(Nqn::discovery(), "0", MODEL_DISCOVERY, HostAccess::Any);
        Ok(Arc::new(Self {
            budget: Arc::new(Budget::new(limits.data_bytes_total_max)),
            limits,
            admissions,
            handshakes: Arc::default(),
            discovery: Arc::new(discovery),
            generation: AtomicU64::new(1),
            registry: Mutex::default(),
            keyring: Arc::default(),
            generated: Arc::default(),
            tls: OnceLock::new(),
            started: reactor::time::now(),
        }))
    }

    /// Bounds and parameters.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Buffer memory of all connections.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The hosts that may use it.
    pub fn admissions(&self) -> &Arc<Admissions> {
        &self.admissions
    }

    /// Time since it was made.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Adds a subsystem and notifies discovery controllers.
    ///
    /// # Errors
    /// [`Error::SubsystemExists`], [`Error::ReservedName`].
    pub fn add_subsystem(&self, subsystem: Subsystem) -> Result<Arc<Subsystem>, Error> {
        let nqn = subsystem.nqn().clone();
        if nqn.is_discovery() {
            return Err(Error::ReservedName(nqn));
        }
        let subsystem = Arc::new(subsystem);
        let mut registry = self.registry();
        if registry.subsystems.contains_key(&nqn) {
            return Err(Error::SubsystemExists(nqn));
        }
        registry.subsystems.insert(nqn, Arc::clone(&subsystem));
        drop(registry);
        self.note_discovery_changed();
        Ok(subsystem)
    }

    /// All subsystems but the discovery one.
    pub fn subsystems(&self) -> Vec<Arc<Subsystem>> {
        self.registry().subsystems.values().cloned().collect()
    }

    /// The subsystem of this name.
    pub fn subsystem(&self, nqn: &Nqn) -> Option<Arc<Subsystem>> {
        self.registry().subsystems.get(nqn).cloned()
    }

    /// Notes an address at which the target can be reached.
    pub(crate) fn add_listener(&self, address: SocketAddr, transport: Transport) {
        self.registry().listeners.push((address, transport));
        self.note_discovery_changed();
    }

    /// The addresses at which the target can be reached over TCP.
    pub fn listeners(&self) -> Vec<SocketAddr> {
        self.listeners_by(Transport::Tcp)
    }

    /// The addresses at which the target can be reached over RDMA.
    pub fn rdma_listeners(&self) -> Vec<SocketAddr> {
        self.listeners_by(Transport::Rdma)
    }

    fn listeners_by(&self, transport: Transport) -> Vec<SocketAddr> {
        let registry = self.registry();
        let of_it = registry.listeners.iter().filter(|listener| listener.1 == transport);
        of_it.map(|listener| listener.0).collect()
    }

    /// The controllers that live.
    pub fn controllers(&self) -> Vec<Arc<Association>> {
        self.registry().controllers.values().cloned().collect()
    }

    /// Identifiers of a subsystem's controllers, ascending.
    pub(crate) fn controller_ids(&self, subsystem: &Arc<Subsystem>) -> Vec<ControllerId> {
        let registry = self.registry();
        let of_it = |controller: &&Arc<Association>| Arc::ptr_eq(controller.subsystem(), subsystem);
        registry.controllers.values().filter(of_it).map(|controller| controller.id()).collect()
    }

    /// A controller's admin queue pair has ended.
    pub(crate) fn forget(&self, association: &Arc<Association>) {
        let mut registry = self.registry();
        let id = association.id();
        if registry.controllers.get(&id).is_some_and(|known| Arc::ptr_eq(known, association)) {
            registry.controllers.remove(&id);
            registry.ending.retain(|ending| ending.strong_count() > 0);
            registry.ending.push(Arc::downgrade(association));
        }
    }

    /// Has all controllers look for changes of namespaces and of the discovery log.
    pub fn tell_controllers(&self) {
        for controller in self.registry().controllers.values() {
            controller.look_for_events();
        }
    }

    /// Has all connections end; new ones are still taken.
    pub fn drop_connections(&self) {
        for controller in self.registry().controllers.values() {
            controller.drop_all();
        }
    }

    fn note_discovery_changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.tell_controllers();
    }

    /// Number of the last change of the discovery log.
    pub(crate) fn discovery_generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        // Each change is complete in itself: a panicked holder leaves the registry sound.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
