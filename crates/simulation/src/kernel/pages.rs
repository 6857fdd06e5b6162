//! The page cache of an inode, and reads through it.

use super::files::OpenFile;
use super::inode::Inode;
use super::{Answer, Caller, Kernel};
use fuse::{Operation, Read, Response};
use reactor::{Chunk, Region};
use std::rc::Rc;

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;
/// Largest number of pages that are read ahead of a request.
const AHEAD_PAGES: u64 = 8;

/// A page.
#[derive(Clone, Debug)]
pub(super) enum Page {
    /// Locked: it is being read.
    Filling,
    /// Bytes of the page, a part of the answer to a READ; zeros follow them.
    Ready { bytes: Rc<[u8]>, start: usize, end: usize },
}

impl Inode {
    /// Drops pages, each once no read fills it (`invalidate_inode_pages2_range`).
    pub(super) async fn drop_pages(&self, first: u64, end: u64) {
        let mut next = first;
        loop {
            let found = self.pages.borrow().range(next..end).next().map(|(index, _)| *index);
            let Some(index) = found else { return };
            self.unlocked(index).await;
            self.pages.borrow_mut().remove(&index);
            next = index + 1;
        }
    }

    /// Waits until no read fills a page.
    pub(super) async fn unlocked(&self, index: u64) {
        while matches!(self.pages.borrow().get(&index), Some(Page::Filling)) {
            self.filled.notified().await;
        }
    }

    /// Drops the pages behind the end of the file (`truncate_pagecache`).
    pub(super) async fn truncate_pages(&self, size: u64) {
        self.drop_pages(size.div_ceil(PAGE), u64::MAX).await;
        let last = size / PAGE;
        self.unlocked(last).await;
        if let Some(Page::Ready { start, end, .. }) = self.pages.borrow_mut().get_mut(&last) {
            *end = (*end).min(*start + (size % PAGE) as usize);
        }
    }

    /// Drops the pages of a range of bytes.
    pub(super) async fn drop_range(&self, offset: u64, length: u64) {
        self.drop_pages(offset / PAGE, offset.saturating_add(length).div_ceil(PAGE)).await;
    }
}

impl Kernel {
    /// Reads through the page cache.
    pub(super) async fn read_cached(
        self: &Rc<Self>,
        caller: Caller,
        file: &Rc<OpenFile>,
        offset: u64,
        length: u64,
    ) -> Answer<Vec<u8>> {
        let inode = &file.inode;
        if offset + length > inode.size() {
            self.get_attributes(caller, inode).await?;
        }
        let mut bytes = Vec::new();
        let mut begun = None;
        loop {
            let at = offset + bytes.len() as u64;
            let end = (offset + length).min(inode.size());
            if at >= end {
                return Ok(bytes);
            }
            let index = at / PAGE;
            let page = inode.pages.borrow().get(&index).cloned();
            match page {
                Some(Page::Ready { bytes: found, start, end: found_end }) => {
                    let skip = (at % PAGE) as usize;
                    let wanted = (end - at).min(PAGE - at % PAGE) as usize;
                    let there = &found[start..found_end];
                    let there = there.get(skip..).unwrap_or_default();
                    let there = &there[..there.len().min(wanted)];
                    bytes.extend_from_slice(there);
                    bytes.resize(bytes.len() + wanted - there.len(), 0);
                }
                Some(Page::Filling) => inode.filled.notified().await,
                // The page that was read ahead is missing: the READ failed, or the page was
                // dropped.
                None if begun == Some(index) => {
                    inode.pages.borrow_mut().insert(index, Page::Filling);
                    self.fill(file, index, 1).await?;
                }
                None => {
                    begun = Some(index);
                    self.read_pages(file, index, end);
                }
            }
        }
    }

    /// Starts reading the missing pages from `first` on, with some beyond `end` as read-ahead.
    fn read_pages(self: &Rc<Self>, file: &Rc<OpenFile>, first: u64, end: u64) {
        let inode = &file.inode;
        let ahead = self.random.borrow_mut().below(AHEAD_PAGES + 1);
        let last = (end.div_ceil(PAGE) + ahead).min(inode.size().div_ceil(PAGE));
        let pages_max = u64::from(mount::READ_BYTES_MAX) / PAGE;
        let mut missing = Vec::new();
        {
            let pages = inode.pages.borrow();
            for index in (first..last).filter(|index| !pages.contains_key(index)) {
                match missing.last_mut() {
                    Some((start, count)) if *start + *count == index && *count < pages_max => {
                        *count += 1;
                    }
                    _ => missing.push((index, 1)),
                }
            }
        }
        for (start, count) in missing {
            inode.pages.borrow_mut().extend((start..start + count).map(|i| (i, Page::Filling)));
            let (kernel, file) = (Rc::clone(self), Rc::clone(file));
            drop(reactor::spawn(async move {
                // A reader that needs a page whose read-ahead failed sends another READ.
                let _ = kernel.fill(&file, start, count).await;
            }));
        }
    }

    /// Sends a READ of whole pages.
    async fn fill(self: &Rc<Self>, file: &Rc<OpenFile>, first: u64, count: u64) -> Answer<()> {
        file.inode.begin_filling();
        let result = self.fill_pages(file, first, count).await;
        file.inode.end_filling();
        result
    }

    async fn fill_pages(
        self: &Rc<Self>,
        file: &Rc<OpenFile>,
        first: u64,
        count: u64,
    ) -> Answer<()> {
        let inode = &file.inode;
        let version = self.attr_version.get();
        let answer = self.read_once(Caller(0), file, first * PAGE, (count * PAGE) as u32).await;
        let pages = first..first + count;
        let bytes: Rc<[u8]> = match answer {
            Ok(bytes) => bytes.into(),
            Err(errno) => {
                inode.pages.borrow_mut().retain(|index, _| !pages.contains(index));
                inode.filled.notify();
                return Err(errno);
            }
        };
        for index in pages {
            let start = (((index - first) * PAGE) as usize).min(bytes.len());
            let end = (start + PAGE as usize).min(bytes.len());
            let page = Page::Ready { bytes: Rc::clone(&bytes), start, end };
            inode.pages.borrow_mut().insert(index, page);
        }
        // A short answer shows the end of the file, unless the size changed meanwhile.
        let length = bytes.len() as u64;
        let end = first * PAGE + length;
        let is_newest = version >= inode.version() && !inode.is_size_unstable.get();
        if length < count * PAGE && is_newest && end < inode.size() {
            inode.change_version(self.next_version());
            inode.set_size(end);
        }
        inode.filled.notify();
        Ok(())
    }

    /// Sends one READ.
    pub(super) async fn read_once(
        self: &Rc<Self>,
        caller: Caller,
        file: &Rc<OpenFile>,
        offset: u64,
        size: u32,
    ) -> Answer<Vec<u8>> {
        // Half of the requests come over io_uring, which offers memory for the answer.
        let room = self.chance(50).then(|| Region::new(size as usize).ok()).flatten();
        let destination = room.map(|region| region.range(0, region.len()));
        let (handle, lock_owner, flags) = (file.handle, None, file.flags);
        let read = Read { handle, offset, size, lock_owner, flags, destination };
        match self.request(caller, file.inode.node, Operation::Read(read)).await? {
            Response::Data(chunks) => {
                let mut bytes = Vec::with_capacity(chunks.iter().map(Chunk::len).sum());
                for chunk in &chunks {
                    bytes.extend_from_slice(&chunk.to_bytes());
                }
                Ok(bytes)
            }
            other => panic!("READ is answered with {other:?}"),
        }
    }
}
