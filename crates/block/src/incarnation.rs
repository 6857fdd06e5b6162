//! The identity of a device between two moments at which unflushed writes may have been lost.

use std::fmt;
use std::io;
use uuid::Uuid;

/// Changes whenever unflushed writes may have been lost: at each start of a memory device; with
/// each boot of the node, and after a failed flush, for a file or disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub u128);

impl Incarnation {
    /// Returns a new random one.
    pub fn random() -> Self {
        Self(u128::from(reactor::random::u64()) << 64 | u128::from(reactor::random::u64()))
    }

    /// Returns that of a device with a persistent identity during the node's present boot: equal
    /// until the next boot, different after it.
    ///
    /// # Errors
    /// If `/proc/sys/kernel/random/boot_id` cannot be read or contains no UUID.
    pub fn of_boot(identity: Uuid) -> io::Result<Self> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let boot = Uuid::parse_str(text.trim())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(Self(identity.as_u128() ^ boot.as_u128().rotate_left(1)))
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
