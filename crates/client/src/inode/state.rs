//! What is known of one inode, and the rights that it is known by.

use crate::ahead::Ahead;
use crate::extent_map::{ExtentMap, RangeSet, Run};
use crate::inode::entries::{Entries, Known};
use crate::inode::siblings::Siblings;
use crate::session::life::SessionStamp;
use crate::sums::known::KnownSums;
use protocol::{Attr, Generation, LeaseStamp, Place, Rights};
use std::rc::Rc;

/// Knowledge of an inode.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) rights: Rights,
    pub(crate) stamp: LeaseStamp,
    /// Recalls that are not answered yet, with the rights that were held. What was done under these
    /// may still be uncommitted, so they are reclaimed if the connection is lost meanwhile.
    pub(crate) leaving: Vec<(LeaseStamp, Rights)>,
    /// Attributes, valid under READ.
    pub(crate) attr: Option<Attr>,
    /// Newest truncate generation seen; commits carry it.
    pub(crate) generation: Generation,
    /// Committed extents, valid under READ, complete within `known`.
    pub(crate) extents: ExtentMap<Place>,
    /// The file's first bytes that the service has inline, valid as `extents`. They count where no
    /// extent is.
    pub(crate) head: Rc<[u8]>,
    pub(crate) known: RangeSet,
    /// The checksums of the blocks that the extents touch, complete for `known` if this client
    /// checks them.
    pub(crate) sums: KnownSums,
    /// What was read ahead by these extents.
    pub(crate) ahead: Ahead,
    /// Entries of a directory, valid under READ.
    pub(crate) entries: Entries,
    /// Whether this client created it and it has no extended attributes, valid under READ.
    pub(crate) has_no_xattrs: bool,
    /// Target of a symbolic link; never changes.
    pub(crate) target: Option<Rc<[u8]>>,
    /// The small files listed beside it, and its place among them.
    pub(crate) siblings: Option<(Rc<Siblings>, usize)>,
    /// Open handles of this client.
    pub(crate) opens: u32,
    /// Whether a create of it was answered whose caller has yet to count the open.
    pub(crate) being_opened: bool,
    /// Whether the service may count an open that is not in `rights`. The return of that open was
    /// queued, and kept back when the inode was opened again; this client does not know whether it
    /// is counted.
    pub(crate) may_be_counted: bool,
    /// References that the user of the library holds (the kernel's lookups).
    pub(crate) references: u64,
    /// Attributes from before its last name went. It shows these to those that still refer to it
    /// once the service has forgotten it.
    pub(crate) unnamed: Option<Attr>,
    /// Data version that the kernel's page cache may hold.
    pub(crate) kernel_data_version: Option<u64>,
    /// The session after the last one whose loss took uncommitted data along.
    pub(crate) lost_in: SessionStamp,
}

impl State {
    /// Returns whether this client has the inode open, or is about to.
    pub(crate) fn is_open(&self) -> bool {
        self.opens > 0 || self.being_opened
    }

    /// Returns whether some of these rights are missing and of use. OPEN is of use only while this
    /// client has the inode open; otherwise a grant of it would be returned at once.
    pub(crate) fn lacks(&self, rights: Rights) -> bool {
        let wanted = if self.is_open() { rights } else { rights - Rights::OPEN };
        !self.rights.contains(wanted)
    }

    /// Drops cached extents.
    pub(crate) fn forget_extents(&mut self) {
        self.ahead.clear();
        self.extents.clear();
        self.head = Rc::default();
        self.known.clear();
        if !reactor::mutant!("old-sum-kept") {
            self.sums.clear();
        }
    }

    /// Drops cached attributes and extents.
    pub(crate) fn forget_data(&mut self) {
        self.attr = None;
        self.forget_extents();
    }

    /// Drops everything that is valid under READ.
    pub(crate) fn drop_read(&mut self) {
        self.attr = None;
        self.has_no_xattrs = false;
        self.forget_extents();
        if !reactor::mutant!("entries-outlive-read") {
            self.entries = Entries::default();
        }
    }

    /// Returns whether READ is held.
    pub(crate) fn may_cache(&self) -> bool {
        self.rights.contains(Rights::READ)
    }

    /// Returns what the cached entries of a directory say of a name.
    pub(crate) fn entry(&self, name: &[u8]) -> Known {
        self.entries.get(name)
    }

    /// Returns the cached entries, if more may be added.
    pub(crate) fn entries_mut(&mut self) -> Option<&mut Entries> {
        self.may_cache().then_some(&mut self.entries)
    }

    /// Returns the committed extents of a range, if all of it is known.
    pub(crate) fn extents(&self, start: u64, end: u64) -> Option<(Attr, Vec<Run<Place>>)> {
        let attr = self.attr?;
        let end = end.min(attr.size);
        if start >= end {
            return Some((attr, Vec::new()));
        }
        self.known
            .contains(&(start..end))
            .then(|| (attr, self.extents.within(start..end).collect()))
    }

    /// Caches extents that are complete within `start..end`.
    pub(crate) fn set_extents(&mut self, start: u64, end: u64, extents: &[protocol::Extent]) {
        if !self.may_cache() {
            return;
        }
        self.ahead.clear();
        self.extents.remove(start..end);
        self.known.insert(start..end);
        for extent in extents {
            if let Some(part) = extent.clip(start, end) {
                self.put_extent(&part);
            }
        }
    }

    /// Lays this client's committed extents over what is cached.
    pub(crate) fn overlay_extents(&mut self, extents: &[protocol::Extent]) {
        if !self.may_cache() {
            return;
        }
        self.ahead.replace(extents);
        for extent in extents {
            self.known.insert(extent.offset..extent.end());
            self.put_extent(extent);
        }
    }

    /// Inserts a committed extent.
    fn put_extent(&mut self, extent: &protocol::Extent) {
        let length = u64::from(extent.length);
        let run = Run { offset: extent.offset, length, place: extent.place };
        self.extents.insert(run, |before, after| {
            before.place.allocation == after.place.allocation
                && u64::from(before.place.at) + before.length == u64::from(after.place.at)
        });
    }

    /// Notes that the file had this size before it grew: a hole lies past it.
    pub(crate) fn know_hole_from(&mut self, size: u64) {
        if self.may_cache() {
            self.known.insert(size..protocol::FILE_SIZE_MAX_BYTES);
        }
    }
}
