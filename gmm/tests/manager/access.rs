//! Access to the manager, over real TLS and real sockets: credentials and rights. An unknown caller, a viewer, and the
//! bearer of a join token each try every route of the OpenAPI document.

use std::path::Path;

use crate::common::{EXTENT, ObedientNode, Served, cn, compute_node, gmm, memory_node, name};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cxloe_fabric::api::{
    CreateRegion, CreateToken, ErrorCode, EventsQuery, Join, Joined, MemoryNodeSync, Party, Renew,
};
use cxloe_fabric::client::{Credentials, Identity};
use cxloe_fabric::model::{ByteSize, CnId, Role, Token};
use cxloe_fabric::{Client, ClientError};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use reqwest::{Method, StatusCode};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A manager with access control, and a client with the rights of a local administrator.
struct Rig {
    folder: tempfile::TempDir,
    served: Served,
    admin: Client,
}

impl Rig {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let served = Served::start_guarded(folder.path(), more);
        let admin = Client::new(&format!("unix:{}", folder.path().join("gmm.sock").display())).unwrap();
        Self { folder, served, admin }
    }

    async fn token(&self, token: CreateToken) -> Token {
        self.admin.create_token(&token).await.unwrap().token.parse().unwrap()
    }

    async fn client(&self, token: CreateToken) -> Client {
        Client::with(&self.served.url, Credentials::of_token(self.token(token).await)).unwrap()
    }

    /// HTTP client that trusts this manager and sends this token.
    async fn http(&self, token: Option<&Token>) -> Plain {
        let any = self.token(role(Role::Viewer)).await;
        let trusted = Credentials { authority: Some(any.authority()), ..Credentials::default() };
        let token = token.map(Token::reveal);
        Plain { url: self.served.url.clone(), http: trusted.http().build().unwrap(), token }
    }
}

struct Plain {
    url: String,
    http: reqwest::Client,
    token: Option<String>,
}

impl Plain {
    async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        request = request.header("content-type", "application/json");
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        let answer = request.send().await.unwrap();
        (answer.status(), serde_json::from_str(&answer.text().await.unwrap()).unwrap_or_default())
    }
}

pub fn role(role: Role) -> CreateToken {
    CreateToken { role, ttl_s: None, compute_nodes: Vec::new(), quota: None }
}

fn code<T: std::fmt::Debug>(result: Result<T, ClientError>) -> ErrorCode {
    let error = result.unwrap_err();
    error.code().unwrap_or_else(|| panic!("not refused: {error}"))
}

/// A node that joins, with its TLS key.
pub struct Joining {
    pair: KeyPair,
}

impl Joining {
    pub fn new() -> Self {
        Self { pair: KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap() }
    }

    /// The private key in PEM, as in an identity file.
    pub fn key_pem(&self) -> String {
        self.pair.serialize_pem()
    }

    fn key(&self) -> String {
        STANDARD.encode(self.pair.public_key_raw())
    }

    pub fn request(&self, node: Party, mac: [u8; 6]) -> Join {
        Join { node, tls_key: self.key(), key: None, macs: vec![mac.into()], take_over: false }
    }

    /// A client with the certificate of the joined node.
    fn client(&self, url: &str, joined: &Joined) -> Client {
        let pem = format!("{}{}{}", self.pair.serialize_pem(), joined.certificate, joined.authority);
        Client::with(url, Credentials::of_node(Identity::parse(&pem).unwrap().into())).unwrap()
    }
}

pub fn mn(node: &str) -> Party {
    Party::MemoryNode(name(node))
}

pub fn mac(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 2, last]
}

/// Every operation of the OpenAPI document: method, example path, required right.
fn operations(document: &Value) -> Vec<(Method, String, String)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let right = operation["x-cxloe-right"].as_str();
            let right =
                right.unwrap_or_else(|| panic!("{method} {path} does not say which right it asks for"));
            let path = path
                .replace("{compute_node}", "02:00:00:00:00:01")
                .replace("{name}", "a")
                .replace("{id}", "a");
            found.push((method.to_uppercase().parse().unwrap(), path, right.to_owned()));
        }
    }
    assert!(found.len() > 40, "{found:?}");
    found
}

#[tokio::test]
async fn each_route_has_a_right_and_none_but_health_is_open() {
    let rig = Rig::start();
    let (admin, viewer) = (rig.token(role(Role::Admin)).await, rig.token(role(Role::Viewer)).await);
    let joiner = rig.token(role(Role::MemoryNode)).await;
    let (_, document) = rig.http(Some(&viewer)).await.ask(Method::GET, "/v1/openapi.json", None).await;
    let (stranger, viewer) = (rig.http(None).await, rig.http(Some(&viewer)).await);
    let (joiner, admin) = (rig.http(Some(&joiner)).await, rig.http(Some(&admin)).await);
    for (method, path, right) in operations(&document) {
        let ask = async |who: &Plain| who.ask(method.clone(), &path, Some(serde_json::json!({}))).await;
        let open = right == "anybody";
        assert_eq!(open, path == "/v1/health", "{path}");
        let (status, said) = ask(&stranger).await;
        assert_eq!(status == StatusCode::UNAUTHORIZED, !open, "a stranger: {method} {path}: {status} {said}");
        let changes = method != Method::GET;
        // The answer of a stream has no end, so this test cannot read all of it.
        if path.ends_with("/stream") {
            continue;
        }
        let (status, said) = ask(&viewer).await;
        let own_session = path == "/v1/log-in" || path == "/v1/log-out";
        let looks = right == "viewer" || open;
        assert!(!(changes && looks) || own_session, "{method} {path} is not for looking");
        match looks {
            true => assert!(
                status == StatusCode::OK || status == StatusCode::NOT_FOUND,
                "a viewer: {method} {path}: {status} {said}"
            ),
            false => assert_eq!(status, StatusCode::FORBIDDEN, "a viewer: {method} {path}: {said}"),
        }
        let (status, said) = ask(&joiner).await;
        let for_joining = matches!(path.as_str(), "/v1/health" | "/v1/join");
        assert_eq!(
            status == StatusCode::FORBIDDEN,
            !for_joining,
            "to join: {method} {path}: {status} {said}"
        );
        let (status, said) = ask(&admin).await;
        assert!(
            status != StatusCode::UNAUTHORIZED && (status != StatusCode::FORBIDDEN || path == "/v1/renew"),
            "an administrator: {method} {path}: {status} {said}"
        );
    }
    let (status, _) = stranger.ask(Method::POST, "/v1/no/such/path", None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_node_joins_once_with_a_token_and_acts_as_itself_only() {
    let rig = Rig::start();
    let token = rig.token(role(Role::MemoryNode)).await;
    let joining = Client::with(&rig.served.url, Credentials::of_token(token.clone())).unwrap();
    let node = Joining::new();
    let joined = joining.join(&node.request(mn("mn0"), mac(1))).await.unwrap();
    assert_eq!(joined.manager, rig.served.url);
    assert!(joined.renew_ms < joined.expires_ms);
    // A request that is repeated with the same key, as after a lost answer, must succeed again.
    joining.join(&node.request(mn("mn0"), mac(1))).await.unwrap();
    let other = Joining::new();
    let used_up = joining.join(&other.request(mn("mn1"), mac(2))).await;
    assert!(used_up.as_ref().unwrap_err().to_string().contains("used up"), "{used_up:?}");
    assert_eq!(code(joining.memory_nodes().await), ErrorCode::Forbidden, "it is for joining");

    let client = node.client(&rig.served.url, &joined);
    assert_eq!(client.who_am_i().await.unwrap().who, "memory node mn0");
    let (_serving, registered) = ObedientNode::start(client.clone(), memory_node("mn0", 1, 8)).await;
    let mut moved = memory_node("mn0", 1, 8);
    moved.macs = vec![mac(9).into()];
    assert_eq!(code(client.register_memory_node(&moved).await), ErrorCode::Forbidden, "another address");
    assert_eq!(code(client.register_memory_node(&memory_node("mn1", 1, 8)).await), ErrorCode::Forbidden);
    let sync = MemoryNodeSync {
        registration: registered.registration,
        acked_seq: 0,
        results: Vec::new(),
        progress: None,
        fills: Vec::new(),
        stats: Value::Null,
        wait_ms: 0,
    };
    assert_eq!(code(client.sync_memory_node(&name("mn1"), &sync).await), ErrorCode::Forbidden);
    assert_eq!(code(client.register_compute_node(&compute_node("cn1", 1)).await), ErrorCode::Forbidden);
    let region = CreateRegion::new(name("r"), EXTENT, cn(1));
    assert_eq!(code(client.create_region(&region).await), ErrorCode::Forbidden);
    assert_eq!(client.memory_nodes().await.unwrap().len(), 1, "it may look");

    // Another machine must not be able to join under the node's name with a token that does not name the node.
    let again = rig.client(role(Role::MemoryNode)).await;
    assert_eq!(code(again.join(&other.request(mn("mn0"), mac(1))).await), ErrorCode::Forbidden);
    assert_eq!(
        code(again.join(&other.request(mn("mn2"), mac(1))).await),
        ErrorCode::Forbidden,
        "its address"
    );
    // The node itself joins again with its key and another network interface.
    let pem = format!("{}{}{}", node.pair.serialize_pem(), joined.certificate, joined.authority);
    let token = rig.token(role(Role::MemoryNode)).await;
    let both =
        Credentials { identity: Some(Identity::parse(&pem).unwrap().into()), ..Credentials::of_token(token) };
    let both = Client::with(&rig.served.url, both).unwrap();
    both.join(&node.request(mn("mn0"), mac(9))).await.unwrap();
    client.register_memory_node(&moved).await.unwrap();

    // The node gets a new certificate for its own key, but not for another key.
    let renewed = client.renew(&Renew { tls_key: node.key() }).await.unwrap();
    assert_ne!(renewed.certificate, joined.certificate);
    assert_eq!(node.client(&rig.served.url, &renewed).who_am_i().await.unwrap().who, "memory node mn0");
    assert_eq!(code(client.renew(&Renew { tls_key: other.key() }).await), ErrorCode::Forbidden);

    rig.admin.revoke(&mn("mn0")).await.unwrap();
    assert_eq!(code(client.memory_nodes().await), ErrorCode::Unauthenticated, "on the same connection");
    let events = rig.admin.events(EventsQuery::default()).await.unwrap().events;
    let who = |label: &str| {
        events
            .iter()
            .filter(|event| event.kind.label() == label)
            .filter_map(|event| event.who.clone())
            .next_back()
    };
    assert_eq!(who("memory_node_registered").as_deref(), Some("memory node mn0"));
    assert!(who("memory_node_joined").unwrap().starts_with("token "), "{events:?}");
    assert_eq!(who("memory_node_revoked").as_deref(), Some("uid 0"));
}

#[tokio::test]
async fn tokens_end_and_those_of_other_managers_are_none() {
    let (rig, other) = (Rig::start(), Rig::start());
    let foreign = other.token(role(Role::Admin)).await;
    let wrong = Client::with(&rig.served.url, Credentials::of_token(foreign)).unwrap();
    let refused = wrong.memory_nodes().await.unwrap_err();
    assert!(matches!(refused, ClientError::Unreachable { .. }), "{refused}");
    assert!(refused.to_string().contains("one to trust"), "{refused}");
    let nothing = Client::new(&rig.served.url).unwrap().memory_nodes().await.unwrap_err();
    assert!(nothing.to_string().contains("which authority to trust"), "{nothing}");

    let brief = rig.client(CreateToken { ttl_s: Some(1), ..role(Role::Viewer) }).await;
    let deadline = std::time::Instant::now() + crate::common::TEST_TIMEOUT;
    loop {
        match brief.memory_nodes().await {
            Ok(_) => assert!(std::time::Instant::now() < deadline, "it does not end"),
            Err(error) => {
                assert_eq!(error.code(), Some(ErrorCode::Unauthenticated));
                assert!(error.to_string().contains("has ended"), "{error}");
                break;
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let viewer = rig.token(role(Role::Viewer)).await;
    let client = Client::with(&rig.served.url, Credentials::of_token(viewer.clone())).unwrap();
    client.memory_nodes().await.unwrap();
    rig.admin.revoke_token(viewer.id()).await.unwrap();
    assert_eq!(code(client.memory_nodes().await), ErrorCode::Unauthenticated);
    assert_eq!(code(rig.admin.revoke_token("nosuch").await), ErrorCode::NotFound);
    // The secret of a token is in no listing, no log and no store.
    let listed = serde_json::to_string(&rig.admin.tokens().await.unwrap()).unwrap();
    let secret = viewer.reveal().split('.').nth(2).unwrap().to_owned();
    assert!(!listed.contains(&secret) && !rig.served.log().contains(&secret));
    let kept = std::fs::read(rig.folder.path().join("gmm.redb")).unwrap();
    assert!(
        !kept.windows(secret.len()).any(|window| window == secret.as_bytes()),
        "the store holds hashes only"
    );
}

#[tokio::test]
async fn what_is_known_outlives_the_manager() {
    let rig = Rig::start();
    let token = rig.token(role(Role::MemoryNode)).await;
    let node = Joining::new();
    let joining = Client::with(&rig.served.url, Credentials::of_token(token)).unwrap();
    let joined = joining.join(&node.request(mn("mn0"), mac(1))).await.unwrap();
    let viewer = rig.token(role(Role::Viewer)).await;
    let Rig { folder, served, .. } = rig;
    served.kill();
    let served = Served::start_guarded(folder.path(), &[]);
    let client = Client::with(&served.url, Credentials::of_token(viewer)).unwrap();
    client.memory_nodes().await.unwrap();
    assert_eq!(node.client(&served.url, &joined).who_am_i().await.unwrap().role, "memory node");
}

#[tokio::test]
async fn a_tenant_has_regions_of_its_own_up_to_its_quota() {
    let rig = Rig::start();
    let (_node, _) = ObedientNode::start(rig.admin.clone(), memory_node("mn0", 1, 64)).await;
    for last in 1..=2 {
        rig.admin.register_compute_node(&compute_node(&format!("cn{last}"), last)).await.unwrap();
    }
    let own: Vec<CnId> = vec![cn(1)];
    let quota = Some(ByteSize(4 * EXTENT));
    let tenant = rig.client(CreateToken { compute_nodes: own, quota, ..role(Role::Tenant) }).await;
    let create =
        |region: &str, extents: u64, last: u8| CreateRegion::new(name(region), extents * EXTENT, cn(last));
    tenant.create_region(&create("mine", 3, 1)).await.unwrap();
    assert_eq!(
        code(tenant.create_region(&create("more", 2, 1)).await),
        ErrorCode::Forbidden,
        "over its quota"
    );
    assert_eq!(code(tenant.create_region(&create("theirs", 1, 2)).await), ErrorCode::Forbidden);
    rig.admin.create_region(&create("theirs", 1, 2)).await.unwrap();
    let destroy = cxloe_fabric::api::DestroyRegion { force: true, wait_ms: 5000, created_ms: None };
    assert_eq!(code(tenant.destroy_region(&name("theirs"), destroy).await), ErrorCode::Forbidden);
    assert_eq!(code(tenant.create_token(&role(Role::Admin)).await.map(drop)), ErrorCode::Forbidden);
    tenant.destroy_region(&name("mine"), destroy).await.unwrap();
    assert_eq!(tenant.regions().await.unwrap().len(), 1, "it sees all");
}

#[tokio::test]
async fn lists_can_be_those_of_a_tenant() {
    let rig = Rig::start();
    let (_node, _) = ObedientNode::start(rig.admin.clone(), memory_node("mn0", 1, 64)).await;
    for last in 1..=3 {
        rig.admin.register_compute_node(&compute_node(&format!("cn{last}"), last)).await.unwrap();
        let create = CreateRegion::new(name(&format!("r{last}")), EXTENT, cn(last));
        rig.admin.create_region(&create).await.unwrap();
    }
    let tenant = CreateToken { compute_nodes: vec![cn(1), cn(3)], ..role(Role::Tenant) };
    let id = rig.admin.create_token(&tenant).await.unwrap().id;
    let viewer = rig.admin.create_token(&role(Role::Viewer)).await.unwrap().id;
    let socket = format!("unix:{}", rig.folder.path().join("gmm.sock").display());
    let list = |words: &[&str]| {
        let output = gmm().args(["--manager", &socket, "list"]).args(words).output().unwrap();
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (found, output.status.code(), error)
    };
    let names = |found: &serde_json::Value, key: &str| -> Vec<String> {
        found.as_array().unwrap().iter().map(|each| each[key].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&list(&["-R", "--tenant", &id]).0, "region"), ["r1", "r3"]);
    assert_eq!(list(&["--tenant", &id]).0.as_array().unwrap().len(), 2, "its compute nodes");
    let (_, code, error) = list(&["-R", "--tenant", &viewer]);
    assert!(code == Some(4) && error.contains("gmm token list"), "{code:?} {error}");
}

#[tokio::test]
async fn a_tenant_changes_nothing_of_anothers_by_any_route() {
    let rig = Rig::start();
    let (_node, _) = ObedientNode::start(rig.admin.clone(), memory_node("mn0", 1, 64)).await;
    for last in 1..=2 {
        rig.admin.register_compute_node(&compute_node(&format!("cn{last}"), last)).await.unwrap();
    }
    let theirs = rig.admin.create_region(&CreateRegion::new(name("a"), EXTENT, cn(1))).await.unwrap();
    let tenant = rig.token(CreateToken { compute_nodes: vec![cn(2)], ..role(Role::Tenant) }).await;
    let tenant = rig.http(Some(&tenant)).await;
    let (_, document) = tenant.ask(Method::GET, "/v1/openapi.json", None).await;
    let mut tried = 0;
    for (method, path, right) in operations(&document) {
        if right == "viewer" || right == "anybody" {
            continue;
        }
        let body = match path.as_str() {
            "/v1/regions" => serde_json::json!({"name": "b", "size": EXTENT, "owner": cn(1)}),
            grow if grow.ends_with("/grow") => serde_json::json!({"size": 2 * EXTENT}),
            protect if protect.ends_with("/protect") => serde_json::json!({"protect": "mirror"}),
            clone if clone.ends_with("/clone") => serde_json::json!({"name": "b"}),
            moves if moves.ends_with("/move") => serde_json::json!({"to": cn(2)}),
            share if share.ends_with("/share") => serde_json::json!({"with": cn(2)}),
            _ => serde_json::json!({}),
        };
        let (status, said) = tenant.ask(method.clone(), &path, Some(body)).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{method} {path} ({right}): {said}");
        tried += usize::from(right == "tenant");
    }
    assert!(
        tried >= 11,
        "create, grow, protect, move, seal, share, clone, disable, enable, reset, destroy: {tried}"
    );
    assert_eq!(rig.admin.region(&name("a")).await.unwrap(), theirs);
    assert_eq!(rig.admin.regions().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_tenant_moves_its_regions_between_its_own_compute_nodes() {
    let rig = Rig::start();
    let (_node, _) = ObedientNode::start(rig.admin.clone(), memory_node("mn0", 1, 64)).await;
    for last in 1..=3 {
        rig.admin.register_compute_node(&compute_node(&format!("cn{last}"), last)).await.unwrap();
    }
    rig.admin.create_region(&CreateRegion::new(name("a"), EXTENT, cn(1))).await.unwrap();
    let tenant = rig.token(CreateToken { compute_nodes: vec![cn(1), cn(2)], ..role(Role::Tenant) }).await;
    let tenant = rig.http(Some(&tenant)).await;
    let ask = async |what: &str, body: serde_json::Value| {
        tenant.ask(Method::POST, &format!("/v1/regions/a/{what}"), Some(body)).await
    };
    let (status, said) = ask("move", serde_json::json!({"to": cn(3)})).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{said}");
    let (status, said) = ask("share", serde_json::json!({"with": cn(3)})).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{said}");
    let (status, said) = ask("move", serde_json::json!({"to": "cn2", "wait_ms": 0})).await;
    assert!(status.is_success(), "{status}: {said}");
    let (status, said) = ask("move", serde_json::json!({"to": null})).await;
    assert!(status.is_success(), "{status}: {said}");
    let (status, said) = ask("seal", serde_json::json!({"wait_ms": 0})).await;
    assert!(status.is_success(), "{status}: {said}");
}

#[tokio::test]
async fn browsers_log_in_by_a_cookie_that_no_script_sees() {
    let rig = Rig::start();
    let admin = rig.token(role(Role::Admin)).await;
    let plain = rig.http(Some(&admin)).await;
    let log_in =
        plain.http.post(format!("{}/v1/log-in", plain.url)).header("content-type", "application/json");
    let answer = log_in.bearer_auth(admin.reveal()).send().await.unwrap();
    let cookie = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
    for part in ["HttpOnly", "SameSite=Strict", "Secure", "Path=/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let pair = cookie.split(';').next().unwrap().to_owned();
    assert!(!pair.contains(&admin.reveal()[..20]), "{pair}");
    let ask = async |path: &str, method: Method, origin: Option<&str>| {
        let mut request = plain.http.request(method, format!("{}{path}", plain.url)).header("cookie", &pair);
        request = request.header("content-type", "application/json");
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        request.send().await.unwrap().status()
    };
    assert_eq!(ask("/v1/regions", Method::GET, None).await, StatusCode::OK);
    let evil = Some("https://evil.example");
    assert_eq!(ask("/v1/log-out", Method::POST, evil).await, StatusCode::FORBIDDEN, "another origin");
    assert_eq!(ask("/v1/regions", Method::GET, None).await, StatusCode::OK);
    assert_eq!(ask("/v1/log-out", Method::POST, Some(&plain.url)).await, StatusCode::OK);
    assert_eq!(ask("/v1/regions", Method::GET, None).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn the_socket_knows_its_users() {
    let rig = Rig::start();
    assert_eq!(rig.admin.who_am_i().await.unwrap().role, "admin");
    let config = rig.folder.path().join("config");
    let run = |token: Option<&str>, manager: Option<&str>, words: &[&str]| {
        let mut command = gmm();
        command.env("XDG_CONFIG_HOME", &config);
        if let Some(token) = token {
            command.env("CXLOE_TOKEN", token);
        }
        if let Some(manager) = manager {
            command.args(["--manager", manager]);
        }
        command.args(words).output().unwrap()
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let socket = format!("unix:{}", rig.folder.path().join("gmm.sock").display());
    let made = run(None, Some(&socket), &["token", "create", "--role", "viewer", "--ttl", "10m"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let token = text(&made.stdout);
    let logged_in = run(None, None, &["login", &rig.served.url, "--token", &token]);
    assert!(logged_in.status.success(), "{}", text(&logged_in.stderr));
    let listed = run(None, None, &["list", "-M"]);
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    let refused = run(None, None, &["forget", "mn0"]);
    assert_eq!(refused.status.code(), Some(5), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("(viewer)"), "{}", text(&refused.stderr));
    let admin = run(None, Some(&socket), &["token", "create", "--role", "admin"]);
    let whoami = run(Some(&text(&admin.stdout)), None, &["whoami"]);
    assert!(text(&whoami.stdout).contains("\"admin\""), "the environment outweighs what is kept");
    assert!(run(None, None, &["logout"]).status.success());
    assert!(!run(None, Some(&rig.served.url), &["list", "-M"]).status.success());
    let path = Path::new(&config).join("cxloe/logins.json");
    assert!(!std::fs::read_to_string(path).unwrap().contains(&token));
}

#[tokio::test]
async fn without_tls_nobody_is_let_in_by_accident() {
    let rig = Rig::start();
    let plain = rig.served.url.replacen("https:", "http:", 1);
    let asked = Client::new(&plain).unwrap().memory_nodes().await;
    assert!(asked.is_err(), "{asked:?}");
    let folder = tempfile::tempdir().unwrap();
    let open = Served::start(folder.path(), &[]);
    assert!(open.log().contains("--insecure"), "{}", open.log());
    assert!(open.client().health().await.unwrap().insecure);
    assert!(!rig.admin.health().await.unwrap().insecure);
    // A page that resolves its own name to this address cannot read anything.
    let address = open.url.trim_start_matches("http://");
    for (host, status) in [(address, "200"), ("evil.example:7440", "403"), ("localhost", "200")] {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET /v1/regions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {answer}");
    }
}

#[tokio::test]
async fn slow_handshakes_take_no_connection_of_others() {
    let rig = Rig::start_with(&["--connections-max", "64"]);
    let token = rig.token(role(Role::MemoryNode)).await;
    let node = Joining::new();
    let joining = Client::with(&rig.served.url, Credentials::of_token(token)).unwrap();
    let joined = joining.join(&node.request(mn("mn0"), mac(1))).await.unwrap();
    let client = node.client(&rig.served.url, &joined);
    client.who_am_i().await.unwrap();
    let address = rig.served.url.trim_start_matches("https://").to_owned();
    let mut strangers = Vec::new();
    for _ in 0..300 {
        strangers.push(tokio::net::TcpStream::connect(&address).await.unwrap());
    }
    client.who_am_i().await.unwrap();
    let again = node.client(&rig.served.url, &joined);
    again.who_am_i().await.unwrap();
}

/// A viewer opens as many connections as possible, each with a long poll. Nodes with open connections, and nodes that
/// connect, are not affected.
#[tokio::test]
async fn a_viewer_with_too_many_connections_takes_none_of_the_nodes() {
    let rig = Rig::start_with(&["--connections-max", "24", "--node-timeout-ms", "2000"]);
    let token = rig.token(role(Role::MemoryNode)).await;
    let node = Joining::new();
    let joining = Client::with(&rig.served.url, Credentials::of_token(token)).unwrap();
    let joined = joining.join(&node.request(mn("mn0"), mac(1))).await.unwrap();
    let client = node.client(&rig.served.url, &joined);
    let (_serving, _) = ObedientNode::start(client, memory_node("mn0", 1, 8)).await;
    let viewer = rig.token(role(Role::Viewer)).await;
    let newest = rig.admin.events(EventsQuery::default()).await.unwrap().newest;
    let mut waiting = Vec::new();
    for _ in 0..64 {
        // Each client has its own connection.
        let greedy = Client::with(&rig.served.url, Credentials::of_token(viewer.clone())).unwrap();
        waiting.push(tokio::spawn(async move {
            let wait = EventsQuery { after: newest + 1000, wait_ms: 60_000, ..EventsQuery::default() };
            greedy.events(wait).await.map(drop)
        }));
    }
    // Some of the viewer's requests are refused, by an answer or a closed connection, since its other
    // requests use up its limit.
    crate::common::eventually("some are refused", || async {
        waiting.iter().any(tokio::task::JoinHandle::is_finished).then_some(())
    })
    .await;
    let since = std::time::Instant::now();
    while since.elapsed() < std::time::Duration::from_millis(2500) {
        // Each of these clients has its own connection, as a node has after a restart.
        assert_eq!(node.client(&rig.served.url, &joined).who_am_i().await.unwrap().role, "memory node");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert!(waiting.iter().any(|one| !one.is_finished()), "viewers did hold connections meanwhile");
    let events = rig.admin.events(EventsQuery::default()).await.unwrap().events;
    let silent = events.iter().filter(|event| event.kind.label() == "memory_node_unreachable").count();
    assert_eq!(silent, 0, "the node was heard all the time: {events:?}");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// When a token is revoked, the streams and long polls that were begun with it must end without further data.
#[tokio::test]
async fn streams_and_waiting_requests_end_with_their_token() {
    let rig = Rig::start();
    let viewer = rig.token(role(Role::Viewer)).await;
    let plain = rig.http(Some(&viewer)).await;
    let get = |path: &str| plain.http.get(format!("{}{path}", plain.url)).bearer_auth(viewer.reveal());
    let newest = rig.admin.events(EventsQuery::default()).await.unwrap().newest;
    let mut stream = get(&format!("/v1/events/stream?after={newest}")).send().await.unwrap();
    assert_eq!(stream.status(), StatusCode::OK);
    // This long poll waits up to a minute for a `quota_set` event, which the test causes only after the revocation.
    let waiting = get(&format!("/v1/events?after={newest}&kind=quota_set&wait_ms=60000")).send();
    let waiting = tokio::spawn(waiting);
    rig.admin.create_token(&role(Role::Viewer)).await.unwrap();
    let wait_limit = crate::common::TEST_TIMEOUT;
    let first = tokio::time::timeout(wait_limit, stream.chunk()).await.unwrap().unwrap().unwrap();
    assert!(String::from_utf8_lossy(&first).contains("token_created"), "{first:?}");
    rig.admin.revoke_token(viewer.id()).await.unwrap();
    let mut rest = Vec::new();
    while let Some(chunk) = tokio::time::timeout(wait_limit, stream.chunk()).await.unwrap().unwrap() {
        rest.extend_from_slice(&chunk);
    }
    assert!(!String::from_utf8_lossy(&rest).contains("token_revoked"), "what came after is not told");
    rig.admin.create_token(&role(Role::Viewer)).await.unwrap();
    let owner = cxloe_fabric::api::Owner::CnId(cn(1));
    rig.admin.register_compute_node(&compute_node("cn1", 1)).await.unwrap();
    rig.admin.set_quota(&owner, Some(EXTENT)).await.unwrap();
    let answer = tokio::time::timeout(wait_limit, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{:?}", answer.text().await);
}

/// Refused requests are in the event log with their caller, at a limited rate; those of a browser before its user logs
/// in are not.
#[tokio::test]
async fn refused_attempts_are_reported_within_bounds() {
    let rig = Rig::start();
    let viewer = rig.token(role(Role::Viewer)).await;
    let plain = rig.http(Some(&viewer)).await;
    for _ in 0..50 {
        let (status, _) = plain.ask(Method::POST, "/v1/revoke", Some(serde_json::json!({}))).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
    }
    let stranger = rig.http(None).await;
    assert_eq!(stranger.ask(Method::GET, "/v1/regions", None).await.0, StatusCode::UNAUTHORIZED);
    let guess = Plain { token: Some("cx1.00000000.guess.x".into()), ..rig.http(None).await };
    assert_eq!(guess.ask(Method::GET, "/v1/regions", None).await.0, StatusCode::UNAUTHORIZED);
    let page = stranger.http.post(format!("{}/v1/regions", stranger.url));
    let page = page.header("content-type", "application/json").header("origin", "https://evil.example");
    assert_eq!(page.send().await.unwrap().status(), StatusCode::FORBIDDEN);
    let told = crate::common::eventually("all are told of", || async {
        let query = EventsQuery { kind: Some("access_refused".into()), ..EventsQuery::default() };
        let events = rig.admin.events(query).await.unwrap().events;
        (events.len() >= 3).then_some(events)
    })
    .await;
    let who: Vec<&str> = told.iter().filter_map(|event| event.who.as_deref()).collect();
    let viewer = format!("token {}", viewer.id());
    assert_eq!(who, [viewer.as_str(), "nobody at 127.0.0.1", "a page of https://evil.example"], "{told:?}");
}
