//! A namespace: a backing with an identity, a write protection and counters.

use crate::ana::AnaGroupId;
use crate::counts::{Counter, Counters, NamespaceCounts};
use crate::rate::{Rate, RateLimits};
use crate::reservation::Reservations;
use crate::subsystem::HostAccess;
use block::{Backing, DiscardEffect, Geometry};
use nvme::{Nqn, Nsid};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// What a subsystem exports under one identifier.
pub struct Namespace {
    nsid: Nsid,
    uuid: [u8; 16],
    backing: Arc<dyn Backing>,
    geometry: Geometry,
    ana_group: AnaGroupId,
    is_read_only: bool,
    /// Shared with the namespace that takes this one's place.
    common: Arc<Common>,
    reservations: Option<Arc<Reservations>>,
}

/// What a namespace keeps when it is resized.
#[derive(Debug)]
struct Common {
    is_write_protected: AtomicBool,
    counters: Counters,
    rate: Rate,
    /// The hosts that see it.
    hosts: RwLock<HostAccess>,
}

impl Namespace {
    /// A namespace of a backing. `uuid` names it for good: hosts take two namespaces with one UUID
    /// for two paths to the same blocks. A read-only one, and one of a read-only backing, stays write
    /// protected.
    pub fn new(nsid: Nsid, uuid: [u8; 16], backing: Arc<dyn Backing>, is_read_only: bool) -> Self {
        let geometry = backing.geometry();
        let is_read_only = is_read_only || backing.is_read_only();
        Self {
            nsid,
            uuid,
            backing,
            geometry,
            ana_group: AnaGroupId::DEFAULT,
            is_read_only,
            common: Arc::new(Common {
                is_write_protected: AtomicBool::new(is_read_only),
                counters: Counters::default(),
                rate: Rate::default(),
                hosts: RwLock::new(HostAccess::Any),
            }),
            reservations: None,
        }
    }

    /// Returns the same namespace on another backing, for example with more blocks: identity, write protection,
    /// reservations, limits and counts are common to both. Give it to
    /// [`Subsystem::replace_namespace`](crate::Subsystem::replace_namespace).
    pub fn on_backing(&self, backing: Arc<dyn Backing>) -> Self {
        let geometry = backing.geometry();
        let common = Arc::clone(&self.common);
        let reservations = self.reservations.clone();
        Self { backing, geometry, common, reservations, ..*self }
    }

    /// The same with reservations, which bind hosts that come over the fabric.
    #[must_use]
    pub fn with_reservations(mut self, reservations: Reservations) -> Self {
        self.reservations = Some(Arc::new(reservations));
        self
    }

    /// Its reservations, if hosts can make any.
    pub fn reservations(&self) -> Option<&Arc<Reservations>> {
        self.reservations.as_ref()
    }

    /// The same namespace in another group of asymmetric access.
    #[must_use]
    pub fn with_ana_group(mut self, group: AnaGroupId) -> Self {
        self.ana_group = group;
        self
    }

    /// Its group of asymmetric access.
    pub fn ana_group(&self) -> AnaGroupId {
        self.ana_group
    }

    /// Its identifier in the subsystem.
    pub fn nsid(&self) -> Nsid {
        self.nsid
    }

    /// Its UUID, which is its NGUID too.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// What its blocks are in.
    pub fn backing(&self) -> &Arc<dyn Backing> {
        &self.backing
    }

    /// Number of logical blocks.
    pub fn blocks(&self) -> u64 {
        self.geometry.blocks
    }

    /// Logical blocks have `1 << block_shift` bytes.
    pub fn block_shift(&self) -> u32 {
        self.geometry.block_size.trailing_zeros()
    }

    /// Whether acknowledged writes need a flush to be durable.
    pub fn has_write_cache(&self) -> bool {
        self.geometry.has_volatile_cache
    }

    /// Whether deallocated blocks read as zeros.
    pub fn reads_zero_after_discard(&self) -> bool {
        self.geometry.discard == DiscardEffect::Zeroes
    }

    /// Whether it is write protected for good.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Whether writes are refused.
    pub fn is_write_protected(&self) -> bool {
        self.common.is_write_protected.load(Ordering::Relaxed)
    }

    /// Protects or unprotects it; false if it is read-only for good.
    pub(crate) fn set_write_protected(&self, is_protected: bool) -> bool {
        if self.is_read_only && !is_protected {
            return false;
        }
        self.common.is_write_protected.store(is_protected, Ordering::SeqCst);
        true
    }

    /// The same for some of the hosts that may connect to its subsystem: others do not see it.
    #[must_use]
    pub fn with_hosts(self, hosts: HostAccess) -> Self {
        self.set_hosts(hosts);
        self
    }

    /// The hosts that see it.
    pub fn hosts(&self) -> HostAccess {
        self.common.hosts.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_hosts(&self, hosts: HostAccess) {
        *self.common.hosts.write().unwrap_or_else(PoisonError::into_inner) = hosts;
    }

    /// Whether a host sees it. A host without a name sees what all see.
    pub(crate) fn is_for(&self, host: Option<&Nqn>) -> bool {
        self.common.hosts.read().unwrap_or_else(PoisonError::into_inner).allows(host)
    }

    /// How much hosts may do with it in a second, all of them together. A client on the target's own node is not
    /// limited.
    pub fn rate_limits(&self) -> RateLimits {
        self.common.rate.limits()
    }

    /// Replaces the limits; commands that wait for the former ones follow within a tenth of a second.
    pub fn set_rate_limits(&self, limits: RateLimits) {
        self.common.rate.set(limits);
    }

    pub(crate) fn rate(&self) -> &Rate {
        &self.common.rate
    }

    /// What it has served.
    pub fn counts(&self) -> NamespaceCounts {
        self.common.counters.snapshot()
    }

    /// Where the calling thread counts what it serves.
    pub(crate) fn counter(&self) -> Counter {
        self.common.counters.of_thread()
    }

    /// Counts a connection or local command that was refused.
    pub(crate) fn count_refused(&self) {
        self.common.counters.count_refused();
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespace")
            .field("nsid", &self.nsid)
            .field("geometry", &self.geometry)
            .finish_non_exhaustive()
    }
}
