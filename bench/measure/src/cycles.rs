//! Processor cycles spent at both ends of the link. A hardware counter counts them; without one, as in most
//! virtual machines, they are CPU time multiplied by the frequency. Reports name the source.

#![expect(unsafe_code, reason = "perf_event_open is a raw system call")]

use std::fs;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::unistd::Pid;

/// Argument of perf_event_open(2), `perf_event_attr`, in its first published size, which every kernel
/// accepts.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}

/// Type `PERF_TYPE_HARDWARE`, where event 0 is `PERF_COUNT_HW_CPU_CYCLES`.
const HARDWARE: u32 = 0;
/// Flag `PERF_FLAG_FD_CLOEXEC`: a started program does not inherit the counter.
const CLOEXEC: libc::c_ulong = 1 << 3;

/// Cycle counter of one thread, in user space and in the kernel.
struct Counter(OwnedFd);

impl Counter {
    fn open(thread: Pid) -> io::Result<Counter> {
        let attributes =
            Attributes { kind: HARDWARE, size: size_of::<Attributes>() as u32, ..Attributes::default() };
        let (any_cpu, no_group) = (-1, -1);
        // SAFETY: the structure has the size in its size field, and outlives the call.
        let opened = unsafe {
            let pid = thread.as_raw();
            libc::syscall(libc::SYS_perf_event_open, &raw const attributes, pid, any_cpu, no_group, CLOEXEC)
        };
        match i32::try_from(opened) {
            // SAFETY: the kernel has just returned this descriptor; no other value owns it.
            Ok(descriptor) if descriptor >= 0 => Ok(Counter(unsafe { OwnedFd::from_raw_fd(descriptor) })),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn read(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        // SAFETY: the buffer has as many bytes as are requested.
        let read = unsafe { libc::read(self.0.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
        if read == 8 { Ok(u64::from_ne_bytes(bytes)) } else { Err(io::Error::last_os_error()) }
    }
}

/// Method by which a number of cycles was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CycleSource {
    /// The hardware counter `PERF_COUNT_HW_CPU_CYCLES`.
    Counted,
    /// CPU time multiplied by this many cycles per nanosecond.
    Time(f64),
}

/// Meter of the cycles of one or several threads, all counted the same way. `per_ns` is the processor's
/// frequency.
pub struct Meter {
    threads: Vec<(Pid, Option<Counter>)>,
    per_ns: f64,
}

/// Cycles and CPU time of all metered threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    pub cycles: f64,
    pub ns: u64,
}

impl Spent {
    /// Returns the difference between this reading and the earlier reading `before`.
    pub fn since(self, before: Spent) -> Spent {
        Spent { cycles: self.cycles - before.cycles, ns: self.ns.saturating_sub(before.ns) }
    }
}

impl Meter {
    pub(crate) fn of_this_thread() -> Meter {
        Meter::of(vec![nix::unistd::gettid()])
    }

    /// Returns a meter of all threads that a process has now; threads that it starts later are not counted.
    pub fn of_process(pid: Pid) -> Meter {
        let listed = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw);
        Meter::of(listed.filter_map(number).collect())
    }

    fn of(threads: Vec<Pid>) -> Meter {
        let mut threads: Vec<_> = threads.into_iter().map(|id| (id, Counter::open(id).ok())).collect();
        // All threads use one source: counted cycles and CPU time cannot be added.
        if threads.iter().any(|(_, counter)| counter.is_none()) {
            threads.iter_mut().for_each(|(_, counter)| *counter = None);
        }
        Meter { threads, per_ns: cycles_per_ns() }
    }

    /// Returns the source of the cycles, which is the same for all threads.
    pub fn source(&self) -> CycleSource {
        match self.threads.iter().all(|(_, counter)| counter.is_some()) && !self.threads.is_empty() {
            true => CycleSource::Counted,
            false => CycleSource::Time(self.per_ns),
        }
    }

    /// Returns the cycles counted since the meter was made, and the CPU time since the threads started. Only
    /// differences of two readings are of use.
    pub fn read(&self) -> Spent {
        let ns = self.threads.iter().map(|(id, _)| on_core_ns(*id)).sum();
        let counted: Option<u64> =
            self.threads.iter().map(|(_, counter)| counter.as_ref()?.read().ok()).sum();
        let cycles = match (self.source(), counted) {
            (CycleSource::Counted, Some(cycles)) => cycles as f64,
            _ => ns as f64 * self.per_ns,
        };
        Spent { cycles, ns }
    }
}

/// Returns the CPU time of a thread in nanoseconds (first field of `/proc/PID/schedstat`); 0 if there is no
/// such thread.
fn on_core_ns(thread: Pid) -> u64 {
    let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Returns the present frequency of the first core in cycles per nanosecond, or 1 if the kernel does not
/// report one.
fn cycles_per_ns() -> f64 {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = cpuinfo.lines().find(|line| line.starts_with("cpu MHz"));
    let mhz = line.and_then(|line| line.split_once(':')?.1.trim().parse::<f64>().ok());
    mhz.map_or(1.0, |mhz| mhz / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_spends_cycles_and_one_that_is_not_there_none() {
        let meter = Meter::of_this_thread();
        let before = meter.read();
        let start = std::time::Instant::now();
        let mut sum = 0_u64;
        while meter.read().since(before).ns < 20_000_000 {
            sum = std::hint::black_box(sum + 1);
            assert!(start.elapsed().as_secs() < 60, "no time was counted");
        }
        let worked = meter.read().since(before);
        assert!(worked.cycles > 1e6, "{worked:?} {:?}", meter.source());
        let nobody = Meter::of_process(Pid::from_raw(i32::MAX));
        assert_eq!((nobody.read(), nobody.threads.len()), (Spent::default(), 0));
    }
}
