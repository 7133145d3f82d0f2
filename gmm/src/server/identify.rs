//! Who asks: what the connection and the headers of a request show, put before the [directory](crate::rights::Directory).
//! What routes and commands then allow is decided in [`crate::rights`].

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cxloe_daemon::http::{Peer, TlsDoor};
use nix::unistd::{Gid, Uid, User, getgrouplist};

use super::authority::{Authority, NODE_VALID_DEFAULT};
use super::core::Core;
use super::error::ApiError;
use crate::rights::{Caller, Denied, Evidence, May};

/// Of a path, in an entry of the event log.
const ASKED_CHARS_MAX: usize = 100;
/// Why somebody is nobody who was somebody when they asked.
const NO_LONGER: &str = "its token, its session or its certificate has ended while the answer was waited for";

/// The name of the cookie that a browser's session is known by.
pub const COOKIE_NAME: &str = "cxloe-session";

/// How this process lets people and nodes in.
#[derive(Clone)]
pub struct Door {
    /// Without TLS and without rights over TCP.
    insecure: bool,
    /// The group whose members are administrators on the Unix socket.
    admin_group: Option<Gid>,
    /// Who signs certificates; none yet where it is kept in a store that has not answered.
    authority: Arc<OnceLock<Arc<Authority>>>,
    /// Where nodes reach this manager.
    url: Arc<str>,
    /// How long certificates of nodes are valid.
    valid: Duration,
    /// What TLS is spoken with.
    tls: Arc<OnceLock<TlsDoor>>,
}

impl Door {
    /// A door of a manager that is reached at `url`.
    pub fn new(insecure: bool, admin_group: Option<u32>, url: &str) -> Self {
        let admin_group = admin_group.map(Gid::from_raw);
        let (authority, tls) = (Arc::default(), Arc::default());
        Self { insecure, admin_group, authority, url: url.into(), valid: NODE_VALID_DEFAULT, tls }
    }

    /// The same with another time of certificates.
    pub fn certifying_for(self, valid: Duration) -> Self {
        Self { valid, ..self }
    }

    /// How long certificates of nodes are valid.
    pub fn certificate_valid(&self) -> Duration {
        self.valid
    }

    /// Whether whoever reaches it over TCP may do everything.
    pub fn is_insecure(&self) -> bool {
        self.insecure
    }

    /// Where nodes reach this manager.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// From here on, certificates are signed.
    pub fn set_authority(&self, authority: Arc<Authority>) {
        drop(self.authority.set(authority));
    }

    /// From here on, TLS is spoken with this.
    pub fn set_tls(&self, tls: TlsDoor) {
        drop(self.tls.set(tls));
    }

    /// What TLS is spoken with; nothing where this manager is insecure.
    pub fn tls(&self) -> Option<&TlsDoor> {
        self.tls.get()
    }

    /// Who signs certificates.
    pub fn authority(&self) -> Option<&Arc<Authority>> {
        self.authority.get()
    }

    /// Whether a user of this machine is an administrator: root, the manager's own user, and members of its group.
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

/// The token that comes with a request.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?;
    let text = value.to_str().unwrap_or_default();
    // Something else than a token is no token either, and not nothing.
    Some(text.strip_prefix("Bearer ").unwrap_or_default().trim())
}

/// The session that comes with a request.
pub fn session(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE_NAME).map(|(_, secret)| secret)
}

/// Who asks, to be looked at again while the answer takes its time: a token may be revoked or end meanwhile, a session be
/// over, a node be shown out.
#[derive(Clone)]
pub struct Standing {
    core: Core,
    door: Door,
    peer: Option<Peer>,
    headers: HeaderMap,
    may: May,
}

impl Standing {
    /// Whether who asks still is what they were.
    pub fn holds(&self) -> bool {
        self.core.caller(&self.door.evidence(self.peer.as_ref(), &self.headers)).may == self.may
    }
}

/// What was asked, by whom, as the event log has it if they are refused.
struct Asked {
    who: String,
    what: String,
}

impl Asked {
    /// None for who looks around without saying who they are: a browser does before its user logs in.
    fn of(request: &Request, caller: &Caller, peer: Option<Peer>) -> Option<Self> {
        let who = match (&caller.may, peer) {
            (May::Nothing(None), _) if request.method() == Method::GET => return None,
            (May::Nothing(_), Some(Peer::Tcp(ip) | Peer::Tls { ip, .. })) => format!("nobody at {ip}"),
            _ => caller.who.clone(),
        };
        let what: String = request.uri().path().chars().take(ASKED_CHARS_MAX).collect();
        Some(Self { who, what: format!("{} {what}", request.method()) })
    }
}

/// Says to what follows who asks. What was asked is not told to somebody who is nobody any more when the answer is there;
/// and of who is refused, the event log hears.
pub async fn identified(
    State((core, door)): State<(Core, Door)>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>().copied();
    let mut headers = HeaderMap::new();
    for name in [AUTHORIZATION, COOKIE] {
        for value in request.headers().get_all(&name) {
            headers.append(name.clone(), value.clone());
        }
    }
    let caller = core.caller(&door.evidence(peer.as_ref(), &headers));
    let looks = request.method() == Method::GET || request.uri().path().ends_with("/sync");
    let asked = Asked::of(&request, &caller, peer);
    let standing = Standing { core: core.clone(), door, peer, headers, may: caller.may.clone() };
    request.extensions_mut().insert(caller);
    request.extensions_mut().insert(standing.clone());
    let answer = next.run(request).await;
    if looks && !matches!(standing.may, May::Nothing(_)) && !standing.holds() {
        return ApiError::from(Denied::forbidden(&Caller::nobody(Some(NO_LONGER)), "")).into_response();
    }
    if matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        && let Some(Asked { who, what }) = asked
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
        let (guarded, open) = (Door::new(false, None, "https://h:1"), Door::new(true, None, "http://h:1"));
        let none = HeaderMap::new();
        let tcp = Peer::Tcp([10, 0, 0, 1].into());
        assert!(guarded.evidence(Some(&tcp), &none).unguarded.is_none());
        assert!(open.evidence(Some(&tcp), &none).unguarded.is_some());
        assert!(open.evidence(None, &none).unguarded.is_none());
        let user = |door: &Door, uid| door.evidence(Some(&Peer::Unix { uid, gid: 77 }), &none).user;
        assert_eq!(user(&guarded, 0), Some((0, true)));
        let stranger = Uid::effective().as_raw() + 12_345;
        assert_eq!(user(&guarded, stranger), Some((stranger, false)));
        assert_eq!(user(&Door::new(false, Some(77), ""), stranger), Some((stranger, true)), "of the group");
    }
}
