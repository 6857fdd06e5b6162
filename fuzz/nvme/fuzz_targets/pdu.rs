//! Feeds arbitrary bytes to the NVMe/TCP parser.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tsumugi_fuzz_nvme::pdu(bytes);
});
