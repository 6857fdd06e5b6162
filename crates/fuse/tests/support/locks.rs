//! Byte range locks of the in-memory file system.

use fuse::{LockKind, LockOwner, LockRequest, NodeId};

/// A lock that is held.
#[derive(Debug, Clone, Copy)]
struct Held {
    node: NodeId,
    is_flock: bool,
    owner: LockOwner,
    start: u64,
    end: u64,
    kind: LockKind,
    pid: u32,
}

/// All locks that are held.
#[derive(Debug, Default)]
pub struct Locks(Vec<Held>);

impl Locks {
    /// Returns a conflicting lock.
    pub fn conflict(&self, node: NodeId, wanted: &LockRequest) -> Option<fuse::Lock> {
        let found = self.0.iter().find(|held| {
            held.node == node
                && held.is_flock == wanted.is_flock
                && held.owner != wanted.owner
                && held.start <= wanted.end
                && wanted.start <= held.end
                && (held.kind == LockKind::Write || wanted.kind == LockKind::Write)
        })?;
        let Held { start, end, kind, pid, .. } = *found;
        Some(fuse::Lock { start, end, kind, pid })
    }

    /// Replaces an owner's locks of a range by a new lock.
    pub fn set(&mut self, node: NodeId, wanted: &LockRequest) {
        let LockRequest { owner, start, end, kind, pid, is_flock, .. } = *wanted;
        let mut kept = Vec::new();
        for held in self.0.drain(..) {
            let is_same = held.node == node && held.is_flock == is_flock && held.owner == owner;
            if !is_same || held.start > end || start > held.end {
                kept.push(held);
                continue;
            }
            if held.start < start {
                kept.push(Held { end: start - 1, ..held });
            }
            if held.end > end {
                kept.push(Held { start: end + 1, ..held });
            }
        }
        if kind != LockKind::Unlock {
            kept.push(Held { node, is_flock, owner, start, end, kind, pid });
        }
        self.0 = kept;
    }

    /// Drops all locks of an owner.
    pub fn drop_all(&mut self, node: NodeId, owner: LockOwner, is_flock: bool) {
        self.0.retain(|held| held.node != node || held.owner != owner || held.is_flock != is_flock);
    }
}
