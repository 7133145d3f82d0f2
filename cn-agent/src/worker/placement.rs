//! On which CPU the worker runs when nobody has said so: wherever the kernel has it, or beside its client when it would
//! have to share any other.
//!
//! With as many threads that are awake as there are CPUs, and one more, the kernel moves them round to be fair. Beside its
//! own client the worker waits for nothing, for the two take turns; beside a thread that never gives its CPU up, as a memory
//! node's worker on the same machine, it waits for milliseconds. So what decides is how long it was kept waiting for a
//! CPU, which the kernel counts: when that is more than a share of the time, the worker binds itself to the client's CPU.
//! After a while it lets go, to see whether there is room elsewhere; that while grows as long as there is none.
//!
//! A program that waits for a page is another matter: it and the worker never run at the same time, and waking a thread on
//! another CPU costs more than serving the page does. So as long as faults come from one CPU, the worker is bound to that.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use cxloe_wire::time::Time;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The shortest time over which waiting is judged.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// The longest: what was before a sleep does not count.
const SPAN_MAX: Duration = Duration::from_millis(20);
/// One part in so many of the time spent waiting for a CPU is too much.
const WAITED_SHARE: u32 = 8;
/// How long the worker stays bound, at first and at last.
const HOLD_MIN: Duration = Duration::from_secs(1);
const HOLD_MAX: Duration = Duration::from_secs(60);

/// Where to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// To this CPU, and to stay there.
    To(u32),
    /// Wherever the kernel likes.
    Anywhere,
}

/// Decides where the worker runs, by the time and by what it is told; does nothing itself.
#[derive(Debug)]
pub struct Placement {
    bound: Option<u32>,
    /// When to let go, and how long the next time.
    until: Time,
    hold: Duration,
    looked: Time,
    /// Time spent waiting for a CPU until then.
    waited: Duration,
    /// Where a thread ran that had faulted before the last look at one.
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
    /// Whether it is time to [`decide`](Self::decide).
    #[inline]
    pub fn is_due(&self, now: Time) -> bool {
        now.since(self.looked) >= LOOK_INTERVAL
    }

    /// The worker, on CPU `own`, has spent `waited` in all waiting for a CPU; a client that is awake was last on `client`,
    /// and a thread that has faulted since the last look on `program`. Where to go, if elsewhere.
    pub fn decide(
        &mut self,
        now: Time,
        waited: Duration,
        own: u32,
        client: Option<u32>,
        program: Option<u32>,
    ) -> Option<Move> {
        let (span, lost) = (now.since(self.looked), waited.saturating_sub(self.waited));
        (self.looked, self.waited) = (now, waited);
        if let Some(cpu) = program {
            let stays = self.program.replace(cpu) == Some(cpu);
            if self.bound == Some(cpu) {
                self.until = self.until.max(now + HOLD_MIN);
                return None;
            }
            if stays {
                self.until = now + HOLD_MIN;
                self.bound = Some(cpu);
                return Some(Move::To(cpu));
            }
        }
        let Some(bound) = self.bound else {
            let crowded = lost * WAITED_SHARE > span && span < SPAN_MAX;
            let to = client.filter(|client| crowded && *client != own)?;
            // Whoever was left in peace for long begins anew.
            if now.since(self.until) > self.hold {
                self.hold = HOLD_MIN;
            }
            self.until = now + self.hold;
            self.hold = (self.hold * 2).min(HOLD_MAX);
            self.bound = Some(to);
            return Some(Move::To(to));
        };
        if now >= self.until {
            self.until = now;
            self.bound = None;
            return Some(Move::Anywhere);
        }
        let to = client.filter(|client| *client != bound)?;
        self.bound = Some(to);
        Some(Move::To(to))
    }
}

/// The worker's thread as the kernel sees it.
#[derive(Debug)]
pub struct Thread {
    schedstat: File,
    /// The CPUs it may use.
    allowed: CpuSet,
}

impl Thread {
    /// This thread; `None` if the kernel does not say how long it waits.
    pub fn this() -> Option<Thread> {
        let thread = Thread {
            schedstat: File::open("/proc/thread-self/schedstat").ok()?,
            allowed: sched_getaffinity(Pid::from_raw(0)).ok()?,
        };
        thread.waited().is_some().then_some(thread)
    }

    /// How long it has waited for a CPU, in all.
    pub fn waited(&self) -> Option<Duration> {
        let mut text = [0; 64];
        let length = self.schedstat.read_at(&mut text, 0).ok()?;
        parse(text.get(..length)?)
    }

    /// Goes there; what the kernel refuses is left.
    pub fn go(&self, to: Move) {
        let this = Pid::from_raw(0);
        let gone = match to {
            Move::Anywhere => sched_setaffinity(this, &self.allowed),
            Move::To(cpu) => {
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

/// The CPU on which a thread of a process is, or was last.
pub fn cpu_of(process: u32, thread: u32) -> Option<u32> {
    let mut text = [0; 1024];
    let length =
        File::open(format!("/proc/{process}/task/{thread}/stat")).ok()?.read_at(&mut text, 0).ok()?;
    parse_stat(text.get(..length)?)
}

/// The 39th field. The second, the name, is in brackets and may contain anything.
fn parse_stat(stat: &[u8]) -> Option<u32> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(36)?.parse().ok()
}

/// The second number: nanoseconds spent waiting on a run queue.
fn parse(schedstat: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(schedstat).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A placement after looks every 5 ms, in each of which the worker waited so long.
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

        fn step(&mut self, waited: Duration, own: u32, client: Option<u32>) -> Option<Move> {
            self.now = self.now + LOOK_INTERVAL;
            self.waited += waited;
            assert!(self.placement.is_due(self.now));
            self.placement.decide(self.now, self.waited, own, client, None)
        }

        /// A look after faults by a thread on this CPU.
        fn fault(&mut self, own: u32, program: u32) -> Option<Move> {
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
        assert_eq!(walk.step(MS, 1, Some(0)), Some(Move::To(0)));
        assert_eq!(walk.step(2 * MS, 0, Some(0)), None);
        assert_eq!(walk.step(MS, 0, Some(3)), Some(Move::To(3)), "it goes where the client goes");
        assert_eq!(walk.step(MS, 3, None), None);
    }

    #[test]
    fn it_lets_go_and_stays_longer_each_time_that_was_too_early() {
        let mut walk = Walk::new();
        let mut holds = Vec::new();
        for _ in 0..10 {
            assert_eq!(walk.step(MS, 1, Some(0)), Some(Move::To(0)));
            let begun = walk.now;
            while walk.step(Duration::ZERO, 0, Some(0)) != Some(Move::Anywhere) {}
            holds.push(walk.now.since(begun));
        }
        assert!(holds[0] >= HOLD_MIN && holds[0] < 2 * HOLD_MIN);
        assert!(holds.windows(2).all(|pair| pair[1] >= pair[0]));
        assert!(holds[9] >= HOLD_MAX && holds[9] < HOLD_MAX + 2 * LOOK_INTERVAL);
        // Long left in peace.
        walk.now = walk.now + 3 * HOLD_MAX;
        assert_eq!(walk.step(Duration::ZERO, 1, Some(0)), None);
        assert_eq!(walk.step(MS, 1, Some(0)), Some(Move::To(0)));
        let begun = walk.now;
        while walk.step(Duration::ZERO, 0, Some(0)) != Some(Move::Anywhere) {}
        assert!(walk.now.since(begun) < 2 * HOLD_MIN);
    }

    #[test]
    fn it_stays_beside_the_program_whose_faults_it_serves() {
        let mut walk = Walk::new();
        assert_eq!(walk.fault(1, 0), None, "once is not often");
        assert_eq!(walk.fault(1, 0), Some(Move::To(0)));
        assert_eq!(walk.fault(0, 0), None);
        // Threads on two CPUs by turns: it does not follow each.
        assert_eq!([1, 0, 1, 0].map(|program| walk.fault(0, program)), [None; 4]);
        assert_eq!(walk.fault(0, 1), None);
        assert_eq!(walk.fault(0, 1), Some(Move::To(1)));
        // As long as it faults, however long that is.
        let begun = walk.now;
        while walk.now.since(begun) < 3 * HOLD_MIN {
            assert_eq!(walk.fault(1, 1), None);
        }
        let last = walk.now;
        while walk.step(Duration::ZERO, 1, None) != Some(Move::Anywhere) {}
        assert!(walk.now.since(last) >= HOLD_MIN && walk.now.since(last) < 2 * HOLD_MIN);
        // Where it is already, it is bound all the same: the kernel would wake it elsewhere.
        assert_eq!(walk.fault(1, 1), Some(Move::To(1)));
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
    fn a_thread_goes_where_it_is_told_and_back() {
        std::thread::spawn(|| {
            let Some(thread) = Thread::this() else { return };
            let before = sched_getaffinity(Pid::from_raw(0)).unwrap();
            let allowed: Vec<usize> =
                (0..CpuSet::count()).filter(|cpu| before.is_set(*cpu) == Ok(true)).collect();
            for cpu in &allowed {
                thread.go(Move::To(*cpu as u32));
                assert_eq!(nix::sched::sched_getcpu(), Ok(*cpu));
            }
            thread.go(Move::To(CpuSet::count() as u32 + 7));
            assert_eq!(nix::sched::sched_getcpu().ok(), allowed.last().copied(), "there is no such CPU");
            thread.go(Move::Anywhere);
            assert_eq!(sched_getaffinity(Pid::from_raw(0)), Ok(before));
        })
        .join()
        .unwrap();
    }
}
