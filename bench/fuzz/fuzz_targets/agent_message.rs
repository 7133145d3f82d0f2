//! libFuzzer target that calls [`cxloe_fuzz::agent_message`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cxloe_fuzz::agent_message(data));
