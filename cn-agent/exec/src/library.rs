//! Path of the library that is preloaded into programs.

use std::path::{Path, PathBuf};

/// File name of the library that `cn-agent exec` preloads.
pub const FILE: &str = "libcxloe_preload.so";

#[derive(Debug, thiserror::Error)]
#[error(
    "{file} is neither beside {} nor in ../lib/cxloe from there; name it with --preload, or build it: cargo build \
     --workspace", .folder.display()
)]
pub struct NoLibrary {
    file: &'static str,
    folder: PathBuf,
}

/// Finds the library by the path of the agent's program, `own`.
pub fn find(own: &Path) -> Result<PathBuf, NoLibrary> {
    find_called(own, FILE)
}

/// Finds the library `file` in the folder of `own`, where Cargo puts it, or in `../lib/cxloe`, where it is
/// installed.
pub fn find_called(own: &Path, file: &'static str) -> Result<PathBuf, NoLibrary> {
    let beside = own.parent().unwrap_or(Path::new("."));
    let places = [beside.join(file), beside.join("../lib/cxloe").join(file)];
    let found = places.into_iter().find_map(|place| place.canonicalize().ok());
    found.ok_or_else(|| NoLibrary { file, folder: beside.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_and_installed_libraries_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let own = root.join("bin/cn-agent");
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::create_dir_all(root.join("lib/cxloe")).unwrap();
        assert!(find(&own).unwrap_err().to_string().contains("--preload"));
        let installed = root.join("lib/cxloe").join(FILE);
        std::fs::write(&installed, "").unwrap();
        assert_eq!(find(&own).unwrap(), installed);
        let built = root.join("bin").join(FILE);
        std::fs::write(&built, "").unwrap();
        assert_eq!(find(&own).unwrap(), built);
    }
}
