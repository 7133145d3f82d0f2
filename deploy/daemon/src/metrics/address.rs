//! Address of metrics as an option: a TCP address, or a Unix socket.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An address for metrics, written `127.0.0.1:9741`, `[::]:9741` or `unix:/run/cxloe/metrics.sock`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum MetricsAddress {
    /// TCP; port 0 chooses a free one, which the log names.
    Tcp(SocketAddr),
    /// A Unix socket, for the daemon's own user and group.
    Unix(PathBuf),
}

cxloe_wire::spelled!(MetricsAddress);

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("`unix:` names no socket; write it as in unix:/run/cxloe/metrics.sock".into()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| {
                format!(
                    "`{text}` is no address; write it as in 127.0.0.1:9741, [::]:9741 or unix:/run/cxloe/metrics.sock"
                )
            }),
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_as_they_were_written() {
        for text in ["127.0.0.1:9741", "[::]:0", "unix:/run/cxloe/metrics.sock"] {
            assert_eq!(text.parse::<MetricsAddress>().unwrap().to_string(), text);
        }
        for wrong in ["", "9741", ":9741", "localhost:9741", "unix:"] {
            let said = wrong.parse::<MetricsAddress>().unwrap_err();
            assert!(said.contains("write it as in"), "{said}");
        }
    }
}
