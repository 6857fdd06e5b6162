//! Answers recalls of rights, and invalidations of names.

use crate::change::PageDrop;
use crate::client::Client;
use crate::inode::Inode;
use crate::session::handler::{PushReply, answer};
use metrics::{Family, Point};
use protocol::client::{Name, PushAnswer};
use protocol::lease::{Recall, Recalled};
use protocol::{InodeId, LeaseStamp, Rights};
use std::rc::Rc;

impl Client {
    /// Begins a recall, and ends it at once or in a task of its own.
    pub(crate) fn recall(self: Rc<Self>, reply: PushReply, recall: &Recall) {
        let Some(inode) = self.known_inode(recall.inode) else {
            let recalled = Recalled { inode: recall.inode, kept: Rights::NONE };
            answer(reply, &PushAnswer::Recalled(recalled));
            return;
        };
        let counted = metrics::start(Point::new(Family::Return, 0, "rights"), inode.id.0);
        inode.begin_recall(recall.rights, recall.stamp);
        let has_locks = recall.rights.contains(Rights::LOCKS) && self.begin_report(&inode);
        let is_data = recall.rights.intersects(Rights::WRITE | Rights::SIZE);
        // Another session is about to see the inode. Its data does not matter for that, nor a
        // commit of it.
        let is_shown = recall.rights.contains(Rights::SOLE)
            && !is_data
            && !inode.dirty.borrow().deferral.is_empty();
        let is_idle = inode.dirty.borrow().is_clean() && inode.names_held.count() == 0;
        let is_read = recall.rights.contains(Rights::READ);
        let leaving = inode.lent.leaving_until().filter(|_| is_read);
        let taken = if is_read { inode.lent.take_all(inode.id) } else { None };
        let has_pages = is_read && inode.pages.are_stale() && inode.state.borrow().is_open();
        let is_lent = taken.is_some() || leaving.is_some();
        let is_quiet = inode.lease_reads.count() == 0 && !is_lent && !has_pages;
        if is_quiet && !is_shown && !has_locks && (!is_data || is_idle) {
            self.end_recall(reply, &inode, recall, PageDrop::Refused);
            counted.end(0);
            return;
        }
        let recall = recall.clone();
        reactor::spawn(async move {
            if let Some(taken) = taken {
                self.take_back(taken).await;
            }
            if let Some(until) = leaving {
                inode.lent.left(until).await;
            }
            if !reactor::mutant!("recall-before-reads") {
                self.working_on.during(recall.stamp, inode.lease_reads.wait_zero()).await;
            }
            if is_data && !reactor::mutant!("recall-before-commit") {
                inode.names_held.wait_zero().await;
                // A failure stays with the inode; close or fsync reports it.
                let commit = self.commit(&inode, false);
                let _ = self.working_on.during(recall.stamp, commit).await;
            }
            if has_locks && !reactor::mutant!("recall-before-report") {
                self.working_on.during(recall.stamp, self.report_locks(&inode)).await;
            }
            if is_shown {
                let publish = self.publish_attributes(&inode);
                let _ = self.working_on.during(recall.stamp, publish).await;
            }
            let mut dropped = PageDrop::Refused;
            if has_pages && !reactor::mutant!("recall-before-pages") {
                dropped = self.drop_stale_pages(&inode).await;
            }
            self.end_recall(reply, &inode, &recall, dropped);
            counted.end(0);
        });
    }

    /// Answers a recall. Has the kernel drop its pages, unless it has just done so or will soon.
    fn end_recall(&self, reply: PushReply, inode: &Rc<Inode>, recall: &Recall, dropped: PageDrop) {
        inode.end_recall(recall.stamp);
        let recalled = Recalled { inode: inode.id, kept: inode.kept() };
        answer(reply, &PushAnswer::Recalled(recalled));
        let is_asked = dropped != PageDrop::Refused && inode.pages.are_asked();
        if recall.rights.contains(Rights::READ) && !is_asked {
            self.send_pages_invalidation(inode);
        }
    }

    /// Drops names of a directory that others change, and takes them back from the kernel.
    pub(crate) fn invalidate(
        self: Rc<Self>,
        reply: PushReply,
        id: InodeId,
        names: &[Name],
        stamp: LeaseStamp,
    ) {
        let known = self.known_inode(id).filter(|_| !reactor::mutant!("invalidation-ignored"));
        let Some(inode) = known else { return answer(reply, &PushAnswer::Done) };
        inode.invalidate(names, stamp);
        // Of what another push has taken out, the kernel may still use some.
        let leaving = inode.lent.leaving_until();
        let taken = inode.lent.take_names(id, names);
        if taken.is_none() && leaving.is_none() {
            return answer(reply, &PushAnswer::Done);
        }
        reactor::spawn(async move {
            if let Some(taken) = taken {
                self.take_back(taken).await;
            }
            if let Some(until) = leaving {
                inode.lent.left(until).await;
            }
            answer(reply, &PushAnswer::Done);
        });
    }
}
