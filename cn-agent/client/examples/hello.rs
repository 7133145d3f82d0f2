//! Maps the region `scratch` through this machine's agent, and writes to it.

#![allow(unsafe_code, reason = "other processes may map the region as well")]

use cxloe_client::defaults::default_socket;
use cxloe_client::mapping::{MapOptions, Mapping};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // At most 256 MiB of the region are in this machine at a time.
    let options = MapOptions { limit: 256 << 20, ..MapOptions::default() };
    let mut memory = Mapping::open(&default_socket(), "scratch", options)?;
    // SAFETY: No other thread or process writes to the region meanwhile.
    let bytes = unsafe { memory.as_mut_slice() };
    bytes[..5].copy_from_slice(b"hello");
    // `flush` returns when the memory nodes have the bytes.
    memory.flush()?;
    Ok(())
}
