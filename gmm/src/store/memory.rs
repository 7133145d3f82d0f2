//! A store that forgets when it is dropped: for managers that live as long as a test or a simulation.

use super::{Store, StoreError};
use crate::manager::{Change, State};

/// A state in memory, made of the changes committed to it.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    state: State,
}

impl Store for MemoryStore {
    fn load(&mut self) -> Result<State, StoreError> {
        Ok(self.state.clone())
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        changes.iter().for_each(|change| self.state.apply(change.clone()));
        Ok(())
    }
}
