//! The registry: the subsystems, the addresses at which hosts reach them, and the live controllers.
//!
//! Only connecting, discovery and administration use the registry. An I/O command never takes its
//! locks.

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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

const MODEL_DISCOVERY: &str = "Tsumugi discovery";

#[derive(Debug, Default)]
struct Registry {
    subsystems: BTreeMap<Nqn, Arc<Subsystem>>,
    /// The proofs that hosts must give.
    proofs: BTreeMap<Nqn, HostProof>,
    /// Whether hosts give their proofs to the discovery service too.
    is_discovery_proved: bool,
    listeners: Vec<(SocketAddr, Transport)>,
    controllers: BTreeMap<ControllerId, Arc<Association>>,
    /// Ended controllers that may still have I/O in flight. At most one per live connection.
    ending: Vec<Weak<Association>>,
    /// Where the search for a free controller identifier starts.
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
    /// Set if hosts must or may connect under TLS.
    tls: OnceLock<tls::Required>,
    /// Whether hosts prove the keys of their admissions.
    is_admission_proved: AtomicBool,
    started: Instant,
}

impl Target {
    /// Creates a target with only its discovery subsystem.
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
            is_admission_proved: AtomicBool::new(false),
            started: reactor::time::now(),
        }))
    }

    /// Returns the bounds and parameters.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the budget of buffer memory for all connections.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Returns the admissions: the hosts that may use the target.
    pub fn admissions(&self) -> &Arc<Admissions> {
        &self.admissions
    }

    /// Returns the time since the target was created.
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

    /// Returns all subsystems except the discovery subsystem.
    pub fn subsystems(&self) -> Vec<Arc<Subsystem>> {
        self.registry().subsystems.values().cloned().collect()
    }

    /// Returns the subsystem of this name.
    pub fn subsystem(&self, nqn: &Nqn) -> Option<Arc<Subsystem>> {
        self.registry().subsystems.get(nqn).cloned()
    }

    /// Adds an address at which hosts reach the target.
    pub(crate) fn add_listener(&self, address: SocketAddr, transport: Transport) {
        self.registry().listeners.push((address, transport));
        self.note_discovery_changed();
    }

    /// Returns the addresses at which hosts reach the target over TCP.
    pub fn listeners(&self) -> Vec<SocketAddr> {
        self.listeners_by(Transport::Tcp)
    }

    /// Returns the addresses at which hosts reach the target over RDMA.
    pub fn rdma_listeners(&self) -> Vec<SocketAddr> {
        self.listeners_by(Transport::Rdma)
    }

    fn listeners_by(&self, transport: Transport) -> Vec<SocketAddr> {
        let registry = self.registry();
        let of_it = registry.listeners.iter().filter(|listener| listener.1 == transport);
        of_it.map(|listener| listener.0).collect()
    }

    /// Returns the live controllers.
    pub fn controllers(&self) -> Vec<Arc<Association>> {
        self.registry().controllers.values().cloned().collect()
    }

    /// Returns the identifiers of a subsystem's controllers, ascending.
    pub(crate) fn controller_ids(&self, subsystem: &Arc<Subsystem>) -> Vec<ControllerId> {
        let registry = self.registry();
        let of_it = |controller: &&Arc<Association>| Arc::ptr_eq(controller.subsystem(), subsystem);
        registry.controllers.values().filter(of_it).map(|controller| controller.id()).collect()
    }

    /// Moves a controller whose admin queue pair has ended from the live to the ending controllers.
    pub(crate) fn forget(&self, association: &Arc<Association>) {
        let mut registry = self.registry();
        let id = association.id();
        if registry.controllers.get(&id).is_some_and(|known| Arc::ptr_eq(known, association)) {
            registry.controllers.remove(&id);
            registry.ending.retain(|ending| ending.strong_count() > 0);
            registry.ending.push(Arc::downgrade(association));
        }
    }

    /// Makes all controllers look for changes of namespaces and of the discovery log.
    pub fn notify_controllers(&self) {
        for controller in self.registry().controllers.values() {
            controller.look_for_events();
        }
    }

    /// Ends all connections. The target still accepts new ones.
    pub fn drop_connections(&self) {
        for controller in self.registry().controllers.values() {
            controller.drop_all();
        }
    }

    fn note_discovery_changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.notify_controllers();
    }

    /// Returns the number of the last change of the discovery log.
    pub(crate) fn discovery_generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        // Each change is complete in itself: the registry stays sound if a holder of the lock
        // panics.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
