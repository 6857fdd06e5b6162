//! The privileges that a change of a file's data removes: suid, sgid and file capabilities.
//!
//! The metadata service removes capabilities with every change of data or size. For suid and sgid
//! the kernel sets a flag in WRITE, SETATTR and OPEN, unless the caller has `CAP_FSETID`. FALLOCATE
//! and `COPY_FILE_RANGE` have no such flag, and the kernel itself clears nothing
//! (`HANDLE_KILLPRIV_V2`). For these two the mount assumes that root has the capability and others
//! do not. It clears the bits before the change, as ext4 does.
//!
//! sgid without the group's execute bit stays for members of the file's group. A request contains
//! only the caller's primary group. So a caller that is a member through a supplementary group
//! counts as a stranger.

use crate::server::Server;
use protocol::attr::AttrChanges;
use protocol::{Attr, Errno, FileKind, InodeId};
use std::rc::Rc;

const SUID: u16 = 0o4000;
const SGID: u16 = 0o2000;

/// Returns the mode of a file after a caller with this group and without `CAP_FSETID` has changed
/// its data.
fn mode_after_change(attr: &Attr, gid: u32) -> u16 {
    let is_stranger = attr.gid != gid;
    attr.without_privileges() & if is_stranger { !SGID } else { !0 }
}

impl Server {
    /// Clears the privileges that a caller's FALLOCATE or `COPY_FILE_RANGE` removes; called before
    /// it.
    pub(crate) async fn clear_privileges(
        self: &Rc<Self>,
        id: InodeId,
        (uid, gid): (u32, u32),
    ) -> Result<(), Errno> {
        if uid == 0 { Ok(()) } else { self.clear_to(id, gid).await }
    }

    /// Clears sgid if the caller is a stranger to the file's group, before a change whose flag says
    /// that the caller has no `CAP_FSETID`. The flag itself does not cover sgid.
    pub(crate) async fn clear_of_stranger(
        self: &Rc<Self>,
        id: InodeId,
        gid: u32,
    ) -> Result<(), Errno> {
        // An earlier write that is not committed yet has checked this already.
        if self.client.kills_privileges(id) { Ok(()) } else { self.clear_to(id, gid).await }
    }

    async fn clear_to(self: &Rc<Self>, id: InodeId, gid: u32) -> Result<(), Errno> {
        let attr = self.client.attr(id).await?;
        let mode = mode_after_change(&attr, gid);
        if attr.kind != FileKind::File || attr.mode & (SUID | SGID) == 0 || mode == attr.mode {
            return Ok(());
        }
        let changes = AttrChanges { mode: Some(mode), ..AttrChanges::default() };
        self.client.set_attr(id, changes).await?;
        // The kernel does not know that its WRITE has changed a mode.
        self.client.take_back_attributes(id).await;
        Ok(())
    }
}
