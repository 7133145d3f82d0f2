//! When a certificate is renewed: two thirds through its time, and again and again when that does not work.

/// How often it is looked at most whether the time has come, in milliseconds: a machine that slept has another time than its
/// timers.
const LOOK_MS: u64 = 60_000;
/// How long to wait after it went wrong, in milliseconds.
const RETRY_MS: u64 = 60_000;

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing for so many milliseconds; then ask again.
    Wait(u64),
    /// Ask for a new certificate.
    Renew,
}

/// Says when to renew a certificate.
#[derive(Debug, Clone, Copy)]
pub struct Renewal {
    renew_ms: u64,
    /// Not before this, for it has just gone wrong.
    retry_ms: u64,
}

impl Renewal {
    /// Of a certificate that should be renewed from `renew_ms` on (milliseconds since the Unix epoch).
    pub fn new(renew_ms: u64) -> Self {
        Self { renew_ms, retry_ms: 0 }
    }

    /// What to do at `now_ms`.
    pub fn step(&self, now_ms: u64) -> Step {
        match self.renew_ms.max(self.retry_ms).saturating_sub(now_ms) {
            0 => Step::Renew,
            // A clock that was set back must not make it wait for ever.
            left => Step::Wait(left.min(LOOK_MS)),
        }
    }

    /// There is a new one, to be renewed from `renew_ms` on.
    pub fn renewed(&mut self, renew_ms: u64) {
        *self = Self::new(renew_ms);
    }

    /// It could not be renewed at `now_ms`.
    pub fn failed(&mut self, now_ms: u64) {
        self.retry_ms = now_ms.saturating_add(RETRY_MS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 86_400_000;
    const VALID_MS: u64 = 30 * DAY_MS;

    /// A year of a program that never ends, with a manager that is away for nine days at a time: it has a valid
    /// certificate at every moment, and does not ask for one more often than it has to.
    #[test]
    fn a_certificate_is_valid_for_a_year_of_virtual_time() {
        let begin_ms = 1_700_000_000_000;
        let (mut now_ms, mut expires_ms) = (begin_ms, begin_ms + VALID_MS);
        let mut renewal = Renewal::new(begin_ms + VALID_MS * 2 / 3);
        let (mut renewed, mut asked) = (0, 0_u64);
        while now_ms < begin_ms + 365 * DAY_MS {
            assert!(now_ms < expires_ms, "expired after {} days", (now_ms - begin_ms) / DAY_MS);
            match renewal.step(now_ms) {
                Step::Wait(ms) => {
                    assert!((1..=LOOK_MS).contains(&ms), "{ms}");
                    now_ms += ms;
                }
                Step::Renew => {
                    asked += 1;
                    // Away for the first nine of each twenty days.
                    if (now_ms - begin_ms) / DAY_MS % 20 < 9 {
                        renewal.failed(now_ms);
                        assert_ne!(renewal.step(now_ms), Step::Renew, "not at once again");
                    } else {
                        expires_ms = now_ms + VALID_MS;
                        renewal.renewed(now_ms + VALID_MS * 2 / 3);
                        renewed += 1;
                    }
                }
            }
        }
        assert!((12..=18).contains(&renewed), "{renewed}");
        assert!(asked < 18 * 9 * 1440 + 18, "{asked}");
    }

    #[test]
    fn what_is_not_known_is_renewed_at_once() {
        assert_eq!(Renewal::new(0).step(1), Step::Renew);
        assert_eq!(Renewal::new(10).step(1), Step::Wait(9));
    }
}
