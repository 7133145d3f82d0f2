//! libFuzzer target that calls [`cxloe_fuzz::hostile_client`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cxloe_fuzz::hostile_client(data));
