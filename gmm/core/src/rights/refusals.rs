//! Selection of the refused requests that get an entry in the event log. Each entry costs a commit and
//! displaces an older event, and a refused caller can repeat its request at any rate. Each caller therefore
//! gets one entry per hour, and the number of entries per hour is limited.

use std::collections::BTreeMap;

/// Length of an hour in milliseconds. In each hour, a caller gets at most one entry, and all callers at most
/// [`ENTRIES_MAX`].
const HOUR_MS: u64 = 3_600_000;
const ENTRIES_MAX: usize = 60;

/// Counters of refused requests since the beginning of the present hour.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Beginning of the present hour, in milliseconds since the Unix epoch.
    began_ms: u64,
    /// Number of refused requests since the caller's entry, by caller. Each caller in the table has an entry
    /// in this hour.
    refused: BTreeMap<String, u64>,
    /// Number of refused requests that no entry covers yet: those of callers beyond the limit, and those left
    /// from earlier hours.
    untold: u64,
}

impl Refusals {
    /// Records a refused request of `who`. If an entry is to be written, returns the number of requests that
    /// it covers; otherwise `None`.
    pub fn refused(&mut self, who: &str, now_ms: u64) -> Option<u64> {
        // A clock that was set back also begins a new hour: otherwise no entry would be written until the
        // clock catches up.
        if now_ms.saturating_sub(self.began_ms) >= HOUR_MS || now_ms < self.began_ms {
            self.began_ms = now_ms;
            self.untold += std::mem::take(&mut self.refused).into_values().sum::<u64>();
        }
        if let Some(attempts) = self.refused.get_mut(who) {
            *attempts += 1;
            return None;
        }
        if self.refused.len() >= ENTRIES_MAX {
            self.untold += 1;
            return None;
        }
        self.refused.insert(who.to_owned(), 0);
        Some(1 + std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_asker_is_told_of_once_in_an_hour_and_no_attempt_is_forgotten() {
        let mut refusals = Refusals::default();
        let (mut entries, mut reported, mut attempts) = (0, 0, 0);
        let mut now_ms = 1_700_000_000_000;
        let day_ms = 24 * HOUR_MS;
        let end_ms = now_ms + 30 * day_ms;
        while now_ms < end_ms {
            for who in ["token a", "uid 7"] {
                attempts += 1;
                if let Some(count) = refusals.refused(who, now_ms) {
                    entries += 1;
                    reported += count;
                }
            }
            now_ms += 60_000;
        }
        assert_eq!(entries, 2 * 24 * 30);
        assert!(attempts - reported <= 2 * 60, "{attempts} {reported}");
    }

    #[test]
    fn who_comes_under_many_names_gets_few_entries() {
        let mut refusals = Refusals::default();
        let entries =
            (0..1_000_000_u64).filter(|from| refusals.refused(&from.to_string(), from / 100).is_some());
        assert_eq!(entries.count(), ENTRIES_MAX);
        assert!(refusals.refused.len() <= ENTRIES_MAX);
        let reported = refusals.refused("later", 2 * HOUR_MS).unwrap();
        assert_eq!(reported, 1_000_000 - ENTRIES_MAX as u64 + 1);
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_silence_it() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.refused("a", 10 * HOUR_MS), Some(1));
        assert_eq!(refusals.refused("a", HOUR_MS), Some(1));
    }
}
