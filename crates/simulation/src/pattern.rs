//! Written bytes, which identify their write and their position in it.

use crate::random::mix;

/// Number of a write, never used twice in a run.
pub(crate) type Stamp = u64;

/// Returns eight bytes of a write, from its byte `8 * index` on.
fn word(stamp: Stamp, index: u64) -> [u8; 8] {
    number(stamp, index).to_le_bytes()
}

fn number(stamp: Stamp, index: u64) -> u64 {
    mix((stamp << 24).wrapping_add(index).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Returns bytes `at..at + length` of a write.
pub(crate) fn bytes(stamp: Stamp, at: u64, length: usize) -> Vec<u8> {
    let skipped = (at % 8) as usize;
    let mut bytes = vec![0; (skipped + length).next_multiple_of(8)];
    for (word, index) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(at / 8..) {
        *word = number(stamp, index).to_le_bytes();
    }
    bytes.truncate(skipped + length);
    bytes.drain(..skipped);
    bytes
}

/// Returns how many of the first bytes of `found` are those of a write from its byte `at` on.
pub(crate) fn agreeing(stamp: Stamp, at: u64, found: &[u8]) -> usize {
    let mut done = 0;
    while done < found.len() {
        if (at + done as u64).is_multiple_of(8) {
            let (words, _) = found[done..].as_chunks::<8>();
            let indexes = (at + done as u64) / 8..;
            let is_right = |(word, index): &(&[u8; 8], u64)| {
                u64::from_le_bytes(**word) == number(stamp, *index)
            };
            done += 8 * words.iter().zip(indexes).take_while(is_right).count();
            if done == found.len() {
                break;
            }
        }
        let at = at + done as u64;
        let expected = &word(stamp, at / 8)[(at % 8) as usize..];
        let expected = &expected[..expected.len().min(found.len() - done)];
        let piece = &found[done..done + expected.len()];
        if piece != expected {
            let differs = piece.iter().zip(expected).position(|(a, b)| a != b);
            return done + differs.unwrap_or(0);
        }
        done += expected.len();
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: any part of a write is recognised as that part and as no other.
    #[test]
    fn parts_are_recognised() {
        let all = bytes(7, 0, 100);
        for at in 0..90 {
            assert_eq!(bytes(7, at, 10), all[at as usize..at as usize + 10]);
            assert_eq!(agreeing(7, at, &all[at as usize..]), 100 - at as usize);
            assert!(agreeing(8, at, &all[at as usize..]) < 4);
        }
    }
}
