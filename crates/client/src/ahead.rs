//! What was read ahead of a reader that goes through a file.
//!
//! The window grows with what was read in order. It is read in pieces, which are large, so that
//! records that follow each other on a device, though not in the file, are one command.
//!
//! A piece belongs to the committed extents that it was read by: it exists only while this client
//! caches them under READ, and every change or loss of them drops it ([`State`]). A recall of READ
//! waits for the device commands of pieces as for those of reads. Bytes that this client writes are
//! in no piece: a file with dirty data is not read ahead, and a piece older than the file's last
//! commit is not used.
//!
//! Large pieces are read into huge pages, which a device fills with one command. Rooms that answers
//! no longer use serve again.
//!
//! [`State`]: crate::inode::state::State

pub(crate) mod blocks;
pub(crate) mod memory;

use crate::ahead::blocks::Blocks;
use crate::ahead::memory::{IDLE_ROOMS_MAX, Memory};
use crate::fetched::Fetched;
use protocol::{Extent, FILE_SIZE_MAX_BYTES};
use reactor::local::Notify;
use reactor::{Chunk, Region};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

/// Most bytes that are read ahead of one reader.
const WINDOW_BYTES_MAX: u64 = 4 << 20;

/// Least pieces that a window consists of: while one is consumed the others are under way.
const PIECES_PER_WINDOW: u64 = 2;

/// Most bytes of a piece, unless a read is longer. The largest window has four: while one is consumed
/// and one is checked, two are under way. (With two in all, the device rested during each check.)
const PIECE_BYTES_MAX: u64 = 1 << 20;

/// How far requests that were sent together may overtake each other.
const STRAY_BYTES_MAX: u64 = 1 << 20;

/// Longest gap between two records that still counts as order, in lengths of a record. To read what
/// lies between them is faster than a command for each record.
const GAP_RECORDS: u64 = 3;

/// Most bytes of order that count. It bounds how many strays it takes to end the order.
const STREAK_BYTES_MAX: u64 = 8 << 20;

/// How a file is read, and what was read ahead.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Where the last read ended.
    next: u64,
    /// Bytes read in order so far.
    streak: u64,
    /// Pieces in the order of the file; they do not overlap.
    pub(crate) pieces: VecDeque<Rc<Piece>>,
    /// What was read in small pieces.
    pub(crate) blocks: Blocks,
}

impl Ahead {
    /// Drops what was read ahead, because its extents may no longer hold.
    pub(crate) fn clear(&mut self) {
        if reactor::mutant!("ahead-kept") {
            return;
        }
        self.pieces.clear();
        self.blocks.clear();
    }

    /// Drops what other bytes replace: this client's own ones, committed to these extents.
    pub(crate) fn replace(&mut self, extents: &[Extent]) {
        self.pieces.clear();
        if !reactor::mutant!("blocks-over-commit") {
            self.blocks.forget(extents);
        }
    }

    /// Forgets how the file was read, and all that was.
    pub(crate) fn reset(&mut self) {
        (self.next, self.streak) = (0, 0);
        self.pieces.clear();
        self.blocks.clear();
    }

    /// Notes a read. Returns the ranges to read ahead now, one for each piece.
    pub(crate) fn note(&mut self, read: &Range<u64>) -> Vec<Range<u64>> {
        let length = read.end - read.start;
        let gap = read.start.checked_sub(self.next);
        if gap.is_none_or(|gap| gap > GAP_RECORDS * length || gap > 0 && self.next == 0) {
            self.note_stray(read);
            return Vec::new();
        }
        self.next = read.end;
        self.streak = self.streak.saturating_add(length).min(STREAK_BYTES_MAX.max(2 * length));
        if self.streak == length {
            // The first read of a file may be its only one.
            return Vec::new();
        }
        let window = self.streak.min(WINDOW_BYTES_MAX);
        let piece = (window / PIECES_PER_WINDOW).min(PIECE_BYTES_MAX).max(length);
        let mut at = self.pieces.back().map_or(0, |last| last.range.end).max(read.end);
        let end = read.end.saturating_add(window).min(FILE_SIZE_MAX_BYTES);
        let mut wanted = Vec::new();
        while at + piece <= end {
            wanted.push(at..at + piece);
            at += piece;
        }
        wanted
    }

    /// Notes a read out of order: its neighbours have overtaken it, or the order ends here.
    fn note_stray(&mut self, read: &Range<u64>) {
        let is_near = read.start.abs_diff(self.next) <= STRAY_BYTES_MAX;
        if is_near && self.streak >= STRAY_BYTES_MAX {
            self.streak -= (2 * (read.end - read.start)).min(self.streak);
            self.next = self.next.max(read.end);
        } else {
            self.streak = 0;
            self.next = read.end;
            self.pieces.clear();
        }
    }

    /// Returns the pieces that together hold all of a range, if they do. Drops the pieces that end
    /// within or before the range.
    pub(crate) fn take(&mut self, range: &Range<u64>, last_commit: u64) -> Option<Vec<Rc<Piece>>> {
        let mut at = range.start;
        let mut found = Vec::new();
        for piece in self.pieces.iter().filter(|piece| piece.range.end > range.start) {
            if at >= range.end || piece.range.start > at || piece.last_commit != last_commit {
                break;
            }
            at = piece.range.end;
            found.push(Rc::clone(piece));
        }
        while self.pieces.front().is_some_and(|piece| piece.range.end <= range.end) {
            self.pieces.pop_front();
        }
        (at >= range.end).then_some(found)
    }
}

/// A range of a file that is read ahead.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) range: Range<u64>,
    /// The inode's last commit when the piece was planned.
    pub(crate) last_commit: u64,
    pub(crate) content: RefCell<Content>,
    /// Notified when the content has come, or has failed.
    pub(crate) done: Notify,
    /// Memory of its bytes, if the piece is large.
    pub(crate) room: Option<Region>,
    /// The client's memory for read-ahead, which counts this piece while it lives.
    pub(crate) memory: Rc<Memory>,
}

#[derive(Debug)]
pub(crate) enum Content {
    Coming,
    Here(Vec<Fetched>),
    /// It could not be read, or may not be used. The reader then reads for itself and gets the
    /// error.
    Failed,
}

impl Piece {
    /// Waits for the content and returns its part that lies in `range`.
    pub(crate) async fn part(&self, range: &Range<u64>) -> Option<Vec<Chunk>> {
        while matches!(&*self.content.borrow(), Content::Coming) {
            self.done.notified().await;
        }
        match &*self.content.borrow() {
            Content::Here(chunks) => {
                let start = range.start.max(self.range.start) - self.range.start;
                let end = range.end.min(self.range.end) - self.range.start;
                Some(cut(chunks, start as usize..end as usize))
            }
            Content::Coming | Content::Failed => None,
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let memory = &self.memory;
        memory.kept.set(memory.kept.get() - (self.range.end - self.range.start));
        let mut rooms = memory.rooms.borrow_mut();
        if rooms.len() < IDLE_ROOMS_MAX {
            rooms.extend(self.room.take());
        }
    }
}

/// Turns a chunk into one that several answers can refer to.
pub(crate) fn lasting(chunk: Chunk) -> Fetched {
    match chunk {
        Chunk::Region(slice) => Fetched::Placed(slice),
        chunk => Fetched::OwnCommit(chunk.into_shared()),
    }
}

/// Returns a range of the bytes in a list of chunks.
fn cut(chunks: &[Fetched], range: Range<usize>) -> Vec<Chunk> {
    let mut at = 0;
    let mut parts = Vec::new();
    for chunk in chunks {
        let start = range.start.clamp(at, at + chunk.len());
        let end = range.end.clamp(at, at + chunk.len());
        if start < end {
            parts.push(chunk.range(start - at, end - start));
        }
        at += chunk.len();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::Buffer;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// Notes reads of the 256 KiB blocks with these numbers. Returns the pieces, in blocks, that
    /// the last read asks for. All pieces are kept as if they were being read.
    fn read(ahead: &mut Ahead, blocks: &[u64]) -> Vec<Range<u64>> {
        let mut wanted = Vec::new();
        for block in blocks {
            wanted = ahead.note(&(block * 256 * KIB..(block + 1) * 256 * KIB));
            ahead.pieces.extend(wanted.iter().map(|range| piece(range.clone(), &[])));
        }
        let to_blocks = |range: Range<u64>| range.start / (256 * KIB)..range.end / (256 * KIB);
        wanted.into_iter().map(to_blocks).collect()
    }

    fn piece(range: Range<u64>, bytes: &[u8]) -> Rc<Piece> {
        let memory = Rc::new(Memory::default());
        memory.kept.set(range.end - range.start);
        let (content, done) = (RefCell::new(Content::Here(in_threes(bytes))), Notify::new());
        Rc::new(Piece { range, last_commit: 0, content, done, room: None, memory })
    }

    /// Cuts bytes into chunks of three.
    fn in_threes(bytes: &[u8]) -> Vec<Fetched> {
        bytes.chunks(3).map(|part| Fetched::OwnCommit(Buffer::copy_from(part).freeze())).collect()
    }

    /// Goal: the window grows with what was read in order, up to its maximum, and covers each byte
    /// once.
    #[test]
    fn a_reader_in_order_is_preceded_by_a_growing_window() {
        let mut ahead = Ahead::default();
        assert_eq!(read(&mut ahead, &[0]), []);
        assert_eq!(read(&mut ahead, &[1]), [2..3, 3..4]);
        let all: Vec<u64> = (2..64).collect();
        read(&mut ahead, &all);
        let end = ahead.pieces.back().unwrap().range.end;
        assert!(end > 64 * 256 * KIB + WINDOW_BYTES_MAX / 2);
        assert!(end <= 64 * 256 * KIB + WINDOW_BYTES_MAX);
        let follow = |pair: (&Rc<Piece>, &Rc<Piece>)| pair.0.range.end == pair.1.range.start;
        assert!(ahead.pieces.iter().zip(ahead.pieces.iter().skip(1)).all(follow));
    }

    /// Goal: records with gaps between them count as order, and read-ahead covers the gaps. Records
    /// that are far apart do not.
    #[test]
    fn a_reader_of_records_is_preceded() {
        let record = |stride: u64, index: u64| index * stride..index * stride + 47_008;
        let mut ahead = Ahead::default();
        let mut covered = 0;
        for index in 0..100 {
            for range in ahead.note(&record(94_016, index)) {
                assert!(covered == 0 || range.start == covered, "each byte once, and all");
                covered = range.end;
                ahead.pieces.push_back(piece(range, &[]));
            }
        }
        assert!(covered > 100 * 94_016 + WINDOW_BYTES_MAX / 2);
        let mut far = Ahead::default();
        assert!((0..100).all(|index| far.note(&record(20 * 47_008, index)).is_empty()));
    }

    /// Goal: for a reader without order nothing is read ahead, and nothing is kept.
    #[test]
    fn a_reader_without_order_is_left_alone() {
        let mut ahead = Ahead::default();
        assert_eq!(read(&mut ahead, &[9, 3, 5, 90, 2]), []);
        read(&mut ahead, &[0, 1, 2]);
        assert!(!ahead.pieces.is_empty());
        assert_eq!(read(&mut ahead, &[500]), []);
        assert!(ahead.pieces.is_empty());
    }

    /// Goal: requests of one read may overtake each other without ending the order. Wandering about
    /// near by ends it.
    #[test]
    fn neighbours_may_overtake_each_other() {
        let mut ahead = Ahead::default();
        let first: Vec<u64> = (0..16).collect();
        read(&mut ahead, &first);
        read(&mut ahead, &[17, 16, 19, 18]);
        assert!(ahead.streak >= MIB);
        let kept = ahead.pieces.len();
        read(&mut ahead, &[20, 21, 22]);
        assert!(ahead.pieces.len() >= kept);
        read(&mut ahead, &[21, 23].repeat((STREAK_BYTES_MAX / MIB) as usize));
        assert!(ahead.streak < MIB && ahead.pieces.is_empty());
    }

    /// Goal: a range is taken only if pieces of the present state of the file cover all of it. What
    /// lies before its end is then dropped.
    #[test]
    fn a_range_is_taken_whole_or_not_at_all() {
        let pieces = [piece(0..10, &[]), piece(10..20, &[]), piece(30..40, &[])];
        let make = || Ahead { pieces: pieces.iter().cloned().collect(), ..Ahead::default() };
        assert_eq!(make().take(&(5..15), 0).unwrap().len(), 2);
        assert!(make().take(&(15..35), 0).is_none());
        assert!(make().take(&(35..45), 0).is_none());
        assert!(make().take(&(5..15), 1).is_none(), "a commit has ended since");
        let mut ahead = make();
        ahead.take(&(5..15), 0).unwrap();
        assert_eq!(ahead.pieces.len(), 2);
        ahead.clear();
        assert!(ahead.take(&(12..15), 0).is_none());
    }

    /// Goal: a part of a piece has the bytes of that part, wherever the chunks are cut.
    #[test]
    fn parts_are_cut_at_any_byte() {
        let bytes: Vec<u8> = (0..20).collect();
        let mut chunks = in_threes(&bytes);
        let region = Region::new(20).unwrap();
        region.copy_in(0, &bytes);
        chunks[3] = lasting(region.slice(9, 3));
        for start in 0..=20 {
            for end in start..=20 {
                let found = cut(&chunks, start..end);
                let found: Vec<u8> =
                    found.iter().flat_map(|it| it.to_bytes().into_owned()).collect();
                assert_eq!(found, &bytes[start..end]);
            }
        }
    }

    /// Goal: memory serves again once no answer refers to it, and not before. Small pieces get
    /// none.
    #[test]
    fn rooms_are_used_again_when_they_are_free() {
        let memory = Memory::default();
        assert!(memory.room(4 * KIB).is_none() && memory.room(2 * MIB).is_none());
        let room = memory.room(MIB).unwrap();
        let address = |room: &Region| room.range(0, 1).as_ptr().addr();
        let first = address(&room);
        let answer = room.slice(0, 10);
        memory.rooms.borrow_mut().push(room);
        let others: Vec<_> = (0..4).map(|_| memory.room(MIB).unwrap()).collect();
        assert!(others.iter().all(|other| address(other) != first));
        drop(answer);
        let spare = memory.rooms.borrow().len();
        let rooms: Vec<_> = (0..spare).map(|_| memory.room(MIB).unwrap()).collect();
        assert!(rooms.iter().any(|room| address(room) == first));
    }

    /// Goal: a dropped piece returns its memory, up to the number of rooms that are kept.
    #[test]
    fn dropped_pieces_leave_a_few_rooms() {
        let memory = Rc::new(Memory::default());
        let make = |index: u64| {
            let range = index * MIB..(index + 1) * MIB;
            memory.kept.set(memory.kept.get() + MIB);
            let (content, done) = (RefCell::new(Content::Coming), Notify::new());
            let (room, memory) = (memory.room(MIB), Rc::clone(&memory));
            assert!(room.is_some());
            Piece { range, last_commit: 0, content, done, room, memory }
        };
        drop((0..20).map(make).collect::<Vec<_>>());
        assert_eq!((memory.kept.get(), memory.rooms.borrow().len()), (0, IDLE_ROOMS_MAX));
    }
}
