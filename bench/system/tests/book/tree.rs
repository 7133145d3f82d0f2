//! The files of the project, and where its programs are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// More folders like the root of the project.
const TREES: &str = "CXLOE_BOOK_TREES";
/// More folders with programs.
const PROGRAMS: &str = "CXLOE_BOOK_PROGRAMS";

/// Folders in which nothing is the project's own.
const FOREIGN: [&str; 5] = ["target", ".git", "corpus", "artifacts", "node_modules"];

/// The root of the project.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn folders(variable: &str) -> Vec<PathBuf> {
    std::env::var_os(variable).map(|list| std::env::split_paths(&list).collect()).unwrap_or_default()
}

/// The root of the project and what else is looked in.
pub fn trees() -> Vec<PathBuf> {
    std::iter::once(root().to_path_buf()).chain(folders(TREES)).collect()
}

/// Every program of this name, the one of this build first.
pub fn programs(name: &str) -> Vec<PathBuf> {
    let own = cxloe_lab::program(name).unwrap_or_else(|error| panic!("{error}"));
    let others = folders(PROGRAMS).into_iter().map(|folder| folder.join(name)).filter(|path| path.exists());
    std::iter::once(own).chain(others).collect()
}

/// Text files of the trees that are not documentation: sources, scripts, dashboards, by path.
pub fn sources() -> &'static BTreeMap<PathBuf, String> {
    static SOURCES: OnceLock<BTreeMap<PathBuf, String>> = OnceLock::new();
    SOURCES.get_or_init(|| {
        let mut sources = BTreeMap::new();
        for tree in trees() {
            gather(&tree, &mut sources, false);
        }
        sources
    })
}

/// All pages of documentation, from the root of the project.
pub fn documents() -> BTreeSet<PathBuf> {
    let mut documents = BTreeSet::new();
    for tree in trees() {
        let mut found = BTreeMap::new();
        gather(&tree, &mut found, true);
        documents
            .extend(found.into_keys().filter_map(|path| Some(path.strip_prefix(&tree).ok()?.to_path_buf())));
    }
    documents
}

/// Text files below a folder: the pages of documentation, or all others.
fn gather(folder: &Path, sources: &mut BTreeMap<PathBuf, String>, pages: bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            if !FOREIGN.iter().any(|foreign| *foreign == name) {
                gather(&path, sources, pages);
            }
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "md") == pages {
            // What is no text is no source.
            if let Ok(text) = fs::read_to_string(&path) {
                sources.insert(path, text);
            }
        }
    }
}

/// Whether a path from the root is there, in any tree.
pub fn has(path: &str) -> bool {
    trees().iter().any(|tree| tree.join(path).exists())
}
