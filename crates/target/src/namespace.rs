//! A namespace: a backing with an identity, a write protection and counters.

use crate::ana::AnaGroupId;
use crate::counts::{Counter, Counters, NamespaceCounts};
use crate::exclusion::Exclusion;
use crate::rate::{Rate, RateLimits};
use crate::reservation::Reservations;
use crate::subsystem::HostAccess;
use block::{Backing, DiscardEffect, Geometry};
use nvme::{Nqn, Nsid};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The identity of the next namespace.
static IDENTITY: AtomicU64 = AtomicU64::new(0);

/// A block device that a subsystem exports under one identifier.
pub struct Namespace {
    nsid: Nsid,
    uuid: [u8; 16],
    backing: Arc<dyn Backing>,
    geometry: Geometry,
    ana_group: AnaGroupId,
    is_read_only: bool,
    /// Whether only this namespace writes to its blocks.
    is_alone: bool,
    /// Number that only this namespace and its replacements have in this process.
    identity: u64,
    /// State that a namespace shares with its replacement.
    common: Arc<Common>,
    reservations: Option<Arc<Reservations>>,
}

/// State that survives a resize.
#[derive(Debug)]
struct Common {
    is_write_protected: AtomicBool,
    counters: Counters,
    rate: Rate,
    exclusion: Arc<Exclusion>,
    /// The hosts that see the namespace.
    hosts: RwLock<HostAccess>,
}

impl Namespace {
    /// Creates a namespace on a backing. `uuid` is its permanent identity: hosts treat two
    /// namespaces with one UUID as two paths to the same blocks. A read-only namespace, and one on
    /// a read-only backing, stays write protected.
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
            is_alone: true,
            identity: IDENTITY.fetch_add(1, Ordering::Relaxed),
            common: Arc::new(Common {
                is_write_protected: AtomicBool::new(is_read_only),
                counters: Counters::default(),
                rate: Rate::default(),
                exclusion: Arc::default(),
                hosts: RwLock::new(HostAccess::Any),
            }),
            reservations: None,
        }
    }

    /// Returns the same namespace on another backing, for example with more blocks. Both share
    /// identity, write protection, reservations, limits and counts.
    /// [`Subsystem::replace_namespace`](crate::Subsystem::replace_namespace) takes the result.
    pub fn on_backing(&self, backing: Arc<dyn Backing>) -> Self {
        let geometry = backing.geometry();
        let common = Arc::clone(&self.common);
        let reservations = self.reservations.clone();
        Self { backing, geometry, common, reservations, ..*self }
    }

    /// Adds reservations, which apply to hosts on the fabric.
    #[must_use]
    pub fn with_reservations(mut self, reservations: Reservations) -> Self {
        self.reservations = Some(Arc::new(reservations));
        self
    }

    /// Returns the reservations, if hosts can make any.
    pub fn reservations(&self) -> Option<&Arc<Reservations>> {
        self.reservations.as_ref()
    }

    /// Records that others write to the blocks too. Compare and Write is refused then, because it
    /// could not exclude their writes.
    #[must_use]
    pub fn with_other_writers(mut self) -> Self {
        self.is_alone = false;
        self
    }

    /// Returns whether hosts can use Compare and Write.
    pub fn allows_compare_and_write(&self) -> bool {
        self.is_alone
    }

    /// Returns whether hosts can use Write Uncorrectable.
    pub fn allows_write_uncorrectable(&self) -> bool {
        self.backing.can_mark_uncorrectable()
    }

    /// Returns the exclusive access to its blocks.
    pub(crate) fn exclusion(&self) -> &Arc<Exclusion> {
        &self.common.exclusion
    }

    /// Puts the namespace into another group of asymmetric access.
    #[must_use]
    pub fn with_ana_group(mut self, group: AnaGroupId) -> Self {
        self.ana_group = group;
        self
    }

    /// Returns its group of asymmetric access.
    pub fn ana_group(&self) -> AnaGroupId {
        self.ana_group
    }

    /// Returns its identifier in the subsystem.
    pub fn nsid(&self) -> Nsid {
        self.nsid
    }

    /// Returns a number that differs from that of each other namespace, also of a later one with
    /// the same identifier. A namespace on a new backing keeps it.
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    /// Returns its UUID, which is its NGUID too.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Returns the backing of its blocks.
    pub fn backing(&self) -> &Arc<dyn Backing> {
        &self.backing
    }

    /// Returns the number of logical blocks.
    pub fn blocks(&self) -> u64 {
        self.geometry.blocks
    }

    /// Returns the base-2 logarithm of the block size in bytes.
    pub fn block_shift(&self) -> u32 {
        self.geometry.block_size.trailing_zeros()
    }

    /// Returns whether acknowledged writes need a flush to be durable.
    pub fn has_write_cache(&self) -> bool {
        self.geometry.has_volatile_cache
    }

    /// Returns whether deallocated blocks read as zeros.
    pub fn reads_zero_after_discard(&self) -> bool {
        self.geometry.discard == DiscardEffect::Zeroes
    }

    /// Returns whether it is permanently write protected.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns whether writes are refused.
    pub fn is_write_protected(&self) -> bool {
        self.common.is_write_protected.load(Ordering::Relaxed)
    }

    /// Protects or unprotects it. Returns false if it is permanently read-only.
    pub(crate) fn set_write_protected(&self, is_protected: bool) -> bool {
        if self.is_read_only && !is_protected {
            return false;
        }
        self.common.is_write_protected.store(is_protected, Ordering::SeqCst);
        true
    }

    /// Restricts the namespace to some of the hosts that may connect to its subsystem: others do
    /// not see it.
    #[must_use]
    pub fn with_hosts(self, hosts: HostAccess) -> Self {
        self.set_hosts(hosts);
        self
    }

    /// Returns the hosts that see it.
    pub fn hosts(&self) -> HostAccess {
        self.common.hosts.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_hosts(&self, hosts: HostAccess) {
        *self.common.hosts.write().unwrap_or_else(PoisonError::into_inner) = hosts;
    }

    /// Returns whether a host sees it. A host without a name sees only namespaces that all hosts
    /// see.
    pub(crate) fn is_for(&self, host: Option<&Nqn>) -> bool {
        self.common.hosts.read().unwrap_or_else(PoisonError::into_inner).allows(host)
    }

    /// Returns the limits per second for all hosts together. A client on the target's own node is
    /// not limited.
    pub fn rate_limits(&self) -> RateLimits {
        self.common.rate.limits()
    }

    /// Replaces the limits. Commands that wait because of the former limits follow the new ones
    /// within a tenth of a second.
    pub fn set_rate_limits(&self, limits: RateLimits) {
        self.common.rate.set(limits);
    }

    pub(crate) fn rate(&self) -> &Rate {
        &self.common.rate
    }

    /// Returns its counts.
    pub fn counts(&self) -> NamespaceCounts {
        self.common.counters.snapshot()
    }

    /// Returns the calling thread's counter of the namespace.
    pub(crate) fn counter(&self) -> Counter {
        self.common.counters.of_thread()
    }

    /// Counts a refused connection or local command.
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
