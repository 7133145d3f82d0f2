//! A region as `cn-agent list` shows it.

use cxloe_client::message::{AttachedRegion, Attaching};
use pyo3::prelude::*;

/// A region that the agent has attached.
#[pyclass(module = "cxloe", frozen, get_all)]
pub struct Region {
    /// Name of the region, unique in the fabric.
    name: String,
    /// Address of the region's first byte, for reads and writes of lines (its HPA).
    address: u64,
    /// Size of the region in bytes, as far as it has addresses.
    size: u64,
    /// User on this node that may use the region; None: all who may use the agent.
    uid: Option<u32>,
    /// Time of creation in milliseconds since the Unix epoch.
    created_ms: u64,
    /// State in the manager's last answer: `active`, `degraded`, `lost`, …
    state: String,
    /// Whether the region can be used here: `attached`, `connecting`, …
    attachment: String,
    /// Backing of the region: `ethernet`, or a CXL device.
    served_by: String,
    /// Reason why the region waits, or why its device cannot be used.
    note: Option<String>,
}

/// Name of the state, as in the agent's answers.
fn attachment(state: Attaching) -> &'static str {
    match state {
        Attaching::Attached => "attached",
        Attaching::Connecting => "connecting",
        Attaching::Draining => "letting_go",
        Attaching::Detached => "detached",
        Attaching::InReset => "held",
        Attaching::Waiting => "waiting",
    }
}

impl From<AttachedRegion> for Region {
    fn from(region: AttachedRegion) -> Region {
        let size = region.addressable();
        Region {
            name: region.region,
            address: region.hpa,
            size,
            uid: region.uid,
            created_ms: region.created_ms,
            state: region.state,
            attachment: attachment(region.attachment).into(),
            served_by: region.served_by,
            note: region.note,
        }
    }
}

impl Region {
    pub fn name(&self) -> &str {
        &self.name
    }
}

#[pymethods]
impl Region {
    fn __repr__(&self) -> String {
        let Region { name, address, size, state, attachment, .. } = self;
        format!("<cxloe.Region {name:?} of {size} bytes at {address:#x}, {state}, {attachment}>")
    }
}
