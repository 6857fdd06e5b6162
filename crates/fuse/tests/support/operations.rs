//! The effects of operations on an inode or the tree of the in-memory file system.

use std::time::SystemTime;

use fuse::{
    CopyFileRange, DirectoryBuffer, DirectoryEntry, Errno, FileHandle, FileType, NodeId, OpenFlags,
    Opened, Operation, ReadDirectory, Response, SetAttributes, SetTime,
};

use super::tree::{Inode, Result, Tree};

pub(super) fn opened() -> Opened {
    Opened { handle: FileHandle(1), flags: OpenFlags::PARALLEL_DIRECT_WRITES, backing: None }
}

pub(super) fn set_attributes(inode: &mut Inode, set: &SetAttributes) {
    if let Some(size) = set.size {
        inode.resize(size);
    }
    let attributes = &mut inode.attributes;
    attributes.mode = set.mode.unwrap_or(attributes.mode);
    attributes.uid = set.uid.unwrap_or(attributes.uid);
    attributes.gid = set.gid.unwrap_or(attributes.gid);
    let time = |time: SetTime| match time {
        SetTime::Now => SystemTime::now().into(),
        SetTime::At(time) => time,
    };
    attributes.atime = set.atime.map_or(attributes.atime, time);
    attributes.mtime = set.mtime.map_or(attributes.mtime, time);
    attributes.ctime = SystemTime::now().into();
}

pub(super) fn allocate(inode: &mut Inode, offset: u64, length: u64, mode: u32) {
    let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE as u32 != 0;
    let end = offset + length;
    if !keeps_size && end > inode.attributes.size {
        inode.resize(end);
    }
    if mode & libc::FALLOC_FL_PUNCH_HOLE as u32 != 0 {
        let end = inode.data.len().min(end as usize);
        let start = end.min(offset as usize);
        inode.data[start..end].fill(0);
    }
}

/// Data are bytes that are not zero; everything else is a hole.
pub(super) fn seek(inode: &Inode, offset: u64, whence: u32) -> Result<Response> {
    let wants_data = whence == libc::SEEK_DATA as u32;
    let rest = inode.data.get(offset as usize..).ok_or(Errno::NXIO)?;
    let found = rest.iter().position(|&byte| (byte != 0) == wants_data);
    match found {
        Some(position) => Ok(Response::Offset(offset + position as u64)),
        None if wants_data => Err(Errno::NXIO),
        None => Ok(Response::Offset(inode.data.len() as u64)),
    }
}

pub(super) fn xattr(inode: &mut Inode, operation: &Operation) -> Result<Response> {
    match operation {
        Operation::SetXattr { name, value, flags, .. } => {
            let exists = inode.xattrs.contains_key(&**name);
            if exists && flags & libc::XATTR_CREATE as u32 != 0 {
                return Err(Errno::EXIST);
            }
            if !exists && flags & libc::XATTR_REPLACE as u32 != 0 {
                return Err(Errno::NODATA);
            }
            inode.xattrs.insert(name.to_vec(), value.to_vec());
            Ok(Response::Done)
        }
        Operation::GetXattr { name, size } => {
            let value = inode.xattrs.get(&**name).ok_or(Errno::NODATA)?;
            Ok(Response::xattr(value, *size))
        }
        Operation::ListXattr { size } => {
            let names: Vec<u8> =
                inode.xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect();
            Ok(Response::xattr(&names, *size))
        }
        Operation::RemoveXattr { name } => {
            inode.xattrs.remove(&**name).map(|_| Response::Done).ok_or(Errno::NODATA)
        }
        _ => Err(Errno::NOSYS),
    }
}

pub(super) fn copy_range(tree: &mut Tree, node: NodeId, copy: &CopyFileRange) -> Result<Response> {
    let source = &tree.inode(node)?.data;
    let start = source.len().min(copy.offset_in as usize);
    let end = source.len().min(start + copy.length as usize);
    let bytes = source[start..end].to_vec();
    let target = tree.inode(copy.node_out)?;
    let end = copy.offset_out as usize + bytes.len();
    if target.data.len() < end {
        target.resize(end as u64);
    }
    target.data[copy.offset_out as usize..end].copy_from_slice(&bytes);
    Ok(Response::Copied(bytes.len() as u64))
}

/// Offsets are positions in the order of names, which is good enough while nothing changes.
pub(super) fn list_directory(
    tree: &mut Tree,
    node: NodeId,
    list: &ReadDirectory,
    plus: bool,
) -> Result<Response> {
    let entries: Vec<(Vec<u8>, u64)> =
        tree.inode(node)?.entries.iter().map(|(name, &inode)| (name.clone(), inode)).collect();
    let dots = [(b".".to_vec(), node.0), (b"..".to_vec(), node.0)];
    let all = dots.into_iter().chain(entries).enumerate().skip(list.offset as usize);
    let mut directory = DirectoryBuffer::new(list.size);
    for (index, (name, inode)) in all {
        let kind = FileType::from_mode(tree.inode(NodeId(inode))?.attributes.mode);
        let entry = DirectoryEntry { inode, offset: index as u64 + 1, kind, name: &name };
        let has_room = if plus && index >= 2 {
            let kept = tree.entry(inode)?;
            let has_room = directory.push_plus(Some(&kept), &entry);
            if !has_room {
                tree.forget(NodeId(inode), 1);
            }
            has_room
        } else if plus {
            directory.push_plus(None, &entry)
        } else {
            directory.push(&entry)
        };
        if !has_room {
            break;
        }
    }
    Ok(Response::Directory(directory))
}
