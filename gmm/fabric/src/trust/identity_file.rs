//! The identity file of a joined node: its TLS key and certificate, the time from which to renew the certificate, the
//! node's name, and the manager's URL. It is written when the node joins, and again after each renewal of the
//! certificate.
//!
//! ```text
//!   renew: 1763900000000          milliseconds since the Unix epoch
//!   manager: https://gmm.lab:7440
//!   joined: 3 17 9000            term, revision and run of the manager when the node joined
//!   node: compute node 02:00:00:00:00:01
//!   -----BEGIN PRIVATE KEY-----   ...
//!   -----BEGIN CERTIFICATE-----   the node's
//!   -----BEGIN CERTIFICATE-----   the authority's
//! ```

use std::sync::Arc;

use super::{Identity, IdentityError};
use crate::api::Joined;
use crate::model::Watermark;

const RENEW: &str = "renew: ";
const MANAGER: &str = "manager: ";
const JOINED: &str = "joined: ";
const NODE: &str = "node: ";

/// Content of an identity file.
#[derive(Debug, Clone)]
pub struct IdentityFile {
    pub identity: Arc<Identity>,
    /// Time from which to renew the certificate, in milliseconds since the Unix epoch; 0 if unknown.
    pub renew_ms: u64,
    /// URL of the manager through which the node joined, if recorded.
    pub manager: Option<String>,
    /// The manager's watermark when the node joined; zero if not recorded.
    pub joined: Watermark,
    /// The node, as [`Party`](crate::api::Party) displays it; files of earlier releases lack this line.
    pub node: Option<String>,
}

impl IdentityFile {
    /// Reads the text of an identity file.
    ///
    /// # Errors
    /// [`IdentityError`] if the text has no usable key and certificates. Other missing lines are no error.
    pub fn parse(text: &str) -> Result<Self, IdentityError> {
        let identity = Arc::new(Identity::parse(text)?);
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        Ok(Self {
            identity,
            renew_ms: line(RENEW).and_then(|ms| ms.trim().parse().ok()).unwrap_or(0),
            manager: line(MANAGER).map(str::to_owned),
            joined: line(JOINED).and_then(watermark).unwrap_or_default(),
            node: line(NODE).map(str::to_owned),
        })
    }

    /// Returns the content to write into the file: a secret.
    pub fn text(&self) -> String {
        let Watermark { term, revision, run } = self.joined;
        let said = |name: &str, value: &Option<String>| {
            value.as_ref().map_or_else(String::new, |value| format!("{name}{value}\n"))
        };
        let (manager, node) = (said(MANAGER, &self.manager), said(NODE, &self.node));
        format!(
            "{RENEW}{}\n{manager}{JOINED}{term} {revision} {run}\n{node}{}",
            self.renew_ms,
            self.identity.pem()
        )
    }

    /// Applies the manager's answer to a request for a new certificate.
    ///
    /// # Errors
    /// [`IdentityError`] if the new certificate does not fit the key or the authority.
    pub fn renewed(&mut self, joined: &Joined) -> Result<(), IdentityError> {
        self.identity.renew(&joined.certificate, &joined.authority)?;
        self.renew_ms = joined.renew_ms;
        Ok(())
    }

    /// Takes over the certificate in `text`, the present content of the file, which another process may have replaced.
    /// Returns true if that certificate is newer than the known one.
    ///
    /// # Errors
    /// [`IdentityError`] if the text belongs to another node, or has no usable key and certificates.
    pub fn follow(&mut self, text: &str) -> Result<bool, IdentityError> {
        let written = Self::parse(text)?;
        if written.renew_ms <= self.renew_ms {
            return Ok(false);
        }
        self.identity.follow(&written.identity)?;
        self.renew_ms = written.renew_ms;
        Ok(true)
    }
}

fn watermark(text: &str) -> Option<Watermark> {
    let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
    let mut number = || numbers.next().flatten();
    Some(Watermark { term: number()?, revision: number()?, run: number()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_are_three_numbers() {
        assert_eq!(watermark("3 17 9"), Some(Watermark { term: 3, revision: 17, run: 9 }));
        assert!(["", "1 2", "1 2 x", "-1 2 3"].iter().all(|wrong| watermark(wrong).is_none()));
    }
}
