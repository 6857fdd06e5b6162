//! The kernel's page cache: when it holds, and how it is dropped.
//!
//! The kernel keeps pages of bytes that were read, and of bytes that were written through it. They
//! hold as long as this client holds READ. When the service recalls READ, the client has the kernel
//! drop them before it answers, if that is possible soon: the kernel waits for pages that are being
//! read or written ([`PATIENCE`]).

use crate::change::Change;
use crate::client::Client;
use crate::inode::Inode;
use crate::inode::pages::ON_ITS_WAY;
use protocol::inline::INLINE_MAX_BYTES;
use protocol::{Attr, FileKind, InodeId, Rights};
use reactor::local::InFlight;
use reactor::time::{Instant, now, sleep, timeout};
use std::rc::Rc;
use std::time::Duration;

/// How long a recall waits until pages are dropped: longer than that takes if nothing stands in the
/// way. (An obstacle may itself wait for the call that recalls.)
const PATIENCE: Duration = Duration::from_millis(20);

/// Pause before the kernel is asked again to drop pages.
const RETRY: Duration = Duration::from_millis(5);

impl Client {
    /// Has the kernel drop its pages of an inode that has lost READ: no more changes are reported.
    pub(crate) fn invalidate_kernel_pages(&self, inode: &Inode) {
        if reactor::mutant!("lost-data-in-pages") {
            return;
        }
        let has_pages = {
            let mut state = inode.state.borrow_mut();
            state.kernel_data_version.take().is_some() || state.is_open()
        };
        if has_pages {
            self.send_pages_invalidation(inode);
        }
    }

    /// Has the kernel drop its pages, without waiting for it.
    pub(crate) fn send_pages_invalidation(&self, inode: &Inode) {
        inode.pages.drop_requested.set(Some(now()));
        if let Some(changes) = &self.changes {
            changes(Change::Inode(inode.id));
        }
    }

    /// Has the kernel drop its pages before a recall of READ is answered. Returns whether it has;
    /// something may stand in its way.
    pub(crate) async fn drop_stale_pages(&self, inode: &Inode) -> bool {
        let stale = inode.pages.stale.get();
        let Some(changes) = self.changes.as_ref().filter(|_| inode.pages.are_stale()) else {
            return false;
        };
        inode.pages.drop_requested.set(Some(now()));
        let (done, mut dropped) = reactor::mailbox::channel(1);
        changes(Change::Pages(inode.id, done));
        let is_dropped = matches!(timeout(PATIENCE, dropped.recv()).await, Ok(Some(())));
        if is_dropped {
            inode.pages.dropped.set(inode.pages.dropped.get().max(stale));
        }
        is_dropped
    }

    /// Waits until the kernel has dropped pages that others may have changed since it read them.
    pub(crate) async fn freshen(self: &Rc<Self>, id: InodeId) {
        let Some(inode) = self.known_inode(id) else { return };
        if !inode.pages.are_stale() || reactor::mutant!("lock-unvalidated") {
            return;
        }
        let stale = inode.pages.stale.get();
        let Some(changes) = &self.changes else { return };
        let rounds = self.rounds();
        loop {
            inode.pages.drop_requested.set(Some(now()));
            let (done, mut dropped) = reactor::mailbox::channel(1);
            changes(Change::Pages(id, done));
            // No answer comes if too much waits to be dropped, or nothing is mounted any more.
            if dropped.recv().await.is_some() || rounds.begin().is_err() {
                break;
            }
            sleep(RETRY).await;
        }
        inode.pages.dropped.set(inode.pages.dropped.get().max(stale));
    }

    /// Returns whether the kernel may keep its pages of a file that is opened now, and use them.
    pub fn keeps_cache(&self, attr: &Attr) -> bool {
        if attr.kind != FileKind::File {
            return false;
        }
        let inode = self.inode(attr.inode);
        let before = inode.state.borrow_mut().kernel_data_version.replace(attr.data_version);
        // A write past the pages is in the next version only when it is committed.
        let is_kept = before == Some(attr.data_version) && !inode.pages.is_passed_by.get();
        if !is_kept {
            // A page that is read now lacks data that this client has not gathered yet.
            let is_passing =
                inode.pages.passing.count() > 0 && !reactor::mutant!("passing-forgotten");
            inode.pages.is_passed_by.set(is_passing);
            inode.pages.drop_requested.set(Some(now()));
        }
        is_kept
    }

    /// Notes an open for writing through the kernel's pages, until the returned value is dropped.
    pub fn writes_through_pages(&self, id: InodeId) -> InFlight {
        self.inode(id).pages.writers.enter()
    }

    /// Notes that a file is opened past the kernel's pages, which makes the kernel drop them.
    pub fn opened_past_pages(&self, id: InodeId) {
        self.inode(id).pages.drop_requested.set(Some(now()));
    }

    /// Returns whether the kernel knows the end of a file that it uses through its pages. During a
    /// write that goes further, it takes no size from answers.
    pub fn kernel_knows_end(&self, id: InodeId) -> bool {
        let Some(inode) = self.known_inode(id) else { return false };
        let is_current = inode.state.borrow().rights.contains(Rights::READ);
        if inode.pages.have_writers() {
            return is_current && !inode.pages.is_shared.get();
        }
        inode.pages.is_shared.set(false);
        is_current && (inode.lent.has_attributes() || reactor::mutant!("end-assumed"))
    }

    /// Notes that the kernel asks for bytes of its pages.
    pub fn reads_through_pages(&self, id: InodeId) {
        self.inode(id).pages.read_through.set(Some(now()));
    }

    /// Ends a write past the kernel's pages that arrived at `came`. A user of the pages may have
    /// read some without these bytes, because the kernel drops pages before it sends the write, and
    /// not after it.
    pub async fn written_past(&self, id: InodeId, came: Instant) {
        let inode = self.inode(id);
        let is_read = inode.pages.read_through.get().is_some_and(|at| at + ON_ITS_WAY > came)
            && !reactor::mutant!("passed-reads-left");
        if (inode.pages.have_writers() || is_read) && !reactor::mutant!("passed-pages-left") {
            inode.pages.mark_stale();
            self.drop_stale_pages(&inode).await;
            inode.pages.fill();
        }
    }

    /// Notes a write past the kernel's pages, until the returned value is dropped.
    pub fn pass_pages_by(&self, id: InodeId) -> InFlight {
        let inode = self.inode(id);
        inode.pages.is_passed_by.set(!reactor::mutant!("passed-pages-kept"));
        inode.pages.passing.enter()
    }

    /// Ends a write through the kernel's pages that arrived at `came`. The pages had its bytes
    /// before.
    pub async fn written_through(&self, id: InodeId, came: Instant) {
        let inode = self.inode(id);
        if !reactor::mutant!("written-pages-forgotten") {
            inode.pages.fill();
        }
        if inode.pages.may_lack_write(came) && !reactor::mutant!("overtaking-read-kept") {
            inode.pages.mark_stale();
            if !self.drop_stale_pages(&inode).await {
                inode.state.borrow_mut().kernel_data_version = None;
            }
            // Other pages may have been written meanwhile.
            inode.pages.fill();
        }
    }

    /// Returns all bytes of a small file, for the kernel to put into its pages when the file is
    /// opened for reading. They must be cached, the kernel must know the file's end, and no other
    /// handle may be open here.
    pub fn bytes_for_pages(&self, attr: &Attr) -> Option<Vec<u8>> {
        let inode = self.known_inode(attr.inode)?;
        let knows_end =
            self.kernel_knows_end(inode.id) || reactor::mutant!("stored-past-known-end");
        let state = inode.state.borrow();
        // Pages of an open file may be locked by reads that this thread would have to answer.
        let is_alone = state.opens <= 1 || reactor::mutant!("stored-beside-others");
        let (committed, extents) = state.extents(0, attr.size)?;
        let is_whole = (1..=INLINE_MAX_BYTES).contains(&attr.size)
            && extents.is_empty()
            && committed == *attr
            && inode.dirty.borrow().is_clean();
        if !(is_alone && knows_end && is_whole && self.session.life.is_alive()) {
            return None;
        }
        let mut bytes = state.head().to_vec();
        bytes.resize(attr.size as usize, 0);
        inode.pages.note_read();
        Some(bytes)
    }
}
