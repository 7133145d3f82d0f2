//! Ending a call of the manager from another thread: one that waits for news may do so for a minute.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::place::{Ending, Stream};

/// Ends calls.
#[derive(Clone, Debug, Default)]
pub struct Cut(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// No call is made any more.
    is_cut: bool,
    /// The connection of the latest call.
    latest: Option<Ending>,
}

impl Cut {
    /// Ends the call that is under way, and those to come.
    pub fn now(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_cut = true;
        if let Some(latest) = state.latest.take() {
            latest.now();
        }
    }

    /// A call begins on `stream`.
    ///
    /// # Errors
    /// None is to be made any more, or the system has no descriptor.
    pub fn watch(&self, stream: &dyn Stream) -> io::Result<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_cut {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the program ends"));
        }
        state.latest = Some(stream.ending()?);
        Ok(())
    }
}
