//! Log lines that a client can cause as often as it likes, said seldom: the first at once, then one in a while that says
//! how many were left out.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The shortest time between two lines of one kind.
pub const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The lines of one kind.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    said: Option<Instant>,
    left_out: u64,
}

impl Seldom {
    /// Whether a line may be said now, and if so how many of its kind were left out since the last.
    pub fn may_say(&self, now: Instant) -> Option<u64> {
        // A number and a time, each changed in one step.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.said.is_some_and(|said| now.saturating_duration_since(said) < LOG_INTERVAL) {
            state.left_out += 1;
            return None;
        }
        state.said = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_line_in_a_while_with_its_number() {
        let (seldom, start) = (Seldom::default(), Instant::now());
        assert_eq!(seldom.may_say(start), Some(0));
        assert!((0..5000).all(|i| seldom.may_say(start + LOG_INTERVAL / 5000 * i).is_none()));
        assert_eq!(seldom.may_say(start + LOG_INTERVAL), Some(5000));
        assert_eq!(seldom.may_say(start + LOG_INTERVAL), None);
        assert_eq!(seldom.may_say(start + 2 * LOG_INTERVAL), Some(1));
    }
}
