//! Other names in the documentation: files of the tree, make's targets, environment variables, metrics, paths of the REST
//! interface.

use std::collections::HashSet;
use std::sync::OnceLock;

use crate::page::Page;
use crate::{Faults, tree};

/// The folders of the tree.
const FOLDERS: [&str; 8] = ["wire/", "cc/", "gmm/", "mn-server/", "cn-agent/", "bench/", "deploy/", ".ci/"];

/// Names of things that are not there.
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
        // A pattern, as in bench/system/tests/*.rs, names the folder before it.
        let path = if name.len() < word.trim_end_matches(['.', '/']).len() {
            name.rsplit_once('/')?.0
        } else {
            name
        };
        return (!tree::has(path)).then(|| format!("{path} is not in the tree"));
    }
    let known = ["CXLOE_", "cxloe_", "Cxloe", "/v1/"].iter().any(|start| name.starts_with(start));
    // "CXLOE_" by itself stands for all of them; a path ends where a name is to be put in.
    (known && name.len() > 6 && !name.ends_with('_') && !said(name)).then(|| format!("no source has {name}"))
}

/// Whether a source has the name as a word. A histogram has the names of its parts besides.
fn said(name: &str) -> bool {
    static WORDS: OnceLock<HashSet<&'static str>> = OnceLock::new();
    let words = WORDS.get_or_init(|| {
        let between = |c: char| !c.is_ascii_alphanumeric() && !"_/-".contains(c);
        let words = tree::sources().values().flat_map(move |text| text.split(between));
        words.map(|word| word.trim_end_matches('/')).filter(|word| word.len() > 4).collect()
    });
    let stem = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
    words.contains(name) || stem.is_some_and(|stem| words.contains(stem))
}

/// Alerts that no page names.
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
