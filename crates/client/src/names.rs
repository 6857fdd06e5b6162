//! Names: creating, linking, removing and renaming. In the modules below: looking up and listing
//! (`lookup`), holding a directory's names (`held`), many small files with one call
//! (`create_files`), extended attributes (`xattrs`).

mod create_files;
pub(crate) mod held;
pub(crate) mod lookup;
mod xattrs;

use crate::attributes::attr_of;
use crate::client::Client;
use crate::inode::entries::Known;
use crate::names::lookup::check_name;
use crate::removals::Removal;
use protocol::client::{Answer, Call, ChangeCall, Creation, OpenTold, ReadCall, RenameMode};
use protocol::{Attr, Errno, InodeId, Rights};
use std::rc::Rc;

/// Owner and permission bits of a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Permission bits (`07777`), after the umask.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// The outcome of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The inode that has the new name now.
    pub moved: InodeId,
    /// The inode that has the old name after an exchange.
    pub other: Option<InodeId>,
}

impl Client {
    /// Creates a directory, symbolic link, FIFO, socket or device node, and takes a reference to
    /// it.
    ///
    /// # Errors
    /// EEXIST, ENOENT, ENOTDIR, ENAMETOOLONG, those of a call.
    pub async fn make(
        self: &Rc<Self>,
        parent: InodeId,
        name: &[u8],
        creation: Creation,
        setting: Setting,
    ) -> Result<Attr, Errno> {
        self.wait_for_names(parent).await;
        self.create_with(parent, name, creation, setting, Rights::READ).await
    }

    /// Creates an inode with these rights over it, and takes a reference to it.
    pub(crate) async fn create_with(
        self: &Rc<Self>,
        parent: InodeId,
        name: &[u8],
        creation: Creation,
        setting: Setting,
        rights: Rights,
    ) -> Result<Attr, Errno> {
        check_name(name)?;
        let Setting { mode, uid, gid } = setting;
        let name = name.to_vec();
        let call =
            Call::Change(ChangeCall::Create { parent, name, creation, mode, uid, gid, rights });
        let attr = attr_of(&self.session.call(call).await?)?;
        self.refer(attr.inode);
        Ok(attr)
    }

    /// Creates a hard link (`link(2)`), and takes a reference to the inode.
    ///
    /// # Errors
    /// EEXIST, EPERM for a directory, EMLINK, those of a call.
    pub async fn link(
        self: &Rc<Self>,
        id: InodeId,
        parent: InodeId,
        name: &[u8],
    ) -> Result<Attr, Errno> {
        check_name(name)?;
        self.wait_for_names(parent).await;
        let before = self.commits.get();
        let call = Call::Change(ChangeCall::Link { inode: id, parent, name: name.to_vec() });
        let attr = attr_of(&self.session.call(call).await?)?;
        let attr = match self.shown(attr, before).await {
            // It has lost all names since. The link was made, so the kernel must not repeat it.
            Err(Errno::ESTALE) => attr,
            shown => shown?,
        };
        self.refer(id);
        Ok(attr)
    }

    /// Removes a name (`unlink(2)`).
    ///
    /// # Errors
    /// ENOENT, EISDIR, those of a call.
    pub async fn unlink(self: &Rc<Self>, parent: InodeId, name: &[u8]) -> Result<(), Errno> {
        check_name(name)?;
        let mut removal = self.removals.begin();
        let told = self.register_open(&mut removal, parent, name).await?;
        let call = Call::Change(ChangeCall::Unlink { parent, name: name.to_vec(), told });
        self.call_removal(call).await
    }

    /// Prepares for the loss of a name. If this client has the named inode open, the service must
    /// know, because it asks only the other sessions. A task that opens the inode from now on sees
    /// that its `removal` is under way. Returns what was reported: if the name names another inode
    /// by the time it goes, the service asks this client.
    async fn register_open(
        self: &Rc<Self>,
        removal: &mut Removal<'_>,
        parent: InodeId,
        name: &[u8],
    ) -> Result<OpenTold, Errno> {
        let found = match self.cached_entry(parent, name) {
            Known::Inode(id) => Some(id),
            Known::Absent => None,
            Known::Unknown if self.open_files.get() == 0 => return Ok(OpenTold::OfAny),
            Known::Unknown => {
                let call = Call::Read(ReadCall::Lookup { parent, name: name.to_vec() });
                match self.session.call(call).await? {
                    Answer::Entry(attr) => Some(attr.inode),
                    _ => None,
                }
            }
        };
        removal.found(found);
        let Some(id) = found else { return Ok(OpenTold::OfNone) };
        if let Some(inode) = self.known_inode(id) {
            let is_open = inode.state.borrow().opens > 0;
            if is_open && !reactor::mutant!("removal-untold") {
                match self.report_open(&inode).await {
                    // The inode is gone; nothing of it has to be kept.
                    Err(Errno::ESTALE) => {}
                    reported => reported?,
                }
            }
        }
        Ok(OpenTold::Of(id))
    }

    /// Removes a directory (`rmdir(2)`).
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, those of a call.
    pub async fn rmdir(self: &Rc<Self>, parent: InodeId, name: &[u8]) -> Result<(), Errno> {
        check_name(name)?;
        self.call_removal(Call::Change(ChangeCall::Rmdir { parent, name: name.to_vec() })).await
    }

    /// Makes a call that removes a name, and drops data that lost its last name.
    async fn call_removal(self: &Rc<Self>, call: Call) -> Result<(), Errno> {
        match self.session.call(call).await? {
            Answer::Removed { inode, left } => {
                self.lost_name(inode, left.is_none());
                Ok(())
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// Drops dirty data after an inode has lost its last name: data that cannot be reached need not
    /// be written.
    fn lost_name(&self, id: InodeId, was_last: bool) {
        if !was_last {
            return;
        }
        if let Some(inode) = self.known_inode(id)
            && inode.state.borrow().opens == 0
        {
            self.discard_dirty(&inode);
        }
    }

    /// Renames (`renameat2(2)`).
    ///
    /// # Errors
    /// ENOENT, EEXIST, ENOTEMPTY, EINVAL for a directory into itself, those of a call.
    pub async fn rename(
        self: &Rc<Self>,
        from: (InodeId, &[u8]),
        to: (InodeId, &[u8]),
        mode: RenameMode,
    ) -> Result<Renamed, Errno> {
        check_name(from.1)?;
        check_name(to.1)?;
        self.wait_for_names(to.0).await;
        let replaces = mode == RenameMode::Replace || mode == RenameMode::Whiteout;
        let mut removal = replaces.then(|| self.removals.begin());
        let told = match &mut removal {
            Some(removal) => self.register_open(removal, to.0, to.1).await?,
            None => OpenTold::OfNone,
        };
        let call = Call::Change(ChangeCall::Rename {
            parent: from.0,
            name: from.1.to_vec(),
            new_parent: to.0,
            new_name: to.1.to_vec(),
            mode,
            told,
        });
        match self.session.call(call).await? {
            Answer::Renamed { moved, other, replaced } => {
                if let Some((inode, left)) = replaced {
                    self.lost_name(inode, left.is_none());
                }
                Ok(Renamed { moved: moved.inode, other: other.map(|attr| attr.inode) })
            }
            _ => Err(Errno::EPROTO),
        }
    }
}
