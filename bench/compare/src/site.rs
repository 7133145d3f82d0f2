//! Capabilities of the machine that a comparison runs on.

use cxloe_lab::LabPrivilege;

/// Capabilities of this machine and options that decide which peers can run.
#[derive(Debug, Clone)]
pub struct Site {
    /// Rights by which this process can make a network.
    pub standing: LabPrivilege,
    /// Names of two verbs devices that reach each other; `None` without such devices.
    pub rdma: Option<(String, String)>,
    /// True if sessions of this system are measured without keys.
    pub insecure: bool,
}
