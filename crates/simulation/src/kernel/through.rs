//! Writes through the page cache (`fuse_perform_write` of fs/fuse/file.c, without
//! `FUSE_WRITEBACK_CACHE`).
//!
//! The kernel writes the bytes to pages first, then sends a WRITE with exactly these bytes before
//! write(2) returns. A page that is written completely or was read before is open to readers and
//! notifications during the WRITE. Any other page stays locked, and ends the request.

use super::files::OpenFile;
use super::inode::Inode;
use super::pages::{PAGE, Page};
use super::{Answer, Caller, Kernel};
use fuse::{Operation, Response, Write};
use reactor::{Buffer, Chunk};
use std::rc::Rc;

/// The bytes of one WRITE and their pages.
struct Taken {
    length: usize,
    /// Pages that contain the bytes and are open to others.
    open: Vec<u64>,
    /// A page that is locked until the answer to the WRITE.
    locked: Option<u64>,
}

impl Inode {
    /// Copies the next bytes of a write into pages, as many as one WRITE carries.
    async fn take_in(&self, offset: u64, bytes: &[u8], length_max: usize) -> Taken {
        let mut taken = Taken { length: 0, open: Vec::new(), locked: None };
        let bytes = &bytes[..bytes.len().min(length_max)];
        while taken.length < bytes.len() {
            let at = offset + taken.length as u64;
            let (index, skip) = (at / PAGE, (at % PAGE) as usize);
            let length = (bytes.len() - taken.length).min(PAGE as usize - skip);
            let piece = &bytes[taken.length..taken.length + length];
            self.unlocked(index).await;
            taken.length += length;
            let mut pages = self.pages.borrow_mut();
            let before = match pages.get(&index) {
                Some(Page::Ready { bytes, start, end }) => bytes[*start..*end].to_vec(),
                _ if length == PAGE as usize => Vec::new(),
                _ => {
                    pages.insert(index, Page::Filling);
                    taken.locked = Some(index);
                    break;
                }
            };
            pages.insert(index, written(before, skip, piece));
            taken.open.push(index);
        }
        taken
    }

    /// Handles the answer to the WRITE.
    fn end_write(&self, taken: &Taken, is_done: bool) {
        let mut pages = self.pages.borrow_mut();
        if let Some(index) = taken.locked {
            pages.remove(&index);
        }
        if !is_done {
            for index in &taken.open {
                if matches!(pages.get(index), Some(Page::Ready { .. })) {
                    pages.remove(index);
                }
            }
        }
        self.filled.notify();
    }
}

/// Returns a page after a write into it.
fn written(mut bytes: Vec<u8>, skip: usize, piece: &[u8]) -> Page {
    let end = bytes.len().max(skip + piece.len());
    bytes.resize(end, 0);
    bytes[skip..skip + piece.len()].copy_from_slice(piece);
    Page::Ready { bytes: bytes.into(), start: 0, end }
}

impl Kernel {
    /// pwrite(2) through the page cache.
    pub(super) async fn write_through(
        self: &Rc<Self>,
        caller: Caller,
        file: &Rc<OpenFile>,
        offset: u64,
        bytes: &[u8],
    ) -> Answer<()> {
        let inode = &file.inode;
        let _lock = inode.lock().await;
        inode.begin_filling();
        inode.is_size_unstable.set(offset + bytes.len() as u64 > inode.size());
        let mut done = 0;
        let mut result = Ok(());
        while done < bytes.len() && result.is_ok() {
            let at = offset + done as u64;
            let length_max = self.negotiated.max_write_bytes as usize;
            let taken = inode.take_in(at, &bytes[done..], length_max).await;
            let piece = &bytes[done..done + taken.length];
            result = self.write_once(caller, file, at, piece).await;
            inode.end_write(&taken, result.is_ok());
            if result.is_ok() {
                done += taken.length;
            }
        }
        inode.change_version(self.next_version());
        let end = offset + done as u64;
        if done > 0 && end > inode.size() {
            inode.set_size(end);
        }
        inode.is_size_unstable.set(false);
        inode.expire_attributes();
        inode.end_filling();
        result
    }

    /// Sends one WRITE.
    pub(super) async fn write_once(
        self: &Rc<Self>,
        caller: Caller,
        file: &Rc<OpenFile>,
        offset: u64,
        bytes: &[u8],
    ) -> Answer<()> {
        let write = Write {
            handle: file.handle,
            offset,
            data: Chunk::from(Buffer::copy_from(bytes)),
            lock_owner: None,
            flags: file.flags,
            is_from_cache: false,
            kill_suid_sgid: false,
        };
        let answer = self.request(caller, file.inode.node, Operation::Write(write)).await?;
        let Response::Written(count) = answer else { panic!("WRITE is answered with {answer:?}") };
        assert_eq!(count as usize, bytes.len(), "a short write");
        Ok(())
    }
}
