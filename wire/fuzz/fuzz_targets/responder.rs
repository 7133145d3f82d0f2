//! libFuzzer around [`cxloe_wire_fuzz::responder`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cxloe_wire_fuzz::responder(data));
