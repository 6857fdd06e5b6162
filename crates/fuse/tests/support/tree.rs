//! The data of the in-memory file system: inodes, and the operations on names.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use fuse::{Attributes, Entry, Errno, Name, NodeId, Time};

pub type Result<T> = std::result::Result<T, Errno>;

/// One inode.
#[derive(Debug, Clone, Default)]
pub struct Inode {
    pub attributes: Attributes,
    pub btime: Time,
    pub data: Vec<u8>,
    pub entries: BTreeMap<Vec<u8>, u64>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub lookups: u64,
    pub opens: u64,
}

impl Inode {
    pub fn is_directory(&self) -> bool {
        self.attributes.mode & libc::S_IFMT == libc::S_IFDIR
    }

    pub fn touch(&mut self) {
        self.attributes.mtime = SystemTime::now().into();
        self.attributes.ctime = self.attributes.mtime;
    }

    pub fn resize(&mut self, size: u64) {
        self.data.resize(size as usize, 0);
        self.attributes.size = size;
        self.attributes.blocks = size.div_ceil(512);
        self.touch();
    }
}

/// All inodes.
#[derive(Debug)]
pub struct Tree {
    pub inodes: HashMap<u64, Inode>,
    next: u64,
    pub valid: Duration,
}

impl Tree {
    pub fn new(valid: Duration) -> Self {
        let mut tree = Self { inodes: HashMap::new(), next: 1, valid };
        tree.add(libc::S_IFDIR | 0o755, 0, 0, 0);
        tree
    }

    pub fn inode(&mut self, node: NodeId) -> Result<&mut Inode> {
        self.inodes.get_mut(&node.0).ok_or(Errno::STALE)
    }

    pub fn add(&mut self, mode: u32, uid: u32, gid: u32, rdev: u32) -> u64 {
        let inode = self.next;
        self.next += 1;
        let now = SystemTime::now().into();
        let attributes = Attributes {
            inode,
            mode,
            uid,
            gid,
            rdev,
            nlink: 1,
            atime: now,
            mtime: now,
            ctime: now,
            block_size: 4096,
            ..Attributes::default()
        };
        self.inodes.insert(inode, Inode { attributes, btime: now, ..Inode::default() });
        inode
    }

    pub fn find(&mut self, parent: NodeId, name: &[u8]) -> Result<u64> {
        self.inode(parent)?.entries.get(name).copied().ok_or(Errno::NOENT)
    }

    pub fn insert(&mut self, parent: NodeId, name: &Name, inode: u64) -> Result<Entry> {
        // The kernel itself accepts names of up to 1024 bytes.
        if name.as_bytes().len() > 255 {
            return Err(Errno::NAMETOOLONG);
        }
        let directory = self.inode(parent)?;
        if directory.entries.contains_key(name.as_bytes()) {
            return Err(Errno::EXIST);
        }
        directory.entries.insert(name.as_bytes().into(), inode);
        directory.touch();
        self.entry(inode)
    }

    /// Returns an entry for the kernel to cache.
    pub fn entry(&mut self, inode: u64) -> Result<Entry> {
        let valid = self.valid;
        let kept = self.inode(NodeId(inode))?;
        kept.lookups += 1;
        let attributes = kept.attributes;
        Ok(Entry {
            node: NodeId(inode),
            generation: 1,
            entry_valid: valid,
            attributes_valid: valid,
            attributes,
        })
    }

    pub fn remove(&mut self, parent: NodeId, name: &[u8], is_directory: bool) -> Result<()> {
        let inode = self.find(parent, name)?;
        let removed = self.inode(NodeId(inode))?;
        match (is_directory, removed.is_directory()) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            (true, true) if !removed.entries.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        removed.attributes.nlink -= 1;
        let directory = self.inode(parent)?;
        directory.entries.remove(name);
        directory.touch();
        self.reap(inode);
        Ok(())
    }

    pub fn rename(
        &mut self,
        (parent, name): (NodeId, &Name),
        (new_parent, new_name): (NodeId, &Name),
        flags: u32,
    ) -> Result<()> {
        let inode = self.find(parent, name.as_bytes())?;
        let target = self.find(new_parent, new_name.as_bytes()).ok();
        if flags & libc::RENAME_EXCHANGE != 0 {
            let target = target.ok_or(Errno::NOENT)?;
            self.inode(parent)?.entries.insert(name.as_bytes().into(), target);
            self.inode(new_parent)?.entries.insert(new_name.as_bytes().into(), inode);
            return Ok(());
        }
        if let Some(target) = target {
            if flags & libc::RENAME_NOREPLACE != 0 {
                return Err(Errno::EXIST);
            }
            let is_directory = self.inode(NodeId(target))?.is_directory();
            self.remove(new_parent, new_name.as_bytes(), is_directory)?;
        }
        self.inode(parent)?.entries.remove(name.as_bytes());
        self.inode(new_parent)?.entries.insert(new_name.as_bytes().into(), inode);
        Ok(())
    }

    /// Removes an inode without names, lookups and open files.
    pub fn reap(&mut self, inode: u64) {
        let is_gone = self.inodes.get(&inode).is_some_and(|inode| {
            inode.attributes.nlink == 0 && inode.lookups == 0 && inode.opens == 0
        });
        if is_gone {
            self.inodes.remove(&inode);
        }
    }

    pub fn forget(&mut self, node: NodeId, lookups: u64) {
        if let Some(inode) = self.inodes.get_mut(&node.0) {
            inode.lookups = inode.lookups.checked_sub(lookups).expect("never forgotten too often");
        }
        self.reap(node.0);
    }
}
