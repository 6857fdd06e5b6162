//! The first messages of a connection: the connector's role, and the version of the protocol.
//!
//! Inside TLS, which has proved that both ends know a key of the job, there are two messages:
//!
//! ```text
//! connector → Opening { version, role }
//! meta      → Welcome { version }, or closes
//! ```
//!
//! Without TLS (in the simulation, and where an administrator started a service that way) both ends
//! prove that they know the job's secret by HMAC-SHA-256 over both nonces and the role. So the
//! secret never travels, and neither end can be made to produce the other's proof (the labels
//! differ):
//!
//! ```text
//! connector → Hello { version, role, nonce }
//! meta      → Challenge { nonce, proof("meta") }
//! connector → Proof(proof("connector"))
//! meta      → (the first answer), or closes
//! ```

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::fmt;

/// A job's secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Reads 64 hexadecimal digits; white space around them is ignored.
    pub fn from_hex(text: &str) -> Option<Secret> {
        let text = text.trim().as_bytes();
        if text.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks(2)) {
            let high = char::from(pair[0]).to_digit(16)?;
            let low = char::from(pair[1]).to_digit(16)?;
            *byte = (high << 4 | low) as u8;
        }
        Some(Secret(bytes))
    }

    /// Returns the secret as 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        use fmt::Write;
        self.0.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// The role of the connector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A mount or library user.
    Client,
    /// A node's target.
    Agent,
    /// A tool.
    Admin,
}

/// First frame inside TLS, from the connector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    /// [`crate::VERSION`].
    pub version: u16,
    /// The connector's role. The service checks whether the key of the connection allows it.
    pub role: Role,
}

/// Second frame inside TLS, from the metadata service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`crate::VERSION`].
    pub version: u16,
}

/// First frame without TLS, from the connector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::VERSION`].
    pub version: u16,
    /// The connector's role.
    pub role: Role,
    /// Random, never used before.
    pub nonce: [u8; 32],
}

/// Second frame without TLS, from the metadata service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// Random, never used before.
    pub nonce: [u8; 32],
    /// [`prove`] with [`Side::Meta`].
    pub proof: [u8; 32],
}

/// Third frame without TLS, from the connector: [`prove`] with [`Side::Connector`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof(pub [u8; 32]);

/// The side that makes a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The metadata service.
    Meta,
    /// The connector.
    Connector,
}

fn mac(secret: &Secret, side: Side, hello: &Hello, nonce: &[u8; 32]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret.0).expect("HMAC takes keys of any length");
    mac.update(match side {
        Side::Meta => b"tsumugi meta\0",
        Side::Connector => b"tsumugi peer\0",
    });
    mac.update(&hello.version.to_le_bytes());
    mac.update(&[hello.role as u8]);
    mac.update(&hello.nonce);
    mac.update(nonce);
    mac
}

/// Returns the proof that a side knows the secret.
pub fn prove(secret: &Secret, side: Side, hello: &Hello, nonce: &[u8; 32]) -> [u8; 32] {
    mac(secret, side, hello, nonce).finalize().into_bytes().into()
}

/// Returns whether a proof is right, in constant time.
pub fn verify(secret: &Secret, side: Side, hello: &Hello, nonce: &[u8; 32], proof: &[u8]) -> bool {
    mac(secret, side, hello, nonce).verify_slice(proof).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a proof holds only for its own side, role, nonces and secret.
    #[test]
    fn proofs_hold_only_for_what_they_cover() {
        let secret = Secret([7; 32]);
        let hello = Hello { version: 1, role: Role::Client, nonce: [1; 32] };
        let proof = prove(&secret, Side::Connector, &hello, &[2; 32]);
        assert!(verify(&secret, Side::Connector, &hello, &[2; 32], &proof));
        assert!(!verify(&secret, Side::Meta, &hello, &[2; 32], &proof));
        assert!(!verify(&Secret([8; 32]), Side::Connector, &hello, &[2; 32], &proof));
        assert!(!verify(&secret, Side::Connector, &hello, &[3; 32], &proof));
        let agent = Hello { role: Role::Agent, ..hello };
        assert!(!verify(&secret, Side::Connector, &agent, &[2; 32], &proof));
    }

    /// Goal: secrets survive being written to a file.
    #[test]
    fn hex_is_invertible() {
        let secret = Secret(std::array::from_fn(|i| i as u8 * 7));
        assert_eq!(Secret::from_hex(&format!("{}\n", secret.to_hex())), Some(secret));
        assert_eq!(Secret::from_hex("zz"), None);
    }
}
