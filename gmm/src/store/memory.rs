//! A store in memory, for managers of tests and simulations.

use super::{Store, StoreError};
use cxloe_gmm_core::manager::{Change, FabricState};

/// A store whose state, built from the committed changes, is lost with the process.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    state: FabricState,
}

impl Store for MemoryStore {
    fn load(&mut self) -> Result<FabricState, StoreError> {
        Ok(self.state.clone())
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        changes.iter().for_each(|change| self.state.apply(change.clone()));
        Ok(())
    }
}
