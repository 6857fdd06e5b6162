//! Small data in the store itself: the first bytes of a file, in one record.
//!
//! A byte is either here or in an extent, never in both. A commit with inline data removes the
//! extents of its ranges, one with extents clears the inline bytes of its ranges, and clearing a
//! range clears both. Inline data is durable when the store is synced, and needs no device.

use super::extents::Edit;
use super::references::References;
use super::transaction::{Transaction, contradiction};
use crate::records::{Inline, Inode, Key};
use crate::store::Error;
use protocol::inline::{InlineRun, are_sound, is_right, overlay};
use protocol::{Errno, FILE_SIZE_MAX_BYTES};
use std::ops::Range;

impl Transaction<'_> {
    /// Returns the inline bytes of a file, from its first byte on, with their checksum.
    ///
    /// # Errors
    /// EIO if they do not match their checksum.
    pub(crate) fn inline_record(&self, inode: &Inode) -> Result<Inline, Error> {
        if inode.inline == 0 {
            return Ok(Inline::default());
        }
        let key = Key::Inline(inode.attr.inode);
        match self.get::<Inline>(&key)? {
            Some(inline) if inline.bytes.0.len() != inode.inline as usize => {
                Err(contradiction(&key, "its inode has another count of inline bytes"))
            }
            Some(inline) if !inline.is_whole() => {
                let inode = inode.attr.inode;
                tracing::error!(%inode, "inline data does not have its checksum; restore the file, or delete it");
                Err(Errno::EIO.into())
            }
            Some(inline) => Ok(inline),
            None => Err(contradiction(&key, "its inode counts inline bytes")),
        }
    }

    /// Replaces the inline bytes. The caller writes `inode`.
    fn put_inline(&mut self, inode: &mut Inode, inline: &Inline) -> Result<(), Error> {
        let key = Key::Inline(inode.attr.inode);
        let (old, new) = (u64::from(inode.inline), inline.bytes.0.len() as u64);
        let Some(kept) = inode.attr.allocated_bytes.checked_sub(old) else {
            return Err(contradiction(&key, "its inode counts fewer bytes than are inline"));
        };
        inode.attr.allocated_bytes = (kept + new).min(FILE_SIZE_MAX_BYTES);
        inode.inline = new as u32;
        if new > 0 {
            return self.put(&key, inline);
        }
        if old > 0 {
            self.remove(&key);
        }
        Ok(())
    }

    /// Clears ranges of the inline bytes. The caller writes `inode`.
    pub(crate) fn clear_inline(
        &mut self,
        inode: &mut Inode,
        ranges: impl Iterator<Item = Range<u64>>,
    ) -> Result<(), Error> {
        let all = u64::from(inode.inline);
        let cleared: Vec<_> =
            ranges.map(|range| range.start..range.end.min(all)).filter(|r| !r.is_empty()).collect();
        if cleared.is_empty() || reactor::mutant!("inline-not-cleared") {
            return Ok(());
        }
        if cleared.contains(&(0..all)) && !reactor::mutant!("damage-kept") {
            // Even if the bytes are damaged.
            return self.put_inline(inode, &Inline::default());
        }
        let mut bytes = self.inline_record(inode)?.bytes.0;
        for range in cleared {
            bytes[range.start as usize..range.end as usize].fill(0);
        }
        // Zeros at the end need no storage.
        let kept = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes.truncate(kept);
        self.put_inline(inode, &Inline::of(bytes))
    }

    /// Adds the inline data of a commit to the file. The caller writes `inode`.
    pub(crate) fn write_inline(
        &mut self,
        inode: &mut Inode,
        runs: &[InlineRun],
    ) -> Result<(), Error> {
        if runs.is_empty() {
            return Ok(());
        }
        if !are_sound(runs) {
            return Err(Errno::EINVAL.into());
        }
        let wrong = runs.iter().find(|run| !is_right(&run.bytes, run.sum));
        if let Some(run) = wrong.filter(|_| !reactor::mutant!("inline-sum-unchecked")) {
            let (inode, offset) = (inode.attr.inode, run.offset);
            tracing::error!(%inode, offset, "inline data came without the checksum of its writer; it is refused");
            return Err(Errno::EIO.into());
        }
        if inode.attr.allocated_bytes > u64::from(inode.inline)
            && !reactor::mutant!("inline-under-extents")
        {
            let clear = |run: &InlineRun| Edit::clear(u64::from(run.offset), run.end());
            let edits: Vec<Edit> = runs.iter().map(clear).collect();
            let mut references = References::default();
            self.edit_extents(inode, &edits, &mut references)?;
            self.settle_references(references)?;
        }
        let is_whole = runs[0].offset == 0 && runs[0].end() >= u64::from(inode.inline);
        if let [InlineRun { bytes, sum: Some(sum), .. }] = runs
            && is_whole
        {
            return self.put_inline(inode, &Inline::summed(bytes.0.clone(), *sum));
        }
        let mut bytes = if is_whole { Vec::new() } else { self.inline_record(inode)?.bytes.0 };
        overlay(&mut bytes, runs);
        self.put_inline(inode, &Inline::of(bytes))
    }
}
