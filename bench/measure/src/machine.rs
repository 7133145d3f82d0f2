//! The machine on which a measurement runs: its description, pinning of threads, and the latency between cores.
//!
//! Results of different machines, and of the same virtual machine a minute later, differ most by the time
//! that a cache line takes from one core to another and back. [`bounce_ns`] measures this time with two
//! threads of its own, so that every trial can record it; [`Machine`] is part of the report.

use std::fs;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::utsname::uname;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// Number of round trips in one trial of [`bounce_ns`]: long compared with the clock's resolution, short
/// compared with the scheduler's time slice.
const ROUNDS: usize = 1_000;
/// Number of trials, of which the median is the result; an additional first trial is discarded.
const TRIALS: usize = 9;
/// Number of round trips in a trial of [`bounce_glance_ns`], which must not delay the measurement around it.
const GLANCE_ROUNDS: usize = 200;
const GLANCE_TRIALS: usize = 3;
/// Time after which the measurement ends with the trials made so far.
const LIMIT: Duration = Duration::from_secs(2);

/// The machine on which a report was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model name of the processor, as the kernel shows it.
    pub cpu: String,
    /// Number of logical processors that are online.
    pub cores: usize,
    /// Kernel release, as `uname -r` prints it.
    pub kernel: String,
    /// Round trip of one cache line between the two cores of the measurement, in nanoseconds: the median of the run's
    /// trials. `None` if not measured, as on a machine with one core.
    pub bounce_ns: Option<f64>,
    /// Vendor and product of the virtual machine, if the processor reports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("pinning the thread to core {core} failed: {source}; the process may use cores {allowed:?}")]
    Pin { core: usize, allowed: Vec<usize>, source: nix::Error },
    /// No round-trip trial ended in time.
    #[error(
        "timing a cache line between cores {a} and {b} did not end within {LIMIT:?}; something else keeps them busy"
    )]
    Bounce { a: usize, b: usize },
    /// Both threads were to run on one core, where no cache line travels.
    #[error("timing a cache line needs two different cores, and core {core} was given twice")]
    SameCore { core: usize },
}

impl Machine {
    /// Describes this machine without `bounce_ns`, which takes a measurement.
    pub fn describe() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let virtualized =
            cpuinfo_field(&cpuinfo, "flags").is_some_and(|f| f.split(' ').any(|f| f == "hypervisor"));
        Self {
            cpu: cpu_model(&cpuinfo),
            cores: cpuinfo.lines().filter(|l| l.starts_with("processor")).count().max(1),
            kernel: uname().map_or_else(|_| "unknown".into(), |u| u.release().to_string_lossy().into_owned()),
            bounce_ns: None,
            hypervisor: virtualized.then(hypervisor),
        }
    }
}

/// Returns the value of the first line of `/proc/cpuinfo` with this key.
pub(crate) fn cpuinfo_field<'a>(cpuinfo: &'a str, key: &str) -> Option<&'a str> {
    cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim())
}

/// Returns the processor model from `/proc/cpuinfo`: a name on x86, numbers and sometimes the board on Arm.
pub(crate) fn cpu_model(cpuinfo: &str) -> String {
    let field = |key| cpuinfo_field(cpuinfo, key).filter(|value| !value.is_empty());
    match (
        field("model name").or(field("Model")).or(field("Hardware")),
        field("CPU implementer"),
        field("CPU part"),
    ) {
        (Some(model), ..) => model.to_owned(),
        (None, Some(implementer), Some(part)) => {
            format!("{} implementer {implementer} part {part}", std::env::consts::ARCH)
        }
        _ => std::env::consts::ARCH.to_owned(),
    }
}

fn hypervisor() -> String {
    let read =
        |path| fs::read_to_string(path).ok().map(|t: String| t.trim().to_owned()).filter(|t| !t.is_empty());
    let known = ["/sys/hypervisor/type", "/sys/class/dmi/id/sys_vendor", "/sys/class/dmi/id/product_name"]
        .into_iter()
        .filter_map(read)
        .collect::<Vec<_>>();
    if known.is_empty() { "of a kind that does not say its name".into() } else { known.join(" ") }
}

/// Returns the cores on which the calling thread may run, in ascending order.
pub fn allowed_cores() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count()).filter(|&core| set.is_set(core).unwrap_or(false)).collect()
}

/// Pins the calling thread to one core, and with it the threads and processes that it starts afterwards.
///
/// # Errors
/// Returns [`MachineError::Pin`] if there is no such core or the process may not use it.
pub fn pin(core: usize) -> Result<(), MachineError> {
    let mut set = CpuSet::new();
    set.set(core)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|source| MachineError::Pin { core, allowed: allowed_cores(), source })
}

/// A counter alone on its cache line; 128 bytes, because processors fetch lines in pairs.
#[repr(align(128))]
struct PaddedCounter(AtomicU64);

impl PaddedCounter {
    /// Spins until the counter is `value`; returns false if that takes until `deadline`.
    fn wait_for(&self, value: u64, deadline: Instant) -> bool {
        let mut spins = 0_u32;
        while self.0.load(Ordering::Acquire) != value {
            spin_loop();
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(1 << 12) && Instant::now() > deadline {
                return false;
            }
        }
        true
    }
}

/// Returns the duration of a round trip of one cache line between two cores, in nanoseconds: the median of
/// several short trials with two threads of its own. Takes a few milliseconds, at most two seconds, while the
/// calling thread sleeps.
///
/// # Errors
/// Returns [`MachineError`] if the cores cannot be pinned to, are the same, or are too busy.
pub fn bounce_ns(a: usize, b: usize) -> Result<f64, MachineError> {
    bounce_of(a, b, TRIALS, ROUNDS)
}

/// Measures like [`bounce_ns`], but in a fraction of a millisecond and less exactly: enough to distinguish
/// near cores from far cores between two batches of a measurement.
///
/// # Errors
/// Returns the errors of [`bounce_ns`].
pub(crate) fn bounce_glance_ns(a: usize, b: usize) -> Result<f64, MachineError> {
    bounce_of(a, b, GLANCE_TRIALS, GLANCE_ROUNDS)
}

fn bounce_of(a: usize, b: usize, trials_wanted: usize, rounds: usize) -> Result<f64, MachineError> {
    if a == b {
        return Err(MachineError::SameCore { core: a });
    }
    let line = PaddedCounter(AtomicU64::new(0));
    let deadline = Instant::now() + LIMIT;
    // The counter is odd on its way to the second thread and even on its way back.
    let answers = || {
        pin(b)?;
        let turns = (trials_wanted + 1) * rounds;
        for there in (1..=2 * turns as u64).step_by(2) {
            if !line.wait_for(there, deadline) {
                break;
            }
            line.0.store(there + 1, Ordering::Release);
        }
        Ok(())
    };
    let asks = || {
        pin(a)?;
        let mut trials = Vec::with_capacity(trials_wanted + 1);
        let mut back = 0;
        'trials: for _ in 0..=trials_wanted {
            let start = Instant::now();
            for _ in 0..rounds {
                line.0.store(back + 1, Ordering::Release);
                back += 2;
                if !line.wait_for(back, deadline) {
                    break 'trials;
                }
            }
            trials.push(start.elapsed().as_nanos() as f64 / rounds as f64);
        }
        Ok(trials)
    };
    let (answered, trials) = thread::scope(|scope| {
        let answering = scope.spawn(answers);
        let asking = scope.spawn(asks);
        (answering.join().expect("the answering thread does not panic"), asking.join())
    });
    answered?;
    let trials = trials.expect("the asking thread does not panic")?;
    // The first trial includes the start of the threads and cold caches.
    median(trials.get(1..).unwrap_or_default()).ok_or(MachineError::Bounce { a, b })
}

/// Returns the median; with an even number of values, the mean of the middle two. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(if sorted.len() % 2 == 1 { upper } else { (sorted[sorted.len() / 2 - 1] + upper) / 2.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::describe();
        assert!(machine.cores >= allowed_cores().len(), "{machine:?}");
        assert_eq!(machine.kernel, fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().trim());
        assert!(!machine.cpu.is_empty());
        assert_eq!(machine.bounce_ns, None);
    }

    #[test]
    fn cpu_models_of_both_families() {
        let x86 =
            "processor\t: 0\nvendor_id\t: X\nmodel name\t: Some CPU @ 2.5GHz\nflags\t\t: fpu hypervisor\n";
        assert_eq!(cpu_model(x86), "Some CPU @ 2.5GHz");
        let arm = "processor\t: 0\nBogoMIPS\t: 243.75\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert!(cpu_model(arm).ends_with("implementer 0x41 part 0xd0c"));
        assert_eq!(cpu_model(""), std::env::consts::ARCH);
    }

    #[test]
    fn pinned_thread_stays_on_its_core() {
        let core = *allowed_cores().last().unwrap();
        let seen = thread::spawn(move || {
            pin(core).unwrap();
            allowed_cores()
        });
        assert_eq!(seen.join().unwrap(), [core]);
    }

    #[test]
    fn a_core_that_does_not_exist_is_refused() {
        let error = thread::spawn(|| pin(CpuSet::count() - 1)).join().unwrap().unwrap_err();
        assert!(error.to_string().contains("pinning the thread to core 1023"), "{error}");
    }

    #[test]
    fn bounce_takes_time_and_leaves_the_caller_unpinned() {
        assert!(matches!(bounce_ns(0, 0), Err(MachineError::SameCore { core: 0 })));
        let before = allowed_cores();
        if let [a, .., b] = before[..] {
            let bounce = bounce_ns(a, b).unwrap();
            assert!(bounce > 1.0, "{bounce} ns is faster than light");
            assert_eq!(allowed_cores(), before);
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }
}
