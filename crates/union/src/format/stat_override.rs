//! Owner and mode in an extended attribute, as fuse-overlayfs and containers/storage keep them
//! where the inode itself cannot have the wanted ones (`xattr_permissions`): `UID:GID:MODE[:TYPE]`,
//! the mode octal. Only directories and regular files have it.

use crate::options::OwnerXattr;
use crate::sys::Stat;

/// In the form for containers, the prefix of names that only privileged users may set.
const CONTAINERS_ESCAPE: &[u8] = b"user.containers.override_";
const SECURITY: &[u8] = b"security.";

impl OwnerXattr {
    const ALL: [Self; 3] = [Self::Security, Self::Containers, Self::FuseOverlayfs];

    /// Returns the attribute's name.
    pub(crate) fn attribute(self) -> &'static [u8] {
        match self {
            Self::Security => b"security.fuseoverlayfs.override_stat",
            Self::Containers => b"user.containers.override_stat",
            Self::FuseOverlayfs => b"user.fuseoverlayfs.override_stat",
        }
    }

    /// Returns the form that a layer's root has, found by asking for attributes; the privileged one
    /// first.
    pub(crate) fn detect<E>(has: impl Fn(&[u8]) -> Result<bool, E>) -> Result<Option<Self>, E> {
        for form in Self::ALL {
            if has(form.attribute())? {
                return Ok(Some(form));
            }
        }
        Ok(None)
    }

    /// Returns how a name is stored; `None` if it is not escaped.
    pub(crate) fn escaped(self, name: &[u8]) -> Option<Vec<u8>> {
        let is_escaped = self == Self::Containers && name.starts_with(SECURITY);
        is_escaped.then(|| [CONTAINERS_ESCAPE, name].concat())
    }

    /// Returns what an escaped name stands for.
    pub(crate) fn unescaped(self, name: &[u8]) -> Option<&[u8]> {
        let rest = name.strip_prefix(CONTAINERS_ESCAPE)?;
        (self == Self::Containers && rest.starts_with(SECURITY)).then_some(rest)
    }

    /// Returns whether a stored name is hidden: the record itself, and names that look like an
    /// escaped one.
    pub(crate) fn hides(self, name: &[u8]) -> bool {
        name == self.attribute() || (self == Self::Containers && name.starts_with(SECURITY))
    }
}

/// The content of the attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatOverride {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Twelve bits.
    pub(crate) mode: u32,
    /// File type (`S_IFMT` bits), if the attribute has one.
    kind: Option<u32>,
}

impl StatOverride {
    /// Takes owner and mode of an inode as it is shown.
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { uid: stat.uid, gid: stat.gid, mode: stat.mode & 0o7777, kind: None }
    }

    /// Reads the value; `None` if it is not valid, or of a type that no inode here stands for
    /// (symbolic links and devices kept in files).
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(value).ok()?.splitn(4, ':');
        let uid = parts.next()?.parse().ok()?;
        let gid = parts.next()?.parse().ok()?;
        let mode = u32::from_str_radix(parts.next()?, 8).ok()?;
        // fuse-overlayfs writes the type's bits too, if it has them at hand.
        let kind = match (parts.next(), mode & libc::S_IFMT) {
            (None, 0) => None,
            (None | Some("dir"), libc::S_IFDIR) | (Some("dir"), 0) => Some(libc::S_IFDIR),
            (None | Some("file"), libc::S_IFREG) | (Some("file"), 0) => Some(libc::S_IFREG),
            _ => return None,
        };
        let is_mode = mode & !(libc::S_IFMT | 0o7777) == 0;
        is_mode.then_some(Self { uid, gid, mode: mode & 0o7777, kind })
    }

    /// Returns the value.
    pub(crate) fn value(&self) -> Vec<u8> {
        format!("{}:{}:{:o}", self.uid, self.gid, self.mode).into_bytes()
    }

    /// Returns an inode's attributes with these; `None` if the types differ.
    pub(crate) fn apply(&self, stat: Stat) -> Option<Stat> {
        let is_alike = self.kind.is_none_or(|kind| kind == stat.kind());
        let mode = stat.kind() | self.mode;
        is_alike.then_some(Stat { uid: self.uid, gid: self.gid, mode, ..stat })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Goal: what fuse-overlayfs and containers/storage write is read, the rest refused.
    #[test]
    fn others_values_are_read() {
        let read = |text: &str| StatOverride::parse(text.as_bytes());
        let expected = StatOverride { uid: 1000, gid: 50, mode: 0o4755, kind: None };
        assert_eq!(read("1000:50:4755"), Some(expected));
        assert_eq!(read("1000:50:04755"), Some(expected));
        assert_eq!(read("0:0:755:dir").and_then(|read| read.kind), Some(libc::S_IFDIR));
        assert_eq!(read("0:0:100644").and_then(|read| read.kind), Some(libc::S_IFREG));
        for bad in [
            "",
            "0:0",
            "0:0:9",
            "-1:0:755",
            "0:0:755:symlink",
            "0:0:1000644",
            "0:0:120777",
            "a:0:7",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    /// Goal: an attribute that only privileged users may set is stored under a name that all users
    /// may set.
    #[test]
    fn security_names_are_escaped_for_containers() {
        let form = OwnerXattr::Containers;
        let stored = form.escaped(b"security.capability").unwrap();
        assert_eq!(stored, b"user.containers.override_security.capability");
        assert_eq!(form.unescaped(&stored), Some(&b"security.capability"[..]));
        assert_eq!(form.unescaped(b"user.containers.override_user.x"), None);
        assert!(form.hides(b"user.containers.override_stat") && form.hides(b"security.capability"));
        assert!(OwnerXattr::Security.escaped(b"security.capability").is_none());
        assert!(!OwnerXattr::Security.hides(b"security.capability"));
    }

    proptest! {
        /// Goal: a value reads back, and no bytes make the reader panic.
        #[test]
        fn values_read_back(
            uid in any::<u32>(), gid in any::<u32>(), mode in 0u32..0o10000,
            noise in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let written = StatOverride { uid, gid, mode, kind: None };
            prop_assert_eq!(StatOverride::parse(&written.value()), Some(written));
            let _ = StatOverride::parse(&noise);
        }
    }
}
