//! libFuzzer target that calls [`cxloe_fuzz::nbd`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cxloe_fuzz::nbd(data));
