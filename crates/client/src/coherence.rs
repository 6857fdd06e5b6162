//! Applies what the metadata service grants, recalls and invalidates, in the order of the stream.
//!
//! Everything here up to the first `await` runs while the frame is parsed. Ending a recall may need
//! time (reads under way, dirty data): that part is a task of its own, so that the stream goes on.

use crate::client::Client;
use crate::inode::{Inode, Own, State};
use crate::lent::LentName;
use crate::session::handler::Handler;
use crate::session::handler::PushReply;
use metrics::{Family, Point};
use protocol::client::{
    Answer, Call, ChangeCall, Creation, Name, Push, PushAnswer, ReadCall, Response, SessionCall,
};
use protocol::files::SmallFile;
use protocol::inline::{INLINE_MAX_BYTES, InlineRun};
use protocol::lease::{Grant, Recall, Recalled, Return};
use protocol::space::DeviceInfo;
use protocol::{Attr, Errno, FILE_SIZE_MAX_BYTES, FreeEpoch, InodeId, LeaseStamp, Rights};
use reactor::mailbox::Sender;
use reactor::time::{now, sleep, timeout_at};
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

/// A change by another session that a cache outside of this client may have to follow.
#[derive(Debug)]
pub enum Change {
    /// Data or attributes of an inode changed.
    Inode(InodeId),
    /// Data of an inode may have changed: a message is sent once what is cached of it is dropped.
    Pages(InodeId, Sender<()>),
    /// Attributes of an inode are not to be used any more. To be answered without waiting for anything.
    Attributes {
        /// Which one.
        inode: InodeId,
        /// It is known to be a directory.
        is_directory: bool,
        /// Where to say whether the cache knows the inode.
        known: Sender<bool>,
    },
    /// Names of a directory are not to be used any more: a message is sent once they are dropped.
    Names(InodeId, Vec<LentName>, Sender<()>),
    /// No name of any directory is to be used any more, and no name that an answer on its way carries: the
    /// message says whether that was possible. To be answered without waiting for anything.
    AllNames(Sender<bool>),
}

/// How long a demand for space waits for reads to end.
const READS_PATIENCE: Duration = Duration::from_millis(500);

/// How long commits may take that make space free.
const COMMIT_PATIENCE: Duration = Duration::from_millis(500);

impl Handler for Client {
    fn answered(self: Rc<Self>, call: &Call, response: &Response, is_awaited: bool) {
        // Inodes of which this answer may be cached.
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
                reactor::spawn(self.reclaim(reply, free_epoch));
            }
        }
    }

    fn disconnected(self: Rc<Self>) {
        for inode in self.inodes.borrow().values() {
            inode.drop_read_right();
            self.tell_kernel(inode);
        }
        self.take_back_all();
    }

    fn held(&self) -> Vec<(InodeId, Rights)> {
        let inodes = self.inodes.borrow();
        let held = inodes.values().map(|inode| (inode.id, inode.reclaimable()));
        held.filter(|(_, rights)| !rights.is_empty()).collect()
    }

    fn lost(&self) {
        self.session.life.lose();
        self.space.borrow_mut().clear();
        for inode in self.inodes.borrow().values() {
            inode.lose_rights();
            self.lose_dirty(inode);
            self.tell_kernel(inode);
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
    /// Drops what an inode's users wrote in the session that is lost: they are told.
    fn lose_dirty(&self, inode: &Inode) {
        let mut dirty = inode.dirty.borrow_mut();
        // What failed just before, as targets refused it, is lost with the session as well.
        // So is a lock: what was read under it must not be written back under none.
        if reactor::mutant!("lost-data-untold") {
            dirty.lose_all(Errno::EIO);
            dirty.failures = crate::failures::Failures::default();
            return;
        }
        if !dirty.is_clean()
            || dirty.failures.is_untold()
            || (inode.was_locked.take() && !reactor::mutant!("lock-loss-unnoted"))
        {
            inode.state.borrow_mut().lost_in = self.session.life.stamp();
        }
        dirty.lose_all(Errno::EIO);
        assert!(dirty.is_clean(), "{} has dirty data of a session that is lost", inode.id);
        drop(dirty);
        // Commits that wait for the fills go on, and find nothing.
        inode.written.notify();
    }

    /// A grant tells of an open that has ended here, and whose return it has overtaken, or of one that
    /// nobody waits for any more: it is returned, or the inode would be kept for ever once its last name
    /// has gone.
    fn return_stray_open(&self, grant: &Grant) {
        let Some(inode) = self.known_inode(grant.inode) else { return };
        let mut state = inode.state.borrow_mut();
        let is_told = state.stamp == grant.stamp && grant.rights.contains(Rights::OPEN);
        if is_told && !state.is_open() {
            state.rights = state.rights - Rights::OPEN;
            let (inode, rights, stamp) = (inode.id, Rights::OPEN, grant.stamp);
            self.returns.borrow_mut().push(Return { inode, rights, stamp });
        }
    }

    fn note(&self, attr: &Attr, fresh: &HashSet<InodeId>, explained: bool) {
        if fresh.contains(&attr.inode) {
            self.inode(attr.inode).note_attr(attr, explained);
        } else if let Some(inode) = self.known_inode(attr.inode) {
            inode.note_uncached(attr);
        }
    }

    fn set_entry(
        &self,
        parent: InodeId,
        name: &[u8],
        inode: Option<InodeId>,
        fresh: &HashSet<InodeId>,
    ) {
        let Some(directory) = self.known_inode(parent) else { return };
        let mut state = directory.state.borrow_mut();
        let Some(entries) = state.entries_mut() else { return };
        if fresh.contains(&parent) {
            entries.set(name, inode);
        } else {
            // Another call bars the directory: what this one did to the name is not told again.
            entries.forget(&[name.to_vec()]);
        }
    }

    fn note_answer(&self, call: &Call, answer: &Answer, fresh: &HashSet<InodeId>) {
        match call {
            Call::Session(call) => self.note_session(call, answer, fresh),
            Call::Read(call) => self.note_read(call, answer, fresh),
            Call::Change(call) => self.note_change(call, answer, fresh),
        }
    }

    fn note_session(&self, call: &SessionCall, answer: &Answer, fresh: &HashSet<InodeId>) {
        match call {
            SessionCall::Acquire { .. } => self.note_attr(answer, fresh),
            SessionCall::Start { .. }
            | SessionCall::Reclaim { .. }
            | SessionCall::Heartbeat { .. }
            | SessionCall::Pulse { .. }
            | SessionCall::End
            | SessionCall::Devices
            | SessionCall::Admit(_)
            | SessionCall::GiveBack(_)
            | SessionCall::Sync(_)
            | SessionCall::CancelLock { .. }
            | SessionCall::ReportLocks { .. } => {}
        }
    }

    fn note_read(&self, call: &ReadCall, answer: &Answer, fresh: &HashSet<InodeId>) {
        match call {
            ReadCall::Lookup { parent, name } => match answer {
                Answer::Entry(attr) => self.note_entry(*parent, name, attr, fresh),
                Answer::NoEntry => self.set_entry(*parent, name, None, fresh),
                _ => {}
            },
            ReadCall::ReadDir { inode, .. } => self.note_listing(*inode, answer, fresh),
            ReadCall::ReadExtents { offset, .. } => {
                self.note_extents(*offset, answer, fresh);
            }
            ReadCall::ReadFiles(_) => {
                let Answer::Files(files) = answer else { return };
                files.iter().flatten().for_each(|file| self.note_file(file, fresh));
            }
            ReadCall::GetAttr(_) => self.note_attr(answer, fresh),
            ReadCall::PoolUse
            | ReadCall::ReadLink(_)
            | ReadCall::GetXattr { .. }
            | ReadCall::ListXattr(_)
            | ReadCall::TestLock(_) => {}
        }
    }

    fn note_extents(&self, offset: u64, answer: &Answer, fresh: &HashSet<InodeId>) {
        let Answer::Extents { extents, covered_to, inline, inline_sum, sums, attr, free_epoch } =
            answer
        else {
            return;
        };
        self.session.note_epoch(*free_epoch);
        self.note(attr, fresh, false);
        let may_cache = fresh.contains(&attr.inode) || reactor::mutant!("uncovered-extents-cached");
        if !may_cache || !self.is_right(attr.inode, inline, *inline_sum) {
            return;
        }
        let inode = self.inode(attr.inode);
        let mut state = inode.state.borrow_mut();
        if self.checksum {
            state.set_sums(&extents.0, sums, |device| self.devices.block_size(device));
        }
        state.set_extents(offset, *covered_to, &extents.0);
        if offset < INLINE_MAX_BYTES {
            state.set_head(&inline.0);
            drop(state);
            self.note_head(&inode);
        }
    }

    fn note_change(&self, call: &ChangeCall, answer: &Answer, fresh: &HashSet<InodeId>) {
        match call {
            ChangeCall::Commit { inode, allocations, sums, extents, inline, .. } => match answer {
                Answer::Attr(attr) => {
                    let own = Own { allocations, sums: &sums.0, extents: &extents.0 };
                    self.note_commit(*inode, (own, inline), attr, fresh);
                }
                Answer::NotDurable(attr) => {
                    // What was committed may be lost: those who read it ask.
                    self.note(attr, &HashSet::new(), false);
                    self.inode(*inode).state.borrow_mut().forget_extents();
                }
                _ => {}
            },
            ChangeCall::Compact { inode, allocations, sums, new, .. } => {
                let Answer::Attr(attr) = answer else { return };
                let own = Own { allocations, sums: &sums.0, extents: &new.0 };
                self.note_compact(*inode, own, attr, fresh);
            }
            ChangeCall::Create { parent, name, creation, .. } => {
                let Answer::Entry(attr) = answer else { return };
                self.names_change(*parent);
                self.note_entry(*parent, name, attr, fresh);
                if fresh.contains(&attr.inode) {
                    self.note_created(attr.inode, creation);
                }
            }
            ChangeCall::CreateFiles { parent, files } => {
                let Answer::Made(made) = answer else { return };
                self.names_change(*parent);
                for (file, attr) in files.iter().zip(made) {
                    self.note_entry(*parent, &file.name, attr, fresh);
                }
                self.note_siblings(made.iter(), fresh);
            }
            ChangeCall::Link { parent, name, .. } => {
                let Answer::Entry(attr) = answer else { return };
                self.names_change(*parent);
                self.note_entry(*parent, name, attr, fresh);
            }
            ChangeCall::Unlink { parent, name, .. } | ChangeCall::Rmdir { parent, name } => {
                let Answer::Removed { inode: removed, left } = answer else { return };
                self.names_change(*parent);
                match left {
                    Some(attr) => self.note(attr, fresh, false),
                    None => self.note_unnamed(*removed),
                }
                self.set_entry(*parent, name, None, fresh);
            }
            ChangeCall::Rename { parent, name, new_parent, new_name, .. } => {
                let Answer::Renamed { moved, other, .. } = answer else { return };
                self.names_change(*parent);
                self.names_change(*new_parent);
                self.note_renamed(answer, fresh);
                self.set_entry(*parent, name, other.as_ref().map(|attr| attr.inode), fresh);
                self.set_entry(*new_parent, new_name, Some(moved.inode), fresh);
            }
            ChangeCall::SetAttr { .. }
            | ChangeCall::SetXattr { .. }
            | ChangeCall::RemoveXattr { .. }
            | ChangeCall::Fallocate { .. }
            | ChangeCall::CopyRange { .. } => self.note_attr(answer, fresh),
            ChangeCall::LeaseSpace { .. }
            | ChangeCall::ReturnSpace { .. }
            | ChangeCall::SetLock { .. }
            | ChangeCall::Unlock(_) => {}
        }
    }

    /// All of a small file.
    fn note_file(&self, file: &SmallFile, fresh: &HashSet<InodeId>) {
        self.note(&file.attr, fresh, false);
        // What is wrong is asked for again, alone, by its reader.
        let is_right = self.is_right(file.attr.inode, &file.bytes, file.sum);
        if !fresh.contains(&file.attr.inode) || !is_right {
            return;
        }
        let inode = self.inode(file.attr.inode);
        let mut state = inode.state.borrow_mut();
        state.set_extents(0, FILE_SIZE_MAX_BYTES, &[]);
        state.set_head(&file.bytes.0);
        drop(state);
        self.note_head(&inode);
    }

    fn names_change(&self, directory: InodeId) {
        if let Some(inode) = self.known_inode(directory)
            && !reactor::mutant!("own-changes-keep-listing")
        {
            inode.lent.names_change();
        }
    }

    fn note_attr(&self, answer: &Answer, fresh: &HashSet<InodeId>) {
        if let Answer::Attr(attr) | Answer::Copied { attr, .. } = answer {
            self.note(attr, fresh, false);
        }
    }

    fn note_entry(&self, parent: InodeId, name: &[u8], attr: &Attr, fresh: &HashSet<InodeId>) {
        self.note(attr, fresh, false);
        self.set_entry(parent, name, Some(attr.inode), fresh);
    }

    /// A new inode of this client: all that is in it is known.
    fn note_created(&self, id: InodeId, creation: &Creation) {
        let inode = self.inode(id);
        let mut state = inode.state.borrow_mut();
        state.has_no_xattrs = state.rights.contains(Rights::READ);
        match creation {
            Creation::Directory => {
                if let Some(entries) = state.entries_mut() {
                    entries.set_complete();
                }
            }
            Creation::File => state.know_hole_from(0),
            Creation::Symlink(target) => state.target = Some(target.as_slice().into()),
            Creation::Special(..) => {}
        }
    }

    /// Attributes after a rename: of what moved, of what it was exchanged with, of what it replaced.
    fn note_renamed(&self, answer: &Answer, fresh: &HashSet<InodeId>) {
        let Answer::Renamed { moved, other, replaced } = answer else { return };
        self.note(moved, fresh, false);
        let others = other.iter().chain(replaced.iter().filter_map(|(_, left)| left.as_ref()));
        for attr in others {
            self.note(attr, fresh, false);
        }
        if let Some((replaced, None)) = replaced {
            self.note_unnamed(*replaced);
        }
    }

    fn note_unnamed(&self, id: InodeId) {
        if let Some(inode) = self.known_inode(id) {
            inode.note_unnamed();
        }
    }

    /// Entries of a listing become cached names.
    fn note_listing(&self, id: InodeId, answer: &Answer, fresh: &HashSet<InodeId>) {
        let Answer::Entries { entries, .. } = answer else { return };
        for entry in entries {
            self.note(&entry.attr, fresh, false);
        }
        for entry in entries {
            self.set_entry(id, &entry.name, Some(entry.attr.inode), fresh);
        }
        self.note_siblings(entries.iter().map(|entry| &entry.attr), fresh);
        if !fresh.contains(&id)
            && let Some(directory) = self.known_inode(id)
            && let Some(entries) = directory.state.borrow_mut().entries_mut()
        {
            directory.lent.names_change();
            entries.give_up_listing();
        }
    }

    fn note_commit(
        &self,
        inode: InodeId,
        (own, inline): (Own<'_>, &[InlineRun]),
        attr: &Attr,
        fresh: &HashSet<InodeId>,
    ) {
        let inode = self.inode(inode);
        if !fresh.contains(&inode.id) && !inode.is_older_than(attr) {
            inode.note_generation(attr.generation);
            // What is cached may be from before the commit.
            inode.state.borrow_mut().forget_extents();
            return;
        }
        // If nothing but this commit changed the data, the cached extents stay right.
        let before = inode.committed_attr();
        let alone = before.is_some_and(|old| old.data_version + 1 == attr.data_version)
            || reactor::mutant!("commit-keeps-extents");
        inode.note_attr(attr, alone);
        if alone {
            let mut state = inode.state.borrow_mut();
            self.overlay_own(&mut state, own);
            state.overlay_inline(inline);
            // What was written through the kernel's pages is in them.
            let has_all = before.map(|old| old.data_version) == state.kernel_data_version
                || reactor::mutant!("pages-kept-over-others");
            if has_all && state.kernel_data_version.is_some() && !inode.pages.is_passed_by.get() {
                state.kernel_data_version = Some(attr.data_version);
            }
            drop(state);
            self.note_head(&inode);
        }
    }

    /// Lays own committed extents, and the sums of their blocks, over what is cached.
    fn overlay_own(&self, state: &mut State, own: Own<'_>) {
        let block_size = |device| self.devices.block_size(device);
        if self.checksum && !state.set_own_sums(own, block_size) {
            // A block's sum came with an earlier commit, and went with a right: all is asked for again.
            return state.forget_extents();
        }
        state.overlay_extents(own.extents);
    }

    /// Some of an inode's data lies elsewhere now, and is the same.
    fn note_compact(&self, inode: InodeId, own: Own<'_>, attr: &Attr, fresh: &HashSet<InodeId>) {
        let inode = self.inode(inode);
        if reactor::mutant!("compaction-keeps-own-extents") {
            return;
        }
        let before = inode.committed_attr();
        let is_same = before.is_some_and(|old| old.data_version == attr.data_version);
        if fresh.contains(&inode.id) && is_same {
            inode.note_attr(attr, false);
            self.overlay_own(&mut inode.state.borrow_mut(), own);
        } else {
            inode.note_generation(attr.generation);
            inode.state.borrow_mut().forget_extents();
        }
    }

    /// Others change names of a directory.
    fn invalidate(
        self: Rc<Self>,
        reply: PushReply,
        id: InodeId,
        names: &[Name],
        stamp: LeaseStamp,
    ) {
        let known = self.known_inode(id).filter(|_| !reactor::mutant!("invalidation-ignored"));
        let taken = known.and_then(|inode| {
            inode.invalidate(names, stamp);
            inode.lent.take_names(id, names)
        });
        let Some(taken) = taken else { return answer(reply, &PushAnswer::Done) };
        reactor::spawn(async move {
            self.take_back(taken).await;
            answer(reply, &PushAnswer::Done);
        });
    }

    fn recall(self: Rc<Self>, reply: PushReply, recall: &Recall) {
        let Some(inode) = self.known_inode(recall.inode) else {
            let recalled = Recalled { inode: recall.inode, kept: Rights::NONE };
            answer(reply, &PushAnswer::Recalled(recalled));
            return;
        };
        let counted = metrics::start(Point::new(Family::Return, 0, "rights"), inode.id.0);
        inode.begin_recall(recall.rights, recall.stamp);
        let has_locks = recall.rights.contains(Rights::LOCKS) && self.begin_report(&inode);
        let is_data = recall.rights.intersects(Rights::WRITE | Rights::SIZE);
        // Data does not matter to who is only shown the inode, nor does a commit of it.
        let is_shown = recall.rights.contains(Rights::SOLE)
            && !is_data
            && !inode.dirty.borrow().deferral.is_empty();
        let is_idle = inode.dirty.borrow().is_clean() && inode.names_held.count() == 0;
        let is_read = recall.rights.contains(Rights::READ);
        let taken = if is_read { inode.lent.take_all(inode.id) } else { None };
        let has_pages = is_read && inode.pages.are_stale() && inode.state.borrow().is_open();
        let is_quiet = inode.lease_reads.count() == 0 && taken.is_none() && !has_pages;
        if is_quiet && !is_shown && !has_locks && (!is_data || is_idle) {
            self.end_recall(reply, &inode, recall, false);
            counted.end(0);
            return;
        }
        let recall = recall.clone();
        reactor::spawn(async move {
            if let Some(taken) = taken {
                self.take_back(taken).await;
            }
            if !reactor::mutant!("recall-before-reads") {
                inode.lease_reads.wait_zero().await;
            }
            if is_data && !reactor::mutant!("recall-before-commit") {
                inode.names_held.wait_zero().await;
                // A failure stays with the inode and is told at close or fsync.
                let _ = self.commit(&inode, false).await;
            }
            if has_locks && !reactor::mutant!("recall-before-report") {
                self.report_locks(&inode).await;
            }
            if is_shown {
                let _ = self.publish_attributes(&inode).await;
            }
            let mut is_dropped = false;
            if has_pages && !reactor::mutant!("recall-before-pages") {
                is_dropped = self.drop_stale_pages(&inode).await;
            }
            self.end_recall(reply, &inode, &recall, is_dropped);
            counted.end(0);
        });
    }

    /// Answers a recall. The kernel hears of it, unless it has dropped its pages just before.
    fn end_recall(&self, reply: PushReply, inode: &Rc<Inode>, recall: &Recall, is_dropped: bool) {
        inode.end_recall(recall.stamp);
        let recalled = Recalled { inode: inode.id, kept: inode.kept() };
        answer(reply, &PushAnswer::Recalled(recalled));
        if recall.rights.contains(Rights::READ) && (!is_dropped || inode.pages.are_stale()) {
            self.tell_of_pages(inode);
        }
    }

    /// Space is short: what is leased and unused goes back, and reads are waited for.
    async fn reclaim(self: Rc<Self>, reply: PushReply, free_epoch: FreeEpoch) {
        if !reactor::mutant!("dirty-kept-in-full-pool") {
            self.commit_for_space().await;
        }
        // Files that were deleted while open, and are closed since, hold space too.
        self.give_back().await;
        self.return_unused_space().await;
        self.session.note_epoch(free_epoch);
        // Reads are short. A change that waits for others (who may wait for this space) is not: what
        // it holds back is free a little later.
        let deadline = now() + READS_PATIENCE;
        while self.session.life.ended_through() < free_epoch && now() < deadline {
            sleep(Duration::from_millis(1)).await;
        }
        answer(reply, &PushAnswer::Ended(self.session.life.ended_through()));
    }

    /// Commits what is dirty: the blocks that it replaces come free. Not for long, as a commit may wait for
    /// a device, or for this very space.
    async fn commit_for_space(self: &Rc<Self>) {
        let dirty: Vec<Rc<Inode>> = self.dirty_inodes.borrow().values().cloned().collect();
        let commit = |inode: Rc<Inode>| {
            let client = Rc::clone(self);
            // A failure stays with the inode and is told at close or fsync.
            reactor::spawn(async move { client.commit(&inode, false).await })
        };
        let committing: Vec<_> = dirty.into_iter().map(commit).collect();
        let deadline = now() + COMMIT_PATIENCE;
        for commit in committing {
            if timeout_at(deadline, commit).await.is_err() {
                return;
            }
        }
    }

    /// The user of the library has forgotten `count` of its references to an inode.
    pub fn forget(&self, id: InodeId, count: u64) {
        let Some(inode) = self.known_inode(id) else { return };
        let unused = {
            let mut state = inode.state.borrow_mut();
            state.references = state.references.saturating_sub(count);
            state.references == 0
        };
        if unused {
            self.drop_if_idle(&inode);
        }
    }

    /// Returns how many references the user of the library holds, to all inodes together.
    pub fn references(&self) -> u64 {
        self.inodes.borrow().values().map(|inode| inode.state.borrow().references).sum()
    }

    /// Drops an unused inode and queues its rights to be given back.
    pub(crate) fn drop_inode(&self, id: InodeId) {
        let Some(inode) = self.inodes.borrow_mut().remove(&id) else { return };
        let state = inode.state.borrow();
        if !state.rights.is_empty() {
            // The service may count more than an answer that was lost told of.
            let rights = state.rights | Rights::OPEN | Rights::SOLE;
            self.returns.borrow_mut().push(Return { inode: id, rights, stamp: state.stamp });
        }
    }
}

fn answer(reply: PushReply, answer: &PushAnswer) {
    if let Err((_, error)) = reply.send(answer) {
        tracing::error!(%error, "an answer to the metadata service could not be sent");
    }
}
