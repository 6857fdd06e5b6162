//! CRC-32C of blocks in memory that others may write at the same time.
//!
//! The bytes have mostly just come from a device, so the processor waits for memory more than it
//! computes. Four blocks are therefore computed in step: their pages are fetched side by side, and
//! the instruction, which takes three cycles, begins each cycle. The next four blocks are requested
//! meanwhile. A faster CRC that goes through one block after the other takes longer.

/// Blocks that are computed in step.
pub(crate) const LANES: usize = 4;

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Computes the CRC-32C of blocks that follow on each other, as many as `sums` has places. Returns
/// for how many it did: a multiple of [`LANES`], and none where the processor cannot, or for blocks
/// that do not consist of aligned words and whole cache lines.
///
/// # Safety
/// As [`copy_out`](super::copy_out), for all blocks.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) unsafe fn crc32c_of_blocks(
    from: *mut u8,
    block_bytes: usize,
    sums: &mut [u32],
) -> usize {
    let is_fit = from.addr().is_multiple_of(super::WORD) && block_bytes.is_multiple_of(LINE_BYTES);
    if !is_fit || sums.len() < LANES || !std::arch::is_x86_feature_detected!("sse4.2") {
        return 0;
    }
    let (groups, _) = sums.as_chunks_mut::<LANES>();
    let count = groups.len();
    for (index, group) in groups.iter_mut().enumerate() {
        let first = from.wrapping_add(index * LANES * block_bytes);
        // SAFETY: by the caller's promise; the processor has the instructions.
        *group = unsafe { in_step(first, block_bytes, index + 1 < count) };
    }
    count * LANES
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn crc32c_of_blocks(_: *mut u8, _: usize, _: &mut [u32]) -> usize {
    0
}

/// Returns the CRC-32C of [`LANES`] blocks. Requests as many that follow if `has_next`.
///
/// # Safety
/// As [`crc32c_of_blocks`], whose conditions hold.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[allow(clippy::cast_ptr_alignment, reason = "blocks consist of aligned words")]
#[target_feature(enable = "sse4.2")]
unsafe fn in_step(first: *mut u8, block_bytes: usize, has_next: bool) -> [u32; LANES] {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_crc32_u64, _mm_prefetch};
    use std::sync::atomic::{AtomicU64, Ordering};

    let mut states = [u64::from(u32::MAX); LANES];
    for line in (0..block_bytes).step_by(LINE_BYTES) {
        if has_next {
            for lane in LANES..2 * LANES {
                let next = first.wrapping_add(lane * block_bytes + line);
                _mm_prefetch::<_MM_HINT_T0>(next.cast());
            }
        }
        for at in (line..line + LINE_BYTES).step_by(super::WORD) {
            for (lane, state) in states.iter_mut().enumerate() {
                let word = first.wrapping_add(lane * block_bytes + at).cast();
                // SAFETY: an aligned word inside a block, by the caller's promise.
                let word = unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Relaxed);
                *state = _mm_crc32_u64(*state, word);
            }
        }
    }
    states.map(|state| !(state as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The CRC-32C, bit by bit.
    fn model(bytes: &[u8]) -> u32 {
        let step = |state: u32, _| (state >> 1) ^ (0x82f6_3b78 & (state & 1).wrapping_neg());
        !bytes.iter().fold(u32::MAX, |state, byte| (0..8).fold(state ^ u32::from(*byte), step))
    }

    /// Goal: every block has its own CRC-32C, groups after the first one too, and what does not
    /// fill a group is left to the caller.
    #[test]
    fn blocks_have_their_sums() {
        assert_eq!(model(b"123456789"), 0xe306_9283);
        for block_bytes in [64, 512] {
            let bytes: Vec<u8> =
                (0..11 * block_bytes).map(|at| (at * at / 7 + at / 251) as u8).collect();
            let region = crate::Region::new(bytes.len()).unwrap();
            region.copy_in(0, &bytes);
            let right: Vec<u32> = bytes.chunks(block_bytes).map(model).collect();
            for count in 0..=11 {
                let mut sums = vec![7; count];
                let slice = region.range(0, region.len());
                let done = slice.crc32c_of_blocks(block_bytes, &mut sums);
                let of_bytes = crate::crc32c_of_blocks(&bytes, block_bytes, &mut sums);
                assert!(
                    done == count / LANES * LANES && of_bytes == done
                        || cfg!(not(target_arch = "x86_64"))
                        || cfg!(miri)
                );
                assert_eq!(sums[..done], right[..done]);
                assert!(sums[done..].iter().all(|sum| *sum == 7));
            }
        }
    }

    /// Goal: blocks that are not made of aligned words and whole lines are left to the caller.
    #[test]
    fn other_blocks_are_left_alone() {
        let region = crate::Region::new(4096).unwrap();
        let mut sums = [7; 8];
        assert_eq!(region.range(0, 800).crc32c_of_blocks(100, &mut sums), 0);
        assert_eq!(region.range(4, 512).crc32c_of_blocks(64, &mut sums), 0);
        assert_eq!(sums, [7; 8]);
    }

    /// Goal: no block past the end is read.
    #[test]
    #[should_panic(expected = "8 blocks of 64 bytes in a range of 511")]
    fn blocks_past_the_end_are_refused() {
        crate::Region::new(4096).unwrap().range(0, 511).crc32c_of_blocks(64, &mut [0; 8]);
    }
}
