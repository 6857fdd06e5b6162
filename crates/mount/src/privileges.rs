//! What a change of a file's data takes away: suid, sgid and file capabilities.
//!
//! The metadata service removes capabilities with every change of data or size, whoever makes it. For suid
//! and sgid the kernel sets a flag in WRITE, SETATTR and OPEN, unless the caller has `CAP_FSETID`. It has
//! none in FALLOCATE and `COPY_FILE_RANGE`, and clears nothing itself (`HANDLE_KILLPRIV_V2`): there, root is
//! taken to have that capability, and others not to. They are cleared before the change, as on ext4.
//!
//! sgid without the group's execute bit stays for members of the file's group. The kernel tells only the
//! caller's own group, not its supplementary ones: who is a member by those alone counts as a stranger.

use crate::server::Server;
use protocol::attr::AttrChanges;
use protocol::{Attr, Errno, FileKind, InodeId};
use std::rc::Rc;

const SUID: u16 = 0o4000;
const SGID: u16 = 0o2000;

/// The mode of a file after a caller of this group without `CAP_FSETID` has changed its data.
fn mode_after_change(attr: &Attr, gid: u32) -> u16 {
    let is_stranger = attr.gid != gid;
    attr.without_privileges() & if is_stranger { !SGID } else { !0 }
}

impl Server {
    /// Before a FALLOCATE or `COPY_FILE_RANGE` of a caller: clears what it takes away.
    pub(crate) async fn clear_privileges(
        self: &Rc<Self>,
        id: InodeId,
        (uid, gid): (u32, u32),
    ) -> Result<(), Errno> {
        if uid == 0 { Ok(()) } else { self.clear_to(id, gid).await }
    }

    /// Before a change whose flag says that its caller has no `CAP_FSETID`: clears sgid for a stranger
    /// to the file's group, which the flag does not.
    pub(crate) async fn clear_of_stranger(
        self: &Rc<Self>,
        id: InodeId,
        gid: u32,
    ) -> Result<(), Errno> {
        // A write before, not committed yet, has looked.
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
