//! Runs [`cxloe_wire_fuzz::view`] on the inputs of libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cxloe_wire_fuzz::view(data));
