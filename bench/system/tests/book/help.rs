//! What `--help` says of a command: its options, which of them take a value, and the commands below it.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::{LazyLock, Mutex};

use crate::tree;

/// One command's help.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Help {
    /// Options with their dashes, and whether a value follows.
    pub options: HashMap<String, bool>,
    /// Commands below this one.
    pub commands: Vec<String>,
}

/// The help of the command line `words`, a program and the commands after it; from all builds of the program together.
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
    let mut help = said(program, commands)?;
    // One that says the same as the command above it has no commands of its own.
    if let Some((_, above)) = commands.split_last()
        && !help.commands.is_empty()
        && said(program, above).is_some_and(|above| above.commands == help.commands)
    {
        help.commands.clear();
    }
    Some(help)
}

fn said(program: &Path, commands: &[&str]) -> Option<Help> {
    let asked = Command::new(program).args(commands).arg("--help").output();
    let output = asked.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    output.status.success().then(|| read(&String::from_utf8_lossy(&output.stdout)))
}

/// What a script of the tree says to `--help`.
pub fn text_of(script: &str) -> Option<String> {
    let found = tree::trees().into_iter().map(|tree| tree.join(script)).find(|path| path.exists())?;
    let mut command = Command::new(&found);
    // What stands for a command of a program stands for that of this build.
    if let Ok(bench) = cxloe_lab::program("cxloe-bench") {
        command.env("CXLOE_LAB_PROGRAM", bench);
    }
    let output = command.arg("--help").output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", found.display()));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Reads a help text as clap writes it.
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
            // "-i, --interface <NAME>   what it is"; the description is two spaces further on, or on the next line.
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

/// The names in "[alias: --memory-nodes]".
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
