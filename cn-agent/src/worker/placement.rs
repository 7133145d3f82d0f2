//! CPU of a worker that is not pinned: chosen by the kernel or, if the worker would have to share any other
//! CPU, that of its client.
//!
//! With more runnable threads than CPUs, the kernel moves threads between CPUs to be fair. On the CPU of its
//! own client, the worker does not wait, since the two run alternately. On the CPU of a thread that never
//! yields, such as a memory node's worker on the same machine, it waits for milliseconds. The kernel counts
//! the time that the worker waits for a CPU: when that exceeds a share of the time, the worker binds itself
//! to the client's CPU. After a hold time it unbinds itself, to test whether another CPU is free. The hold
//! time doubles with each test that finds none.
//!
//! A program that waits for a page is a different case: the program and the worker never run at the same
//! time, and waking a thread on another CPU costs more than serving the page. So as long as faults come from
//! one CPU, the worker is bound to that CPU.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use cxloe_wire::time::Time;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Minimum interval of decisions, over which the waiting for a CPU is measured.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum interval between two decisions for which the waiting counts: a longer interval contains a sleep of the
/// worker.
const SPAN_MAX: Duration = Duration::from_millis(20);
/// Divisor of an interval: a worker that has waited for a CPU for more than this part of it moves.
const WAITED_SHARE: u32 = 8;
/// First and longest time for which the worker stays bound.
const HOLD_MIN: Duration = Duration::from_secs(1);
const HOLD_MAX: Duration = Duration::from_secs(60);

/// Change of the worker's CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementMove {
    /// Bind to this CPU.
    To(u32),
    /// Unbind: the kernel chooses.
    Anywhere,
}

/// Decides on the worker's CPU from its arguments alone, without I/O.
#[derive(Debug)]
pub struct Placement {
    bound: Option<u32>,
    /// Time at which to unbind, and the duration of the next binding.
    until: Time,
    hold: Duration,
    looked: Time,
    /// Total time that the worker had waited for a CPU at the last decision.
    waited: Duration,
    /// CPU of the faulting thread at the last decision.
    program: Option<u32>,
}

impl Default for Placement {
    fn default() -> Placement {
        Placement {
            bound: None,
            until: Time::ZERO,
            hold: HOLD_MIN,
            looked: Time::ZERO,
            waited: Duration::ZERO,
            program: None,
        }
    }
}

impl Placement {
    /// Whether the next [`decide`](Self::decide) is due.
    #[inline]
    pub fn is_due(&self, now: Time) -> bool {
        now.since(self.looked) >= LOOK_INTERVAL
    }

    /// Decides on the CPU. The worker, on CPU `own`, has waited for a CPU for `waited` in total; an awake client last
    /// ran on `client`, and a thread that has faulted since the last call on `program`. Returns the change, if any.
    pub fn decide(
        &mut self,
        now: Time,
        waited: Duration,
        own: u32,
        client: Option<u32>,
        program: Option<u32>,
    ) -> Option<PlacementMove> {
        let (span, lost) = (now.since(self.looked), waited.saturating_sub(self.waited));
        (self.looked, self.waited) = (now, waited);
        if let Some(cpu) = program {
            let stays = self.program.replace(cpu) == Some(cpu);
            if self.bound == Some(cpu) {
                self.until = self.until.max(now + HOLD_MIN);
                return None;
            }
            // The last two faults came from threads on this CPU. After a single fault, the worker does not move.
            if stays {
                self.until = now + HOLD_MIN;
                self.bound = Some(cpu);
                return Some(PlacementMove::To(cpu));
            }
        }
        let Some(bound) = self.bound else {
            let lacks_cpu = lost * WAITED_SHARE > span && span < SPAN_MAX;
            let to = client.filter(|client| lacks_cpu && *client != own)?;
            // The worker has been unbound for long, so the binding time begins with its minimum again.
            if now.since(self.until) > self.hold {
                self.hold = HOLD_MIN;
            }
            self.until = now + self.hold;
            self.hold = (self.hold * 2).min(HOLD_MAX);
            self.bound = Some(to);
            return Some(PlacementMove::To(to));
        };
        if now >= self.until {
            self.until = now;
            self.bound = None;
            return Some(PlacementMove::Anywhere);
        }
        let to = client.filter(|client| *client != bound)?;
        self.bound = Some(to);
        Some(PlacementMove::To(to))
    }
}

/// The kernel's records of the worker's thread, and the CPUs that the thread may use.
#[derive(Debug)]
pub struct Thread {
    schedstat: File,
    allowed: CpuSet,
}

impl Thread {
    /// Opens the records of the calling thread; `None` if the kernel does not report the thread's waiting
    /// time.
    pub fn this() -> Option<Thread> {
        let thread = Thread {
            schedstat: File::open("/proc/thread-self/schedstat").ok()?,
            allowed: sched_getaffinity(Pid::from_raw(0)).ok()?,
        };
        thread.waited().is_some().then_some(thread)
    }

    /// Total time that the thread has waited for a CPU.
    pub fn waited(&self) -> Option<Duration> {
        let mut text = [0; 64];
        let length = self.schedstat.read_at(&mut text, 0).ok()?;
        parse(text.get(..length)?)
    }

    /// Applies a decision. A refusal of the kernel is ignored, since the worker runs on any CPU.
    pub fn go(&self, to: PlacementMove) {
        let this = Pid::from_raw(0);
        let gone = match to {
            PlacementMove::Anywhere => sched_setaffinity(this, &self.allowed),
            PlacementMove::To(cpu) => {
                let mut set = CpuSet::new();
                match self.allowed.is_set(cpu as usize) {
                    Ok(true) => set.set(cpu as usize).and_then(|()| sched_setaffinity(this, &set)),
                    _ => return,
                }
            }
        };
        tracing::debug!(?to, ?gone, "the worker changes its CPU");
    }
}

/// CPU on which a thread of a process runs or last ran.
pub fn cpu_of(process: u32, thread: u32) -> Option<u32> {
    let mut text = [0; 1024];
    let length =
        File::open(format!("/proc/{process}/task/{thread}/stat")).ok()?.read_at(&mut text, 0).ok()?;
    parse_stat(text.get(..length)?)
}

/// Parses the 39th field of `stat`, the CPU. The second field, the name, is in brackets and may contain any character.
fn parse_stat(stat: &[u8]) -> Option<u32> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(36)?.parse().ok()
}

/// Parses the second number of `schedstat`: nanoseconds spent waiting on a run queue.
fn parse(schedstat: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(schedstat).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Drives a [`Placement`]: one decision every [`LOOK_INTERVAL`], with the time that the worker has waited since the
    /// decision before.
    struct Walk {
        placement: Placement,
        now: Time,
        waited: Duration,
    }

    impl Walk {
        fn new() -> Walk {
            let mut walk = Walk { placement: Placement::default(), now: Time(1 << 40), waited: 7 * MS };
            assert_eq!(walk.step(Duration::ZERO, 1, Some(0)), None, "what was before does not count");
            walk
        }

        fn step(&mut self, waited: Duration, own: u32, client: Option<u32>) -> Option<PlacementMove> {
            self.now = self.now + LOOK_INTERVAL;
            self.waited += waited;
            assert!(self.placement.is_due(self.now));
            self.placement.decide(self.now, self.waited, own, client, None)
        }

        /// Makes a decision after a fault of a thread on CPU `program`.
        fn fault(&mut self, own: u32, program: u32) -> Option<PlacementMove> {
            self.now = self.now + LOOK_INTERVAL;
            self.placement.decide(self.now, self.waited, own, None, Some(program))
        }
    }

    #[test]
    fn who_waits_for_a_cpu_goes_to_its_client() {
        let mut walk = Walk::new();
        assert_eq!(walk.step(LOOK_INTERVAL / 10, 1, Some(0)), None, "a little is nothing");
        assert_eq!(walk.step(MS, 0, Some(0)), None, "beside its client it waits for that");
        assert_eq!(walk.step(MS, 1, None), None, "without a client there is nowhere to go");
        assert_eq!(walk.step(MS, 1, Some(0)), Some(PlacementMove::To(0)));
        assert_eq!(walk.step(2 * MS, 0, Some(0)), None);
        assert_eq!(walk.step(MS, 0, Some(3)), Some(PlacementMove::To(3)), "it goes where the client goes");
        assert_eq!(walk.step(MS, 3, None), None);
    }

    #[test]
    fn it_lets_go_and_stays_longer_each_time_that_was_too_early() {
        let mut walk = Walk::new();
        let mut holds = Vec::new();
        for _ in 0..10 {
            assert_eq!(walk.step(MS, 1, Some(0)), Some(PlacementMove::To(0)));
            let begun = walk.now;
            while walk.step(Duration::ZERO, 0, Some(0)) != Some(PlacementMove::Anywhere) {}
            holds.push(walk.now.since(begun));
        }
        assert!(holds[0] >= HOLD_MIN && holds[0] < 2 * HOLD_MIN);
        assert!(holds.windows(2).all(|pair| pair[1] >= pair[0]));
        assert!(holds[9] >= HOLD_MAX && holds[9] < HOLD_MAX + 2 * LOOK_INTERVAL);
        // A long time passes without contention.
        walk.now = walk.now + 3 * HOLD_MAX;
        assert_eq!(walk.step(Duration::ZERO, 1, Some(0)), None);
        assert_eq!(walk.step(MS, 1, Some(0)), Some(PlacementMove::To(0)));
        let begun = walk.now;
        while walk.step(Duration::ZERO, 0, Some(0)) != Some(PlacementMove::Anywhere) {}
        assert!(walk.now.since(begun) < 2 * HOLD_MIN);
    }

    #[test]
    fn it_stays_beside_the_program_whose_faults_it_serves() {
        let mut walk = Walk::new();
        assert_eq!(walk.fault(1, 0), None, "once is not often");
        assert_eq!(walk.fault(1, 0), Some(PlacementMove::To(0)));
        assert_eq!(walk.fault(0, 0), None);
        // Faults come from threads on two CPUs in turn: the worker follows neither.
        assert_eq!([1, 0, 1, 0].map(|program| walk.fault(0, program)), [None; 4]);
        assert_eq!(walk.fault(0, 1), None);
        assert_eq!(walk.fault(0, 1), Some(PlacementMove::To(1)));
        // The worker stays bound as long as faults come from that CPU.
        let begun = walk.now;
        while walk.now.since(begun) < 3 * HOLD_MIN {
            assert_eq!(walk.fault(1, 1), None);
        }
        let last = walk.now;
        while walk.step(Duration::ZERO, 1, None) != Some(PlacementMove::Anywhere) {}
        assert!(walk.now.since(last) >= HOLD_MIN && walk.now.since(last) < 2 * HOLD_MIN);
        // The worker is bound even if it is on that CPU already: the kernel would otherwise wake it on another one.
        assert_eq!(walk.fault(1, 1), Some(PlacementMove::To(1)));
    }

    #[test]
    fn threads_say_where_they_are() {
        let line = b"7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 5 1 1 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 3 0 0 0 0 0";
        assert_eq!(parse_stat(line), Some(3));
        for wrong in [&b""[..], b"7 (a", b"7 (a) S 1", b"7 (a) \xFF"] {
            assert_eq!(parse_stat(wrong), None);
        }
        let here = nix::unistd::gettid().as_raw() as u32;
        let most = CpuSet::count() as u32;
        assert!(cpu_of(std::process::id(), here).is_some_and(|cpu| cpu < most));
        assert_eq!(cpu_of(0, here), None);
    }

    #[test]
    fn the_kernels_words_are_read() {
        assert_eq!(parse(b"12345 6789 3\n"), Some(Duration::from_nanos(6789)));
        for wrong in [&b""[..], b"12", b"1 x 3", b"1 -2 3", b"\xFF\xFF 2"] {
            assert_eq!(parse(wrong), None);
        }
    }

    #[test]
    fn a_thread_is_pinned_to_a_cpu_and_back() {
        std::thread::spawn(|| {
            let Some(thread) = Thread::this() else { return };
            let before = sched_getaffinity(Pid::from_raw(0)).unwrap();
            let allowed: Vec<usize> =
                (0..CpuSet::count()).filter(|cpu| before.is_set(*cpu) == Ok(true)).collect();
            for cpu in &allowed {
                thread.go(PlacementMove::To(*cpu as u32));
                assert_eq!(nix::sched::sched_getcpu(), Ok(*cpu));
            }
            thread.go(PlacementMove::To(CpuSet::count() as u32 + 7));
            assert_eq!(nix::sched::sched_getcpu().ok(), allowed.last().copied(), "there is no such CPU");
            thread.go(PlacementMove::Anywhere);
            assert_eq!(sched_getaffinity(Pid::from_raw(0)), Ok(before));
        })
        .join()
        .unwrap();
    }
}
