//! Parser of `--help` output: a command's options, which of them take a value, and its subcommands.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::process::Command;
use std::sync::{LazyLock, Mutex};

use crate::tree;

/// Options and subcommands of one command, from its help.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Help {
    /// Options with their dashes; true if a value follows.
    pub options: HashMap<String, bool>,
    pub commands: Vec<String>,
}

/// Help of the command line `words` (a program and its subcommands), merged from all builds of the program.
pub fn of(words: &[&str]) -> Help {
    static KNOWN: LazyLock<Mutex<HashMap<String, Help>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let ask = || {
        let mut all = Help::default();
        for program in tree::programs(words[0]) {
            let Some(help) = ask(&program, &words[1..]) else { continue };
            all.options.extend(help.options);
            all.commands.extend(help.commands);
        }
        all
    };
    known.entry(words.join(" ")).or_insert_with(ask).clone()
}

fn ask(program: &Path, commands: &[&str]) -> Option<Help> {
    let mut help = help_text(program, commands)?;
    // If the answer equals the help of the parent command, the command has no subcommands of its own.
    if let Some((_, above)) = commands.split_last()
        && !help.commands.is_empty()
        && help_text(program, above).is_some_and(|above| above.commands == help.commands)
    {
        help.commands.clear();
    }
    Some(help)
}

fn help_text(program: &Path, commands: &[&str]) -> Option<Help> {
    raw(program, commands).map(|text| read(&text))
}

/// Output of `--help`; `None` if there is no such command.
fn raw(program: &Path, commands: &[&str]) -> Option<String> {
    let asked = Command::new(program).args(commands).arg("--help").output();
    let output = asked.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Subcommands of a command with their one-line descriptions, in the order of the help of this build's program.
pub fn abouts(words: &[&str]) -> Vec<(String, String)> {
    let program = &tree::programs(words[0])[0];
    if of(words).commands.is_empty() {
        return Vec::new();
    }
    listed(&raw(program, &words[1..]).unwrap_or_default())
}

/// Defaults that programs name for an option, without blanks.
pub fn defaults(option: &str) -> BTreeSet<String> {
    const COMMANDS: [&[&str]; 9] = [
        &["gmm", "serve"],
        &["mn-server", "run"],
        &["cn-agent", "run"],
        &["cn-agent", "exec"],
        &["cn-agent", "nbd"],
        &["cn-agent", "vm"],
        &["gmm", "token", "create"],
        &["gmm", "create-region"],
        &["cxloe-bench", "fault"],
    ];
    static TEXTS: LazyLock<Vec<String>> = LazyLock::new(|| {
        let text = |words: &&[&str]| raw(&tree::programs(words[0])[0], &words[1..]).unwrap_or_default();
        COMMANDS.iter().map(text).collect()
    });
    TEXTS.iter().filter_map(|text| default(text, option)).collect()
}

/// Default in the description of an option, without blanks.
fn default(text: &str, option: &str) -> Option<String> {
    let is_head = |line: &&str| line.trim_start().starts_with('-');
    let named = |line: &&str| line.split([' ', ',', '[', '=']).any(|word| word == option);
    let mut lines = text.lines().skip_while(|line| !is_head(line) || !named(line));
    let head = lines.next()?;
    let body: Vec<&str> =
        std::iter::once(head).chain(lines.take_while(|line| !is_head(line))).map(str::trim).collect();
    let body = body.join(" ");
    let value = body.split_once("[default: ")?.1.split([']', ',', ';']).next()?;
    Some(value.replace(' ', ""))
}

/// Names and descriptions in the list of commands of a help text; a description may continue on the next
/// line.
fn listed(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().skip_while(|line| *line != "Commands:").skip(1);
    let mut all: Vec<(String, String)> = Vec::new();
    for line in lines.take_while(|line| line.starts_with("  ")) {
        let trimmed = line.trim_start();
        if line.len() - trimmed.len() == 2 {
            let (name, about) = trimmed.split_once(' ').unwrap_or((trimmed, ""));
            all.push((name.into(), about.trim().into()));
        } else if let Some((_, about)) = all.last_mut() {
            *about = format!("{about} {trimmed}");
        }
    }
    all
}

/// Output of `--help` of one of this project's scripts.
pub fn text_of(script: &str) -> Option<String> {
    let found = tree::trees().into_iter().map(|tree| tree.join(script)).find(|path| path.exists())?;
    let mut command = Command::new(&found);
    // A script that wraps a program's command uses the program of this build.
    if let Ok(bench) = cxloe_lab::program("cxloe-bench") {
        command.env("CXLOE_LAB_PROGRAM", bench);
    }
    let output = command.arg("--help").output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", found.display()));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Parses a help text in clap's format.
pub fn read(text: &str) -> Help {
    let mut help = Help::default();
    let mut in_commands = false;
    for line in text.lines() {
        if !line.starts_with(' ') {
            in_commands = line == "Commands:";
            continue;
        }
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        if in_commands && indent == 2 {
            help.commands.extend(trimmed.split_whitespace().next().map(str::to_string));
        } else if trimmed.starts_with('-') && indent <= 6 {
            // In "-i, --interface <NAME>   description", at least two blanks separate the description, or it is on the
            // next line.
            let spelled = trimmed.split("  ").next().unwrap_or(trimmed);
            let value = spelled.contains('<') && !spelled.contains("[=") && !spelled.contains("[<");
            for word in spelled.split([',', ' ', '[', '=']).filter(|word| word.starts_with('-')) {
                help.options.insert(word.trim_end_matches('.').to_string(), value);
            }
        }
        for alias in aliases(trimmed) {
            help.options.insert(alias, true);
        }
    }
    help
}

/// Names in a note like "[alias: --memory-nodes]".
fn aliases(line: &str) -> Vec<String> {
    let Some((_, list)) = line.split_once("[alias") else { return Vec::new() };
    let list = list.split(']').next().unwrap_or(list);
    list.split([' ', ',', ':']).filter(|word| word.starts_with("--")).map(str::to_string).collect()
}

#[test]
fn a_help_text_is_read() {
    let help = read(
        "Does things\n\nUsage: x [OPTIONS] <COMMAND>\n\nCommands:\n  run   Run it\n  help  Print this\n\nOptions:\n  \
         -i, --interface <NAME>   which one [alias: --nic]\n      --json\n          as JSON\n      --stats[=<FORM>]  \
         counters\n  -v, --verbose...  more\n",
    );
    assert_eq!(help.commands, ["run", "help"]);
    let options =
        [("-i", true), ("--interface", true), ("--nic", true), ("--json", false), ("--stats", false)];
    for (name, value) in options.into_iter().chain([("-v", false), ("--verbose", false)]) {
        assert_eq!(help.options.get(name), Some(&value), "{name}");
    }
}

#[test]
fn descriptions_and_defaults_are_read() {
    let text = "x\n\nCommands:\n  run   Run it,\n        twice\n  help  Print this\n\nOptions:\n      --keep <TIME>\n      \
                    How long [default:\n          1m, if any]\n      --keeper <X>\n          Who\n";
    assert_eq!(listed(text)[0], ("run".into(), "Run it, twice".into()));
    assert_eq!((listed(text).len(), default(text, "--keep")), (2, Some("1m".into())));
    assert_eq!((default(text, "--keeper"), default(text, "--none")), (None, None));
}
