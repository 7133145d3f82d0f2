//! First page of an archive: what was measured, how it is repeated and checked, and what each file contains.

use std::collections::BTreeSet;

use super::record::RunRecord;
use super::{FOLDER, SUMS};
use crate::peer::Peer;
use crate::report::Comparison;

/// Files that every archive has, with what they contain.
pub const FILES: [(&str, &str); 9] = [
    ("table.md", "the table: figures of all systems, what each means, and which systems were not measured"),
    ("picture.svg", "the figures as a picture"),
    ("report.html", "a page with the table, and the distribution of each time"),
    ("figures.csv", "the figures, a line each"),
    ("trials.csv", "the figures of each trial"),
    ("report.json", "all of this for programs, as `cxloe-bench compare --json` writes it"),
    ("histograms.hlog", "all times as an HdrHistogram log, an interval for each system and access"),
    ("commands.txt", "every command that was started, with the settings of its system"),
    ("run.json", "command, machine, interfaces, and versions and checksums of programs and libraries"),
];
/// Files that an archive has if there is something to put into them.
pub const FOLDERS: [(&str, &str); 3] = [
    ("cells/SYSTEM.ACCESS.csv", "times of one system and access: nanoseconds, and how often they occurred"),
    (
        "outputs/SYSTEM/TRIAL-NUMBER-TOOL.txt",
        "what a tool of another project printed, from which its figures are read",
    ),
    ("settings/SYSTEM.txt", "all settings of a server as it reported them, or those written into the kernel"),
];

/// Text of the page. `peers` are those that were to be measured.
pub fn text(record: &RunRecord, comparison: &Comparison, peers: &[&dyn Peer]) -> String {
    let mut parts = vec![head(record), comparison.markdown(), repeat(record, peers)];
    parts.push(format!(
        "## Check and compare it\n\n\
         ```sh\n\
         tar -xzf FILE.tar.gz && cd {FOLDER} && sha256sum -c {SUMS}\n\
         cxloe-bench compare --verify FILE.tar.gz                        # the same, and the table\n\
         cxloe-bench compare --verify NEW.tar.gz --with FILE.tar.gz      # the ratio of each figure, and what differs\n\
         ```\n"
    ));
    let row = |(name, what): &(&str, &str)| format!("| `{name}` | {what} |\n");
    let files: String = FILES.iter().chain(&FOLDERS).map(row).collect();
    parts.push(format!(
        "## Files\n\n| file | content |\n|---|---|\n{files}| `{SUMS}` | SHA-256 of each file |\n\n\
         No system got a configuration file: all settings are on the command lines in `commands.txt`, and servers that \
         tell their settings have them in `settings`.\n"
    ));
    parts.join("\n")
}

fn head(record: &RunRecord) -> String {
    let fact = |name: &str| record.machine.iter().find(|fact| fact.name == name).map(|fact| &*fact.value);
    let machine: Vec<&str> = ["CPU", "kernel", "distribution"].into_iter().filter_map(fact).collect();
    let programs: String = record
        .programs
        .iter()
        .map(|program| format!("* {}: {}\n", program.program, program.identity()))
        .collect();
    let host = record.host.as_ref().map_or_else(String::new, |host| format!(" by {host}"));
    format!(
        "# Remote memory beside other systems\n\n\
         Measured until {}{host} on {}, over a veth cable between two network namespaces of one machine: it has no wire, \
         no switch and no NIC, so it compares software only.\n\n{programs}",
        record.measured,
        machine.join(", ")
    )
}

fn repeat(record: &RunRecord, peers: &[&dyn Peer]) -> String {
    let packages: BTreeSet<&str> =
        peers.iter().flat_map(|peer| peer.tools()).map(|tool| tool.package).collect();
    let packages: Vec<&str> = packages.into_iter().collect();
    let install = match packages.is_empty() {
        true => String::new(),
        false => format!("apt-get install {}\n", packages.join(" ")),
    };
    let trace = record.trace_sha256.as_ref().map_or_else(String::new, |sum| {
        format!("The trace is a file of your own, with the SHA-256 {sum}.\n\n")
    });
    format!(
        "## Repeat it\n\n\
         As root, on a machine with two cores that nothing else uses, with programs of the versions above:\n\n\
         ```sh\n{install}{} --archive NEW.tar.gz\n```\n\n{trace}\
         The command makes the namespaces and the cable, starts the servers (`commands.txt`), and removes all of it. \
         Trials of all systems take turns, so that disturbances of the machine affect all alike.\n",
        record.command
    )
}
