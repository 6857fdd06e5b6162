//! Verifiable data: every 8 bytes are a mix of their offset and a seed, which reveals wrong, stale
//! and misplaced data.

use super::Mismatch;

fn word(offset_bytes: u64, seed: u64) -> u64 {
    // splitmix64's finalizer: neighbouring inputs give unrelated outputs.
    let mut x = (offset_bytes / 8).wrapping_add(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Fills `bytes` for the offset `offset_bytes` (a multiple of 8) of the namespace.
pub(crate) fn fill(bytes: &mut [u8], offset_bytes: u64, seed: u64) {
    for (index, chunk) in bytes.chunks_mut(8).enumerate() {
        let word = word(offset_bytes + index as u64 * 8, seed).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Compares `bytes` with the data that [`fill`] produces.
pub(crate) fn check(bytes: &[u8], offset_bytes: u64, seed: u64) -> Result<(), Mismatch> {
    for (index, chunk) in bytes.chunks(8).enumerate() {
        let offset_bytes = offset_bytes + index as u64 * 8;
        let expected = word(offset_bytes, seed).to_le_bytes();
        if *chunk != expected[..chunk.len()] {
            return Err(Mismatch {
                offset_bytes,
                bytes: chunk.len() as u64,
                what: format!("{chunk:02x?} instead of {:02x?}", &expected[..chunk.len()]),
            });
        }
    }
    Ok(())
}
