//! Command lines in the documentation: each command and each option of this project's programs on a page has to exist.

use std::collections::{BTreeSet, HashSet};

use crate::page::{Line, Page};
use crate::{Faults, help};

const PROGRAMS: [&str; 4] = ["gmm", "mn-server", "cn-agent", "cxloe-bench"];
/// Scripts of this project. Their help has no fixed form, so it is searched as plain text.
const SCRIPTS: [&str; 4] = ["deploy/lab/lab", "deploy/tune/dpdk", "deploy/tune/nic", "deploy/vm/guest/guest"];
/// Languages of fenced blocks that contain command lines.
const SHELLS: [&str; 6] = ["", "sh", "bash", "console", "ini", "yaml"];
/// Words that may precede a command; `ip netns exec NAME` and variable assignments are removed as well.
const BEFORE: [&str; 14] =
    ["$", "#", "sudo", "until", "while", "if", "!", "do", "then", "time", "nohup", "exec", "-", "{"];
/// Subcommands that clap adds to every program.
const EVERYWHERE: [&str; 3] = ["help", "completions", "man"];
/// Options of programs outside this project that pages mention without a command.
const FOREIGN: [&str; 4] =
    ["--auto-compaction-retention", "--auto-compaction-mode", "--cap-add", "--network"];

/// Commands and options on a page that do not exist in any program.
pub fn faults(page: &Page) -> Faults {
    let mut faults = Faults::new();
    for block in page.blocks().iter().filter(|block| SHELLS.contains(&block.language.as_str())) {
        // In blocks without a language, indented lines are output of programs.
        let written = |line: &Line| block.language.is_empty() && line.text.starts_with(' ');
        faults.extend(whole(&block.lines).iter().filter(|line| !written(line)).flat_map(of_line));
    }
    let indented: Vec<Line> =
        page.prose().into_iter().filter(|line| line.text.starts_with("    ")).cloned().collect();
    faults.extend(whole(&indented).iter().flat_map(of_line));
    for (place, span) in page.spans() {
        let why = match span.strip_prefix("--") {
            Some(_) => option_of_none(&span),
            None => split(&span).iter().find_map(|command| wrong(command)),
        };
        faults.extend(why.map(|why| format!("{place}: `{span}`: {why}")));
    }
    faults
}

fn of_line(line: &Line) -> Faults {
    let commands = split(&line.text).into_iter();
    commands
        .filter_map(|c| wrong(&c))
        .map(|why| format!("{}: {}: {why}", line.place, line.text.trim()))
        .collect()
}

/// Lines with backslash continuations joined.
fn whole(lines: &[Line]) -> Vec<Line> {
    let mut all: Vec<Line> = Vec::new();
    let mut goes_on = false;
    for line in lines {
        let text = line.text.trim_end();
        let (text, more) = text.strip_suffix('\\').map_or((text, false), |text| (text, true));
        match all.last_mut().filter(|_| goes_on) {
            Some(last) => {
                last.text.push(' ');
                last.text.push_str(text.trim());
            }
            None => all.push(Line { text: text.into(), place: line.place.clone() }),
        }
        goes_on = more;
    }
    all
}

/// Commands of a shell line, as words: a quoted string is one word, comments are removed.
fn split(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut command, mut word) = (Vec::new(), Vec::new(), String::new());
    let mut quote = None;
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.push(c),
            (None, '\'' | '"') => (quote, quoted) = (Some(c), true),
            (None, '#') if word.is_empty() && !command.is_empty() => break,
            (None, c) if c.is_whitespace() || "|;&()".contains(c) => {
                if !word.is_empty() || quoted {
                    command.push(std::mem::take(&mut word));
                    quoted = false;
                }
                if "|;&()".contains(c) && !(c == '&' && characters.peek() == Some(&'>')) {
                    commands.push(std::mem::take(&mut command));
                }
            }
            (None, c) => word.push(c),
        }
    }
    if !word.is_empty() || quoted {
        command.push(word);
    }
    commands.push(command);
    commands.retain(|command| !command.is_empty());
    commands
}

/// Error in a command line, if it calls one of this project's programs.
fn wrong(words: &[String]) -> Option<String> {
    check(&ours(words)?).err()
}

/// Words of a command line from the program on, if that is one of this project's.
fn ours(words: &[String]) -> Option<Vec<&str>> {
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    loop {
        let first = *words.first()?;
        if let Some(command) =
            first.strip_prefix("ExecStart=").or_else(|| first.strip_prefix("ExecStartPre="))
        {
            words[0] = command;
        } else if words.starts_with(&["ip", "netns", "exec"]) {
            words.drain(..4.min(words.len()));
        } else if BEFORE.contains(&first) || is_setting(first) {
            words.remove(0);
        } else {
            break;
        }
    }
    if SCRIPTS.contains(words.first()?) {
        return Some(words);
    }
    let program = words.first()?.rsplit('/').next()?;
    words[0] = PROGRAMS.iter().find(|name| **name == program)?;
    Some(words)
}

fn is_setting(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    })
}

/// Program and command, as in `cn-agent cxl list`; or an error that names the option or command that does not exist.
fn check(words: &[&str]) -> Result<String, String> {
    if SCRIPTS.contains(&words[0]) {
        return check_script(words[0], &words[1..]);
    }
    let mut path = vec![words[0]];
    let mut help = help::of(&path);
    let mut words = words[1..].iter();
    while let Some(word) = words.next() {
        // The rest of the line is another program's command, a redirection, or a gap in the page.
        if *word == "--"
            || word.starts_with('>')
            || word.starts_with("2>")
            || *word == "<"
            || word.contains('…')
        {
            break;
        }
        let unknown = |option: String| format!("`{}` has no option {option}", path.join(" "));
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            match help.options.get(&format!("--{name}")) {
                None => return Err(unknown(format!("--{name}"))),
                Some(true) if value.is_none() => drop(words.next()),
                Some(_) => {}
            }
        } else if let Some(short) = word.strip_prefix('-').filter(|short| !short.is_empty()) {
            for (at, letter) in short.char_indices() {
                match help.options.get(&format!("-{letter}")) {
                    None => return Err(unknown(format!("-{letter}"))),
                    Some(true) => {
                        // The option's value is the rest of this word or, if nothing is left of it, the next word.
                        if at + letter.len_utf8() == short.len() {
                            words.next();
                        }
                        break;
                    }
                    Some(false) => {}
                }
            }
        } else if !help.commands.is_empty() {
            // The word is a placeholder or an argument, no subcommand.
            if word.starts_with(['<', '[', '@', '{', '"']) || word.chars().all(|c| !c.is_lowercase()) {
                break;
            }
            if !help.commands.iter().any(|command| command == word) {
                return Err(format!("`{}` has no command {word}", path.join(" ")));
            }
            path.push(word);
            help = help::of(&path);
        }
    }
    Ok(path.join(" "))
}

/// Like [`check`], for a script, whose help has to mention every command and option.
fn check_script(script: &str, words: &[&str]) -> Result<String, String> {
    let help = help::text_of(script).ok_or_else(|| format!("{script} is not in the tree"))?;
    let known =
        |word: &str| help.split(|c: char| c.is_whitespace() || "[],|=".contains(c)).any(|part| part == word);
    let options = words.iter().take_while(|word| **word != "--");
    // A quoted string with blanks is a value.
    let options = options.filter(|word| word.starts_with('-') && !word.contains(' '));
    for option in options.map(|option| option.split('=').next().unwrap_or(option)) {
        if !known(option) {
            return Err(format!("{script} has no option {option}"));
        }
    }
    Ok(script.into())
}

/// Commands that no page mentions.
pub fn unnamed(pages: &[Page]) -> Faults {
    let lines =
        |page: &Page| page.blocks().into_iter().flat_map(|block| whole(&block.lines)).collect::<Vec<_>>();
    let texts = |page: &Page| {
        let spans = page.spans().into_iter().map(|(_, span)| span);
        lines(page).into_iter().map(|line| line.text).chain(spans).collect::<Vec<_>>()
    };
    let commands: Vec<_> = pages.iter().flat_map(texts).flat_map(|text| split(&text)).collect();
    let named: HashSet<String> = commands.iter().filter_map(|words| check(&ours(words)?).ok()).collect();
    let mut faults = Faults::new();
    for program in PROGRAMS {
        let mut paths = vec![program.to_string()];
        while let Some(path) = paths.pop() {
            if !named.contains(&path) {
                faults.push(format!("no page names `{path}`"));
            }
            let below = help::of(&path.split(' ').collect::<Vec<_>>()).commands;
            let below: BTreeSet<_> =
                below.into_iter().filter(|command| !EVERYWHERE.contains(&command.as_str())).collect();
            paths.extend(below.into_iter().map(|command| format!("{path} {command}")));
        }
    }
    faults
}

/// Error for an option that is mentioned without a command and that no program has.
fn option_of_none(span: &str) -> Option<String> {
    let name: String = span.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    // Excludes "--" alone and options of other programs; a range such as "--cc-t1 to --cc-t6" is checked by its first
    // option.
    if name.len() < 4 || FOREIGN.contains(&name.as_str()) {
        return None;
    }
    let known = PROGRAMS.iter().any(|program| somewhere(&mut vec![program], &name))
        || SCRIPTS.iter().any(|script| check_script(script, &[&name]).is_ok());
    (!known).then(|| format!("no program has the option {name}"))
}

fn somewhere(path: &mut Vec<&str>, option: &str) -> bool {
    let help = help::of(path);
    help.options.contains_key(option)
        || help.commands.iter().filter(|command| *command != "help").any(|command| {
            let mut below = path.clone();
            below.push(command);
            somewhere(&mut below, option)
        })
}

#[test]
fn command_lines_are_taken_apart() {
    let words = |line: &str| split(line).iter().map(|command| command.join("|")).collect::<Vec<_>>();
    assert_eq!(words("a 'b c' > x & d --e | f # g"), ["a|b c|>|x", "d|--e", "f"]);
    assert_eq!(words("x && y --z; echo $(gmm list)"), ["x", "y|--z", "echo|$", "gmm|list"]);
    let lines = ["a \\", "  b", "c"].map(|text| Line { text: text.into(), place: String::new() });
    assert_eq!(whole(&lines).iter().map(|line| line.text.as_str()).collect::<Vec<_>>(), ["a  b", "c"]);
}

#[test]
fn what_does_not_exist_is_found() {
    let wrong = |line: &str| split(line).iter().find_map(|command| wrong(command));
    for line in [
        "gmm list -MRu",
        "sudo CXLOE_MANAGER=x gmm --manager http://x create-region -s 1G --owner cn0 scratch",
        "ip netns exec mn mn-server -i mn0 --pool-size 1G > mn.log 2>&1 &",
        "cn-agent exec --size 1G --local 1M -- sort --no-such-option",
        "cn-agent list | grep -v x",
    ] {
        assert_eq!(wrong(line), None, "{line}");
    }
    for line in [
        "gmm lst",
        "gmm list --no-such-option",
        "true && gmm list -MZ",
        "cn-agent cxl lost",
        "ip netns exec mn mn-server --poolsize 1G",
    ] {
        assert!(wrong(line).is_some(), "{line}");
    }
    assert!(option_of_none("--no-such-option").is_some());
    assert_eq!(option_of_none("--wait busy"), None);
}
