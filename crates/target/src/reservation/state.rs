//! The rules of reservations (base 8.1.22) as a state machine: registrants, the reservation, and
//! the effect of each command on them.

use super::REGISTRANTS_MAX;
use nvme::reservation::{ReservationNotice, ReservationType};
use nvme::{HostId, Status};
use std::collections::BTreeMap;

/// A change that a host requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Reservation Register. A key of [`None`] is not compared (IEKEY).
    Register { how: Register, persist: Option<bool> },
    /// Reservation Acquire, Acquire.
    Acquire { key: u64, kind: ReservationType },
    /// Reservation Acquire, Preempt and Preempt and Abort.
    Preempt { key: u64, victims: u64, kind: ReservationType, is_abort: bool },
    /// Reservation Release, Release.
    Release { key: u64, kind: ReservationType },
    /// Reservation Release, Clear.
    Clear { key: u64 },
    /// The feature Reservation Persistence.
    Persist(bool),
}

/// The action of Reservation Register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    Add { new: u64 },
    Remove { key: Option<u64> },
    Replace { key: Option<u64>, new: u64 },
}

/// A notification, and the host whose controllers report it.
pub(crate) type Notice = (HostId, ReservationNotice);

/// The effects of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    pub(super) notices: Vec<Notice>,
    /// The hosts whose commands are aborted.
    pub(super) aborted: Vec<HostId>,
}

/// The access of a command to the medium (the command groups of base figure 672).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The present rights of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(super) may_read: bool,
    pub(super) may_write: bool,
}

impl Rights {
    /// All rights: there is no reservation.
    pub(super) const ALL: Self = Self { may_read: true, may_write: true };

    pub(super) fn allow(self, access: Access) -> bool {
        match access {
            Access::Read => self.may_read,
            Access::Write => self.may_write,
        }
    }
}

/// A reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) kind: ReservationType,
    /// The host that acquired it. With an all-registrants type every registrant is a holder.
    pub(super) by: HostId,
}

/// Registrations and reservation of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    registrants: BTreeMap<HostId, u64>,
    held: Option<Held>,
    /// Counts commands that changed registrations. It wraps, and starts at zero after a restart.
    pub(super) generation: u32,
    /// Whether registrations survive a restart (PTPL).
    pub(super) is_persistent: bool,
}

impl State {
    /// Returns the state with a file's content, or [`None`] if the holder is not a registrant.
    pub(super) fn restored(registrants: BTreeMap<HostId, u64>, held: Option<Held>) -> Option<Self> {
        let is_sound = registrants.len() <= REGISTRANTS_MAX
            && held.is_none_or(|held| registrants.contains_key(&held.by));
        is_sound.then_some(Self { registrants, held, generation: 0, is_persistent: true })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.registrants.is_empty()
    }

    /// Returns the hosts and their keys.
    pub(super) fn registrants(&self) -> impl Iterator<Item = (HostId, u64)> + '_ {
        self.registrants.iter().map(|(&host, &key)| (host, key))
    }

    pub(super) fn held(&self) -> Option<Held> {
        self.held
    }

    /// Returns the type of the reservation, if there is one.
    pub(super) fn kind(&self) -> Option<ReservationType> {
        self.held.map(|held| held.kind)
    }

    pub(super) fn is_holder(&self, host: HostId) -> bool {
        self.held.is_some_and(|held| {
            if held.kind.is_all_registrants() {
                self.registrants.contains_key(&host)
            } else {
                held.by == host
            }
        })
    }

    /// Returns whether the file has to change when `other` replaces this state.
    pub(super) fn is_stored_otherwise(&self, other: &Self) -> bool {
        self.registrants != other.registrants
            || self.held != other.held
            || self.is_persistent != other.is_persistent
    }

    /// Returns the rights of a host (base figure 672).
    pub(super) fn rights(&self, host: HostId) -> Rights {
        let Some(held) = self.held else { return Rights::ALL };
        let has_all = self.is_holder(host)
            || (held.kind.is_for_registrants() && self.registrants.contains_key(&host));
        Rights { may_write: has_all, may_read: has_all || !held.kind.is_exclusive_access() }
    }

    /// Makes a change. The state is undefined if it fails.
    pub(super) fn apply(
        &mut self,
        host: HostId,
        change: Change,
        can_persist: bool,
    ) -> Result<Effects, Status> {
        let effects = match change {
            Change::Register { persist: Some(true), .. } | Change::Persist(true)
                if !can_persist =>
            {
                return Err(Status::INVALID_FIELD.do_not_retry());
            }
            Change::Register { how, persist } => self.register(host, how, persist)?,
            Change::Acquire { key, kind } => self.acquire(host, key, kind)?,
            Change::Preempt { key, victims, kind, is_abort } => {
                self.preempt(host, key, victims, kind, is_abort)?
            }
            Change::Release { key, kind } => self.release(host, key, kind)?,
            Change::Clear { key } => self.clear(host, key)?,
            Change::Persist(persist) => {
                self.is_persistent = persist;
                Effects::default()
            }
        };
        assert!(
            self.held.is_none_or(|held| self.registrants.contains_key(&held.by)),
            "the holder of a reservation must be a registrant: {:?} after {change:?}",
            self.held
        );
        Ok(effects)
    }

    fn register(
        &mut self,
        host: HostId,
        how: Register,
        persist: Option<bool>,
    ) -> Result<Effects, Status> {
        let present = self.registrants.get(&host).copied();
        let is_key = |key: Option<u64>| key.is_none_or(|key| present == Some(key));
        let mut effects = Effects::default();
        match how {
            Register::Add { new } => match present {
                Some(key) if key != new => return Err(conflict()),
                Some(_) => {}
                None => self.add(host, new)?,
            },
            Register::Remove { key } => {
                if present.is_none() || !is_key(key) {
                    return Err(conflict());
                }
                let kind = self.kind();
                self.remove(host);
                // With an all-registrants type the last registrant has left, so no host has to be
                // informed.
                if self.held.is_none() && kind.is_some_and(ReservationType::is_for_registrants) {
                    self.inform_released(host, &mut effects);
                }
            }
            // Without a comparison the host need not be a registrant.
            Register::Replace { key: None, new } if present.is_none() => self.add(host, new)?,
            Register::Replace { key, new } => {
                if present.is_none() || !is_key(key) {
                    return Err(conflict());
                }
                self.registrants.insert(host, new);
            }
        }
        self.is_persistent = persist.unwrap_or(self.is_persistent);
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    fn add(&mut self, host: HostId, key: u64) -> Result<(), Status> {
        if self.registrants.len() >= REGISTRANTS_MAX {
            return Err(Status::INTERNAL_ERROR.do_not_retry());
        }
        self.registrants.insert(host, key);
        Ok(())
    }

    /// Removes a registrant, and the reservation if no holder is left.
    fn remove(&mut self, host: HostId) {
        self.registrants.remove(&host);
        let Some(held) = self.held else { return };
        if held.by != host {
            return;
        }
        let heir = self.registrants.keys().next().copied();
        self.held = match heir {
            Some(by) if held.kind.is_all_registrants() => Some(Held { by, ..held }),
            _ => None,
        };
    }

    fn inform_released(&self, by: HostId, effects: &mut Effects) {
        let others = self.registrants.keys().filter(|&&host| host != by);
        let notice = ReservationNotice::ReservationReleased;
        effects.notices.extend(others.map(|&host| (host, notice)));
    }

    fn check_registrant(&self, host: HostId, key: u64) -> Result<(), Status> {
        if self.registrants.get(&host) == Some(&key) { Ok(()) } else { Err(conflict()) }
    }

    fn acquire(
        &mut self,
        host: HostId,
        key: u64,
        kind: ReservationType,
    ) -> Result<Effects, Status> {
        self.check_registrant(host, key)?;
        match self.held {
            None => self.held = Some(Held { kind, by: host }),
            Some(held) if held.kind == kind && self.is_holder(host) => {}
            Some(_) => return Err(conflict()),
        }
        Ok(Effects::default())
    }

    fn preempt(
        &mut self,
        host: HostId,
        key: u64,
        victims: u64,
        kind: ReservationType,
        is_abort: bool,
    ) -> Result<Effects, Status> {
        self.check_registrant(host, key)?;
        let holder_key = self.held.and_then(|held| self.registrants.get(&held.by)).copied();
        let is_all = self.kind().is_some_and(ReservationType::is_all_registrants);
        let takes_over = match self.held {
            None => false,
            Some(_) if is_all => victims == 0,
            Some(_) => Some(victims) == holder_key,
        };
        if self.held.is_some() && !is_all && !takes_over && victims == 0 {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        let is_victim = |&(other, key): &(HostId, u64)| {
            // A host that preempts the reservation keeps its own registration.
            (key == victims || (takes_over && is_all)) && !(takes_over && other == host)
        };
        let removed: Vec<HostId> =
            self.registrants().filter(is_victim).map(|(other, _)| other).collect();
        if removed.is_empty() && !takes_over {
            return Err(conflict());
        }
        let old = self.held;
        if takes_over {
            self.held = Some(Held { kind, by: host });
        }
        let mut effects = Effects::default();
        for &other in &removed {
            self.remove(other);
            if other != host {
                effects.notices.push((other, ReservationNotice::RegistrationPreempted));
                effects.aborted.extend(is_abort.then_some(other));
            }
        }
        // Also if the reservation ends, for example with the last of all registrants.
        if old.is_some() && self.kind() != old.map(|held| held.kind) {
            self.inform_released(host, &mut effects);
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    fn release(
        &mut self,
        host: HostId,
        key: u64,
        kind: ReservationType,
    ) -> Result<Effects, Status> {
        self.check_registrant(host, key)?;
        let mut effects = Effects::default();
        let Some(held) = self.held.filter(|_| self.is_holder(host)) else { return Ok(effects) };
        if held.kind != kind {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        self.held = None;
        if kind.is_for_registrants() {
            self.inform_released(host, &mut effects);
        }
        Ok(effects)
    }

    fn clear(&mut self, host: HostId, key: u64) -> Result<Effects, Status> {
        self.check_registrant(host, key)?;
        let notice = ReservationNotice::ReservationPreempted;
        let others = self.registrants.keys().filter(|&&other| other != host);
        let notices = others.map(|&other| (other, notice)).collect();
        self.registrants.clear();
        self.held = None;
        self.generation = self.generation.wrapping_add(1);
        Ok(Effects { notices, aborted: Vec::new() })
    }
}

fn conflict() -> Status {
    Status::RESERVATION_CONFLICT.do_not_retry()
}
