//! Routes for tokens, for joining, for the renewal of certificates, for a caller's own identity, and for browsers'
//! log-in and log-out.

use std::sync::Arc;

use axum::Extension;
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::NoContent;
use schemars::JsonSchema;
use serde::Deserialize;

use super::answer::{Created, WithCookie};
use super::extract::{Body, Path};
use super::guard::{RequestCaller, Routes, routes};
use crate::server::authority::{Authority, NodeKey};
use crate::server::core::Core;
use crate::server::error::ApiError;
use crate::server::identify::{Authenticator, COOKIE_NAME, bearer, session};
use cxloe_fabric::api::{
    CreateToken, ErrorCode, Join, Joined, Party, Renew, TokenCreated, TokenStatus, WhoAmI,
};
use cxloe_fabric::model::{Token, Watermark};
use cxloe_gmm_core::manager::Command;
use cxloe_gmm_core::manager::access::{JoinedNode, TokenRecord};
use cxloe_gmm_core::rights::{Caller, CallerRights};

/// Validity of a join token in seconds, unless the request gives one.
const JOIN_TTL_S: u64 = 3600;
/// Validity of a person's token in seconds, unless the request gives one.
const PERSON_TTL_S: u64 = 90 * 86_400;
/// Maximum validity of a token, in seconds: ten years.
const TTL_S_MAX: u64 = 3650 * 86_400;

pub fn routes() -> Routes {
    routes! {
        get "/v1/tokens" Administer list: "listTokens", "The tokens there are, without their secrets";
        post "/v1/tokens" Administer create: "createToken", "Make a token; it is shown this once";
        delete "/v1/tokens/{id}" Administer revoke_token: "revokeToken", "Have a token not taken any more";
        post "/v1/join" Join join: "join",
            "A node joins: it gets a certificate, and is identified by its key from then on";
        post "/v1/renew" Node renew: "renew", "A node gets a new certificate";
        post "/v1/revoke" Administer revoke: "revokeNode", "Revoke the access of a node";
        get "/v1/whoami" Look who_am_i: "whoAmI", "Identity and rights of the caller";
        post "/v1/log-in" Look log_in: "logIn", "The bearer of a token gets a cookie that stands for it in a browser";
        post "/v1/log-out" Look log_out: "logOut", "A browser's session ends";
    }
}

#[derive(Deserialize, JsonSchema)]
struct TokenPath {
    /// Identifier of the token, the part between its first and second dot.
    id: String,
}

async fn list(State(core): State<Core>) -> Result<Json<Vec<TokenStatus>>, ApiError> {
    Ok(Json(core.view(|manager| manager.state().tokens.values().map(TokenRecord::status).collect()).await?))
}

async fn create(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Extension(authenticator): Extension<Authenticator>,
    Body(CreateToken { role, ttl_s, compute_nodes, quota }): Body<CreateToken>,
) -> Result<Created<TokenCreated>, ApiError> {
    let authority = authority(&authenticator)?;
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
    RequestCaller(caller): RequestCaller,
    Path(TokenPath { id }): Path<TokenPath>,
) -> Result<NoContent, ApiError> {
    core.apply(&caller, Command::RevokeToken(id), |_, _| ()).await?;
    Ok(NoContent)
}

async fn join(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Extension(authenticator): Extension<Authenticator>,
    Body(Join { node, tls_key, key, macs, take_over }): Body<Join>,
) -> Result<Json<Joined>, ApiError> {
    let (authority, tls) = (authority(&authenticator)?, tls_key_of(&tls_key)?);
    let token = match &caller.may {
        CallerRights::Join(token) => Some(token.id.clone()),
        _ => None,
    };
    let (joined_ms, by) = (core.now_ms(), caller.who.clone());
    let joining = JoinedNode { node: node.clone(), tls: tls.digest(), key, macs, joined_ms, by };
    let command = Command::Join { node: joining, token, proved: caller.proved, take_over };
    let watermark = core.apply(&caller, command, |manager, _| manager.watermark()).await?;
    signed(&authority, &authenticator, &node, &tls, watermark).map(Json)
}

async fn renew(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Extension(authenticator): Extension<Authenticator>,
    Body(Renew { tls_key }): Body<Renew>,
) -> Result<Json<Joined>, ApiError> {
    let (authority, tls) = (authority(&authenticator)?, tls_key_of(&tls_key)?);
    let Some(node) = caller.node().filter(|_| caller.proved == Some(tls.digest())) else {
        let error = "a certificate is renewed for the key that the node has joined with, and for no other";
        return Err(ApiError::new(ErrorCode::Forbidden, error, "join again with another key"));
    };
    let watermark = core.view(|manager| manager.watermark()).await?;
    signed(&authority, &authenticator, node, &tls, watermark).map(Json)
}

async fn revoke(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Body(node): Body<Party>,
) -> Result<NoContent, ApiError> {
    core.apply(&caller, Command::Revoke(node), |_, _| ()).await?;
    Ok(NoContent)
}

async fn who_am_i(RequestCaller(caller): RequestCaller) -> Json<WhoAmI> {
    Json(caller.describe())
}

async fn log_in(
    State(core): State<Core>,
    Extension(authenticator): Extension<Authenticator>,
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
    Ok(WithCookie(whoami, cookie(&secret, seconds, &authenticator)))
}

async fn log_out(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Extension(authenticator): Extension<Authenticator>,
    headers: HeaderMap,
) -> WithCookie<WhoAmI> {
    if let Some(secret) = session(&headers) {
        core.log_out(secret);
    }
    WithCookie(caller.describe(), cookie("", 0, &authenticator))
}

/// A cookie that the browser returns only to this manager, only with requests of this manager's pages, and that no
/// script can read.
fn cookie(secret: &str, seconds: u64, authenticator: &Authenticator) -> String {
    let secure = if authenticator.is_insecure() { "" } else { "; Secure" };
    format!("{COOKIE_NAME}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}")
}

/// The authority of this manager.
///
/// # Errors
/// `unavailable` until the authority's store has answered.
pub fn authority(authenticator: &Authenticator) -> Result<Arc<Authority>, ApiError> {
    authenticator.authority().ok_or_else(|| {
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
    authenticator: &Authenticator,
    node: &Party,
    key: &NodeKey,
    watermark: Watermark,
) -> Result<Joined, ApiError> {
    let signed = authority
        .sign(node, key, authenticator.certificate_valid())
        .map_err(|error| ApiError::new(ErrorCode::BadRequest, error.to_string(), "join with another key"))?;
    Ok(Joined {
        certificate: signed.pem,
        authority: authority.certificate_pem(),
        renew_ms: signed.renew_ms,
        expires_ms: signed.expires_ms,
        manager: authenticator.url().to_owned(),
        watermark,
    })
}
