//! A file's extents in pages.
//!
//! A page covers a range of the file, from its key's offset to its `end`. Ranges of pages never
//! overlap, and an extent never crosses its page's border (one that would is stored in two parts).
//! A page above [`PAGE_EXTENTS_MAX`] extents is split; a page without extents is removed and leaves
//! a gap. Every change is a list of *edits*, ascending and apart from one another, applied page by
//! page. References are counted over old and new content of the changed pages only, and settled
//! once at the end, so that cutting an extent in two and joining it again costs nothing.

use super::base::Effect;
use super::references::References;
use super::transaction::{STEP_RECORDS, Transaction, contradiction};
use crate::records::{ExtentPage, Inode, Key, Truncation, corrupt, decode, key_number};
use crate::store::{Direction, Error, Scan};
use protocol::extent::EXTENT_MAX_BYTES;
use protocol::{Extent, ExtentList, FILE_SIZE_MAX_BYTES, InodeId};
use std::collections::BTreeMap;

/// Most extents of a page.
pub(crate) const PAGE_EXTENTS_MAX: usize = 256;

/// Extents of a page after a split; later appends fill the last page up again.
const PAGE_EXTENTS_SPLIT: usize = 192;

/// The new content of a range of a file: an extent as long as the range, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) extent: Option<Extent>,
}

impl Edit {
    /// Puts an extent at its own range.
    pub(crate) fn put(extent: Extent) -> Edit {
        Edit { start: extent.offset, end: extent.end(), extent: Some(extent) }
    }

    /// Clears a range.
    pub(crate) fn clear(start: u64, end: u64) -> Edit {
        Edit { start, end, extent: None }
    }

    fn clip(&self, start: u64, end: u64) -> Option<Edit> {
        let (start, end) = (self.start.max(start), self.end.min(end));
        let extent = self.extent.and_then(|extent| extent.clip(start, end));
        (start < end).then_some(Edit { start, end, extent })
    }
}

/// Appends an extent; joins it to the last one if they are adjacent in both file and allocation.
fn push(extents: &mut Vec<Extent>, extent: Extent) {
    if let Some(last) = extents.last_mut()
        && last.continues_in(&extent)
        && u64::from(last.length) + u64::from(extent.length) <= EXTENT_MAX_BYTES
    {
        last.length += extent.length;
        return;
    }
    extents.push(extent);
}

/// Returns the old extents with edits applied.
fn overlay(old: &[Extent], edits: impl Iterator<Item = Edit>) -> Vec<Extent> {
    let mut result = Vec::with_capacity(old.len() + 8);
    let mut old = old.iter().copied();
    let mut pending = old.next();
    for edit in edits {
        while let Some(extent) = pending {
            if extent.offset >= edit.end {
                break;
            }
            if let Some(left) = extent.clip(0, edit.start) {
                push(&mut result, left);
            }
            pending = extent.clip(edit.end, u64::MAX);
            if pending.is_some() {
                break;
            }
            pending = old.next();
        }
        if let Some(extent) = edit.extent {
            push(&mut result, extent);
        }
    }
    pending.into_iter().chain(old).for_each(|extent| push(&mut result, extent));
    result
}

/// Returns whether edits are ascending and apart, and each puts an extent of its own range.
fn are_apart(edits: &[Edit]) -> bool {
    let is_whole = |edit: &Edit| {
        let put = edit.extent.is_none_or(|e| (e.offset, e.end()) == (edit.start, edit.end));
        edit.start < edit.end && put
    };
    edits.windows(2).all(|pair| pair[0].end <= pair[1].start) && edits.iter().all(is_whole)
}

fn bytes(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| u64::from(extent.length)).sum()
}

/// Converts extents, in the order in which they overwrite each other, to edits, ascending and
/// apart.
pub(crate) fn flatten(extents: &[Extent]) -> Vec<Edit> {
    if extents.windows(2).all(|pair| pair[0].end() <= pair[1].offset) {
        return extents.iter().copied().map(Edit::put).collect();
    }
    // Offset → extent, without overlaps; each new extent cuts those that it covers.
    let mut map: BTreeMap<u64, Extent> = BTreeMap::new();
    for extent in extents {
        let (start, end) = (extent.offset, extent.end());
        let before = map.range(..start).next_back().map(|(_, other)| *other);
        if let Some(other) = before.filter(|other| other.end() > start) {
            map.extend(other.clip(0, start).map(|left| (left.offset, left)));
            map.extend(other.clip(end, u64::MAX).map(|right| (right.offset, right)));
        }
        let within: Vec<Extent> = map.range(start..end).map(|(_, other)| *other).collect();
        for other in within {
            map.remove(&other.offset);
            map.extend(other.clip(end, u64::MAX).map(|right| (right.offset, right)));
        }
        map.insert(start, *extent);
    }
    map.into_values().map(Edit::put).collect()
}

impl Transaction<'_> {
    /// Returns the last page that begins at or before an offset.
    pub(crate) fn page_before(
        &self,
        id: InodeId,
        offset: u64,
    ) -> Result<Option<(u64, ExtentPage)>, Error> {
        let found = self.scan(Scan {
            prefix: &Key::Extents(id, 0).prefix(1),
            from: Some(&Key::Extents(id, offset).encode()),
            direction: Direction::Backward,
            limit: 1,
        })?;
        let Some((key, value)) = found.into_iter().next() else { return Ok(None) };
        let (start, page): (u64, ExtentPage) = (key_number(&key, 1)?, decode(&key, &value)?);
        if !page.is_sound(start) {
            return Err(corrupt(&key, "extents are not ascending, or not within their page"));
        }
        Ok(Some((start, page)))
    }

    /// Returns the start of the first page that begins after an offset.
    pub(crate) fn page_after(&self, id: InodeId, offset: u64) -> Result<Option<u64>, Error> {
        let Some(first) = offset.checked_add(1) else { return Ok(None) };
        let found = self.scan(Scan {
            prefix: &Key::Extents(id, 0).prefix(1),
            from: Some(&Key::Extents(id, first).encode()),
            direction: Direction::Forward,
            limit: 1,
        })?;
        found.first().map(|(key, _)| key_number(key, 1)).transpose()
    }

    /// Returns the page that covers an offset; in a gap an empty one that is not stored.
    fn page_at(&self, inode: &Inode, offset: u64) -> Result<(u64, ExtentPage), Error> {
        if inode.attr.allocated_bytes == u64::from(inode.inline) {
            let end = FILE_SIZE_MAX_BYTES;
            return Ok((0, ExtentPage { end, extents: ExtentList::default() }));
        }
        let id = inode.attr.inode;
        let before = self.page_before(id, offset)?;
        let start = match before {
            Some((start, page)) if page.end > offset => return Ok((start, page)),
            Some((_, page)) => page.end,
            None => 0,
        };
        let end = self.page_after(id, offset)?.unwrap_or(FILE_SIZE_MAX_BYTES);
        Ok((start, ExtentPage { end, extents: ExtentList::default() }))
    }

    /// Applies edits (ascending, apart) to an inode's extents. It changes `inode`, which the caller
    /// writes, and counts references, which the caller settles.
    pub(crate) fn edit_extents(
        &mut self,
        inode: &mut Inode,
        edits: &[Edit],
        references: &mut References,
    ) -> Result<(), Error> {
        let id = inode.attr.inode;
        assert!(
            are_apart(edits),
            "edits of {id} overlap, or differ from their extents' ranges: {edits:?}"
        );
        let mut rest = edits;
        let mut done_to = 0;
        while let Some(first) = rest.first() {
            let at = first.start.max(done_to);
            let (start, page) = self.page_at(inode, at)?;
            let count = rest.partition_point(|edit| edit.start < page.end);
            let (here, after) = rest.split_at(count);
            let clipped = here.iter().filter_map(|edit| edit.clip(at, page.end));
            let new = overlay(&page.extents.0, clipped);
            self.count_page(references, &page.extents.0, &new)?;
            let kept = inode.attr.allocated_bytes.checked_sub(bytes(&page.extents.0));
            // An inode counts its inline bytes, too.
            let Some(kept) = kept.filter(|kept| *kept >= u64::from(inode.inline)) else {
                let key = Key::Extents(id, start);
                return Err(contradiction(&key, "the page holds more bytes than its inode"));
            };
            let held = kept + bytes(&new);
            if held > FILE_SIZE_MAX_BYTES {
                return Err(contradiction(
                    &Key::Inode(id),
                    "it has more extents than a file has bytes",
                ));
            }
            inode.attr.allocated_bytes = held;
            assert!(page.end > done_to, "a page of {id} ends before {done_to}: {page:?}");
            done_to = page.end;
            let goes_on = here.last().is_some_and(|last| last.end > page.end);
            rest = if goes_on { &rest[count - 1..] } else { after };
            self.put_page(id, start, &page, new)?;
        }
        Ok(())
    }

    /// Replaces a page's content; splits or removes the page if necessary.
    fn put_page(
        &mut self,
        id: InodeId,
        start: u64,
        old: &ExtentPage,
        new: Vec<Extent>,
    ) -> Result<(), Error> {
        let lies_within = |extents: &[Extent]| {
            let ends = extents.first().zip(extents.last());
            ends.is_none_or(|(first, last)| first.offset >= start && last.end() <= old.end)
        };
        assert!(lies_within(&new), "extents cross the border of the page {start} of {id}: {new:?}");
        if new.is_empty() {
            if !old.extents.0.is_empty() {
                self.remove(&Key::Extents(id, start));
            }
            return Ok(());
        }
        if new.len() <= PAGE_EXTENTS_MAX {
            let page = ExtentPage { end: old.end, extents: ExtentList(new) };
            return self.put(&Key::Extents(id, start), &page);
        }
        let mut chunks = new.chunks(PAGE_EXTENTS_SPLIT).peekable();
        let mut from = start;
        while let Some(chunk) = chunks.next() {
            let end = chunks.peek().map_or(old.end, |next| next[0].offset);
            assert!(from < end, "a page of {id} would cover {from} to {end}");
            let page = ExtentPage { end, extents: ExtentList(chunk.to_vec()) };
            self.put(&Key::Extents(id, from), &page)?;
            from = end;
        }
        assert_eq!(from, old.end, "pages of {id} would cover another range than before");
        Ok(())
    }

    /// Removes an inode's extents of a range, or as many as a step may; then the inode is marked,
    /// and [`Transaction::truncate_step`] removes the others. The caller writes `inode`.
    pub(crate) fn begin_removal(
        &mut self,
        inode: &mut Inode,
        from: u64,
        to: u64,
    ) -> Result<(), Error> {
        let id = inode.attr.inode;
        if inode.truncating.is_some() {
            // Calls about its extents wait for the end of a removal that is marked.
            return Err(contradiction(&Key::Inode(id), "its truncation is not marked"));
        }
        if !self.cut(inode, from, to)? {
            self.mark(&Key::Truncating(id))?;
            self.effect(Effect::Truncating(id));
        }
        Ok(())
    }

    /// Removes an inode's extents of a range, from its end down; returns whether all are gone. If
    /// there are more than a step may remove, the inode records what is left. The caller writes
    /// `inode`.
    pub(crate) fn cut(&mut self, inode: &mut Inode, from: u64, to: u64) -> Result<bool, Error> {
        let id = inode.attr.inode;
        let mut references = References::default();
        let mut to = to;
        let mut touched = 0;
        let inline = u64::from(inode.inline);
        while from < to && inode.attr.allocated_bytes > inline && touched < STEP_RECORDS {
            let Some((start, page)) = self.page_before(id, to - 1)? else {
                to = from;
                break;
            };
            // A page counts as a record, and so does each allocation that it names.
            let runs = page.extents.0.chunk_by(|a, b| a.place.allocation == b.place.allocation);
            touched += 1 + runs.count();
            if page.end > from {
                let edit = Edit::clear(from.max(start), page.end.min(to));
                self.edit_extents(inode, &[edit], &mut references)?;
            }
            to = start;
        }
        self.settle_references(references)?;
        let is_done = to <= from || inode.attr.allocated_bytes == inline;
        assert!(
            is_done || touched >= STEP_RECORDS,
            "a truncation of {id} to {from} ended at {to}, after {touched} records"
        );
        inode.truncating = if is_done { None } else { Some(Truncation { from, to }) };
        Ok(is_done)
    }

    /// Continues a removal from an inode; returns whether it is finished.
    pub(crate) fn truncate_step(&mut self, id: InodeId) -> Result<bool, Error> {
        let stored = self.stored_inode(id)?;
        let Some((mut inode, truncation)) =
            stored.and_then(|inode| inode.truncating.map(|truncation| (inode, truncation)))
        else {
            self.remove(&Key::Truncating(id));
            self.effect(Effect::Truncated(id));
            return Ok(true);
        };
        let is_done = self.cut(&mut inode, truncation.from, truncation.to)?;
        if is_done {
            self.remove(&Key::Truncating(id));
            self.effect(Effect::Truncated(id));
        }
        self.put_inode(&inode)?;
        Ok(is_done)
    }
}

#[cfg(test)]
mod tests;
