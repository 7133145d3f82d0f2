//! Processor, kernel and their settings: all that makes the same program faster on one machine than on another.

use std::collections::BTreeSet;

use cxloe_daemon::doctor::machine::Machine;
use cxloe_daemon::doctor::{Host, size};

use super::{Fact, FactList, ranges};
use crate::machine::{cpu_model, cpuinfo_field};

const CPUS: &str = "sys/devices/system/cpu";
/// Beginnings of the options of the boot command line that change times. Others may name disks and hosts.
const BOOT_OPTIONS: [&str; 28] = [
    "amd_iommu",
    "amd_pstate",
    "clocksource",
    "cpufreq",
    "cpuidle",
    "default_hugepagesz",
    "elevator",
    "haltpoll",
    "hugepages",
    "hugepagesz",
    "idle",
    "intel_idle",
    "intel_iommu",
    "intel_pstate",
    "iommu",
    "irqaffinity",
    "isolcpus",
    "mce",
    "mitigations",
    "nohz",
    "nosmt",
    "nosoftlockup",
    "pcie_aspm",
    "preempt",
    "processor.max_cstate",
    "rcu_nocb",
    "transparent_hugepage",
    "tsc",
];

/// Facts of the machine that `host` describes.
pub fn platform(host: &Host) -> Vec<Fact> {
    let machine = Machine::read(host);
    let cpuinfo = host.text("proc/cpuinfo").unwrap_or_default();
    let mut facts = FactList::default();
    facts.add("kernel", Some(machine.kernel.clone()));
    facts.add("kernel build", host.text("proc/sys/kernel/version"));
    facts.add("distribution", distribution(host));
    facts.add("CPU", Some(cpu_model(&cpuinfo)));
    facts.add("microcode", cpuinfo_field(&cpuinfo, "microcode"));
    facts.add("CPUs online", Some(ranges(&machine.online)));
    facts.add("threads of a core (SMT)", host.text(format!("{CPUS}/smt/control")));
    facts.add("NUMA nodes", numa_nodes(&machine));
    facts.add("memory", memory(host));
    facts.add("frequency driver", host.text(format!("{CPUS}/cpu0/cpufreq/scaling_driver")));
    facts.add("CPU governor", governors(&machine));
    facts.add("turbo", turbo(host));
    facts.add("C-states", c_states(host));
    facts.add("isolated CPUs", Some(ranges(&machine.isolated)));
    facts.add("CPUs without ticks (nohz_full)", no_ticks(host));
    facts.add("clock source", Some(machine.clock.clone()));
    facts.add("transparent huge pages", host.text("sys/kernel/mm/transparent_hugepage/enabled").map(chosen));
    facts.add("huge pages", huge_pages(host));
    facts.add("NUMA balancing", host.text("proc/sys/kernel/numa_balancing").map(|on| switch(&on)));
    facts.add("IOMMU", iommu(host));
    facts.add("boot options", boot_options(host));
    for name in host.names(format!("{CPUS}/vulnerabilities")) {
        let state = host.text(format!("{CPUS}/vulnerabilities/{name}"));
        facts.add(format!("mitigation: {name}"), state);
    }
    facts.0
}

fn distribution(host: &Host) -> Option<String> {
    let release = host.text("etc/os-release")?;
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches('"').to_owned())
}

fn numa_nodes(machine: &Machine) -> Option<String> {
    let node = |(number, cpus): &(i32, Vec<usize>)| format!("{number}: CPUs {}", ranges(cpus));
    (!machine.nodes.is_empty()).then(|| machine.nodes.iter().map(node).collect::<Vec<_>>().join("; "))
}

fn memory(host: &Host) -> Option<String> {
    let table = host.text("proc/meminfo")?;
    let total = table.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.split_whitespace().next()?.parse().ok()?;
    Some(size(kib << 10))
}

/// Governors in use, each once; `None` if the kernel does not choose frequencies.
fn governors(machine: &Machine) -> Option<String> {
    let names: BTreeSet<&str> = machine.governors.iter().map(|(_, name)| name.as_str()).collect();
    (!names.is_empty()).then(|| names.into_iter().collect::<Vec<_>>().join(", "))
}

fn turbo(host: &Host) -> Option<String> {
    let inverted = host.text(format!("{CPUS}/intel_pstate/no_turbo")).map(|off| off == "0");
    let boost = || host.text(format!("{CPUS}/cpufreq/boost")).map(|on| on == "1");
    let is_on = inverted.or_else(boost)?;
    Some(if is_on { "on" } else { "off" }.into())
}

/// Idle states of the first CPU with the time that it takes to leave each.
fn c_states(host: &Host) -> Option<String> {
    let folder = format!("{CPUS}/cpu0/cpuidle");
    let state = |name: String| {
        let at = |file: &str| host.text(format!("{folder}/{name}/{file}"));
        let off = at("disable").is_some_and(|off| off != "0");
        Some(format!("{} {} us{}", at("name")?, at("latency")?, if off { " (disabled)" } else { "" }))
    };
    let states: Vec<String> = host.names(&folder).into_iter().filter_map(state).collect();
    let driver = host.text(format!("{CPUS}/cpuidle/current_driver")).unwrap_or_else(|| "none".into());
    (!states.is_empty()).then(|| format!("{}; driver {driver}", states.join(", ")))
}

fn no_ticks(host: &Host) -> Option<String> {
    // The kernel writes `(null)` if it was booted without.
    host.text(format!("{CPUS}/nohz_full")).filter(|list| !list.contains("null"))
}

/// Word in brackets of a list of choices.
fn chosen(list: String) -> String {
    let word = list.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    word.map_or_else(|| list.clone(), |(word, _)| word.to_owned())
}

fn switch(value: &str) -> String {
    if value == "0" { "off".into() } else { "on".into() }
}

fn huge_pages(host: &Host) -> Option<String> {
    const FOLDER: &str = "sys/kernel/mm/hugepages";
    let of_size = |name: String| {
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let number = |file: &str| host.number::<u64>(format!("{FOLDER}/{name}/{file}"));
        Some(format!(
            "{}: {} of {} free",
            size(kib << 10),
            number("free_hugepages")?,
            number("nr_hugepages")?
        ))
    };
    let sizes: Vec<String> = host.names(FOLDER).into_iter().filter_map(of_size).collect();
    (!sizes.is_empty()).then(|| sizes.join("; "))
}

fn iommu(host: &Host) -> Option<String> {
    let groups = host.names("sys/kernel/iommu_groups").len();
    Some(if groups == 0 { "off".into() } else { format!("on, {groups} groups") })
}

fn boot_options(host: &Host) -> Option<String> {
    let line = host.text("proc/cmdline")?;
    let counts = |word: &&str| BOOT_OPTIONS.iter().any(|option| word.starts_with(option));
    Some(line.split_whitespace().filter(counts).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::super::{described, value};
    use super::*;

    #[test]
    fn settings_that_change_times_are_read() {
        let (_root, host) = described(&[
            ("proc/sys/kernel/osrelease", "6.1.0-13-amd64\n"),
            ("proc/sys/kernel/version", "#1 SMP PREEMPT_DYNAMIC\n"),
            ("proc/cmdline", "root=UUID=1234 isolcpus=2,3 mitigations=off console=ttyS0 nohz_full=2\n"),
            ("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU\nmicrocode\t: 0x2b\n"),
            ("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n"),
            ("proc/sys/kernel/numa_balancing", "0\n"),
            ("etc/os-release", "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n"),
            ("sys/devices/system/cpu/online", "0-3\n"),
            ("sys/devices/system/cpu/isolated", "2-3\n"),
            ("sys/devices/system/cpu/nohz_full", "2\n"),
            ("sys/devices/system/cpu/smt/control", "off\n"),
            ("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
            ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n"),
            ("sys/devices/system/cpu/cpuidle/current_driver", "intel_idle\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state0/latency", "0\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state0/disable", "0\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C6\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "133\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "1\n"),
            ("sys/devices/system/cpu/vulnerabilities/meltdown", "Not affected\n"),
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "24\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "8\n"),
            ("sys/kernel/iommu_groups/0/x", ""),
        ]);
        let facts = platform(&host);
        for (name, expected) in [
            ("kernel", "6.1.0-13-amd64"),
            ("distribution", "Debian GNU/Linux 12"),
            ("CPU", "Some CPU"),
            ("microcode", "0x2b"),
            ("CPUs online", "0-3"),
            ("threads of a core (SMT)", "off"),
            ("NUMA nodes", "0: CPUs 0-3"),
            ("memory", "16 GiB"),
            ("CPU governor", "performance, powersave"),
            ("turbo", "off"),
            ("C-states", "POLL 0 us, C6 133 us (disabled); driver intel_idle"),
            ("isolated CPUs", "2-3"),
            ("CPUs without ticks (nohz_full)", "2"),
            ("transparent huge pages", "madvise"),
            ("huge pages", "2 MiB: 8 of 24 free"),
            ("NUMA balancing", "off"),
            ("IOMMU", "on, 1 groups"),
            ("boot options", "isolcpus=2,3 mitigations=off nohz_full=2"),
            ("mitigation: meltdown", "Not affected"),
        ] {
            assert_eq!(value(&facts, name), Some(expected), "{name} in {facts:?}");
        }
        assert_eq!(value(&facts, "frequency driver"), None, "{facts:?}");
    }

    #[test]
    fn a_machine_without_files_has_few_facts() {
        let facts = platform(&Host::at("/nonexistent"));
        let names: Vec<&str> = facts.iter().map(|fact| fact.name.as_str()).collect();
        assert_eq!(names, ["CPU", "IOMMU"]);
    }
}
