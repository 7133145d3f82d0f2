//! Resource usage of this process, from `/proc/self`: the values of [`PROCESS`](super::PROCESS).

use std::fs;

/// Clock ticks per second in `/proc/*/stat`: Linux reports 100 to programs on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// Content of the files with the values. A file that cannot be read counts as empty, and its values are left out.
#[derive(Debug)]
pub struct Usage {
    /// `/proc/self/stat` after the name of the program, which may contain blanks and parentheses.
    stat: String,
    status: String,
    limits: String,
    /// Boot time, in seconds since the Unix epoch.
    boot_time: Option<f64>,
    /// Number of entries of `/proc/self/fd`. One of them is the descriptor with which the folder itself is read.
    open_fds: Option<usize>,
}

impl Usage {
    pub fn now() -> Usage {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let stat = text("/proc/self/stat");
        Usage {
            stat: stat.rsplit_once(')').map_or("", |(_, behind)| behind).into(),
            status: text("/proc/self/status"),
            limits: text("/proc/self/limits"),
            boot_time: text("/proc/stat").lines().find_map(|line| number(line.strip_prefix("btime ")?)),
            open_fds: fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count().saturating_sub(1)),
        }
    }

    /// Value of the metric `name`; `None` if the table has no such metric, or the kernel does not show the value.
    pub fn value(&self, name: &str) -> Option<f64> {
        match name {
            "process_cpu_seconds_total" => {
                Some(((self.ticks(14)? + self.ticks(15)?) / TICKS_PER_SECOND).floor())
            }
            "process_open_fds" => Some(self.open_fds? as f64),
            "process_max_fds" => {
                self.limits.lines().find_map(|line| number(line.strip_prefix("Max open files")?))
            }
            "process_virtual_memory_bytes" => Some(self.status("VmSize:")? * 1024.0),
            "process_resident_memory_bytes" => Some(self.status("VmRSS:")? * 1024.0),
            "process_start_time_seconds" => {
                Some((self.boot_time? + self.ticks(22)? / TICKS_PER_SECOND).floor())
            }
            "process_threads" => self.status("Threads:"),
            _ => None,
        }
    }

    /// Field of `stat` by its number in proc(5); field 3 is the first after the program's name.
    fn ticks(&self, field: usize) -> Option<f64> {
        number(self.stat.split_whitespace().nth(field - 3)?)
    }

    fn status(&self, key: &str) -> Option<f64> {
        self.status.lines().find_map(|line| number(line.strip_prefix(key)?))
    }
}

/// Number at the start of a text; "unlimited" is infinity.
fn number(text: &str) -> Option<f64> {
    match text.split_whitespace().next()? {
        "unlimited" => Some(f64::INFINITY),
        word => word.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::PROCESS;

    #[test]
    fn every_metric_of_the_table_has_a_value_here() {
        let usage = Usage::now();
        for metric in PROCESS {
            let value = usage.value(metric.name);
            assert!(
                value.is_some_and(|value| value > 0.0 || metric.name.contains("cpu")),
                "{}: {value:?}",
                metric.name
            );
        }
        assert_eq!(usage.value("process_cups"), None);
        let resident = usage.value("process_resident_memory_bytes");
        assert!(resident < usage.value("process_virtual_memory_bytes"));
    }

    #[test]
    fn values_are_those_of_the_files() {
        let usage = Usage {
            stat: " S 1 2 3 4 5 6 7 8 9 10 250 1151 0 0 20 0 7 0 4200 99".into(),
            status: "Name:\tx\nVmSize:\t    2048 kB\nVmRSS:\t   1024 kB\nThreads:\t7\n".into(),
            limits: "Limit  Soft Limit  Hard Limit  Units\nMax open files   1024   4096   files\n".into(),
            boot_time: Some(1_000_000.0),
            open_fds: Some(5),
        };
        let values: Vec<_> = PROCESS.iter().filter_map(|metric| usage.value(metric.name)).collect();
        assert_eq!(values, [14.0, 5.0, 1024.0, 2_097_152.0, 1_048_576.0, 1_000_042.0, 7.0]);
    }

    #[test]
    fn what_the_kernel_does_not_say_is_left_out() {
        let usage = Usage {
            stat: String::new(),
            status: String::new(),
            limits: "Max open files  unlimited  unlimited  files".into(),
            boot_time: None,
            open_fds: None,
        };
        let values: Vec<_> = PROCESS.iter().filter_map(|metric| usage.value(metric.name)).collect();
        assert_eq!(values, [f64::INFINITY]);
    }
}
