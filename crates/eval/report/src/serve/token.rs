//! The token without which a site beyond loopback shows nothing.
//!
//! It comes once, in the address that the site prints. The answer puts it into a cookie that scripts do not see and
//! that no other site's page sends along, and leads to the address without it, so that it is in no history and in no
//! bookmark. HTTP is not encrypted: the token keeps out whoever can reach the site, not whoever can read its network.

use super::http::{Request, Response};
use std::fmt::{self, Write as _};

/// Bytes of a token.
const BYTES: usize = 32;
/// Name in the address, and of the cookie.
const NAME: &str = "token";

/// A token. Printing it by mistake does not show it.
#[derive(Clone)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Makes one that nobody knows.
    pub fn generate() -> Self {
        let mut bytes = [0; BYTES];
        reactor::random::fill(&mut bytes);
        Self(bytes.iter().fold(String::with_capacity(2 * BYTES), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }))
    }

    /// Returns what the address of the site ends with.
    pub fn query(&self) -> String {
        format!("?{NAME}={}", self.0)
    }

    /// Returns whether this is the token. The time it takes does not depend on how much of it is right.
    fn is(&self, text: &str) -> bool {
        // Hashes of this kind are compared in constant time.
        blake3::hash(self.0.as_bytes()) == blake3::hash(text.as_bytes())
    }

    /// Returns the answer to a request that is not to be carried out: one without the token, and the first one, which
    /// brings it.
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
