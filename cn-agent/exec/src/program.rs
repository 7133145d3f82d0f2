//! Checks that a program can be served: the dynamic linker has to load a library into it.
//!
//! For a script, its interpreter is checked. A program that is linked statically, is built for other
//! machines, or is set-user-ID or the like (for which the dynamic linker ignores libraries that the caller
//! names) is refused before anything is started.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access, getegid, geteuid};

use super::sanitizer;

/// Maximum number of nested interpreters, each of which is a script itself; the kernel has the same limit.
const INTERPRETERS_MAX: usize = 4;
/// Bytes of a script's first line that the kernel reads.
const LINE_MAX: usize = 256;

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;

#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("no program {0:?} in PATH; name it with its folder, as in ./program")]
    NotFound(OsString),
    #[error("{} cannot be run: {source}", .path.display())]
    Unusable { path: PathBuf, source: io::Error },
    #[error(
        "{} is linked statically, so it cannot use remote memory; \
         run a dynamically linked build of it", .0.display()
    )]
    Static(PathBuf),
    /// The program is linked against musl. The preloaded library interposes functions of the GNU C library
    /// only.
    #[error(
        "{} is linked against musl ({}), and remote memory is for programs of the GNU C library; run a build of it \
         for that", .path.display(), .linker
    )]
    Musl {
        path: PathBuf,
        /// Path of the program's dynamic linker.
        linker: String,
    },
    #[error("{} is not a program for this machine ({}); remote memory is for 64-bit ELF programs and scripts", .path.display(), .what)]
    Foreign {
        path: PathBuf,
        /// Kind of the file, in words for the message.
        what: &'static str,
    },
    /// The program runs with the rights of the file's owner or group, so the dynamic linker ignores the
    /// library.
    #[error(
        "{} runs with its owner's rights (set-user-ID or set-group-ID), and such programs load no library of the \
         caller's; run it as that user", .0.display()
    )]
    OtherRights(PathBuf),
    #[error(
        "{} is built with {what}, whose runtime does not work beside remote memory: it ends the program or finds nothing; run it \
         without `cn-agent exec`, or a build without the sanitizer", .path.display()
    )]
    Sanitized { path: PathBuf, what: &'static str },
    /// Scripts that interpret scripts beyond the limit.
    #[error("{} is interpreted by a script which is interpreted by a script, and so on", .0.display())]
    Endless(PathBuf),
}

/// Finds the program `name`, as a shell does, and checks that it can be served.
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, ProgramError> {
    let found = if name.as_bytes().contains(&b'/') {
        Some(PathBuf::from(name))
    } else {
        let folders = path.map(std::env::split_paths).into_iter().flatten();
        folders.map(|folder| folder.join(name)).find(|file| file.is_file() && may_run(file).is_ok())
    };
    let found = found.ok_or_else(|| ProgramError::NotFound(name.into()))?;
    examine(&found)?;
    Ok(found)
}

/// Whether this user may execute the file but not read it.
pub(crate) fn is_executable_only(path: &Path) -> bool {
    may_run(path).is_ok() && access(path, AccessFlags::R_OK).is_err()
}

fn may_run(path: &Path) -> io::Result<()> {
    access(path, AccessFlags::X_OK).map_err(io::Error::from)
}

/// Does the same as [`examine_below`] for a process whose root folder is `/`.
///
/// # Errors
/// Any [`ProgramError`] but [`ProgramError::NotFound`].
pub fn examine(path: &Path) -> Result<(), ProgramError> {
    examine_below(Path::new("/"), path)
}

/// Checks that the program at `path` can be served, for a process whose root folder is `root`: interpreters of scripts
/// are looked for below it.
///
/// # Errors
/// Any [`ProgramError`] but [`ProgramError::NotFound`].
pub fn examine_below(root: &Path, path: &Path) -> Result<(), ProgramError> {
    let mut file = path.to_path_buf();
    for _ in 0..=INTERPRETERS_MAX {
        let unusable = |source| ProgramError::Unusable { path: file.clone(), source };
        may_run(&file).map_err(unusable)?;
        // Without the flag, opening a named pipe waits until somebody writes to it.
        let mut open =
            File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&file).map_err(unusable)?;
        let about = open.metadata().map_err(unusable)?;
        if !about.is_file() {
            let kind =
                if about.is_dir() { io::ErrorKind::IsADirectory } else { io::ErrorKind::PermissionDenied };
            return Err(unusable(kind.into()));
        }
        let mut head = Vec::with_capacity(LINE_MAX);
        open.by_ref().take(LINE_MAX as u64).read_to_end(&mut head).map_err(unusable)?;
        if let Some(interpreter) = interpreter(&head) {
            file = root.join(interpreter.strip_prefix("/").unwrap_or(&interpreter));
            continue;
        }
        let other_user = about.mode() & SET_USER != 0 && about.uid() != geteuid().as_raw();
        let other_group = about.mode() & SET_GROUP != 0 && about.gid() != getegid().as_raw();
        if other_user || other_group {
            return Err(ProgramError::OtherRights(file));
        }
        return match linkage(&head, &mut open).map_err(unusable)? {
            Linkage::Dynamic(linker) if linker.contains(MUSL) => {
                Err(ProgramError::Musl { path: file, linker })
            }
            Linkage::Dynamic(_) => match sanitizer::of(&mut open) {
                Some(what) => Err(ProgramError::Sanitized { path: file, what }),
                None => Ok(()),
            },
            Linkage::Static => Err(ProgramError::Static(file)),
            Linkage::Foreign(what) => Err(ProgramError::Foreign { path: file, what }),
        };
    }
    Err(ProgramError::Endless(path.into()))
}

/// Interpreter of a script whose first bytes are `head`.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = line.trim_ascii_start().split(|byte| byte.is_ascii_whitespace()).next()?;
    (!name.is_empty()).then(|| OsString::from_vec(name.to_vec()).into())
}

#[derive(Debug, PartialEq, Eq)]
enum Linkage {
    /// Linked by the dynamic linker at this path.
    Dynamic(String),
    Static,
    Foreign(&'static str),
}

/// Value of `e_machine` in ELF files for this machine.
const MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
const ENTRY: usize = 56;
/// Part of the names of musl's dynamic linkers.
const MUSL: &str = "ld-musl";
const PATH_MAX: u64 = 4096;
/// Kind of an ELF file that is not a 64-bit program for this machine, but that the kernel may execute all the
/// same.
pub(crate) const FOREIGN_ELF: &str = "ELF of another kind";
/// `PT_INTERP`: the program header that names the dynamic linker.
const INTERPRETED: u32 = 3;

/// Linkage of an ELF file whose first bytes are `head` ("System V ABI", chapters 4 and 5).
fn linkage(head: &[u8], file: &mut (impl Read + Seek)) -> io::Result<Linkage> {
    if !head.starts_with(b"\x7fELF") || head.len() < 64 {
        return Ok(Linkage::Foreign("neither ELF nor a script"));
    }
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    if head[4] != 2 || head[5] != 1 || half(18) != MACHINE {
        return Ok(Linkage::Foreign(FOREIGN_ELF));
    }
    let place = u64::from_le_bytes(head[32..40].try_into().unwrap_or_default());
    let (size, count) = (usize::from(half(54)), half(56));
    if size < ENTRY {
        return Ok(Linkage::Foreign("ELF without program headers"));
    }
    file.seek(SeekFrom::Start(place))?;
    let mut entry = vec![0; size];
    for _ in 0..count {
        if file.read_exact(&mut entry).is_err() {
            return Ok(Linkage::Foreign("ELF that ends too early"));
        }
        if entry[..4] == INTERPRETED.to_le_bytes() {
            let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap_or_default());
            let (at, length) = (word(8), word(32).min(PATH_MAX));
            let mut path = Vec::new();
            file.seek(SeekFrom::Start(at))?;
            file.take(length).read_to_end(&mut path)?;
            let end = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
            return Ok(Linkage::Dynamic(String::from_utf8_lossy(&path[..end]).into_owned()));
        }
    }
    Ok(Linkage::Static)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use proptest::prelude::*;

    use super::*;

    fn script(folder: &Path, name: &str, text: &[u8], mode: u32) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// An ELF header for this machine with program headers of these types.
    fn elf(types: &[u32]) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        file[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[54..56].copy_from_slice(&(ENTRY as u16).to_le_bytes());
        file[56..58].copy_from_slice(&(types.len() as u16).to_le_bytes());
        for kind in types {
            let mut entry = [0; ENTRY];
            entry[..4].copy_from_slice(&kind.to_le_bytes());
            file.extend(entry);
        }
        file
    }

    #[test]
    fn what_the_dynamic_linker_loads_can_be_served() {
        let folder = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        examine(&own).unwrap();
        assert_eq!(find(own.as_os_str(), None).unwrap(), own);
        let line = format!("#! {}  -x\nexit\n", own.display());
        let outer = script(folder.path(), "outer", line.as_bytes(), 0o755);
        examine(&outer).unwrap();
        assert_eq!(find(OsStr::new("outer"), Some(folder.path().as_os_str())).unwrap(), outer);
    }

    #[test]
    fn programs_of_musl_are_detected_by_their_dynamic_linker() {
        let folder = tempfile::tempdir().unwrap();
        for (linker, served) in [("/lib/ld-musl-x86_64.so.1", false), ("/lib64/ld-linux-x86-64.so.2", true)] {
            let mut file = elf(&[6, 3]);
            let (at, last) = (file.len() as u64, file.len() - ENTRY);
            file[last + 8..last + 16].copy_from_slice(&at.to_le_bytes());
            file[last + 32..last + 40].copy_from_slice(&(linker.len() as u64 + 1).to_le_bytes());
            file.extend(linker.bytes().chain([0]));
            let found = examine(&script(folder.path(), "program", &file, 0o755));
            assert_eq!(found.is_ok(), served, "{linker}: {found:?}");
            assert!(served || found.unwrap_err().to_string().contains(linker));
        }
    }

    #[test]
    fn unservable_programs_are_distinguished() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let refused =
            |name: &str, bytes: &[u8], mode| examine(&script(folder, name, bytes, mode)).unwrap_err();
        assert!(matches!(refused("static", &elf(&[1, 2]), 0o755), ProgramError::Static(_)));
        assert!(matches!(refused("text", b"hello", 0o755), ProgramError::Foreign { .. }));
        assert!(matches!(refused("empty", b"", 0o755), ProgramError::Foreign { .. }));
        assert!(matches!(refused("data", &elf(&[3]), 0o644), ProgramError::Unusable { .. }));
        let mut narrow = elf(&[3]);
        narrow[4] = 1;
        assert!(matches!(refused("narrow", &narrow, 0o755), ProgramError::Foreign { .. }));
        let own = folder.join("self");
        let line = format!("#!{}\n", own.display());
        assert!(matches!(refused("self", line.as_bytes(), 0o755), ProgramError::Endless(_)));
        assert!(matches!(examine(folder), Err(ProgramError::Unusable { .. })));
        let none = find(OsStr::new("no-such-program"), Some(folder.as_os_str()));
        assert!(matches!(none, Err(ProgramError::NotFound(_))));
        examine(&script(folder, "dynamic", &elf(&[6, 3]), 0o755)).unwrap();
        if geteuid().is_root() {
            let other = script(folder, "other", &elf(&[3]), 0o755);
            std::os::unix::fs::chown(&other, Some(12345), None).unwrap();
            std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o4755)).unwrap();
            assert!(matches!(examine(&other), Err(ProgramError::OtherRights(_))));
        }
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mkfifo(&pipe, Mode::from_bits_truncate(0o755)).unwrap();
        let (tell, examined) = mpsc::channel();
        thread::spawn(move || tell.send(examine(&pipe)));
        let found = examined.recv_timeout(Duration::from_secs(10)).expect("it is examined");
        assert!(matches!(found, Err(ProgramError::Unusable { .. })), "{found:?}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_examined(bytes in prop::collection::vec(any::<u8>(), 0..400), like_elf: bool) {
            let mut file = bytes;
            if like_elf && file.len() >= 64 {
                file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
                file[18..20].copy_from_slice(&MACHINE.to_le_bytes());
            }
            let head = file[..file.len().min(LINE_MAX)].to_vec();
            let _ = interpreter(&head);
            prop_assert!(linkage(&head, &mut Cursor::new(file)).is_ok() || like_elf);
        }
    }
}
