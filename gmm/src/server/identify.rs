//! Identification of callers: passes the credentials of connection and headers to the
//! [directory](cxloe_gmm_core::rights::Directory). Rights of routes and commands are decided in
//! [`cxloe_gmm_core::rights`].

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cxloe_daemon::http::{Peer, TlsAuthenticator};
use nix::unistd::{Gid, Uid, User, getgrouplist};

use super::authority::{Authority, AuthorityError, NODE_VALID_DEFAULT};
use super::authority_store::{AuthorityInUse, AuthorityStore};
use super::core::Core;
use super::error::ApiError;
use cxloe_gmm_core::rights::{Caller, CallerRights, Denied, Evidence};

/// Maximum number of characters of a path in an entry of the event log.
const ASKED_CHARS_MAX: usize = 100;
/// Reason given to a caller whose request is refused because its credentials became invalid while the request was
/// carried out.
const NO_LONGER: &str = "its token, its session or its certificate has ended while the answer was waited for";

/// The name of the cookie that holds a browser's session.
pub const COOKIE_NAME: &str = "cxloe-session";

/// State of this process by which callers are identified, shared by all listeners and requests.
#[derive(Clone)]
pub struct Authenticator {
    /// True if TCP is served without TLS and access control.
    insecure: bool,
    /// Number of the group whose members are administrators on the Unix socket.
    admin_group: Option<Gid>,
    /// The certificate authority; none until its store has answered.
    authority: Arc<AuthorityInUse>,
    /// Place where the certificate authority's key is stored; none in tests.
    kept: Option<AuthorityStore>,
    /// URL at which nodes reach this manager.
    url: Arc<str>,
    /// Validity of the certificates that nodes get.
    valid: Duration,
    /// TLS configuration of the listener; not set until the certificate authority is available.
    tls: Arc<OnceLock<TlsAuthenticator>>,
}

impl Authenticator {
    /// An authenticator of a manager at `url`, with the default validity of certificates.
    pub fn new(insecure: bool, admin_group: Option<u32>, url: &str) -> Self {
        let admin_group = admin_group.map(Gid::from_raw);
        let (authority, tls) = (Arc::new(AuthorityInUse::new(None)), Arc::default());
        let (url, valid) = (url.into(), NODE_VALID_DEFAULT);
        Self { insecure, admin_group, authority, kept: None, url, valid, tls }
    }

    /// Sets the validity of the certificates that nodes get.
    pub fn certifying_for(self, valid: Duration) -> Self {
        Self { valid, ..self }
    }

    /// Sets the place where the certificate authority's key is stored.
    pub fn kept_in(self, kept: AuthorityStore) -> Self {
        Self { kept: Some(kept), ..self }
    }

    pub fn certificate_valid(&self) -> Duration {
        self.valid
    }

    /// True if every client that connects over TCP has all rights.
    pub fn is_insecure(&self) -> bool {
        self.insecure
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sets the certificate authority that the caller has read from its store.
    pub fn set_authority(&self, authority: Arc<Authority>) {
        self.authority.send_replace(Some(authority));
    }

    /// Stores another certificate authority in the place of the present one, and uses it from then on.
    ///
    /// # Errors
    /// [`AuthorityError`]; the present one stays.
    pub async fn replace_authority(&self, authority: Authority) -> Result<(), AuthorityError> {
        if let Some(kept) = &self.kept {
            kept.replace(&authority).await?;
        }
        self.set_authority(authority.into());
        Ok(())
    }

    /// The certificate authority in use, as a channel that announces each replacement.
    pub fn authority_in_use(&self) -> &AuthorityInUse {
        &self.authority
    }

    /// Sets the listener's TLS configuration, once the authority is available.
    pub fn set_tls(&self, tls: TlsAuthenticator) {
        drop(self.tls.set(tls));
    }

    /// The listener's TLS configuration; none for an insecure manager, or until the authority is available.
    pub fn tls(&self) -> Option<&TlsAuthenticator> {
        self.tls.get()
    }

    /// The certificate authority; none until its store has answered.
    pub fn authority(&self) -> Option<Arc<Authority>> {
        self.authority.borrow().clone()
    }

    /// True if a user of this machine is an administrator: root, the manager's own user, or a member of the admin
    /// group.
    fn is_admin(&self, uid: u32, gid: u32) -> bool {
        let uid = Uid::from_raw(uid);
        uid.is_root()
            || uid == Uid::effective()
            || self.admin_group.is_some_and(|group| is_member(uid, gid, group))
    }

    fn evidence<'a>(&self, peer: Option<&Peer>, headers: &'a HeaderMap) -> Evidence<'a> {
        let mut evidence =
            Evidence { bearer: bearer(headers), session: session(headers), ..Evidence::default() };
        match peer {
            Some(Peer::Tcp(ip)) if self.insecure => evidence.unguarded = Some(format!("anybody at {ip}")),
            Some(Peer::Unix { uid, gid }) => {
                evidence.user = Some((*uid, self.insecure || self.is_admin(*uid, *gid)));
            }
            Some(Peer::Tls { key, .. }) => evidence.tls = *key,
            Some(Peer::Tcp(_)) | None => {}
        }
        evidence
    }
}

fn is_member(uid: Uid, gid: u32, group: Gid) -> bool {
    if Gid::from_raw(gid) == group {
        return true;
    }
    let Ok(Some(user)) = User::from_uid(uid) else { return false };
    let Ok(name) = std::ffi::CString::new(user.name) else { return false };
    getgrouplist(&name, user.gid).is_ok_and(|groups| groups.contains(&group))
}

/// Token in the header `Authorization`; empty if the header has another scheme.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?;
    let text = value.to_str().unwrap_or_default();
    // Another scheme counts as an invalid token, not as a missing one.
    Some(text.strip_prefix("Bearer ").unwrap_or_default().trim())
}

/// Secret of the browser's session, from the cookie.
pub fn session(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE_NAME).map(|(_, secret)| secret)
}

/// Credentials of a caller, which are checked again during a long request: in the meantime, the token may be revoked or
/// expire, the session may end, or the node's right may be revoked.
#[derive(Clone)]
pub struct RequestCredentials {
    core: Core,
    authenticator: Authenticator,
    peer: Option<Peer>,
    headers: HeaderMap,
    may: CallerRights,
}

impl RequestCredentials {
    /// True while the credentials still give the caller the same identity.
    pub fn holds(&self) -> bool {
        self.core.caller(&self.authenticator.evidence(self.peer.as_ref(), &self.headers)).may == self.may
    }
}

/// A request and its caller, for an entry in the event log if the request is refused.
struct RefusedRequest {
    who: String,
    what: String,
}

impl RefusedRequest {
    /// Returns `None` for a read without credentials, which a browser sends before its user logs in.
    fn of(request: &Request, caller: &Caller, peer: Option<Peer>) -> Option<Self> {
        let who = match (&caller.may, peer) {
            (CallerRights::Nothing(None), _) if request.method() == Method::GET => return None,
            (CallerRights::Nothing(_), Some(Peer::Tcp(ip) | Peer::Tls { ip, .. })) => {
                format!("nobody at {ip}")
            }
            _ => caller.who.clone(),
        };
        let what: String = request.uri().path().chars().take(ASKED_CHARS_MAX).collect();
        Some(Self { who, what: format!("{} {what}", request.method()) })
    }
}

/// Adds the caller to the request. If the caller's credentials have become invalid when the response is ready, the
/// response is withheld. Refusals are recorded in the event log.
pub async fn identified(
    State((core, authenticator)): State<(Core, Authenticator)>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>().copied();
    let mut headers = HeaderMap::new();
    // The headers with credentials are copied, since the request itself is consumed.
    for name in [AUTHORIZATION, COOKIE] {
        for value in request.headers().get_all(&name) {
            headers.append(name.clone(), value.clone());
        }
    }
    let caller = core.caller(&authenticator.evidence(peer.as_ref(), &headers));
    // Only answers that show state are withheld: a change that was made is confirmed.
    let looks = request.method() == Method::GET || request.uri().path().ends_with("/sync");
    let asked = RefusedRequest::of(&request, &caller, peer);
    let credentials =
        RequestCredentials { core: core.clone(), authenticator, peer, headers, may: caller.may.clone() };
    request.extensions_mut().insert(caller);
    request.extensions_mut().insert(credentials.clone());
    let answer = next.run(request).await;
    if looks && !matches!(credentials.may, CallerRights::Nothing(_)) && !credentials.holds() {
        return ApiError::from(Denied::forbidden(&Caller::unauthenticated(Some(NO_LONGER)), ""))
            .into_response();
    }
    if matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        && let Some(RefusedRequest { who, what }) = asked
    {
        core.refused(who, what);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn what_headers_show() {
        let shown = |pairs: &[(&'static str, &str)]| {
            let headers = headers(pairs);
            (bearer(&headers).map(str::to_owned), session(&headers).map(str::to_owned))
        };
        assert_eq!(shown(&[]), (None, None));
        assert_eq!(shown(&[("authorization", "Bearer cx1.a ")]), (Some("cx1.a".into()), None));
        assert_eq!(shown(&[("authorization", "Basic x")]), (Some(String::new()), None), "not nothing");
        assert_eq!(shown(&[("cookie", "a=b; cxloe-session=s; c=d")]), (None, Some("s".into())));
        assert_eq!(shown(&[("cookie", "xcxloe-session=s")]), (None, None));
    }

    #[test]
    fn connections_show_what_they_are() {
        let (guarded, open) =
            (Authenticator::new(false, None, "https://h:1"), Authenticator::new(true, None, "http://h:1"));
        let none = HeaderMap::new();
        let tcp = Peer::Tcp([10, 0, 0, 1].into());
        assert!(guarded.evidence(Some(&tcp), &none).unguarded.is_none());
        assert!(open.evidence(Some(&tcp), &none).unguarded.is_some());
        assert!(open.evidence(None, &none).unguarded.is_none());
        let user = |authenticator: &Authenticator, uid| {
            authenticator.evidence(Some(&Peer::Unix { uid, gid: 77 }), &none).user
        };
        assert_eq!(user(&guarded, 0), Some((0, true)));
        let stranger = Uid::effective().as_raw() + 12_345;
        assert_eq!(user(&guarded, stranger), Some((stranger, false)));
        assert_eq!(
            user(&Authenticator::new(false, Some(77), ""), stranger),
            Some((stranger, true)),
            "of the group"
        );
    }
}
