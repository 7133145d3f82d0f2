//! Names of a host and of its user, which an archive does not have unless it is asked for.
//!
//! Commands have them in paths, tools print the host's name: paths outside of the system's folders are shortened to
//! their last part, and names in texts are replaced.

use std::path::{Path, PathBuf};

/// Name in commands and texts of the folder that each trial gets empty.
pub const TRIAL: &str = "$TRIAL";
/// Folders that have the same content for all users of a machine.
const SYSTEM: [&str; 9] =
    ["/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/dev/", "/proc/", "/sys/", "/etc/"];

/// Names to leave out.
#[derive(Debug, Clone)]
pub struct Redaction {
    /// Folder of the trials.
    folder: PathBuf,
    /// Names and the words in their place, in the order in which they are replaced. Empty if names are kept.
    names: Vec<(String, &'static str)>,
    keeps_paths: bool,
}

impl Redaction {
    /// Leaves out the name of the host and the homes of users; trials run in `folder`.
    pub fn of(folder: &Path, host: &str, homes: &[PathBuf]) -> Redaction {
        let homes = homes.iter().filter_map(|home| home.to_str()).map(|home| home.trim_end_matches('/'));
        let mut names: Vec<(String, &'static str)> =
            homes.filter(|home| !home.is_empty()).map(|home| (home.to_owned(), "~")).collect();
        let first = host.split('.').next().unwrap_or(host);
        for name in [host, first] {
            if !name.is_empty() && name != "localhost" && names.iter().all(|(known, _)| known != name) {
                names.push((name.to_owned(), "HOST"));
            }
        }
        Redaction { folder: folder.into(), names, keeps_paths: false }
    }

    /// Keeps all names; only the folder of the trials, which no longer exists, is replaced.
    pub fn none(folder: &Path) -> Redaction {
        Redaction { folder: folder.into(), names: Vec::new(), keeps_paths: true }
    }

    /// Word of a command: the folder of the trials by its name, other paths as [`Redaction`] shortens them.
    pub fn word(&self, word: &str) -> String {
        let path = Path::new(word);
        if let Ok(rest) = path.strip_prefix(&self.folder) {
            let rest = rest.to_string_lossy();
            return if rest.is_empty() { TRIAL.into() } else { format!("{TRIAL}/{rest}") };
        }
        let is_foreign = path.is_absolute() && !SYSTEM.iter().any(|folder| word.starts_with(folder));
        match path.file_name().filter(|_| is_foreign && !self.keeps_paths) {
            Some(name) => name.to_string_lossy().into_owned(),
            None => word.to_owned(),
        }
    }

    /// Text of a tool or of an error, with the names replaced where they stand alone.
    pub fn text(&self, text: &str) -> String {
        let folder = self.folder.to_str().filter(|folder| !folder.is_empty());
        let text = folder.map_or_else(|| text.to_owned(), |folder| text.replace(folder, TRIAL));
        self.names.iter().fold(text, |text, (name, by)| replaced(&text, name, by))
    }
}

/// Replaces a name where it is no part of a longer one.
fn replaced(text: &str, name: &str, by: &str) -> String {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '-' || c == '_');
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for (at, _) in text.match_indices(name) {
        let end = at + name.len();
        let alone = !is_part(text[..at].chars().next_back()) && !is_part(text[end..].chars().next());
        out.push_str(&text[done..at]);
        out.push_str(if alone { by } else { name });
        done = end;
    }
    out + &text[done..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redaction() -> Redaction {
        Redaction::of(Path::new("/tmp/x/trial"), "lab7.example.org", &["/home/ada".into()])
    }

    #[test]
    fn commands_have_no_folder_of_a_user() {
        let word = |word| redaction().word(word);
        assert_eq!(word("/home/ada/cxloe/target/release/mn-server"), "mn-server");
        assert_eq!(word("/opt/ucx/bin/ucx_perftest"), "ucx_perftest");
        assert_eq!(word("/tmp/x/trial/mn.sock"), "$TRIAL/mn.sock");
        assert_eq!(word("/tmp/x/trial"), "$TRIAL");
        for kept in ["/usr/bin/redis-server", "/dev/null", "--port", "7379", "nbd://10.77.0.2:10809", ""] {
            assert_eq!(word(kept), kept);
        }
        let all = Redaction::none(Path::new("/tmp/x/trial"));
        assert_eq!(all.word("/home/ada/mn-server"), "/home/ada/mn-server");
        assert_eq!(all.word("/tmp/x/trial/a"), "$TRIAL/a");
    }

    #[test]
    fn texts_have_no_name_of_a_host_or_a_home() {
        let text = "[1.5] [lab7:19561:0] lab7.example.org: /home/ada/x in /tmp/x/trial/y, lab77 and my-lab7";
        let expected = "[1.5] [HOST:19561:0] HOST: ~/x in $TRIAL/y, lab77 and my-lab7";
        assert_eq!(redaction().text(text), expected);
        assert_eq!(Redaction::none(Path::new("/tmp/x/trial")).text("lab7 /tmp/x/trial"), "lab7 $TRIAL");
        let nameless = Redaction::of(Path::new("/t"), "localhost", &["/".into()]);
        assert_eq!(nameless.text("localhost / x"), "localhost / x");
    }
}
