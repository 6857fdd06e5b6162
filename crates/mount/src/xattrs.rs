//! Extended attributes, including those that show and set layouts.

use crate::counts::MountCounts;
use crate::server::Server;
use fuse::Response;
use protocol::attr::{AttrChanges, Layout};
use protocol::client::XattrMode;
use protocol::files::NewFile;
use protocol::{Errno, InodeId};
use std::rc::Rc;

/// Shows and sets the layout of a file's data, as `stripe_size=BYTES,stripe_count=N`.
pub(crate) const LAYOUT_XATTR: &[u8] = b"user.tsumugi.layout";

/// Shows this mount's counts, on the root directory, as JSON.
const COUNTS_XATTR: &[u8] = b"user.tsumugi.counts";

/// The namespaces of attributes that are stored (xattr(7)).
const NAMESPACES: [&str; 3] = ["user.", "trusted.", "security."];

/// The label of a security module.
const SELINUX_XATTR: &[u8] = b"security.selinux";

/// The mode bit of a directory that passes its group on to new files.
const SGID: u16 = 0o2000;

/// Bounds of a stripe, in bytes; a stripe is a multiple of the lower.
const STRIPE_BYTES_MIN: u32 = 64 << 10;
const STRIPE_BYTES_MAX: u32 = 1 << 30;

impl Server {
    /// Reads an extended attribute.
    pub(crate) async fn xattr(
        self: &Rc<Self>,
        id: InodeId,
        name: &[u8],
        size: u32,
    ) -> Result<Response, Errno> {
        check_namespace(name)?;
        let value = if name == LAYOUT_XATTR {
            render(self.client.attr(id).await?.layout).into_bytes()
        } else if id == InodeId::ROOT && name == COUNTS_XATTR {
            let counts = MountCounts { client: self.client.counts(), requests: &self.requests };
            serde_json::to_vec(&counts).map_err(|_| Errno::EIO)?
        } else {
            self.client.xattr(id, name).await?
        };
        Ok(Response::xattr(&value, size))
    }

    /// Makes files in a directory. The kernel has checked that the caller may write to the
    /// directory, as for any extended attribute; a create also requires search permission.
    pub(crate) async fn create_files(
        self: &Rc<Self>,
        id: InodeId,
        caller: (u32, u32),
        value: &[u8],
    ) -> Result<(), Errno> {
        let mut files = protocol::files::decode(value)?;
        // Only root may create files of other owners.
        if caller.0 != 0 {
            let directory = self.client.attr(id).await?;
            if !may_search(directory.mode, directory.uid == caller.0) {
                return Err(Errno::EOPNOTSUPP);
            }
            let handed_on = (directory.mode & SGID != 0).then_some(directory.gid);
            for file in &mut files {
                give(file, caller, handed_on);
            }
        }
        self.client.create_files(id, files).await
    }

    /// Lists the names of the extended attributes, those of `trusted.*` only to root: others could
    /// not read these attributes, and programs that copy all would fail.
    pub(crate) async fn xattrs(
        self: &Rc<Self>,
        id: InodeId,
        size: u32,
        uid: u32,
    ) -> Result<Response, Errno> {
        let mut list = Vec::new();
        let is_shown = |name: &Vec<u8>| uid == 0 || !name.starts_with(b"trusted.");
        for name in self.client.xattrs(id).await?.into_iter().filter(is_shown) {
            list.extend_from_slice(&name);
            list.push(0);
        }
        Ok(Response::xattr(&list, size))
    }

    /// Sets an extended attribute.
    pub(crate) async fn set_xattr(
        self: &Rc<Self>,
        id: InodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        check_namespace(name)?;
        if name == LAYOUT_XATTR {
            let layout = parse(value).ok_or(Errno::EINVAL)?;
            let changes = AttrChanges { layout: Some(layout), ..AttrChanges::default() };
            return self.client.set_attr(id, changes).await.map(drop);
        }
        let mode = match flags as i32 {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::EINVAL),
        };
        self.client.set_xattr(id, name, value, mode).await
    }
}

/// Returns whether a user that may write to a directory may certainly search it. A request does not
/// contain all groups of its caller, so neither group nor others may have write permission without
/// search permission.
fn may_search(mode: u16, is_owner: bool) -> bool {
    let grants_more_than_write = |shift: u16| (mode >> shift) & 0o3 != 0o2;
    if is_owner {
        mode & 0o100 != 0
    } else {
        grants_more_than_write(0) && grants_more_than_write(3)
    }
}

/// Makes an ordinary user the owner of a file, as a create would. A directory with sgid passes its
/// group on. If that is not the user's own group, the file gets no sgid bit, as in the kernel.
fn give(file: &mut NewFile, (uid, gid): (u32, u32), handed_on: Option<u32>) {
    (file.uid, file.gid) = (uid, handed_on.unwrap_or(gid));
    if file.gid != gid {
        file.mode &= !SGID;
    }
}

/// Refuses attributes that belong to no namespace of ours, as file systems do to which a file may be
/// copied later. ACLs (`system.*`) and security labels would be stored but not enforced. Programs
/// that look for them, such as `ls -l`, stop asking about further files of the mount after this
/// answer.
fn check_namespace(name: &[u8]) -> Result<(), Errno> {
    let rest = NAMESPACES.iter().find_map(|namespace| name.strip_prefix(namespace.as_bytes()));
    match rest {
        None => Err(Errno::EOPNOTSUPP),
        Some(_) if name == SELINUX_XATTR => Err(Errno::EOPNOTSUPP),
        Some(b"") => Err(Errno::EINVAL),
        Some(_) => Ok(()),
    }
}

fn render(layout: Layout) -> String {
    let Layout { stripe_size_bytes, stripe_count } = layout;
    format!("stripe_size={stripe_size_bytes},stripe_count={stripe_count}")
}

/// Reads a layout: `stripe_size=BYTES` and `stripe_count=N` (−1 = all, 0 = near first), either or
/// both, separated by a comma.
fn parse(value: &[u8]) -> Option<Layout> {
    let mut layout = Layout::default();
    for part in std::str::from_utf8(value).ok()?.trim().split(',') {
        match part.split_once('=')? {
            ("stripe_size", bytes) => layout.stripe_size_bytes = bytes.parse().ok()?,
            ("stripe_count", count) => layout.stripe_count = count.parse().ok()?,
            _ => return None,
        }
    }
    let size = layout.stripe_size_bytes;
    let in_range = (STRIPE_BYTES_MIN..=STRIPE_BYTES_MAX).contains(&size);
    (in_range && size.is_multiple_of(STRIPE_BYTES_MIN) && layout.stripe_count >= -1)
        .then_some(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a layout that is shown can be set, and invalid ones cannot.
    #[test]
    fn layouts_are_read_as_they_are_shown() {
        let layout = Layout { stripe_size_bytes: 4 << 20, stripe_count: -1 };
        assert_eq!(parse(render(layout).as_bytes()), Some(layout));
        for bad in ["", "stripe_size=5", "stripe_count=-2", "colour=red", "stripe_size=0"] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
    }

    /// Goal: attributes of no namespace, ACLs and labels are refused.
    #[test]
    fn attributes_have_a_namespace() {
        for name in ["user.a", "trusted.a", "security.capability", "user.system.a"] {
            assert_eq!(check_namespace(name.as_bytes()), Ok(()), "{name}");
        }
        for name in ["", "a", "user", "users.a", "system.a", "system.posix_acl_access", "btrfs.x"] {
            assert_eq!(check_namespace(name.as_bytes()), Err(Errno::EOPNOTSUPP), "{name}");
        }
        assert_eq!(check_namespace(SELINUX_XATTR), Err(Errno::EOPNOTSUPP));
        assert_eq!(check_namespace(b"user."), Err(Errno::EINVAL));
    }

    /// Goal: only a user that can certainly search a directory makes files there.
    #[test]
    fn only_searchable_directories_take_files() {
        for (mode, is_owner, may) in [
            (0o755, true, true),
            (0o677, true, false),
            (0o770, false, true),
            (0o777, false, true),
            (0o722, false, false),
            (0o772, false, false),
            (0o727, false, false),
        ] {
            assert_eq!(may_search(mode, is_owner), may, "{mode:o}, owner {is_owner}");
        }
    }

    /// Goal: an ordinary user owns the new file, and gets no sgid bit for a group that may not be
    /// the user's.
    #[test]
    fn users_give_no_files_away() {
        let given = |gid, handed_on| {
            let (name, bytes) = (b"a".to_vec(), protocol::inline::Bytes(Vec::new()));
            let (atime, mtime) = (protocol::Timestamp(0), protocol::Timestamp(0));
            let (mode, uid, sum) = (0o6755, 0, None);
            let mut file = NewFile { name, mode, uid, gid: 0, atime, mtime, bytes, sum };
            give(&mut file, (2, gid), handed_on);
            (file.mode, file.uid, file.gid)
        };
        assert_eq!(given(20, None), (0o6755, 2, 20));
        assert_eq!(given(20, Some(10)), (0o4755, 2, 10));
        assert_eq!(given(20, Some(20)), (0o6755, 2, 20));
    }
}
