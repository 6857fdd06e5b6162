//! Opens a store of copy-ups with arbitrary records.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = tsumugi_fuzz_union::journal(bytes);
});
