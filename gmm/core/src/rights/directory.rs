//! Lookup of the caller by the credentials of a request. The directory receives a change of the state only
//! after the commit, so no caller is admitted by a change that may still be undone. Browser sessions are kept
//! in memory only: they end with the manager's process.

use std::collections::BTreeMap;

use cxloe_fabric::api::Party;
use cxloe_fabric::model::{Digest, Role, Token};

use super::caller::{Caller, CallerRights, Tenant};
use crate::manager::access::{JoinedNode, TokenRecord};
use crate::manager::{Change, FabricState};

pub(crate) const SESSION_MS: u64 = 12 * 3_600_000;
/// Maximum number of browser sessions; a new one then ends the oldest.
const SESSIONS_MAX: usize = 1024;
/// Maximum number of sessions per token, so that a bearer who logs in often ends only sessions of the same
/// token.
const SESSIONS_OF_TOKEN_MAX: usize = 32;

/// Credentials of one request, as received with the connection and the headers.
#[derive(Debug, Clone, Default)]
pub struct Evidence<'a> {
    /// Name of a caller that has all rights because its connection has no TLS and the manager no access control.
    pub unguarded: Option<String>,
    /// Uid of the peer of a Unix socket, and whether that user is an administrator.
    pub user: Option<(u32, bool)>,
    /// Digest of the TLS key in the client's certificate.
    pub tls: Option<Digest>,
    /// Text of the `Authorization: Bearer` header, not checked yet.
    pub bearer: Option<&'a str>,
    /// Secret of a browser session, from its cookie.
    pub session: Option<&'a str>,
}

#[derive(Debug)]
struct Session {
    token: String,
    secret: Digest,
    expires_ms: u64,
}

/// Index of the stored tokens and joined nodes, with the browser sessions.
#[derive(Debug, Default)]
pub struct Directory {
    tokens: BTreeMap<String, TokenRecord>,
    joined: BTreeMap<Party, JoinedNode>,
    by_tls: BTreeMap<Digest, Party>,
    /// Sessions by serial number: the first entry is the oldest session.
    sessions: BTreeMap<u64, Session>,
    last_session: u64,
}

impl Directory {
    pub fn new(state: &FabricState) -> Self {
        let mut directory = Self { tokens: state.tokens.clone(), ..Self::default() };
        state.joined.values().for_each(|joined| directory.joined(joined.clone()));
        directory
    }

    /// Applies a stored change. Changes of anything but tokens and joined nodes have no effect.
    pub fn follow(&mut self, change: &Change) {
        match change {
            Change::Token(token) => drop(self.tokens.insert(token.id.clone(), token.clone())),
            Change::TokenGone(id) => {
                self.tokens.remove(id);
                // A revoked token ends the browser sessions that were begun with it.
                self.sessions.retain(|_, session| session.token != *id);
            }
            Change::Joined(joined) => self.joined(joined.clone()),
            Change::JoinedGone(node) => self.leave(node),
            // The whole state was replaced, for example by a restore. Sessions whose token still exists
            // continue.
            Change::Replaced(_, after) => {
                let Self { sessions, last_session, .. } = std::mem::take(self);
                *self = Self { sessions, last_session, ..Self::new(after) };
                self.sessions.retain(|_, session| self.tokens.contains_key(&session.token));
            }
            _ => {}
        }
    }

    /// Returns true if [`Directory::follow`] has to receive this change.
    pub fn is_concerned(change: &Change) -> bool {
        matches!(
            change,
            Change::Token(_)
                | Change::TokenGone(_)
                | Change::Joined(_)
                | Change::JoinedGone(_)
                | Change::Replaced(..)
        )
    }

    fn joined(&mut self, joined: JoinedNode) {
        self.leave(&joined.node);
        self.by_tls.insert(joined.tls, joined.node.clone());
        self.joined.insert(joined.node.clone(), joined);
    }

    fn leave(&mut self, node: &Party) {
        // Another node may have the same key by now; its entry in `by_tls` stays.
        if let Some(former) = self.joined.remove(node)
            && self.by_tls.get(&former.tls) == Some(node)
        {
            self.by_tls.remove(&former.tls);
        }
    }

    /// Returns the caller with these credentials. A token or session takes precedence over the connection: a
    /// request with an invalid token has no rights, even if the connection alone would give some.
    pub fn caller(&self, evidence: &Evidence<'_>, now_ms: u64) -> Caller {
        let proved = evidence.tls;
        if let Some(bearer) = evidence.bearer {
            return Caller { proved, ..self.bearer(bearer, now_ms) };
        }
        if let Some(secret) = evidence.session {
            return self.in_session(secret, now_ms);
        }
        if let Some(who) = &evidence.unguarded {
            return Caller { unguarded: true, ..Caller::admin(who.clone()) };
        }
        if let Some((uid, admin)) = evidence.user {
            let who = format!("uid {uid}");
            return if admin {
                Caller::admin(who)
            } else {
                Caller { who, may: CallerRights::Look, ..Caller::unauthenticated(None) }
            };
        }
        let Some(tls) = proved else { return Caller::unauthenticated(None) };
        match self.by_tls.get(&tls).and_then(|node| self.joined.get(node)) {
            Some(joined) => Caller {
                who: joined.node.to_string(),
                may: CallerRights::Node(joined.clone()),
                proved,
                expires_ms: None,
                unguarded: false,
            },
            None => {
                let why = "its certificate is that of a node which has not joined, has joined again, or was revoked";
                Caller { proved, ..Caller::unauthenticated(Some(why)) }
            }
        }
    }

    fn bearer(&self, text: &str, now_ms: u64) -> Caller {
        let Ok(token) = text.parse::<Token>() else {
            return Caller::unauthenticated(Some("what was given for a token is none"));
        };
        // The id finds the token; the digest proves the secret.
        let known = self.tokens.get(token.id()).filter(|known| known.digest.matches(&token.digest()));
        match known {
            Some(known) => borne(known, now_ms),
            None => Caller::unauthenticated(Some(
                "its token is invalid: it was revoked, has expired, or is another manager's",
            )),
        }
    }

    fn in_session(&self, secret: &str, now_ms: u64) -> Caller {
        let digest = Digest::of(secret.as_bytes());
        let over = Caller::unauthenticated(Some("its session is over"));
        let session = self.sessions.values().find(|session| session.secret.matches(&digest));
        let Some(session) = session.filter(|session| now_ms < session.expires_ms) else { return over };
        let Some(token) = self.tokens.get(&session.token) else { return over };
        let caller = borne(token, now_ms);
        Caller { who: format!("{} in a browser", caller.who), ..caller }
    }

    /// Begins a browser session for the bearer of a token of role viewer, tenant or admin. Returns the caller
    /// and the end of the session, which is no later than that of the token; `None` for another token.
    pub fn log_in(&mut self, token: &str, secret: &str, now_ms: u64) -> Option<(Caller, u64)> {
        let caller = self.bearer(token, now_ms);
        let ends_ms = caller.expires_ms?;
        if !matches!(caller.may, CallerRights::Look | CallerRights::Tenant(_) | CallerRights::Everything) {
            return None;
        }
        let token = token.parse::<Token>().ok()?.id().to_owned();
        self.sessions.retain(|_, session| now_ms < session.expires_ms);
        let own = self.sessions.iter().filter(|(_, session)| session.token == token);
        let own: Vec<u64> = own.map(|(number, _)| *number).collect();
        let over = (own.len() + 1).saturating_sub(SESSIONS_OF_TOKEN_MAX);
        own.iter().take(over).for_each(|number| drop(self.sessions.remove(number)));
        while self.sessions.len() >= SESSIONS_MAX {
            self.sessions.pop_first();
        }
        self.last_session += 1;
        let expires_ms = ends_ms.min(now_ms.saturating_add(SESSION_MS));
        let session = Session { token, secret: Digest::of(secret.as_bytes()), expires_ms };
        self.sessions.insert(self.last_session, session);
        Some((caller, expires_ms))
    }

    /// Ends the session with this secret, if there is one.
    pub fn log_out(&mut self, secret: &str) {
        let digest = Digest::of(secret.as_bytes());
        self.sessions.retain(|_, session| !session.secret.matches(&digest));
    }

    pub fn tokens(&self) -> impl Iterator<Item = &TokenRecord> {
        self.tokens.values()
    }
}

/// Returns the caller with the rights of this token, or without rights if the token has expired.
fn borne(token: &TokenRecord, now_ms: u64) -> Caller {
    if !token.is_valid(now_ms) {
        return Caller::unauthenticated(Some("its token has ended"));
    }
    let may = match token.role {
        Role::Admin => CallerRights::Everything,
        Role::Viewer => CallerRights::Look,
        Role::Tenant => {
            CallerRights::Tenant(Tenant { compute_nodes: token.compute_nodes.clone(), quota: token.quota })
        }
        Role::MemoryNode | Role::ComputeNode | Role::FmClient => CallerRights::Join(token.clone()),
    };
    let (who, expires_ms) = (format!("token {}", token.id), Some(token.expires_ms));
    Caller { who, may, proved: None, expires_ms, unguarded: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(last: u8) -> Token {
        Token::new([last; 36], Digest::of(b"authority"))
    }

    fn record(token: &Token, role: Role) -> TokenRecord {
        TokenRecord {
            id: token.id().to_owned(),
            role,
            digest: token.digest(),
            created_ms: 0,
            expires_ms: 1000,
            compute_nodes: Vec::new(),
            quota: None,
            made_by: "uid 0".into(),
            used: None,
        }
    }

    fn joined(name: &str, key: &[u8]) -> JoinedNode {
        JoinedNode {
            node: Party::MemoryNode(name.parse().unwrap()),
            tls: Digest::of(key),
            key: None,
            macs: Vec::new(),
            joined_ms: 0,
            by: "uid 0".into(),
        }
    }

    fn by_token(directory: &Directory, token: &str, now_ms: u64) -> Caller {
        directory.caller(&Evidence { bearer: Some(token), ..Evidence::default() }, now_ms)
    }

    #[test]
    fn a_token_authenticates_until_it_expires_or_is_revoked() {
        let (mut directory, own) = (Directory::default(), token(1));
        let text = own.reveal();
        assert_eq!(by_token(&directory, &text, 0).role(), "nobody");
        directory.follow(&Change::Token(record(&own, Role::Viewer)));
        let caller = by_token(&directory, &text, 999);
        assert_eq!((caller.role(), caller.who.as_str()), ("viewer", "token 01010101"));
        assert_eq!(by_token(&directory, &text, 1000).role(), "nobody", "it has ended");
        let mut guessed = [1; 36];
        guessed[35] = 2;
        let guessed = Token::new(guessed, Digest::of(b"authority"));
        assert_eq!(guessed.id(), own.id());
        assert_eq!(by_token(&directory, &guessed.reveal(), 0).role(), "nobody", "another secret");
        assert_eq!(by_token(&directory, "cx1.x", 0).role(), "nobody");
        directory.follow(&Change::TokenGone(own.id().to_owned()));
        assert_eq!(by_token(&directory, &text, 0).role(), "nobody");
    }

    #[test]
    fn a_bad_token_is_not_made_up_for_by_the_connection() {
        let directory = Directory::default();
        let evidence = Evidence { user: Some((0, true)), bearer: Some("wrong"), ..Evidence::default() };
        assert_eq!(directory.caller(&evidence, 0).role(), "nobody");
        let root = Evidence { user: Some((0, true)), ..Evidence::default() };
        assert_eq!(directory.caller(&root, 0).role(), "admin");
        let other = Evidence { user: Some((1000, false)), ..Evidence::default() };
        let other = directory.caller(&other, 0);
        assert_eq!((other.role(), other.who.as_str()), ("viewer", "uid 1000"));
        assert_eq!(directory.caller(&Evidence::default(), 0), Caller::unauthenticated(None));
    }

    #[test]
    fn a_certificate_is_that_of_the_node_that_joined_with_its_key_last() {
        let mut directory = Directory::default();
        directory.follow(&Change::Joined(joined("mn0", b"old")));
        directory.follow(&Change::Joined(joined("mn1", b"other")));
        let by = |directory: &Directory, key: &[u8]| {
            directory.caller(&Evidence { tls: Some(Digest::of(key)), ..Evidence::default() }, 0)
        };
        assert_eq!(by(&directory, b"old").who, "memory node mn0");
        directory.follow(&Change::Joined(joined("mn0", b"new")));
        assert_eq!(by(&directory, b"old").role(), "nobody", "it joined again with another key");
        assert_eq!(by(&directory, b"new").role(), "memory node");
        directory.follow(&Change::JoinedGone(Party::MemoryNode("mn0".parse().unwrap())));
        assert_eq!(by(&directory, b"new").role(), "nobody", "revoked");
        assert_eq!(by(&directory, b"other").who, "memory node mn1");
    }

    #[test]
    fn sessions_end_with_their_token_and_there_are_not_too_many() {
        let (mut directory, own) = (Directory::default(), token(1));
        directory.follow(&Change::Token(record(&own, Role::Admin)));
        let text = own.reveal();
        let by = |directory: &Directory, secret: &str, now_ms| {
            directory.caller(&Evidence { session: Some(secret), ..Evidence::default() }, now_ms)
        };
        let (_, ends_ms) = directory.log_in(&text, "s", 5).unwrap();
        assert_eq!(ends_ms, 1000, "not longer than the token");
        assert_eq!(by(&directory, "s", 6).who, "token 01010101 in a browser");
        assert_eq!(by(&directory, "t", 6).role(), "nobody");
        assert_eq!(by(&directory, "s", 1000).role(), "nobody");
        let other = token(3);
        directory.follow(&Change::Token(record(&other, Role::Viewer)));
        for session in 0..SESSIONS_OF_TOKEN_MAX {
            directory.log_in(&other.reveal(), &format!("other {session}"), 7).unwrap();
            directory.log_in(&other.reveal(), &format!("another {session}"), 7).unwrap();
        }
        assert_eq!(directory.sessions.len(), 1 + SESSIONS_OF_TOKEN_MAX, "of one token");
        assert_eq!(by(&directory, "s", 8).role(), "admin", "who logs in often ends nobody else's session");
        assert_eq!(by(&directory, "other 5", 8).role(), "nobody", "its own oldest went");
        assert_eq!(by(&directory, "other 31", 8).role(), "viewer");
        directory.log_out("other 31");
        assert_eq!(by(&directory, "other 31", 8).role(), "nobody");
        directory.follow(&Change::TokenGone(other.id().to_owned()));
        assert_eq!(by(&directory, "another 31", 8).role(), "nobody");
        for number in 0..SESSIONS_MAX {
            let one = Token::new(std::array::from_fn(|at| (number >> (8 * (at % 2))) as u8), own.authority());
            directory.follow(&Change::Token(record(&one, Role::Viewer)));
            directory.log_in(&one.reveal(), &format!("more {number}"), 8).unwrap();
        }
        assert_eq!(directory.sessions.len(), SESSIONS_MAX);
        assert_eq!(by(&directory, "s", 8).role(), "nobody", "the oldest of all went");
        let node = token(2);
        directory.follow(&Change::Token(record(&node, Role::MemoryNode)));
        assert!(directory.log_in(&node.reveal(), "n", 5).is_none(), "a node's token is no person's");
        assert!(directory.log_in("cx1.no", "n", 5).is_none());
    }
}
