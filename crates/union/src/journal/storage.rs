//! The environment of the store: files of a directory, a marker, randomness.
//!
//! A trait, so that the crash tests run the shipped code on memory that loses, tears and reorders
//! unsynced writes. [`Directory`](super::Directory) is the real one. All calls are synchronous:
//! writes go to the page cache, and the caller can do the slow part, the flush, through the handles
//! of a [`Ticket`](super::Ticket).

use std::fmt;
use std::io;

use super::types::SegmentId;

/// A segment file that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFile {
    /// Its number, from its name.
    pub segment: SegmentId,
    /// Its size in bytes.
    pub size_bytes: u64,
}

/// Where segments are kept. Nothing is durable before the matching sync.
pub trait Storage {
    /// Keeps a segment's bytes readable, also after the segment was deleted.
    type Handle: Clone + fmt::Debug;

    /// Returns the segment files, in any order.
    fn list(&self) -> io::Result<Vec<SegmentFile>>;

    /// Makes an empty segment file with `size_bytes` of space promised to it, so that later writes
    /// find room. On an error the file does not exist. An older file of that name is replaced.
    fn create(&mut self, segment: SegmentId, size_bytes: u64) -> io::Result<()>;

    /// Writes all of `parts`, one after the other, from `offset`.
    fn write_at(&mut self, segment: SegmentId, offset: u64, parts: &[&[u8]]) -> io::Result<()>;

    /// Reads until `buffer` is full or the file ends; returns the number of bytes read.
    fn read_at(&self, segment: SegmentId, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Makes what was written to the segment durable (not its name).
    fn sync(&mut self, segment: SegmentId) -> io::Result<()>;

    /// Makes the names of all segments durable.
    fn sync_directory(&mut self) -> io::Result<()>;

    /// Cuts a segment file and gives its space back.
    fn truncate(&mut self, segment: SegmentId, size_bytes: u64) -> io::Result<()>;

    /// Removes a segment file, if it is there; its handles stay readable.
    fn delete(&mut self, segment: SegmentId) -> io::Result<()>;

    /// Returns a handle for reading the segment and for syncing it (data only).
    fn handle(&self, segment: SegmentId) -> io::Result<Self::Handle>;

    /// Returns handles whose syncs (with metadata) do what [`Self::sync_directory`] does.
    fn directory_handles(&self) -> io::Result<Vec<Self::Handle>>;

    /// Writes into the file of marks, which [`Self::create`] makes with the first segment, filled
    /// with zeros and as durable as the segment's name. Where there is none (a store of an older
    /// version), nothing happens.
    fn write_mark(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Returns the handle of the file of marks, for making it durable (data only); `None` if there
    /// is none.
    fn marks_handle(&self) -> Option<Self::Handle>;

    /// Returns the content of the file of marks; `None` if there is none.
    fn read_marks(&self) -> io::Result<Option<Vec<u8>>>;

    /// Makes the marker that keeps the kernel's overlayfs from these directories, or removes it.
    fn set_marker(&mut self, present: bool) -> io::Result<()>;

    /// Makes the marker durable.
    fn sync_marker(&mut self) -> io::Result<()>;

    /// Returns handles whose syncs (with metadata) do what [`Self::sync_marker`] does.
    fn marker_handles(&self) -> io::Result<Vec<Self::Handle>>;

    /// Returns handles of files whose data is to be durable with the marker.
    fn marker_data(&self) -> io::Result<Vec<Self::Handle>> {
        Ok(Vec::new())
    }

    /// Returns whether the marker is there.
    fn marker(&self) -> io::Result<bool>;

    /// Something that changes whenever written but unsynced bytes may have been lost: equal
    /// witnesses prove that the page cache has lived on in between. 0 proves nothing.
    fn witness(&self) -> u64;

    /// Returns a random number.
    fn random(&mut self) -> u64;
}
