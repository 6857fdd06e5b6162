//! A subsystem: a name, the hosts that may use it, and its namespaces.

use crate::ana::AnaGroups;
use crate::counts::NamespaceCounts;
use crate::error::Error;
use crate::namespace::Namespace;
use nvme::{Nqn, Nsid};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Maximum number of namespaces of a subsystem (NN).
pub const NAMESPACES_MAX: u32 = 1024;
/// Number of changes that are kept for controllers that have not seen them yet.
const CHANGES_MAX: usize = 2048;

/// The hosts that may connect to a subsystem, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostAccess {
    /// All hosts.
    Any,
    /// The hosts with these names.
    List(BTreeSet<Nqn>),
}

impl HostAccess {
    /// Returns whether this host may connect. A host without a name is on no list.
    pub fn allows(&self, host: Option<&Nqn>) -> bool {
        match self {
            Self::Any => true,
            Self::List(hosts) => host.is_some_and(|host| hosts.contains(host)),
        }
    }

    /// Returns the hosts that both allow.
    #[must_use]
    pub fn both(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Any, hosts) | (hosts, Self::Any) => hosts.clone(),
            (Self::List(one), Self::List(two)) => {
                Self::List(one.intersection(two).cloned().collect())
            }
        }
    }
}

#[derive(Debug, Default)]
struct State {
    namespaces: BTreeMap<Nsid, Arc<Namespace>>,
    /// The last changes: the generation after the change, and the changed namespace.
    changes: VecDeque<(u64, Nsid)>,
}

/// A subsystem: hosts connect to it to use its namespaces.
#[derive(Debug)]
pub struct Subsystem {
    nqn: Nqn,
    serial: String,
    model: String,
    access: RwLock<HostAccess>,
    /// Whether namespaces with a write cache may be added later, so that hosts have to flush in any
    /// case.
    is_open_ended: AtomicBool,
    generation: AtomicU64,
    /// The states of asymmetric access, if they are reported.
    pub(crate) ana: Option<AnaGroups>,
    state: RwLock<State>,
}

impl Subsystem {
    /// Creates a subsystem without namespaces. `serial` (20 characters) and `model` (40) are for
    /// people.
    pub fn new(nqn: Nqn, serial: &str, model: &str, access: HostAccess) -> Self {
        Self {
            nqn,
            serial: serial.to_owned(),
            model: model.to_owned(),
            access: RwLock::new(access),
            is_open_ended: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            ana: None,
            state: RwLock::default(),
        }
    }

    /// Returns its name.
    pub fn nqn(&self) -> &Nqn {
        &self.nqn
    }

    /// Returns its serial number.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// Returns its model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Returns the hosts that may connect now.
    pub fn access(&self) -> HostAccess {
        self.access.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether a host may connect now. A host without a name is on no list.
    pub fn allows(&self, host: Option<&Nqn>) -> bool {
        self.access.read().unwrap_or_else(PoisonError::into_inner).allows(host)
    }

    /// Replaces the hosts that may connect; [`Target::set_access`](crate::Target::set_access) also
    /// ends the controllers of the others.
    pub(crate) fn set_access(&self, access: HostAccess) {
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = access;
    }

    /// Makes Identify report a volatile write cache from now on, even if no namespace has one. A
    /// host reads this once, when it connects. Without the report it would not flush a namespace
    /// with a cache that is added later.
    pub fn expect_any_namespace(&self) {
        self.is_open_ended.store(true, Ordering::Relaxed);
    }

    /// Returns whether it is the discovery subsystem.
    pub fn is_discovery(&self) -> bool {
        self.nqn.is_discovery()
    }

    /// Returns the largest namespace identifier.
    pub fn namespaces_max(&self) -> u32 {
        NAMESPACES_MAX
    }

    /// Adds a namespace. If hosts may be connected, the caller has to notify the controllers by
    /// [`Target::notify_controllers`](crate::Target::notify_controllers).
    ///
    /// # Errors
    /// [`Error::NamespaceId`] if the identifier is not in 1 … 1024 or in use.
    pub fn add_namespace(&self, namespace: Namespace) -> Result<Arc<Namespace>, Error> {
        let nsid = namespace.nsid();
        let mut state = self.write();
        if nsid.get() == 0 || nsid.get() > NAMESPACES_MAX || state.namespaces.contains_key(&nsid) {
            return Err(Error::NamespaceId { nqn: self.nqn.clone(), nsid });
        }
        let namespace = Arc::new(namespace);
        state.namespaces.insert(nsid, Arc::clone(&namespace));
        self.record(&mut state, nsid);
        Ok(namespace)
    }

    /// Removes a namespace. Running commands still end. As for [`Self::add_namespace`], the caller
    /// has to notify the controllers.
    pub fn remove_namespace(&self, nsid: Nsid) -> Option<Arc<Namespace>> {
        let mut state = self.write();
        let namespace = state.namespaces.remove(&nsid)?;
        self.record(&mut state, nsid);
        Some(namespace)
    }

    /// Replaces a namespace by another with the same identifier, for example after a resize.
    /// Running commands end on the earlier namespace, which is returned; later commands go to the
    /// new one. As for [`Self::add_namespace`], the caller has to notify the controllers.
    ///
    /// # Errors
    /// [`Error::NamespaceId`] if there is no namespace with this identifier.
    pub fn replace_namespace(&self, namespace: Namespace) -> Result<Arc<Namespace>, Error> {
        let nsid = namespace.nsid();
        let mut state = self.write();
        let Some(place) = state.namespaces.get_mut(&nsid) else {
            return Err(Error::NamespaceId { nqn: self.nqn.clone(), nsid });
        };
        let earlier = std::mem::replace(place, Arc::new(namespace));
        self.record(&mut state, nsid);
        Ok(earlier)
    }

    /// Replaces the hosts that see a namespace. Returns false if there is no namespace with this
    /// identifier. Running commands end. Later commands of hosts that do not see it fail with
    /// Invalid Namespace or Format. As for [`Self::add_namespace`], the caller has to notify the
    /// controllers.
    pub fn set_namespace_hosts(&self, nsid: Nsid, hosts: HostAccess) -> bool {
        let mut state = self.write();
        let Some(namespace) = state.namespaces.get(&nsid) else { return false };
        namespace.set_hosts(hosts);
        self.record(&mut state, nsid);
        true
    }

    /// Returns the namespaces that a host sees, in the order of their identifiers.
    pub(crate) fn namespaces_for(&self, host: Option<&Nqn>) -> Vec<Arc<Namespace>> {
        self.read().namespaces.values().filter(|it| it.is_for(host)).cloned().collect()
    }

    /// Returns the namespace with this identifier.
    pub fn namespace(&self, nsid: Nsid) -> Option<Arc<Namespace>> {
        self.read().namespaces.get(&nsid).cloned()
    }

    /// Returns all namespaces, in the order of their identifiers.
    pub fn namespaces(&self) -> Vec<Arc<Namespace>> {
        self.read().namespaces.values().cloned().collect()
    }

    /// Returns whether Identify reports a write cache: a namespace has one, or one that is added
    /// later may have one.
    pub fn has_write_cache(&self) -> bool {
        self.is_open_ended.load(Ordering::Relaxed)
            || self.read().namespaces.values().any(|namespace| namespace.has_write_cache())
    }

    /// Returns whether hosts can reserve any namespace.
    pub fn has_reservations(&self) -> bool {
        self.read().namespaces.values().any(|namespace| namespace.reservations().is_some())
    }

    /// Returns whether hosts can use Compare and Write on all namespaces.
    pub(crate) fn allows_compare_and_write(&self) -> bool {
        self.read().namespaces.values().all(|namespace| namespace.allows_compare_and_write())
    }

    /// Returns whether hosts can use Write Uncorrectable on any namespace.
    pub(crate) fn allows_write_uncorrectable(&self) -> bool {
        self.read().namespaces.values().any(|namespace| namespace.allows_write_uncorrectable())
    }

    /// Returns the counts of the namespaces.
    pub fn counts(&self) -> Vec<NamespaceCounts> {
        self.read().namespaces.values().map(|namespace| namespace.counts()).collect()
    }

    /// Returns the number of the last change of the namespaces.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the present generation, and the namespaces that changed after `generation`. If the
    /// list of changes does not reach back far enough, all namespaces count as changed.
    pub(crate) fn changes_since(&self, generation: u64) -> (u64, BTreeSet<Nsid>) {
        let state = self.read();
        let mut changed: BTreeSet<Nsid> = state
            .changes
            .iter()
            .filter(|(after, _)| *after > generation)
            .map(|&(_, nsid)| nsid)
            .collect();
        let is_complete = state.changes.front().is_none_or(|&(first, _)| first <= generation + 1);
        if !is_complete {
            changed.extend((1..=NAMESPACES_MAX).map(Nsid));
        }
        (self.generation(), changed)
    }

    /// Records a change of a namespace.
    pub(crate) fn note_changed(&self, nsid: Nsid) {
        self.record(&mut self.write(), nsid);
    }

    fn record(&self, state: &mut State, nsid: Nsid) {
        let generation = self.generation.fetch_add(1, Ordering::AcqRel) + 1;
        if state.changes.len() == CHANGES_MAX {
            state.changes.pop_front();
        }
        state.changes.push_back((generation, nsid));
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}
