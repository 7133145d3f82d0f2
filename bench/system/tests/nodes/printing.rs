//! Output of commands: every command prints JSON on request, and tables have no frames if standard output is no
//! terminal.

use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};

use cxloe_lab::{LabPrivilege, program};
use cxloe_system::command::{output, output_text};
use cxloe_system::pair::*;
use cxloe_system::{Test, tests};
use serde_json::Value;

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![every_command_prints_json_if_asked, tables_in_pipes_are_plain_columns]
}

/// Address of the manager's FM API, in the memory node's namespace.
const FM: &str = "127.0.0.1:2508";

/// CN id of a compute node that is registered with the manager and does not run.
const GONE: &str = "02:00:00:00:00:77";

/// Commands that print data, in an order in which each command finds what it needs. Words in capitals are placeholders.
const DATA: &[&str] = &[
    "gmm whoami",
    "gmm status",
    "gmm status -u",
    "gmm doctor",
    "gmm list",
    "gmm list -u",
    "gmm protect scratch none",
    "gmm drain mn0 --stop",
    "gmm relocate scratch --from mn0 --stop",
    "gmm move-region scratch --stop",
    "gmm rebalance",
    "gmm create-region -s 2M --owner agent extra",
    "gmm grow-region extra -s +2M",
    "gmm disable-region extra",
    "gmm enable-region extra",
    "gmm clone-region extra copied",
    "gmm snapshot copied kept",
    "gmm label-region extra use=test",
    "gmm seal-region extra --no-wait",
    "gmm share-region extra --with agent --stop",
    "gmm destroy-region --force extra copied kept",
    "gmm set-ld mn0 5 256M",
    "gmm bind mn0 5 --to gone",
    "gmm fm identify",
    "gmm fm ports",
    "gmm fm vcs",
    "gmm fm background",
    "gmm fm log",
    "gmm fm events",
    "gmm fm --port 0 ld-info",
    "gmm fm --port 0 ld-alloc",
    "gmm fm --port 0 qos",
    "gmm fm --port 0 dcd info",
    "gmm fm --port 0 dcd regions --ld 5",
    "gmm fm --port 0 dcd extents --ld 5",
    "gmm fm --port 0 config --ld 5 0",
    "gmm fm --port 0 registers --ld 5 0",
    "gmm fm raw 0001",
    "gmm unbind mn0 5 --option surprise",
    "gmm fm --port 0 bind --vcs 0 --vppb 0 --ld 5",
    "gmm fm unbind --vcs 0 --vppb 0 --option surprise",
    "gmm set-quota agent 64M",
    "gmm token create --role mn",
    "gmm token list",
    "gmm adopt-fabric",
    "gmm release-orphans mn0",
    "gmm monitor --after 0 --count 1",
    "gmm monitor --after 0 --count 1 -u",
    "gmm backup BACKUP",
    "gmm restore BACKUP",
    "mn-server sessions",
    "mn-server counters",
    "mn-server key --node-key KEY",
    "mn-server doctor",
    "cn-agent list",
    "cn-agent cxl list",
    "cn-agent sessions",
    "cn-agent counters",
    "cn-agent counters --worker 0",
    "cn-agent paging",
    "cn-agent top --once --interval 100ms",
    "cn-agent read scratch --lines 3",
    "cn-agent write scratch --text hello --flush",
    "cn-agent flush",
    "cn-agent key --node-key KEY",
    "cn-agent doctor",
    "gmm hold agent",
    "gmm release agent",
    "gmm forget --cn gone",
];

/// Commands that print no data, each with the reason.
const NO_DATA: &[(&str, &str)] = &[
    ("gmm serve", "a daemon"),
    ("gmm reset-region", "as disable-region, and only for regions that are lost"),
    ("gmm token revoke", "nothing to show"),
    ("gmm login", "says on standard error what it did"),
    ("gmm logout", "says on standard error what it did"),
    ("gmm revoke", "nothing to show"),
    ("gmm completions", "a script"),
    ("gmm man", "files"),
    ("gmm fm join", "says on standard error what it did"),
    ("gmm fm port-control", "nothing to show"),
    ("gmm fm aer", "nothing to show"),
    ("gmm fm dcd add", "nothing to show"),
    ("gmm fm dcd release", "nothing to show"),
    ("mn-server run", "a daemon"),
    ("mn-server join", "says on standard error what it did"),
    ("mn-server completions", "a script"),
    ("mn-server man", "files"),
    ("cn-agent run", "a daemon"),
    ("cn-agent join", "says on standard error what it did"),
    ("cn-agent exec", "what the program prints"),
    ("cn-agent set-local", "nothing to show"),
    ("cn-agent export", "the region's content"),
    ("cn-agent import", "says on standard error what it did"),
    ("cn-agent nbd", "a daemon"),
    ("cn-agent vm move", "the outcome, which `machines` reads: it needs a machine"),
    ("cn-agent serve-uffd", "a daemon"),
    ("cn-agent completions", "a script"),
    ("cn-agent man", "files"),
];

/// Name of the commands whose exit code depends on what they find.
const DOCTORS: &str = "doctor";

/// Collects the commands without subcommands, found in the output of `--help`.
fn leaves(words: &[&str], found: &mut BTreeSet<String>) -> Outcome {
    let help = Command::new(program(words[0])?).args(&words[1..]).arg("--help").output()?;
    let help = String::from_utf8(help.stdout)?;
    let below = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let below = below.take_while(|line| line.starts_with(' ')).filter(|line| !line.starts_with("   "));
    let below: Vec<&str> =
        below.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    if below.is_empty() {
        found.insert(words.join(" "));
    }
    below.iter().try_for_each(|name| leaves(&[words, &[name]].concat(), found))
}

/// Starts the three daemons with the FM API and a logical device, and registers a compute node with the manager.
fn fabric() -> Outcome<Pair> {
    let mut rig = Pair::bare()?;
    // Capacity is reserved in steps of 256 MiB.
    rig.pool_size = "1GiB";
    let (store, socket) = (rig.path("gmm.redb"), rig.path("gmm.sock"));
    let mut gmm = Command::new(program("gmm")?);
    gmm.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--node-timeout-ms",
        "1000",
        "--fm-listen",
        FM,
        "--fm-insecure",
    ]);
    gmm.args(["--store", text(&store), "--socket", text(&socket)]);
    rig.start("gmm", "mn", gmm)?;
    eventually("the manager answers", || rig.gmm(&["status"]).ok())?;
    rig.gmm(&["set-quota", GONE, "1G"])?;
    rig.start_mn_with(
        "anon",
        &["--prefault", "false", "--insecure", "--socket", text(&rig.path("mn.sock"))],
    )?;
    rig.start_agent(&[])?;
    rig.create_region("scratch")?;
    rig.attached("scratch", "active")?;
    Ok(rig)
}

/// Runs a command of [`DATA`] in the namespace of the daemon that it queries.
fn ask(rig: &Pair, line: &str, json: bool) -> Outcome<Output> {
    let fill = |word: &str| match word {
        "BACKUP" => rig.path("fabric.backup").display().to_string(),
        "KEY" => rig.path("node.key").display().to_string(),
        "agent" => CN.to_owned(),
        "gone" => GONE.to_owned(),
        word => word.to_owned(),
    };
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default();
    let mut command = Command::new(program(name)?);
    // `gmm` and `cn-agent` accept `--json` before the command, `mn-server` only behind it.
    if json && name != "mn-server" {
        command.arg("--json");
    }
    command.args(words.map(fill));
    if json && name == "mn-server" {
        command.arg("--json");
    }
    command.env("CXLOE_MANAGER", rig.manager_url()).env("CXLOE_AGENT", rig.socket());
    command.env("CXLOE_MN", rig.path("mn.sock")).env("XDG_CONFIG_HOME", rig.path("no-config"));
    command.env("CXLOE_FM", FM).stdin(Stdio::null());
    if line.starts_with("gmm fm") {
        command.arg("--insecure");
    }
    rig.lab.enter("mn", || output(&mut command))?
}

/// Waits until no region of this compute node is left: the manager keeps it until the memory node has confirmed that it
/// is destroyed.
fn regions_destroyed(rig: &Pair, compute_node: &str) -> Outcome {
    eventually("no region of the compute node is left", || {
        let regions = rig.gmm(&["--json", "list", "-R", "-i", "-c", compute_node]).ok()?;
        serde_json::from_str::<Value>(&regions).ok()?["regions"].as_array()?.is_empty().then_some(())
    })
}

fn every_command_prints_json_if_asked() -> Outcome {
    let mut commands = BTreeSet::new();
    for program in ["gmm", "mn-server", "cn-agent"] {
        leaves(&[program], &mut commands)?;
    }
    // The table covers a command if one of its lines has the command's words, apart from options.
    let mut known: BTreeSet<String> = NO_DATA.iter().map(|(command, _)| (*command).to_owned()).collect();
    for line in DATA {
        let is = |command: &&String| {
            let mut words = line.split(' ');
            command.split(' ').all(|part| words.any(|word| word == part))
        };
        let longest = commands.iter().filter(is).max_by_key(|command| command.len());
        known.insert(longest.ok_or_else(|| format!("`{line}` is no command"))?.clone());
    }
    let unknown: Vec<&String> = commands.symmetric_difference(&known).collect();
    ensure(unknown.is_empty(), format!("of these commands nothing is known, or they are none: {unknown:?}"))?;

    let rig = fabric()?;
    let mut wrong = Vec::new();
    for line in DATA {
        if line.starts_with("gmm forget") {
            regions_destroyed(&rig, GONE)?;
        }
        let output = ask(&rig, line, true)?;
        let values = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
        let values: Result<Vec<Value>, _> = values.collect();
        let printed = values.is_ok_and(|values| !values.is_empty() && !values[0].is_string());
        if !printed || !(output.status.success() || line.contains(DOCTORS)) {
            wrong.push(format!("{line}: {}", output_text(&output)));
        }
    }
    ensure(wrong.is_empty(), wrong.join("\n"))
}

fn tables_in_pipes_are_plain_columns() -> Outcome {
    let rig = fabric()?;
    let is_frame = |letter: char| ('\u{2500}'..='\u{257f}').contains(&letter);
    let mut wrong = Vec::new();
    let bench = ["cxloe-bench compare-retransmission --loss 0", "cxloe-bench sim --seeds 1"];
    for line in DATA.iter().filter(|line| !line.contains("forget")).chain(&bench) {
        let output = ask(&rig, line, false)?;
        let printed = String::from_utf8_lossy(&output.stdout);
        if printed.contains(is_frame) || printed.contains('\u{1b}') {
            wrong.push(format!("{line}: {}", output_text(&output)));
        }
    }
    ensure(wrong.is_empty(), wrong.join("\n"))?;
    let sessions = ask(&rig, "cn-agent sessions", false)?;
    let sessions = String::from_utf8_lossy(&sessions.stdout).into_owned();
    let row = sessions.lines().find(|line| line.starts_with(MN)).unwrap_or_default();
    ensure(row.split_whitespace().nth(1) == Some("open"), sessions)
}
