//! Completion of command lines in shells: scripts for options and subcommands, and names of regions and other
//! objects.
//!
//! ```text
//!   the shell's completion script --(words up to the cursor)--> the program itself --> the manager or the agent
//!                                 <------ names, one a line --                     <-- all names
//! ```
//!
//! A script asks its program for names through the variable [`WORDS_VARIABLE`]. The program answers quickly
//! or prints nothing: a key press must not end in an error message.

use clap::{Arg, Command};
use clap_complete::Shell;

use super::{Failure, output};

/// Environment variable by which a script asks for names; the words of the command line follow `--`.
pub const WORDS_VARIABLE: &str = "CXLOE_COMPLETE";

/// Argument that takes names: its subcommand, its identifier, and the kind of the objects named.
pub type NamedArg<K> = (&'static str, &'static str, K);

/// Missing part of a command line at the cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected<K> {
    pub kind: K,
    /// Identifier and value of each option before the cursor, which determine the manager or agent that is
    /// asked.
    pub given: Vec<(String, String)>,
    /// Text of the word at the cursor before the name: the option with `=`, or earlier names of a list.
    before: String,
    /// Part of the name that was typed.
    typed: String,
}

impl<K> Expected<K> {
    pub fn given(&self, option: &str) -> Option<&str> {
        self.given.iter().find(|(id, _)| id == option).map(|(_, value)| &**value)
    }

    /// Prints those of `names` that begin with the part typed, each as the whole word at the cursor.
    ///
    /// # Errors
    /// When standard output is closed.
    pub fn print(&self, names: impl IntoIterator<Item = String>) -> Result<(), Failure> {
        let fit = names.into_iter().filter(|name| name.starts_with(&self.typed));
        let lines: String = fit.map(|name| format!("{}{name}\n", self.before)).collect();
        output::write(lines.as_bytes())
    }
}

/// Words of the command line after `--`, without the program, if a completion script asks for names.
pub fn asked() -> Option<Vec<String>> {
    std::env::var_os(WORDS_VARIABLE)?;
    Some(std::env::args().skip(1).skip_while(|word| word != "--").skip(1).collect())
}

/// Returns the kind of name that is expected as the last of `words`, which is at the cursor and may be empty; `None` if
/// that word is no name of an argument in `named`.
pub fn expected<K: Copy>(
    mut command: Command,
    named: &[NamedArg<K>],
    words: &[String],
) -> Option<Expected<K>> {
    command.build();
    let (typed, before) = words.split_last()?;
    let typed = typed.as_str();
    let mut reading = Reading { command: &command, option: None, positionals: 0, given: Vec::new() };
    for word in before {
        reading.read(word)?;
    }
    // Bash passes an equals sign as a separate word.
    let typed = if reading.option.is_some() && typed == "=" { "" } else { typed };
    let (arg, front, typed) = match (reading.option, typed.split_once('=')) {
        (Some(option), _) => (option, "", typed),
        (None, Some((option, value))) if option.starts_with("--") => {
            (reading.long(&option[2..])?, &typed[..=option.len()], value)
        }
        // Options are completed by the script itself.
        _ if typed.starts_with('-') => return None,
        _ => (reading.positional()?, "", typed),
    };
    let list = typed.rfind(',').filter(|_| arg.get_value_delimiter().is_some()).map_or(0, |comma| comma + 1);
    let of =
        |(name, id, _): &&NamedArg<K>| *name == reading.command.get_name() && *id == arg.get_id().as_str();
    let (_, _, kind) = named.iter().find(of)?;
    let (list, typed) = typed.split_at(list);
    Some(Expected {
        kind: *kind,
        given: reading.given,
        before: format!("{front}{list}"),
        typed: typed.into(),
    })
}

/// A command line that is read word by word.
struct Reading<'a> {
    command: &'a Command,
    option: Option<&'a Arg>,
    /// Number of positional arguments read.
    positionals: usize,
    given: Vec<(String, String)>,
}

impl<'a> Reading<'a> {
    fn long(&self, name: &str) -> Option<&'a Arg> {
        let is = |arg: &&Arg| {
            arg.get_long() == Some(name)
                || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
        };
        self.command.get_arguments().find(is)
    }

    /// The positional argument at the cursor, unless a subcommand is expected there.
    fn positional(&self) -> Option<&'a Arg> {
        let last = self.command.get_positionals().last().filter(|arg| takes_many(arg));
        self.command.get_positionals().nth(self.positionals).or(last).filter(|arg| !arg.is_last_set())
    }

    /// Reads a word before the cursor; `None` at `--`, after which the arguments of another program follow.
    fn read(&mut self, word: &str) -> Option<()> {
        if let Some(option) = self.option {
            // Bash passes an equals sign as a separate word.
            if word != "=" {
                self.given.push((option.get_id().to_string(), word.to_owned()));
                self.option = None;
            }
            return Some(());
        }
        if word == "--" {
            return None;
        }
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let arg = self.long(name).filter(|arg| takes_value(arg));
            match (arg, value) {
                (Some(arg), Some(value)) => self.given.push((arg.get_id().to_string(), value.to_owned())),
                (arg, None) => self.option = arg.filter(|arg| !arg.is_require_equals_set()),
                (None, Some(_)) => {}
            }
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            let command = self.command;
            let is_of = |letter: char| command.get_arguments().find(|arg| arg.get_short() == Some(letter));
            let mut letters = letters.char_indices().map(|(at, letter)| (letters.len() - at, is_of(letter)));
            // The value of a short option may follow the option's letter in the same word.
            let takes =
                letters.find_map(|(left, arg)| arg.filter(|arg| takes_value(arg)).map(|arg| (left, arg)));
            self.option = takes.filter(|(left, _)| *left == 1).map(|(_, arg)| arg);
        } else if let Some(below) = self.command.find_subcommand(word).filter(|_| self.positionals == 0) {
            self.command = below;
        } else {
            self.positionals += 1;
        }
        Some(())
    }
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

fn takes_many(arg: &Arg) -> bool {
    arg.get_num_args().is_some_and(|number| number.max_values() > 1)
        || matches!(arg.get_action(), clap::ArgAction::Append)
}

/// Prints the script by which `shell` completes the arguments of `command`. With `names`, the script also
/// asks the program for names, which it gets by [`asked`].
///
/// # Errors
/// When standard output is closed.
pub fn script(shell: Shell, command: Command, names: bool) -> Result<(), Failure> {
    let text = text_of(shell, command, names);
    output::write(text.as_bytes())
}

fn text_of(shell: Shell, command: Command, names: bool) -> String {
    let mut command = with_listed_values(command);
    let (name, mut text) = (command.get_name().to_owned(), Vec::new());
    clap_complete::generate(shell, &mut command, &name, &mut text);
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if shell == Shell::Bash {
        // clap_complete 4.6 spells a program's name that has a hyphen in two ways, of which one finds no subcommand.
        let (wrong, right) = (name.replace('-', "__subcmd__"), name.replace('-', "__"));
        text = text.replace(&format!("{wrong}__subcmd__"), &format!("{right}__subcmd__"));
    }
    if names { with_names(shell, &name, text) } else { text }
}

/// Extends a script so that it asks the program for names first.
fn with_names(shell: Shell, name: &str, text: String) -> String {
    let function = name.replace('-', "__");
    match shell {
        Shell::Bash => {
            let ask = format!(
                r#"
_{function}__or_names() {{
    local names
    names=$({WORDS_VARIABLE}=1 "${{COMP_WORDS[0]}}" -- "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2>/dev/null)
    if [[ -n "$names" ]]; then
        local IFS=$'\n'
        COMPREPLY=($names)
        return 0
    fi
    _{function} "$@"
}}

"#
            );
            // The addition goes before the lines that register the completion function, at the end of the
            // script.
            let place = text.rfind("\nif [[").unwrap_or(text.len());
            let (functions, registration) = text.split_at(place);
            let registration = registration.replace(
                &format!("complete -F _{function} "),
                &format!("complete -F _{function}__or_names "),
            );
            format!("{functions}{ask}{}", registration.trim_start())
        }
        Shell::Zsh => {
            let ask = format!(
                r#"
_{name}() {{
    local -a names
    names=(${{(f)"$({WORDS_VARIABLE}=1 ${{words[1]}} -- "${{(@)words[2,CURRENT]}}" 2>/dev/null)"}})
    if (( $#names )); then
        compadd -a names
        return
    fi
    _{name}__words "$@"
}}
"#
            );
            text.replacen(&format!("\n_{name}() {{"), &format!("{ask}\n_{name}__words() {{"), 1)
        }
        Shell::Fish => format!(
            "{text}
function __{function}_names
    set -l words (commandline -opc)
    {WORDS_VARIABLE}=1 $words[1] -- $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c {name} -f -a '(__{function}_names)'
"
        ),
        _ => text,
    }
}

/// Limits each option to the values that its value name lists, as in `<ignore|trust>`, so that shells offer
/// them. Only for completion, because the types that parse such values have better errors.
fn with_listed_values(command: Command) -> Command {
    let listed = |arg: Arg| {
        let names = arg.get_value_names().and_then(|names| names.first().map(ToString::to_string));
        // Leaked, because the process ends with this command.
        let names: Option<&str> = names.map(|names| &*names.leak());
        let values: Vec<&str> = names.iter().flat_map(|names| names.split('|')).collect();
        let are_values =
            values.iter().all(|value| value.starts_with(|first: char| first.is_ascii_lowercase()));
        if values.len() < 2 || !are_values || !arg.get_possible_values().is_empty() {
            return arg;
        }
        arg.value_parser(clap::builder::PossibleValuesParser::new(values))
    };
    command.mut_args(listed).mut_subcommands(with_listed_values)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use clap::ArgAction;

    use super::*;

    const NAMED: &[NamedArg<&str>] =
        &[("destroy", "names", "regions"), ("destroy", "on", "nodes"), ("move", "region", "regions")];

    fn command() -> Command {
        let url = Arg::new("manager").long("manager").global(true).action(ArgAction::Set);
        let destroy = Command::new("destroy")
            .arg(Arg::new("names").num_args(1..))
            .arg(Arg::new("on").long("on").short('o').value_delimiter(',').action(ArgAction::Append))
            .arg(Arg::new("force").short('f').long("force").action(ArgAction::SetTrue));
        let program =
            Command::new("move").arg(Arg::new("region")).arg(Arg::new("program").last(true).num_args(1..));
        Command::new("a-program").arg(url).subcommand(destroy).subcommand(program)
    }

    #[test]
    fn names_are_expected_where_an_argument_takes_them() {
        let at = |line: &str| {
            let words: Vec<String> = line.split(' ').map(String::from).collect();
            let found = expected(command(), NAMED, &words)?;
            Some((
                found.kind,
                found.before.clone(),
                found.typed.clone(),
                found.given("manager").map(String::from),
            ))
        };
        let of = |kind, before: &str, typed: &str| Some((kind, before.to_owned(), typed.to_owned(), None));
        assert_eq!(at("destroy "), of("regions", "", ""));
        assert_eq!(at("destroy -f one tw"), of("regions", "", "tw"));
        assert_eq!(at("destroy --on "), of("nodes", "", ""));
        assert_eq!(at("destroy -fo mn0,m"), of("nodes", "mn0,", "m"));
        assert_eq!(at("destroy --on=mn0,"), of("nodes", "--on=mn0,", ""));
        assert_eq!(at("destroy --on = m"), of("nodes", "", "m"), "as bash has it");
        assert_eq!(at("destroy --on ="), of("nodes", "", ""));
        assert_eq!(at("move "), of("regions", "", ""));
        let given = Some(("regions", String::new(), "a".to_owned(), Some("unix:/x".to_owned())));
        assert_eq!(at("--manager unix:/x destroy a"), given);
        assert_eq!(at("destroy --manager=unix:/x a"), given);
        for none in ["", "des", "destroy --f", "--manager ", "move one ", "move -- ", "nothing "] {
            assert_eq!(at(none), None, "{none:?}");
        }
    }

    /// Tests the script in bash, with a program that answers what it was asked.
    #[test]
    fn bash_offers_names_and_otherwise_what_it_offered_before() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("a-program");
        let answers = format!(
            "#!/bin/sh\n[ -n \"${WORDS_VARIABLE}\" ] || exit 1\n[ \"$2\" = destroy ] && printf '%s\\n' heap \"$#\"\n"
        );
        fs::write(&program, answers).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let script = text_of(Shell::Bash, command(), true);
        let complete = |words: &[&str]| {
            let (program, last) = (program.to_string_lossy(), words.len());
            let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
            let run = format!(
                "{script}\nCOMP_WORDS=('{program}' {})\nCOMP_CWORD={last}\n\
                 $(complete -p a-program | sed 's/.*-F \\([^ ]*\\) .*/\\1/') '{program}' \
                 \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last}-1]}}\"\necho \"${{COMPREPLY[*]}}\"",
                words.join(" ")
            );
            let ran = std::process::Command::new("bash").args(["-c", &run]).output().unwrap();
            assert!(ran.stderr.is_empty(), "{}", String::from_utf8_lossy(&ran.stderr));
            String::from_utf8(ran.stdout).unwrap().trim().to_owned()
        };
        assert_eq!(complete(&["destroy", "h"]), "heap 3");
        assert_eq!(complete(&["destroy", "one", ""]), "heap 4");
        assert_eq!(complete(&["des"]), "destroy", "a subcommand, as without names");
        assert!(complete(&["move", "-"]).contains("--manager"), "options, as without names");
    }

    #[test]
    fn each_shell_asks_for_names() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let (without, with) = (text_of(shell, command(), false), text_of(shell, command(), true));
            assert!(
                !without.contains(WORDS_VARIABLE) && with.matches(WORDS_VARIABLE).count() == 1,
                "{shell}"
            );
        }
        let zsh = text_of(Shell::Zsh, command(), true);
        assert_eq!(zsh.matches("\n_a-program() {").count(), 1);
        assert_eq!(zsh.matches("\n_a-program__words() {").count(), 1);
    }
}
