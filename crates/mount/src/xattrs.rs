//! Extended attributes, and those by which layouts are shown and set.

use crate::counts::MountCounts;
use crate::server::Server;
use fuse::Response;
use protocol::attr::{AttrChanges, Layout};
use protocol::client::XattrMode;
use protocol::{Errno, InodeId};
use std::rc::Rc;

/// Shows and sets how a file's data is spread, as `stripe_size=BYTES,stripe_count=N`.
pub(crate) const LAYOUT_XATTR: &[u8] = b"user.tsumugi.layout";

/// Shows, on the root directory, what this mount has counted, as JSON.
const COUNTS_XATTR: &[u8] = b"user.tsumugi.counts";

/// A label of a security module.
const SELINUX_XATTR: &[u8] = b"security.selinux";

/// A directory hands its group on.
const SGID: u16 = 0o2000;

/// Bounds of a stripe, in bytes; it is a multiple of the lower.
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
        if is_unsupported(name) {
            return Err(Errno::EOPNOTSUPP);
        }
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

    /// Makes files in a directory. The kernel has checked that the caller may write to it.
    pub(crate) async fn create_files(
        self: &Rc<Self>,
        id: InodeId,
        (uid, gid): (u32, u32),
        value: &[u8],
    ) -> Result<(), Errno> {
        let mut files = protocol::files::decode(value)?;
        // Only root gives files away.
        if uid != 0 {
            let directory = self.client.attr(id).await?;
            let gid = if directory.mode & SGID != 0 { directory.gid } else { gid };
            for file in &mut files {
                (file.uid, file.gid) = (uid, gid);
            }
        }
        self.client.create_files(id, files).await
    }

    /// Lists the names of the extended attributes.
    pub(crate) async fn xattrs(self: &Rc<Self>, id: InodeId, size: u32) -> Result<Response, Errno> {
        let mut list = Vec::new();
        for name in self.client.xattrs(id).await? {
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
        if name.starts_with(b"system.") || is_unsupported(name) {
            return Err(Errno::EOPNOTSUPP);
        }
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

/// Whether an attribute is refused. ACLs and security labels would be stored but not enforced. Programs that
/// look for them, such as `ls -l`, stop asking about further files of the mount after this answer.
fn is_unsupported(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_") || name == SELINUX_XATTR
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

    /// Goal: what is shown can be set, and nonsense cannot.
    #[test]
    fn layouts_are_read_as_they_are_shown() {
        let layout = Layout { stripe_size_bytes: 4 << 20, stripe_count: -1 };
        assert_eq!(parse(render(layout).as_bytes()), Some(layout));
        for bad in ["", "stripe_size=5", "stripe_count=-2", "colour=red", "stripe_size=0"] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
