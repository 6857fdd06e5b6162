//! The base of transactions: the store, the finished transactions that wait for the next group
//! commit, and the state that is kept in memory of both.

use super::transaction::Finished;
use crate::records::{Counters, Key, SessionRecord, corrupt, decode, key_number};
use crate::space::{SpaceEffect, SpaceIndex};
use crate::store::overlay::Overlay;
use crate::store::{Direction, Error, Pair, Scan, Store};
use protocol::{FreeEpoch, InodeId, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// Number of records that a walk through a prefix reads at a time.
const WALK_CHUNK: usize = 1024;

/// The store with the finished transactions over it.
pub(crate) struct Layers {
    pub(crate) store: Box<dyn Store>,
    pub(crate) pending: Overlay,
}

impl Layers {
    /// Returns the value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self.pending.get(key) {
            Some(value) => Ok(value.clone()),
            None => self.store.get(key),
        }
    }

    /// Returns the records of a scan.
    pub(crate) fn scan(&self, scan: Scan<'_>) -> Result<Vec<Pair>, Error> {
        self.pending.scan(scan, |scan| self.store.scan(scan))
    }

    /// Calls `visit` with each record whose key begins with `prefix`.
    pub(crate) fn each(
        &self,
        prefix: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut from: Option<Vec<u8>> = None;
        loop {
            let direction = Direction::Forward;
            let scan = Scan { prefix, from: from.as_deref(), direction, limit: WALK_CHUNK };
            let found = self.scan(scan)?;
            for (key, value) in &found {
                visit(key, value)?;
            }
            match found.into_iter().last() {
                Some((mut key, _)) => {
                    key.push(0);
                    from = Some(key);
                }
                None => return Ok(()),
            }
        }
    }
}

/// A session in the core.
#[derive(Clone, Debug)]
pub(crate) struct SessionState {
    pub(crate) record: SessionRecord,
    /// All reads that the session began under extents from before this epoch have ended.
    pub(crate) ended_through: FreeEpoch,
}

/// A change that a finished transaction makes to the state in memory.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    Space(SpaceEffect),
    Dead(InodeId),
    Gone(InodeId),
    Truncating(InodeId),
    Truncated(InodeId),
    Opened(InodeId, SessionId),
    Closed(InodeId, SessionId),
    Session(SessionId, Box<SessionRecord>),
    SessionGone(SessionId),
}

impl Effect {
    /// Returns whether it changes the index of space.
    pub(crate) fn is_of_space(&self) -> bool {
        matches!(self, Effect::Space(_) | Effect::SessionGone(_))
    }
}

/// The state that a transaction sees.
pub(crate) struct Base {
    pub(crate) layers: Layers,
    pub(crate) counters: Counters,
    pub(crate) space: SpaceIndex,
    pub(crate) sessions: BTreeMap<SessionId, SessionState>,
    /// The sessions that have an inode without a name open.
    pub(crate) open_orphans: BTreeMap<InodeId, BTreeSet<SessionId>>,
    /// Inodes that must be freed.
    pub(crate) dead: BTreeSet<InodeId>,
    /// Inodes with an unfinished truncation.
    pub(crate) truncating: BTreeSet<InodeId>,
    /// No resting record has an epoch below this.
    pub(crate) resting_from: FreeEpoch,
}

impl Base {
    /// Loads the state that is kept in memory.
    pub(crate) fn load(layers: Layers, counters: Counters) -> Result<Base, Error> {
        let space = SpaceIndex::load(&layers, counters.flush_epoch)?;
        let mut sessions = BTreeMap::new();
        layers.each(&Key::Session(SessionId(0)).prefix(0), |key, value| {
            let record: SessionRecord = decode(key, value)?;
            let id = SessionId(key_number(key, 0)?);
            if id.0 >= counters.next_session || record.epoch.0 >= counters.next_epoch {
                return Err(corrupt(key, "its number or epoch was not given out"));
            }
            let state = SessionState { record, ended_through: FreeEpoch(0) };
            sessions.insert(id, state);
            Ok(())
        })?;
        let mut open_orphans: BTreeMap<InodeId, BTreeSet<SessionId>> = BTreeMap::new();
        layers.each(&Key::OpenOrphan(InodeId(0), SessionId(0)).prefix(0), |key, _| {
            let session = SessionId(key_number(key, 1)?);
            open_orphans.entry(InodeId(key_number(key, 0)?)).or_default().insert(session);
            Ok(())
        })?;
        let mut dead = BTreeSet::new();
        layers.each(&Key::Dead(InodeId(0)).prefix(0), |key, _| {
            dead.insert(InodeId(key_number(key, 0)?));
            Ok(())
        })?;
        let mut truncating = BTreeSet::new();
        layers.each(&Key::Truncating(InodeId(0)).prefix(0), |key, _| {
            if !reactor::mutant!("cut-forgotten") {
                truncating.insert(InodeId(key_number(key, 0)?));
            }
            Ok(())
        })?;
        let resting_from = FreeEpoch(0);
        Ok(Base { layers, counters, space, sessions, open_orphans, dead, truncating, resting_from })
    }

    /// Returns an error if a finished transaction contradicts the state in memory, which damaged
    /// records can cause. That numbers only grow is asserted, because it depends on the service
    /// alone.
    pub(crate) fn check(&self, finished: &Finished) -> Result<(), Error> {
        let (old, new) = (&self.counters, &finished.counters);
        assert!(
            new.next_inode >= old.next_inode
                && new.next_session >= old.next_session
                && new.next_device >= old.next_device
                && new.next_epoch >= old.next_epoch
                && new.free_epoch >= old.free_epoch
                && new.flush_epoch >= old.flush_epoch,
            "a number that was given out would be given out again: {old:?}, then {new:?}"
        );
        let effects: Vec<SpaceEffect> = finished
            .effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Space(effect) => Some(*effect),
                _ => None,
            })
            .collect();
        if effects.is_empty() { Ok(()) } else { self.space.check(&effects) }
    }

    /// Applies an effect of a finished transaction.
    pub(crate) fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Space(effect) => self.space.apply(effect),
            Effect::Dead(inode) => {
                self.dead.insert(inode);
            }
            Effect::Gone(inode) => {
                let was_dead = self.dead.remove(&inode);
                assert!(was_dead, "{inode} is gone, but was not dead");
            }
            Effect::Truncating(inode) => {
                self.truncating.insert(inode);
            }
            Effect::Truncated(inode) => {
                self.truncating.remove(&inode);
            }
            Effect::Opened(inode, session) => {
                self.open_orphans.entry(inode).or_default().insert(session);
            }
            Effect::Closed(inode, session) => {
                let is_open =
                    self.open_orphans.get(&inode).is_some_and(|all| all.contains(&session));
                assert!(is_open, "{session} closes {inode}, which it does not hold open");
                if let Some(sessions) = self.open_orphans.get_mut(&inode) {
                    sessions.remove(&session);
                    if sessions.is_empty() {
                        self.open_orphans.remove(&inode);
                    }
                }
            }
            Effect::Session(session, record) => {
                let epoch = self.counters.free_epoch;
                let state = self.sessions.entry(session).or_insert_with(|| SessionState {
                    record: (*record).clone(),
                    // A new session has no old reads.
                    ended_through: epoch,
                });
                assert!(
                    (state.record.host, state.record.epoch) == (record.host, record.epoch)
                        && (record.is_void || !state.record.is_void),
                    "{session} would be another: {:?}, then {record:?}",
                    state.record
                );
                state.record = *record;
            }
            Effect::SessionGone(session) => {
                let was_known = self.sessions.remove(&session).is_some();
                assert!(was_known, "{session} has ended, and was not there");
                self.space.forget_session(session);
            }
        }
    }
}
