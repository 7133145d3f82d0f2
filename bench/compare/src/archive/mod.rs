//! Archive of a comparison: one file with all that others need to cite, check and repeat it.
//!
//! ```text
//!   Comparison, trials, samples --.
//!   Journal: commands, outputs ---+--> contents --> Archive: names and bytes --> sums --> ustar --> gzip --> FILE
//!   programs, Facts, conditions --'                    |
//!                       two archives --> beside <------'--- checked by its sums when it is read
//! ```
//!
//! The same content gives the same bytes: entries are sorted, and have neither owner nor time. It is written beside its
//! place and then renamed, so that there is either a whole archive or none.

pub mod beside;
mod contents;
mod error;
mod programs;
mod readme;
mod record;
mod redaction;
mod shell;
mod ustar;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};

pub use contents::ArchivedRun;
pub use error::ArchiveError;
pub use programs::{ProgramVersion, versions};
pub use record::{FORM, RunRecord};
pub use redaction::Redaction;

/// Folder in which all files of an archive are.
const FOLDER: &str = "cxloe-compare";
/// File with the SHA-256 of all others, in the form of sha256sum(1).
const SUMS: &str = "SHA256SUMS";
/// Maximum size of an unpacked archive, in bytes: many times that of a long comparison.
const UNPACKED_MAX: u64 = 512 << 20;

/// Files of an archive, by their names without the common folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Archive {
    files: BTreeMap<String, Vec<u8>>,
}

impl Archive {
    fn add(&mut self, name: impl Into<String>, content: impl Into<Vec<u8>>) {
        self.files.insert(name.into(), content.into());
    }

    /// Names of all files, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Text of a file; `None` if there is no such file, or if it is no text.
    pub fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.files.get(name)?).ok()
    }

    /// Writes the archive to `path`, which is replaced only by the whole archive.
    ///
    /// # Errors
    /// Returns [`ArchiveError::Write`]; a file that was at `path` before is then unchanged.
    pub fn write(&self, path: &Path) -> Result<(), ArchiveError> {
        self.write_beside(path).map_err(|source| ArchiveError::Write { path: path.into(), source })
    }

    fn write_beside(&self, path: &Path) -> io::Result<()> {
        let mut beside = file_beside(path)?;
        let mut packed = GzEncoder::new(io::BufWriter::new(beside.as_file_mut()), Compression::default());
        let sums = self.sums();
        // SHA256SUMS has its place in the order like any other file.
        let mut all: BTreeMap<&str, &[u8]> =
            self.files.iter().map(|(name, content)| (name.as_str(), content.as_slice())).collect();
        all.insert(SUMS, sums.as_bytes());
        for (name, content) in all {
            ustar::write_file(&mut packed, &format!("{FOLDER}/{name}"), content)?;
        }
        ustar::write_end(&mut packed)?;
        packed.finish()?.flush()?;
        beside.as_file().sync_all()?;
        beside.persist(path).map_err(|failed| failed.error)?;
        Ok(())
    }

    /// Reads an archive, and compares all of its files with their checksums.
    ///
    /// # Errors
    /// Returns [`ArchiveError`] if the file cannot be read, has another form, or differs from its checksums.
    pub fn read(path: &Path) -> Result<Archive, ArchiveError> {
        let failed = |source| ArchiveError::Read { path: path.into(), source };
        let foreign = |why: String| ArchiveError::Foreign { path: path.into(), why };
        let file = File::open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        let unpacked = GzDecoder::new(io::BufReader::new(file)).take(UNPACKED_MAX).read_to_end(&mut bytes);
        unpacked.map_err(|error| match error.kind() {
            // Either it was never packed, or a part of it is missing.
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                foreign(format!("it cannot be unpacked ({error})"))
            }
            _ => failed(error),
        })?;
        let mut archive = Archive::default();
        for (name, content) in ustar::files(&bytes).map_err(foreign)? {
            let name =
                name.trim_start_matches("./").strip_prefix(FOLDER).and_then(|rest| rest.strip_prefix('/'));
            let name = name.ok_or_else(|| foreign(format!("a file of it is not in {FOLDER}/")))?;
            archive.add(name, content);
        }
        archive.check().map_err(|why| ArchiveError::Changed { path: path.into(), why })?;
        archive.files.remove(SUMS);
        Ok(archive)
    }

    /// Checksums of all files, a line each.
    fn sums(&self) -> String {
        let files = self.files.iter().filter(|(name, _)| *name != SUMS);
        files.map(|(name, content)| format!("{}  {name}\n", sum(content))).collect()
    }

    /// Compares all files with the checksums in the archive. The error names a file.
    fn check(&self) -> Result<(), String> {
        let sums = self.text(SUMS).ok_or_else(|| format!("{SUMS} is missing"))?;
        let listed: BTreeMap<&str, &str> =
            sums.lines().filter_map(|line| line.split_once("  ")).map(|(sum, name)| (name, sum)).collect();
        if let Some(name) = listed.keys().find(|name| !self.files.contains_key(**name)) {
            return Err(format!("{name} is missing"));
        }
        for (name, content) in self.files.iter().filter(|(name, _)| *name != SUMS) {
            match listed.get(name.as_str()) {
                None => return Err(format!("{name} has no checksum in {SUMS}")),
                Some(listed) if *listed != sum(content) => {
                    return Err(format!("{name} differs from its checksum"));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// Fails if an archive could not be written to `path`, before minutes are spent on measuring.
///
/// # Errors
/// Returns [`ArchiveError::Write`].
pub fn check_place(path: &Path) -> Result<(), ArchiveError> {
    let place = match path.is_dir() {
        true => Err(io::ErrorKind::IsADirectory.into()),
        false => file_beside(path).map(drop),
    };
    place.map_err(|source| ArchiveError::Write { path: path.into(), source })
}

/// Empty file beside `path`, which is removed unless it takes that place.
fn file_beside(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The rights are those of an ordinary file: the umask takes away from them.
    let rights = Permissions::from_mode(0o666);
    tempfile::Builder::new().prefix(".cxloe-compare-").permissions(rights).tempfile_in(folder)
}

/// SHA-256 in hexadecimal digits.
pub fn sum(content: &[u8]) -> String {
    let digest: [u8; 32] = Sha256::digest(content).into();
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive() -> Archive {
        let mut archive = Archive::default();
        archive.add("b/two.txt", "2\n");
        archive.add("README.md", "# One\n");
        archive
    }

    /// Packs these files without any care.
    fn packed(files: &[(&str, &str)]) -> Vec<u8> {
        let mut out = GzEncoder::new(Vec::new(), Compression::default());
        for (name, content) in files {
            ustar::write_file(&mut out, name, content.as_bytes()).unwrap();
        }
        ustar::write_end(&mut out).unwrap();
        out.finish().unwrap()
    }

    #[test]
    fn what_is_written_is_read_and_is_the_same_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["one.tar.gz", "two.tar.gz"].map(|name| folder.path().join(name));
        for path in &paths {
            archive().write(path).unwrap();
            assert_eq!(Archive::read(path).unwrap(), archive());
        }
        let [one, two] = paths.map(|path| std::fs::read(path).unwrap());
        assert_eq!(one, two);
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 2, "nothing is left beside them");
        assert_eq!(archive().names().collect::<Vec<_>>(), ["README.md", "b/two.txt"]);
    }

    #[test]
    fn the_usual_programs_check_it() {
        let folder = tempfile::tempdir().unwrap();
        archive().write(&folder.path().join("x.tar.gz")).unwrap();
        let script = "tar -xzf x.tar.gz && cd cxloe-compare && sha256sum --strict -c SHA256SUMS";
        let checked = std::process::Command::new("sh")
            .args(["-c", script])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(checked.status.success(), "{checked:?}");
        assert_eq!(String::from_utf8_lossy(&checked.stdout), "README.md: OK\nb/two.txt: OK\n");
    }

    #[test]
    fn what_was_changed_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.tar.gz");
        let refused = |files: &[(&str, &str)]| {
            std::fs::write(&path, packed(files)).unwrap();
            Archive::read(&path).unwrap_err().to_string()
        };
        let sums = archive().sums();
        let sums = ("cxloe-compare/SHA256SUMS", sums.as_str());
        let (readme, two) = (("cxloe-compare/README.md", "# One\n"), ("cxloe-compare/b/two.txt", "2\n"));
        for (files, why) in [
            (&[sums, readme, ("cxloe-compare/b/two.txt", "3\n")][..], "b/two.txt differs from its checksum"),
            (&[sums, readme][..], "b/two.txt is missing"),
            (&[sums, readme, two, ("cxloe-compare/more", "")][..], "more has no checksum"),
            (&[readme, two][..], "SHA256SUMS is missing"),
            (&[readme, ("elsewhere/x", "")][..], "is not in cxloe-compare/"),
        ] {
            let error = refused(files);
            assert!(error.contains(why), "{why}: {error}");
        }
        let whole = packed(&[sums, readme, two]);
        for bytes in [&whole[..whole.len() / 2], &b"not packed"[..]] {
            std::fs::write(&path, bytes).unwrap();
            let error = Archive::read(&path).unwrap_err();
            assert!(matches!(error, ArchiveError::Foreign { .. }), "{error}");
        }
        assert!(matches!(Archive::read(folder.path()), Err(ArchiveError::Read { .. })));
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("none/x.tar.gz");
        assert!(check_place(&path).unwrap_err().to_string().contains("none/x.tar.gz"));
        assert!(check_place(folder.path()).is_err(), "a folder");
        let path = folder.path().join("x.tar.gz");
        check_place(&path).unwrap();
        assert!(!path.exists() && std::fs::read_dir(folder.path()).unwrap().next().is_none());
        std::fs::write(&path, "before").unwrap();
        let mut long = Archive::default();
        long.add("n".repeat(200), "");
        assert!(long.write(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"before", "it is not touched");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
