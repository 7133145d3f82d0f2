//! Check of the lists of files in the page about changes: each has to name all files that mention an existing
//! example of its kind.

use crate::page::Page;
use crate::{Faults, tree};

/// Heading of a list, and words that mark the places of an existing example.
const RECIPES: [(&str, &[&str]); 4] = [
    ("An opcode", &["BurstReadReq"]),
    ("A REST field", &["pending_commands"]),
    ("A link", &["Backend::Pnet", "\"pnet\"", "`pnet`"]),
    ("A benchmark", &["cxloe-bench scale", "scale::", "mod scale;"]),
];

/// True for files of tests, which the lists need not name.
fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("tests.rs")
}

/// True if `text` contains `word`, not as a part of a longer word.
fn mentions(text: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let edge = |c: Option<char>| !part(c);
    text.match_indices(word).any(|(at, _)| {
        let open = !part(word.chars().next()) || edge(text[..at].chars().next_back());
        let shut = !part(word.chars().next_back()) || edge(text[at + word.len()..].chars().next());
        open && shut
    })
}

/// Files that mention an example of a list's kind, and that the list does not name.
pub fn unnamed(page: &Page) -> Faults {
    let files = tree::sources().iter().map(|(path, text)| (path.clone(), text.clone()));
    let pages = tree::documents().into_iter().filter_map(|path| {
        let path = tree::root().join(path);
        let text = std::fs::read_to_string(&path).ok()?;
        Some((path, text))
    });
    let all: Vec<_> = files.chain(pages).collect();
    let mut faults = Faults::new();
    for (heading, words) in RECIPES {
        let named = page.section_spans(heading);
        if named.is_empty() {
            faults.push(format!("{}: no list `{heading}`", page.path.display()));
        }
        let mut found = 0;
        for (path, text) in &all {
            let Ok(path) = path.strip_prefix(tree::root()) else { continue };
            let name = path.to_string_lossy();
            if path == page.path || is_test(&name) || !words.iter().any(|word| mentions(text, word)) {
                continue;
            }
            found += 1;
            if !named.iter().any(|span| path.starts_with(span)) {
                faults.push(format!("{name}: mentions {words:?}, and the list `{heading}` does not name it"));
            }
        }
        if found == 0 {
            faults.push(format!("nothing mentions {words:?}: choose another example for `{heading}`"));
        }
    }
    faults
}

#[test]
fn words_stand_alone() {
    assert!(mentions("a scale::run", "scale::") && !mentions("autoscale::run", "scale::"));
    assert!(mentions("x(BurstReadReq)", "BurstReadReq") && !mentions("BurstReadReqs", "BurstReadReq"));
}
