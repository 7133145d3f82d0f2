//! Which manager a command asks, and as whom: what the command line says, else the environment, else what `gmm login` has
//! kept, else the manager of this machine.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cxloe_daemon::command_line::Failure;
use cxloe_daemon::places;
use cxloe_fabric::Client;
use cxloe_fabric::client::{Credentials, TOKEN_VARIABLE, URL_DEFAULT};
use cxloe_fabric::model::Token;
use cxloe_private::Existing;
use serde::{Deserialize, Serialize};

/// Where the file of log-ins is, below the user's configuration.
const LOGINS_FILE: &str = "cxloe/logins.json";
/// Where a manager of this machine has its socket.
const SOCKETS: [&str; 3] = ["/run/cxloe-gmm/gmm.sock", "/run/cxloe/gmm.sock", "/var/lib/cxloe/gmm.sock"];

/// What `gmm login` keeps.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Logins {
    /// The URL that is asked where none is given: that of the last log-in.
    #[serde(default)]
    current: Option<String>,
    /// Tokens by URL.
    #[serde(default)]
    tokens: std::collections::BTreeMap<String, String>,
}

impl Logins {
    /// Where they are kept: in `$XDG_CONFIG_HOME`, which is `~/.config` if not set.
    pub fn path() -> PathBuf {
        let home = || std::env::home_dir().unwrap_or_default().join(".config");
        std::env::var_os("XDG_CONFIG_HOME")
            .filter(|dir| !dir.is_empty())
            .map_or_else(home, PathBuf::from)
            .join(LOGINS_FILE)
    }

    /// Those at `path`; none where there is no file, or one of another user.
    ///
    /// # Errors
    /// When it cannot be read, or is none.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let failed = |reason: String| {
            Failure::failed(format!(
                "cannot read the log-ins in {}: {reason}; remove it and log in again",
                path.display()
            ))
        };
        match cxloe_private::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string())),
            // Under `sudo` and its like, $HOME is somebody else's.
            Err(error)
                if [std::io::ErrorKind::NotFound, std::io::ErrorKind::PermissionDenied]
                    .contains(&error.kind()) =>
            {
                Ok(Self::default())
            }
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Keeps them at `path`, where nobody else reads them.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let failed = |error: std::io::Error| {
            Failure::failed(format!("cannot keep the log-in in {}: {error}", path.display()))
        };
        let folder = path.parent().unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        cxloe_private::write(path, &text, Existing::Replace).map_err(failed)
    }

    /// Keeps `token` for `url`, which is asked from here on where none is given.
    pub fn add(&mut self, url: &str, token: &Token) {
        self.current = Some(url.to_owned());
        self.tokens.insert(url.to_owned(), token.reveal());
    }

    /// Forgets the token for `url`, or for the current one. Returns which, if there was one.
    pub fn remove(&mut self, url: Option<&str>) -> Option<String> {
        let url = url.map(str::to_owned).or(self.current.clone())?;
        if self.current.as_deref() == Some(&url) {
            self.current = None;
        }
        self.tokens.remove(&url).map(|_| url)
    }
}

/// A client for the manager that `named` says, or for the one that a command asks where none is named.
///
/// # Errors
/// When there is no such URL, or what should be a token is none.
pub fn client(named: Option<&str>) -> Result<Client, Failure> {
    let logins = Logins::read(&Logins::path())?;
    let url = named.map(str::to_owned).or_else(|| logins.current.clone()).unwrap_or_else(local);
    let given = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
    // A token for one of several managers that share a store is one for all of them.
    let kept = || {
        let known = |url: &str| logins.tokens.get(url.trim()).cloned();
        known(&url).or_else(|| url.split(',').find_map(known))
    };
    let credentials = match given.or_else(kept) {
        Some(token) => Credentials::of_token(token.parse().map_err(Failure::usage)?),
        None => Credentials::default(),
    };
    Client::with(&url, credentials).map_err(Failure::usage)
}

/// The manager of this machine: its socket, where one is, for that needs no token.
fn local() -> String {
    let own = places::data_dir().join("gmm.sock");
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
