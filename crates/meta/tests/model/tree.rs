//! The reference model: the expected behaviour of the file system, written for clarity only.

use protocol::client::{Creation, FallocateMode, Name, RenameMode};
use protocol::{AllocationId, DeviceId, Errno, Extent, InodeId};
use std::collections::BTreeMap;

/// The location of a byte: allocation and offset in it.
pub(crate) type Byte = Option<(AllocationId, u32)>;

/// Stands for an allocation if the byte is in the store; the number beside it is the byte.
pub(crate) const INLINE: AllocationId = AllocationId { device: DeviceId::LOST, block: u64::MAX };

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) creation: Creation,
    pub(crate) parent: InodeId,
    pub(crate) entries: BTreeMap<Name, InodeId>,
    pub(crate) bytes: Vec<Byte>,
    /// The first bytes of the file, in the store; later extents may cover some of them.
    pub(crate) inline: Vec<u8>,
    pub(crate) xattrs: BTreeMap<Name, Vec<u8>>,
    pub(crate) nlink: u32,
    pub(crate) is_open: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) nodes: BTreeMap<InodeId, Node>,
}

impl Node {
    fn new(creation: Creation, parent: InodeId) -> Node {
        let nlink = if creation == Creation::Directory { 2 } else { 1 };
        Node {
            creation,
            parent,
            entries: BTreeMap::new(),
            bytes: Vec::new(),
            inline: Vec::new(),
            xattrs: BTreeMap::new(),
            nlink,
            is_open: false,
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.creation == Creation::Directory
    }

    /// Returns the bytes that hold data; each byte in the store counts, even under an extent.
    pub(crate) fn held(&self) -> u64 {
        let extents = self.bytes.iter().flatten().filter(|byte| byte.0 != INLINE);
        extents.count() as u64 + self.inline.len() as u64
    }

    /// Clears a range of the bytes in the store.
    fn clear_inline(&mut self, start: usize, end: usize) {
        if start < self.inline.len() {
            let end = end.min(self.inline.len());
            self.inline[start..end].fill(0);
            while self.inline.last() == Some(&0) {
                self.inline.pop();
            }
        }
    }
}

impl Model {
    pub(crate) fn new() -> Model {
        let root = Node::new(Creation::Directory, InodeId::ROOT);
        Model { nodes: BTreeMap::from([(InodeId::ROOT, root)]) }
    }

    fn node(&self, id: InodeId) -> Result<&Node, Errno> {
        self.nodes.get(&id).ok_or(Errno::ESTALE)
    }

    fn directory(&self, id: InodeId) -> Result<&Node, Errno> {
        let node = self.node(id)?;
        if node.is_directory() { Ok(node) } else { Err(Errno::ENOTDIR) }
    }

    fn living(&self, id: InodeId) -> Result<&Node, Errno> {
        let node = self.directory(id)?;
        if node.nlink == 0 { Err(Errno::ENOENT) } else { Ok(node) }
    }

    pub(crate) fn file(&mut self, id: InodeId) -> Result<&mut Node, Errno> {
        let node = self.nodes.get_mut(&id).ok_or(Errno::ESTALE)?;
        match node.creation {
            Creation::File => Ok(node),
            Creation::Directory => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    fn at(&mut self, id: InodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("the model names a node")
    }

    pub(crate) fn lookup(&self, parent: InodeId, name: &Name) -> Result<Option<InodeId>, Errno> {
        Ok(self.directory(parent)?.entries.get(name).copied())
    }

    pub(crate) fn create(
        &mut self,
        parent: InodeId,
        name: &Name,
        creation: &Creation,
        id: InodeId,
    ) -> Result<(), Errno> {
        if self.living(parent)?.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        self.nodes.insert(id, Node::new(creation.clone(), parent));
        let directory = self.at(parent);
        directory.entries.insert(name.clone(), id);
        directory.nlink += u32::from(*creation == Creation::Directory);
        Ok(())
    }

    pub(crate) fn link(&mut self, id: InodeId, parent: InodeId, name: &Name) -> Result<(), Errno> {
        let node = self.nodes.get(&id).ok_or(Errno::ENOENT)?;
        if self.living(parent)?.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        if node.is_directory() {
            return Err(Errno::EPERM);
        }
        if node.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        self.at(id).nlink += 1;
        self.at(parent).entries.insert(name.clone(), id);
        Ok(())
    }

    pub(crate) fn remove(
        &mut self,
        parent: InodeId,
        name: &Name,
        is_rmdir: bool,
    ) -> Result<(), Errno> {
        let directory = self.directory(parent)?;
        let id = *directory.entries.get(name).ok_or(Errno::ENOENT)?;
        let node = self.node(id)?;
        match (is_rmdir, node.is_directory()) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) if !node.entries.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.at(parent).nlink -= u32::from(is_rmdir);
        self.at(parent).entries.remove(name);
        self.drop_name(id);
        Ok(())
    }

    fn drop_name(&mut self, id: InodeId) {
        let node = self.at(id);
        node.nlink = if node.is_directory() { 0 } else { node.nlink - 1 };
        if node.nlink == 0 && !node.is_open {
            self.nodes.remove(&id);
        }
    }

    pub(crate) fn close(&mut self, id: InodeId) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.is_open = false;
            if node.nlink == 0 {
                self.nodes.remove(&id);
            }
        }
    }

    fn is_within(&self, mut id: InodeId, ancestor: InodeId) -> bool {
        while id != ancestor {
            if id == InodeId::ROOT {
                return false;
            }
            id = self.nodes[&id].parent;
        }
        true
    }

    pub(crate) fn rename(
        &mut self,
        (parent, name): (InodeId, &Name),
        (new_parent, new_name): (InodeId, &Name),
        mode: RenameMode,
        whiteout: InodeId,
    ) -> Result<(), Errno> {
        self.directory(parent)?;
        self.living(new_parent)?;
        let moved = *self.nodes[&parent].entries.get(name).ok_or(Errno::ENOENT)?;
        let present = self.nodes[&new_parent].entries.get(new_name).copied();
        match (mode, present) {
            (RenameMode::NoReplace | RenameMode::WhiteoutNoReplace, Some(_)) => {
                return Err(Errno::EEXIST);
            }
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        let is_dir = self.nodes[&moved].is_directory();
        if is_dir && self.is_within(new_parent, moved) {
            return Err(Errno::EINVAL);
        }
        if present == Some(moved) {
            return Ok(());
        }
        let present_is_dir = present.is_some_and(|id| self.nodes[&id].is_directory());
        if mode == RenameMode::Exchange {
            let present = present.ok_or(Errno::ENOENT)?;
            if present_is_dir && self.is_within(parent, present) {
                return Err(Errno::EINVAL);
            }
            self.at(parent).entries.insert(name.clone(), present);
            self.at(new_parent).entries.insert(new_name.clone(), moved);
            self.place(moved, parent, new_parent);
            self.place(present, new_parent, parent);
            return Ok(());
        }
        if let Some(id) = present {
            match (is_dir, present_is_dir) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.nodes[&id].entries.is_empty() => {
                    return Err(Errno::ENOTEMPTY);
                }
                _ => {}
            }
            self.at(new_parent).nlink -= u32::from(present_is_dir);
            self.drop_name(id);
        }
        self.at(parent).entries.remove(name);
        self.at(new_parent).entries.insert(new_name.clone(), moved);
        self.place(moved, parent, new_parent);
        if matches!(mode, RenameMode::Whiteout | RenameMode::WhiteoutNoReplace) {
            let creation = Creation::Special(protocol::FileKind::CharDevice, 0);
            self.create(parent, name, &creation, whiteout)?;
        }
        Ok(())
    }

    fn place(&mut self, id: InodeId, from: InodeId, to: InodeId) {
        if self.nodes[&id].is_directory() {
            self.at(from).nlink -= 1;
            self.at(to).nlink += 1;
        }
        // Only a directory knows its parent, but the model may store it for all.
        self.at(id).parent = to;
    }

    pub(crate) fn commit(&mut self, id: InodeId, extents: &[Extent]) -> Result<(), Errno> {
        let node = self.file(id)?;
        for extent in extents {
            let end = extent.end() as usize;
            if node.bytes.len() < end {
                node.bytes.resize(end, None);
            }
            node.clear_inline(extent.offset as usize, end);
            for i in 0..extent.length {
                let byte = (extent.place.allocation, extent.place.at + i);
                node.bytes[extent.offset as usize + i as usize] = Some(byte);
            }
        }
        Ok(())
    }

    /// Commits inline data of a value that is not 0.
    pub(crate) fn commit_inline(
        &mut self,
        id: InodeId,
        offset: usize,
        length: usize,
        value: u8,
    ) -> Result<(), Errno> {
        let node = self.file(id)?;
        let end = offset + length;
        if node.bytes.len() < end {
            node.bytes.resize(end, None);
        }
        node.bytes[offset..end].fill(Some((INLINE, u32::from(value))));
        if node.inline.len() < end {
            node.inline.resize(end, 0);
        }
        node.inline[offset..end].fill(value);
        Ok(())
    }

    pub(crate) fn truncate(&mut self, id: InodeId, size: usize) -> Result<(), Errno> {
        let node = self.file(id)?;
        node.bytes.resize(size, None);
        node.clear_inline(size, usize::MAX);
        Ok(())
    }

    pub(crate) fn fallocate(
        &mut self,
        id: InodeId,
        start: usize,
        length: usize,
        mode: FallocateMode,
    ) -> Result<(), Errno> {
        let node = self.file(id)?;
        let end = start + length;
        let (clears, keeps) = match mode {
            FallocateMode::Allocate { keep_size } => (false, keep_size),
            FallocateMode::Punch => (true, true),
            FallocateMode::Zero { keep_size } => (true, keep_size),
        };
        if clears && start < node.bytes.len() {
            let to = end.min(node.bytes.len());
            node.bytes[start..to].fill(None);
            node.clear_inline(start, end);
        }
        if !keeps && node.bytes.len() < end {
            node.bytes.resize(end, None);
        }
        Ok(())
    }

    pub(crate) fn copy(
        &mut self,
        (source, from): (InodeId, usize),
        (destination, to): (InodeId, usize),
        length: usize,
    ) -> Result<usize, Errno> {
        let bytes = self.file(source)?.bytes.clone();
        let is_inline = from < self.file(source)?.inline.len();
        let node = self.file(destination)?;
        let length = length.min(bytes.len().saturating_sub(from));
        if length == 0 {
            return Ok(0);
        }
        if source == destination && from.abs_diff(to) < length {
            return Err(Errno::EINVAL);
        }
        if is_inline {
            return Err(Errno::EXDEV);
        }
        if node.bytes.len() < to + length {
            node.bytes.resize(to + length, None);
        }
        node.bytes[to..to + length].copy_from_slice(&bytes[from..from + length]);
        node.clear_inline(to, to + length);
        Ok(length)
    }
}
