//! The manager as a process on the loopback interface, used by the real client.

use crate::common::{EXTENT, ObedientNode, Served, cn, compute_node, eventually, memory_node, name};
use cxloe_fabric::api::{
    ComputeNodeSync, CreateRegion, DestroyRegion, ErrorCode, EventsQuery, MemoryNodeSync, Owner, ResetRegion,
};
use cxloe_fabric::client::{Client, ClientError, Destroyed};
use cxloe_fabric::model::{CommandResult, EventKind, Health, NodeAction, RegionState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const FORCE: DestroyRegion = DestroyRegion { force: true, wait_ms: 10_000, created_ms: None };

#[tokio::test]
async fn a_region_lives_from_creation_to_destruction() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let (_node, registered) = ObedientNode::start(client.clone(), memory_node("mn0", 0, 64)).await;
    assert!(registered.mappings.is_empty());
    assert_eq!(registered.unowned.len(), 64);
    let compute = client.register_compute_node(&compute_node("cn0", 1)).await.unwrap();
    assert!(compute.regions.is_empty());

    let sync = ComputeNodeSync {
        registration: compute.registration,
        after_event: compute.after_event,
        released: Vec::new(),
        quiet: 0,
        settled: false,
        wait_ms: 5000,
    };
    let watching = tokio::spawn({
        let client = client.clone();
        async move { client.sync_compute_node(cn(1), &sync).await.unwrap() }
    });
    let create =
        CreateRegion { owner: Owner::Name(name("cn0")), ..CreateRegion::new(name("r"), 8 * EXTENT, cn(1)) };
    let region = client.create_region(&create).await.unwrap();
    assert_eq!((region.state, region.owner, region.size), (RegionState::Active, cn(1), 8 * EXTENT));
    assert_eq!(region.legs[0].mac(), Some([2, 0, 0, 0, 2, 0].into()));
    assert_eq!(region.legs[0].extents.len(), 8);
    let seen = watching.await.unwrap();
    assert_eq!(seen.regions.unwrap()[0].name, name("r"));

    assert_eq!(client.regions().await.unwrap(), std::slice::from_ref(&region));
    assert_eq!(client.region(&name("r")).await.unwrap(), region);
    let status = client.memory_nodes().await.unwrap().remove(0);
    assert_eq!((status.free_bytes, status.stats["frames"].as_u64()), (56 * EXTENT, Some(7)));
    let health = client.health().await.unwrap();
    assert_eq!((health.memory_nodes.reachable, health.compute_nodes.reachable, health.regions), (1, 1, 1));

    let polite = DestroyRegion { force: false, wait_ms: 0, created_ms: None };
    let error = client.destroy_region(&name("r"), polite).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::RegionInUse));
    assert_eq!(client.destroy_region(&name("r"), FORCE).await.unwrap(), Destroyed::Gone);
    assert_eq!(client.region(&name("r")).await.unwrap_err().code(), Some(ErrorCode::NotFound));
    assert_eq!(client.memory_nodes().await.unwrap()[0].free_bytes, 64 * EXTENT);
    let events = client.events(EventsQuery::default()).await.unwrap();
    // A compute node without a region on a memory node is unbound there. The memory is zeroed afterwards.
    let [.., unbound, destroyed] = &events.events[..] else { panic!("{events:?}") };
    assert!(matches!(destroyed.kind, EventKind::RegionDestroyed { .. }), "{destroyed:?}");
    assert!(matches!(unbound.kind, EventKind::LdUnbound { .. }), "{unbound:?}");
    assert_eq!(
        events.events.iter().map(|event| event.seq).collect::<Vec<_>>(),
        (1..=events.newest).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn waiting_is_bounded_and_goes_on_without_the_caller() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let node = memory_node("mn0", 0, 8);
    let registered = client.register_memory_node(&node).await.unwrap();
    let create = CreateRegion { wait_ms: 50, ..CreateRegion::new(name("r"), EXTENT, cn(1)) };
    assert_eq!(client.create_region(&create).await.unwrap().state, RegionState::Creating);

    let mut sync = MemoryNodeSync {
        registration: registered.registration,
        acked_seq: 0,
        results: Vec::new(),
        progress: None,
        fills: Vec::new(),
        stats: serde_json::Value::Null,
        wait_ms: 60_000,
    };
    let synced = client.sync_memory_node(&node.name, &sync).await.unwrap();
    assert!(matches!(&synced.commands[0].action, NodeAction::MapCmem(mapping) if mapping.cn == cn(1)));
    let (command, answer) = (synced.commands[0].watermark(), synced.watermark);
    assert_eq!((command.term, command.revision), (answer.term, answer.revision));
    assert_ne!(answer.run, 0, "every start has a number of its own");
    sync.acked_seq = 1;
    sync.results = vec![CommandResult::failed(1, "page table full")];
    sync.wait_ms = 0;
    let draining = client.sync_memory_node(&node.name, &sync).await.unwrap();
    assert!(matches!(draining.commands[0].action, NodeAction::UnmapCmem(_)));
    assert_eq!(client.region(&name("r")).await.unwrap().state, RegionState::Draining);

    let waiting = DestroyRegion { force: true, wait_ms: 50, created_ms: None };
    let destroyed = client.destroy_region(&name("r"), waiting).await.unwrap();
    assert!(
        matches!(destroyed, Destroyed::Draining(left) if left.region.failure.as_deref().unwrap().contains("page table"))
    );
    sync.acked_seq = 2;
    sync.results = vec![CommandResult::done(2)];
    assert!(client.sync_memory_node(&node.name, &sync).await.unwrap().commands.is_empty());
    assert!(client.regions().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_refusal_reaches_the_one_who_waits() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let node = memory_node("mn0", 0, 8);
    let registered = client.register_memory_node(&node).await.unwrap();
    let creating = tokio::spawn({
        let client = client.clone();
        async move { client.create_region(&CreateRegion::new(name("r"), EXTENT, cn(1))).await }
    });
    let mut sync = MemoryNodeSync {
        registration: registered.registration,
        acked_seq: 0,
        results: Vec::new(),
        progress: None,
        fills: Vec::new(),
        stats: serde_json::Value::Null,
        wait_ms: 1000,
    };
    eventually("the map command", || async {
        let commands = client.sync_memory_node(&node.name, &sync).await.unwrap().commands;
        (!commands.is_empty()).then_some(())
    })
    .await;
    sync.acked_seq = 1;
    sync.results = vec![CommandResult::failed(1, "page table full")];
    client.sync_memory_node(&node.name, &sync).await.unwrap();
    let error = creating.await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NodeRefused), "{error}");
    assert!(error.to_string().contains("page table full"), "{error}");
}

#[tokio::test]
async fn a_manager_that_is_killed_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let address = served.url.trim_start_matches("http://").to_owned();
    let client = served.client();
    let (_node, registered) = ObedientNode::start(client.clone(), memory_node("mn0", 0, 64)).await;
    let before = client.create_region(&CreateRegion::new(name("r"), 4 * EXTENT, cn(1))).await.unwrap();
    served.kill();
    let error = client.regions().await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&address) && error.to_string().contains("gmm serve"), "{error}");

    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    assert_eq!(client.regions().await.unwrap(), [before]);
    let health = client.health().await.unwrap();
    assert_eq!(health.watermark.term, registered.watermark.term + 1);
    let again = client.register_memory_node(&memory_node("mn0", 0, 64)).await.unwrap();
    assert_eq!(again.mappings.len(), 1);
    assert_eq!((again.mappings[0].cn, again.mappings[0].extents.len()), (cn(1), 4));
    assert_eq!(again.unowned.len(), 60);
}

#[tokio::test]
async fn a_silent_node_is_detected_and_accepted_again() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--node-timeout", "300"]);
    let client = served.client();
    let node = memory_node("mn0", 0, 8);
    let (obedient, registered) = ObedientNode::start(client.clone(), node.clone()).await;
    client.register_compute_node(&compute_node("cn0", 1)).await.unwrap();
    client.create_region(&CreateRegion::new(name("r"), EXTENT, cn(1))).await.unwrap();
    drop(obedient);
    let state = || async { client.region(&name("r")).await.unwrap().state };
    eventually("degraded", || async { (state().await == RegionState::Degraded).then_some(()) }).await;
    assert_eq!(client.memory_nodes().await.unwrap()[0].node.health, Health::Unreachable);
    eventually("the silent compute node", || async {
        let health = client.compute_nodes().await.unwrap()[0].health;
        (health == Health::Unreachable).then_some(())
    })
    .await;

    let sync = MemoryNodeSync {
        registration: registered.registration,
        acked_seq: 1,
        results: Vec::new(),
        progress: None,
        fills: Vec::new(),
        stats: serde_json::Value::Null,
        wait_ms: 0,
    };
    client.sync_memory_node(&node.name, &sync).await.unwrap();
    assert_eq!(state().await, RegionState::Active);
}

#[tokio::test]
async fn a_second_daemon_waits_until_the_first_hangs_up() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--node-timeout", "60000"]);
    let client = served.client();
    let node = memory_node("mn0", 0, 8);
    let registered = client.register_memory_node(&node).await.unwrap();
    let second = cxloe_fabric::api::RegisterMemoryNode { instance_id: 2, incarnation: 12, ..node.clone() };
    let error = client.register_memory_node(&second).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NameInUse), "{error}");

    let sync = MemoryNodeSync {
        registration: registered.registration,
        acked_seq: 0,
        results: Vec::new(),
        progress: None,
        fills: Vec::new(),
        stats: serde_json::json!({"waiting": true}),
        wait_ms: 20_000,
    };
    let polling = tokio::spawn({
        let (client, name) = (Client::new(&served.url).unwrap(), node.name.clone());
        async move { client.sync_memory_node(&name, &sync).await }
    });
    eventually("the waiting sync", || async {
        (client.memory_nodes().await.unwrap()[0].stats["waiting"] == true).then_some(())
    })
    .await;
    polling.abort();
    eventually("the second registration", || async { client.register_memory_node(&second).await.ok() }).await;
}

#[tokio::test]
async fn content_lost_in_a_restart_needs_a_reset() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let node = memory_node("mn0", 0, 8);
    let (obedient, _) = ObedientNode::start(client.clone(), node.clone()).await;
    client.create_region(&CreateRegion::new(name("r"), EXTENT, cn(1))).await.unwrap();
    drop(obedient);
    let empty = cxloe_fabric::api::RegisterMemoryNode { incarnation: 12, ..node };
    let (_obedient, registered) = ObedientNode::start(client.clone(), empty).await;
    assert!(registered.mappings.is_empty());
    assert_eq!(client.region(&name("r")).await.unwrap().state, RegionState::Lost);
    let region = client.reset_region(&name("r"), ResetRegion { wait_ms: 10_000 }).await.unwrap();
    assert_eq!((region.state, region.legs[0].incarnation), (RegionState::Active, Some(12)));
}

#[tokio::test]
async fn the_unix_socket_serves_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("gmm.sock");
    let text = socket.to_str().unwrap().to_owned();
    let served = Served::start(folder.path(), &["--socket", &text]);
    let client = Client::new(&format!("unix:{text}")).unwrap();
    assert_eq!(client.health().await.unwrap(), served.client().health().await.unwrap());
    served.kill();
    assert!(socket.exists(), "a killed process leaves its socket");
    let error = client.health().await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    let mut served = Served::start(folder.path(), &["--socket", &text]);
    assert_eq!(client.health().await.unwrap().status, "ok");
    assert!(served.signal(nix::sys::signal::Signal::SIGTERM).success());
    assert!(!socket.exists());
}

#[tokio::test]
async fn events_stream_as_they_happen() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let mut response = cxloe_fabric::client::http()
        .build()
        .unwrap()
        .get(format!("{}/v1/events/stream", served.url))
        .send()
        .await
        .unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    served.client().register_memory_node(&memory_node("mn0", 0, 8)).await.unwrap();
    let mut text = String::new();
    while !text.contains("memory_node_registered") {
        let chunk =
            tokio::time::timeout(crate::common::TEST_TIMEOUT, response.chunk()).await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(&chunk.expect("the stream ended")).unwrap());
    }
    assert!(text.contains("manager_started") && text.contains("id: 2"), "{text}");
}

#[tokio::test]
async fn requests_that_make_no_sense_are_answered_as_errors() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let http = cxloe_fabric::client::http().build().unwrap();
    let url = |path: &str| format!("{}{path}", served.url);
    let json = |request: reqwest::RequestBuilder, body: String| {
        request.header("content-type", "application/json").body(body)
    };
    let table = [
        (http.get(url("/none")), 404, "not_found"),
        (http.get(url("/v1/regions/none")), 404, "not_found"),
        (http.get(url("/v1/regions/%20")), 400, "bad_request"),
        (json(http.patch(url("/v1/regions")), String::new()), 405, "method_not_allowed"),
        (json(http.post(url("/v1/regions")), String::new()), 400, "bad_request"),
        (http.post(url("/v1/regions")), 415, "not_json"),
        (http.post(url("/v1/regions")).header("content-type", "text/plain").body("{}"), 415, "not_json"),
        (json(http.post(url("/v1/regions")), " ".repeat(100_000)), 413, "too_large"),
        (json(http.post(url("/v1/regions")), "{".into()), 400, "bad_request"),
        (
            json(http.post(url("/v1/regions")), r#"{"name":"r","size":"2M","owner":"nobody"}"#.into()),
            404,
            "not_found",
        ),
        (
            json(http.post(url("/v1/regions")), r#"{"name":"r","size":"2M","owner":"a b"}"#.into()),
            400,
            "bad_request",
        ),
        (http.get(url("/v1/events?after=x")), 400, "bad_request"),
        (json(http.delete(url("/v1/regions/r?frce=true")), String::new()), 400, "bad_request"),
        (json(http.post(url("/v1/compute-nodes/01:00:00:00:00:00/sync")), "{}".into()), 400, "bad_request"),
    ];
    for (request, status, code) in table {
        let asked = format!("{request:?}");
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{asked}");
        let body: serde_json::Value = response.json().await.unwrap();
        assert_eq!(body["code"], code, "{asked}: {body}");
        assert!(!body["error"].as_str().unwrap().is_empty() && !body["hint"].as_str().unwrap().is_empty());
    }
    assert!(served.client().regions().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_page_of_another_origin_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--allow-host", "fabric.example,other.example"]);
    let client = served.client();
    let (_node, _) = ObedientNode::start(client.clone(), memory_node("mn0", 0, 64)).await;
    client.register_compute_node(&compute_node("cn0", 1)).await.unwrap();
    client.create_region(&CreateRegion::new(name("r"), EXTENT, cn(1))).await.unwrap();
    let http = cxloe_fabric::client::http().build().unwrap();
    let before = client.events(EventsQuery::default()).await.unwrap().newest;
    let own = served.url.trim_start_matches("http://").to_owned();
    let asked = |path: &str, headers: &[(&'static str, &str)]| {
        let mut request = http.post(format!("{}{path}", served.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send()
    };
    let evil = ("origin", "http://evil.example");
    let json = ("content-type", "application/json");
    for path in [
        "/v1/regions/r/disable?wait_ms=0",
        "/v1/regions/r/reset",
        "/v1/compute-nodes/cn0/hold",
        "/v1/compute-nodes/cn0/release",
    ] {
        for (headers, status) in [
            (vec![evil], 403),
            (vec![evil, json], 403),
            (vec![evil, json, ("host", "evil.example")], 403),
            (vec![("origin", "null"), json], 403),
            (vec![("sec-fetch-site", "cross-site"), json], 403),
            (vec![("content-type", "application/x-www-form-urlencoded")], 415),
            (vec![("content-type", "text/plain")], 415),
            (vec![], 415),
        ] {
            let answer = asked(path, &headers).await.unwrap();
            assert_eq!(answer.status().as_u16(), status, "{path} {headers:?}");
        }
    }
    // The only new event is the record of the refused request.
    let events = client.events(EventsQuery { after: before, ..EventsQuery::default() }).await.unwrap().events;
    assert!(events.iter().all(|event| event.kind.label() == "access_refused"), "{events:?}");
    assert_eq!(client.region(&name("r")).await.unwrap().state, RegionState::Active);
    // The manager accepts requests from its own page, addressed directly or by a configured name, and
    // requests from clients that are not browsers.
    let origin = format!("http://{own}");
    for headers in [
        vec![("origin", origin.as_str()), json],
        vec![("origin", "http://other.example"), ("host", "other.example"), json],
        vec![json],
    ] {
        let answer = asked("/v1/compute-nodes/cn0/hold", &headers).await.unwrap();
        assert_eq!(answer.status().as_u16(), 200, "{headers:?}");
    }
}

#[tokio::test]
async fn thousands_of_partial_requests_block_no_client() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--connections-max", "100", "--node-timeout", "1000"]);
    let address = served.url.trim_start_matches("http://").to_owned();
    let (_node, registered) = ObedientNode::start(served.client(), memory_node("mn0", 0, 64)).await;
    let body = "POST /v1/regions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{";
    let mut strangers = Vec::new();
    for stranger in 0..600 {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let sent = if stranger % 2 == 0 { "GET /v1/hea" } else { body };
        // The server may have closed the connection already.
        drop(stream.write_all(sent.as_bytes()).await);
        strangers.push(stream);
        if stranger % 100 == 99 {
            let client = served.client();
            assert_eq!(client.health().await.unwrap().memory_nodes.reachable, 1, "after {stranger}");
            let region = name(&format!("r{stranger}"));
            let made = client.create_region(&CreateRegion::new(region, EXTENT, cn(1))).await.unwrap();
            assert_eq!(made.state, RegionState::Active, "its node hears of it");
        }
    }
    let node = served.client().memory_nodes().await.unwrap().remove(0).node;
    assert_eq!(node.registration, registered.registration, "the node was never kept out");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let mut stream = tokio::net::TcpStream::connect(served.url.trim_start_matches("http://")).await.unwrap();
    let head = "POST /v1/memory-nodes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n";
    let length = cxloe_gmm::server::BODY_BYTES_MAX + 1;
    stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n").as_bytes()).await.unwrap();
    // The manager answers before it has read the body, and closes the connection, so writing the body may
    // fail.
    drop(stream.write_all(&vec![b' '; length]).await);
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("too_large"), "{answer}");
}

#[tokio::test]
async fn a_partial_request_does_not_block_others() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--connections-max", "2"]);
    let address = served.url.trim_start_matches("http://").to_owned();
    let mut first = tokio::net::TcpStream::connect(&address).await.unwrap();
    first.write_all(b"GET /v1/hea").await.unwrap();
    assert_eq!(served.client().health().await.unwrap().status, "ok");
    let rest = format!("lth HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    first.write_all(rest.as_bytes()).await.unwrap();
    let mut answer = String::new();
    first.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn what_answers_is_checked_to_be_a_manager() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let other = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 1024];
        assert!(stream.read(&mut head).await.unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await.unwrap();
    });
    let error = Client::new(&url).unwrap().health().await.unwrap_err();
    assert!(matches!(&error, ClientError::Protocol { .. }), "{error}");
    assert!(error.to_string().contains(&url), "{error}");
    other.await.unwrap();
    for bad in ["", "localhost:7440", "unix:", "ftp://x"] {
        assert!(matches!(Client::new(bad), Err(ClientError::BadUrl { .. })), "{bad:?}");
    }
}
