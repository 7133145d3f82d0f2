//! Which attempts that were refused are worth an entry of the event log. Each costs a commit and the place of an older event,
//! and who is refused asks as often as it likes: so one entry for the same asker in an hour, and not many for all.

use std::collections::BTreeMap;

/// How long an asker has no second entry, and how long entries are counted together, in milliseconds.
const HOUR_MS: u64 = 3_600_000;
/// Entries in an hour.
const ENTRIES_MAX: usize = 60;

/// Those who were refused lately.
#[derive(Debug, Default)]
pub struct Refusals {
    /// When the hour began that entries are counted in.
    began_ms: u64,
    /// By who: attempts that no entry tells of yet. Who is here has an entry in this hour.
    refused: BTreeMap<String, u64>,
    /// Attempts of those for whom there was no entry left, and in the hour before of all.
    untold: u64,
}

impl Refusals {
    /// `who` was refused at `now_ms`. Returns how many attempts are to be told of, if an entry is to be made.
    pub fn refused(&mut self, who: &str, now_ms: u64) -> Option<u64> {
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
        let (mut entries, mut told, mut attempts) = (0, 0, 0);
        let mut now_ms = 1_700_000_000_000;
        let day_ms = 24 * HOUR_MS;
        let end_ms = now_ms + 30 * day_ms;
        while now_ms < end_ms {
            for who in ["token a", "uid 7"] {
                attempts += 1;
                if let Some(count) = refusals.refused(who, now_ms) {
                    entries += 1;
                    told += count;
                }
            }
            now_ms += 60_000;
        }
        assert_eq!(entries, 2 * 24 * 30);
        assert!(attempts - told <= 2 * 60, "{attempts} {told}");
    }

    #[test]
    fn who_comes_under_many_names_gets_few_entries() {
        let mut refusals = Refusals::default();
        let entries =
            (0..1_000_000_u64).filter(|from| refusals.refused(&from.to_string(), from / 100).is_some());
        assert_eq!(entries.count(), ENTRIES_MAX);
        assert!(refusals.refused.len() <= ENTRIES_MAX);
        let told = refusals.refused("later", 2 * HOUR_MS).unwrap();
        assert_eq!(told, 1_000_000 - ENTRIES_MAX as u64 + 1);
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_silence_it() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.refused("a", 10 * HOUR_MS), Some(1));
        assert_eq!(refusals.refused("a", HOUR_MS), Some(1));
    }
}
