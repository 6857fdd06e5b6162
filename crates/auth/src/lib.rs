//! In-band authentication of NVMe (base 8.3.4): DH-HMAC-CHAP, its secrets and both its sides; and the keys of
//! TLS (TCP 3.6.1). No I/O.
//!
//! A host proves that it knows a secret by answering a challenge with an HMAC, and asks the controller for
//! the same with another secret if it likes. A Diffie-Hellman exchange can be mixed in, so that recorded
//! messages are of no use for guessing a weak secret. [`Host`] and [`Controller`] turn messages into
//! messages; crates `host` and `target` carry them.
//!
//! No cryptography is made here: hashes and HMAC, numbers of thousands of bits, base64 and comparison come
//! from `RustCrypto` and `subtle`. What is secret is exponentiated, decoded and compared in constant time,
//! and cleared when it is dropped.

mod controller;
mod error;
mod group;
mod hash;
mod host;
mod interchange;
mod key;
mod response;
mod tls_key;

pub use controller::{Controller, Progress};
pub use error::{Fault, KeyError};
pub use group::Group;
pub use hash::Hash;
pub use host::{Answered, Host, Judged};
pub use key::{Key, KeyPair};
pub use response::Names;
pub use tls_key::{Derivation, IdentityVersion, TlsKey, TlsPsk};

/// `SC_C`: no secure channel follows.
const CHANNEL_NONE: u8 = 0;
/// `SC_C`: a connection under TLS follows, with a key that the transaction generates.
const CHANNEL_NEW_PSK: u8 = 2;

/// Hash functions and groups that one side is content with, best first, and what has to come of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Hash functions.
    pub hashes: Vec<Hash>,
    /// Groups.
    pub groups: Vec<Group>,
    /// The transaction has to end with a key for TLS (secure channel concatenation, base 8.3.4.5.9). That needs a
    /// group, and a hash function that a cipher suite has, whatever else is in the lists.
    pub concatenation: bool,
}

impl Policy {
    /// The hash functions that a transaction may use, best first.
    pub(crate) fn usable_hashes(&self) -> impl Iterator<Item = Hash> {
        let is_usable = |hash: &Hash| !self.concatenation || *hash != Hash::Sha512;
        self.hashes.iter().copied().filter(is_usable)
    }

    /// The groups that a transaction may use, best first.
    pub(crate) fn usable_groups(&self) -> impl Iterator<Item = Group> {
        let is_usable = |group: &Group| !self.concatenation || *group != Group::Null;
        self.groups.iter().copied().filter(is_usable)
    }

    /// What the host asks for in the first message, `SC_C`.
    pub(crate) fn channel(&self) -> u8 {
        if self.concatenation { CHANNEL_NEW_PSK } else { CHANNEL_NONE }
    }

    /// What a target is content with unless it is set up otherwise: everything but the two largest groups,
    /// with which strangers could have it compute ten times as long.
    pub fn of_target() -> Self {
        let mut policy = Self::default();
        policy.groups.retain(|group| !matches!(group, Group::Ffdhe6144 | Group::Ffdhe8192));
        policy
    }
}

impl Default for Policy {
    /// Everything. Groups that cost much more than they give come late, the null group last.
    fn default() -> Self {
        Self {
            hashes: vec![Hash::Sha512, Hash::Sha384, Hash::Sha256],
            groups: vec![
                Group::Ffdhe3072,
                Group::Ffdhe2048,
                Group::Ffdhe4096,
                Group::Ffdhe6144,
                Group::Ffdhe8192,
                Group::Null,
            ],
            concatenation: false,
        }
    }
}
