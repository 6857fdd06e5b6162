//! NVMe qualified names (base 4.7).
//!
//! An [`Nqn`] is checked once, where it enters the program, so that all later code may rely on its
//! length and form. The wire field is 256 bytes, NUL-padded; a name has at most 223 bytes.

use core::fmt;
use core::str::FromStr;

use crate::Error;

/// Longest name in bytes (base 4.7).
pub const NQN_BYTES_MAX: usize = 223;
/// Size of the fields that carry a name.
pub const NQN_FIELD_BYTES: usize = 256;
/// The well-known name of every discovery subsystem (base 4.7).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// An NVMe qualified name: `nqn.yyyy-mm.reverse-domain[:anything]`, UTF-8, at most 223 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(Box<str>);

impl Nqn {
    /// Checks and stores a name.
    ///
    /// Fails with [`Error::InvalidNqn`] if it is too long, does not begin with `nqn.yyyy-mm.` and a
    /// domain, or has control characters.
    pub fn new(name: &str) -> Result<Self, Error> {
        match fault_of(name) {
            None => Ok(Self(name.into())),
            Some(reason) => Err(Error::InvalidNqn { nqn: clip(name), reason }),
        }
    }

    /// Returns the well-known name of every discovery subsystem.
    pub fn discovery() -> Self {
        Self(DISCOVERY_NQN.into())
    }

    /// Returns the name of the form `nqn.2014-08.org.nvmexpress:uuid:…` (base 4.7) for a UUID's
    /// bytes.
    pub fn from_uuid(uuid: [u8; 16]) -> Self {
        Self(format!("nqn.2014-08.org.nvmexpress:uuid:{}", crate::HostId(uuid)).into())
    }

    /// Returns the name in a wire field: everything up to the first NUL.
    ///
    /// Fails with [`Error::InvalidNqn`] if there is no NUL, or the text before it is not a valid
    /// name.
    pub fn from_field(field: &[u8; NQN_FIELD_BYTES]) -> Result<Self, Error> {
        let invalid = |reason| Error::InvalidNqn {
            nqn: String::from_utf8_lossy(field).trim_end_matches('\0').to_owned(),
            reason,
        };
        let end = field.iter().position(|&byte| byte == 0);
        let name = &field[..end.ok_or_else(|| invalid("it does not end with a NUL"))?];
        Self::new(core::str::from_utf8(name).map_err(|_| invalid("it is not UTF-8"))?)
    }

    /// Returns the wire field: the name padded with NULs.
    pub fn to_field(&self) -> [u8; NQN_FIELD_BYTES] {
        let mut field = [0; NQN_FIELD_BYTES];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the well-known discovery name.
    pub fn is_discovery(&self) -> bool {
        &*self.0 == DISCOVERY_NQN
    }
}

fn fault_of(name: &str) -> Option<&'static str> {
    if name.len() > NQN_BYTES_MAX {
        return Some("it has more than 223 bytes");
    }
    let Some(rest) = name.strip_prefix("nqn.") else {
        return Some("it does not begin with \"nqn.\"");
    };
    let date = rest.as_bytes();
    let has_date = date.len() >= 8
        && date[..4].iter().all(u8::is_ascii_digit)
        && date[4] == b'-'
        && date[5..7].iter().all(u8::is_ascii_digit)
        && date[7] == b'.';
    if !has_date {
        return Some("no date \"yyyy-mm.\" follows \"nqn.\"");
    }
    if date.len() == 8 || date[8] == b':' {
        return Some("no domain name follows the date");
    }
    name.chars().any(char::is_control).then_some("it has control characters")
}

fn clip(name: &str) -> String {
    let mut end = name.len().min(NQN_FIELD_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name[..end].to_owned()
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Nqn {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::new(name)
    }
}

impl AsRef<str> for Nqn {
    fn as_ref(&self) -> &str {
        &self.0
    }
}
