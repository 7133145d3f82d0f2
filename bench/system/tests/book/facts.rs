//! Check of lists and figures of the book against their sources: commands, events, routes, packages, defaults
//! of options.

use std::collections::BTreeSet;

use cxloe_fabric::model::EventKind;

use crate::page::Page;
use crate::{Faults, help, tree};

/// Programs, in the order of the page of commands.
const PROGRAMS: [&str; 4] = ["gmm", "mn-server", "cn-agent", "cxloe-bench"];
/// Subcommands that every program has; the page names them once.
const EVERYWHERE: [&str; 3] = ["help", "completions", "man"];

/// Rows of the page of commands that differ from the programs' help, and rows that are missing.
pub fn commands(page: &Page) -> Faults {
    let mut rows = Vec::new();
    for program in PROGRAMS {
        below(&mut vec![program.to_owned()], &mut rows);
    }
    let programs = rows.iter().map(String::as_str).collect::<BTreeSet<_>>();
    let is_row = |line: &str| PROGRAMS.iter().any(|program| line.starts_with(&format!("| `{program} ")));
    let written = page.lines.iter().map(|line| line.text.as_str()).filter(|line| is_row(line));
    let written = written.filter(|line| line.matches('|').count() == 3).collect::<BTreeSet<_>>();
    let missing = programs.difference(&written).map(|row| format!("missing: {row}"));
    let wrong = written.difference(&programs).map(|row| format!("in no program: {row}"));
    missing.chain(wrong).map(|why| format!("{}: {why}", page.path.display())).collect()
}

/// Adds a row for each command below `path`.
fn below(path: &mut Vec<String>, rows: &mut Vec<String>) {
    let words: Vec<&str> = path.iter().map(String::as_str).collect();
    for (name, about) in help::abouts(&words) {
        if EVERYWHERE.contains(&name.as_str()) {
            continue;
        }
        path.push(name);
        rows.push(format!("| `{}` | {} |", path.join(" "), about.replace('|', "\\|")));
        below(path, rows);
        path.pop();
    }
}

/// Kinds of events that the page does not list, and listed ones that do not exist.
pub fn events(page: &Page) -> Faults {
    let rows = page.lines.iter().skip_while(|line| !line.text.starts_with("## Events"));
    let cells = rows.filter_map(|line| line.text.strip_prefix("| `")?.split(" | ").next());
    let listed: BTreeSet<&str> =
        cells.flat_map(|cell| cell.split('`')).filter(|part| part.contains('_')).collect();
    let kinds = BTreeSet::from(EventKind::LABELS);
    kinds.symmetric_difference(&listed).map(|kind| format!("{}: event {kind}", page.path.display())).collect()
}

/// Routes of the manager that the page does not name in full.
pub fn routes(page: &Page) -> Faults {
    let named: BTreeSet<String> = page
        .spans()
        .into_iter()
        .filter_map(|(_, span)| Some(span.split_once("/v1/")?.1.split('?').next()?.to_owned()))
        .collect();
    let mut faults = BTreeSet::new();
    for (path, text) in tree::sources() {
        if !path.to_string_lossy().contains("gmm/src/server/routes/") {
            continue;
        }
        // The tests at the end of a file are skipped, because their paths may be invented.
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        for rest in text.split("\"/v1/").skip(1) {
            let route = rest.split('"').next().unwrap_or_default();
            if !route.contains(' ') && !named.contains(route) {
                faults.insert(format!("{}: no row for /v1/{route}", page.path.display()));
            }
        }
    }
    faults.into_iter().collect()
}

/// Packages that are built and that the page does not name.
pub fn packages(page: &Page) -> Faults {
    let script = tree::sources().iter().find(|(path, _)| path.ends_with("deploy/debian/build"));
    let built = script.map(|(_, text)| text.as_str()).unwrap_or_default().lines();
    let names = built.filter_map(|line| line.strip_prefix("pack ")?.split(' ').next());
    let names: Vec<String> =
        names.map(|name| name.trim_matches('"').split('$').next().unwrap_or_default().into()).collect();
    let cells = page.lines.iter().filter_map(|line| line.text.strip_prefix("| `")?.split(" | ").next());
    // The name of a library's package ends with a version number, which is removed before the comparison.
    let listed: BTreeSet<&str> = cells
        .flat_map(|cell| cell.split('`'))
        .map(|name| name.trim_end_matches(|c: char| c.is_ascii_digit()))
        .collect();
    let unnamed = names.iter().filter(|name| !listed.contains(name.as_str()));
    let faults: Faults = unnamed.map(|name| format!("{}: package {name}", page.path.display())).collect();
    if names.is_empty() { vec!["deploy/debian/build packs nothing".into()] } else { faults }
}

/// Options for which the page names a default, as in `--pool-keep` (1m), that no program has.
pub fn defaults(page: &Page) -> Faults {
    let mut faults = Faults::new();
    for line in page.prose() {
        for rest in line.text.split("`--").skip(1) {
            let Some((name, after)) = rest.split_once("` (") else { continue };
            let value = after.split([')', ',', ';']).next().unwrap_or_default();
            let value = value.replace(" seconds", "s").replace(" minutes", "m").replace(" minute", "m");
            let value = value.replace(' ', "");
            if name.contains(['`', ' ']) || !value.starts_with(|c: char| c.is_ascii_digit()) {
                continue;
            }
            let known = help::defaults(&format!("--{name}"));
            if !known.contains(&value) {
                faults.push(format!("{}: --{name} ({value}), and its default is {known:?}", line.place));
            }
        }
    }
    faults
}
