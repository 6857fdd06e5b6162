//! The mode and access list that a new inode inherits from its directory's default access control
//! list.
//!
//! New inodes are made in the work directory, where the file system does not see the list of its
//! directory. So its rule (POSIX 1003.1e draft 17, 23.1.3; acl(5) "object creation") is applied
//! here: permissions of the list's classes are cut by the mode asked for, and the mode becomes that
//! of the list.

/// The attributes.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: [u8; 4] = [2, 0, 0, 0];
const ENTRY_BYTES: usize = 8;
const TAG_USER_OBJECT: u8 = 0x01;
const TAG_USER: u8 = 0x02;
const TAG_GROUP_OBJECT: u8 = 0x04;
const TAG_GROUP: u8 = 0x08;
const TAG_MASK: u8 = 0x10;
const TAG_OTHER: u8 = 0x20;

/// The result of applying a default list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inherited {
    /// Permission bits (of nine).
    pub(crate) mode: u32,
    /// The new inode's access list, if the mode alone does not express it.
    pub(crate) access: Option<Vec<u8>>,
}

/// Applies a default list to a wanted mode; `None` if the value is not a valid list.
pub(crate) fn inherit(default: &[u8], mode: u32) -> Option<Inherited> {
    let entries = default.strip_prefix(&VERSION)?;
    if !entries.len().is_multiple_of(ENTRY_BYTES) {
        return None;
    }
    let mut access = default.to_vec();
    let (mut is_extended, mut result, mut group_at, mut mask_at) = (false, 0, None, None);
    for at in (VERSION.len()..default.len()).step_by(ENTRY_BYTES) {
        let permission = u32::from(access[at + 2] & 7);
        match access[at] {
            TAG_USER_OBJECT => {
                let cut = permission & (mode >> 6);
                access[at + 2] = cut as u8;
                result |= cut << 6;
            }
            TAG_OTHER => {
                let cut = permission & mode & 7;
                access[at + 2] = cut as u8;
                result |= cut;
            }
            TAG_GROUP_OBJECT => group_at = Some(at),
            TAG_MASK => mask_at = Some(at),
            TAG_USER | TAG_GROUP => is_extended = true,
            _ => return None,
        }
    }
    is_extended |= mask_at.is_some();
    let at = mask_at.or(group_at)?;
    let cut = u32::from(access[at + 2] & 7) & (mode >> 3) & 7;
    access[at + 2] = cut as u8;
    result |= cut << 3;
    Some(Inherited { mode: result, access: is_extended.then_some(access) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u8, u8)]) -> Vec<u8> {
        let mut bytes = VERSION.to_vec();
        for &(tag, permission) in entries {
            bytes.extend([tag, 0, permission, 0, 0xff, 0xff, 0xff, 0xff]);
        }
        bytes
    }

    /// Goal: the umask is not asked, the list's classes are cut by the mode, and a list that says
    /// no more than a mode becomes one.
    #[test]
    fn lists_are_cut_by_the_mode() {
        let simple = list(&[(TAG_USER_OBJECT, 7), (TAG_GROUP_OBJECT, 5), (TAG_OTHER, 4)]);
        assert_eq!(inherit(&simple, 0o666), Some(Inherited { mode: 0o644, access: None }));
        let extended = list(&[
            (TAG_USER_OBJECT, 7),
            (TAG_USER, 6),
            (TAG_GROUP_OBJECT, 7),
            (TAG_MASK, 7),
            (TAG_OTHER, 0),
        ]);
        let inherited = inherit(&extended, 0o640).unwrap();
        assert_eq!(inherited.mode, 0o640);
        let access = inherited.access.unwrap();
        assert_eq!(access[4 + 3 * 8 + 2], 4, "the mask is cut, not the group");
        assert_eq!(access[4 + 2 * 8 + 2], 7);
    }

    /// Goal: what is not a list is refused.
    #[test]
    fn nonsense_is_refused() {
        for bad in [&b""[..], b"\x02\0\0\0abc", &list(&[(0x40, 1)]), &list(&[])] {
            assert_eq!(inherit(bad, 0o777), None);
        }
    }
}
