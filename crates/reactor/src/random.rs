//! Randomness of the reactor: the kernel's generator, or the simulation's seeded one.
//!
//! Good enough for identifiers and jitter and, from the kernel, for secrets.

use crate::context::try_with_context;

/// Returns a uniformly random number.
pub fn u64() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Fills `bytes` with random ones.
///
/// # Panics
/// If the kernel has no generator (before Linux 3.17).
pub fn fill(bytes: &mut [u8]) {
    if try_with_context(|context| context.random_fill(bytes)) != Some(true) {
        fill_from_kernel(bytes);
    }
}

fn fill_from_kernel(mut bytes: &mut [u8]) {
    while !bytes.is_empty() {
        // SAFETY: pointer and length are those of the slice.
        let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if n < 0 {
            let error = std::io::Error::last_os_error();
            assert!(error.kind() == std::io::ErrorKind::Interrupted, "getrandom: {error}");
            continue;
        }
        bytes = &mut bytes[n as usize..];
    }
}
