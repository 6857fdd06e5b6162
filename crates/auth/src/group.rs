//! Diffie-Hellman in the finite-field groups of RFC 7919.
//!
//! Exponents are as short as the group's strength allows (RFC 7919, appendix A, rounded up to whole
//! words). This makes an exchange several times cheaper and not weaker, because the groups are of
//! safe primes.

mod primes;

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd, Resize};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;
use zeroize::{Zeroize, Zeroizing};

/// A group, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// No Diffie-Hellman exchange.
    Null,
    /// 2048 bits.
    Ffdhe2048,
    /// 3072 bits.
    Ffdhe3072,
    /// 4096 bits.
    Ffdhe4096,
    /// 6144 bits.
    Ffdhe6144,
    /// 8192 bits.
    Ffdhe8192,
}

impl Group {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Null,
        Self::Ffdhe2048,
        Self::Ffdhe3072,
        Self::Ffdhe4096,
        Self::Ffdhe6144,
        Self::Ffdhe8192,
    ];

    /// Returns the group with this identifier.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.get(usize::from(id)).copied()
    }

    /// Returns `DHgID`.
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// Returns the bits of its prime, the bits of an exponent, and the prime.
    const fn parameters(self) -> Option<(u32, u32, &'static str)> {
        match self {
            Self::Null => None,
            Self::Ffdhe2048 => Some((2048, 256, primes::FFDHE2048)),
            Self::Ffdhe3072 => Some((3072, 320, primes::FFDHE3072)),
            Self::Ffdhe4096 => Some((4096, 384, primes::FFDHE4096)),
            Self::Ffdhe6144 => Some((6144, 384, primes::FFDHE6144)),
            Self::Ffdhe8192 => Some((8192, 448, primes::FFDHE8192)),
        }
    }

    /// Returns the field, which is made once for each group.
    fn field(self) -> Option<&'static BoxedMontyParams> {
        static FIELDS: [OnceLock<BoxedMontyParams>; 6] = [const { OnceLock::new() }; 6];
        let (bits, _, prime) = self.parameters()?;
        Some(FIELDS[usize::from(self.id())].get_or_init(|| {
            let prime = BoxedUint::from_be_hex(prime, bits).expect("the tables hold hexadecimal");
            BoxedMontyParams::new(Odd::new(prime).expect("a large prime is odd"))
        }))
    }

    /// Makes a secret exponent for one exchange; [`None`] for the null group.
    pub(crate) fn begin(self) -> Option<Exchange> {
        let (_, exponent_bits, _) = self.parameters()?;
        let mut bytes = Zeroizing::new(vec![0; exponent_bits as usize / 8]);
        reactor::random::fill(&mut bytes);
        let exponent = BoxedUint::from_be_slice(&bytes, exponent_bits).ok()?;
        let mut exchange = Exchange { group: self, exponent, value: Vec::new() };
        let two = BoxedUint::from(2_u8).resize(exchange.field().bits_precision());
        exchange.value = exchange.power(two).to_vec();
        Some(exchange)
    }
}

/// One side of an exchange.
pub(crate) struct Exchange {
    group: Group,
    exponent: BoxedUint,
    value: Vec<u8>,
}

impl Exchange {
    /// Returns the value to send, as long as the prime.
    pub(crate) fn value(&self) -> &[u8] {
        &self.value
    }

    /// Returns the shared secret computed from the peer's value, as long as the prime; [`None`] if
    /// the peer's value is out of range or would reveal the secret.
    pub(crate) fn shared(&self, peer: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let field = self.field();
        let prime = field.modulus().as_ref();
        if peer.len() != self.value.len() {
            return None;
        }
        // The received value is not secret.
        let peer = BoxedUint::from_be_slice(peer, field.bits_precision()).ok()?;
        let one = BoxedUint::one_with_precision(field.bits_precision());
        let last = prime.wrapping_sub(&one);
        (peer > one && peer < last).then(|| self.power(peer))
    }

    fn field(&self) -> &'static BoxedMontyParams {
        self.group.field().expect("an exchange is in a group that is not null")
    }

    /// Returns `base` to the power of the secret exponent, in time that depends only on the group.
    fn power(&self, base: BoxedUint) -> Zeroizing<Vec<u8>> {
        let mut power = BoxedMontyForm::new(base, self.field()).pow(&self.exponent);
        let mut number = power.retrieve();
        power.zeroize();
        let bytes = Zeroizing::new(number.to_be_bytes().into_vec());
        number.zeroize();
        bytes
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.exponent.zeroize();
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("group", &self.group).finish_non_exhaustive()
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parameters() {
            None => f.write_str("null"),
            Some((bits, _, _)) => write!(f, "ffdhe{bits}"),
        }
    }
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|group| group.to_string() == text).ok_or_else(|| {
            format!("{text:?} is no group: there are null, ffdhe2048, 3072, 4096, 6144 and 8192")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every digit of the tables is correct. 2 generates the subgroup of half the size of a
    /// safe prime's group, so 2 to the power of (p - 1) / 2 is 1; for another number it is not.
    #[test]
    fn primes_are_those_of_the_standard() {
        for group in &Group::ALL[1..] {
            let (bits, _, text) = group.parameters().unwrap();
            assert_eq!(text.len() * 4, bits as usize);
            let field = group.field().unwrap();
            let half = field.modulus().as_ref().shr_vartime(1).unwrap();
            let two = BoxedUint::from(2_u8).resize(bits);
            let power = BoxedMontyForm::new(two, field).pow(&half).retrieve();
            assert_eq!(power, BoxedUint::one_with_precision(bits), "{group}");
        }
    }

    /// Goal: both sides compute the same secret, and values that reveal it are refused.
    #[test]
    fn both_sides_agree() {
        for group in &Group::ALL[1..] {
            let (a, b) = (group.begin().unwrap(), group.begin().unwrap());
            let shared = a.shared(b.value()).unwrap();
            assert_eq!(shared, b.shared(a.value()).unwrap());
            assert_eq!(shared.len(), a.value().len());
            let prime = group.field().unwrap().modulus().as_ref().to_be_bytes();
            let mut small = vec![0; prime.len()];
            assert!(a.shared(&small).is_none(), "0");
            small[prime.len() - 1] = 1;
            assert!(a.shared(&small).is_none(), "1");
            let mut last = prime.to_vec();
            assert!(a.shared(&last).is_none(), "p");
            last[prime.len() - 1] -= 1;
            assert!(a.shared(&last).is_none(), "p - 1");
            assert!(a.shared(&b.value()[1..]).is_none(), "too short");
            assert!(a.shared(&[&[0], b.value()].concat()).is_none(), "too long");
        }
    }
}
