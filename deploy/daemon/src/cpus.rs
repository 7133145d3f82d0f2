//! CPUs of the worker threads: the list as an option, and pinning a thread to one of them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Highest CPU number that Linux supports (CONFIG_NR_CPUS is at most 8192).
const CPU_MAX: usize = 8191;

/// CPU numbers, one per worker, written as in `2,3` or `4-7`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuList(pub Vec<usize>);

cxloe_wire::spelled!(CpuList);

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a list of CPUs; write numbers and ranges, as in 2,3 or 4-7");
        let number = |text: &str| {
            let cpu: Option<usize> = text.trim().parse().ok();
            cpu.filter(|cpu| *cpu <= CPU_MAX).ok_or_else(wrong)
        };
        let mut cpus = Vec::new();
        // An empty text is an empty list: workers are not pinned.
        for part in text.split(',').filter(|_| !text.trim().is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong());
            }
            cpus.extend(first..=last);
        }
        Ok(CpuList(cpus))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

/// Pins the calling thread to one CPU, so that its data stays in that CPU's caches. On failure, the thread stays
/// unpinned and a warning is logged.
pub fn pin(cpu: usize) {
    let mut set = nix::sched::CpuSet::new();
    // 0 stands for the calling thread.
    let this_thread = nix::unistd::Pid::from_raw(0);
    let pinned = set.set(cpu).and_then(|()| nix::sched::sched_setaffinity(this_thread, &set));
    if let Err(error) = pinned {
        tracing::warn!(cpu, %error, "worker not pinned");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_back() {
        assert_eq!("2, 4-6".parse(), Ok(CpuList(vec![2, 4, 5, 6])));
        assert_eq!(CpuList(vec![2, 4, 5]).to_string().parse(), Ok(CpuList(vec![2, 4, 5])));
        assert_eq!(CpuList::default().to_string().parse(), Ok(CpuList::default()));
    }

    #[test]
    fn the_rest_is_refused_with_an_example() {
        for text in ["a", "3-2", "1,,2", "0-999999999", "-1"] {
            assert!(text.parse::<CpuList>().unwrap_err().contains("4-7"), "{text}");
        }
    }

    #[test]
    fn a_pinned_thread_may_run_on_that_cpu_only() {
        let allowed = || nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
        let cpus = |set: nix::sched::CpuSet| -> Vec<usize> {
            (0..nix::sched::CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap()).collect()
        };
        std::thread::spawn(move || {
            let before = cpus(allowed());
            // Pinning to a CPU that does not exist changes nothing.
            pin(CPU_MAX + 1);
            assert_eq!(cpus(allowed()), before);
            let last = *before.last().unwrap();
            pin(last);
            assert_eq!(cpus(allowed()), [last]);
        })
        .join()
        .unwrap();
    }
}
