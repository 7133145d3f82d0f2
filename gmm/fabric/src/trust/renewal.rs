//! Schedule of a certificate's renewal: first at two thirds of its validity, then repeated until a renewal
//! succeeds.

/// Maximum interval between checks of the time, in milliseconds: timers do not count time in which a machine is
/// suspended.
const LOOK_MS: u64 = 60_000;
/// Pause after a failed renewal, in milliseconds.
const RETRY_MS: u64 = 60_000;

/// The next step of the program that renews the certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewalStep {
    /// Wait this number of milliseconds, then ask for the next step.
    Wait(u64),
    /// Request a new certificate.
    Renew,
}

#[derive(Debug, Clone, Copy)]
pub struct Renewal {
    renew_ms: u64,
    /// Time before which no renewal is tried after a failure, in milliseconds since the Unix epoch.
    retry_ms: u64,
}

impl Renewal {
    /// Returns the schedule of a certificate that is to be renewed from `renew_ms` on (milliseconds since the
    /// Unix epoch).
    pub fn new(renew_ms: u64) -> Self {
        Self { renew_ms, retry_ms: 0 }
    }

    /// Returns the next step at `now_ms` (milliseconds since the Unix epoch).
    pub fn step(&self, now_ms: u64) -> RenewalStep {
        match self.renew_ms.max(self.retry_ms).saturating_sub(now_ms) {
            0 => RenewalStep::Renew,
            // A clock that was set back must not delay the renewal for ever.
            left => RenewalStep::Wait(left.min(LOOK_MS)),
        }
    }

    /// Records a successful renewal; the new certificate is to be renewed from `renew_ms` on.
    pub fn renewed(&mut self, renew_ms: u64) {
        *self = Self::new(renew_ms);
    }

    /// Records a failed renewal, which is repeated after a pause.
    pub fn failed(&mut self, now_ms: u64) {
        self.retry_ms = now_ms.saturating_add(RETRY_MS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 86_400_000;
    const VALID_MS: u64 = 30 * DAY_MS;

    /// Simulates a year in which the manager is unreachable for nine days at a time. The program must have a valid
    /// certificate at every moment, and send no more requests than necessary.
    #[test]
    fn a_certificate_is_valid_for_a_year_of_virtual_time() {
        let begin_ms = 1_700_000_000_000;
        let (mut now_ms, mut expires_ms) = (begin_ms, begin_ms + VALID_MS);
        let mut renewal = Renewal::new(begin_ms + VALID_MS * 2 / 3);
        let (mut renewed, mut asked) = (0, 0_u64);
        while now_ms < begin_ms + 365 * DAY_MS {
            assert!(now_ms < expires_ms, "expired after {} days", (now_ms - begin_ms) / DAY_MS);
            match renewal.step(now_ms) {
                RenewalStep::Wait(ms) => {
                    assert!((1..=LOOK_MS).contains(&ms), "{ms}");
                    now_ms += ms;
                }
                RenewalStep::Renew => {
                    asked += 1;
                    // The manager is unreachable for the first nine of each twenty days.
                    if (now_ms - begin_ms) / DAY_MS % 20 < 9 {
                        renewal.failed(now_ms);
                        assert_ne!(renewal.step(now_ms), RenewalStep::Renew, "not at once again");
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
        assert_eq!(Renewal::new(0).step(1), RenewalStep::Renew);
        assert_eq!(Renewal::new(10).step(1), RenewalStep::Wait(9));
    }
}
