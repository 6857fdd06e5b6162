//! Copies from and to memory that other threads may write at the same time.
//!
//! Plain loads and stores that race are undefined behaviour, even where every value would be
//! acceptable: the compiler may keep a byte in a register and miss its change. So only this module
//! touches memory that threads share for writing ([`Region`](crate::Region)). It uses relaxed
//! atomic words of eight bytes on a grid of eight. An end that covers a part of a word is written
//! by a compare-and-swap that keeps its other bytes.
//!
//! On x86-64 the processor's string instructions move the bytes of long copies, at the speed of
//! `memcpy`. The compiler does not look into them and assumes accesses that it cannot reorder or
//! omit. Miri and the thread sanitizer (`--cfg word_copies`) check these copies, so for them all
//! copies are words.

#![allow(clippy::host_endian_bytes, reason = "words are moved within one machine's memory")]

mod sums;

pub(crate) use sums::crc32c_of_blocks;

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// From this length on, the processor's string instructions are faster than words.
const STRING_BYTES_MIN: usize = 128;
/// Whether long copies use the processor's string instructions.
const HAS_STRINGS: bool = cfg!(all(target_arch = "x86_64", not(miri), not(word_copies)));
/// Bytes that are copied at a time from one racing range to another.
const BOUNCE_BYTES: usize = 4096;
const ZEROS: [u8; BOUNCE_BYTES] = [0; BOUNCE_BYTES];

#[allow(clippy::cast_ptr_alignment, reason = "the address is rounded down to the grid")]
/// Returns the words that a range covers: the first whole or partial word, and the bytes before the
/// range in it.
fn grid(start: *mut u8) -> (*const AtomicU64, usize) {
    let before = start.addr() % WORD;
    (start.wrapping_sub(before).cast::<AtomicU64>(), before)
}

/// Copies `to.len()` bytes from racing memory.
///
/// # Safety
/// The whole words that the range touches are mapped memory. Every racing access is one of this
/// module's or comes from another agent (the kernel, a device). `to` does not overlap them.
pub(crate) unsafe fn copy_out(from: *mut u8, to: &mut [u8]) {
    if HAS_STRINGS && to.len() >= STRING_BYTES_MIN {
        // SAFETY: by the caller's promise.
        return unsafe { move_string(from, to.as_mut_ptr(), to.len()) };
    }
    let (mut word, before) = grid(from);
    let mut load = || {
        // SAFETY: by the caller's promise; the grid is aligned.
        let bytes = unsafe { (*word).load(Ordering::Relaxed) }.to_ne_bytes();
        word = word.wrapping_add(1);
        bytes
    };
    let head = if before == 0 { 0 } else { (WORD - before).min(to.len()) };
    let (first, rest) = to.split_at_mut(head);
    if head > 0 {
        first.copy_from_slice(&load()[before..before + head]);
    }
    let mut words = rest.chunks_exact_mut(WORD);
    for bytes in &mut words {
        bytes.copy_from_slice(&load());
    }
    let last = words.into_remainder();
    if !last.is_empty() {
        let len = last.len();
        last.copy_from_slice(&load()[..len]);
    }
}

/// Copies `from` to racing memory.
///
/// # Safety
/// As [`copy_out`].
pub(crate) unsafe fn copy_in(to: *mut u8, from: &[u8]) {
    if HAS_STRINGS && from.len() >= STRING_BYTES_MIN {
        // SAFETY: by the caller's promise.
        return unsafe { move_string(from.as_ptr(), to, from.len()) };
    }
    let (mut word, before) = grid(to);
    let head = if before == 0 { 0 } else { (WORD - before).min(from.len()) };
    let (first, rest) = from.split_at(head);
    if head > 0 {
        // SAFETY: by the caller's promise; the grid is aligned.
        unsafe { store_part(word, before, first) };
        word = word.wrapping_add(1);
    }
    let (words, last) = rest.as_chunks::<WORD>();
    for bytes in words {
        // SAFETY: as above.
        unsafe { (*word).store(u64::from_ne_bytes(*bytes), Ordering::Relaxed) };
        word = word.wrapping_add(1);
    }
    if !last.is_empty() {
        // SAFETY: as above.
        unsafe { store_part(word, 0, last) };
    }
}

/// Writes some bytes of a word and keeps its others.
///
/// # Safety
/// As [`copy_out`], for this word.
unsafe fn store_part(word: *const AtomicU64, start: usize, bytes: &[u8]) {
    // SAFETY: by the caller's promise.
    let word = unsafe { &*word };
    let mut old = word.load(Ordering::Relaxed);
    loop {
        let mut new = old.to_ne_bytes();
        new[start..start + bytes.len()].copy_from_slice(bytes);
        let (new, order) = (u64::from_ne_bytes(new), Ordering::Relaxed);
        match word.compare_exchange_weak(old, new, order, order) {
            Ok(_) => return,
            Err(current) => old = current,
        }
    }
}

/// Writes `len` zeros to racing memory.
///
/// # Safety
/// As [`copy_out`].
pub(crate) unsafe fn zero(mut to: *mut u8, mut len: usize) {
    if HAS_STRINGS && len >= STRING_BYTES_MIN {
        // SAFETY: by the caller's promise.
        return unsafe { store_string(to, len) };
    }
    while len > 0 {
        let here = len.min(ZEROS.len());
        // SAFETY: by the caller's promise.
        unsafe { copy_in(to, &ZEROS[..here]) };
        (to, len) = (to.wrapping_add(here), len - here);
    }
}

/// Copies between two ranges of racing memory. If they overlap, the result is a mix of old bytes.
///
/// # Safety
/// As [`copy_out`], for both.
pub(crate) unsafe fn copy(mut from: *mut u8, mut to: *mut u8, mut len: usize) {
    if HAS_STRINGS && len >= STRING_BYTES_MIN {
        // SAFETY: by the caller's promise.
        return unsafe { move_string(from, to, len) };
    }
    let mut bounce = [0; BOUNCE_BYTES];
    while len > 0 {
        let here = len.min(BOUNCE_BYTES);
        // SAFETY: by the caller's promise.
        unsafe {
            copy_out(from, &mut bounce[..here]);
            copy_in(to, &bounce[..here]);
        }
        (from, to, len) = (from.wrapping_add(here), to.wrapping_add(here), len - here);
    }
}

/// `rep movsb`.
///
/// # Safety
/// As [`copy`]; one of the two may be memory that only the caller uses.
#[cfg(target_arch = "x86_64")]
unsafe fn move_string(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: both ranges are mapped by the caller's promise; the direction flag is clear by the
    // ABI.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// `rep stosb` of zeros.
///
/// # Safety
/// As [`zero`].
#[cfg(target_arch = "x86_64")]
unsafe fn store_string(to: *mut u8, len: usize) {
    // SAFETY: as in `move_string`.
    unsafe {
        std::arch::asm!(
            "rep stosb",
            inout("rcx") len => _, inout("rdi") to => _, in("al") 0_u8,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn move_string(_from: *const u8, _to: *mut u8, _len: usize) {
    unreachable!("only called where there are such instructions")
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn store_string(_to: *mut u8, _len: usize) {
    unreachable!("only called where there are such instructions")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 64;

    /// Returns words that only this test uses, and their first byte.
    fn memory() -> (Vec<AtomicU64>, *mut u8) {
        let bytes: Vec<u8> = (100..100 + LEN as u8).collect();
        let words = bytes.as_chunks::<WORD>().0;
        let words: Vec<_> =
            words.iter().map(|word| AtomicU64::new(u64::from_ne_bytes(*word))).collect();
        let start = words.as_ptr().cast_mut().cast();
        (words, start)
    }

    fn bytes(words: &[AtomicU64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }

    /// Goal: at every start and length, copies change only the bytes of the range.
    #[test]
    fn copies_touch_their_range_only() {
        let source: Vec<u8> = (0..LEN as u8).collect();
        for start in 0..2 * WORD {
            for len in 0..LEN - start {
                let (words, first) = memory();
                let mut model = bytes(&words);
                let at = first.wrapping_add(start);
                // SAFETY: the range lies in `words`, which have no other user.
                unsafe { copy_in(at, &source[..len]) };
                model[start..start + len].copy_from_slice(&source[..len]);
                assert_eq!(bytes(&words), model, "{start} {len}");
                let mut out = vec![0xee; len];
                // SAFETY: see above.
                unsafe { copy_out(at, &mut out) };
                assert_eq!(out, source[..len], "{start} {len}");
                // SAFETY: see above.
                unsafe { zero(at, len) };
                model[start..start + len].fill(0);
                assert_eq!(bytes(&words), model, "{start} {len}");
                let (from, other) = memory();
                // SAFETY: see above.
                unsafe { copy(other.wrapping_add(3), at, len.min(LEN - 3)) };
                let copied = len.min(LEN - 3);
                model[start..start + copied].copy_from_slice(&bytes(&from)[3..3 + copied]);
                assert_eq!(bytes(&words), model, "{start} {len}");
            }
        }
    }

    /// Goal: the string instructions of optimised builds do the same as the words.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn string_instructions_copy_and_clear() {
        let source: Vec<u8> = (0..40).collect();
        let (words, first) = memory();
        let mut model = bytes(&words);
        // SAFETY: the ranges lie in `words` and `source`, which have no other user.
        unsafe { move_string(source.as_ptr(), first.wrapping_add(3), 40) };
        model[3..43].copy_from_slice(&source);
        assert_eq!(bytes(&words), model);
        // SAFETY: as above.
        unsafe { store_string(first.wrapping_add(5), 30) };
        model[5..35].fill(0);
        assert_eq!(bytes(&words), model);
    }
}
