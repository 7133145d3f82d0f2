//! A port over which several regions are mapped.

use super::region::InlineRegion;
use super::shared::SharedPortRef;
use super::{InlineError, InlineOptions};
use crate::port::Port;

/// A port whose link and engine are driven by the threads that fault in its regions, and by a keeper thread.
#[derive(Debug)]
pub struct InlinePort {
    shared: SharedPortRef,
}

impl InlinePort {
    /// Takes over `port`, and starts its keeper thread.
    ///
    /// # Errors
    /// [`InlineError::System`]: the thread cannot be started.
    pub fn new(port: Port) -> Result<InlinePort, InlineError> {
        Ok(InlinePort { shared: SharedPortRef::new(port)? })
    }

    /// Maps the `bytes` bytes of a region that the port reaches from `hpa` on. At most
    /// [`SPACES_MAX`](super::SPACES_MAX) regions, which must not overlap, are mapped at a time.
    ///
    /// # Errors
    /// Any [`InlineError`].
    pub fn map(&self, hpa: u64, bytes: u64, options: InlineOptions) -> Result<InlineRegion, InlineError> {
        InlineRegion::over(self.shared.clone(), hpa, bytes, options)
    }

    /// Ends the keeper and returns the port, over which no region may be mapped any more.
    ///
    /// # Errors
    /// [`InlineError::InUse`] if regions are mapped: then the port ends with the last of them.
    /// [`InlineError::Inherited`] in a child of the process that made the port.
    pub fn into_port(self) -> Result<Port, InlineError> {
        self.shared.into_port()
    }
}
