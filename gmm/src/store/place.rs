//! Location of a store in its text form: the path of a file, or `etcd://HOST:PORT[,HOST:PORT…]/PREFIX`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Default port of etcd for clients.
const ETCD_PORT_DEFAULT: u16 = 2379;
/// Maximum length of a prefix in bytes.
const PREFIX_LEN_MAX: usize = 200;

/// Location of a store, as given with `--store`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum StorePlace {
    /// A file on this machine, for one manager.
    File(PathBuf),
    /// An etcd cluster, for several managers of which one leads.
    Etcd(EtcdPlace),
}

/// Credentials for etcd, and the authorities to trust.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EtcdAccess {
    /// File (PEM) of the authorities that sign the certificates of etcd's members; TLS is used if it is set.
    pub ca: Option<PathBuf>,
    /// Files (PEM) of the certificate and of the key that this manager presents to etcd.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// User name and password at etcd.
    pub user: Option<(String, String)>,
}

impl fmt::Debug for EtcdAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The password must not appear in a log.
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("EtcdAccess").field("ca", &self.ca).field("user", &user).finish_non_exhaustive()
    }
}

impl EtcdAccess {
    /// URL scheme of etcd's members: `https` if TLS is used.
    pub fn scheme(&self) -> &'static str {
        if self.ca.is_some() { "https" } else { "http" }
    }
}

/// Members of an etcd cluster, and the prefix of this fabric's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdPlace {
    hosts: Vec<String>,
    prefix: String,
    /// Credentials, which are not part of the text form.
    pub access: EtcdAccess,
}

impl EtcdPlace {
    /// Client addresses of the members, each `HOST:PORT`; at least one.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The same cluster and prefix, with `host` as the only member.
    pub fn with_host(&self, host: &str) -> Self {
        Self { hosts: vec![host.to_owned()], ..self.clone() }
    }

    /// Command line of `etcdctl` for these members. It contains no password: `etcdctl` asks for it.
    pub fn etcdctl(&self, command: &str) -> String {
        let scheme = self.access.scheme();
        let hosts: Vec<String> = self.hosts.iter().map(|host| format!("{scheme}://{host}")).collect();
        let mut line = format!("etcdctl --endpoints={}", hosts.join(","));
        let file = |option: &str, path: &PathBuf| format!(" --{option}={}", path.display());
        line.extend(self.access.ca.iter().map(|ca| file("cacert", ca)));
        if let Some((certificate, key)) = &self.access.identity {
            line.push_str(&(file("cert", certificate) + &file("key", key)));
        }
        line.extend(self.access.user.iter().map(|(name, _)| format!(" --user={name}")));
        format!("{line} {command}")
    }

    /// The key `name` under the prefix of this fabric.
    pub fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }
}

impl fmt::Display for EtcdPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}/{}", self.hosts.join(","), self.prefix)
    }
}

impl FromStr for EtcdPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |reason: &str| {
            format!(
                "{text:?} is not where an etcd store is ({reason}); write etcd://HOST:PORT[,HOST:PORT...]/PREFIX"
            )
        };
        let rest = text.strip_prefix("etcd://").ok_or_else(|| wrong("it does not start with etcd://"))?;
        let (hosts, prefix) = rest.split_once('/').ok_or_else(|| wrong("the prefix is missing"))?;
        let prefix = prefix.trim_matches('/');
        let in_alphabet = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'/');
        if prefix.is_empty() || prefix.len() > PREFIX_LEN_MAX || !prefix.bytes().all(in_alphabet) {
            return Err(wrong("the prefix must be letters, digits, '.', '_', '-' and '/', one at least"));
        }
        let mut found = Vec::new();
        for host in hosts.split(',') {
            let url = reqwest::Url::parse(&format!("http://{host}")).map_err(|e| wrong(&e.to_string()))?;
            let bare = url.path() == "/" && url.username().is_empty() && url.query().is_none();
            match url.host_str() {
                Some(name) if bare => {
                    // Port 80 is the scheme's default, for which `port()` is `None`, so an explicit `:80` has to be
                    // recognised in the text.
                    let port =
                        if host.ends_with(":80") { 80 } else { url.port().unwrap_or(ETCD_PORT_DEFAULT) };
                    found.push(format!("{name}:{port}"));
                }
                _ => return Err(wrong("each member is HOST:PORT, without user or path")),
            }
        }
        Ok(Self { hosts: found, prefix: prefix.to_owned(), access: EtcdAccess::default() })
    }
}

impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Etcd(place) => place.fmt(f),
        }
    }
}

impl FromStr for StorePlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("etcd:") {
            text.parse().map(Self::Etcd)
        } else if text.is_empty() || text.contains("://") {
            Err(format!("{text:?} is no place for a store; give a file, or etcd://HOST:PORT/PREFIX"))
        } else {
            Ok(Self::File(text.into()))
        }
    }
}

impl TryFrom<String> for StorePlace {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<StorePlace> for String {
    fn from(place: StorePlace) -> Self {
        place.to_string()
    }
}

impl From<PathBuf> for StorePlace {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_back() {
        for (text, written) in [
            ("/var/lib/cxloe/gmm.redb", "/var/lib/cxloe/gmm.redb"),
            ("etcd://10.0.0.1:2379,10.0.0.2:2479/cxloe", "etcd://10.0.0.1:2379,10.0.0.2:2479/cxloe"),
            ("etcd://a,b:80/lab/one/", "etcd://a:2379,b:80/lab/one"),
            ("etcd://[::1]:2379/x", "etcd://[::1]:2379/x"),
        ] {
            let place: StorePlace = text.parse().unwrap();
            assert_eq!(place.to_string(), written);
            assert_eq!(written.parse(), Ok(place));
        }
        let place: EtcdPlace = "etcd://a:1/lab".parse().unwrap();
        assert_eq!((place.hosts(), place.key("leader").as_str()), (&["a:1".to_owned()][..], "lab/leader"));
    }

    #[test]
    fn etcdctl_is_given_what_this_manager_uses() {
        let mut place: EtcdPlace = "etcd://a:1,b:2/lab".parse().unwrap();
        assert_eq!(place.etcdctl("del x"), "etcdctl --endpoints=http://a:1,http://b:2 del x");
        place.access = EtcdAccess {
            ca: Some("/ca.pem".into()),
            identity: Some(("/cert.pem".into(), "/key.pem".into())),
            user: Some(("gmm".to_owned(), "secret".to_owned())),
        };
        let line = "etcdctl --endpoints=https://a:1,https://b:2 --cacert=/ca.pem --cert=/cert.pem --key=/key.pem \
                    --user=gmm get x";
        assert_eq!(place.etcdctl("get x"), line);
    }

    #[test]
    fn the_rest_is_refused_with_the_form() {
        for text in [
            "etcd://a:1",
            "etcd://a:1/",
            "etcd:///x",
            "etcd://a:b/x",
            "etcd://a:1,,b:1/x",
            "etcd:a",
            "etcd://u@a:1/x",
            "etcd://a:1/x y",
            "http://a:1/x",
            "",
        ] {
            let error = text.parse::<StorePlace>().unwrap_err();
            assert!(error.contains("etcd://HOST:PORT"), "{text}: {error}");
        }
    }
}
