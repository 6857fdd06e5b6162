//! Addresses of logical units, in the form of libiscsi's own programs.

use crate::Error;
use std::fmt;
use std::str::FromStr;

const SCHEME: &str = "iscsi://";

/// A logical unit behind a portal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Address and port.
    pub portal: String,
    /// The target's name, e.g. `iqn.2026-01.io.example:disk`.
    pub target: String,
    /// The logical unit.
    pub lun: u16,
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = || {
            let mut parts = text.strip_prefix(SCHEME)?.splitn(3, '/');
            let (portal, target, lun) = (parts.next()?, parts.next()?, parts.next()?);
            // C strings end at a zero.
            let is_name = |name: &str| !name.is_empty() && !name.contains('\0');
            let lun = lun.parse().ok()?;
            (is_name(portal) && is_name(target)).then(|| Self {
                portal: portal.into(),
                target: target.into(),
                lun,
            })
        };
        parse().ok_or_else(|| Error::Address(text.into()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}/{}", self.portal, self.target, self.lun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: written addresses can be read, and invalid ones are refused.
    #[test]
    fn addresses_are_read() {
        let text = "iscsi://127.0.0.1:3260/iqn.2026-01.io.example:disk/1";
        let address: Address = text.parse().unwrap();
        assert_eq!(address.portal, "127.0.0.1:3260");
        assert_eq!((address.target.as_str(), address.lun), ("iqn.2026-01.io.example:disk", 1));
        assert_eq!(address.to_string(), text);
        for wrong in [
            "",
            "iscsi://",
            "iscsi://a/b",
            "iscsi://a/b/c",
            "iscsi:///b/1",
            "a/b/1",
            "iscsi://a/\0/1",
        ] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong:?}");
        }
    }
}
