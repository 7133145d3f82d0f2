//! What is in the file by which a node is known: its TLS key and certificate, and besides when to renew it, whose it is, and
//! where the manager is. It is written when the node joins, and again each time the certificate is renewed.
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

/// What the line begins with that says when to renew.
const RENEW: &str = "renew: ";
/// What the line begins with that says where the manager is.
const MANAGER: &str = "manager: ";
/// What the line begins with that says how far the manager had come when the node joined.
const JOINED: &str = "joined: ";
/// What the line begins with that says whose it is.
const NODE: &str = "node: ";

/// A node's identity with what is kept beside it.
#[derive(Debug, Clone)]
pub struct IdentityFile {
    /// Key and certificate.
    pub identity: Arc<Identity>,
    /// From when the certificate should be renewed: milliseconds since the Unix epoch; 0 if that is not known.
    pub renew_ms: u64,
    /// Where the manager is that the node has joined at, if that was kept.
    pub manager: Option<String>,
    /// How far the manager had come when the node joined; nothing where that was not kept.
    pub joined: Watermark,
    /// Whose it is, as [`Party`](crate::api::Party) is shown; files of earlier releases do not say it.
    pub node: Option<String>,
}

impl IdentityFile {
    /// From the file's text.
    ///
    /// # Errors
    /// [`IdentityError`].
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

    /// The file's text.
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

    /// Takes what the manager answered to a request for a new certificate.
    ///
    /// # Errors
    /// [`IdentityError`] when it does not fit.
    pub fn renewed(&mut self, joined: &Joined) -> Result<(), IdentityError> {
        self.identity.renew(&joined.certificate, &joined.authority)?;
        self.renew_ms = joined.renew_ms;
        Ok(())
    }

    /// Takes what another process has written meanwhile, if that is newer. Returns whether it is.
    ///
    /// # Errors
    /// [`IdentityError`] when it is another node's.
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
