//! Decodes arbitrary bytes as every structure and command.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tsumugi_fuzz_nvme::structures(bytes);
});
