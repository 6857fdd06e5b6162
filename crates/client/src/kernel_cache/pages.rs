//! The kernel's page cache: when it holds, and how it is dropped.
//!
//! The kernel keeps pages of bytes that were read, and of bytes that were written through it. They
//! hold as long as this client holds READ. When the service recalls READ, the client has the kernel
//! drop them before it answers, if nothing stands in the way. The kernel waits for pages that are
//! being read or written, so for requests that this client has yet to answer, and these may wait for
//! the answer to the recall. A client with such requests waits only for [`PATIENCE`], from the moment
//! at which the kernel has begun. Without them, or before that moment, the machine is only busy, and
//! the client waits longer ([`Client::drop_wait_max`]).
//!
//! A drop that takes longer goes on. It counts when it is done, and no other request follows it: each
//! makes the kernel ignore the answers with attributes that are on their way to it.

use crate::change::{Change, Dropping, PageDrop};
use crate::client::Client;
use crate::inode::Inode;
use crate::inode::pages::ON_ITS_WAY;
use protocol::inline::INLINE_MAX_BYTES;
use protocol::{Attr, FileKind, InodeId, Rights};
use reactor::local::InFlight;
use reactor::mailbox::Receiver;
use reactor::time::{Instant, now, sleep, timeout, timeout_at};
use std::rc::Rc;
use std::time::Duration;

/// How long a recall waits until pages are dropped, if something may stand in the way that itself
/// waits for the call that recalls: longer than it takes without an obstacle.
const PATIENCE: Duration = Duration::from_millis(20);

/// The session deadline divided by this is the longest wait until pages are dropped. The answer to
/// the recall must come well before that deadline.
const DEADLINE_PART: u32 = 20;

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

    /// Has the kernel drop its pages before a recall of READ is answered, and waits for it unless
    /// something stands in the way.
    pub(crate) async fn drop_stale_pages(&self, inode: &Rc<Inode>) -> PageDrop {
        if !inode.pages.are_stale() {
            return PageDrop::Refused;
        }
        let stale = inode.pages.stale.get();
        let Some(mut reports) = self.ask_to_drop(inode) else { return PageDrop::Refused };
        let dropped = self.follow(inode, &mut reports).await;
        match dropped {
            PageDrop::Done => inode.pages.note_dropped(stale),
            PageDrop::Late => follow_late(Rc::clone(inode), stale, reports),
            PageDrop::Refused => return dropped,
        }
        inode.pages.asked.set(inode.pages.asked.get().max(stale));
        dropped
    }

    /// Asks the kernel to drop its pages. The returned channel reports how far it is.
    fn ask_to_drop(&self, inode: &Inode) -> Option<Receiver<Dropping>> {
        let changes = self.changes.as_ref()?;
        inode.pages.drop_requested.set(Some(now()));
        let (done, reports) = reactor::mailbox::channel(Dropping::REPORTS_MAX);
        changes(Change::Pages(inode.id, done));
        Some(reports)
    }

    /// Returns the longest wait until pages are dropped.
    fn drop_wait_max(&self) -> Duration {
        PATIENCE.max(self.session.times().session_deadline / DEADLINE_PART)
    }

    /// Waits until pages are dropped, or something stands in the way for too long.
    async fn follow(&self, inode: &Inode, reports: &mut Receiver<Dropping>) -> PageDrop {
        let is_hasty = reactor::mutant!("busy-kernel-outrun");
        let latest = now() + if is_hasty { PATIENCE } else { self.drop_wait_max() };
        let soon = || latest.min(now() + PATIENCE);
        let (mut until, mut is_hindered) = (latest, false);
        loop {
            match timeout_at(until, reports.recv()).await {
                Ok(Some(Dropping::Done)) => return PageDrop::Done,
                Ok(Some(dropping)) => {
                    is_hindered = dropping == Dropping::Hindered;
                    until = soon();
                }
                Ok(None) => return PageDrop::Refused,
                Err(_) if is_hindered || until >= latest => return PageDrop::Late,
                Err(_) if inode.pages.users.count() > 0 => return PageDrop::Late,
                // It has many pages to drop, or no processor.
                Err(_) => until = soon(),
            }
        }
    }

    /// Waits for pages of a file that the kernel drops too late for an answer to a recall, so that
    /// its callers see no attributes that are newer than these pages. The wait is short if
    /// requests may stand in the way.
    pub async fn late_drops_end(&self, id: InodeId) {
        let Some(inode) = self.known_inode(id) else { return };
        if inode.pages.late_drops.count() == 0 || reactor::mutant!("late-drop-outrun") {
            return;
        }
        let latest = now() + self.drop_wait_max();
        while timeout(PATIENCE, inode.pages.late_drops.wait_zero()).await.is_err() {
            if now() >= latest || inode.pages.users.count() > 0 {
                return;
            }
        }
    }

    /// Waits until the kernel has dropped pages that others may have changed since it read them.
    pub(crate) async fn freshen(self: &Rc<Self>, id: InodeId) {
        let Some(inode) = self.known_inode(id) else { return };
        if !inode.pages.are_stale() || reactor::mutant!("lock-unvalidated") {
            return;
        }
        // Each further request would make the kernel ignore attributes on their way.
        inode.pages.late_drops.wait_zero().await;
        if !inode.pages.are_stale() {
            return;
        }
        let stale = inode.pages.stale.get();
        let rounds = self.rounds();
        loop {
            let Some(mut reports) = self.ask_to_drop(&inode) else { return };
            // No report comes if too much waits to be dropped, or nothing is mounted any more.
            if is_done(&mut reports).await || rounds.begin().is_err() {
                break;
            }
            sleep(RETRY).await;
        }
        inode.pages.note_dropped(stale);
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

    /// Returns whether the kernel knows the end of a file after the answer to its creation, which
    /// has these attributes. Others may have changed the file since then.
    pub fn kernel_learns_end(&self, attr: &Attr) -> bool {
        let Some(inode) = self.known_inode(attr.inode) else { return false };
        let is_held = inode.state.borrow().rights.contains(Rights::READ);
        let is_current =
            is_held && inode.committed_attr().is_some_and(|known| known.size == attr.size);
        if is_current && !inode.pages.have_writers() {
            inode.pages.is_shared.set(false);
        }
        is_current
    }

    /// Notes that the kernel asks for bytes of its pages, until the returned value is dropped.
    pub fn reads_through_pages(&self, id: InodeId) -> InFlight {
        let inode = self.inode(id);
        inode.pages.read_through.set(Some(now()));
        inode.pages.users.enter()
    }

    /// Notes a request for which the kernel may have locked pages, until the returned value is
    /// dropped.
    pub fn uses_pages(&self, id: InodeId) -> InFlight {
        self.inode(id).pages.users.enter()
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
            if self.drop_stale_pages(&inode).await != PageDrop::Done {
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

/// Notes when pages are dropped for which nothing waits.
fn follow_late(inode: Rc<Inode>, stale: u64, mut reports: Receiver<Dropping>) {
    let late = inode.pages.late_drops.enter();
    drop(reactor::spawn(async move {
        if is_done(&mut reports).await && !reactor::mutant!("late-drop-uncounted") {
            inode.pages.note_dropped(stale);
        }
        inode.pages.late_drop_ended.set(Some(now()));
        drop(late);
    }));
}

/// Waits until pages are dropped, however long that takes. Returns false if they will not be.
async fn is_done(reports: &mut Receiver<Dropping>) -> bool {
    loop {
        match reports.recv().await {
            Some(Dropping::Done) => return true,
            Some(Dropping::Hindered | Dropping::Begun) => {}
            None => return false,
        }
    }
}
