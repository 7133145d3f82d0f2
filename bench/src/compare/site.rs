//! What the machine of a comparison has to offer.

use cxloe_lab::Standing;

/// What there is on this machine.
#[derive(Debug, Clone)]
pub struct Site {
    /// Where the rights to make a network come from.
    pub standing: Standing,
    /// Two verbs devices that reach each other.
    pub rdma: Option<(String, String)>,
    /// This system is measured without keys.
    pub insecure: bool,
}
