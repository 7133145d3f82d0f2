//! Check of other names in the documentation: files of the tree, make targets, environment variables, metrics, paths of
//! the REST interface.

use std::collections::HashSet;
use std::sync::OnceLock;

use crate::page::Page;
use crate::{Faults, tree};

/// Top-level folders of the project.
const FOLDERS: [&str; 8] = ["wire/", "cc/", "gmm/", "mn-server/", "cn-agent/", "bench/", "deploy/", ".ci/"];

/// Names on a page that refer to nothing in the project.
pub fn faults(page: &Page) -> Faults {
    let mut faults = Faults::new();
    let shells =
        page.blocks().into_iter().filter(|block| ["", "sh", "bash"].contains(&block.language.as_str()));
    let lines = shells.flat_map(|block| block.lines).map(|line| (line.place, line.text));
    for (place, text) in page.spans().into_iter().chain(lines) {
        faults.extend(text.split_whitespace().filter_map(missing).map(|why| format!("{place}: {why}")));
        let words: Vec<&str> = text.split_whitespace().collect();
        if let ["make", target, ..] = words[..]
            && target.chars().all(|c| c.is_ascii_lowercase() || c == '-')
            && !has_target(target)
        {
            faults.push(format!("{place}: make has no target {target}"));
        }
    }
    faults
}

fn missing(word: &str) -> Option<String> {
    let word = word.trim_matches(|c: char| "'\"(),;:".contains(c)).trim_start_matches("./");
    let name: String =
        word.chars().take_while(|c| c.is_ascii_alphanumeric() || "_-./".contains(*c)).collect();
    let name = name.trim_end_matches(['.', '/']);
    if FOLDERS.iter().any(|folder| name.starts_with(folder)) {
        // A pattern such as bench/system/tests/*.rs stands for the folder that contains the files.
        let path = if name.len() < word.trim_end_matches(['.', '/']).len() {
            name.rsplit_once('/')?.0
        } else {
            name
        };
        return (!tree::has(path)).then(|| format!("{path} is not in the tree"));
    }
    // A name with four underscores or more is that of a test or function; a word with `::` is the path of an
    // item.
    let is_test = name.matches('_').count() >= 4
        && name.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit());
    if is_test && !is_mentioned(name) {
        return Some(format!("no test or function is called {name}"));
    }
    if let Some(gone) = word.split("::").filter(|_| word.contains("::")).find(|part| is_gone(part)) {
        return Some(format!("{word}: no source has {gone}"));
    }
    let known = ["CXLOE_", "cxloe_", "Cxloe", "/v1/"].iter().any(|start| name.starts_with(start));
    // "CXLOE_" alone stands for all variables with this prefix; a path ends at a placeholder.
    (known && name.len() > 6 && !name.ends_with('_') && !is_mentioned(name))
        .then(|| format!("no source has {name}"))
}

/// True if no source contains this identifier of a path.
fn is_gone(part: &str) -> bool {
    let identifier: String = part.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    // `is_mentioned` collects only words of five letters and more, so a shorter word would always seem
    // missing.
    identifier.len() > 4 && identifier.len() == part.len() && !is_mentioned(&identifier)
}

/// True if a source contains the name as a word. The series of a histogram are covered by the histogram's name.
fn is_mentioned(name: &str) -> bool {
    static WORDS: OnceLock<HashSet<&'static str>> = OnceLock::new();
    let words = WORDS.get_or_init(|| {
        let between = |c: char| !c.is_ascii_alphanumeric() && !"_/-".contains(c);
        let words = tree::sources().values().flat_map(move |text| text.split(between));
        words.map(|word| word.trim_end_matches('/')).filter(|word| word.len() > 4).collect()
    });
    let stem = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
    words.contains(name) || stem.is_some_and(|stem| words.contains(stem))
}

/// Names of alerts that no page mentions.
pub fn unnamed_alerts(book: &[Page]) -> Faults {
    let named: HashSet<String> = book.iter().flat_map(Page::spans).map(|(_, span)| span).collect();
    let rules = tree::sources().iter().filter(|(path, _)| path.to_string_lossy().contains("deploy/observe/"));
    let alerts =
        rules.flat_map(|(_, text)| text.lines()).filter_map(|line| line.trim().strip_prefix("- alert: "));
    let unnamed = alerts.filter(|alert| !named.contains(alert.trim()));
    unnamed.map(|alert| format!("no page says what to do about the alert {alert}")).collect()
}

fn has_target(target: &str) -> bool {
    let makefile = tree::sources().iter().filter(|(path, _)| path.ends_with("Makefile"));
    let names = |line: &str| {
        line.split_once(':').is_some_and(|(names, _)| names.split(' ').any(|name| name == target))
    };
    makefile.into_iter().any(|(_, text)| text.lines().any(names))
}

#[test]
fn what_is_missing_is_found() {
    for there in [
        "wire/PROTOCOL.md",
        "deploy/install/need.sh:12",
        "CXLOE_MANAGER=x",
        "bench/system/tests/*.rs",
        "target/x",
    ] {
        assert_eq!(missing(there), None, "{there}");
    }
    for gone in
        ["wire/NOTHING.md", "deploy/nowhere/x", concat!("CXLOE", "_NOTHING"), concat!("/v1", "/nothing")]
    {
        assert!(missing(gone).is_some(), "{gone}");
    }
    assert!(has_target("quickstart") && !has_target("nothing"));
}
