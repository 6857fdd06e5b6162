//! All locks of a session on one inode, of both families, for their move from one table to another.

use super::{LockScope, LockTable, Party};
use protocol::lock::{Lock, LockFamily, LockOwner};
use protocol::{InodeId, SessionId};

/// Most owners on an inode that are checked for belonging to one session.
const OWNERS_MAX: usize = 64;

fn scopes(inode: InodeId) -> [LockScope; 2] {
    [(inode, LockFamily::Flock), (inode, LockFamily::Posix)]
}

impl LockTable {
    /// Returns the locks that a session holds on an inode if no other session holds or awaits one
    /// there, and there are at most `count_max`.
    pub fn alone(&self, session: SessionId, inode: InodeId, count_max: usize) -> Option<Vec<Lock>> {
        let queues = || scopes(inode).into_iter().filter_map(|scope| self.scopes.get(&scope));
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
        let queues = scopes(inode).into_iter().filter_map(|scope| self.scopes.get(&scope));
        queues.flat_map(|queue| queue.held.of_session(session)).collect()
    }

    /// Releases all locks that a session holds on an inode.
    pub fn clear(&mut self, session: SessionId, inode: InodeId) {
        for scope in scopes(inode) {
            let Some(queue) = self.scopes.get(&scope) else { continue };
            let mut owners: Vec<Party> = queue.held.parties().copied().collect();
            owners.retain(|party| party.session == session);
            for party in owners {
                let (inode, family) = scope;
                let owner = party.owner;
                let mode = protocol::lock::LockMode::Exclusive;
                let all = Lock { inode, family, owner, start: 0, last: u64::MAX, mode, pid: 0 };
                self.release(party, &all);
            }
            self.serve(scope);
        }
    }

    /// Returns whether another session holds a lock on an inode.
    pub fn is_shared(&self, session: SessionId, inode: InodeId) -> bool {
        let queues = scopes(inode).into_iter().filter_map(|scope| self.scopes.get(&scope));
        queues.into_iter().any(|queue| queue.held.parties().any(|party| party.session != session))
    }

    /// Adds a lock that its session granted itself while it alone decided about the inode's locks.
    /// Returns false if the session cannot have done so: another lock conflicts, the range is
    /// empty, or there are too many locks.
    #[must_use]
    pub fn report(&mut self, session: SessionId, lock: Lock) -> bool {
        let lock = super::whole(lock);
        let party = Party { session, owner: lock.owner };
        let others = self.scopes.get(&(lock.inode, lock.family));
        let conflicts = |lock: &Lock| {
            others.is_some_and(|queue| queue.held.against(party, lock).next().is_some())
        };
        // Limit for the locks that the service grants, and the same again for those of the session
        // itself.
        let count_max = 2 * super::LOCKS_PER_SESSION;
        let is_many = self.counts.get(&session).is_some_and(|count| *count >= count_max);
        if lock.start > lock.last || is_many || conflicts(&lock) {
            return false;
        }
        self.hold(party, lock);
        true
    }

    /// Returns the owners of a session on an inode whose stored locks are out of date.
    pub fn unstored(&self, session: SessionId, inode: InodeId) -> Vec<(LockFamily, LockOwner)> {
        let mut owners = Vec::new();
        for scope in scopes(inode) {
            let Some(queue) = self.scopes.get(&scope) else { continue };
            owners.extend(queue.held.unstored(session).map(|owner| (scope.1, owner)));
        }
        owners
    }
}
