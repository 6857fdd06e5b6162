//! The two ways of a file that is open for writing: through the kernel's page cache, or past it.
//!
//! Through the cache, reads of what was read or written before cost no request, and a write still reaches the
//! mount before it returns, with exactly its bytes (`FUSE_WRITEBACK_CACHE` is off). It is copied twice, and one
//! that neither begins nor ends with a page that the kernel has is cut into several WRITEs (`fuse_fill_write_pages`
//! of fs/fuse/file.c). Past the cache it is one WRITE, and several writers go on at once: streams are twice to
//! four times as fast there.
//!
//! The way is chosen at OPEN, for good. All who write a file on this node go the same way: with both, a page
//! that is read while a WRITE passes it by would stay as it was before, if it were not dropped once more.
//! Only where others change a file that is written through pages here, new writers go past them, and readers
//! too: the kernel takes no size from answers while a write is under way that goes further than the end that it
//! knows (`FUSE_I_SIZE_UNSTABLE`).

use client::Habit;
use protocol::InodeId;
use std::cell::RefCell;
use std::collections::HashMap;

/// A file of this size that was not used here yet is more likely a stream's.
const STREAM_BYTES: u64 = 16 << 20;

/// The way of a file that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through the page cache.
    Through,
    /// Past it.
    Past,
}

/// How many have one file open for writing on each way.
#[derive(Clone, Copy, Debug, Default)]
struct Writers {
    through: u32,
    past: u32,
}

/// All files that are open for writing.
#[derive(Debug, Default)]
pub(crate) struct AllWriters(RefCell<HashMap<InodeId, Writers>>);

impl AllWriters {
    /// Chooses the way of a writer who opens a file, and counts it. The size is given if the kernel knows it.
    pub(crate) fn enter(&self, id: InodeId, flags: u32, size: Option<u64>, habit: Habit) -> Way {
        let mut all = self.0.borrow_mut();
        let writers = all.entry(id).or_default();
        let way = choose(*writers, flags.cast_signed(), size, habit);
        match way {
            Way::Through => writers.through += 1,
            Way::Past => writers.past += 1,
        }
        way
    }

    /// A writer has closed the file.
    pub(crate) fn leave(&self, id: InodeId, way: Way) {
        let mut all = self.0.borrow_mut();
        let writers = all.entry(id).or_default();
        let count = match way {
            Way::Through => &mut writers.through,
            Way::Past => &mut writers.past,
        };
        assert!(*count > 0, "a writer of {id} leaves that has not come");
        *count -= 1;
        if writers.through + writers.past == 0 {
            all.remove(&id);
        }
    }

    /// Files that somebody has open for writing.
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

fn choose(writers: Writers, flags: i32, size: Option<u64>, habit: Habit) -> Way {
    // The kernel would append at the end that it knows, and O_DIRECT asks for nothing else.
    let is_appending = flags & libc::O_APPEND != 0 && !reactor::mutant!("append-through-pages");
    if is_appending || flags & libc::O_DIRECT != 0 {
        return Way::Past;
    }
    // While a write goes further than the end that the kernel knows, readers would see no other end.
    let Some(size) = size.or_else(|| reactor::mutant!("unknown-end-through").then_some(1)) else {
        return Way::Past;
    };
    if writers.through > 0 && !reactor::mutant!("writers-part-ways") {
        return Way::Through;
    }
    let reads = flags & libc::O_ACCMODE == libc::O_RDWR;
    if !reads || writers.past > 0 {
        return Way::Past;
    }
    // There is nothing to read yet, and much to write perhaps.
    if size == 0 {
        return Way::Past;
    }
    match habit {
        Habit::Streams => Way::Past,
        Habit::Unknown if size >= STREAM_BYTES => Way::Past,
        Habit::Small | Habit::Unknown => Way::Through,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);

    fn way(all: &AllWriters, flags: i32, size: u64, habit: Habit) -> Way {
        all.enter(FILE, flags.cast_unsigned(), Some(size), habit)
    }

    /// Goal: where the kernel does not know the end of a file, nobody begins to write it through pages.
    #[test]
    fn who_opens_a_file_of_unknown_end_goes_past() {
        let all = AllWriters::default();
        let enter =
            |all: &AllWriters| all.enter(FILE, libc::O_RDWR.cast_unsigned(), None, Habit::Small);
        assert_eq!(enter(&all), Way::Past);
        let all = AllWriters::default();
        way(&all, libc::O_RDWR, 4096, Habit::Small);
        assert_eq!(enter(&all), Way::Past, "beside one who goes through pages");
    }

    /// Goal: who reads as well goes through pages, but for streams; who only writes goes past them.
    #[test]
    fn a_writer_goes_by_what_it_is_likely_to_do() {
        let first = |flags, size, habit| way(&AllWriters::default(), flags, size, habit);
        assert_eq!(first(libc::O_RDWR, 4096, Habit::Unknown), Way::Through);
        assert_eq!(first(libc::O_RDWR, 1 << 40, Habit::Small), Way::Through);
        assert_eq!(first(libc::O_RDWR, 1 << 40, Habit::Unknown), Way::Past);
        assert_eq!(first(libc::O_RDWR, 4096, Habit::Streams), Way::Past);
        assert_eq!(first(libc::O_RDWR, 0, Habit::Small), Way::Past, "a new file");
        assert_eq!(first(libc::O_RDWR | libc::O_DIRECT, 4096, Habit::Small), Way::Past);
        assert_eq!(first(libc::O_WRONLY, 4096, Habit::Small), Way::Past);
    }

    /// Goal: the kernel would append at the end that it knows: that is left to the mount.
    #[test]
    fn who_appends_goes_past() {
        let all = AllWriters::default();
        assert_eq!(way(&all, libc::O_RDWR | libc::O_APPEND, 4096, Habit::Small), Way::Past);
        assert_eq!(
            way(&all, libc::O_RDWR, 4096, Habit::Small),
            Way::Past,
            "beside one who appends"
        );
    }

    /// Goal: while a file is written on one way, others who open it take the same (but for those who append).
    #[test]
    fn all_writers_of_a_file_go_the_same_way() {
        let all = AllWriters::default();
        let through = way(&all, libc::O_RDWR, 4096, Habit::Small);
        assert_eq!(way(&all, libc::O_WRONLY, 4096, Habit::Streams), Way::Through);
        all.leave(FILE, through);
        all.leave(FILE, through);
        assert_eq!(all.len(), 0);
        let past = way(&all, libc::O_WRONLY, 4096, Habit::Small);
        assert_eq!(way(&all, libc::O_RDWR, 4096, Habit::Small), Way::Past);
        all.leave(FILE, past);
    }
}
