//! Files as a tar archive in the form of POSIX (ustar): a header of 512 bytes for each, then its bytes, padded to 512.
//!
//! Only what an archive of results needs: plain files with short names. What is written depends on names and content
//! alone: no owner, no time, one mode.

use std::io::{self, Write};

const BLOCK: usize = 512;
/// Longest name, in bytes.
pub const NAME_MAX: usize = 100;
/// Fields of a header: place and length.
const NAME: (usize, usize) = (0, 100);
const MODE: (usize, usize) = (100, 8);
const USER: (usize, usize) = (108, 8);
const GROUP: (usize, usize) = (116, 8);
const SIZE: (usize, usize) = (124, 12);
const TIME: (usize, usize) = (136, 12);
const SUM: (usize, usize) = (148, 8);
const KIND: usize = 156;
const MAGIC: usize = 257;
const PREFIX: (usize, usize) = (345, 155);
/// Kinds of entries: a file (older programs write a zero byte), and a folder.
const FILE: [u8; 2] = [b'0', 0];
const FOLDER: u8 = b'5';

/// Writes one file. The name has at most [`NAME_MAX`] bytes.
pub fn write_file(out: &mut impl Write, name: &str, content: &[u8]) -> io::Result<()> {
    if name.len() > NAME_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("the name {name} is too long")));
    }
    let mut header = [0; BLOCK];
    header[..name.len()].copy_from_slice(name.as_bytes());
    put_octal(&mut header, MODE, 0o644);
    put_octal(&mut header, USER, 0);
    put_octal(&mut header, GROUP, 0);
    put_octal(&mut header, SIZE, content.len() as u64);
    put_octal(&mut header, TIME, 0);
    header[KIND] = FILE[0];
    header[MAGIC..MAGIC + 8].copy_from_slice(b"ustar\x0000");
    let sum = sum(&header);
    header[SUM.0..SUM.0 + SUM.1].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.write_all(&header)?;
    out.write_all(content)?;
    let padding = content.len().next_multiple_of(BLOCK) - content.len();
    out.write_all(&[0; BLOCK][..padding])
}

/// Writes the end of an archive: two blocks of zeros.
pub fn write_end(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&[0; 2 * BLOCK])
}

/// Names and contents of the files of an archive, in their order; entries of folders are skipped. The error says what
/// is wrong with `bytes`.
pub fn files(mut bytes: &[u8]) -> Result<Vec<(String, &[u8])>, String> {
    let mut found = Vec::new();
    loop {
        let Some((header, rest)) = bytes.split_first_chunk::<BLOCK>() else {
            return Err("it ends before its end mark".into());
        };
        if header.iter().all(|byte| *byte == 0) {
            return Ok(found);
        }
        if octal(header, SUM) != Some(sum(header)) {
            return Err("the sum of a header is wrong".into());
        }
        let name = name(header).ok_or("a name is no text")?;
        let size = octal(header, SIZE).and_then(|size| usize::try_from(size).ok());
        let content = size.and_then(|size| rest.get(..size)).ok_or_else(|| format!("{name} is cut off"))?;
        match header[KIND] {
            kind if FILE.contains(&kind) => found.push((name, content)),
            FOLDER => {}
            kind => return Err(format!("{name} is no plain file (kind {:?})", char::from(kind))),
        }
        bytes = rest.get(content.len().next_multiple_of(BLOCK)..).unwrap_or_default();
    }
}

/// Sum of a header's bytes, with blanks in place of the sum.
fn sum(header: &[u8; BLOCK]) -> u64 {
    let own = SUM.0..SUM.0 + SUM.1;
    let byte = |(at, byte): (usize, &u8)| u64::from(if own.contains(&at) { b' ' } else { *byte });
    header.iter().enumerate().map(byte).sum()
}

/// Writes a number in octal digits, as many as fit, and a zero byte.
fn put_octal(header: &mut [u8; BLOCK], (at, length): (usize, usize), number: u64) {
    let digits = format!("{number:0width$o}", width = length - 1);
    header[at..at + length - 1].copy_from_slice(&digits.as_bytes()[digits.len() - (length - 1)..]);
}

fn octal(header: &[u8; BLOCK], (at, length): (usize, usize)) -> Option<u64> {
    let text = std::str::from_utf8(&header[at..at + length]).ok()?;
    u64::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok()
}

fn name(header: &[u8; BLOCK]) -> Option<String> {
    let text = |(at, length): (usize, usize)| {
        let field = &header[at..at + length];
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(length);
        std::str::from_utf8(&field[..end]).ok()
    };
    let (prefix, name) = (text(PREFIX)?, text(NAME)?);
    Some(if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn written(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, content) in files {
            write_file(&mut out, name, content).unwrap();
        }
        write_end(&mut out).unwrap();
        out
    }

    #[test]
    fn what_is_written_is_read() {
        let long = "n".repeat(NAME_MAX);
        let all: [(&str, &[u8]); 3] = [("a/b", b"xyz"), ("empty", b""), (&long, &[7; 1024])];
        let bytes = written(&all);
        assert!(bytes.len().is_multiple_of(BLOCK));
        let found = files(&bytes).unwrap();
        assert_eq!(found.iter().map(|(name, content)| (name.as_str(), *content)).collect::<Vec<_>>(), all);
        assert!(write_file(&mut Vec::new(), &"n".repeat(NAME_MAX + 1), b"").is_err());
    }

    #[test]
    fn the_usual_program_reads_it_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.tar");
        std::fs::write(&path, written(&[("x/one", b"1\n"), ("x/two", b"22\n")])).unwrap();
        let mut list = Command::new("tar");
        let listed = list.arg("-tvf").arg(&path).env("LC_ALL", "C").env("TZ", "UTC").output().unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert_eq!(listed.lines().count(), 2, "{listed}");
        assert!(listed.contains("-rw-r--r-- 0/0") && listed.contains("1970-01-01"), "{listed}");
        let two = Command::new("tar").arg("-xOf").arg(&path).arg("x/two").output().unwrap();
        assert_eq!(two.stdout, b"22\n");
    }

    #[test]
    fn archives_of_the_usual_program_are_read_if_they_hold_files() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("x")).unwrap();
        std::fs::write(folder.path().join("x/one"), "1\n").unwrap();
        let tar = |name: &str| {
            let mut command = Command::new("tar");
            command.args(["--format=ustar", "-cf", name, "x"]).current_dir(folder.path());
            assert!(command.status().unwrap().success());
            std::fs::read(folder.path().join(name)).unwrap()
        };
        let bytes = tar("a.tar");
        assert_eq!(files(&bytes).unwrap(), [("x/one".to_owned(), &b"1\n"[..])]);
        std::os::unix::fs::symlink("one", folder.path().join("x/link")).unwrap();
        let error = files(&tar("b.tar")).unwrap_err();
        assert!(error.contains("no plain file"), "{error}");
    }

    #[test]
    fn what_is_cut_off_or_changed_is_named() {
        let bytes = written(&[("name", &[1; 600])]);
        assert!(files(&bytes[..BLOCK + 599]).unwrap_err().contains("name is cut off"));
        assert!(files(&bytes[..3 * BLOCK]).unwrap_err().contains("end mark"));
        assert!(files(&[]).is_err());
        let mut changed = bytes;
        changed[0] = b'N';
        assert!(files(&changed).unwrap_err().contains("sum"), "a header");
    }
}
