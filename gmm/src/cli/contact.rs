//! Choice of the manager and of the token: from the command line, else from the environment, else from the latest `gmm
//! login`, else the manager of this machine.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cxloe_daemon::command_line::Failure;
use cxloe_daemon::{default_paths, to_stderr};
use cxloe_fabric::Client;
use cxloe_fabric::client::{Credentials, Patience, Pause, TOKEN_VARIABLE, URL_DEFAULT};
use cxloe_fabric::model::Token;
use cxloe_private::Existing;
use serde::{Deserialize, Serialize};

/// Path of the file with the log-ins, relative to the user's configuration folder.
const LOGINS_FILE: &str = "cxloe/logins.json";
/// Pause before a request is repeated that failed because no manager leads.
const LEADER_PAUSE: Duration = Duration::from_millis(200);
/// Paths at which a manager on this machine may have its socket, in order of preference.
const SOCKETS: [&str; 3] = ["/run/cxloe-gmm/gmm.sock", "/run/cxloe/gmm.sock", "/var/lib/cxloe/gmm.sock"];

/// Tokens stored by `gmm login`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Logins {
    /// URL of the latest log-in, used where the command line and the environment name no manager.
    #[serde(default)]
    current: Option<String>,
    /// Tokens in plain text, by the manager's URL.
    #[serde(default)]
    tokens: std::collections::BTreeMap<String, String>,
}

impl Logins {
    /// Path of the log-in file, below `$XDG_CONFIG_HOME` or by default `~/.config`.
    pub fn path() -> PathBuf {
        let home = || std::env::home_dir().unwrap_or_default().join(".config");
        std::env::var_os("XDG_CONFIG_HOME")
            .filter(|dir| !dir.is_empty())
            .map_or_else(home, PathBuf::from)
            .join(LOGINS_FILE)
    }

    /// Reads the log-ins in the file at `path`; empty if there is no file, or if it belongs to another user.
    ///
    /// # Errors
    /// If the file cannot be read, or is malformed.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let failed = |reason: String| {
            Failure::failed(format!(
                "cannot read the log-ins in {}: {reason}; remove it and log in again",
                path.display()
            ))
        };
        match cxloe_private::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string())),
            // Under `sudo`, $HOME can be that of another user, whose log-ins are not to be used.
            Err(error)
                if [std::io::ErrorKind::NotFound, std::io::ErrorKind::PermissionDenied]
                    .contains(&error.kind()) =>
            {
                Ok(Self::default())
            }
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Writes the log-ins into the file at `path`, which only its owner can read.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let failed = |error: std::io::Error| {
            Failure::failed(format!("cannot keep the log-in in {}: {error}", path.display()))
        };
        let folder = path.parent().unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        cxloe_private::write(path, &text, Existing::Replace).map_err(failed)
    }

    /// Stores `token` for `url`, which becomes the default.
    pub fn add(&mut self, url: &str, token: &Token) {
        self.current = Some(url.to_owned());
        self.tokens.insert(url.to_owned(), token.reveal());
    }

    /// Removes the token for `url`, or for the default URL. Returns the URL whose token was removed.
    pub fn remove(&mut self, url: Option<&str>) -> Option<String> {
        let url = url.map(str::to_owned).or(self.current.clone())?;
        if self.current.as_deref() == Some(&url) {
            self.current = None;
        }
        self.tokens.remove(&url).map(|_| url)
    }
}

/// Retry policy of a command while the managers elect a leader.
#[derive(Debug)]
struct LeaderWait {
    /// Maximum time for which one request is repeated; zero: it fails at once.
    limit: Duration,
    /// Time of the first failure of the present request.
    began: Mutex<Instant>,
}

impl Patience for LeaderWait {
    fn pause(&self, reason: &str, tries: u32) -> Option<Pause> {
        if self.limit.is_zero() {
            return None;
        }
        let mut began = self.began.lock().unwrap_or_else(PoisonError::into_inner);
        // The time limit applies to each request, and starts with its first failure.
        if tries == 1 {
            *began = Instant::now();
            to_stderr!("Waiting up to {} s for a manager that leads: {reason}", self.limit.as_secs());
        }
        let goes_on = began.elapsed() < self.limit;
        goes_on.then(|| -> Pause { Box::pin(tokio::time::sleep(LEADER_PAUSE)) })
    }
}

/// Returns a client for the manager at the URL `named`, or for the default manager. Where several managers
/// elect a leader, requests wait up to `wait` for one.
///
/// # Errors
/// If the URL or the token is malformed.
pub fn client(named: Option<&str>, wait: Duration) -> Result<Client, Failure> {
    let logins = Logins::read(&Logins::path())?;
    let url = named.map(str::to_owned).or_else(|| logins.current.clone()).unwrap_or_else(local);
    let given = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
    // All managers that share a store accept the same tokens, so the token of any URL in a list will do.
    let kept = || {
        let known = |url: &str| logins.tokens.get(url.trim()).cloned();
        known(&url).or_else(|| url.split(',').find_map(known))
    };
    let credentials = match given.or_else(kept) {
        Some(token) => Credentials::of_token(token.parse().map_err(Failure::usage)?),
        None => Credentials::default(),
    };
    let patience = LeaderWait { limit: wait, began: Mutex::new(Instant::now()) };
    Client::patient(&url, credentials, Box::new(patience)).map_err(Failure::usage)
}

/// URL of this machine's manager: its socket, which needs no token, if there is one.
fn local() -> String {
    let own = default_paths::data_dir().join("gmm.sock");
    let sockets = SOCKETS.iter().map(PathBuf::from).chain([own]);
    let mut there = sockets.filter(|socket| socket.exists());
    there.next().map_or_else(|| URL_DEFAULT.to_owned(), |socket| format!("unix:{}", socket.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use cxloe_fabric::model::Digest;

    use super::*;

    #[test]
    fn log_ins_are_kept_and_nobody_else_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/logins.json");
        let mut logins = Logins::read(&path).unwrap();
        logins.add("https://a:1", &Token::new([1; 36], Digest::of(b"a")));
        logins.add("https://b:1", &Token::new([2; 36], Digest::of(b"a")));
        logins.write(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut again = Logins::read(&path).unwrap();
        assert_eq!(again.current.as_deref(), Some("https://b:1"));
        assert_eq!(again.remove(Some("https://a:1")).as_deref(), Some("https://a:1"));
        assert_eq!(again.remove(None).as_deref(), Some("https://b:1"));
        assert_eq!(again.remove(None), None);
        fs::write(&path, "x").unwrap();
        assert!(Logins::read(&path).is_err());
    }
}
