//! Tokens, nodes that join and renew their certificates, and who somebody is; browsers log in and out here.

use axum::Extension;
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::NoContent;
use schemars::JsonSchema;
use serde::Deserialize;

use super::answer::{Created, WithCookie};
use super::extract::{Body, Path};
use super::guard::{By, Routes, delete, get, post};
use crate::manager::Command;
use crate::manager::access::{JoinedNode, TokenRecord};
use crate::rights::{Caller, May, Right};
use crate::server::authority::{Authority, NodeKey};
use crate::server::core::Core;
use crate::server::error::ApiError;
use crate::server::identify::{COOKIE_NAME, Door, bearer, session};
use cxloe_fabric::api::{
    CreateToken, ErrorCode, Join, Joined, Party, Renew, TokenCreated, TokenStatus, WhoAmI,
};
use cxloe_fabric::model::{Token, Watermark};

/// Seconds that a token to join with is valid when not told otherwise.
const JOIN_TTL_S: u64 = 3600;
/// Seconds that a person's token is.
const PERSON_TTL_S: u64 = 90 * 86_400;
/// The longest that can be asked for: ten years.
const TTL_S_MAX: u64 = 3650 * 86_400;

pub fn routes() -> Routes {
    Routes::new()
        .route(
            "/v1/tokens",
            get(Right::Administer, list, |op| {
                op.id("listTokens").summary("The tokens there are, without their secrets")
            }),
        )
        .route(
            "/v1/tokens",
            post(Right::Administer, create, |op| {
                op.id("createToken").summary("Make a token; it is shown this once")
            }),
        )
        .route(
            "/v1/tokens/{id}",
            delete(Right::Administer, revoke_token, |op| {
                op.id("revokeToken").summary("Have a token not taken any more")
            }),
        )
        .route(
            "/v1/join",
            post(Right::Join, join, |op| {
                op.id("join")
                    .summary("A node joins: it gets a certificate, and is known by its key from then on")
            }),
        )
        .route(
            "/v1/renew",
            post(Right::Node, renew, |op| op.id("renew").summary("A node gets a new certificate")),
        )
        .route(
            "/v1/revoke",
            post(Right::Administer, revoke, |op| {
                op.id("revokeNode").summary("Have a node not speak here any more")
            }),
        )
        .route(
            "/v1/whoami",
            get(Right::Look, who_am_i, |op| op.id("whoAmI").summary("Who asks, and what they may do")),
        )
        .route(
            "/v1/log-in",
            post(Right::Look, log_in, |op| {
                op.id("logIn").summary("The bearer of a token gets a cookie that stands for it in a browser")
            }),
        )
        .route(
            "/v1/log-out",
            post(Right::Look, log_out, |op| op.id("logOut").summary("A browser's session ends")),
        )
}

/// A path that names a token.
#[derive(Deserialize, JsonSchema)]
struct TokenPath {
    /// Its id.
    id: String,
}

async fn list(State(core): State<Core>) -> Result<Json<Vec<TokenStatus>>, ApiError> {
    Ok(Json(core.look(|manager| manager.state().tokens.values().map(TokenRecord::status).collect()).await?))
}

async fn create(
    State(core): State<Core>,
    By(caller): By,
    Extension(door): Extension<Door>,
    Body(CreateToken { role, ttl_s, compute_nodes, quota }): Body<CreateToken>,
) -> Result<Created<TokenCreated>, ApiError> {
    let authority = authority(&door)?;
    let mut random = [0; 36];
    for part in random.chunks_mut(32) {
        part.copy_from_slice(&rand::random::<[u8; 32]>()[..part.len()]);
    }
    let token = Token::new(random, authority.hash());
    let ttl_s = ttl_s.unwrap_or(if role.joins() { JOIN_TTL_S } else { PERSON_TTL_S });
    if ttl_s > TTL_S_MAX {
        let error = format!("a token of {ttl_s} s lasts too long");
        return Err(ApiError::new(ErrorCode::BadRequest, error, "ten years are possible"));
    }
    let now_ms = core.now_ms();
    let (id, expires_ms) = (token.id().to_owned(), now_ms.saturating_add(ttl_s * 1000));
    let record = TokenRecord {
        id: id.clone(),
        role,
        digest: token.digest(),
        created_ms: now_ms,
        expires_ms,
        compute_nodes,
        quota: quota.map(|quota| quota.0),
        made_by: caller.who.clone(),
        used: None,
    };
    core.apply(&caller, Command::CreateToken(record), |_, _| ()).await?;
    Ok(Created(TokenCreated { token: token.reveal(), id, role, expires_ms }))
}

async fn revoke_token(
    State(core): State<Core>,
    By(caller): By,
    Path(TokenPath { id }): Path<TokenPath>,
) -> Result<NoContent, ApiError> {
    core.apply(&caller, Command::RevokeToken(id), |_, _| ()).await?;
    Ok(NoContent)
}

async fn join(
    State(core): State<Core>,
    By(caller): By,
    Extension(door): Extension<Door>,
    Body(Join { node, tls_key, key, macs }): Body<Join>,
) -> Result<Json<Joined>, ApiError> {
    let (authority, tls) = (authority(&door)?, tls_key_of(&tls_key)?);
    let token = match &caller.may {
        May::Join(token) => Some(token.id.clone()),
        _ => None,
    };
    let (joined_ms, by) = (core.now_ms(), caller.who.clone());
    let joining = JoinedNode { node: node.clone(), tls: tls.digest(), key, macs, joined_ms, by };
    let command = Command::Join { node: joining, token, proved: caller.proved };
    let watermark = core.apply(&caller, command, |manager, _| manager.watermark()).await?;
    signed(authority, &door, &node, &tls, watermark).map(Json)
}

async fn renew(
    State(core): State<Core>,
    By(caller): By,
    Extension(door): Extension<Door>,
    Body(Renew { tls_key }): Body<Renew>,
) -> Result<Json<Joined>, ApiError> {
    let (authority, tls) = (authority(&door)?, tls_key_of(&tls_key)?);
    let Some(node) = caller.node().filter(|_| caller.proved == Some(tls.digest())) else {
        let error = "a certificate is renewed for the key that the node has joined with, and for no other";
        return Err(ApiError::new(ErrorCode::Forbidden, error, "join again with another key"));
    };
    let watermark = core.look(|manager| manager.watermark()).await?;
    signed(authority, &door, node, &tls, watermark).map(Json)
}

async fn revoke(
    State(core): State<Core>,
    By(caller): By,
    Body(node): Body<Party>,
) -> Result<NoContent, ApiError> {
    core.apply(&caller, Command::Revoke(node), |_, _| ()).await?;
    Ok(NoContent)
}

async fn who_am_i(By(caller): By) -> Json<WhoAmI> {
    Json(caller.describe())
}

async fn log_in(
    State(core): State<Core>,
    Extension(door): Extension<Door>,
    headers: HeaderMap,
) -> Result<WithCookie<WhoAmI>, ApiError> {
    let secret: String = rand::random::<[u8; 32]>().iter().map(|byte| format!("{byte:02x}")).collect();
    let begun = bearer(&headers).and_then(|token| core.log_in(token, &secret));
    let Some((caller, expires_ms)) = begun else {
        let error = "a browser logs in with a token of role admin, tenant or viewer";
        return Err(ApiError::new(ErrorCode::Unauthenticated, error, "`gmm token create` makes one"));
    };
    let seconds = expires_ms.saturating_sub(core.now_ms()) / 1000;
    let whoami = Caller { expires_ms: Some(expires_ms), ..caller }.describe();
    Ok(WithCookie(whoami, cookie(&secret, seconds, &door)))
}

async fn log_out(
    State(core): State<Core>,
    By(caller): By,
    Extension(door): Extension<Door>,
    headers: HeaderMap,
) -> WithCookie<WhoAmI> {
    if let Some(secret) = session(&headers) {
        core.log_out(secret);
    }
    WithCookie(caller.describe(), cookie("", 0, &door))
}

/// The cookie is sent back to this manager alone, on requests of its own page alone, and no script sees it.
fn cookie(secret: &str, seconds: u64, door: &Door) -> String {
    let secure = if door.is_insecure() { "" } else { "; Secure" };
    format!("{COOKIE_NAME}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}")
}

fn authority(door: &Door) -> Result<&Authority, ApiError> {
    door.authority().map(AsRef::as_ref).ok_or_else(|| {
        let error = "the key that certificates are signed with has not been read yet";
        ApiError::new(ErrorCode::Unavailable, error, "ask again in a moment")
    })
}

fn tls_key_of(text: &str) -> Result<NodeKey, ApiError> {
    NodeKey::parse(text).ok_or_else(|| {
        let error = "the TLS key of the node is none";
        ApiError::new(ErrorCode::BadRequest, error, "give an uncompressed point of P-256: 65 bytes as base64")
    })
}

fn signed(
    authority: &Authority,
    door: &Door,
    node: &Party,
    key: &NodeKey,
    watermark: Watermark,
) -> Result<Joined, ApiError> {
    let signed = authority
        .sign(node, key, door.certificate_valid())
        .map_err(|error| ApiError::new(ErrorCode::BadRequest, error.to_string(), "join with another key"))?;
    Ok(Joined {
        certificate: signed.pem,
        authority: authority.certificate_pem(),
        renew_ms: signed.renew_ms,
        expires_ms: signed.expires_ms,
        manager: door.url().to_owned(),
        watermark,
    })
}
