//! Files of an archive, made of the results of a comparison and of the journal of its trials.

use super::record::RunRecord;
use super::redaction::{Redaction, TRIAL};
use super::{Archive, ArchiveError, readme, shell};
use crate::journal::{Journal, JournalEntries, RunCommand};
use crate::peer::Peer;
use crate::report::Comparison;
use crate::run::TrialFigure;
use crate::stage::{FAR, FAR_INTERFACE, HERE, NEAR, NEAR_INTERFACE};
use cxloe_measure::report::{Samples, csv, json_text, write_histogram_log};

/// Comparison with all that belongs to its archive.
pub struct ArchivedRun<'a> {
    pub comparison: &'a Comparison,
    pub trials: &'a [TrialFigure],
    /// Times of single operations, named `peer.pattern`.
    pub samples: &'a [Samples],
    pub journal: &'a Journal,
    /// Peers that were to be measured here.
    pub peers: &'a [&'a dyn Peer],
    pub record: &'a RunRecord,
    /// Names to leave out.
    pub redaction: &'a Redaction,
}

impl ArchivedRun<'_> {
    /// Makes all files of the archive.
    ///
    /// # Errors
    /// Returns an error if the picture, the page or the histograms cannot be made.
    pub fn archive(&self) -> Result<Archive, ArchiveError> {
        let mut comparison = self.comparison.clone();
        for absent in &mut comparison.absent {
            absent.reason = self.redaction.text(&absent.reason);
        }
        let entries = self.journal.entries();
        let mut histograms = Vec::new();
        write_histogram_log(&mut histograms, &self.samples.iter().collect::<Vec<_>>())?;
        let mut archive = Archive::default();
        archive.add("table.md", comparison.markdown());
        archive.add("picture.svg", comparison.picture()?);
        archive.add("report.html", comparison.html()?);
        archive.add("figures.csv", comparison.csv());
        archive.add("trials.csv", trials(self.trials));
        archive.add("report.json", comparison.json());
        archive.add("histograms.hlog", histograms);
        archive.add("commands.txt", self.commands(&entries));
        archive.add("run.json", json_text(self.record));
        for samples in self.samples {
            archive.add(format!("cells/{}.csv", samples.name()), times(samples));
        }
        for (number, output) in (1..).zip(&entries.outputs) {
            let name = format!("outputs/{}/{}-{number}-{}.txt", output.peer, output.trial, output.tool);
            archive.add(name, self.redaction.text(&output.text));
        }
        for (peer, text) in &entries.settings {
            archive.add(format!("settings/{peer}.txt"), self.redaction.text(text));
        }
        archive.add("README.md", readme::text(self.record, &comparison, self.peers));
        Ok(archive)
    }

    /// Commands of all peers; trials that started the same commands are listed once.
    fn commands(&self, entries: &JournalEntries) -> String {
        let mut text = format!(
            "# Commands of each system, in the order in which they were started. What is not listed is a thread of\n\
             # cxloe-bench. {TRIAL} is a folder that each trial gets empty. {NEAR} and {FAR} are network namespaces\n\
             # joined by a cable ({NEAR_INTERFACE}, {FAR_INTERFACE}), {HERE} is the one of this machine.\n"
        );
        for peer in self.peers {
            let of_peer: Vec<&RunCommand> =
                entries.commands.iter().filter(|command| command.peer == peer.name()).collect();
            text.push_str(&format!("\n## {}: {}\n", peer.name(), peer.facts().what));
            if of_peer.is_empty() {
                text.push_str("(no other program: both ends are threads of cxloe-bench or of the kernel)\n");
            }
            for (numbers, lines) in self.by_trial(&of_peer) {
                text.push_str(&format!("# trial {}\n{lines}", numbers.join(", ")));
            }
        }
        text
    }

    /// Numbers of the trials that ran the same commands, and these commands.
    fn by_trial(&self, commands: &[&RunCommand]) -> Vec<(Vec<String>, String)> {
        let mut groups: Vec<(Vec<String>, String)> = Vec::new();
        for trial in commands.chunk_by(|one, next| one.trial == next.trial) {
            let lines: String = trial.iter().map(|command| self.line(command)).collect();
            let number = trial[0].trial.to_string();
            match groups.iter_mut().find(|(_, known)| *known == lines) {
                Some((numbers, _)) => numbers.push(number),
                None => groups.push((vec![number], lines)),
            }
        }
        groups
    }

    fn line(&self, command: &RunCommand) -> String {
        let words: Vec<String> = command.words.iter().map(|word| self.redaction.word(word)).collect();
        format!("{}$ {}\n", command.namespace, shell::line(&command.variables, &words))
    }
}

/// Figures of single trials as CSV. Those that a peer's tool does not print are empty.
fn trials(trials: &[TrialFigure]) -> String {
    let heads =
        "peer pattern trial p50_ns p99_ns mean_ns ops_per_s bytes_per_s offered_per_s count bounce_ns";
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.0}"));
    let row = |one: &TrialFigure| {
        let mut cells = vec![one.peer.to_owned(), one.pattern.name().to_owned(), one.trial.to_string()];
        cells.extend([one.p50_ns, one.p99_ns, one.mean_ns].map(number));
        cells.extend([one.ops_per_s, one.bytes_per_s, one.offered_per_s].map(number));
        cells.extend([one.count.to_string(), number(one.bounce_ns)]);
        cells
    };
    let heads: Vec<String> = heads.split(' ').map(str::to_owned).collect();
    csv::text(std::iter::once(heads).chain(trials.iter().map(row)))
}

/// Times of one measurement as CSV.
fn times(samples: &Samples) -> String {
    let rows = samples.recorded_ns().into_iter().map(|(time, count)| format!("{time},{count}\n"));
    "time_ns,count\n".to_owned() + &rows.collect::<String>()
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::Pattern;
    use crate::Waiting;
    use crate::archive::ProgramVersion;
    use crate::archive::readme::FILES;
    use crate::archive::record::FORM;
    use crate::redis::Redis;
    use crate::report::tests::comparison;
    use crate::tcp::Tcp;
    use crate::udp::Udp;
    use cxloe_measure::facts::Fact;

    pub fn record() -> RunRecord {
        RunRecord {
            form: FORM,
            measured: "2026-11-28T12:00:00Z".into(),
            command: "cxloe-bench compare --trials 2".into(),
            trace_sha256: None,
            host: None,
            machine: vec![Fact::new("kernel", "6.1.0"), Fact::new("CPU", "Some CPU")],
            interfaces: vec![Fact::new("cn0: driver", "veth")],
            programs: vec![ProgramVersion {
                program: "redis-server".into(),
                version: Some("Redis server v=7.0.15".into()),
                package: Some("redis-server 5:7.0.15-1".into()),
                sha256: Some("ab".repeat(32)),
                libraries: Vec::new(),
            }],
        }
    }

    /// Journal of two trials of Redis, the first of which also runs a tool.
    fn journal() -> Journal {
        let journal = Journal::default();
        for trial in [1, 2, 3] {
            journal.begin("redis", trial);
            let mut server = Command::new("taskset");
            server.args(["--cpu-list", "1", "/home/ada/bin/redis-server", "--dir", "/tmp/x/trial"]);
            if trial == 3 {
                server.arg("--other");
            }
            journal.command("far", &server);
            if trial == 1 {
                journal.output("redis-benchmark", "lab7 said 5 in /home/ada\n");
            }
            journal.settings("dir /tmp/x/trial\n".into());
        }
        journal
    }

    pub fn archive() -> Archive {
        let mut comparison = comparison();
        comparison.absent[0].reason = "its log: /home/ada/log on lab7".into();
        let mut samples = Samples::new("cxloe-packet.read64");
        [900, 1000, 1000].into_iter().for_each(|time| samples.record_ns(time));
        samples.end_trial(None);
        let figure = TrialFigure {
            peer: "cxloe-packet",
            pattern: Pattern::Read64,
            trial: 1,
            bounce_ns: Some(125.4),
            p50_ns: Some(1000.0),
            p99_ns: None,
            mean_ns: Some(966.7),
            ops_per_s: None,
            bytes_per_s: None,
            offered_per_s: None,
            count: 3,
        };
        let redaction = Redaction::of(Path::new("/tmp/x/trial"), "lab7", &["/home/ada".into()]);
        let run = ArchivedRun {
            comparison: &comparison,
            trials: &[figure],
            samples: &[samples],
            journal: &journal(),
            peers: &[&Redis, &Tcp { waiting: Waiting::Spin }, &Udp { waiting: Waiting::Spin }],
            record: &record(),
            redaction: &redaction,
        };
        run.archive().unwrap()
    }

    #[test]
    fn everything_is_in_it() {
        let archive = archive();
        let names: Vec<&str> = archive.names().collect();
        for (name, _) in FILES {
            assert!(names.contains(&name), "{name} is missing: {names:?}");
            assert!(archive.text("README.md").unwrap().contains(name), "README.md does not name {name}");
        }
        assert_eq!(archive.text("cells/cxloe-packet.read64.csv"), Some("time_ns,count\n900,1\n1000,2\n"));
        assert_eq!(
            archive.text("trials.csv").unwrap().lines().nth(1),
            Some("cxloe-packet,read64,1,1000,,967,,,,3,125")
        );
        assert!(archive.text("picture.svg").unwrap().contains("<svg"));
    }

    #[test]
    fn commands_are_listed_once_and_can_be_run_again() {
        let archive = archive();
        let text = archive.text("commands.txt").unwrap();
        let lines: Vec<&str> =
            text.lines().skip_while(|line| !line.starts_with("## redis")).skip(1).collect();
        assert_eq!(lines[0], "# trial 1, 2");
        assert_eq!(lines[1], "far$ taskset --cpu-list 1 redis-server --dir $TRIAL");
        assert_eq!(lines[2], "# trial 3");
        assert!(lines[3].ends_with(" --other"), "{text}");
        let own = text.split("## tcp-spin").nth(1).unwrap();
        assert!(own.contains("no other program"), "{text}");
    }

    #[test]
    fn nothing_names_host_or_user() {
        let archive = archive();
        assert_eq!(archive.text("settings/redis.txt"), Some("dir $TRIAL\n"));
        assert_eq!(archive.text("outputs/redis/1-1-redis-benchmark.txt"), Some("HOST said 5 in ~\n"));
        for name in archive.names() {
            let text = archive.text(name).unwrap_or_default();
            assert!(!text.contains("lab7") && !text.contains("/home/ada"), "{name}: {text}");
        }
        assert!(archive.text("table.md").unwrap().contains("its log: ~/log on HOST"));
    }
}
