//! libFuzzer around [`cxloe_wire_fuzz::keyed`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cxloe_wire_fuzz::keyed(data));
