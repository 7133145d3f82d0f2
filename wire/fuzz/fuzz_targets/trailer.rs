//! libFuzzer around [`cxloe_wire_fuzz::trailer`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cxloe_wire_fuzz::trailer(data));
