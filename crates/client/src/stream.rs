//! Applies what the metadata service grants, recalls and invalidates, in the order of the stream.
//!
//! Everything here up to the first `await` runs while the frame is parsed. Ending a recall may need
//! time (reads under way, dirty data): that part is a task of its own, so that the stream goes on.

mod answers;
mod recalls;
mod reclaim;
pub(crate) mod working;

use crate::client::Client;
use crate::dirty::failures::Failures;
use crate::inode::Inode;
use crate::session::handler::{Handler, PushReply, answer};
use protocol::client::{Answer, Call, ChangeCall, Push, PushAnswer, Response};
use protocol::space::DeviceInfo;
use protocol::{Errno, InodeId, LeaseStamp, Rights};
use std::collections::HashSet;
use std::rc::Rc;

impl Handler for Client {
    fn answered(self: Rc<Self>, call: &Call, response: &Response, is_awaited: bool) {
        // Inodes whose part of this answer may be cached.
        let mut fresh = HashSet::new();
        for grant in &response.grants {
            if self.inode(grant.inode).grant(grant) {
                fresh.insert(grant.inode);
            }
        }
        self.note_locks(call, response);
        for attr in response.changed.iter().filter(|_| !reactor::mutant!("own-change-unnoted")) {
            self.note(attr, &fresh, false);
        }
        if let (Call::Change(ChangeCall::Create { rights, .. }), Ok(Answer::Entry(attr))) =
            (call, &response.result)
            && rights.contains(Rights::OPEN)
            && is_awaited
        {
            self.inode(attr.inode).state.borrow_mut().being_opened = true;
        }
        if let Ok(answer) = &response.result {
            self.note_answer(call, answer, &fresh);
        }
        response.grants.iter().for_each(|grant| self.return_stray_open(grant));
        if call.changes() {
            let moved = match &response.result {
                Ok(Answer::Renamed { moved, other, .. }) => {
                    [Some(moved.inode), other.map(|o| o.inode)]
                }
                _ => [None, None],
            };
            let directories = response.changed.iter().map(|attr| attr.inode);
            Client::changed_here(&self, directories.chain(moved.into_iter().flatten()));
        }
    }

    fn pushed(self: Rc<Self>, push: Push, reply: PushReply) {
        match push {
            Push::Recall(recall) => self.recall(reply, &recall),
            Push::Invalidate { inode, names, stamp } => {
                self.invalidate(reply, inode, &names, stamp);
            }
            Push::Lost(device) => {
                tracing::error!(%device, "the device has lost data that was committed and not flushed");
                if !reactor::mutant!("loss-push-ignored") {
                    self.forget_extents();
                }
                answer(reply, &PushAnswer::Done);
            }
            Push::Devices(devices) => {
                self.update_devices(devices);
                answer(reply, &PushAnswer::Done);
            }
            Push::Reclaim { free_epoch } => {
                self.session.life.advance(free_epoch);
                reactor::spawn(self.reclaim(reply, free_epoch));
            }
        }
    }

    fn disconnected(self: Rc<Self>) {
        for inode in self.inodes.borrow().values() {
            inode.drop_read_right();
            self.invalidate_kernel_pages(inode);
        }
        self.take_back_all();
    }

    fn held(&self) -> Vec<(InodeId, Rights)> {
        let inodes = self.inodes.borrow();
        let held = inodes.values().map(|inode| (inode.id, inode.reclaimable()));
        held.filter(|(_, rights)| !rights.is_empty()).collect()
    }

    fn working_on(&self) -> Vec<LeaseStamp> {
        self.working_on.stamps()
    }

    fn lost(&self) {
        self.session.life.lose();
        self.space.borrow_mut().clear();
        for inode in self.inodes.borrow().values() {
            inode.lose_rights();
            self.lose_dirty(inode);
            self.invalidate_kernel_pages(inode);
        }
        self.dirty_inodes.borrow_mut().clear();
        self.lose_locks();
        self.devices.forget_connections();
    }

    fn devices(&self, devices: Vec<DeviceInfo>) {
        self.update_devices(devices);
    }
}

impl Client {
    /// Drops what was written in the session that is lost; the inode's handles report it.
    fn lose_dirty(&self, inode: &Inode) {
        let mut dirty = inode.dirty.borrow_mut();
        // Failures from just before, when targets refused writes, belong to the lost session as
        // well. So does a lock: data read under it must not be written back without it.
        if reactor::mutant!("lost-data-untold") {
            dirty.lose_all(Errno::EIO);
            dirty.failures = Failures::default();
            return;
        }
        if !dirty.is_clean()
            || dirty.failures.has_unreported()
            || (inode.was_locked.take() && !reactor::mutant!("lock-loss-unnoted"))
        {
            inode.state.borrow_mut().lost_in = self.session.life.stamp();
        }
        dirty.lose_all(Errno::EIO);
        assert!(dirty.is_clean(), "{} has dirty data of a session that is lost", inode.id);
        drop(dirty);
        // Commits that wait for the fills continue, and find nothing.
        inode.written.notify();
    }
}
