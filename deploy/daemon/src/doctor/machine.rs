//! Kernel, clock and CPUs, judged for a daemon with deadlines of microseconds.

use crate::doctor::{Check, Group, Host};

/// Clock sources that are read without a system call or device access.
const FAST_CLOCKS: [&str; 5] = ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "ptp"];
/// Oldest kernel that has everything the links use. AF_XDP with busy polling was added last.
const KERNEL_FULL: (u32, u32) = (5, 11);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The kernel's release, as in `6.1.0-13-amd64`.
    pub kernel: String,
    /// Clock source in use; empty if the kernel does not show it.
    pub clock: String,
    /// Clock sources available, separated by spaces.
    pub clocks: String,
    pub online: Vec<usize>,
    /// CPUs excluded from scheduling (`isolcpus`).
    pub isolated: Vec<usize>,
    /// Frequency governors, by CPU; empty if this kernel does not control frequencies.
    pub governors: Vec<(usize, String)>,
    pub nodes: Vec<(i32, Vec<usize>)>,
    /// CPUs of each core that has several (SMT siblings).
    pub cores: Vec<Vec<usize>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuUse {
    pub workers: usize,
    pub spinning: bool,
    /// CPUs that the workers are pinned to; empty if they are not pinned.
    pub pinned: Vec<usize>,
    /// Option that pins the workers, as in `--cpus`.
    pub flag: &'static str,
    /// NUMA node of the network interface, if it has one.
    pub near: Option<i32>,
}

impl Machine {
    pub fn read(host: &Host) -> Machine {
        const CLOCK: &str = "sys/devices/system/clocksource/clocksource0";
        const CPUS: &str = "sys/devices/system/cpu";
        const NODES: &str = "sys/devices/system/node";
        let online = host.cpus(format!("{CPUS}/online"));
        let governor =
            |cpu: &usize| Some((*cpu, host.text(format!("{CPUS}/cpu{cpu}/cpufreq/scaling_governor"))?));
        let node = |name: String| {
            let number = name.strip_prefix("node")?.parse().ok()?;
            Some((number, host.cpus(format!("{NODES}/{name}/cpulist"))))
        };
        let siblings = |cpu: &usize| host.cpus(format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list"));
        // Each CPU of a core names all of them.
        let mut cores: Vec<Vec<usize>> = online.iter().map(siblings).filter(|cpus| cpus.len() > 1).collect();
        cores.sort();
        cores.dedup();
        Machine {
            kernel: host.text("proc/sys/kernel/osrelease").unwrap_or_default(),
            clock: host.text(format!("{CLOCK}/current_clocksource")).unwrap_or_default(),
            clocks: host.text(format!("{CLOCK}/available_clocksource")).unwrap_or_default(),
            governors: online.iter().filter_map(governor).collect(),
            isolated: host.cpus(format!("{CPUS}/isolated")),
            nodes: host.names(NODES).into_iter().filter_map(node).collect(),
            cores,
            online,
        }
    }

    /// Major and minor version of the kernel; `(0, 0)` if unknown.
    pub(crate) fn kernel_version(&self) -> (u32, u32) {
        let mut numbers =
            self.kernel.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    /// Judges the kernel's version and the clock source.
    pub fn judge(&self) -> Vec<Check> {
        vec![self.judge_kernel(), self.judge_clock()]
    }

    fn judge_kernel(&self) -> Check {
        let (group, name) = (Group::Machine, "kernel");
        if self.kernel_version() >= KERNEL_FULL {
            return Check::ok(group, name, &self.kernel);
        }
        let found = if self.kernel.is_empty() { "unknown" } else { &self.kernel };
        let advice =
            "use Linux 5.11 or newer: AF_XDP with busy polling came with it; older ones get packet rings";
        Check::warn(group, name, found, advice)
    }

    pub fn judge_clock(&self) -> Check {
        let (group, name) = (Group::Machine, "clock source");
        if self.clock.is_empty() {
            return Check::ok(group, name, "the kernel does not report it");
        }
        if FAST_CLOCKS.contains(&self.clock.as_str()) {
            return Check::ok(group, name, &self.clock);
        }
        let faster = self.clocks.split_whitespace().find(|clock| FAST_CLOCKS.contains(clock));
        let advice = match faster {
            Some(clock) => format!(
                "each look at it takes about a microsecond: \
                 echo {clock} > /sys/devices/system/clocksource/clocksource0/current_clocksource"
            ),
            None => "each look at it takes about a microsecond, and this machine has no faster one: see the kernel's \
                     log for why it does not trust the TSC (dmesg | grep -i tsc)"
                .to_owned(),
        };
        Check::warn(group, name, &self.clock, advice)
    }

    /// Judges number, isolation, cores, frequency and NUMA node of the CPUs for the daemon's workers.
    pub fn judge_cpus(&self, task: &CpuUse) -> Vec<Check> {
        [
            Some(self.judge_count(task)),
            self.judge_pinned(task),
            self.judge_cores(task),
            self.judge_near(task),
            Some(self.judge_governor(task)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn judge_count(&self, task: &CpuUse) -> Check {
        let (group, name) = (Group::Machine, "CPUs");
        let (cpus, workers) = (self.online.len(), task.workers);
        let found =
            format!("{cpus} CPUs, {workers} workers{}", if task.spinning { " that spin" } else { "" });
        if task.spinning && workers >= cpus {
            let advice = "workers that spin leave no CPU to the rest of the system: have fewer, or take `wait = adaptive`";
            return Check::warn(group, name, found, advice);
        }
        Check::ok(group, name, found)
    }

    fn judge_pinned(&self, task: &CpuUse) -> Option<Check> {
        let (group, name, flag) = (Group::Machine, "pinned CPUs", task.flag);
        if task.pinned.is_empty() {
            let advice = format!(
                "a worker that spins is moved about by the scheduler: pin it with {flag} to a CPU near the interface"
            );
            return task.spinning.then(|| Check::warn(group, name, "none", advice));
        }
        let found = list(&task.pinned);
        let missing: Vec<usize> =
            task.pinned.iter().filter(|cpu| !self.online.contains(cpu)).copied().collect();
        if !missing.is_empty() {
            let advice = format!(
                "there is no CPU {} that runs; choose of {} with {flag}",
                list(&missing),
                list(&self.online)
            );
            return Some(Check::fail(group, name, found, advice));
        }
        let shared: Vec<usize> =
            task.pinned.iter().filter(|cpu| !self.isolated.contains(cpu)).copied().collect();
        if task.spinning && !shared.is_empty() {
            let cpus = list(&task.pinned);
            let advice = format!(
                "the scheduler puts other work there too, which shows in the tail: boot with \
                 isolcpus={cpus} nohz_full={cpus} rcu_nocbs={cpus}"
            );
            return Some(Check::warn(
                group,
                name,
                format!("{found}, of which {} not isolated", list(&shared)),
                advice,
            ));
        }
        Some(Check::ok(group, name, found))
    }

    /// Judges whether each of several pinned workers has a core of its own.
    fn judge_cores(&self, task: &CpuUse) -> Option<Check> {
        let (group, name, flag) = (Group::Machine, "cores of workers", task.flag);
        if task.pinned.len() < 2 {
            return None;
        }
        let again = |(at, cpu): (usize, &usize)| task.pinned[..at].contains(cpu).then_some(*cpu);
        let mut twice: Vec<usize> = task.pinned.iter().enumerate().filter_map(again).collect();
        twice.sort_unstable();
        twice.dedup();
        if !twice.is_empty() {
            let advice =
                format!("workers on one CPU wait for each other: name another one for each with {flag}");
            return Some(Check::warn(group, name, format!("several on CPU {}", list(&twice)), advice));
        }
        let pinned = |core: &Vec<usize>| -> Vec<usize> {
            core.iter().filter(|cpu| task.pinned.contains(cpu)).copied().collect()
        };
        let shared: Vec<String> = self
            .cores
            .iter()
            .map(pinned)
            .filter(|cpus| cpus.len() > 1)
            .map(|cpus| format!("CPUs {} are one core", list(&cpus)))
            .collect();
        if shared.is_empty() {
            return Some(Check::ok(group, name, "one each"));
        }
        let is_first = |cpu: &&usize| self.cores.iter().all(|core| !core.contains(cpu) || core[0] == **cpu);
        let firsts: Vec<usize> = self.online.iter().filter(is_first).copied().collect();
        let advice = format!(
            "workers on one core slow each other down: choose of CPUs {}, a core each, with {flag}",
            list(&firsts)
        );
        Some(Check::warn(group, name, shared.join(", "), advice))
    }

    fn judge_near(&self, task: &CpuUse) -> Option<Check> {
        let (group, name) = (Group::Machine, "NUMA node");
        // The kernel reports -1 for a device without a NUMA node.
        let near = task.near.filter(|node| *node >= 0)?;
        let (_, cpus) = self.nodes.iter().find(|(node, _)| *node == near)?;
        let far: Vec<usize> = task.pinned.iter().filter(|cpu| !cpus.contains(cpu)).copied().collect();
        if far.is_empty() {
            return Some(Check::ok(
                group,
                name,
                format!("the interface is on node {near}, CPUs {}", list(cpus)),
            ));
        }
        let found = format!("the interface is on node {near}, CPU {} is not", list(&far));
        Some(Check::warn(group, name, found, format!("choose of CPUs {} with {}", list(cpus), task.flag)))
    }

    fn judge_governor(&self, task: &CpuUse) -> Check {
        let (group, name) = (Group::Machine, "CPU governor");
        if self.governors.is_empty() {
            return Check::ok(group, name, "frequencies are not this kernel's to choose");
        }
        let ours = |cpu: usize| task.pinned.is_empty() || task.pinned.contains(&cpu);
        let mut slow: Vec<&str> = self
            .governors
            .iter()
            .filter(|(cpu, governor)| ours(*cpu) && governor != "performance")
            .map(|(_, governor)| governor.as_str())
            .collect();
        slow.dedup();
        if slow.is_empty() {
            return Check::ok(group, name, "performance");
        }
        let advice = "a CPU that has slowed down answers late: cpupower frequency-set -g performance";
        Check::warn(group, name, slow.join(", "), advice)
    }
}

fn list(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;
    use crate::doctor::host::described;

    fn machine() -> Machine {
        Machine {
            kernel: "6.1.0".into(),
            clock: "tsc".into(),
            clocks: "tsc hpet acpi_pm".into(),
            online: vec![0, 1, 2, 3],
            nodes: vec![(0, vec![0, 1]), (1, vec![2, 3])],
            ..Machine::default()
        }
    }

    fn task() -> CpuUse {
        CpuUse { workers: 1, flag: "--cpus", ..CpuUse::default() }
    }

    fn find<'c>(checks: &'c [Check], name: &str) -> &'c Check {
        checks
            .iter()
            .find(|check| check.name == name)
            .unwrap_or_else(|| panic!("no check {name}: {checks:?}"))
    }

    #[test]
    fn a_machine_is_read_as_it_describes_itself() {
        let (_root, host) = described(&[
            ("proc/sys/kernel/osrelease", "6.18.44-x\n"),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"),
            ("sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet \n"),
            ("sys/devices/system/cpu/online", "0-1\n"),
            ("sys/devices/system/cpu/isolated", "1\n"),
            ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n"),
            ("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-1\n"),
            ("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "0-1\n"),
            ("sys/devices/system/node/node0/cpulist", "0-1\n"),
            ("sys/devices/system/node/online", "0\n"),
        ]);
        let read = Machine::read(&host);
        let expected = Machine {
            kernel: "6.18.44-x".into(),
            clock: "hpet".into(),
            clocks: "tsc hpet".into(),
            online: vec![0, 1],
            isolated: vec![1],
            governors: vec![(1, "powersave".into())],
            nodes: vec![(0, vec![0, 1])],
            cores: vec![vec![0, 1]],
        };
        assert_eq!((read.kernel_version(), read), ((6, 18), expected));
        assert_eq!(Machine::read(&Host::at("/nonexistent")), Machine::default());
    }

    #[test]
    fn old_kernels_and_slow_clocks_are_warned_of() {
        assert!(machine().judge().iter().all(|check| check.level == Level::Ok));
        for (kernel, level) in
            [("5.10.0-8", Level::Warn), ("5.11", Level::Ok), ("4.19", Level::Warn), ("", Level::Warn)]
        {
            let machine = Machine { kernel: kernel.into(), ..machine() };
            assert_eq!(find(&machine.judge(), "kernel").level, level, "{kernel}");
        }
        let slow = Machine { clock: "hpet".into(), ..machine() };
        assert!(find(&slow.judge(), "clock source").advice.as_ref().unwrap().contains("echo tsc >"));
        let none = Machine { clock: "acpi_pm".into(), clocks: "acpi_pm".into(), ..machine() };
        assert!(find(&none.judge(), "clock source").advice.as_ref().unwrap().contains("dmesg"));
        assert_eq!(Machine { clock: String::new(), ..machine() }.judge_clock().level, Level::Ok);
    }

    #[test]
    fn workers_that_spin_want_cpus_of_their_own() {
        let level =
            |machine: &Machine, task: &CpuUse, name: &str| find(&machine.judge_cpus(task), name).level;
        let spinning = CpuUse { spinning: true, ..task() };
        assert_eq!(level(&machine(), &spinning, "CPUs"), Level::Ok);
        assert_eq!(level(&machine(), &CpuUse { workers: 4, ..spinning.clone() }, "CPUs"), Level::Warn);
        assert_eq!(level(&machine(), &CpuUse { workers: 4, ..task() }, "CPUs"), Level::Ok);
        assert_eq!(level(&machine(), &spinning, "pinned CPUs"), Level::Warn);
        assert!(!machine().judge_cpus(&task()).iter().any(|check| check.name == "pinned CPUs"));
        let pinned = CpuUse { pinned: vec![2], ..spinning };
        let shared = machine();
        let shared = shared.judge_cpus(&pinned);
        assert!(find(&shared, "pinned CPUs").advice.as_ref().unwrap().contains("isolcpus=2"));
        let isolated = Machine { isolated: vec![2], ..machine() };
        assert_eq!(level(&isolated, &pinned, "pinned CPUs"), Level::Ok);
        let absent = CpuUse { pinned: vec![2, 9], ..task() };
        let absent = machine().judge_cpus(&absent);
        assert_eq!(find(&absent, "pinned CPUs").level, Level::Fail);
        assert!(find(&absent, "pinned CPUs").advice.as_ref().unwrap().contains("no CPU 9"));
    }

    #[test]
    fn workers_want_a_core_each() {
        let threaded = Machine { cores: vec![vec![0, 2], vec![1, 3]], ..machine() };
        let judge = |pinned: Vec<usize>| {
            let checks = threaded.judge_cpus(&CpuUse { workers: pinned.len(), pinned, ..task() });
            let check = checks.into_iter().find(|check| check.name == "cores of workers");
            check.map(|check| (check.level, check.found, check.advice.unwrap_or_default()))
        };
        assert_eq!(judge(vec![]), None);
        assert_eq!(judge(vec![2]), None);
        assert_eq!(judge(vec![0, 1]), Some((Level::Ok, "one each".into(), String::new())));
        let (level, found, advice) = judge(vec![3, 0, 1, 2]).unwrap();
        assert_eq!((level, found.as_str()), (Level::Warn, "CPUs 0,2 are one core, CPUs 1,3 are one core"));
        assert!(advice.contains("choose of CPUs 0,1, a core each, with --cpus"), "{advice}");
        let (level, found, advice) = judge(vec![1, 1, 0, 1]).unwrap();
        assert_eq!((level, found.as_str()), (Level::Warn, "several on CPU 1"));
        assert!(advice.contains("--cpus"), "{advice}");
    }

    #[test]
    fn cpus_far_from_the_interface_are_named() {
        let at = |near, pinned| machine().judge_cpus(&CpuUse { near, pinned, ..task() });
        assert_eq!(find(&at(Some(1), vec![3]), "NUMA node").level, Level::Ok);
        let far = at(Some(1), vec![0, 3]);
        let far = find(&far, "NUMA node");
        assert_eq!((far.level, far.advice.as_deref()), (Level::Warn, Some("choose of CPUs 2,3 with --cpus")));
        for unknown in [None, Some(-1), Some(7)] {
            assert!(!at(unknown, vec![0]).iter().any(|check| check.name == "NUMA node"));
        }
    }

    #[test]
    fn governors_of_the_workers_cpus_count() {
        let governed =
            Machine { governors: vec![(0, "powersave".into()), (1, "performance".into())], ..machine() };
        let level = |pinned| find(&governed.judge_cpus(&CpuUse { pinned, ..task() }), "CPU governor").level;
        assert_eq!((level(vec![]), level(vec![1]), level(vec![0])), (Level::Warn, Level::Ok, Level::Warn));
        assert_eq!(find(&machine().judge_cpus(&task()), "CPU governor").level, Level::Ok);
    }
}
