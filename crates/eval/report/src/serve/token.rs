//! The token without which a site beyond loopback shows nothing.
//!
//! The address that the site prints contains it. The first answer puts it into a cookie that scripts do not
//! see and that no other site's page sends along, and redirects to the address without it, so it is in no
//! history and in no bookmark. HTTP is not encrypted: the token excludes programs that can reach the site,
//! but not programs that can read its network.

use super::http::{Request, Response};
use std::fmt::{self, Write as _};

/// Bytes of a token.
const BYTES: usize = 32;
/// Name in the address, and of the cookie.
const NAME: &str = "token";

/// A token. Its debug output does not show it.
#[derive(Clone)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Generates a random token.
    pub fn generate() -> Self {
        let mut bytes = [0; BYTES];
        reactor::random::fill(&mut bytes);
        Self(bytes.iter().fold(String::with_capacity(2 * BYTES), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }))
    }

    /// Returns the end of the site's address.
    pub fn query(&self) -> String {
        format!("?{NAME}={}", self.0)
    }

    /// Compares in constant time.
    fn is(&self, text: &str) -> bool {
        // Hashes of this kind are compared in constant time.
        blake3::hash(self.0.as_bytes()) == blake3::hash(text.as_bytes())
    }

    /// Returns the answer to a request that must not be executed: one without the token, and the first one
    /// with it.
    pub(super) fn refusal(&self, request: &Request) -> Option<Response> {
        if request.query(NAME).is_some_and(|token| self.is(token)) {
            let cookie = format!("{NAME}={}; HttpOnly; SameSite=Strict; Path=/", self.0);
            return Some(Response::moved(&request.path, cookie));
        }
        if request.cookie(NAME).is_some_and(|token| self.is(token)) {
            return None;
        }
        Some(Response::wrong(
            401,
            "open the address that `tsumugi eval serve` has printed, with its token",
        ))
    }
}
