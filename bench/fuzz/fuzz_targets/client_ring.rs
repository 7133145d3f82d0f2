//! libFuzzer around [`cxloe_fuzz::client_ring`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cxloe_fuzz::client_ring(data));
