//! Checks of the documentation against the programs: the book under `deploy/book`, and the pages beside the code.
//!
//! ```text
//!   pages --Page--> command lines ----> `--help` of the programs: do commands and options exist?
//!                   messages ---------> string literals of the sources: does any program print it?
//!                   links, includes --> files, headings
//!                   other code -------> files, make's targets, environment variables, metrics
//!                   glossary ---------> types: does it have the names of all types that two crates use?
//!   design/changing.md --recipes--> files: does each list name all places of an existing example?
//!   start/by-hand.md --its sh blocks--> bash, in namespaces of its own: do the steps work?
//! ```
//!
//! Every fault is reported with file and line, all of them in one run. If parts of the project are built in different
//! places, `CXLOE_BOOK_PROGRAMS` and `CXLOE_BOOK_TREES` name more folders to search, separated by colons.

mod commands;
mod facts;
mod glossary;
mod help;
mod messages;
mod names;
mod page;
mod recipes;
mod steps;
mod tree;

use page::Page;

/// Descriptions of errors in the documentation, each with file and line.
type Faults = Vec<String>;

/// All pages of documentation: those of the book, and those beside the code.
fn everything() -> Vec<Page> {
    let mut pages = Page::book();
    let beside = tree::documents().into_iter().filter(|path| !path.starts_with("deploy/book"));
    pages.extend(beside.map(|path| Page::load(path).expect("a page beside the code")));
    pages
}

fn none(faults: Faults) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn commands_and_options_are_those_of_the_programs() {
    none(everything().iter().flat_map(commands::faults).collect());
}

#[test]
fn every_command_is_in_the_book() {
    none(commands::unnamed(&Page::book()));
}

#[test]
fn messages_are_those_of_the_sources() {
    none(messages::invented(&Page::book()));
}

/// The page of messages must list the errors of the sources. With `CXLOE_UPDATE=1`, the test writes the page (`make
/// messages`).
#[test]
fn every_error_of_nodes_and_manager_is_in_the_book() {
    let page = Page::load("deploy/book/src/operate/messages.md").expect("the page of messages");
    let completed = messages::completed(&page);
    let present: Vec<&str> = page.lines.iter().map(|line| line.text.as_str()).collect();
    if completed == present {
        return;
    }
    if std::env::var_os("CXLOE_UPDATE").is_some() {
        let path = tree::root().join(&page.path);
        std::fs::write(&path, completed.join("\n") + "\n").expect("the page can be written");
        return;
    }
    let lacks = completed.iter().filter(|line| !present.contains(&line.as_str()));
    let gone = present.iter().filter(|line| !completed.iter().any(|kept| kept == *line));
    let lacks = lacks.map(|line| format!("not on the page: {line}"));
    none(
        lacks
            .chain(gone.map(|line| format!("no program says: {line}")))
            .chain(["run: make messages".into()])
            .collect(),
    );
}

#[test]
fn pages_links_and_included_files_are_there() {
    none(Page::faults_of_the_summary());
    none(everything().iter().flat_map(Page::broken_links).collect());
}

#[test]
fn files_targets_variables_and_metrics_exist() {
    none(everything().iter().flat_map(names::faults).collect());
}

#[test]
fn every_alert_is_in_the_book() {
    none(names::unnamed_alerts(&Page::book()));
}

#[test]
fn lists_and_defaults_are_those_of_the_programs() {
    let page = |path: &str| Page::load(format!("deploy/book/src/{path}")).expect("a page of the book");
    let mut faults = facts::commands(&page("reference/commands.md"));
    faults.extend(facts::events(&page("operate/states.md")));
    faults.extend(facts::routes(&page("reference/rest.md")));
    faults.extend(facts::packages(&page("deploy/packages.md")));
    faults.extend(everything().iter().flat_map(facts::defaults));
    none(faults);
}

#[test]
fn the_glossary_has_the_words_of_several_crates() {
    let pages = ["deploy/book/src/glossary.md", "deploy/book/src/design/words.md"];
    none(glossary::missing(&pages.map(|path| Page::load(path).expect("a page of words"))));
}

#[test]
fn lists_of_files_to_change_are_complete() {
    none(recipes::unnamed(
        &Page::load("deploy/book/src/design/changing.md").expect("the page about changes"),
    ));
}

#[test]
fn the_first_steps_work() {
    steps::run(&Page::load("deploy/book/src/start/by-hand.md").expect("the first steps"));
}
