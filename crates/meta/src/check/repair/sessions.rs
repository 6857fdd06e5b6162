//! Sessions and their records: leases of space, slots, locks, opens of inodes without a name.

use super::Repair;
use crate::records::{
    DurableLock, Key, Mark, Resting, SessionRecord, SlotRecord, SpaceLease, key_number,
};
use crate::store::Error;
use protocol::lock::{LockFamily, LockOwner};
use protocol::{DeviceId, FreeEpoch, InodeId, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// The sessions, and what they hold.
#[derive(Default)]
pub(super) struct Known {
    pub(super) all: BTreeSet<SessionId>,
    /// Inodes without a name that sessions have open, as far as is known.
    pub(super) opens: BTreeMap<InodeId, Vec<Vec<u8>>>,
    /// Leases of sessions, in the order of their keys.
    pub(super) leases: Vec<(Vec<u8>, SpaceLease)>,
    pub(super) resting: Vec<(Vec<u8>, Resting)>,
    /// The record of a session is damaged: the session may still write to unknown blocks, and no
    /// fence reaches it.
    pub(super) is_partly_unknown: bool,
}

impl Repair {
    /// Reads sessions, and removes records of sessions that do not exist.
    pub(super) fn sessions(&mut self) -> Result<Known, Error> {
        let sessions = self.all::<SessionRecord>(&Key::Session(SessionId(0)), 1)?;
        let mut known = Known { is_partly_unknown: !sessions.bad.is_empty(), ..Known::default() };
        self.remove_bad(&sessions.bad, "sessions")?;
        for (key, record) in sessions.sound {
            let id = key_number(&key, 0)?;
            self.found.last_session = self.found.last_session.max(id);
            self.found.last_epoch = self.found.last_epoch.max(record.epoch.0);
            known.all.insert(SessionId(id));
        }
        let slots = self.all::<SlotRecord>(&Key::Slot(SessionId(0), 0), 2)?;
        self.remove_bad(&slots.bad, "answers that sessions may ask for again")?;
        let keys: Vec<_> = slots.sound.into_iter().map(|(key, _)| key).collect();
        self.keep_of_sessions(&known, keys, 0, "answers")?;
        let any = Key::Lock(SessionId(0), InodeId(0), LockFamily::Flock, LockOwner(0), 0);
        let locks = self.all::<DurableLock>(&any, 2)?;
        self.remove_bad(&locks.bad, "file locks")?;
        let keys: Vec<_> = locks.sound.into_iter().map(|(key, _)| key).collect();
        self.keep_of_sessions(&known, keys, 0, "file locks")?;
        self.opens(&mut known)?;
        let leases = self.all::<SpaceLease>(&Key::SpaceLease(SessionId(0), DeviceId(0), 0), 3)?;
        self.remove_bad(&leases.bad, "leased space")?;
        known.leases = leases.sound;
        let resting = self.all::<Resting>(&Key::Resting(FreeEpoch(0)), 1)?;
        self.remove_bad(&resting.bad, "freed space")?;
        for (key, _) in &resting.sound {
            self.found.free_epoch = self.found.free_epoch.max(key_number(key, 0)?);
        }
        known.resting = resting.sound;
        Ok(known)
    }

    fn opens(&mut self, known: &mut Known) -> Result<(), Error> {
        let opens = self.all::<Mark>(&Key::OpenOrphan(InodeId(0), SessionId(0)), 2)?;
        self.remove_bad(&opens.bad, "opens")?;
        let keys: Vec<_> = opens.sound.into_iter().map(|(key, _)| key).collect();
        for key in self.keep_of_sessions(known, keys, 1, "opens")? {
            known.opens.entry(InodeId(key_number(&key, 0)?)).or_default().push(key);
        }
        Ok(())
    }

    /// Removes records of sessions that do not exist; returns the keys of the others.
    fn keep_of_sessions(
        &mut self,
        known: &Known,
        keys: Vec<Vec<u8>>,
        place: usize,
        what: &str,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let mut kept = Vec::with_capacity(keys.len());
        let mut removed = 0;
        for key in keys {
            if known.all.contains(&SessionId(key_number(&key, place)?)) {
                kept.push(key);
            } else {
                removed += usize::from(self.remove(&key)?);
            }
        }
        if removed > 0 {
            self.note(format!(
                "{removed} records of {what} were removed because their sessions do not exist"
            ));
        }
        Ok(kept)
    }
}
