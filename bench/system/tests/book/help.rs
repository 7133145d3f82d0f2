//! Parser of `--help` output: a command's options, which of them take a value, and its subcommands.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::{LazyLock, Mutex};

use crate::tree;

/// Options and subcommands of one command, from its help.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Help {
    /// Options with their dashes; true if a value follows.
    pub options: HashMap<String, bool>,
    /// Names of subcommands.
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
    let asked = Command::new(program).args(commands).arg("--help").output();
    let output = asked.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    output.status.success().then(|| read(&String::from_utf8_lossy(&output.stdout)))
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
