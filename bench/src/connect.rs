//! Becoming a compute node of one's own, as every measurement does: see [`cxloe_port::connect`].

pub use cxloe_port::connect::*;
