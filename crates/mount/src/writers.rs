//! The choice for a file that is open for writing: through the kernel's page cache, or past it.
//!
//! Through the cache, a read of data that was read or written before costs no request. A write
//! still reaches the mount before it returns, with exactly its bytes (`FUSE_WRITEBACK_CACHE` is
//! off). It is copied twice, and a write that neither begins nor ends at a page that the kernel has
//! is split into several WRITEs (`fuse_fill_write_pages` of fs/fuse/file.c). Past the cache it is
//! one WRITE, and several writers run at once: streams are two to four times as fast there.
//!
//! The choice is made at OPEN and stays. All writers of a file on this node get the same: with both
//! kinds at once, a page that is read while a WRITE bypasses it would keep its old content unless
//! it were dropped once more. There is one exception: if others change a file that is written
//! through pages here, new writers go past them. The kernel takes no size from answers while a write
//! is under way that goes beyond the end that it knows (`FUSE_I_SIZE_UNSTABLE`), and drops an answer
//! with a size if a write ended meanwhile. So readers that open a file that is written here in either
//! way go past the pages if the kernel does not know its end.

use client::Habit;
use protocol::InodeId;
use std::cell::RefCell;
use std::collections::HashMap;

/// A file of this size without earlier use here is more likely used for streams.
const STREAM_BYTES: u64 = 16 << 20;

/// Whether an open file's writes go through the kernel's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteCaching {
    /// Through the page cache.
    Through,
    /// Past the page cache.
    Past,
}

/// The number of writers of one file, by their caching.
#[derive(Clone, Copy, Debug, Default)]
struct Writers {
    through: u32,
    past: u32,
}

/// All files that are open for writing.
#[derive(Debug, Default)]
pub(crate) struct AllWriters(RefCell<HashMap<InodeId, Writers>>);

impl AllWriters {
    /// Chooses the caching of a writer that opens a file, and counts the writer. `size` is given if
    /// the kernel knows it.
    pub(crate) fn enter(
        &self,
        id: InodeId,
        flags: u32,
        size: Option<u64>,
        habit: Habit,
    ) -> WriteCaching {
        let mut all = self.0.borrow_mut();
        let writers = all.entry(id).or_default();
        let caching = choose(*writers, flags.cast_signed(), size, habit);
        match caching {
            WriteCaching::Through => writers.through += 1,
            WriteCaching::Past => writers.past += 1,
        }
        caching
    }

    /// Removes a writer that has closed the file.
    pub(crate) fn leave(&self, id: InodeId, caching: WriteCaching) {
        let mut all = self.0.borrow_mut();
        let writers = all.entry(id).or_default();
        let count = match caching {
            WriteCaching::Through => &mut writers.through,
            WriteCaching::Past => &mut writers.past,
        };
        assert!(*count > 0, "a writer leaves {id} that never entered");
        *count -= 1;
        if writers.through + writers.past == 0 {
            all.remove(&id);
        }
    }

    /// Returns whether a file is open for writing.
    pub(crate) fn has_writers(&self, id: InodeId) -> bool {
        self.0.borrow().contains_key(&id)
    }

    /// Returns the number of files that are open for writing.
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

fn choose(writers: Writers, flags: i32, size: Option<u64>, habit: Habit) -> WriteCaching {
    // The kernel would append at the end that it knows; O_DIRECT requests uncached writes.
    let is_appending = flags & libc::O_APPEND != 0 && !reactor::mutant!("append-through-pages");
    if is_appending || flags & libc::O_DIRECT != 0 {
        return WriteCaching::Past;
    }
    // While a write goes beyond the end that the kernel knows, readers would see no other end.
    let Some(size) = size.or_else(|| reactor::mutant!("unknown-end-through").then_some(1)) else {
        return WriteCaching::Past;
    };
    if writers.through > 0 && !reactor::mutant!("writers-part-ways") {
        return WriteCaching::Through;
    }
    let reads = flags & libc::O_ACCMODE == libc::O_RDWR;
    if !reads || writers.past > 0 {
        return WriteCaching::Past;
    }
    // The file has no data to read yet, and perhaps much will be written. SQLite, which then reads
    // and writes pages here and there, refuses links; programs that write streams do not.
    if size == 0 && flags & libc::O_NOFOLLOW == 0 {
        return WriteCaching::Past;
    }
    match habit {
        Habit::Streams => WriteCaching::Past,
        Habit::Unknown if size >= STREAM_BYTES => WriteCaching::Past,
        Habit::Small | Habit::Unknown => WriteCaching::Through,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);

    fn open(all: &AllWriters, flags: i32, size: u64, habit: Habit) -> WriteCaching {
        all.enter(FILE, flags.cast_unsigned(), Some(size), habit)
    }

    /// Goal: no writer starts to write a file through pages if the kernel does not know the file's
    /// end.
    #[test]
    fn who_opens_a_file_of_unknown_end_goes_past() {
        let all = AllWriters::default();
        let enter =
            |all: &AllWriters| all.enter(FILE, libc::O_RDWR.cast_unsigned(), None, Habit::Small);
        assert_eq!(enter(&all), WriteCaching::Past);
        let all = AllWriters::default();
        open(&all, libc::O_RDWR, 4096, Habit::Small);
        assert_eq!(enter(&all), WriteCaching::Past, "beside a writer through pages");
    }

    /// Goal: a writer that also reads goes through pages, except for streams; one that only writes
    /// does not.
    #[test]
    fn a_writer_goes_by_what_it_is_likely_to_do() {
        let first = |flags, size, habit| open(&AllWriters::default(), flags, size, habit);
        assert_eq!(first(libc::O_RDWR, 4096, Habit::Unknown), WriteCaching::Through);
        assert_eq!(first(libc::O_RDWR, 1 << 40, Habit::Small), WriteCaching::Through);
        assert_eq!(first(libc::O_RDWR, 1 << 40, Habit::Unknown), WriteCaching::Past);
        assert_eq!(first(libc::O_RDWR, 4096, Habit::Streams), WriteCaching::Past);
        assert_eq!(first(libc::O_RDWR, 0, Habit::Small), WriteCaching::Past, "a new file");
        let database = libc::O_RDWR | libc::O_NOFOLLOW;
        assert_eq!(first(database, 0, Habit::Unknown), WriteCaching::Through, "a new database");
        assert_eq!(first(libc::O_RDWR | libc::O_DIRECT, 4096, Habit::Small), WriteCaching::Past);
        assert_eq!(first(libc::O_WRONLY, 4096, Habit::Small), WriteCaching::Past);
    }

    /// Goal: appends go past pages, because the kernel would append at the end that it knows.
    #[test]
    fn who_appends_goes_past() {
        let all = AllWriters::default();
        assert_eq!(
            open(&all, libc::O_RDWR | libc::O_APPEND, 4096, Habit::Small),
            WriteCaching::Past
        );
        assert_eq!(
            open(&all, libc::O_RDWR, 4096, Habit::Small),
            WriteCaching::Past,
            "beside an appending writer"
        );
    }

    /// Goal: while a file is written in one way, other writers that open it get the same (except
    /// appends).
    #[test]
    fn all_writers_of_a_file_go_the_same_way() {
        let all = AllWriters::default();
        let through = open(&all, libc::O_RDWR, 4096, Habit::Small);
        assert_eq!(open(&all, libc::O_WRONLY, 4096, Habit::Streams), WriteCaching::Through);
        all.leave(FILE, through);
        all.leave(FILE, through);
        assert_eq!(all.len(), 0);
        let past = open(&all, libc::O_WRONLY, 4096, Habit::Small);
        assert_eq!(open(&all, libc::O_RDWR, 4096, Habit::Small), WriteCaching::Past);
        all.leave(FILE, past);
    }
}
