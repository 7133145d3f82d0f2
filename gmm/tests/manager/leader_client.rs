//! A client's search for the leader among several managers. The servers send prepared answers.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{LOCATION, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use cxloe_fabric::api::{CreateRegion, ErrorCode};
use cxloe_fabric::model::{CnId, Name};
use cxloe_fabric::{Client, ClientError};

/// A server that counts its requests.
struct Fake {
    url: String,
    asked: Arc<AtomicU32>,
}

impl Fake {
    async fn start(answer: impl Fn(&str) -> Response + Clone + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        let router = Router::new().fallback(move |request: Request| {
            count.fetch_add(1, Ordering::SeqCst);
            let answer = answer(request.uri().path_and_query().unwrap().as_str());
            async move { answer }
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, asked }
    }

    async fn leader() -> Self {
        Self::start(|_| "[]".into_response()).await
    }

    async fn follower(leader: &str) -> Self {
        let leader = leader.to_owned();
        let point = move |path: &str| {
            (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, format!("{leader}{path}"))]).into_response()
        };
        Self::start(point).await
    }

    async fn leaderless() -> Self {
        let body = r#"{"error": "no manager leads", "code": "unavailable", "hint": "ask again"}"#;
        Self::start(move |_| (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], body).into_response())
            .await
    }

    fn asked(&self) -> u32 {
        self.asked.swap(0, Ordering::SeqCst)
    }
}

/// A URL at which no process listens.
fn nowhere() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn client(urls: &[&str]) -> Client {
    Client::new(&urls.join(",")).unwrap()
}

fn create() -> CreateRegion {
    let owner: CnId = "02:00:00:00:00:01".parse().unwrap();
    CreateRegion::new(Name::new("r").unwrap(), 1 << 21, owner)
}

#[tokio::test]
async fn whoever_answers_is_asked_first_from_then_on() {
    let (gone, leader) = (nowhere(), Fake::leader().await);
    let client = client(&[&gone, &leader.url]);
    for _ in 0..3 {
        assert!(client.regions().await.unwrap().is_empty());
    }
    assert_eq!(leader.asked(), 3);
}

#[tokio::test]
async fn a_leader_that_was_pointed_to_is_remembered_until_it_is_gone() {
    let leader = Fake::leader().await;
    let follower = Fake::follower(&leader.url).await;
    let client = client(&[&follower.url]);
    for _ in 0..3 {
        client.regions().await.unwrap();
    }
    assert_eq!((follower.asked(), leader.asked()), (1, 3));

    let gone = nowhere();
    let (first, second) = (Fake::follower(&gone).await, Fake::leader().await);
    let client = Client::new(&format!("{}, {}", first.url, second.url)).unwrap();
    for _ in 0..3 {
        client.regions().await.unwrap();
    }
    assert_eq!((first.asked(), second.asked()), (1, 3));
}

#[tokio::test]
async fn managers_that_point_to_each_other_are_an_error() {
    let first = Fake::follower(&nowhere()).await;
    let circle = Fake::follower(&first.url).await;
    let pointing = Fake::start({
        let url = circle.url.clone();
        move |path| (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, format!("{url}{path}"))]).into_response()
    })
    .await;
    let error = client(&[&pointing.url]).regions().await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = format!("http://{}", listener.local_addr().unwrap());
    let location = own.clone();
    let router = Router::new().fallback(move |request: Request| async move {
        (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, format!("{location}{}", request.uri().path()))])
    });
    tokio::spawn(async move { axum::serve(listener, router).await });
    let error = client(&[&own]).regions().await.unwrap_err().to_string();
    assert!(error.contains("point to each other"), "{error}");
}

#[tokio::test]
async fn a_missing_leader_is_reported_after_all_managers_answered() {
    let (first, gone, second) = (Fake::leaderless().await, nowhere(), Fake::leaderless().await);
    let error = client(&[&first.url, &gone, &second.url]).create_region(&create()).await.unwrap_err();
    assert_eq!((error.code(), error.is_passing()), (Some(ErrorCode::Unavailable), true));
    assert_eq!((first.asked(), second.asked()), (1, 1));
    let leader = Fake::leader().await;
    client(&[&first.url, &leader.url]).regions().await.unwrap();
    assert_eq!((first.asked(), leader.asked()), (1, 1));
}

/// A server that receives a request and closes the connection: the request may have been carried out.
fn hanging_up() -> (String, std::thread::JoinHandle<()>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
    });
    (url, thread)
}

#[tokio::test]
async fn what_may_have_been_done_is_not_asked_twice_but_the_next_request_goes_elsewhere() {
    let leader = Fake::leader().await;
    let (broken, thread) = hanging_up();
    let managers = client(&[&broken, &leader.url]);
    let error = managers.create_region(&create()).await.unwrap_err();
    assert!(
        matches!(&error, ClientError::Unanswered { .. })
            && error.may_be_done()
            && error.to_string().contains(&broken),
        "{error}"
    );
    assert_eq!(leader.asked(), 0);
    thread.join().unwrap();
    managers.regions().await.unwrap();
    assert_eq!(leader.asked(), 1);

    // A request that only reads is sent to another manager at once.
    let (broken, thread) = hanging_up();
    client(&[&broken, &leader.url]).regions().await.unwrap();
    assert_eq!(leader.asked(), 1);
    thread.join().unwrap();
}

#[test]
fn every_url_of_several_has_to_be_one() {
    assert!(Client::new("http://a:1,unix:/run/gmm.sock").is_ok());
    for wrong in ["http://a:1,", "http://a:1,b:2", "http://a:1,unix:"] {
        assert!(Client::new(wrong).unwrap_err().to_string().contains("separated by commas"), "{wrong}");
    }
}
