//! The identities in a `ClientHello` (RFC 8446, 4.1.2 and 4.2.11). The library's interface does not
//! return them, and a server that looks a key up needs them before it has one.

/// The extension `pre_shared_key`.
const PRE_SHARED_KEY: u16 = 41;

/// Number of identities of one message that are read: our clients send one, those of NVMe two.
pub(crate) const IDENTITIES_MAX: usize = 8;

/// Reads numbers and vectors from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Reads a big-endian number of `bytes`.
    fn number(&mut self, bytes: usize) -> Option<usize> {
        Some(self.bytes(bytes)?.iter().fold(0, |number, &byte| number << 8 | usize::from(byte)))
    }

    /// Reads a vector with its length before it in `bytes`.
    fn vector(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let length = self.number(bytes)?;
        self.bytes(length)
    }
}

/// Returns the first [`IDENTITIES_MAX`] identities of a `ClientHello` without its header; none if
/// the message is malformed, which the library then refuses.
pub(crate) fn identities(hello: &[u8]) -> Vec<&[u8]> {
    offered(hello).unwrap_or_default()
}

fn offered(hello: &[u8]) -> Option<Vec<&[u8]>> {
    let mut hello = Reader(hello);
    hello.bytes(2 + 32)?;
    hello.vector(1)?;
    hello.vector(2)?;
    hello.vector(1)?;
    let mut extensions = Reader(hello.vector(2)?);
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)?;
        let body = extensions.vector(2)?;
        if kind != usize::from(PRE_SHARED_KEY) {
            continue;
        }
        let mut list = Reader(Reader(body).vector(2)?);
        let mut identities = Vec::new();
        while !list.0.is_empty() && identities.len() < IDENTITIES_MAX {
            identities.push(list.vector(2)?);
            // The age of a ticket; external keys do not use it.
            list.bytes(4)?;
        }
        return Some(identities);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a message with these extensions.
    fn hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut hello = vec![3, 3];
        hello.extend([9; 32]);
        hello.extend([2, 8, 8, 0, 2, 0x13, 0x02, 1, 0]);
        let mut body = Vec::new();
        for (kind, bytes) in extensions {
            body.extend([(kind >> 8) as u8, *kind as u8]);
            body.extend([(bytes.len() >> 8) as u8, bytes.len() as u8]);
            body.extend(bytes);
        }
        hello.extend([(body.len() >> 8) as u8, body.len() as u8]);
        hello.extend(body);
        hello
    }

    /// Goal: identities are found behind other extensions, up to the bound.
    #[test]
    fn identities_are_found() {
        let one = [0, 9, 0, 3, b'a', b'b', b'c', 0, 0, 0, 0].to_vec();
        let message = hello(&[(43, vec![2, 3, 4]), (41, one)]);
        assert_eq!(identities(&message), [b"abc"]);
        assert_eq!(identities(&hello(&[(43, vec![2, 3, 4])])), Vec::<&[u8]>::new());
        let item = [0, 1, b'x', 0, 0, 0, 0].repeat(100);
        let many = [&[(item.len() >> 8) as u8, item.len() as u8][..], &item].concat();
        assert_eq!(identities(&hello(&[(41, many)])).len(), IDENTITIES_MAX);
        for length in 0..message.len() {
            assert!(identities(&message[..length]).is_empty());
        }
    }

    proptest! {
        /// Goal: no bytes of a stranger make the search panic.
        #[test]
        fn any_bytes_are_borne(bytes in prop::collection::vec(any::<u8>(), 0..300),
                               tail in prop::collection::vec(any::<u8>(), 0..60)) {
            identities(&bytes);
            identities(&hello(&[(41, tail)]));
        }
    }
}
