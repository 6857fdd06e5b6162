//! Listings: OPENDIR, READDIRPLUS or READDIR, RELEASEDIR.

use super::inode::Inode;
use super::{Answer, Caller, Kernel};
use fuse::{
    Attributes, Entry, FileHandle, NodeId, Opened, Operation, ReadDirectory, Release, Response,
    Time,
};
use protocol::{Errno, InodeId};
use std::rc::Rc;
use std::time::Duration;

/// Bytes of `fuse_entry_out` and of `fuse_dirent` without its name.
const ENTRY_BYTES: usize = 128;
const DIRENT_BYTES: usize = 24;

/// An entry of a listing.
#[derive(Debug)]
struct Listed {
    number: InodeId,
    offset: u64,
    name: Vec<u8>,
    /// With READDIRPLUS.
    entry: Option<Entry>,
}

impl Kernel {
    /// Lists a directory; without a name, the root.
    pub(crate) async fn list(
        self: &Rc<Self>,
        caller: Caller,
        directory: Option<&str>,
    ) -> Answer<Vec<(String, InodeId)>> {
        let inode = super::walk::twice(async |looking| {
            let path = super::walk::Path { directory, name: "" };
            let inode = self.parent(caller, path, looking).await?;
            let operation = Operation::OpenDirectory { flags: libc::O_DIRECTORY as u32 };
            match self.request(caller, inode.node, operation).await? {
                Response::Opened(opened) => Ok((inode, opened)),
                other => panic!("OPENDIR is answered with {other:?}"),
            }
        });
        let (inode, opened) = inode.await?;
        let listed = self.read_directory(caller, &inode, &opened).await;
        let release = Release {
            handle: opened.handle,
            flags: libc::O_DIRECTORY as u32,
            flush: false,
            flock_unlock: None,
        };
        let node = inode.node;
        self.request_in_background(node, Operation::ReleaseDirectory(release), inode);
        listed
    }

    async fn read_directory(
        self: &Rc<Self>,
        caller: Caller,
        inode: &Rc<Inode>,
        opened: &Opened,
    ) -> Answer<Vec<(String, InodeId)>> {
        let size = if self.chance(50) { 4096 } else { 32 << 10 };
        let mut found = Vec::new();
        let mut offset = 0;
        loop {
            let _lock = inode.lock_shared().await;
            let plus = offset == 0 || inode.wants_plus.take();
            let version = (self.attr_version.get(), self.epoch.get());
            let bytes =
                self.read_once_directory(caller, inode, opened.handle, (offset, size), plus);
            let bytes = bytes.await?;
            if bytes.is_empty() {
                return Ok(found);
            }
            for listed in parse(&bytes, plus) {
                offset = listed.offset;
                if listed.name == b"." || listed.name == b".." {
                    continue;
                }
                if let Some(entry) = listed.entry.filter(|entry| entry.node.0 != 0) {
                    self.link_listed(inode, &listed.name, &entry, version).await;
                }
                found.push((String::from_utf8_lossy(&listed.name).into_owned(), listed.number));
            }
        }
    }

    async fn read_once_directory(
        self: &Rc<Self>,
        caller: Caller,
        inode: &Rc<Inode>,
        handle: FileHandle,
        (offset, size): (u64, u32),
        plus: bool,
    ) -> Answer<Vec<u8>> {
        let read = ReadDirectory { handle, offset, size };
        let operation =
            if plus { Operation::ReadDirectoryPlus(read) } else { Operation::ReadDirectory(read) };
        match self.request(caller, inode.node, operation).await? {
            Response::Directory(buffer) => Ok(buffer.into_buffer().to_vec()),
            other => panic!("READDIR is answered with {other:?}"),
        }
    }

    /// Enters a listed name into the cache of names (`fuse_direntplus_link`).
    async fn link_listed(
        self: &Rc<Self>,
        directory: &Rc<Inode>,
        name: &[u8],
        entry: &Entry,
        (version, epoch): (u64, u64),
    ) {
        let known = {
            let dentries = self.dentries.borrow();
            let dentry = dentries.get(&(directory.node, Box::from(name)));
            dentry.and_then(|dentry| dentry.inode.clone())
        };
        if known.is_none_or(|known| known.node != entry.node.0) {
            self.invalidate(directory.node, name);
        }
        let inode = self.inode(entry, version).await;
        // A directory that cannot be moved stays unknown, and the kernel forgets its lookup.
        match self.splice(directory, name, &inode, entry.entry_valid, epoch) {
            Ok(()) | Err(Errno::ESTALE) => {}
            Err(errno) => panic!("a listed name gives {errno}"),
        }
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn small(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn parse(mut bytes: &[u8], plus: bool) -> Vec<Listed> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let entry = plus.then(|| parse_entry(&bytes[..ENTRY_BYTES]));
        let dirent = if plus { &bytes[ENTRY_BYTES..] } else { bytes };
        let length = small(dirent, 16) as usize;
        all.push(Listed {
            number: InodeId(number(dirent, 0)),
            offset: number(dirent, 8),
            name: dirent[DIRENT_BYTES..DIRENT_BYTES + length].to_vec(),
            entry,
        });
        bytes = &dirent[(DIRENT_BYTES + length).next_multiple_of(8)..];
    }
    all
}

fn parse_entry(bytes: &[u8]) -> Entry {
    let time = |at: usize, nanoseconds: usize| Time {
        seconds: number(bytes, at).cast_signed(),
        nanoseconds: small(bytes, nanoseconds),
    };
    // `fuse_attr` begins at byte 40.
    let attributes = Attributes {
        inode: number(bytes, 40),
        size: number(bytes, 48),
        blocks: number(bytes, 56),
        atime: time(64, 88),
        mtime: time(72, 92),
        ctime: time(80, 96),
        mode: small(bytes, 100),
        nlink: small(bytes, 104),
        uid: small(bytes, 108),
        gid: small(bytes, 112),
        rdev: small(bytes, 116),
        block_size: small(bytes, 120),
    };
    Entry {
        node: NodeId(number(bytes, 0)),
        generation: number(bytes, 8),
        entry_valid: Duration::new(number(bytes, 16), small(bytes, 32)),
        attributes_valid: Duration::new(number(bytes, 24), small(bytes, 36)),
        attributes,
    }
}
