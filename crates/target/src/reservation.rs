//! Reservations of a namespace (base 8.1.22): hosts register keys, and one of them (or all of them)
//! may exclude others from writing or reading.
//!
//! The rules are a state machine without I/O ([`State`]). I/O commands do not take its lock: each
//! change raises the namespace's epoch, and each I/O queue pair keeps its host's rights as of the
//! last epoch that it has seen ([`Guard`]). Until the first registration, a command costs one
//! relaxed load.
//!
//! Preempt and Abort completes when the device works on no more commands of the preempted hosts.
//! Commands are not counted for that. Instead each of these hosts' queue pairs gets a [`Ticket`]
//! and attaches it to its running commands; dropping the last ticket wakes the waiting command. A
//! queue pair starts commands and takes tickets on one thread, so a command either sees the new
//! rights or holds the ticket. Reads that had ended before, and whose data is still being sent from
//! a memory namespace, may show later writes.
//!
//! A change with persistence is on stable storage before hosts see it. Changes of one namespace run
//! one after the other.

mod guard;
mod log;
mod state;
mod store;

pub(crate) use guard::{Drained, Guard, Ticket};
pub(crate) use log::NoticeLog;
pub(crate) use state::{Access, Change, Notice, Register};

use crate::error::Error;
use guard::Member;
use nvme::reservation::{RegisteredController, ReservationStatus, ReservationType, rescap};
use nvme::{ControllerId, HostId, Status, U16, U32, U64};
use reactor::Buffer;
use state::{Effects, Rights, State};
use std::future::poll_fn;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use store::Store;

/// Maximum number of registrants of a namespace.
pub const REGISTRANTS_MAX: usize = 256;

/// The registrations and the reservation of one namespace.
#[derive(Debug)]
pub struct Reservations {
    /// Number of the last change; 0 before the first.
    epoch: AtomicU64,
    inner: Mutex<Inner>,
    store: Option<Store>,
}

#[derive(Debug, Default)]
struct Inner {
    state: State,
    /// Whether a change is being made durable.
    is_changing: bool,
    /// Tasks that wait for the end of that change.
    waiters: Vec<Waker>,
    /// The queue pairs that use the namespace.
    members: Vec<Weak<Member>>,
}

impl Inner {
    /// Gives the queue pairs of `hosts` tickets for their running commands. A queue pair finds its
    /// ticket together with the new rights, because both are published under one lock.
    fn abort(&mut self, hosts: &[HostId]) -> Drained {
        let drained = Drained::default();
        if hosts.is_empty() {
            return drained;
        }
        self.members.retain(|member| member.strong_count() > 0);
        for member in self.members.iter().filter_map(Weak::upgrade) {
            if hosts.contains(&member.host()) {
                member.give(drained.ticket());
            }
        }
        drained
    }
}

impl Reservations {
    /// Creates an empty set of registrations in memory, which ends with the target.
    pub fn new() -> Self {
        Self { epoch: AtomicU64::new(0), inner: Mutex::default(), store: None }
    }

    /// Loads the reservations of the namespace with this UUID from `path`. Hosts can request
    /// persistence, and find their registrations again after a restart. A missing file is created.
    ///
    /// # Errors
    /// [`Error::Reservations`] if the file cannot be read or written, is damaged, or belongs to
    /// another namespace.
    pub async fn open(path: &Path, uuid: [u8; 16]) -> Result<Self, Error> {
        let (store, state) = Store::open(path, uuid).await?;
        let epoch = AtomicU64::new(u64::from(!state.is_empty()));
        let inner = Mutex::new(Inner { state, ..Inner::default() });
        Ok(Self { epoch, inner, store: Some(store) })
    }

    /// Returns whether hosts can request that registrations survive a restart.
    pub fn can_persist(&self) -> bool {
        self.store.is_some()
    }

    /// Returns whether registrations survive a restart (PTPL).
    pub(crate) fn is_persistent(&self) -> bool {
        self.inner().state.is_persistent
    }

    /// Returns RESCAP of Identify Namespace.
    pub(crate) fn capabilities(&self) -> u8 {
        let persist = if self.can_persist() { rescap::PERSIST } else { 0 };
        rescap::ALL_TYPES | rescap::IGNORE_EXISTING_KEY | persist
    }

    /// Makes a change on behalf of a host, durably if registrations persist. A failed change has no
    /// effect. The command completes when [`Drained`] does: then all commands that the change
    /// aborts have ended.
    ///
    /// # Errors
    /// The status of the command.
    pub(crate) async fn change(
        &self,
        host: HostId,
        change: Change,
    ) -> Result<(Vec<Notice>, Drained), Status> {
        let turn = self.turn().await;
        let (mut state, old) = {
            let inner = self.inner();
            (inner.state.clone(), inner.state.clone())
        };
        let Effects { notices, aborted } = state.apply(host, change, self.can_persist())?;
        if let Some(store) = &self.store
            && (store.is_uncertain()
                || ((old.is_persistent || state.is_persistent) && old.is_stored_otherwise(&state)))
            && let Err(error) = store.replace(&old, &state).await
        {
            tracing::error!(%error, "a change of reservations is refused");
            return Err(Status::INTERNAL_ERROR);
        }
        let mut inner = self.inner();
        inner.state = state;
        self.epoch.fetch_add(1, Ordering::SeqCst);
        let drained = inner.abort(&aborted);
        drop(inner);
        drop(turn);
        Ok((notices, drained))
    }

    /// Waits until no other change is under way.
    async fn turn(&self) -> Turn<'_> {
        poll_fn(|cx| {
            let mut inner = self.inner();
            if inner.is_changing {
                if !inner.waiters.iter().any(|waiter| waiter.will_wake(cx.waker())) {
                    inner.waiters.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
            inner.is_changing = true;
            Poll::Ready(())
        })
        .await;
        Turn(self)
    }

    /// Returns the data of Reservation Report, `bytes` long.
    pub(crate) fn report(&self, bytes: usize) -> Buffer {
        let inner = self.inner();
        let state = &inner.state;
        let header = ReservationStatus {
            generation: U32::new(state.generation),
            rtype: state.kind().map_or(0, ReservationType::to_u8),
            regctl: U16::new(state.registrants().count() as u16),
            ptpls: u8::from(state.is_persistent),
            ..ReservationStatus::default()
        };
        let mut data = header.bytes().to_vec();
        for (host, key) in state.registrants() {
            let entry = RegisteredController {
                cntlid: U16::new(ControllerId::DYNAMIC.get()),
                rcsts: u8::from(state.is_holder(host)),
                rkey: U64::new(key),
                hostid: host.0,
                ..RegisteredController::default()
            };
            data.extend_from_slice(entry.bytes());
        }
        data.resize(bytes, 0);
        Buffer::copy_from(&data)
    }

    fn rights(&self, host: HostId) -> (u64, Rights) {
        let inner = self.inner();
        (self.epoch.load(Ordering::SeqCst), inner.state.rights(host))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Each change is complete in itself: the state stays sound if a holder of the lock panics.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Reservations {
    fn default() -> Self {
        Self::new()
    }
}

/// The exclusive right to make a change.
struct Turn<'a>(&'a Reservations);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.inner();
        inner.is_changing = false;
        let waiters = std::mem::take(&mut inner.waiters);
        drop(inner);
        waiters.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn register(reservations: &Reservations, host: u8, key: u64) -> Result<(), Status> {
        let how = Register::Replace { key: None, new: key };
        let change = Change::Register { how, persist: Some(true) };
        reservations.change(HostId([host; 16]), change).await.map(drop)
    }

    /// Goal: a change is refused if the sync of the directory fails, and the file then has the old
    /// content. If it cannot be restored, the next change is refused unless it can be saved.
    #[test]
    fn a_refused_change_does_not_stay_in_the_file() {
        let name = format!("tsumugi-refused-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("file");
        reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(async {
            let reservations = Reservations::open(&path, [7; 16]).await.unwrap();
            let store = reservations.store.as_ref().unwrap();
            let failures = &store.failures;
            let is_in_file = async || {
                let again = Reservations::open(&path, [7; 16]).await.unwrap();
                !again.inner().state.is_stored_otherwise(&reservations.inner().state)
            };
            let add = Change::Register { how: Register::Add { new: 1 }, persist: Some(true) };
            reservations.change(HostId([1; 16]), add).await.unwrap();
            failures.store(1, Ordering::Relaxed);
            assert_eq!(register(&reservations, 1, 2).await, Err(Status::INTERNAL_ERROR));
            assert!(is_in_file().await && !store.is_uncertain(), "the old content is restored");
            failures.store(4, Ordering::Relaxed);
            for _ in 0..2 {
                assert_eq!(register(&reservations, 1, 3).await, Err(Status::INTERNAL_ERROR));
                assert!(store.is_uncertain(), "the restored content may be lost in a crash");
            }
            failures.store(2, Ordering::Relaxed);
            let same = register(&reservations, 1, 1).await;
            assert_eq!(same, Err(Status::INTERNAL_ERROR), "it has to be saved too");
            assert!(register(&reservations, 1, 1).await.is_ok() && is_in_file().await);
            assert!(!store.is_uncertain());
            assert!(register(&reservations, 1, 4).await.is_ok() && is_in_file().await);
        });
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
