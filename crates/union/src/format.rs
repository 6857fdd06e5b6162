//! The on-disk format of overlayfs, as pure functions: names, values and meaning of its extended
//! attributes (Linux `Documentation/filesystems/overlayfs.rst`, `fs/overlayfs/overlayfs.h`).
//!
//! The private attributes of overlayfs are `trusted.overlay.*`, or in `user.overlay.*` with
//! `userxattr`. A union on top of a union must be able to keep such attributes too: through the
//! mount, `trusted.overlay.X` is stored as `trusted.overlay.overlay.X` (since Linux 6.7).
//! fuse-overlayfs has names of its own, which are read and not written.

pub(crate) mod index;
mod origin;
mod stat_override;

use std::borrow::Cow;

pub(crate) use origin::Origin;
pub(crate) use stat_override::StatOverride;

/// Longest redirect that the kernel writes, in bytes.
pub(crate) const REDIRECT_BYTES_MAX: usize = 256;

/// The attributes' names behind the prefix.
pub(crate) mod suffix {
    pub(crate) const OPAQUE: &[u8] = b"opaque";
    pub(crate) const REDIRECT: &[u8] = b"redirect";
    pub(crate) const METACOPY: &[u8] = b"metacopy";
    pub(crate) const ORIGIN: &[u8] = b"origin";
    pub(crate) const IMPURE: &[u8] = b"impure";
    pub(crate) const WHITEOUT: &[u8] = b"whiteout";
    pub(crate) const NLINK: &[u8] = b"nlink";
    pub(crate) const UPPER: &[u8] = b"upper";
}

/// The escape of a nested union's attributes.
const NESTED: &[u8] = b"overlay.";
/// Marks of an opaque directory by fuse-overlayfs.
const FOREIGN_OPAQUE: [&[u8]; 1] = [b"user.fuseoverlayfs.opaque"];
/// All of fuse-overlayfs's own.
const FOREIGN_PREFIX: &[u8] = b"user.fuseoverlayfs.";

/// A whiteout as AUFS, fuse-overlayfs and unpacked image layers have it: `.wh.NAME` hides `NAME`.
/// Podman's store unpacks layers in this form for every mount program.
pub(crate) const NAMED_WHITEOUT: &[u8] = b".wh.";
/// In that form, the mark of an opaque directory.
pub(crate) const NAMED_OPAQUE: &[u8] = b".wh..wh..opq";

/// Returns the name of the file that hides a name.
pub(crate) fn whiteout_of(name: &[u8]) -> Vec<u8> {
    [NAMED_WHITEOUT, name].concat()
}

/// The prefix of one union's own attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prefix(&'static [u8]);

impl Prefix {
    /// For privileged unions.
    pub(crate) const TRUSTED: Self = Self(b"trusted.overlay.");
    /// For `userxattr`.
    pub(crate) const USER: Self = Self(b"user.overlay.");

    /// Returns an attribute's whole name.
    pub(crate) fn name(self, suffix: &[u8]) -> Vec<u8> {
        [self.0, suffix].concat()
    }

    /// Returns whether a name is this union's own, and which.
    pub(crate) fn own(self, name: &[u8]) -> Option<&[u8]> {
        name.strip_prefix(self.0).filter(|rest| !rest.starts_with(NESTED))
    }

    /// Returns how a name given through the mount is stored; `None` if it cannot be, since it would
    /// be taken for fuse-overlayfs's own.
    pub(crate) fn stored(self, name: &[u8]) -> Option<Cow<'_, [u8]>> {
        if name.starts_with(FOREIGN_PREFIX) {
            return None;
        }
        match name.strip_prefix(self.0) {
            Some(rest) => Some(Cow::Owned([self.0, NESTED, rest].concat())),
            None => Some(Cow::Borrowed(name)),
        }
    }

    /// Returns how a stored name shows through the mount; `None` if it does not.
    pub(crate) fn shown(self, name: &[u8]) -> Option<Cow<'_, [u8]>> {
        if name.starts_with(FOREIGN_PREFIX) {
            return None;
        }
        match name.strip_prefix(self.0) {
            None => Some(Cow::Borrowed(name)),
            Some(rest) => {
                let nested = rest.strip_prefix(NESTED)?;
                Some(Cow::Owned([self.0, nested].concat()))
            }
        }
    }

    /// Returns whether a name marks a directory as opaque in fuse-overlayfs's way.
    pub(crate) fn is_foreign_opaque(name: &[u8]) -> bool {
        FOREIGN_OPAQUE.contains(&name)
    }
}

/// The value of an `opaque` attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opaque {
    /// Nothing.
    No,
    /// Hides what lies below.
    Yes,
    /// The directory may hold whiteouts in the form of an attribute.
    HoldsWhiteouts,
}

impl Opaque {
    /// Reads the attribute's value.
    pub(crate) fn parse(value: &[u8]) -> Self {
        match value {
            b"y" => Self::Yes,
            b"x" => Self::HoldsWhiteouts,
            _ => Self::No,
        }
    }
}

/// Where the lower part of a directory or file lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// Under another name in the same parent.
    Name(Box<[u8]>),
    /// At a path below the roots of the layers, without its leading slash.
    Path(Box<[u8]>),
}

impl Redirect {
    /// Reads the attribute's value; `None` if it is not valid (the kernel refuses those with
    /// EINVAL).
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let is_name =
            |name: &[u8]| !name.is_empty() && name != b"." && name != b".." && !name.contains(&0);
        match value.strip_prefix(b"/") {
            Some(path) => {
                path.split(|&byte| byte == b'/').all(is_name).then(|| Self::Path(path.into()))
            }
            None => (is_name(value) && !value.contains(&b'/')).then(|| Self::Name(value.into())),
        }
    }

    /// Returns the attribute's value; `None` if it is longer than the kernel allows.
    pub(crate) fn value(&self) -> Option<Vec<u8>> {
        let value = match self {
            Self::Name(name) => name.to_vec(),
            Self::Path(path) => [b"/", &path[..]].concat(),
        };
        (value.len() <= REDIRECT_BYTES_MAX).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Goal: own attributes are hidden, nested ones unescaped, others untouched.
    #[test]
    fn names_are_hidden_escaped_or_kept() {
        let prefix = Prefix::TRUSTED;
        assert_eq!(prefix.shown(b"trusted.overlay.opaque"), None);
        assert_eq!(prefix.shown(b"user.fuseoverlayfs.origin"), None);
        assert_eq!(prefix.shown(b"user.overlay.x").as_deref(), Some(&b"user.overlay.x"[..]));
        let nested = &b"trusted.overlay.overlay.opaque"[..];
        assert_eq!(prefix.shown(nested).as_deref(), Some(&b"trusted.overlay.opaque"[..]));
        assert_eq!(prefix.own(nested), None);
        assert_eq!(prefix.stored(b"user.fuseoverlayfs.opaque"), None);
    }

    /// Goal: redirects that could lead out of a layer are refused.
    #[test]
    fn redirects_stay_inside() {
        for bad in ["", "/", "a/b", "..", ".", "/a/../b", "/a//b", "/a/"] {
            assert_eq!(Redirect::parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(Redirect::parse(b"/a/b"), Some(Redirect::Path((*b"a/b").into())));
        assert_eq!(Redirect::Name([b'x'; 257].into()).value(), None);
    }

    proptest! {
        /// Goal: what is stored under a name is shown under that name.
        #[test]
        fn stored_names_show_as_given(
            class in prop_oneof![Just("trusted.overlay."), Just("user."), Just("user.overlay.overlay.")],
            rest in "[a-z.]{1,20}",
        ) {
            let name = format!("{class}{rest}").into_bytes();
            prop_assume!(!name.starts_with(FOREIGN_PREFIX));
            for prefix in [Prefix::TRUSTED, Prefix::USER] {
                let stored = prefix.stored(&name).unwrap();
                prop_assert_eq!(prefix.shown(&stored).map(Cow::into_owned), Some(name.clone()));
                prop_assert_eq!(prefix.own(&stored), None);
            }
        }

        /// Goal: a redirect's value reads back.
        #[test]
        fn redirects_read_back(value in "/?[a-z.]{1,5}(/[a-z.]{1,5}){0,3}") {
            if let Some(redirect) = Redirect::parse(value.as_bytes()) {
                let written = redirect.value();
                prop_assert_eq!(written.as_deref(), Some(value.as_bytes()));
            }
        }
    }
}
