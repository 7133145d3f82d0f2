//! libFuzzer target that calls [`cxloe_fuzz::fm_api`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cxloe_fuzz::fm_api(data));
