//! Files that hold keys, tokens or other users' memory: created with mode 0600, and refused if others than their
//! owner may read or write them. All daemons and commands create and open such files through this crate only.
//!
//! | function | for |
//! |---|---|
//! | [`open`] | a file that stays open, as a pool or a store |
//! | [`read`], [`read_to_string`] | a file that is read once, as a key |
//! | [`write`](fn@write) | a file that is replaced as a whole, as a state or a certificate |

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

/// Mode bits of all users but the owner.
const OTHERS: u32 = 0o077;
/// Mode bit by which the group may read.
const GROUP_READS: u32 = 0o040;
/// Environment variable in which systemd passes the folder of a service's credentials.
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";

/// Refusal of a file that users other than its owner may read or write; wrapped in an [`io::Error`] by this crate.
#[derive(Debug, thiserror::Error)]
#[error(
    "others than its owner may open {path} (mode {mode:o}): {given}chmod 600 {path}; replace the keys in it if somebody may have \
     read them",
    path = .path.display(),
    given = .give_to.map(|user| format!("chown {user} {}; ", .path.display())).unwrap_or_default()
)]
pub struct WideFile {
    pub path: PathBuf,
    pub mode: u32,
    /// User id of this process if the file has another owner: after a `chmod` alone, the process could not open the
    /// file. `None` for the owner and for root.
    pub give_to: Option<u32>,
}

/// Checks that only the owner of `file` may read or write it; `path` names the file in the error.
///
/// # Errors
/// [`WideFile`] as [`io::Error`], or the system's error.
pub fn check(file: &File, path: &Path) -> io::Result<()> {
    let metadata = file.metadata()?;
    let mode = metadata.mode() & 0o777;
    // systemd gives a service's user read access to credentials by an access control list, whose mask appears as the
    // group's mode bits.
    let credential = std::env::var_os(CREDENTIALS_VARIABLE).is_some_and(|folder| path.starts_with(folder));
    let wide = mode & OTHERS & !if credential { GROUP_READS } else { 0 };
    // Only regular files are checked: devices and pipes, such as a shell's `<(command)`, hold no stored data.
    match metadata.is_file() && wide != 0 {
        true => {
            let user = geteuid().as_raw();
            // Root may open a file of any owner, so a change of the owner is not advised.
            let give_to = (user != 0 && user != metadata.uid()).then_some(user);
            Err(io::Error::other(WideFile { path: path.into(), mode, give_to }))
        }
        false => Ok(()),
    }
}

/// Refusal contained in `error`; `None` for other errors.
pub fn wide(error: &io::Error) -> Option<&WideFile> {
    error.get_ref()?.downcast_ref()
}

/// Opens the file at `path` with `options`; if it is created, its mode is 0600.
///
/// # Errors
/// [`WideFile`] as [`io::Error`], or the system's error.
pub fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let file = options.clone().mode(0o600).open(path)?;
    check(&file, path)?;
    Ok(file)
}

/// Content of the file at `path`.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, OpenOptions::new().read(true))?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Content of the file at `path`, which is text.
///
/// # Errors
/// As [`open`], and [`io::ErrorKind::InvalidData`] if it is no UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Behaviour of [`write`](fn@write) if the file exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// The existing file stays; the call returns [`io::ErrorKind::AlreadyExists`].
    Keep,
    Replace,
}

/// Writes `content` to `path` atomically; when this returns, it is on disk. The folder is created if there is none. If
/// root writes for a daemon that runs as another user, the file gets the owner of its folder.
///
/// # Errors
/// The system's error.
pub fn write(path: &Path, content: &[u8], existing: Existing) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".new-{}", std::process::id()));
    let draft = PathBuf::from(draft);
    // A crashed process with the same id may have left this file.
    drop(fs::remove_file(&draft));
    let written = || {
        let mut file = open(&draft, OpenOptions::new().write(true).create_new(true))?;
        file.write_all(content)?;
        let (of, own) = (fs::metadata(folder)?, file.metadata()?);
        if own.uid() == 0 && of.uid() != 0 {
            chown(&draft, Some(of.uid()), Some(of.gid()))?;
        }
        file.sync_all()?;
        match existing {
            Existing::Replace => fs::rename(&draft, path),
            // The link fails if another process has created the file meanwhile; a rename would replace that file.
            Existing::Keep => fs::hard_link(&draft, path).and_then(|()| fs::remove_file(&draft)),
        }
    };
    written().inspect_err(|_| drop(fs::remove_file(&draft)))?;
    // The new name is certain to be on disk only after the folder has been synchronised.
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn new_files_are_their_owners_and_wide_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        open(&path, &options).unwrap();
        assert_eq!(mode(&path), 0o600);
        for wide_mode in [0o604, 0o602, 0o640, 0o620, 0o644, 0o666] {
            set_mode(&path, wide_mode);
            let error = open(&path, &options).unwrap_err();
            assert_eq!(wide(&error).unwrap().mode, wide_mode);
            let said = error.to_string();
            assert!(said.contains(&format!("chmod 600 {}", path.display())), "{said}");
            assert!(wide(&read(&path).unwrap_err()).is_some());
        }
        for narrow in [0o600, 0o400, 0o700] {
            set_mode(&path, narrow);
            read(&path).unwrap();
        }
        assert!(wide(&read(Path::new("/nonexistent/pool")).unwrap_err()).is_none());
    }

    #[test]
    fn a_written_file_is_whole_and_its_owners() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/state");
        write(&path, b"one", Existing::Keep).unwrap();
        let taken = write(&path, b"two", Existing::Keep).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(read_to_string(&path).unwrap(), "one");
        // A file with a wider mode is replaced by one with mode 0600.
        set_mode(&path, 0o644);
        write(&path, b"three", Existing::Replace).unwrap();
        assert_eq!((mode(&path), read(&path).unwrap()), (0o600, b"three".to_vec()));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no draft is left");
    }
}
