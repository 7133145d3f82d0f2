//! HTTP below the routes: requests that are too large, malformed, or lack required headers are answered, and the
//! OpenAPI document lists each such answer for every operation.

use crate::common::{Served, TEST_TIMEOUT};
use cxloe_fabric::Client;
use cxloe_fabric::api::{CreateToken, ErrorCode};
use cxloe_fabric::client::Credentials;
use cxloe_fabric::model::{Role, Token};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A manager with TLS, and a valid token.
struct Secured {
    _folder: tempfile::TempDir,
    served: Served,
    token: Token,
}

impl Secured {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let served = Served::start_guarded(folder.path(), &[]);
        let admin = Client::new(&format!("unix:{}", folder.path().join("gmm.sock").display())).unwrap();
        let admin_token =
            CreateToken { role: Role::Admin, ttl_s: None, compute_nodes: Vec::new(), quota: None };
        let token = admin.create_token(&admin_token).await.unwrap().token.parse().unwrap();
        Self { _folder: folder, served, token }
    }

    /// Sends these bytes, and reads the answer only after all of them are sent.
    async fn answer(&self, request: &[u8]) -> Answer {
        let address = self.served.url.trim_start_matches("https://");
        let trusted = Credentials { authority: Some(self.token.authority()), ..Credentials::default() };
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(trusted.tls()));
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let host = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
        let mut stream = connector.connect(host, stream).await.unwrap();
        let talk = async {
            stream.write_all(request).await.unwrap();
            stream.flush().await.unwrap();
            let mut answer = Vec::new();
            let mut chunk = [0; 4096];
            // Reads only until the answer is complete, because a stream of events never ends.
            while !is_whole(&answer) {
                let read = stream.read(&mut chunk).await;
                let read = read.unwrap_or_else(|e| panic!("{e} after {}", String::from_utf8_lossy(&answer)));
                assert!(read > 0, "the end came after {:?}", String::from_utf8_lossy(&answer));
                answer.extend_from_slice(&chunk[..read]);
            }
            Answer::parse(&String::from_utf8(answer).unwrap())
        };
        tokio::time::timeout(TEST_TIMEOUT, talk).await.unwrap()
    }

    /// The head of a request of this client, without the final empty line.
    fn head(&self, method: &str, path: &str, more: &str) -> String {
        let (address, token) = (self.served.url.trim_start_matches("https://"), self.token.reveal());
        format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n{more}")
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    body: Value,
}

impl Answer {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, body: serde_json::from_str(body).unwrap_or_default() }
    }

    fn code(&self) -> (u16, &str) {
        (self.status, self.body["code"].as_str().unwrap_or_default())
    }
}

/// True if an answer is complete: its head, and a body of the length that the head states.
fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    body.len() >= length.unwrap_or(0)
}

/// Method, path and answers of each operation in a document.
fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let target = ["{compute_node}", "{name}", "{id}"]
            .iter()
            .fold(path.clone(), |path, part| path.replace(part, "a"));
        for (method, operation) in item.as_object().unwrap() {
            found.push((method.to_uppercase(), target.clone(), operation["responses"].clone()));
        }
    }
    found
}

const JSON: &str = "Content-Type: application/json\r\n";

#[tokio::test]
async fn large_heads_and_bodies_are_refused_in_words_to_who_sends_them_whole() {
    let manager = Secured::start().await;
    let body = vec![b' '; 4 << 20];
    let head = manager.head("POST", "/v1/regions", JSON);
    let head = format!("{head}Content-Length: {}\r\n\r\n", body.len());
    let answer = manager.answer(&[head.as_bytes(), &body].concat()).await;
    assert_eq!(answer.code(), (413, "too_large"), "{answer:?}");
    let head = manager.head("GET", "/v1/regions", &format!("X-Large: {}\r\n\r\n", "x".repeat(100_000)));
    assert_eq!(manager.answer(head.as_bytes()).await.status, 431);
}

#[tokio::test]
async fn broken_bodies_and_requests_without_a_host_are_bad_ones() {
    let manager = Secured::start().await;
    let chunked = format!("{JSON}Transfer-Encoding: chunked\r\n\r\n");
    for broken in ["zz\r\n{}\r\n0\r\n\r\n", "2\r\n{}xx0\r\n\r\n", "fffffffffffffffffff\r\n"] {
        let request = format!("{}{broken}", manager.head("POST", "/v1/regions", &chunked));
        let answer = manager.answer(request.as_bytes()).await;
        assert_eq!(answer.code(), (400, "bad_request"), "{broken:?}: {answer:?}");
        assert!(answer.body["error"].as_str().unwrap().contains("cannot be read"), "{answer:?}");
    }
    let whole = format!("{}2\r\n{{}}\r\n0\r\n\r\n", manager.head("POST", "/v1/tokens", &chunked));
    let answer = manager.answer(whole.as_bytes()).await;
    assert!(answer.body["error"].as_str().unwrap().contains("role"), "a body in chunks is taken: {answer:?}");
    for (version, hosts, status) in [
        ("HTTP/1.1", "", 400),
        ("HTTP/1.1", "Host: a\r\nHost: a\r\n", 400),
        ("HTTP/1.1", "Host: a b\r\n", 400),
        ("HTTP/1.1", "Host: a\r\n", 200),
        ("HTTP/1.1", "Host: [fe80::1%25eth0]:7440\r\n", 200),
        ("HTTP/1.0", "", 200),
    ] {
        for path in ["/v1/health", "/"] {
            let request = format!("GET {path} {version}\r\n{hosts}\r\n");
            let answer = manager.answer(request.as_bytes()).await;
            assert_eq!(answer.status, status, "{version} {path} {hosts:?}: {answer:?}");
        }
    }
}

/// The middleware answers some requests before they reach a route; the document must describe these answers for every
/// operation.
#[tokio::test]
async fn the_document_has_of_each_operation_what_the_middleware_answers() {
    let manager = Secured::start().await;
    let document =
        manager.answer(format!("{}\r\n", manager.head("GET", "/v1/openapi.json", "")).as_bytes()).await;
    let operations = operations(&document.body);
    assert!(operations.len() > 40, "{operations:?}");
    let address = manager.served.url.trim_start_matches("https://");
    for (method, path, responses) in operations {
        let large = " ".repeat((1 << 20) + 1);
        let large = format!("{JSON}Content-Length: {}\r\n\r\n{large}", large.len());
        let broken = format!("{JSON}Transfer-Encoding: chunked\r\n\r\nzz\r\n");
        let mut asked = vec![
            (format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n{JSON}\r\n"), 401),
            (format!("{method} {path} HTTP/1.1\r\n\r\n"), 400),
            (format!("{}X-Large: {}\r\n\r\n", manager.head(&method, &path, ""), "x".repeat(100_000)), 431),
        ];
        if path == "/v1/health" {
            // Callers without a token may use this route, but not with a large body.
            asked[0] = (format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n{large}"), 401);
        }
        // A backup may be larger than the limit of all other bodies, so this route does not answer 413 here.
        if path != "/v1/restore" {
            asked.push((format!("{}{large}", manager.head(&method, &path, "")), 413));
        }
        asked.push((format!("{}{broken}", manager.head(&method, &path, "")), 400));
        if method != "GET" {
            asked.push((
                format!("{}Origin: https://evil.example\r\n\r\n", manager.head(&method, &path, JSON)),
                403,
            ));
            asked.push((format!("{}\r\n", manager.head(&method, &path, "")), 415));
        }
        for (request, status) in asked {
            let start = &request[..request.len().min(300)];
            let answer = manager.answer(request.as_bytes()).await;
            assert_eq!(answer.status, status, "{answer:?} to {start}");
            let described = &responses[status.to_string()];
            assert!(described.is_object(), "{method} {path}: {status} is not in the document");
            let has_body = described["content"].is_object();
            assert_eq!(has_body, answer.body.is_object(), "{method} {path}: {answer:?}");
            if has_body {
                let code: ErrorCode = serde_json::from_value(answer.body["code"].clone()).unwrap();
                assert_eq!(code.http_status(), status);
            }
        }
        for elsewhere in ["307", "408", "500", "503", "default"] {
            assert!(responses[elsewhere].is_object(), "{method} {path}: {elsewhere} is not in the document");
        }
    }
}
