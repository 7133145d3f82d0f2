//! Report on a network card and its link, by which labs compare cards: what the card and the machine are, what the doctor
//! says of them, which kinds of links work here, and what they take to another server.
//!
//! ```text
//!   facts of card, interface, machine (measure) --.
//!   checks of the doctor (daemon, node) ----------+--> NicReport --> text, JSON
//!   links: opened, echoed, lines ------------------'
//! ```

pub mod links;

use std::path::Path;

use cxloe_daemon::doctor::{Check, Report};
use cxloe_measure::facts::Fact;
use cxloe_measure::report::table::new_table;
use cxloe_measure::report::units;
use serde::Serialize;

use links::{LinkFinding, TimeFigures};

/// Folder in which the packages have the scripts that tune interfaces and cards.
const INSTALLED: &str = "/usr/share/cxloe/tune";
/// The same in the source tree.
const IN_TREE: &str = "deploy/tune";

#[derive(Clone, Debug, Serialize)]
pub struct NicReport {
    /// Version of this program.
    pub version: &'static str,
    /// Name of the interface, or device of DPDK.
    pub interface: String,
    pub card: Vec<Fact>,
    /// Settings of the interface.
    pub settings: Vec<Fact>,
    pub machine: Vec<Fact>,
    /// Checks for a node with one worker that spins.
    pub checks: Vec<Check>,
    /// Checks of the card for DPDK; empty without a card.
    pub dpdk: Vec<Check>,
    /// Link that `auto` takes, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto: Option<String>,
    pub links: Vec<LinkFinding>,
    pub commands: Vec<TuningCommand>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TuningCommand {
    pub command: String,
    pub effect: String,
}

impl NicReport {
    /// Report for people, and for an issue.
    pub fn text(&self) -> String {
        let mut parts = vec![format!("cxloe-bench {}: {}\n", self.version, self.interface)];
        for (title, facts) in
            [("card", &self.card), ("interface", &self.settings), ("machine", &self.machine)]
        {
            parts.push(section(title, facts));
        }
        parts.push(self.judged("for a node with one worker", &self.checks));
        parts.push(self.judged("for DPDK", &self.dpdk));
        parts.push(self.links_text());
        if !self.commands.is_empty() {
            let line = |one: &TuningCommand| format!("  {}\n      {}\n", one.command, one.effect);
            let lines: String = self.commands.iter().map(line).collect();
            parts.push(format!("tune it, and take it back\n{lines}"));
        }
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }

    /// Checks as the doctor prints them.
    fn judged(&self, what: &str, checks: &[Check]) -> String {
        if checks.is_empty() {
            return String::new();
        }
        format!("checks {what}\n{}", Report::new("cxloe-bench", self.version, checks.to_vec()).text())
    }

    fn links_text(&self) -> String {
        if self.links.is_empty() {
            return String::new();
        }
        let heads = ["link", "works", "echo64 p50", "p99", "echoes", "read64 p50", "p99", "write64 p50"];
        let mut table = new_table(heads.into_iter().chain(["read64 / echo64"]));
        for one in &self.links {
            let time = |figures: Option<TimeFigures>, of: fn(TimeFigures) -> f64| {
                figures.map_or_else(|| "-".into(), |figures| units::time(of(figures)))
            };
            let ratio = one.read64.zip(one.echo64).map(|(read, echo)| read.p50_ns / echo.p50_ns);
            table.add_row([
                one.link.to_owned(),
                if one.works { "yes" } else { "no" }.to_owned(),
                time(one.echo64, |figures| figures.p50_ns),
                time(one.echo64, |figures| figures.p99_ns),
                one.echoes_per_s.map_or_else(|| "-".into(), units::operations),
                time(one.read64, |figures| figures.p50_ns),
                time(one.read64, |figures| figures.p99_ns),
                time(one.write64, |figures| figures.p50_ns),
                ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
            ]);
        }
        let mut text = format!("links\n{table}\n");
        for one in &self.links {
            let frame = one.max_frame.map_or_else(String::new, |bytes| format!(", frames of {bytes} bytes"));
            text.push_str(&format!("  {}: {}{frame}\n", one.link, one.detail));
            one.unmeasured.iter().for_each(|why| text.push_str(&format!("      {why}\n")));
        }
        if let Some(auto) = &self.auto {
            text.push_str(&format!("  auto takes {auto}\n"));
        }
        text
    }
}

/// Facts below a title, values in one column.
fn section(title: &str, facts: &[Fact]) -> String {
    let width = facts.iter().map(|fact| fact.name.chars().count()).max().unwrap_or(0);
    let line = |fact: &Fact| format!("  {:<width$}  {}\n", fact.name, fact.value);
    let lines: String = facts.iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("{title}\n{lines}") }
}

/// Commands that tune an interface for a node on `cpu`, whose frames have the priority `class`.
pub fn tune_interface(interface: &str, cpu: Option<usize>, class: Option<u8>) -> Vec<TuningCommand> {
    let script = script("nic");
    let mut options = format!("-i {interface} --queues 1");
    if let Some(cpu) = cpu {
        options += &format!(" --cpus {cpu}");
    }
    if let Some(class) = class {
        options += &format!(" --priority {class}");
    }
    let command = |rest: String, effect: &str| TuningCommand {
        command: format!("{script} {rest}"),
        effect: effect.to_owned(),
    };
    vec![
        command(options.clone(), "lists what it would change, and changes nothing"),
        command(format!("{options} --apply"), "changes it: MTU, rings, interrupts, offloads, governor"),
        command(format!("-i {interface} --undo"), "puts back what was there before"),
    ]
}

/// Commands that give a card to DPDK and take it back, as the doctor names them.
pub fn bind_card([bind, undo]: [String; 2]) -> Vec<TuningCommand> {
    let command = |command: String, effect: &str| TuningCommand { command, effect: effect.to_owned() };
    vec![
        command(
            format!("{bind} --hugepages 64 --persist"),
            "gives the card to DPDK: the kernel loses it, also after a reboot",
        ),
        command(undo, "gives it back"),
    ]
}

/// Path of a script: that of the package if it is installed.
fn script(name: &str) -> String {
    let installed = Path::new(INSTALLED).join(name);
    match installed.exists() {
        true => installed.display().to_string(),
        false => format!("{IN_TREE}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_daemon::doctor::Group;

    fn report() -> NicReport {
        let times = |p50_ns| Some(TimeFigures { p50_ns, p99_ns: 2.0 * p50_ns, p999_ns: 9e3, samples: 10 });
        let works = LinkFinding {
            link: "packet",
            works: true,
            detail: "rings".into(),
            max_frame: Some(1514),
            echo64: times(5000.0),
            echoes_per_s: Some(2e6),
            read64: times(6000.0),
            ..LinkFinding::default()
        };
        let refused = LinkFinding {
            link: "xdp",
            detail: "it needs root".into(),
            unmeasured: vec!["start there: x".into()],
            ..LinkFinding::default()
        };
        NicReport {
            version: "1.2.3",
            interface: "eth9".into(),
            card: vec![Fact::new("PCI address", "0000:03:00.0"), Fact::new("card", "Some NIC (1:2)")],
            settings: vec![Fact::new("MTU", "1500")],
            machine: Vec::new(),
            checks: vec![Check::warn(Group::Interface, "MTU", "1500", "ip link set eth9 mtu 9000")],
            dpdk: Vec::new(),
            auto: Some("packet: rings; taken because it is quick".into()),
            links: vec![works, refused],
            commands: tune_interface("eth9", Some(2), Some(3)),
        }
    }

    #[test]
    fn people_read_facts_checks_times_and_commands() {
        let text = report().text();
        for words in [
            "cxloe-bench 1.2.3: eth9",
            "  PCI address  0000:03:00.0\n  card         Some NIC (1:2)\n",
            "ip link set eth9 mtu 9000",
            "packet: rings, frames of 1514 bytes",
            "xdp: it needs root\n      start there: x",
            "auto takes packet: rings; taken because",
            "tune/nic -i eth9 --queues 1 --cpus 2 --priority 3 --apply",
        ] {
            assert!(text.contains(words), "{words} in {text}");
        }
        let row = text.lines().find(|line| line.contains("packet") && line.contains("yes")).unwrap();
        for cell in ["5.00 µs", "10.0 µs", "2.00 M/s", "6.00 µs", "1.20"] {
            assert!(row.contains(cell), "{cell} in {row}");
        }
        assert!(!text.contains("machine\n") && !text.contains("for DPDK"), "empty sections: {text}");
    }

    #[test]
    fn programs_read_figures_as_numbers() {
        let value = serde_json::to_value(report()).unwrap();
        assert_eq!(value["links"][0]["echo64"]["p50_ns"], 5000.0);
        assert_eq!(value["links"][1]["works"], false);
        assert!(value["links"][1].get("echo64").is_none());
        assert_eq!(value["checks"][0]["advice"], "ip link set eth9 mtu 9000");
        assert_eq!(value["card"][1]["value"], "Some NIC (1:2)");
    }

    #[test]
    fn a_card_is_given_away_and_taken_back() {
        let commands = bind_card(["x bind A".into(), "x undo A".into()]);
        assert_eq!(commands[0].command, "x bind A --hugepages 64 --persist");
        assert_eq!(commands[1].command, "x undo A");
    }
}
