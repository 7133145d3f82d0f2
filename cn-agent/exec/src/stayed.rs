//! How much of a program's memory stays in this machine although it was to be remote: mappings that are larger than its
//! region, or of kinds that cannot be, or made past the C library. It is looked at now and then while the program runs.

use std::time::{Duration, Instant};

use serde::Serialize;

use cxloe_client::message::PagingView;

/// The first look, and how often it is looked at most seldom.
const LOOK_INTERVAL_MIN: Duration = Duration::from_millis(50);
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// From how much on it is worth a word by itself: so many bytes, and one in so many of all.
const BYTES_WORTH: u64 = 64 << 20;
const PART_WORTH: u64 = 4;

/// Anonymous memory of a program's processes, when most of it was in this machine beside what is paged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stayed {
    /// Bytes that were never to leave.
    pub local_bytes: u64,
    /// These, and what was remote memory's at that moment.
    pub memory_bytes: u64,
}

impl Stayed {
    /// Whether it is so much that whoever wants remote memory should know.
    pub fn is_worth_a_word(&self) -> bool {
        self.local_bytes >= BYTES_WORTH && self.local_bytes >= self.memory_bytes / PART_WORTH
    }

    fn most(self, other: Stayed) -> Stayed {
        if other.local_bytes > self.local_bytes { other } else { self }
    }
}

/// Looks, and remembers the most.
#[derive(Debug)]
pub struct Watch {
    most: Option<Stayed>,
    pause: Duration,
    due: Instant,
}

impl Watch {
    /// A watch that begins at `now`.
    pub fn new(now: Instant) -> Watch {
        Watch { most: None, pause: LOOK_INTERVAL_MIN, due: now + LOOK_INTERVAL_MIN }
    }

    /// How long until the next look.
    pub fn left(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// A look at a program's processes, as the agent and the kernel see them.
    pub fn look(&mut self, now: Instant, view: &PagingView) {
        let anonymous: u64 = view.members.iter().filter_map(|member| anonymous(member.pid)).sum();
        if anonymous > 0 {
            let seen = stayed(anonymous, view.resident, view.slots_used);
            self.most = Some(self.most.unwrap_or_default().most(seen));
        }
        self.put_off(now);
    }

    /// The next look is later.
    pub fn put_off(&mut self, now: Instant) {
        self.due = now + self.pause;
        self.pause = (self.pause * 2).min(LOOK_INTERVAL_MAX);
    }

    /// The most that was seen; `None`: the program was too short.
    pub fn most(&self) -> Option<Stayed> {
        self.most
    }
}

/// Of so many anonymous bytes in this machine, those of `resident` are remote memory's, which has `slots` pages in all.
fn stayed(anonymous: u64, resident: u64, slots: u32) -> Stayed {
    let local_bytes = anonymous.saturating_sub(resident);
    let remote = resident.max(u64::from(slots) * cxloe_cn_core::pager::PAGE_BYTES as u64);
    Stayed { local_bytes, memory_bytes: local_bytes + remote }
}

/// Bytes of anonymous memory that a process has in this machine, swapped out or not.
fn anonymous(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some((kib("RssAnon:")? + kib("VmSwap:").unwrap_or_default()) << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_paged_does_not_count() {
        let seen = stayed(100 * MIB, 64 * MIB, 4096 * 32);
        assert_eq!(seen, Stayed { local_bytes: 36 * MIB, memory_bytes: 548 * MIB });
        assert!(!seen.is_worth_a_word());
        assert!(stayed(200 * MIB, 50 * MIB, 0).is_worth_a_word());
        assert_eq!(stayed(MIB, 2 * MIB, 0).local_bytes, 0, "looked at one after the other");
        assert!(anonymous(std::process::id()).is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn looks_become_seldom() {
        let start = Instant::now();
        let mut watch = Watch::new(start);
        let mut now = start;
        for looks in 0..10 {
            assert!(looks < 6 || watch.left(now) == LOOK_INTERVAL_MAX);
            now += watch.left(now);
            watch.put_off(now);
        }
        assert_eq!(watch.most(), None);
    }
}
