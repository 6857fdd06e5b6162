//! Extended attributes.

use crate::client::Client;
use protocol::client::{Answer, Call, ChangeCall, ReadCall, XattrMode};
use protocol::{CAPABILITY_XATTR, Errno, InodeId};
use std::rc::Rc;

impl Client {
    /// Returns one extended attribute.
    ///
    /// # Errors
    /// ENODATA, those of a call.
    pub async fn xattr(self: &Rc<Self>, id: InodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        if self.has_no_xattrs(id) || name == CAPABILITY_XATTR && self.has_written(id) {
            return Err(Errno::ENODATA);
        }
        let call = Call::Read(ReadCall::GetXattr { inode: id, name: name.to_vec() });
        match self.session.call(call).await? {
            Answer::Bytes(bytes) => Ok(bytes),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Returns whether an inode is known to have no extended attributes. (The kernel asks for the
    /// file capabilities of each file that is truncated or changes its owner.)
    fn has_no_xattrs(&self, id: InodeId) -> bool {
        let inode = self.known_inode(id);
        inode.is_some_and(|inode| inode.state.borrow().has_no_xattrs)
            && self.session.life.is_alive()
    }

    /// Returns whether there is uncommitted data; its commit removes file capabilities.
    fn has_written(&self, id: InodeId) -> bool {
        self.known_inode(id).is_some_and(|inode| !inode.dirty.borrow().is_clean())
    }

    /// Returns the names of all extended attributes.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn xattrs(self: &Rc<Self>, id: InodeId) -> Result<Vec<Vec<u8>>, Errno> {
        if self.has_no_xattrs(id) {
            return Ok(Vec::new());
        }
        match self.session.call(Call::Read(ReadCall::ListXattr(id))).await? {
            Answer::Names(mut names) => {
                if self.has_written(id) {
                    names.retain(|name| name != CAPABILITY_XATTR);
                }
                Ok(names)
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// EEXIST, ENODATA (by `mode`), E2BIG, ERANGE, those of a call.
    pub async fn set_xattr(
        self: &Rc<Self>,
        id: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        if let Some(inode) = self.known_inode(id) {
            if name == CAPABILITY_XATTR {
                // Earlier writes must not remove it when they are committed.
                self.commit(&inode, false).await?;
            }
            inode.state.borrow_mut().has_no_xattrs = false;
        }
        let call = Call::Change(ChangeCall::SetXattr {
            inode: id,
            name: name.to_vec(),
            value: value.to_vec(),
            mode,
        });
        self.session.call(call).await.map(drop)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// ENODATA, those of a call.
    pub async fn remove_xattr(self: &Rc<Self>, id: InodeId, name: &[u8]) -> Result<(), Errno> {
        let call = Call::Change(ChangeCall::RemoveXattr { inode: id, name: name.to_vec() });
        self.session.call(call).await.map(drop)
    }
}
