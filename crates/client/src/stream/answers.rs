//! Applies answers: what each brings into the caches.

use crate::client::Client;
use crate::inode::state::State;
use crate::inode::summed::OwnCommit;
use protocol::client::{Answer, Call, ChangeCall, Creation, ReadCall, SessionCall};
use protocol::files::SmallFile;
use protocol::inline::{INLINE_MAX_BYTES, InlineRun};
use protocol::lease::{Grant, Return};
use protocol::{Attr, FILE_SIZE_MAX_BYTES, InodeId, Rights};
use std::collections::HashSet;

impl Client {
    /// Applies an answer to a call. `fresh` has the inodes whose part of the answer may be cached.
    pub(crate) fn note_answer(&self, call: &Call, answer: &Answer, fresh: &HashSet<InodeId>) {
        match call {
            Call::Session(call) => self.note_session(call, answer, fresh),
            Call::Read(call) => self.note_read(call, answer, fresh),
            Call::Change(call) => self.note_change(call, answer, fresh),
        }
    }

    /// Applies an answer to a call about the session.
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

    /// Applies an answer to a call that reads.
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

    /// Applies an answer to a call that changes something.
    fn note_change(&self, call: &ChangeCall, answer: &Answer, fresh: &HashSet<InodeId>) {
        match call {
            ChangeCall::Commit { inode, allocations, sums, extents, inline, .. } => match answer {
                Answer::Attr(attr) => {
                    let own = OwnCommit { allocations, sums: &sums.0, extents: &extents.0 };
                    self.note_commit(*inode, own, inline, attr, fresh);
                }
                Answer::NotDurable(attr) => {
                    // What was committed may be lost: readers ask again.
                    self.note(attr, &HashSet::new(), false);
                    self.inode(*inode).state.borrow_mut().forget_extents();
                }
                _ => {}
            },
            ChangeCall::Compact { inode, allocations, sums, new, .. } => {
                let Answer::Attr(attr) = answer else { return };
                let own = OwnCommit { allocations, sums: &sums.0, extents: &new.0 };
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
                // The next message in the stream may take the name back from its new place.
                self.move_lent((*parent, name), (*new_parent, new_name), other.is_some());
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

    /// Notes attributes; they are cached if the inode is fresh.
    pub(crate) fn note(&self, attr: &Attr, fresh: &HashSet<InodeId>, explained: bool) {
        if fresh.contains(&attr.inode) {
            self.inode(attr.inode).note_attr(attr, explained);
        } else if let Some(inode) = self.known_inode(attr.inode) {
            inode.note_uncached(attr);
        }
    }

    /// Notes the attributes in an answer that has only these.
    fn note_attr(&self, answer: &Answer, fresh: &HashSet<InodeId>) {
        if let Answer::Attr(attr) | Answer::Copied { attr, .. } = answer {
            self.note(attr, fresh, false);
        }
    }

    /// Notes an entry of a directory, with the attributes of its inode.
    fn note_entry(&self, parent: InodeId, name: &[u8], attr: &Attr, fresh: &HashSet<InodeId>) {
        self.note(attr, fresh, false);
        self.set_entry(parent, name, Some(attr.inode), fresh);
    }

    /// Notes what a name of a cached directory names.
    pub(crate) fn set_entry(
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
            let absent = entries.set(name, inode);
            drop(state);
            if let Some(name) = absent {
                self.note_absent(parent, name);
            }
        } else {
            // Another call changes the directory too: no invalidation repeats what this call did.
            entries.forget(&[name.to_vec()]);
        }
    }

    /// Caches extents, with their checksums and inline bytes.
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

    /// Caches all of a small file.
    fn note_file(&self, file: &SmallFile, fresh: &HashSet<InodeId>) {
        self.note(&file.attr, fresh, false);
        // Its reader fetches a wrong file again, alone.
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

    /// Caches the entries of a listing as names.
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

    /// Notes a new inode of this client: everything in it is known.
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

    /// Notes attributes after a rename: of the moved inode, of the one it was exchanged with, and
    /// of the one it replaced.
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

    /// Notes that this client has removed the last name of an inode.
    fn note_unnamed(&self, id: InodeId) {
        if let Some(inode) = self.known_inode(id) {
            inode.note_unnamed();
        }
    }

    /// Notes that names of a directory change, for its lent listing.
    fn names_change(&self, directory: InodeId) {
        if let Some(inode) = self.known_inode(directory)
            && !reactor::mutant!("own-changes-keep-listing")
        {
            inode.lent.names_change();
        }
    }

    /// Notes a commit of this client: what it named is now the file's.
    fn note_commit(
        &self,
        inode: InodeId,
        own: OwnCommit<'_>,
        inline: &[InlineRun],
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
        // If only this commit changed the data, the cached extents stay right.
        let before = inode.committed_attr();
        let alone = before.is_some_and(|old| old.data_version + 1 == attr.data_version)
            || reactor::mutant!("commit-keeps-extents");
        inode.note_attr(attr, alone);
        if alone {
            let mut state = inode.state.borrow_mut();
            self.overlay_own(&mut state, own);
            state.overlay_inline(inline);
            // The kernel's pages have what was written through them.
            let has_all = before.map(|old| old.data_version) == state.kernel_data_version
                || reactor::mutant!("pages-kept-over-others");
            if has_all && state.kernel_data_version.is_some() && !inode.pages.is_passed_by.get() {
                state.kernel_data_version = Some(attr.data_version);
            }
            drop(state);
            self.note_head(&inode);
        }
    }

    /// Notes that some of an inode's data lies elsewhere now, and is the same.
    fn note_compact(
        &self,
        inode: InodeId,
        own: OwnCommit<'_>,
        attr: &Attr,
        fresh: &HashSet<InodeId>,
    ) {
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

    /// Lays this client's committed extents, and the checksums of their blocks, over what is
    /// cached.
    fn overlay_own(&self, state: &mut State, own: OwnCommit<'_>) {
        let block_size = |device| self.devices.block_size(device);
        if self.checksum && !state.set_own_sums(own, block_size) {
            // A block's checksum came with an earlier commit, and was dropped with a right. Ask for
            // all again.
            return state.forget_extents();
        }
        state.overlay_extents(own.extents);
    }

    /// Returns a stray OPEN. A grant may report an open that has ended here, when it has overtaken
    /// the return, or an open whose caller has given up. If OPEN were kept, the service would keep
    /// the inode for ever once its last name has gone.
    pub(crate) fn return_stray_open(&self, grant: &Grant) {
        let Some(inode) = self.known_inode(grant.inode) else { return };
        let mut state = inode.state.borrow_mut();
        let is_reported = state.stamp == grant.stamp && grant.rights.contains(Rights::OPEN);
        if is_reported && !state.is_open() {
            state.rights = state.rights - Rights::OPEN;
            let (inode, rights, stamp) = (inode.id, Rights::OPEN, grant.stamp);
            self.returns.borrow_mut().push(Return { inode, rights, stamp });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::inode::lent::LentEntry;
    use crate::lifecycle::tests::alone;
    use crate::session::Handler;
    use protocol::attr::Layout;
    use protocol::client::{Answer, Call, ChangeCall, OpenTold, RenameMode, Response};
    use protocol::{Attr, FileKind, Generation, InodeId, Timestamp};
    use reactor::time::now;
    use std::rc::Rc;
    use std::time::Duration;

    const ROOT: InodeId = InodeId::ROOT;

    /// Goal: names that the kernel moves are lent in their new places once the answer is read from
    /// the stream. The service's next message may already take them back.
    #[test]
    fn moved_names_are_lent_in_the_order_of_the_stream() {
        for is_exchange in [false, true] {
            let scene = async move {
                let client = alone();
                let lent = |is_directory| LentEntry {
                    until: now() + Duration::from_secs(5),
                    lent_at: now(),
                    is_directory,
                };
                let root = client.inode(ROOT);
                root.lent.lend_name(b"a", lent(true));
                if is_exchange {
                    root.lent.lend_name(b"z", lent(false));
                }
                let attr = |inode| Attr {
                    inode: InodeId(inode),
                    kind: FileKind::File,
                    mode: 0o644,
                    nlink: 1,
                    uid: 0,
                    gid: 0,
                    rdev: 0,
                    size: 0,
                    allocated_bytes: 0,
                    atime: Timestamp(0),
                    mtime: Timestamp(0),
                    ctime: Timestamp(0),
                    version: 1,
                    data_version: 1,
                    generation: Generation(0),
                    layout: Layout { stripe_size_bytes: 1 << 20, stripe_count: 0 },
                };
                let call = Call::Change(ChangeCall::Rename {
                    parent: ROOT,
                    name: b"a".to_vec(),
                    new_parent: ROOT,
                    new_name: b"z".to_vec(),
                    mode: if is_exchange { RenameMode::Exchange } else { RenameMode::Replace },
                    told: OpenTold::OfNone,
                });
                let other = is_exchange.then(|| attr(8));
                let result = Ok(Answer::Renamed { moved: attr(7), other, replaced: None });
                let (grants, changed) = (Vec::new(), Vec::new());
                let response = Response { result, grants, changed };
                Rc::clone(&client).answered(&call, &response, true);
                let names = root.lent.names.borrow();
                let is_directory = |name: &[u8]| names.get(name).map(|lent| lent.is_directory);
                assert_eq!(is_directory(b"z"), Some(true));
                assert_eq!(is_directory(b"a"), Some(!is_exchange));
            };
            reactor::sim::Simulation::new(1).run(scene).unwrap();
        }
    }
}
