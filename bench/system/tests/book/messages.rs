//! Check that messages quoted by the book exist, and that the book quotes all errors that users see. Messages of
//! programs are the string literals of their sources.
//!
//! A message is a line of a block of language `message`, or in the first column of a table on the page of messages.
//! Variable parts are written as `…`.

use std::collections::{BTreeSet, HashSet};

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

/// Errors in the sources that the page of messages does not list.
pub fn missing(page: &Page) -> Faults {
    let listed: BTreeSet<String> = listed(page).into_iter().map(|(_, message)| message).collect();
    let mut faults = BTreeSet::new();
    for (path, source) in tree::sources() {
        let Ok(path) = path.strip_prefix(tree::root()) else { continue };
        let path = path.to_string_lossy();
        let ours = path.contains("/src/") && CRATES.iter().any(|folder| path.starts_with(folder));
        if !ours || path.contains("/tests") || UNSEEN.iter().any(|file| path.ends_with(file)) {
            continue;
        }
        for message in errors(source).filter(|message| !listed.contains(message)) {
            faults.insert(format!("{path}: not on {}: {message}", page.path.display()));
        }
    }
    faults.into_iter().collect()
}

/// First column of the tables on the page of messages: place and text of each message.
fn listed(page: &Page) -> Vec<(String, String)> {
    if !page.path.ends_with("operate/messages.md") {
        return Vec::new();
    }
    let rows = page.lines.iter().filter(|line| line.text.starts_with("| `"));
    rows.filter_map(|line| {
        let fence: String = line.text[2..].chars().take_while(|c| *c == '`').collect();
        let cell = line.text[2 + fence.len()..].split(&fence).next()?;
        Some((line.place.clone(), cell.trim().replace("\\|", "|")))
    })
    .collect()
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
