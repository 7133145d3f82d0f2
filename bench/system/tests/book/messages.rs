//! Check that messages quoted by the book exist, and generator of the book's page of messages: each error of the
//! sources is a row; remarks are written by hand. Messages of programs are the string literals of their sources.
//!
//! A message is a line of a block of language `message`, or in the first column of a table on the page of messages.
//! Variable parts are written as `…`.

use std::collections::{HashMap, HashSet};

use crate::page::Page;
use crate::{Faults, tree};

/// Folders of the crates whose errors are shown to operators and users.
const CRATES: [&str; 5] = ["wire/", "gmm/", "mn-server/", "cn-agent/", "deploy/daemon/"];
/// Files in these crates whose errors are not shown to users: links of simulations.
const UNSEEN: [&str; 1] = ["wire/net/src/sim.rs"];

/// Messages quoted by the book that no program prints.
pub fn invented(book: &[Page]) -> Faults {
    let messages: Vec<String> = tree::sources()
        .iter()
        .filter(|(path, _)| path.extension().is_some_and(|extension| extension == "rs"))
        .flat_map(|(_, source)| literals(source))
        .map(|literal| shape(&literal))
        .collect();
    let known_messages: HashSet<&str> = messages.iter().map(String::as_str).collect();
    let mut faults = Faults::new();
    for page in book {
        let blocks = page.blocks().into_iter().filter(|block| block.language == "message");
        let quoted = blocks.flat_map(|block| block.lines).map(|line| (line.place, line.text));
        for (place, message) in quoted.chain(listed(page)) {
            let message = message.trim();
            if !known_messages.contains(message) && !messages.iter().any(|literal| literal.contains(message))
            {
                faults.push(format!("{place}: no program says: {message}"));
            }
        }
    }
    faults
}

/// Returns the page of messages with a row for every error of the sources, and without rows of errors that no
/// source has any longer. A row keeps its place and its remark; a new row follows those of the same file,
/// else those of the same crate.
pub fn completed(page: &Page) -> Vec<String> {
    let errors = shown_errors();
    let known: HashSet<&str> = errors.iter().map(|(_, message)| message.as_str()).collect();
    let printed: HashSet<String> =
        tree::sources().values().flat_map(|source| literals(source)).map(|l| shape(&l)).collect();
    let is_printed = |message: &str| known.contains(message) || printed.iter().any(|p| p.contains(message));
    let mut lines: Vec<(Option<String>, String)> = page
        .lines
        .iter()
        .map(|line| (cell(&line.text), line.text.clone()))
        .filter(|(message, _)| message.as_deref().is_none_or(is_printed))
        .collect();
    let mut neighbours: HashMap<&str, &str> = HashMap::new();
    for (path, message) in &errors {
        neighbours.insert(message, path);
    }
    for (path, message) in &errors {
        if lines.iter().any(|(listed, _)| listed.as_ref() == Some(message)) {
            continue;
        }
        let folder = path.split("/src/").next().unwrap_or(path);
        let last = |is_near: &dyn Fn(&str) -> bool| {
            let near = |listed: &Option<String>| {
                listed.as_deref().and_then(|listed| neighbours.get(listed)).is_some_and(|path| is_near(path))
            };
            lines.iter().rposition(|(listed, _)| near(listed))
        };
        let at = last(&|other| other == path)
            .or_else(|| last(&|other| other.starts_with(folder)))
            .or_else(|| lines.iter().rposition(|(listed, _)| listed.is_some()));
        lines.insert(at.map_or(lines.len(), |at| at + 1), (Some(message.clone()), row(message)));
    }
    lines.into_iter().map(|(_, line)| line).collect()
}

/// Errors in the sources that operators and users see, each with its file, in the order of the files.
fn shown_errors() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (path, source) in tree::sources() {
        let Ok(path) = path.strip_prefix(tree::root()) else { continue };
        let path = path.to_string_lossy().into_owned();
        let ours = path.contains("/src/") && CRATES.iter().any(|folder| path.starts_with(folder));
        if !ours || path.contains("/tests") || UNSEEN.iter().any(|file| path.ends_with(file)) {
            continue;
        }
        found.extend(errors(source).map(|message| (path.clone(), message)));
    }
    found
}

/// A row of the page for a message without a remark.
fn row(message: &str) -> String {
    let text = message.replace('|', "\\|");
    match text.contains('`') {
        true => format!("| `` {text} `` | |"),
        false => format!("| `{text}` | |"),
    }
}

/// Message in the first column of a row of the page.
fn cell(line: &str) -> Option<String> {
    let rest = line.strip_prefix("| ").filter(|rest| rest.starts_with('`'))?;
    let fence: String = rest.chars().take_while(|c| *c == '`').collect();
    let cell = rest[fence.len()..].split(&fence).next()?;
    Some(cell.trim().replace("\\|", "|"))
}

/// First column of the tables on the page of messages: place and text of each message.
fn listed(page: &Page) -> Vec<(String, String)> {
    if !page.path.ends_with("operate/messages.md") {
        return Vec::new();
    }
    page.lines.iter().filter_map(|line| Some((line.place.clone(), cell(&line.text)?))).collect()
}

/// Messages of `#[error("…")]`, except transparent errors and those that consist of another error only.
fn errors(source: &str) -> impl Iterator<Item = String> {
    let attributes = source.split("#[error(").skip(1).filter(|rest| !rest.starts_with("transparent"));
    attributes
        .filter_map(|rest| literals(rest).next())
        .map(|literal| shape(&literal))
        .filter(|message| message != "…")
}

/// A message without its variable parts: `{…}` becomes `…`.
fn shape(literal: &str) -> String {
    let mut shape = String::new();
    let mut characters = literal.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '{' if characters.peek() == Some(&'{') => {
                characters.next();
                shape.push('{');
            }
            '{' => {
                characters.by_ref().find(|c| *c == '}');
                // Adjacent variable parts, as in "{}{}", become one.
                if !shape.ends_with('…') {
                    shape.push('…');
                }
            }
            '}' => {
                characters.next_if_eq(&'}');
                shape.push('}');
            }
            c => shape.push(c),
        }
    }
    shape
}

/// String literals of a source, with escapes resolved, except those in comments and character literals.
fn literals(source: &str) -> impl Iterator<Item = String> {
    let mut rest = source;
    std::iter::from_fn(move || {
        loop {
            let at = rest.find(['"', '/', '\''])?;
            let from = &rest[at..];
            if from.starts_with("//") {
                rest = from.find('\n').map_or("", |end| &from[end..]);
            } else if let Some(after) = from.strip_prefix('"') {
                let (literal, behind) = literal(after);
                rest = behind;
                return Some(literal);
            } else if from.starts_with("'\"'") || from.starts_with("'\\\"'") {
                rest = from[1..].split_once('\'').map_or("", |(_, behind)| behind);
            } else {
                rest = &from[1..];
            }
        }
    })
}

fn literal(source: &str) -> (String, &str) {
    let mut text = String::new();
    let mut characters = source.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return (text, &source[at + 1..]),
            '\\' => match characters.next() {
                Some((_, '\n')) => {
                    // A line continuation skips the following blanks.
                    let behind = characters.as_str();
                    let blanks = behind.len() - behind.trim_start().len();
                    let offset = source.len() - behind.len() + blanks;
                    let (more, after) = literal(&source[offset..]);
                    return (text + &more, after);
                }
                Some((_, 'n')) => text.push('\n'),
                Some((_, escaped)) => text.push(escaped),
                None => break,
            },
            c => text.push(c),
        }
    }
    (text, "")
}

#[test]
fn messages_are_found_in_a_source() {
    let source = concat!(
        "// \"no\"\nlet a = '\"'; #[error(\"cannot {what} `{0}`: {}\",",
        " x(\"y\"))]\n#[error(\n \"two \\\n   lines {{}}\")]\n#[error(transparent)] #[error(\"{0}\")]"
    );
    assert_eq!(errors(source).collect::<Vec<_>>(), ["cannot … `…`: …", "two lines {}"]);
    assert_eq!(literals(source).count(), 4);
}

#[test]
fn a_row_reads_back() {
    for message in ["plain …", "with `code` …", "a|b"] {
        assert_eq!(cell(&row(message)).as_deref(), Some(message));
    }
    assert_eq!(cell("| message | more |"), None);
}
