//! Files that nobody but their owner reads: written as a whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, chown};
use std::path::Path;

/// What to do where there is a file of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Leave it, and say so by [`io::ErrorKind::AlreadyExists`].
    Stays,
    /// Put the new one in its place.
    Goes,
}

/// Writes `text` to `path`, with mode 0600. The folder is made if there is none. Root may write it for a daemon that runs
/// as another user: it belongs to whom its folder belongs to.
///
/// # Errors
/// What the system said.
pub fn write_private(path: &Path, text: &str, existing: Existing) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let draft = path.with_extension(format!("new-{}", std::process::id()));
    drop(fs::remove_file(&draft));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    let (of, own) = (fs::metadata(folder)?, file.metadata()?);
    if own.uid() == 0 && of.uid() != 0 {
        chown(&draft, Some(of.uid()), Some(of.gid()))?;
    }
    match existing {
        Existing::Goes => fs::rename(&draft, path)?,
        Existing::Stays => {
            // A link fails if somebody was faster.
            let linked = fs::hard_link(&draft, path);
            fs::remove_file(&draft)?;
            linked?;
        }
    }
    File::open(folder)?.sync_all()
}
