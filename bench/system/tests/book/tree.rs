//! Files of the project, and folders of its programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Environment variable with further folders that are laid out like the root of the project.
const TREES: &str = "CXLOE_BOOK_TREES";
/// Environment variable with further folders that contain programs.
const PROGRAMS: &str = "CXLOE_BOOK_PROGRAMS";

/// Folders that contain no files of the project.
const FOREIGN: [&str; 5] = ["target", ".git", "corpus", "artifacts", "node_modules"];

pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn folders(variable: &str) -> Vec<PathBuf> {
    std::env::var_os(variable).map(|list| std::env::split_paths(&list).collect()).unwrap_or_default()
}

/// Root of the project, and further folders to search.
pub fn trees() -> Vec<PathBuf> {
    std::iter::once(root().to_path_buf()).chain(folders(TREES)).collect()
}

/// Paths of every program of this name, that of this build first.
pub fn programs(name: &str) -> Vec<PathBuf> {
    let own = cxloe_lab::program(name).unwrap_or_else(|error| panic!("{error}"));
    let others = folders(PROGRAMS).into_iter().map(|folder| folder.join(name)).filter(|path| path.exists());
    std::iter::once(own).chain(others).collect()
}

/// Content by path of all text files that are not documentation: sources, scripts, dashboards.
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

/// Paths of all pages of documentation, relative to the root of the project.
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

/// Collects text files below a folder: pages of documentation if `pages`, or else all others.
fn gather(folder: &Path, sources: &mut BTreeMap<PathBuf, String>, pages: bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            if !FOREIGN.iter().any(|foreign| *foreign == name) {
                gather(&path, sources, pages);
            }
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "md") == pages {
            // Files that are not UTF-8 are skipped.
            if let Ok(text) = fs::read_to_string(&path) {
                sources.insert(path, text);
            }
        }
    }
}

/// True if a path relative to the root exists in any of the [`trees`].
pub fn has(path: &str) -> bool {
    trees().iter().any(|tree| tree.join(path).exists())
}
