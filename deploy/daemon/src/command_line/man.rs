//! Manual pages: each program writes its own, made from the very definition of its arguments.
//!
//! What stands behind the options in `--help` becomes sections: prose goes to the description, and what follows a heading
//! (`Examples:`, `Exit codes:`) stays as it is, line by line, so that a command can be copied from the page whole.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::Failure;

/// Arguments of the command `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The folder to write them to, made if need be; one page for the program and one for each of its commands
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
}

impl ManArgs {
    /// Writes the pages of `program`: `PROGRAM.1`, `PROGRAM-COMMAND.1` and so on.
    ///
    /// # Errors
    /// When the folder cannot be made or written to.
    pub fn write(&self, program: Command) -> Result<(), Failure> {
        let written = fs::create_dir_all(&self.dir).and_then(|()| write(program, &self.dir));
        written.map_err(|error| {
            let dir = self.dir.display();
            Failure::failed(format!(
                "cannot write manual pages to {dir}: {error}; give a writable folder with --dir"
            ))
        })
    }
}

fn write(program: Command, dir: &Path) -> io::Result<()> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let version = program.get_version().unwrap_or_default().to_owned();
    write_with_commands(&program, &[], &version, dir)
}

/// Writes the page of a command, to which `above` lead, and those of the commands below it.
fn write_with_commands(command: &Command, above: &[&Command], version: &str, dir: &Path) -> io::Result<()> {
    let path = [above, &[command]].concat();
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_with_commands(below, &path, version, dir)?;
    }
    let mut file = File::create(dir.join(format!("{}.1", title(command))))?;
    file.write_all(&page(command, above, version)?)?;
    file.flush()
}

fn title(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// The page of a command.
fn page(command: &Command, above: &[&Command], version: &str) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let after = command.get_after_long_help().or_else(|| command.get_after_help());
    let parts = parts(&after.map(ToString::to_string).unwrap_or_default());
    // The date is left out, which has to be said by quotation marks.
    let head = format!(".TH \"{}\" 1 \"\" \"CXLoE {version}\" \"CXL over Ethernet\"\n", title(command));
    let mut bytes = head.into_bytes();
    man.render_name_section(&mut bytes)?;
    section("SYNOPSIS", [synopsis(command)]).to_writer(&mut bytes)?;
    man.render_description_section(&mut bytes)?;
    let mut roff = Roff::new();
    for part in parts.iter().filter(|part| part.heading.is_none()) {
        roff.control("PP", []);
        for line in &part.lines {
            match line.trim() {
                "" => roff.control("PP", []),
                text => roff.text([roman(text)]),
            };
        }
    }
    roff.to_writer(&mut bytes)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut bytes)?;
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut bytes)?;
    }
    for part in &parts {
        let Some(heading) = &part.heading else { continue };
        let mut roff = Roff::new();
        roff.control("SH", [heading.to_uppercase().as_str()]).control("nf", []);
        for line in &part.lines {
            roff.text([roman(line.as_str())]);
        }
        roff.control("fi", []);
        roff.to_writer(&mut bytes)?;
    }
    if !above.is_empty() {
        let others = above.iter().rev().map(|other| format!("{}(1)", title(other)));
        section("SEE ALSO", [vec![roman(others.collect::<Vec<_>>().join(", "))]]).to_writer(&mut bytes)?;
    }
    Ok(bytes)
}

fn section(heading: &str, lines: impl IntoIterator<Item = Vec<Inline>>) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [heading]);
    for line in lines {
        roff.text(line);
    }
    roff
}

/// The command with what it takes, each option with its value.
fn synopsis(command: &Command) -> Vec<Inline> {
    let mut line = vec![bold(command.get_bin_name().unwrap_or_else(|| command.get_name()))];
    let taken = |argument: &&Arg| {
        !argument.is_hide_set()
            && !matches!(
                argument.get_action(),
                ArgAction::Help | ArgAction::HelpLong | ArgAction::HelpShort | ArgAction::Version
            )
    };
    for option in command.get_arguments().filter(taken).filter(|argument| !argument.is_positional()) {
        let flag = match (option.get_short(), option.get_long()) {
            (_, Some(long)) => format!("--{long}"),
            (Some(short), None) => format!("-{short}"),
            (None, None) => continue,
        };
        let [before, behind] = if option.is_required_set() { [" ", ""] } else { [" [", "]"] };
        line.extend([roman(before), bold(flag)]);
        if option.get_num_args().is_some_and(|values| values.takes_values()) {
            let optional = option.get_num_args().is_some_and(|values| values.min_values() == 0);
            let [before, behind] = match (optional, option.is_require_equals_set()) {
                (true, true) => ["[=", "]"],
                (true, false) => [" [", "]"],
                (false, true) => ["=", ""],
                (false, false) => [" ", ""],
            };
            line.extend([roman(before), italic(names(option)), roman(behind)]);
        }
        line.push(roman(behind));
    }
    for positional in command.get_positionals().filter(taken) {
        let last = if positional.is_last_set() { "-- " } else { "" };
        let many = positional.get_num_args().is_some_and(|values| values.max_values() > 1);
        let [before, behind] = if positional.is_required_set() { ["", ""] } else { ["[", "]"] };
        let many = if many { " ..." } else { "" };
        line.extend([
            roman(format!(" {before}{last}")),
            italic(names(positional)),
            roman(format!("{many}{behind}")),
        ]);
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        line.extend([roman(" "), italic("COMMAND")]);
    }
    line
}

fn names(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    if names.is_empty() { argument.get_id().to_string() } else { names.join(" ") }
}

/// A part of what stands behind the options.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    /// What it is called; nothing of prose.
    heading: Option<String>,
    lines: Vec<String>,
}

/// Takes what stands behind the options apart. A heading is a line by itself that begins with a capital and ends with a
/// colon, and has indented lines below it.
fn parts(text: &str) -> Vec<Part> {
    let lines: Vec<&str> = text.lines().collect();
    let mut parts = vec![Part { heading: None, lines: Vec::new() }];
    for (index, line) in lines.iter().enumerate() {
        let below = lines[index + 1..].iter().find(|line| !line.trim().is_empty());
        let indented = below.is_some_and(|line| line.starts_with(' '));
        // The keys of a screen stand in columns, and are not indented.
        let listed = |line: &&&str| line.contains("   ");
        match line.strip_suffix(':') {
            Some(heading)
                if heading.starts_with(char::is_uppercase)
                    && heading.split(' ').count() <= 3
                    && (indented || below.as_ref().is_some_and(listed)) =>
            {
                parts.push(Part { heading: Some(heading.to_owned()), lines: Vec::new() });
            }
            _ => {
                let part = parts.last_mut().expect("there is the first");
                let prose = !line.starts_with(' ') && !line.is_empty() && !line.contains("   ");
                if part.heading.is_some() && prose && part.lines.last().is_some_and(String::is_empty) {
                    // What follows a list, behind an empty line, is prose again.
                    parts.push(Part { heading: None, lines: vec![(*line).to_owned()] });
                } else if !(line.is_empty() && part.lines.is_empty()) {
                    part.lines.push((*line).to_owned());
                }
            }
        }
    }
    for part in &mut parts {
        while part.lines.last().is_some_and(String::is_empty) {
            part.lines.pop();
        }
    }
    parts.retain(|part| !part.lines.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: &str = "\
What it does, in words that
go on.

More of them.

Examples:
  prog run --size 4G -- sh -c 'echo \"$HOME\"' \\
    --on the-next-line
  .dots and 'quotes' stay

Exit codes:
  0  done        1  failed

Prose again.

Keys:
q, Esc           end";

    fn prog() -> Command {
        let run = Command::new("run")
            .about("Run it")
            .after_help(AFTER)
            .arg(Arg::new("size").long("size").value_name("SIZE").required(true).help("How much"))
            .arg(
                Arg::new("form")
                    .long("form")
                    .value_name("FORM")
                    .value_parser(["text", "json"])
                    .default_value("text")
                    .help("How it looks"),
            )
            .arg(Arg::new("quiet").short('q').long("quiet").action(ArgAction::SetTrue))
            .arg(Arg::new("command").value_name("PROGRAM").last(true).num_args(1..).required(true));
        Command::new("prog").version("1.2").about("A program").subcommand(run)
    }

    #[test]
    fn help_is_taken_apart() {
        let parts = parts(AFTER);
        let headings: Vec<Option<&str>> = parts.iter().map(|part| part.heading.as_deref()).collect();
        assert_eq!(headings, [None, Some("Examples"), Some("Exit codes"), None, Some("Keys")]);
        assert_eq!(parts[0].lines.len(), 4);
        assert_eq!(parts[1].lines[1], "    --on the-next-line");
        assert_eq!(parts[3].lines, ["Prose again."]);
    }

    #[test]
    fn a_page_has_values_and_whole_examples() {
        let dir = tempfile::tempdir().unwrap();
        ManArgs { dir: dir.path().join("man") }.write(prog()).unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join("man").join(name)).unwrap();
        let page = read("prog-run.1")
            .replace("\\-", "-")
            .replace("\\fB", "")
            .replace("\\fI", "")
            .replace("\\fR", "");
        assert!(page.contains("prog run --size SIZE [--form FORM] [--quiet] -- PROGRAM ...\n"), "{page}");
        assert!(
            page.contains("[default: text]") && page.contains("Possible values:") && page.contains("json")
        );
        // As it is typed, line by line; what roff would take for its own is escaped.
        let examples = page.split(".SH EXAMPLES\n").nth(1).and_then(|rest| rest.split(".fi").next()).unwrap();
        let lines: Vec<&str> = examples.lines().collect();
        assert_eq!((lines[0], lines.len()), (".nf", 4), "{examples}");
        assert!(
            lines[1].starts_with("  prog run --size 4G -- sh -c ") && lines[2] == "    --on the-next-line"
        );
        let order = [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "EXAMPLES",
            "\"EXIT CODES\"",
            "KEYS",
            "\"SEE ALSO\"",
        ];
        let places: Vec<Option<usize>> =
            order.iter().map(|name| page.find(&format!(".SH {name}\n"))).collect();
        assert!(places.is_sorted() && places.iter().all(Option::is_some), "{places:?}\n{page}");
        assert!(page.ends_with("prog(1)\n") && !page.contains("EXTRA"));
        let above = read("prog.1");
        assert!(above.starts_with(".TH \"prog\" 1 \"\" \"CXLoE 1.2\" \"CXL over Ethernet\"\n"), "{above}");
        assert!(above.contains("prog\\-run(1)"), "{above}");
    }
}
