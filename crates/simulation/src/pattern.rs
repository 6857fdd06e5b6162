//! What is written: bytes that tell which write they are of, and which of its bytes.

use crate::random::mix;

/// Number of a write, never used twice in a run.
pub(crate) type Stamp = u64;

fn byte(stamp: Stamp, at: u64) -> u8 {
    let word = mix((stamp << 24).wrapping_add(at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    word.to_le_bytes()[(at % 8) as usize]
}

/// Bytes `at..at + length` of a write.
pub(crate) fn bytes(stamp: Stamp, at: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|index| byte(stamp, at + index)).collect()
}

/// How many of the first bytes of `found` are those of a write from its byte `at` on.
pub(crate) fn agreeing(stamp: Stamp, at: u64, found: &[u8]) -> usize {
    let differs = |(index, found): (usize, &u8)| byte(stamp, at + index as u64) != *found;
    found.iter().enumerate().position(|pair| differs(pair)).unwrap_or(found.len())
}
