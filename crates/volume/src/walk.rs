//! Reads and checks all metadata of a pool, for opening it and for `check`.
//!
//! Everything that is read is bounded and compared with related data: checksums, kinds, numbers,
//! sums. No slot or cluster may be used twice, except a cluster by volumes of one family for the
//! same cluster of theirs. Each mismatch is a [`Finding`]. A pool with a fatal finding is not
//! opened.

mod superblocks;
mod tables;

use crate::clusters::Clusters;
use crate::error::Error;
use crate::layout::{Layout, PAGE_BYTES, POINTERS};
use crate::page::{self, Header, Kind, Pointer};
use crate::pages::Pages;
use crate::state::State;
use crate::superblock::Superblock;
use block::{Device, IoFuture};
use reactor::Chunk;
use tables::Tables;

/// Number of pages that are read at a time.
const READS_MAX: usize = 64;
/// Largest number of findings that are stored; further ones are only counted.
const FINDINGS_MAX: usize = 200;

/// A defect of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The defect, in words.
    pub text: String,
    /// Whether it prevents opening the pool.
    pub is_fatal: bool,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The defects; the first 200.
    pub findings: Vec<Finding>,
    /// Number of all findings.
    pub count: usize,
    /// Number of volumes read.
    pub volumes: usize,
    /// Number of metadata pages read.
    pub pages: usize,
    /// Number of clusters that volumes have.
    pub used: u64,
}

impl Report {
    fn add(&mut self, is_fatal: bool, text: String) {
        self.count += 1;
        // The first fatal one is stored in any case, because an error shows it.
        if self.findings.len() < FINDINGS_MAX || (is_fatal && self.fatal().is_none()) {
            self.findings.push(Finding { text, is_fatal });
        }
    }

    fn damage(&mut self, text: String) {
        self.add(true, text);
    }

    /// Returns the first finding that prevents opening the pool.
    pub fn fatal(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.is_fatal)
    }
}

/// The content of a pool.
pub(crate) struct Loaded {
    pub(crate) superblock: Superblock,
    pub(crate) state: State,
}

/// A leaf page: a volume's or a part of its table.
struct Leaf {
    position: u32,
    header: Header,
    bytes: Vec<u8>,
}

/// The state of a walk.
struct Walk<'a> {
    device: &'a dyn Device,
    superblock: Superblock,
    /// For each slot, from 1 on.
    is_used: Vec<bool>,
    report: Report,
}

/// Reads and checks a pool. Returns no state if damage hides it.
///
/// # Errors
/// [`Error::NotAPool`], [`Error::Version`], [`Error::BlockSize`]. Everything else is a finding.
pub(crate) async fn walk(device: &dyn Device) -> Result<(Report, Option<Loaded>), Error> {
    let mut report = Report::default();
    let Some(superblock) = superblocks::read(device, &mut report).await? else {
        return Ok((report, None));
    };
    let is_used = vec![false; superblock.layout.slots as usize + 1];
    let mut walk = Walk { device, superblock, is_used, report };
    let state = walk.run().await;
    Ok((walk.report, state.map(|state| Loaded { superblock, state })))
}

impl Walk<'_> {
    async fn run(&mut self) -> Option<State> {
        let layout = self.superblock.layout;
        let root = self.superblock.root;
        let (_, bytes) = self.read(Kind::Root, &[(0, root)]).await.pop()?;
        let mut indexes = page::decode_pointers(&bytes.bytes);
        if indexes.split_off(layout.indexes()).iter().any(|pointer| !pointer.is_none()) {
            self.report.damage("the root page names more index pages than there can be".into());
        }
        let mut pointers = vec![Pointer::NONE; layout.positions as usize];
        for (index, leaf) in self.read(Kind::Index, &named(&indexes)).await {
            for (at, pointer) in named(&page::decode_pointers(&leaf.bytes)) {
                match pointers.get_mut(index as usize * POINTERS + at as usize) {
                    Some(known) => *known = pointer,
                    None => self.report.damage(format!("index page {index} names too many pages")),
                }
            }
        }
        let leaves = self.read(Kind::Map, &named(&pointers)).await;
        self.report.pages = 1 + named(&indexes).len() + leaves.len();
        let names = named(&pointers).len();
        if names != self.superblock.pages as usize {
            let want = self.superblock.pages;
            self.report.damage(format!("{names} map and volume pages are named, not {want}"));
        }
        let mut tables = Tables::new(&self.superblock, &mut self.report);
        tables.add(leaves.into_iter().map(|(_, leaf)| leaf).collect());
        let (volumes, references) = tables.finish();
        let pages = Pages::new(&layout, pointers, indexes, root, &self.is_used);
        let Superblock { next_id, generation, .. } = self.superblock;
        Some(State::new(volumes, next_id, Clusters::new(references), pages, generation))
    }

    /// Reads pages and returns the good ones; [`Kind::Map`] stands for map and volume pages.
    async fn read(&mut self, kind: Kind, wanted: &[(u32, Pointer)]) -> Vec<(u32, Leaf)> {
        let layout = self.superblock.layout;
        let mut good = Vec::new();
        for batch in wanted.chunks(READS_MAX) {
            let mut reads: Vec<(u32, Pointer, IoFuture<Chunk>)> = Vec::new();
            for &(at, pointer) in batch {
                if self.take_slot(kind, at, pointer) {
                    let read = self.device.read(layout.slot_offset(pointer.slot), PAGE_BYTES);
                    reads.push((at, pointer, read));
                }
            }
            for (at, pointer, read) in reads {
                let bytes = match read.await {
                    Ok(chunk) => chunk.to_bytes().into_owned(),
                    Err(error) => {
                        self.report.damage(format!("{}: {error}", name(kind, at, pointer)));
                        continue;
                    }
                };
                match self.accept(kind, at, pointer, &bytes) {
                    Ok(header) => good.push((at, Leaf { position: at, header, bytes })),
                    Err(flaw) => {
                        self.report.damage(format!("{}: {flaw}", name(kind, at, pointer)));
                    }
                }
            }
        }
        good
    }

    fn take_slot(&mut self, kind: Kind, at: u32, pointer: Pointer) -> bool {
        let known = self.is_used.get_mut(pointer.slot as usize).filter(|_| !pointer.is_none());
        match known {
            None => {
                let text = format!("{}: there is no such slot", name(kind, at, pointer));
                self.report.damage(text);
                false
            }
            Some(true) => {
                let text = format!("{}: another page is there too", name(kind, at, pointer));
                self.report.damage(text);
                false
            }
            Some(is_used) => {
                *is_used = true;
                true
            }
        }
    }

    fn accept(
        &self,
        kind: Kind,
        at: u32,
        pointer: Pointer,
        bytes: &[u8],
    ) -> Result<Header, String> {
        let header = page::decode(bytes, pointer)?;
        let is_leaf = matches!(header.kind, Kind::Map | Kind::Volume);
        if header.kind != kind && !(kind == Kind::Map && is_leaf) {
            return Err(format!("it is a {:?} page", header.kind));
        }
        if header.generation > self.superblock.generation {
            return Err(format!(
                "it is of generation {}, which is in the future",
                header.generation
            ));
        }
        if !is_leaf && (header.index != at || header.owner != 0) {
            return Err(format!("it is number {}", header.index));
        }
        Ok(header)
    }
}

/// Returns all pointers that name a page, with their indices.
fn named(pointers: &[Pointer]) -> Vec<(u32, Pointer)> {
    (0..).zip(pointers.iter().copied()).filter(|(_, pointer)| !pointer.is_none()).collect()
}

fn name(kind: Kind, at: u32, pointer: Pointer) -> String {
    let slot = pointer.slot;
    match kind {
        Kind::Root => format!("root page in slot {slot}"),
        Kind::Index => format!("index page {at} in slot {slot}"),
        Kind::Volume | Kind::Map => format!("map or volume page {at} in slot {slot}"),
    }
}

/// Returns the layout in a superblock, if a pool can have it.
fn layout_of(superblock: &Superblock) -> Option<Layout> {
    let layout = superblock.layout;
    layout.is_possible().then_some(layout)
}
