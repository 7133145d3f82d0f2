//! Becoming a compute node of one's own, as every measurement does: see [`cxloe_cn::connect`].

pub use cxloe_cn::connect::*;
