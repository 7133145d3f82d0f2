//! Other names in the documentation: files of the tree, make's targets, environment variables, metrics, paths of the REST
//! interface.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

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
        // A pattern, as in bench/tests/*.rs, names the folder before it.
        let path = if name.len() < word.trim_end_matches(['.', '/']).len() {
            name.rsplit_once('/')?.0
        } else {
            name
        };
        return (!tree::has(path)).then(|| format!("{path} is not in the tree"));
    }
    let known = ["CXLOE_", "cxloe_", "/v1/"].iter().any(|start| name.starts_with(start));
    // "CXLOE_" by itself stands for all of them; a path ends where a name is to be put in.
    (known && name.len() > 6 && !name.ends_with('_') && !said(name)).then(|| format!("no source has {name}"))
}

/// Whether a source has the name. Metrics of daemons may be put together from their parts, a prefix among them.
fn said(name: &str) -> bool {
    static KNOWN: LazyLock<Mutex<HashMap<String, bool>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry(name.into()).or_insert_with(|| look_for(name))
}

fn look_for(name: &str) -> bool {
    let parts: Vec<&str> = ["cxloe_gmm_", "cxloe_mn_", "cxloe_cn_"]
        .iter()
        .filter_map(|prefix| name.strip_prefix(prefix))
        .chain([name])
        .flat_map(|name| [name, name.strip_suffix("_total").unwrap_or(name)])
        .collect();
    let quoted: Vec<String> = parts.iter().map(|part| format!("\"{part}")).collect();
    tree::sources().values().any(|text| text.contains(name) || quoted.iter().any(|part| text.contains(part)))
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
    for there in
        ["wire/PROTOCOL.md", "deploy/install/need.sh:12", "CXLOE_MANAGER=x", "bench/tests/*.rs", "target/x"]
    {
        assert_eq!(missing(there), None, "{there}");
    }
    for gone in
        ["wire/NOTHING.md", "deploy/nowhere/x", concat!("CXLOE", "_NOTHING"), concat!("/v1", "/nothing")]
    {
        assert!(missing(gone).is_some(), "{gone}");
    }
    assert!(has_target("quickstart") && !has_target("nothing"));
}
