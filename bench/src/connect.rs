//! How a measurement connects as a compute node: see [`cxloe_port::connect`].

pub use cxloe_port::connect::*;
