//! Detection of floods of Hellos, and selection of the Hellos that the link is to drop before they take a slot of its
//! ring.
//!
//! Hellos are counted: separately for each CN with a key, and together for all other senders. If one of these rates is
//! above the limit, the link passes only a random share of the Hellos counted, as many as can be processed. Addresses
//! that are not used in the flood are not affected. After the flood all Hellos pass again.
//!
//! ```text
//!   a window ends: rate = Hellos counted / (share x length) --> above LIMIT: share = KEPT / rate
//!                                                           --> below, for CALM: no share
//! ```

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use crate::frame::Mac;
use crate::time::Time;

/// Length of a counting period.
const WINDOW: Duration = Duration::from_millis(20);
/// Rate in Hellos per second above which Hellos are a flood.
const LIMIT: u64 = 10_000;
/// Hellos per second that pass in a flood in the name of one CN. The CN's own Hellos are among them and must
/// get through within milliseconds.
const KEPT_OF_ONE: u64 = 3_500;
/// Hellos per second that pass in a flood from addresses without a key.
const KEPT_OF_OTHERS: u64 = 1_000;
/// Time without a flood after which the flood counts as over.
const CALM: Duration = Duration::from_secs(1);
/// Maximum number of addresses in a sieve. If more CNs have keys, the link cannot distinguish the remaining CNs from
/// unknown senders, so all Hellos of addresses without an entry pass.
const KNOWN_MAX: usize = 128;

/// Share of frames that pass, as a number out of 2^32; the highest number passes all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(pub u32);

impl Share {
    /// Share without any limit: every frame passes.
    pub const ALL: Self = Self(u32::MAX);

    fn of(kept: u64, rate: u64) -> Self {
        Self(((kept << 32) / rate.max(1)).min(u64::from(u32::MAX)) as u32)
    }

    /// Estimates the number of frames sent from the number that passed.
    fn undo(self, count: u64) -> u64 {
        if self == Self::ALL { count } else { (count << 32) / u64::from(self.0.max(1)) }
    }
}

/// Shares of Hellos that a link is to pass, by source address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloSieve {
    /// Addresses with a share of their own.
    pub known: Vec<(Mac, Share)>,
    /// Share of all other addresses.
    pub others: Share,
}

/// Count of the Hellos of one address, or of all other addresses together.
#[derive(Clone, Copy, Debug)]
struct Count {
    hellos: u64,
    share: Share,
    /// End of the last counting period with a flood.
    flooded: Time,
}

impl Count {
    const NEW: Self = Self { hellos: 0, share: Share::ALL, flooded: Time::ZERO };

    /// Ends a counting period. Returns whether the share has changed.
    fn turn(&mut self, kept: u64, elapsed: Duration, now: Time) -> bool {
        let counted = self.share.undo(core::mem::take(&mut self.hellos));
        let rate = counted.saturating_mul(1_000_000_000) / (elapsed.as_nanos() as u64).max(1);
        let before = self.share;
        if rate > LIMIT {
            self.flooded = now;
            let share = Share::of(kept, rate);
            // Counts vary because the selection is random, so a share that is nearly right is kept.
            if share.0 < before.0 / 2 || share.0 / 2 > before.0 {
                self.share = share;
            }
        } else if now - self.flooded >= CALM {
            self.share = Share::ALL;
        }
        self.share != before
    }
}

/// Counts Hellos, and sets the shares that the link is to pass.
#[derive(Debug)]
pub(super) struct FloodWatch {
    known: BTreeMap<Mac, Count>,
    /// True if every address with a key is counted separately.
    complete: bool,
    others: Count,
    since: Time,
    /// True if the sieve has changed since the last call of [`changed`](Self::changed).
    changed: bool,
}

impl FloodWatch {
    pub fn new() -> Self {
        Self { known: BTreeMap::new(), complete: true, others: Count::NEW, since: Time::ZERO, changed: false }
    }

    /// Sets the addresses of CNs that have a key. All other addresses are counted together. An address that was already
    /// in the set keeps its count and share, so that a new key of another CN does not end the share during a flood.
    pub fn set_known(&mut self, addresses: impl Iterator<Item = Mac>) {
        let sieve = self.sieve();
        let mut before = core::mem::take(&mut self.known);
        self.complete = true;
        for mac in addresses {
            if self.known.len() == KNOWN_MAX {
                // The remaining CNs with keys get no entry, so unknown senders cannot be limited.
                self.complete = false;
                break;
            }
            self.known.insert(mac, before.remove(&mac).unwrap_or(Count::NEW));
        }
        // Also if the last share has gone with its address: the link would keep to it for ever.
        self.changed |= self.sieve() != sieve;
    }

    #[inline]
    pub fn note(&mut self, from: Mac, now: Time) {
        let count = self.known.get_mut(&from).unwrap_or(&mut self.others);
        count.hellos += 1;
        self.tick(now);
    }

    /// Ends the counting period if its time has passed.
    #[inline]
    pub fn tick(&mut self, now: Time) {
        if now - self.since >= WINDOW {
            self.turn(now);
        }
    }

    #[cold]
    fn turn(&mut self, now: Time) {
        let elapsed = now - core::mem::replace(&mut self.since, now);
        for count in self.known.values_mut() {
            self.changed |= count.turn(KEPT_OF_ONE, elapsed, now);
        }
        self.changed |= self.others.turn(KEPT_OF_OTHERS, elapsed, now);
    }

    /// Returns the sieve if it has changed since the last call. `Some(None)` means that all Hellos pass.
    #[inline]
    pub fn changed(&mut self) -> Option<Option<HelloSieve>> {
        core::mem::take(&mut self.changed).then(|| self.sieve())
    }

    fn sieve(&self) -> Option<HelloSieve> {
        let others = if self.complete { self.others.share } else { Share::ALL };
        let flooded = others != Share::ALL || self.known.values().any(|count| count.share != Share::ALL);
        flooded.then(|| HelloSieve {
            known: self.known.iter().map(|(mac, count)| (*mac, count.share)).collect(),
            others,
        })
    }

    /// Resets all shares. Call it when the link passes all Hellos again, because the counts must then no longer be
    /// divided by the share that passed.
    pub fn forget(&mut self) {
        self.known.values_mut().for_each(|count| *count = Count::NEW);
        self.others = Count::NEW;
        self.changed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const QUIET: Mac = Mac([2, 0, 0, 0, 0, 2]);
    const MS: u64 = 1_000_000;

    /// Link that applies a sieve: it passes every n-th frame instead of a random selection.
    struct Gate {
        watch: FloodWatch,
        sieve: Option<HelloSieve>,
        passed: u64,
        owed: u64,
        changes: u32,
        now: u64,
    }

    impl Gate {
        fn new() -> Gate {
            let mut watch = FloodWatch::new();
            watch.set_known([CN, QUIET].into_iter());
            Gate { watch, sieve: None, passed: 0, owed: 0, changes: 0, now: 5_000 * MS }
        }

        fn share(&self, from: Mac) -> Share {
            self.sieve.as_ref().map_or(Share::ALL, |sieve| {
                sieve.known.iter().find(|(mac, _)| *mac == from).map_or(sieve.others, |(_, share)| *share)
            })
        }

        /// Sends `per_ms` Hellos in each of `ms` milliseconds. Returns how many pass in the last second of
        /// that time.
        fn flood(&mut self, from: Mac, per_ms: u64, ms: u64) -> u64 {
            let mut passed = 0;
            for at in 0..ms {
                self.now += MS;
                for _ in 0..per_ms {
                    self.owed += u64::from(self.share(from).0) + 1;
                    if self.owed >> 32 > 0 {
                        self.owed -= 1 << 32;
                        self.watch.note(from, Time(self.now));
                        passed += u64::from(at + 1000 >= ms);
                    }
                }
                self.watch.tick(Time(self.now));
                if let Some(sieve) = self.watch.changed() {
                    self.changes += 1;
                    self.sieve = sieve;
                }
            }
            self.passed += passed;
            passed
        }
    }

    #[test]
    fn a_flood_is_thinned_out_and_everybody_passes_when_it_is_over() {
        for (from, kept) in [(CN, KEPT_OF_ONE), (Mac([6; 6]), KEPT_OF_OTHERS)] {
            let mut gate = Gate::new();
            // A rate below the limit changes nothing.
            assert_eq!((gate.flood(from, 9, 3_000), gate.changes), (9_000, 0));
            let passed = gate.flood(from, 100, 3_000);
            assert!((kept / 2..=kept * 2).contains(&passed), "{passed} of {kept}");
            assert!(gate.changes < 10, "{}", gate.changes);
            assert_eq!(gate.share(QUIET), Share::ALL, "whose name is not used");
            // The flood grows, then subsides.
            let passed = gate.flood(from, 2_000, 2_000);
            assert!((kept / 2..=kept * 2).contains(&passed), "{passed} of {kept}");
            let passed = gate.flood(from, 50, 2_000);
            assert!((kept / 4..=kept * 2).contains(&passed), "{passed} of {kept}");
            // The flood pauses for less than [`CALM`], so the share stays.
            gate.flood(from, 0, 900);
            assert!(gate.sieve.is_some());
            gate.flood(from, 0, 200);
            assert_eq!(gate.sieve, None);
            assert_eq!(gate.flood(from, 5, 1_000), 5_000);
        }
    }

    #[test]
    fn where_too_many_are_known_nobody_is_taken_for_a_stranger() {
        let mut gate = Gate::new();
        gate.watch.set_known((0..1_000).map(Mac::from_u64));
        gate.flood(Mac([6; 6]), 100, 1_000);
        assert_eq!(gate.sieve, None);
        // Address 3 is one of the 128 known addresses, so it still gets a share of its own.
        gate.flood(Mac::from_u64(3), 100, 1_000);
        assert!(gate.share(Mac::from_u64(3)) < Share::ALL);
        assert_eq!((gate.share(Mac::from_u64(4)), gate.share(Mac([6; 6]))), (Share::ALL, Share::ALL));
    }

    /// A CN that gets a key during a flood must no longer be limited to the share of unknown addresses. After
    /// [`FloodWatch::forget`], as for a new socket, the sieve must be set again.
    #[test]
    fn a_sieve_follows_keys_and_links() {
        let mut gate = Gate::new();
        let new = Mac([2, 0, 0, 0, 0, 9]);
        gate.flood(Mac([6; 6]), 100, 1_000);
        assert!(gate.share(new) < Share::ALL);
        gate.watch.set_known([CN, QUIET, new].into_iter());
        gate.flood(Mac([6; 6]), 100, 10);
        assert_eq!(gate.share(new), Share::ALL);

        gate.watch.forget();
        gate.sieve = None;
        let passed = gate.flood(Mac([6; 6]), 100, 1_000);
        assert!(gate.sieve.is_some() && passed < 10_000, "{passed}");
    }

    /// A CN whose key is withdrawn during a flood in its name takes its share along: the link passes all Hellos again,
    /// also after the CN has got another key.
    #[test]
    fn the_share_of_an_address_ends_with_its_key() {
        let mut gate = Gate::new();
        gate.flood(CN, 100, 1_000);
        assert!(gate.share(CN) < Share::ALL);
        gate.watch.set_known([QUIET].into_iter());
        gate.flood(CN, 1, 1);
        assert_eq!(gate.sieve, None);
        gate.watch.set_known([CN, QUIET].into_iter());
        assert_eq!(gate.flood(CN, 5, 1_000), 5_000);
    }
}
