//! Quota of CPU time of a daemon's control group. The kernel stops a daemon that has used up its quota for the rest of
//! the period, usually 100 ms; its peers get no answers during that time.

use std::path::Path;

use crate::Unit;
use crate::doctor::{Check, Group, Host};

/// Folder of the control groups (cgroup v2).
const ROOT: &str = "sys/fs/cgroup";

/// Quota of CPU time, and how often it was used up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuQuota {
    /// Smallest quota of the control group and its parents, in CPUs, and the group or unit that has it;
    /// `None` without a quota.
    quota: Option<(f64, String)>,
    /// Number of periods in which the daemon stood still.
    throttled: u64,
}

impl CpuQuota {
    /// Reads the quotas of `unit`, or without one those of this process.
    pub fn read(host: &Host, unit: Option<&Unit>) -> CpuQuota {
        let Some(unit) = unit else {
            let groups = host.text("proc/self/cgroup").unwrap_or_default();
            let own = groups.lines().find_map(|line| line.strip_prefix("0::"));
            return CpuQuota::of_group(host, Path::new(own.unwrap_or("/")));
        };
        if let Some(group) = unit.control_group() {
            return CpuQuota::of_group(host, Path::new(group));
        }
        // The control group of a unit is created when the unit starts. Before that, the smaller of two quotas counts:
        // that of the unit's slice, and that of the unit's own setting.
        let mut read = CpuQuota::of_group(host, Path::new("/system.slice"));
        if let Some(cpus) = cpus_per_second(unit.property("CPUQuotaPerSecUSec")) {
            read.found(cpus, &unit.name);
        }
        read
    }

    fn of_group(host: &Host, group: &Path) -> CpuQuota {
        let mut read = CpuQuota::default();
        // A quota of a parent limits its children, too.
        for around in group.ancestors() {
            let folder = Path::new(ROOT).join(around.strip_prefix("/").unwrap_or(around));
            let quota = host.text(folder.join("cpu.max")).and_then(|text| cpus(&text));
            let throttled = host.text(folder.join("cpu.stat")).and_then(|text| {
                text.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.trim().parse().ok())
            });
            read.throttled = read.throttled.max(throttled.unwrap_or(0));
            if let Some(cpus) = quota {
                read.found(cpus, &around.display().to_string());
            }
        }
        read
    }

    /// Records the quota of the group or unit `of` if it is the smallest so far.
    fn found(&mut self, cpus: f64, of: &str) {
        if self.quota.as_ref().is_none_or(|(least, _)| cpus < *least) {
            self.quota = Some((cpus, of.to_owned()));
        }
    }

    /// Judges the quota; `unit` is the systemd unit of the daemon, if it has one.
    pub fn judge(&self, unit: Option<&str>) -> Check {
        let (group, name) = (Group::Machine, "CPU quota");
        let Some((cpus, of)) = &self.quota else {
            return match self.throttled {
                0 => Check::ok(group, name, "none"),
                times => Check::ok(group, name, format!("none now; {times} times used up before")),
            };
        };
        let remedy = match unit {
            Some(unit) => format!("systemctl set-property {unit} CPUQuota="),
            None => {
                let file = Path::new("/").join(ROOT).join(of.trim_start_matches('/')).join("cpu.max");
                format!("echo max > {}, or start the container without a limit of CPUs", file.display())
            }
        };
        let advice = format!(
            "a daemon that has used it up stands still for the rest of the period (100 ms mostly), and peers count it as \
             gone; remove it: {remedy}"
        );
        let found = format!("{cpus:.2} CPUs, by that of {of}, used up {} times", self.throttled);
        Check::warn(group, name, found, advice)
    }
}

/// The quota of a `cpu.max`, in CPUs: its microseconds per period; `None` for `max`.
fn cpus(text: &str) -> Option<f64> {
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    let quota = numbers.next()?.ok()?;
    let period = numbers.next()?.ok().filter(|period| *period > 0)?;
    Some(quota as f64 / period as f64)
}

/// The quota that systemd reports, in CPUs: `1s 500ms` of CPU time each second; `None` for `infinity`.
fn cpus_per_second(text: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 4] = [("us", 1e-6), ("ms", 1e-3), ("min", 60.0), ("s", 1.0)];
    let part = |part: &str| {
        let (number, seconds) =
            UNITS.iter().find_map(|(unit, seconds)| Some((part.strip_suffix(unit)?, seconds)))?;
        Some(number.parse::<f64>().ok()? * seconds)
    };
    text.split_whitespace().map(part).sum::<Option<f64>>().filter(|cpus| *cpus > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(properties: &str) -> Unit {
        Unit::parse("mn.service", &format!("LoadState=loaded\n{properties}\n")).unwrap()
    }
    use crate::doctor::Level;
    use crate::doctor::host::described;

    const GROUPS: [(&str, &str); 5] = [
        ("proc/self/cgroup", "1:cpu:/old\n0::/user.slice/shell\n"),
        ("sys/fs/cgroup/system.slice/cpu.max", "300000 100000\n"),
        ("sys/fs/cgroup/system.slice/mn.service/cpu.max", "50000 100000\n"),
        ("sys/fs/cgroup/system.slice/mn.service/cpu.stat", "usage_usec 7\nnr_periods 9\nnr_throttled 4\n"),
        ("sys/fs/cgroup/user.slice/shell/cpu.max", "max 100000\n"),
    ];

    #[test]
    fn the_smallest_quota_around_a_group_counts() {
        let (_root, host) = described(&GROUPS);
        let running = CpuQuota::read(&host, Some(&unit("ControlGroup=/system.slice/mn.service")));
        assert_eq!(running, CpuQuota { quota: Some((0.5, "/system.slice/mn.service".into())), throttled: 4 });
        let beside = CpuQuota::read(&host, Some(&unit("ControlGroup=/system.slice/other.service")));
        assert_eq!(beside.quota, Some((3.0, "/system.slice".into())));
        let stopped = |quota: &str| CpuQuota::read(&host, Some(&unit(quota))).quota;
        assert_eq!(stopped("CPUQuotaPerSecUSec=1s 500ms"), Some((1.5, "mn.service".into())));
        assert_eq!(stopped("CPUQuotaPerSecUSec=infinity"), Some((3.0, "/system.slice".into())));
        assert_eq!(CpuQuota::read(&host, None), CpuQuota::default());
        assert_eq!(CpuQuota::read(&Host::at("/nonexistent"), None), CpuQuota::default());
    }

    #[test]
    fn a_container_has_the_quota_of_its_root() {
        let (_root, host) =
            described(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/cpu.max", "150000 100000\n")]);
        let quota = CpuQuota::read(&host, None);
        assert_eq!(quota.quota, Some((1.5, "/".into())));
        assert!(quota.judge(None).advice.unwrap().contains("/sys/fs/cgroup/cpu.max"));
    }

    #[test]
    fn a_quota_is_named_with_what_removes_it() {
        let (_root, host) = described(&GROUPS);
        let running = unit("ControlGroup=/system.slice/mn.service");
        let check = CpuQuota::read(&host, Some(&running)).judge(Some("mn.service"));
        assert_eq!(
            (check.level, check.found.as_str()),
            (Level::Warn, "0.50 CPUs, by that of /system.slice/mn.service, used up 4 times")
        );
        assert!(check.advice.unwrap().contains("systemctl set-property mn.service CPUQuota="));
        assert_eq!(CpuQuota::default().judge(None).level, Level::Ok);
    }

    #[test]
    fn a_quota_is_time_by_period() {
        assert_eq!(
            [cpus("200000 100000"), cpus("max 100000"), cpus("1 0"), cpus("")],
            [Some(2.0), None, None, None]
        );
    }
}
