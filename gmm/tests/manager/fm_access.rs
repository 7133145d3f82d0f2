//! Access to the FM API, over real TLS: a joined FM client can manage; a client without a certificate, with a node's
//! certificate or with a revoked one receives nothing.

use std::sync::Arc;
use std::time::Instant;

use crate::common::{Served, TEST_TIMEOUT, cn, compute_node, gmm, name};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cxloe_fabric::Client;
use cxloe_fabric::api::{CreateToken, ErrorCode, EventsQuery, Join, Party};
use cxloe_fabric::client::{Credentials, Identity};
use cxloe_fabric::model::{Role, Token};
use cxloe_fm::client::{FmClient, FmClientError, Recipient};
use cxloe_fm::header::Dialect;
use cxloe_fm::opcode::Opcode;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A manager with the FM API, and the FM API's address.
struct Rig {
    folder: tempfile::TempDir,
    served: Served,
    admin: Client,
    fm: String,
}

impl Rig {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let served = Served::start_guarded(folder.path(), &["--fm-listen", "127.0.0.1:0"]);
        let admin = Client::new(&format!("unix:{}", folder.path().join("gmm.sock").display())).unwrap();
        let address = |log: &str| {
            let line = log.lines().find(|line| line.contains("FM API of switch"))?;
            Some(line.rsplit_once(" on ")?.1.split_whitespace().next()?.to_owned())
        };
        let deadline = Instant::now() + TEST_TIMEOUT;
        let fm = loop {
            if let Some(fm) = address(&served.log()) {
                break fm;
            }
            assert!(Instant::now() < deadline, "the FM API is not served: {}", served.log());
            std::thread::sleep(std::time::Duration::from_millis(2));
        };
        Self { folder, served, admin, fm }
    }

    async fn token(&self, role: Role) -> Token {
        let token = CreateToken { role, ttl_s: None, compute_nodes: Vec::new(), quota: None };
        self.admin.create_token(&token).await.unwrap().token.parse().unwrap()
    }

    /// Has `node` join, with a token of role `role`.
    async fn join(&self, node: Party, role: Role, macs: &[[u8; 6]]) -> Result<Credentials, ErrorCode> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let token = self.token(role).await;
        let client = Client::with(&self.served.url, Credentials::of_token(token)).unwrap();
        let macs = macs.iter().map(|mac| (*mac).into()).collect();
        let join =
            Join { node, tls_key: STANDARD.encode(pair.public_key_raw()), key: None, macs, take_over: false };
        let joined = client.join(&join).await.map_err(|error| error.code().unwrap())?;
        let pem = format!("{}{}{}", pair.serialize_pem(), joined.certificate, joined.authority);
        Ok(Credentials::of_node(Identity::parse(&pem).unwrap().into()))
    }

    /// An FM client over TLS with `credentials`.
    async fn over_tls(&self, credentials: &Credentials) -> FmClient {
        let stream = TcpStream::connect(&self.fm).await.unwrap();
        let tls = TlsConnector::from(Arc::new(credentials.tls()));
        let stream = tls.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await.unwrap();
        FmClient::over(stream, &self.fm, Dialect::Tools)
    }

    fn run(&self, words: &[&str]) -> std::process::Output {
        let identity = self.folder.path().join("fm.identity");
        let mut command = gmm();
        command.env("CXLOE_FM_IDENTITY", identity).env("CXLOE_FM", &self.fm).arg("fm");
        command.args(words).output().unwrap()
    }
}

/// Asserts that the connection is closed without an answer.
async fn gets_nothing(client: &mut FmClient, who: &str) {
    let identify = client.send(Recipient::Switch, Opcode::Identify.number(), &[]).await;
    assert!(matches!(identify, Err(FmClientError::Broken { .. })), "{who}: {identify:?}");
}

#[tokio::test]
async fn an_fm_client_that_has_joined_manages_and_nobody_else_gets_anything() {
    let rig = Rig::start();
    rig.admin.register_compute_node(&compute_node("cn0", 1)).await.unwrap();
    let fm0 = rig.join(Party::FmClient(name("fm0")), Role::FmClient, &[]).await.unwrap();
    let mut own = rig.over_tls(&fm0).await;
    let answer = own.send(Recipient::Switch, Opcode::Identify.number(), &[]).await.unwrap();
    assert!(answer.header.code.is_success());

    let mut plain = FmClient::connect(&rig.fm, Dialect::Tools).await.unwrap();
    gets_nothing(&mut plain, "without TLS").await;
    let unnamed = Credentials { identity: None, ..fm0.clone() };
    gets_nothing(&mut rig.over_tls(&unnamed).await, "without a certificate").await;
    let node = Party::MemoryNode(name("mn0"));
    let node = rig.join(node, Role::MemoryNode, &[[2, 0, 0, 0, 2, 1]]).await.unwrap();
    gets_nothing(&mut rig.over_tls(&node).await, "with a memory node's").await;
    let node = Party::ComputeNode(cn(2));
    let node = rig.join(node, Role::ComputeNode, &[[2, 0, 0, 0, 1, 2]]).await.unwrap();
    gets_nothing(&mut rig.over_tls(&node).await, "with a compute node's").await;

    // Over REST, the FM client can read, but not change anything.
    let rest = Client::with(&rig.served.url, fm0.clone()).unwrap();
    assert_eq!(rest.who_am_i().await.unwrap().role, "FM client");
    let region = cxloe_fabric::api::CreateRegion::new(name("r"), crate::common::EXTENT, cn(1));
    assert_eq!(rest.create_region(&region).await.unwrap_err().code(), Some(ErrorCode::Forbidden));
    let holds = cxloe_fabric::api::NotFollowed {
        node: Party::FmClient(name("fm0")),
        seen: cxloe_fabric::model::Watermark { term: 9, revision: 9, run: 9 },
        holds: Vec::new(),
    };
    assert_eq!(rest.not_followed(&holds).await.unwrap_err().code(), Some(ErrorCode::Forbidden));

    // After the revocation of its certificate, the client is refused on its open connection too.
    rig.admin.revoke(&Party::FmClient(name("fm0"))).await.unwrap();
    gets_nothing(&mut own, "a revoked one, on its connection").await;
    gets_nothing(&mut rig.over_tls(&fm0).await, "a revoked one").await;
    let again = rig.join(Party::FmClient(name("fm0")), Role::FmClient, &[]).await.unwrap();
    let answer = rig.over_tls(&again).await.send(Recipient::Switch, Opcode::Identify.number(), &[]).await;
    assert!(answer.unwrap().header.code.is_success());
    gets_nothing(&mut rig.over_tls(&fm0).await, "the former certificate").await;
}

#[tokio::test]
async fn a_token_has_join_what_it_is_for() {
    let rig = Rig::start();
    let fm0 = || Party::FmClient(name("fm0"));
    let mac = [2, 0, 0, 0, 2, 1];
    for (node, role, macs) in [
        (fm0(), Role::MemoryNode, &[][..]),
        (fm0(), Role::FmClient, &[mac]),
        (Party::MemoryNode(name("mn0")), Role::FmClient, &[mac]),
        (Party::ComputeNode(cn(1)), Role::FmClient, &[[2, 0, 0, 0, 1, 1]]),
    ] {
        let joined = rig.join(node.clone(), role, macs).await.map(drop);
        assert_eq!(joined, Err(ErrorCode::Forbidden), "{node} with a token of role {role}");
    }
    // Another machine must not be able to join under the FM client's name.
    rig.join(fm0(), Role::FmClient, &[]).await.unwrap();
    assert_eq!(rig.join(fm0(), Role::FmClient, &[]).await.map(drop), Err(ErrorCode::Forbidden));
}

#[tokio::test]
async fn the_command_line_joins_and_the_event_log_names_the_node() {
    let rig = Rig::start();
    rig.admin.register_compute_node(&compute_node("cn0", 1)).await.unwrap();
    let text = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let before = rig.run(&["--insecure", "identify"]);
    assert!(!before.status.success() && text(&before).contains("gmm fm join"), "{}", text(&before));
    let token = rig.token(Role::FmClient).await.reveal();
    let joined = rig.run(&["join", &rig.served.url, "--token", &token, "--name", "desk"]);
    assert!(joined.status.success(), "{}", text(&joined));
    let held = rig.run(&["port-control", "--port", "127", "assert"]);
    assert!(held.status.success(), "{}", text(&held));
    let events = rig.admin.events(EventsQuery::default()).await.unwrap().events;
    let event = events.iter().find(|event| event.kind.label() == "compute_node_held").unwrap();
    assert_eq!(event.who.as_deref(), Some("FM client desk"));
    let revoked = gmm()
        .arg("--manager")
        .arg(format!("unix:{}", rig.folder.path().join("gmm.sock").display()))
        .args(["revoke", "--fm", "desk"])
        .output()
        .unwrap();
    assert!(revoked.status.success(), "{}", text(&revoked));
    assert!(!rig.run(&["identify"]).status.success());
}
