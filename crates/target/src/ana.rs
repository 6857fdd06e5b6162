//! Asymmetric namespace access (base 8.1.1): how well hosts reach each group of namespaces through
//! this target.
//!
//! A subsystem without [`Subsystem::with_ana`](crate::Subsystem::with_ana) reports no ANA. With it,
//! the state of a group holds for all controllers that this target creates for the subsystem.
//! Another target of the same subsystem has states of its own, so one path can be better than the
//! other. A command reads its group's state with one load. A change stores the state and raises a
//! generation; controllers compare generations to find out that they have to notify hosts.

use crate::error::Error;
use crate::namespace::Namespace;
use crate::subsystem::Subsystem;
use crate::target::Target;
use nvme::log_page::{AnaGroup, AnaHeader, AnaState};
use nvme::{Nqn, Status, U16, U32, U64};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Largest identifier of a group (ANAGRPMAX), and number of groups (NANAGRPID).
pub const ANA_GROUPS_MAX: u32 = 128;
/// ANATT: the maximum time in seconds that a group stays in the state "change".
pub(crate) const TRANSITION_SECONDS: u8 = 10;
/// ANACAP: all five states are reported (bits 0 to 4), and a namespace stays in its group (bit 6).
pub(crate) const CAPABILITIES: u8 = 0b101_1111;

/// Identifier of a group of namespaces, 1 to [`ANA_GROUPS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AnaGroupId(u32);

impl AnaGroupId {
    /// The group of namespaces without an explicit group.
    pub const DEFAULT: Self = Self(1);

    /// Returns the group with this number, if it is from 1 to [`ANA_GROUPS_MAX`].
    pub fn new(number: u32) -> Option<Self> {
        (1..=ANA_GROUPS_MAX).contains(&number).then_some(Self(number))
    }

    /// Returns the group's number.
    pub fn get(self) -> u32 {
        self.0
    }

    fn index(self) -> usize {
        self.0 as usize - 1
    }
}

impl fmt::Display for AnaGroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ANA group {}", self.0)
    }
}

impl FromStr for AnaGroupId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let group = text.parse().ok().and_then(Self::new);
        group.ok_or_else(|| format!("{text:?} is no ANA group: they are 1 to {ANA_GROUPS_MAX}"))
    }
}

/// The states of a subsystem's groups.
#[derive(Debug)]
pub(crate) struct AnaGroups {
    states: Vec<AtomicU8>,
    /// The generation at each group's last change.
    changes: Vec<AtomicU64>,
    generation: AtomicU64,
}

impl AnaGroups {
    /// Creates the states. Groups that `initial` does not name are optimized.
    pub(crate) fn new(initial: &BTreeMap<AnaGroupId, AnaState>) -> Self {
        let of = |number| {
            let state = initial.get(&AnaGroupId(number)).copied();
            AtomicU8::new(state.unwrap_or(AnaState::Optimized).to_u8())
        };
        Self {
            states: (1..=ANA_GROUPS_MAX).map(of).collect(),
            changes: (1..=ANA_GROUPS_MAX).map(|_| AtomicU64::new(1)).collect(),
            // 0 would mean that changes are not counted.
            generation: AtomicU64::new(1),
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    pub(crate) fn state(&self, group: AnaGroupId) -> AnaState {
        let state = AnaState::from_u8(self.states[group.index()].load(Ordering::SeqCst));
        // Only valid states are ever stored.
        state.unwrap_or(AnaState::Inaccessible)
    }

    /// Sets the state of a group. Returns whether it has changed.
    fn set(&self, group: AnaGroupId, state: AnaState) -> bool {
        let before = self.states[group.index()].swap(state.to_u8(), Ordering::SeqCst);
        if before == state.to_u8() {
            return false;
        }
        // After the state: a controller that sees the new generation must find the new state.
        let generation = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
        self.changes[group.index()].fetch_max(generation, Ordering::SeqCst);
        true
    }

    /// Returns the status for I/O commands on namespaces of the group, if the state forbids them.
    /// Do Not Retry is never set, so the host may try another path.
    pub(crate) fn refusal(&self, group: AnaGroupId) -> Option<Status> {
        match self.state(group) {
            AnaState::Optimized | AnaState::NonOptimized => None,
            AnaState::Inaccessible => Some(Status::ANA_INACCESSIBLE),
            AnaState::PersistentLoss => Some(Status::ANA_PERSISTENT_LOSS),
            AnaState::Change => Some(Status::ANA_TRANSITION),
        }
    }
}

impl Subsystem {
    /// Makes the subsystem report asymmetric access. Groups that `initial` does not name are
    /// optimized.
    #[must_use]
    pub fn with_ana(mut self, initial: &BTreeMap<AnaGroupId, AnaState>) -> Self {
        self.ana = Some(AnaGroups::new(initial));
        self
    }

    /// Returns the state of a group, or [`None`] for a subsystem that reports no asymmetric access.
    pub fn ana_state(&self, group: AnaGroupId) -> Option<AnaState> {
        self.ana.as_ref().map(|ana| ana.state(group))
    }

    /// Sets the state of a group. Returns whether it has changed. The new state applies to commands
    /// that arrive from now on; commands that have begun still end with their own status. The
    /// caller has to notify the controllers, as for [`Self::add_namespace`];
    /// [`Target::set_ana_state`] does both.
    ///
    /// # Errors
    /// [`Error::NoAna`] for a subsystem that reports no asymmetric access.
    pub fn set_ana_state(&self, group: AnaGroupId, state: AnaState) -> Result<bool, Error> {
        match &self.ana {
            Some(ana) => Ok(ana.set(group, state)),
            None => Err(Error::NoAna(self.nqn().clone())),
        }
    }

    pub(crate) fn ana(&self) -> Option<&AnaGroups> {
        self.ana.as_ref()
    }

    /// Checks that hosts reach all of these namespaces through this target.
    ///
    /// # Errors
    /// The status for I/O commands on the first namespace that hosts cannot reach.
    pub(crate) fn check_access<'a>(
        &self,
        namespaces: impl IntoIterator<Item = &'a Arc<Namespace>>,
    ) -> Result<(), Status> {
        let Some(ana) = &self.ana else { return Ok(()) };
        let refused = |it: &'a Arc<Namespace>| ana.refusal(it.ana_group());
        namespaces.into_iter().find_map(refused).map_or(Ok(()), Err)
    }

    /// Returns the number of the last change of the states of ANA groups.
    pub(crate) fn ana_generation(&self) -> u64 {
        self.ana.as_ref().map_or(0, AnaGroups::generation)
    }

    /// Returns the ANA log page (base 5.1.12.1.13) of the namespaces that a host sees, and a
    /// generation: the page shows at least the states of that generation. `is_groups_only` leaves
    /// out the namespace identifiers (RGO).
    pub(crate) fn ana_page(
        &self,
        ana: &AnaGroups,
        seen: &[Arc<Namespace>],
        is_groups_only: bool,
    ) -> (Vec<u8>, u64) {
        let generation = self.ana_generation();
        let mut members: BTreeMap<AnaGroupId, Vec<u32>> = BTreeMap::new();
        for namespace in seen {
            members.entry(namespace.ana_group()).or_default().push(namespace.nsid().get());
        }
        let header = AnaHeader {
            chgcnt: U64::new(generation + self.generation()),
            ngrps: U16::new(members.len() as u16),
            ..AnaHeader::default()
        };
        let mut page = header.bytes().to_vec();
        for (group, mut nsids) in members {
            if is_groups_only {
                nsids.clear();
            }
            let descriptor = AnaGroup {
                agid: U32::new(group.get()),
                nnsid: U32::new(nsids.len() as u32),
                chgcnt: U64::new(ana.changes[group.index()].load(Ordering::SeqCst)),
                state: ana.state(group).to_u8(),
                ..AnaGroup::default()
            };
            page.extend_from_slice(descriptor.bytes());
            page.extend(nsids.iter().flat_map(|nsid| nsid.to_le_bytes()));
        }
        (page, generation)
    }
}

impl Target {
    /// Sets the state of a group of a subsystem's namespaces and notifies hosts. Returns whether it
    /// has changed.
    ///
    /// # Errors
    /// [`Error::NoSubsystem`], [`Error::NoAna`].
    pub fn set_ana_state(
        &self,
        nqn: &Nqn,
        group: AnaGroupId,
        state: AnaState,
    ) -> Result<bool, Error> {
        let subsystem = self.subsystems().into_iter().find(|subsystem| subsystem.nqn() == nqn);
        let subsystem = subsystem.ok_or_else(|| Error::NoSubsystem(nqn.clone()))?;
        let is_changed = subsystem.set_ana_state(group, state)?;
        if is_changed {
            self.notify_controllers();
        }
        Ok(is_changed)
    }
}
