//! A file's data: reading extents, committing, punching, sharing.

use super::Outcome;
use super::attributes::check_regular;
use super::extents::{Edit, flatten};
use super::references::{LastChunk, NewBlocks, References};
use super::transaction::{Context, Transaction};
use crate::records::Inode;
use crate::space::live::Live;
use crate::store::Error;
use protocol::attr::Deferred;
use protocol::client::{Answer, FallocateMode};
use protocol::extent::{EXTENT_MAX_BYTES, EXTENTS_PER_MESSAGE_MAX};
use protocol::inline::InlineRun;
use protocol::space::NewAllocation;
use protocol::sums::SUMS_PER_MESSAGE_MAX;
use protocol::{Errno, Extent, FILE_SIZE_MAX_BYTES, Generation, InodeId, Rights, Timestamp};

/// Most extents that one `CopyRange` shares; the caller continues at its end.
const EXTENTS_PER_COPY: usize = 1024;

/// A requested commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commit<'a> {
    pub(crate) inode: InodeId,
    pub(crate) generation: Generation,
    pub(crate) allocations: &'a [NewAllocation],
    pub(crate) sums: &'a [u32],
    pub(crate) extents: &'a [Extent],
    pub(crate) inline: &'a [InlineRun],
    pub(crate) mtime: Option<Timestamp>,
    pub(crate) kill_privileges: bool,
    pub(crate) attributes: Option<&'a Deferred>,
}

/// Returns the end of a range of a file; EINVAL if it is empty, EFBIG if it is too far.
pub(super) fn range_end(offset: u64, length: u64) -> Result<u64, Error> {
    if length == 0 {
        return Err(Errno::EINVAL.into());
    }
    match offset.checked_add(length) {
        Some(end) if end <= FILE_SIZE_MAX_BYTES => Ok(end),
        _ => Err(Errno::EFBIG.into()),
    }
}

/// Returns EINVAL unless a commit has as many sums as new blocks, or none; E2BIG if it has more
/// sums than a message may have.
fn check_sums(commit: &Commit<'_>) -> Result<(), Error> {
    let blocks: u64 = commit.allocations.iter().map(|named| u64::from(named.blocks)).sum();
    if commit.sums.len() > SUMS_PER_MESSAGE_MAX {
        return Err(Errno::E2BIG.into());
    }
    let is_right = commit.sums.is_empty()
        || commit.sums.len() as u64 == blocks
        || reactor::mutant!("sums-uncounted");
    if is_right { Ok(()) } else { Err(Errno::EINVAL.into()) }
}

impl Transaction<'_> {
    /// Returns the inode of a regular file.
    pub(super) fn file(&self, id: InodeId) -> Result<Inode, Error> {
        let inode = self.inode(id)?;
        check_regular(&inode)?;
        Ok(inode)
    }

    /// `Commit`.
    pub(crate) fn commit_data(
        &mut self,
        context: &Context<'_>,
        commit: Commit<'_>,
    ) -> Result<Outcome, Error> {
        let mut inode = self.file(commit.inode)?;
        let id = commit.inode;
        if commit.generation > inode.attr.generation {
            return Err(Errno::EINVAL.into());
        }
        if commit.generation < inode.attr.generation && !reactor::mutant!("late-commit-executed") {
            return self.commit_late(inode, commit.attributes);
        }
        let has_data = !commit.extents.is_empty() || !commit.inline.is_empty();
        let new = self.check_commit(context, commit)?;
        if commit.kill_privileges {
            self.kill_privileges(&mut inode)?;
        } else if has_data {
            self.drop_capability(&mut inode)?;
        }
        let newest = new.newest_epoch();
        if !reactor::mutant!("inode-epoch-kept") {
            inode.flush_epoch = inode.flush_epoch.max(newest);
        }
        let mut references = References::of_commit(new);
        self.edit_extents(&mut inode, &flatten(commit.extents), &mut references)?;
        self.settle_references(references)?;
        if !reactor::mutant!("extents-over-inline") {
            let ranges = commit.extents.iter().map(|extent| extent.offset..extent.end());
            self.clear_inline(&mut inode, ranges)?;
        }
        self.write_inline(&mut inode, commit.inline)?;
        let ends = commit.extents.iter().map(Extent::end);
        let end = ends.chain(commit.inline.iter().map(InlineRun::end)).max().unwrap_or(0);
        inode.attr.size = inode.attr.size.max(end);
        if has_data {
            inode.attr.data_version = inode.attr.data_version.saturating_add(1);
        }
        // The time of the write, not of the commit: closing a file must not change its times.
        if let Some(mtime) = commit.mtime {
            inode.attr.mtime = mtime;
            inode.attr.ctime = inode.attr.ctime.max(mtime);
        }
        if commit.kill_privileges {
            inode.attr.ctime = inode.attr.ctime.max(context.now);
        }
        self.settle_deferred(&mut inode, commit.attributes)?;
        inode.attr.version = inode.attr.version.saturating_add(1);
        self.put_inode(&inode)?;
        Ok(Outcome::of(Answer::Attr(inode.attr)).touching(id).granting(id, Rights::READ))
    }

    /// Executes a commit that a truncation has overtaken: only its changes of attributes count.
    fn commit_late(
        &mut self,
        mut inode: Inode,
        attributes: Option<&Deferred>,
    ) -> Result<Outcome, Error> {
        let id = inode.attr.inode;
        let outcome = Outcome::of(Answer::Attr(inode.attr)).granting(id, Rights::READ);
        if attributes.is_none() && inode.sole.is_none() {
            return Ok(outcome);
        }
        self.settle_deferred(&mut inode, attributes)?;
        inode.attr.version = inode.attr.version.saturating_add(1);
        self.put_inode(&inode)?;
        Ok(Outcome { answer: Answer::Attr(inode.attr), ..outcome }.touching(id))
    }

    /// Applies the changes that have waited for this commit; none wait from now on.
    fn settle_deferred(
        &mut self,
        inode: &mut Inode,
        attributes: Option<&Deferred>,
    ) -> Result<(), Error> {
        inode.sole = None;
        match attributes {
            Some(deferred) => self.set_deferred(inode, deferred),
            None => Ok(()),
        }
    }

    /// Checks a commit, takes its new blocks out of the session's leases, and returns them.
    pub(super) fn check_commit(
        &mut self,
        context: &Context<'_>,
        commit: Commit<'_>,
    ) -> Result<NewBlocks, Error> {
        if commit.extents.len() > EXTENTS_PER_MESSAGE_MAX
            || commit.allocations.len() > EXTENTS_PER_MESSAGE_MAX
        {
            return Err(Errno::E2BIG.into());
        }
        // It would be undefined which of the two counts.
        if !commit.inline.is_empty() && !commit.extents.is_empty() {
            return Err(Errno::EINVAL.into());
        }
        check_sums(&commit)?;
        // This also finds allocations that overlap each other: the second one is no longer leased.
        self.take_allocations(context.session, commit.allocations)?;
        let mut new = NewBlocks::default();
        let mut left = commit.sums;
        for named in commit.allocations {
            let flush_epoch = self.flush_epoch_of(named);
            let start = named.allocation.block;
            let live = Live { count: 0, owner: commit.inode, flush_epoch, sum: None };
            let (sums, after) = left.split_at(left.len().min(named.blocks as usize));
            left = after;
            new.add(named.allocation.device, start..start + u64::from(named.blocks), live, sums);
        }
        let mut last = LastChunk::default();
        for extent in commit.extents {
            let length = u64::from(extent.length);
            if length == 0 || length > EXTENT_MAX_BYTES {
                return Err(Errno::EINVAL.into());
            }
            range_end(extent.offset, length)?;
            self.check_named(commit.inode, extent, &new, &mut last)?;
        }
        Ok(new)
    }

    /// `Fallocate`. If a range has more extents than a step removes, background work removes the
    /// others; until then no other call reads or changes the file's extents.
    pub(crate) fn fallocate(
        &mut self,
        context: &Context<'_>,
        id: InodeId,
        (offset, length): (u64, u64),
        mode: FallocateMode,
    ) -> Result<Outcome, Error> {
        let mut inode = self.file(id)?;
        let end = range_end(offset, length)?;
        self.drop_capability(&mut inode)?;
        let keeps_size = match mode {
            FallocateMode::Allocate { keep_size } => {
                self.check_room(id, offset, end)?;
                keep_size
            }
            FallocateMode::Punch => true,
            FallocateMode::Zero { keep_size } => keep_size,
        };
        if !matches!(mode, FallocateMode::Allocate { .. }) {
            if !reactor::mutant!("punch-spares-inline") {
                self.clear_inline(&mut inode, std::iter::once(offset..end))?;
            }
            self.begin_removal(&mut inode, offset, end)?;
            inode.next_generation();
        }
        if !keeps_size {
            inode.attr.size = inode.attr.size.max(end);
        }
        inode.modify(context.now);
        self.put_inode(&inode)?;
        Ok(Outcome::of(Answer::Attr(inode.attr)).touching(id).granting(id, Rights::READ))
    }

    /// Returns ENOSPC unless the pool has enough free space for the bytes of a range without data.
    fn check_room(&self, id: InodeId, offset: u64, end: u64) -> Result<(), Error> {
        let free_bytes = self.base.space.pool_use(0).free_bytes;
        let mut missing = end - offset;
        let mut at = offset;
        // Nearly always there is room even for the whole range, and no page is read.
        while missing > free_bytes && at < end {
            match self.page_before(id, at)? {
                Some((_, page)) if page.end > at => {
                    let parts = page.extents.0.iter().filter_map(|e| e.clip(offset, end));
                    let held: u64 = parts.map(|part| u64::from(part.length)).sum();
                    missing = missing.saturating_sub(held);
                    at = page.end;
                }
                _ => at = self.page_after(id, at)?.unwrap_or(end),
            }
        }
        if missing > free_bytes { Err(Errno::ENOSPC.into()) } else { Ok(()) }
    }

    /// `CopyRange`: makes the destination's range share the source's blocks. It copies less than
    /// requested where the source ends or has more extents than one call shares.
    pub(crate) fn copy_range(
        &mut self,
        context: &Context<'_>,
        (source_id, source_offset): (InodeId, u64),
        (destination_id, destination_offset): (InodeId, u64),
        length: u64,
    ) -> Result<Outcome, Error> {
        let source = self.file(source_id)?;
        let mut destination = self.file(destination_id)?;
        let available = source.attr.size.saturating_sub(source_offset);
        let length = length.min(available);
        if length == 0 {
            let answer = Answer::Copied { length: 0, attr: destination.attr };
            return Ok(Outcome::of(answer).granting(destination_id, Rights::READ));
        }
        range_end(destination_offset, length)?;
        self.drop_capability(&mut destination)?;
        let is_apart = source_offset.abs_diff(destination_offset) >= length;
        if source_id == destination_id && !is_apart {
            return Err(Errno::EINVAL.into());
        }
        if source_offset < u64::from(source.inline) {
            // Inline bytes cannot be shared: the caller copies them.
            return Err(Errno::EXDEV.into());
        }
        let (edits, end) =
            self.copied_edits(source_id, source_offset, destination_offset, length)?;
        let mut references = References::default();
        self.edit_extents(&mut destination, &edits, &mut references)?;
        self.settle_references(references)?;
        self.clear_inline(&mut destination, edits.iter().map(|edit| edit.start..edit.end))?;
        let length = end - source_offset;
        destination.attr.size = destination.attr.size.max(destination_offset + length);
        if !reactor::mutant!("copy-forgets-epoch") {
            destination.flush_epoch = destination.flush_epoch.max(source.flush_epoch);
        }
        destination.modify(context.now);
        self.put_inode(&destination)?;
        let answer = Answer::Copied { length, attr: destination.attr };
        Ok(Outcome::of(answer)
            .touching(destination_id)
            .granting(destination_id, Rights::READ)
            .granting(source_id, Rights::READ))
    }

    /// Returns the edits of a destination that share a source's range, and their end in the
    /// destination.
    fn copied_edits(
        &self,
        id: InodeId,
        offset: u64,
        to: u64,
        length: u64,
    ) -> Result<(Vec<Edit>, u64), Error> {
        let end = offset + length;
        let moved = |at: u64| at - offset + to;
        let mut edits = Vec::new();
        let mut at = offset;
        while at < end && edits.len() < EXTENTS_PER_COPY {
            let page = self.page_before(id, at)?.filter(|(_, page)| page.end > at);
            let Some((_, page)) = page else {
                let next = self.page_after(id, at)?.unwrap_or(end).min(end);
                edits.push(Edit::clear(moved(at), moved(next)));
                at = next;
                continue;
            };
            let (page_start, page_end) = (at, page.end.min(end));
            let within = |extent: &Extent| extent.clip(page_start, page_end);
            for part in page.extents.0.iter().filter_map(within) {
                if part.offset > at {
                    edits.push(Edit::clear(moved(at), moved(part.offset)));
                }
                edits.push(Edit::put(Extent { offset: moved(part.offset), ..part }));
                at = part.end();
            }
            if at < page_end {
                edits.push(Edit::clear(moved(at), moved(page_end)));
                at = page_end;
            }
        }
        Ok((edits, at.min(end)))
    }
}
