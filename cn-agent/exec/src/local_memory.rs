//! Memory of a program that stays in this machine although it was to be remote: mappings that are larger than the
//! region, or of kinds that cannot be remote, or made without the C library. Its size is sampled at intervals while the
//! program runs.

use std::time::{Duration, Instant};

use serde::Serialize;

use cxloe_client::message::PagingView;

/// Delay of the first sample; the interval is doubled after each sample, up to `LOOK_INTERVAL_MAX`.
const LOOK_INTERVAL_MIN: Duration = Duration::from_millis(50);
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Minimum number of bytes of local memory that are reported; they must also be at least 1/`PART_WORTH` of
/// all memory.
const BYTES_WORTH: u64 = 64 << 20;
const PART_WORTH: u64 = 4;

/// Anonymous memory of a program's processes, at the sample with the most memory outside the paged memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LocalMemory {
    /// Bytes outside the paged memory.
    pub local_bytes: u64,
    /// `local_bytes`, plus the bytes of remote memory in the same sample.
    pub memory_bytes: u64,
}

impl LocalMemory {
    /// Whether the amount is large enough for a message.
    pub fn exceeds_report_threshold(&self) -> bool {
        self.local_bytes >= BYTES_WORTH && self.local_bytes >= self.memory_bytes / PART_WORTH
    }

    fn largest(self, other: LocalMemory) -> LocalMemory {
        if other.local_bytes > self.local_bytes { other } else { self }
    }
}

/// Takes samples, and keeps the largest.
#[derive(Debug)]
pub struct LocalMemorySampler {
    most: Option<LocalMemory>,
    pause: Duration,
    due: Instant,
}

impl LocalMemorySampler {
    /// A sampler whose first sample is due shortly after `now`.
    pub fn new(now: Instant) -> LocalMemorySampler {
        LocalMemorySampler { most: None, pause: LOOK_INTERVAL_MIN, due: now + LOOK_INTERVAL_MIN }
    }

    pub fn time_left(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// Samples the processes of a program: remote memory by the agent's figures, local memory by the kernel's.
    pub fn sample(&mut self, now: Instant, view: &PagingView) {
        let anonymous: u64 = view.members.iter().filter_map(|member| anonymous(member.pid)).sum();
        if anonymous > 0 {
            let seen = local_memory(anonymous, view.resident, view.slots_used);
            self.most = Some(self.most.unwrap_or_default().largest(seen));
        }
        self.postpone(now);
    }

    /// Schedules the next sample, and doubles the interval up to its limit.
    pub fn postpone(&mut self, now: Instant) {
        self.due = now + self.pause;
        self.pause = (self.pause * 2).min(LOOK_INTERVAL_MAX);
    }

    /// The largest sample; `None` if the program ended before the first.
    pub fn largest(&self) -> Option<LocalMemory> {
        self.most
    }
}

/// Computes a sample: of the `anonymous` bytes in this machine, `resident` bytes belong to the remote memory,
/// which has `slots` pages in all.
fn local_memory(anonymous: u64, resident: u64, slots: u32) -> LocalMemory {
    let local_bytes = anonymous.saturating_sub(resident);
    let remote = resident.max(u64::from(slots) * cxloe_cn_core::pager::PAGE_BYTES as u64);
    LocalMemory { local_bytes, memory_bytes: local_bytes + remote }
}

/// Bytes of anonymous memory of a process in this machine, including those swapped out.
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
        let seen = local_memory(100 * MIB, 64 * MIB, 4096 * 32);
        assert_eq!(seen, LocalMemory { local_bytes: 36 * MIB, memory_bytes: 548 * MIB });
        assert!(!seen.exceeds_report_threshold());
        assert!(local_memory(200 * MIB, 50 * MIB, 0).exceeds_report_threshold());
        assert_eq!(local_memory(MIB, 2 * MIB, 0).local_bytes, 0, "looked at one after the other");
        assert!(anonymous(std::process::id()).is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn looks_become_seldom() {
        let start = Instant::now();
        let mut watch = LocalMemorySampler::new(start);
        let mut now = start;
        for looks in 0..10 {
            assert!(looks < 6 || watch.time_left(now) == LOOK_INTERVAL_MAX);
            now += watch.time_left(now);
            watch.postpone(now);
        }
        assert_eq!(watch.largest(), None);
    }
}
