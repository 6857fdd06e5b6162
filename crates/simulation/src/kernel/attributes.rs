//! Attributes, extended attributes, and statistics of the file system.

use super::inode::Inode;
use super::walk::{Path, twice};
use super::{Answer, Caller, Kernel};
use fuse::{FileSystemStatistics, Operation, Response, SetAttributes};
use protocol::{Errno, InodeId};
use reactor::Chunk;
use std::rc::Rc;

/// Room for the value of an extended attribute, in bytes.
const VALUE_BYTES: u32 = 4096;

impl Kernel {
    /// Requests attributes if they are not valid. Returns whether the inode now has the attributes
    /// of the answer: the kernel drops an answer if a notification of a change came after the
    /// request, and keeps the old attributes.
    pub(super) async fn get_attributes(
        self: &Rc<Self>,
        caller: Caller,
        inode: &Rc<Inode>,
    ) -> Answer<bool> {
        if inode.is_valid() {
            return Ok(true);
        }
        let version = self.attr_version.get();
        let operation = Operation::GetAttributes { handle: None };
        match self.request(caller, inode.node, operation).await? {
            Response::Attributes { attributes, valid } => {
                Ok(self.update(inode, attributes, valid, version).await)
            }
            other => panic!("GETATTR is answered with {other:?}"),
        }
    }

    async fn set_attributes(
        self: &Rc<Self>,
        caller: Caller,
        inode: &Rc<Inode>,
        set: SetAttributes,
    ) -> Answer<()> {
        let before = inode.size();
        let operation = Operation::SetAttributes(set);
        match self.request(caller, inode.node, operation).await? {
            Response::Attributes { attributes, valid } => {
                inode.set(attributes, valid, self.next_version());
                if inode.is_file() && before != attributes.size {
                    inode.drop_pages(0, u64::MAX).await;
                }
                Ok(())
            }
            other => panic!("SETATTR is answered with {other:?}"),
        }
    }

    /// truncate(2). `acts` gets the inode that the path has led to.
    pub(crate) async fn truncate(
        self: &Rc<Self>,
        caller: Caller,
        path: Path<'_>,
        size: u64,
        acts: impl Fn(InodeId),
    ) -> Answer<()> {
        twice(async |looking| {
            let inode = self.walk(caller, path, looking).await?;
            if inode.is_directory() {
                return Err(Errno::EISDIR);
            }
            if !inode.is_file() {
                return Err(Errno::EINVAL);
            }
            let _lock = inode.lock().await;
            acts(inode.number());
            let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
            self.set_attributes(caller, &inode, set).await
        })
        .await
    }

    /// chmod(2). `acts` gets the inode that the path has led to.
    pub(crate) async fn chmod(
        self: &Rc<Self>,
        caller: Caller,
        path: Path<'_>,
        mode: u32,
        acts: impl Fn(InodeId),
    ) -> Answer<()> {
        twice(async |looking| {
            let inode = self.walk(caller, path, looking).await?;
            let _lock = inode.lock().await;
            acts(inode.number());
            let mode = Some(inode.kind() | mode);
            let set = SetAttributes { mode, ..SetAttributes::default() };
            self.set_attributes(caller, &inode, set).await
        })
        .await
    }

    /// setxattr(2). `acts` gets the inode that the path has led to.
    pub(crate) async fn set_xattr(
        self: &Rc<Self>,
        caller: Caller,
        path: Path<'_>,
        (name, value, flags): (&[u8], &[u8], i32),
        acts: impl Fn(InodeId),
    ) -> Answer<()> {
        twice(async |looking| {
            let inode = self.walk(caller, path, looking).await?;
            let _lock = inode.lock().await;
            acts(inode.number());
            let operation = Operation::SetXattr {
                name: name.into(),
                value: value.into(),
                flags: flags.cast_unsigned(),
                acl_kill_sgid: false,
            };
            self.request(caller, inode.node, operation).await?;
            inode.expire_attributes();
            Ok(())
        })
        .await
    }

    /// getxattr(2). Returns the value and the inode that has it.
    pub(crate) async fn xattr(
        self: &Rc<Self>,
        caller: Caller,
        path: Path<'_>,
        name: &[u8],
    ) -> Answer<(InodeId, Vec<u8>)> {
        twice(async |looking| {
            let inode = self.walk(caller, path, looking).await?;
            let operation = Operation::GetXattr { name: name.into(), size: VALUE_BYTES };
            let answer = self.request(caller, inode.node, operation).await?;
            Ok((inode.number(), data(&answer)))
        })
        .await
    }

    /// listxattr(2).
    pub(crate) async fn xattrs(self: &Rc<Self>, caller: Caller, path: Path<'_>) -> Answer<()> {
        twice(async |looking| {
            let inode = self.walk(caller, path, looking).await?;
            let operation = Operation::ListXattr { size: VALUE_BYTES };
            self.request(caller, inode.node, operation).await.map(drop)
        })
        .await
    }

    /// removexattr(2).
    pub(crate) async fn remove_xattr(
        self: &Rc<Self>,
        caller: Caller,
        path: Path<'_>,
        name: &[u8],
    ) -> Answer<()> {
        twice(async |looking| {
            let inode = self.walk(caller, path, looking).await?;
            let _lock = inode.lock().await;
            let operation = Operation::RemoveXattr { name: name.into() };
            self.request(caller, inode.node, operation).await?;
            inode.expire_attributes();
            Ok(())
        })
        .await
    }

    /// statfs(2).
    pub(crate) async fn statfs(self: &Rc<Self>, caller: Caller) -> Answer<FileSystemStatistics> {
        match self.request(caller, self.root.node, Operation::StatFs).await? {
            Response::Statistics(statistics) => Ok(statistics),
            other => panic!("STATFS is answered with {other:?}"),
        }
    }
}

/// Returns the bytes of an answer.
pub(super) fn data(answer: &Response) -> Vec<u8> {
    let Response::Data(chunks) = answer else { panic!("bytes are wanted, not {answer:?}") };
    let mut bytes = Vec::with_capacity(chunks.iter().map(Chunk::len).sum());
    for chunk in chunks {
        bytes.extend_from_slice(&chunk.to_bytes());
    }
    bytes
}
