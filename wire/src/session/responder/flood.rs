//! Whether Hellos come as a flood, and which of them the link is to drop before they cost a place in its ring and a look.
//!
//! Each Hello that is looked at is counted, those of each compute node whose key is known by itself, all others together.
//! What comes oftener than it may gets a share: so many of them, by chance, are let through as can be looked at. Whose name
//! is not used in the flood is not concerned. When it ends, all are let through again.
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

/// Hellos are counted for so long.
const WINDOW: Duration = Duration::from_millis(20);
/// Hellos a second from which on they are a flood.
const LIMIT: u64 = 10_000;
/// How many a second are let through of a flood in the name of one compute node: it is one of those who call, and has to get
/// through within milliseconds.
const KEPT_OF_ONE: u64 = 3_500;
/// How many a second of a flood of strangers.
const KEPT_OF_OTHERS: u64 = 1_000;
/// A flood has ended when there was none for so long.
const CALM: Duration = Duration::from_secs(1);
/// Addresses that a sieve names at most. With more, strangers are not told apart from who is known, and all are let through.
const KNOWN_MAX: usize = 128;

/// A share of frames: so many of 2^32 are let through, and with the highest number all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(pub u32);

impl Share {
    /// All.
    pub const ALL: Self = Self(u32::MAX);

    /// As many of `rate` a second as make `kept`.
    fn of(kept: u64, rate: u64) -> Self {
        Self(((kept << 32) / rate.max(1)).min(u64::from(u32::MAX)) as u32)
    }

    /// How many there were when so many came through.
    fn undo(self, count: u64) -> u64 {
        if self == Self::ALL { count } else { (count << 32) / u64::from(self.0.max(1)) }
    }
}

/// Which Hellos a link lets through, by their source address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloSieve {
    /// Addresses with a share of their own.
    pub known: Vec<(Mac, Share)>,
    /// What all others have together.
    pub others: Share,
}

/// The Hellos of one address, or of all that are not known.
#[derive(Clone, Copy, Debug)]
struct Count {
    hellos: u64,
    share: Share,
    /// The last time they were a flood.
    flooded: Time,
}

impl Count {
    const NEW: Self = Self { hellos: 0, share: Share::ALL, flooded: Time::ZERO };

    /// A window ends; whether the share is another now.
    fn turn(&mut self, kept: u64, elapsed: Duration, now: Time) -> bool {
        let counted = self.share.undo(core::mem::take(&mut self.hellos));
        let rate = counted.saturating_mul(1_000_000_000) / (elapsed.as_nanos() as u64).max(1);
        let before = self.share;
        if rate > LIMIT {
            self.flooded = now;
            let share = Share::of(kept, rate);
            // Rates that are counted by chance vary: what is about right stays.
            if share.0 < before.0 / 2 || share.0 / 2 > before.0 {
                self.share = share;
            }
        } else if now - self.flooded >= CALM {
            self.share = Share::ALL;
        }
        self.share != before
    }
}

/// Counts Hellos.
#[derive(Debug)]
pub(super) struct FloodWatch {
    known: BTreeMap<Mac, Count>,
    /// Whether all addresses are among them whose key is known.
    complete: bool,
    others: Count,
    since: Time,
    /// Whether the sieve has become another one since it was last asked for.
    changed: bool,
}

impl FloodWatch {
    pub fn new() -> Self {
        Self { known: BTreeMap::new(), complete: true, others: Count::NEW, since: Time::ZERO, changed: false }
    }

    /// These addresses are those of compute nodes whose key is known, and no others.
    pub fn know(&mut self, addresses: impl Iterator<Item = Mac>) {
        let mut before = core::mem::take(&mut self.known);
        self.complete = true;
        for mac in addresses {
            if self.known.len() == KNOWN_MAX {
                self.complete = false;
                break;
            }
            self.known.insert(mac, before.remove(&mac).unwrap_or(Count::NEW));
        }
        self.changed |= self.sieve().is_some();
    }

    /// Notes a Hello in the name of `from`.
    #[inline]
    pub fn note(&mut self, from: Mac, now: Time) {
        let count = self.known.get_mut(&from).unwrap_or(&mut self.others);
        count.hellos += 1;
        self.tick(now);
    }

    /// Notes that time passes.
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

    /// The sieve, if it is another one than when this was asked last; `Some(None)`: none, all are let through.
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

    /// The link lets all through, as it did at first: what was counted is not to be taken for a share.
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

    /// A link that lets through what it is told to, every so many-th instead of by chance.
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
            watch.know([CN, QUIET].into_iter());
            Gate { watch, sieve: None, passed: 0, owed: 0, changes: 0, now: 5_000 * MS }
        }

        fn share(&self, from: Mac) -> Share {
            self.sieve.as_ref().map_or(Share::ALL, |sieve| {
                sieve.known.iter().find(|(mac, _)| *mac == from).map_or(sieve.others, |(_, share)| *share)
            })
        }

        /// So many Hellos a millisecond for so long; how many pass in the last second of it, or in all of it.
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
            // Below the limit nothing happens.
            assert_eq!((gate.flood(from, 9, 3_000), gate.changes), (9_000, 0));
            let passed = gate.flood(from, 100, 3_000);
            assert!((kept / 2..=kept * 2).contains(&passed), "{passed} of {kept}");
            assert!(gate.changes < 10, "{}", gate.changes);
            assert_eq!(gate.share(QUIET), Share::ALL, "whose name is not used");
            // It grows, and becomes less.
            let passed = gate.flood(from, 2_000, 2_000);
            assert!((kept / 2..=kept * 2).contains(&passed), "{passed} of {kept}");
            let passed = gate.flood(from, 50, 2_000);
            assert!((kept / 4..=kept * 2).contains(&passed), "{passed} of {kept}");
            // It pauses for less than it takes to be over.
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
        gate.watch.know((0..1_000).map(Mac::from_u64));
        gate.flood(Mac([6; 6]), 100, 1_000);
        assert_eq!(gate.sieve, None);
        // One of those that were taken in.
        gate.flood(Mac::from_u64(3), 100, 1_000);
        assert!(gate.share(Mac::from_u64(3)) < Share::ALL);
        assert_eq!((gate.share(Mac::from_u64(4)), gate.share(Mac([6; 6]))), (Share::ALL, Share::ALL));
    }

    /// Who gets a key in a flood is not sifted with strangers any more, and what a new socket does not know is told anew.
    #[test]
    fn a_sieve_follows_keys_and_links() {
        let mut gate = Gate::new();
        let new = Mac([2, 0, 0, 0, 0, 9]);
        gate.flood(Mac([6; 6]), 100, 1_000);
        assert!(gate.share(new) < Share::ALL);
        gate.watch.know([CN, QUIET, new].into_iter());
        gate.flood(Mac([6; 6]), 100, 10);
        assert_eq!(gate.share(new), Share::ALL);

        gate.watch.forget();
        gate.sieve = None;
        let passed = gate.flood(Mac([6; 6]), 100, 1_000);
        assert!(gate.sieve.is_some() && passed < 10_000, "{passed}");
    }
}
