//! All that a session holds on one inode, of both families, as it goes from one table to another.

use super::{LockTable, Party, Place};
use protocol::lock::{Lock, LockFamily, LockOwner};
use protocol::{InodeId, SessionId};

/// Owners on an inode that are looked at to see whether all are of one session.
const OWNERS_MAX: usize = 64;

fn places(inode: InodeId) -> [Place; 2] {
    [(inode, LockFamily::Flock), (inode, LockFamily::Posix)]
}

impl LockTable {
    /// Returns the locks that a session holds on an inode if nobody else holds one there and nobody waits,
    /// and they are few: at most `count_max`.
    pub fn alone(&self, session: SessionId, inode: InodeId, count_max: usize) -> Option<Vec<Lock>> {
        let queues = || places(inode).into_iter().filter_map(|place| self.places.get(&place));
        let is_alone = queues().all(|queue| {
            let mut owners = queue.held.parties();
            queue.waits.is_empty()
                && owners.len() <= OWNERS_MAX
                && owners.all(|party| party.session == session)
        });
        let count: usize = queues().map(|queue| queue.held.len()).sum();
        (is_alone && count <= count_max).then(|| self.held(session, inode))
    }

    /// Returns all locks that a session holds on an inode.
    pub fn held(&self, session: SessionId, inode: InodeId) -> Vec<Lock> {
        let queues = places(inode).into_iter().filter_map(|place| self.places.get(&place));
        queues.flat_map(|queue| queue.held.of_session(session)).collect()
    }

    /// Releases all that a session holds on an inode.
    pub fn clear(&mut self, session: SessionId, inode: InodeId) {
        for place in places(inode) {
            let Some(queue) = self.places.get(&place) else { continue };
            let mut owners: Vec<Party> = queue.held.parties().copied().collect();
            owners.retain(|party| party.session == session);
            for party in owners {
                let (inode, family) = place;
                let owner = party.owner;
                let mode = protocol::lock::LockMode::Exclusive;
                let all = Lock { inode, family, owner, start: 0, last: u64::MAX, mode, pid: 0 };
                self.release(party, &all);
            }
            self.serve(place);
        }
    }

    /// Whether another session holds a lock on an inode.
    pub fn is_shared(&self, session: SessionId, inode: InodeId) -> bool {
        let queues = places(inode).into_iter().filter_map(|place| self.places.get(&place));
        queues.into_iter().any(|queue| queue.held.parties().any(|party| party.session != session))
    }

    /// Holds a lock that its session has granted itself, as it alone decided about the inode's. Returns false
    /// if it cannot have done so, as another stands against it, its range is empty, or they are too many.
    #[must_use]
    pub fn report(&mut self, session: SessionId, lock: Lock) -> bool {
        let lock = super::whole(lock);
        let party = Party { session, owner: lock.owner };
        let others = self.places.get(&(lock.inode, lock.family));
        let stands_against = |lock: &Lock| {
            others.is_some_and(|queue| queue.held.against(party, lock).next().is_some())
        };
        // So many are granted by the service, and so many by the session itself.
        let count_max = 2 * super::LOCKS_PER_SESSION;
        let is_many = self.counts.get(&session).is_some_and(|count| *count >= count_max);
        if lock.start > lock.last || is_many || stands_against(&lock) {
            return false;
        }
        self.hold(party, lock);
        true
    }

    /// Returns the owners of a session on an inode whose locks are not stored as they are.
    pub fn unstored(&self, session: SessionId, inode: InodeId) -> Vec<(LockFamily, LockOwner)> {
        let mut owners = Vec::new();
        for place in places(inode) {
            let Some(queue) = self.places.get(&place) else { continue };
            owners.extend(queue.held.unstored(session).map(|owner| (place.1, owner)));
        }
        owners
    }
}
