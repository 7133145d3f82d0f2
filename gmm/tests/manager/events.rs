//! The event log over a real process: queries, and streams that continue after an interruption.

use crate::common::patient::PatientNode;
use crate::common::{EXTENT, Served, cn, compute_node, memory_node, name};
use cxloe_fabric::Client;
use cxloe_fabric::api::{CreateRegion, ErrorCode, EventsQuery, Owner, RestoreStore};
use cxloe_fabric::model::EventKind;

/// Sequence numbers of the events that a query finds.
async fn seqs(client: &Client, query: EventsQuery) -> Vec<u64> {
    client.events(query).await.unwrap().events.iter().map(|event| event.seq).collect()
}

#[tokio::test]
async fn events_are_filtered_and_paged() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let _nodes = [
        PatientNode::start(client.clone(), memory_node("mn0", 0, 64)).await,
        PatientNode::start(client.clone(), memory_node("mn1", 1, 64)).await,
    ];
    client.register_compute_node(&compute_node("cn0", 1)).await.unwrap();
    let on = |region: &str, node: &str| {
        let create = CreateRegion::new(name(region), EXTENT, cn(1));
        CreateRegion { on: vec![name(node)], ..create }
    };
    client.create_region(&on("a", "mn0")).await.unwrap();
    client.create_region(&on("b", "mn1")).await.unwrap();
    let all = client.events(EventsQuery::default()).await.unwrap();
    assert_eq!(all.through, all.newest);
    let expected = |wanted: &dyn Fn(&EventKind) -> bool| -> Vec<u64> {
        let found = all.events.iter().filter(|event| wanted(&event.kind)).map(|event| event.seq);
        found.collect()
    };
    let query = EventsQuery::default;

    let kinds = Some("region_changed,ld_bound".to_owned());
    let of_kinds = expected(&|kind| ["region_changed", "ld_bound"].contains(&kind.label()));
    assert!(of_kinds.len() >= 4, "{of_kinds:?}");
    assert_eq!(seqs(&client, EventsQuery { kind: kinds.clone(), ..query() }).await, of_kinds);
    let of_a = expected(&|kind| kind.region() == Some(&name("a")));
    assert_eq!(seqs(&client, EventsQuery { region: Some(name("a")), ..query() }).await, of_a);
    let of_mn1 = expected(&|kind| kind.memory_node() == Some(&name("mn1")));
    assert_eq!(seqs(&client, EventsQuery { node: Some(Owner::Name(name("mn1"))), ..query() }).await, of_mn1);
    let of_cn = expected(&|kind| kind.compute_node() == Some(cn(1)));
    assert_eq!(seqs(&client, EventsQuery { node: Some(Owner::Name(name("cn0"))), ..query() }).await, of_cn);
    assert!(!of_a.is_empty() && !of_mn1.is_empty() && !of_cn.is_empty());
    let moment = all.events.last().unwrap().time_ms;
    let since = seqs(&client, EventsQuery { since_ms: Some(moment), ..query() }).await;
    assert!(
        since.contains(&all.newest) && !since.contains(&1) || all.events[0].time_ms == moment,
        "{since:?}"
    );
    let later = EventsQuery { since_ms: Some(moment + 3_600_000), ..query() };
    assert!(seqs(&client, later).await.is_empty());
    let error =
        client.events(EventsQuery { kind: Some("region_changd".into()), ..query() }).await.unwrap_err();
    assert!(
        error.code() == Some(ErrorCode::BadRequest) && error.to_string().contains("region_changed"),
        "{error}"
    );

    // If the log is read page by page, each event must appear exactly once.
    let (mut paged, mut next) = (Vec::new(), EventsQuery { kind: kinds, limit: Some(1), ..query() });
    while next.after < all.newest {
        let page = client.events(next.clone()).await.unwrap();
        assert!(page.events.len() <= 1 && page.through > next.after);
        paged.extend(page.events.iter().map(|event| event.seq));
        next.after = page.through;
    }
    assert_eq!(paged, of_kinds);
    assert!(seqs(&client, EventsQuery { after: u64::MAX, ..query() }).await.is_empty());
}

/// The messages of a stream of server-sent events, one after the other.
struct Messages {
    response: reqwest::Response,
    text: String,
}

impl Messages {
    async fn open(url: &str, last: Option<u64>) -> Self {
        let http = cxloe_fabric::client::http().build().unwrap();
        let mut request = http.get(url);
        if let Some(last) = last {
            request = request.header("last-event-id", last.to_string());
        }
        Self { response: request.send().await.unwrap().error_for_status().unwrap(), text: String::new() }
    }

    /// Id (if any), type and data of the next message.
    async fn next(&mut self) -> (Option<u64>, String, serde_json::Value) {
        loop {
            if let Some((message, rest)) = self.text.split_once("\n\n") {
                let field =
                    |name: &str| message.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                let found = field("data:").map(|data| {
                    let id = field("id:").map(|id| id.parse().unwrap());
                    let kind = field("event:").unwrap_or("message").to_owned();
                    (id, kind, serde_json::from_str(data).unwrap())
                });
                self.text = rest.to_owned();
                if let Some(found) = found {
                    return found;
                }
                continue;
            }
            let chunk = tokio::time::timeout(crate::common::TEST_TIMEOUT, self.response.chunk())
                .await
                .unwrap()
                .unwrap();
            self.text.push_str(std::str::from_utf8(&chunk.expect("the stream ended")).unwrap());
        }
    }
}

#[tokio::test]
async fn a_stream_goes_on_where_it_broke_off() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let stream = format!("{}/v1/events/stream", served.url);
    let mut first = Messages::open(&stream, None).await;
    client.register_memory_node(&memory_node("mn0", 0, 8)).await.unwrap();
    let (one, two) = (first.next().await, first.next().await);
    assert_eq!((one.0, &one.2["event"]), (Some(1), &"manager_started".into()));
    assert_eq!((two.0, &two.2["memory_node"]), (Some(2), &"mn0".into()));
    drop(first);
    for quota in 0..3 {
        client.set_quota(&Owner::CnId(cn(1)), Some(quota)).await.unwrap();
    }
    // The header takes precedence over the query: a reader that reconnects sends it to the original URL.
    let mut again = Messages::open(&format!("{stream}?after=0"), two.0).await;
    for (seq, quota) in (3..6).zip(0..) {
        let (id, _, event) = again.next().await;
        assert_eq!(
            (id, &event["event"], event["bytes"].as_u64()),
            (Some(seq), &"quota_set".into(), Some(quota))
        );
    }
    let mut filtered = Messages::open(&format!("{stream}?kind=memory_node_registered"), None).await;
    assert_eq!(filtered.next().await.0, Some(2));
}

#[tokio::test]
async fn a_stream_goes_on_when_a_backup_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let backup = String::from_utf8(client.backup().await.unwrap()).unwrap();
    for quota in 0..20 {
        client.set_quota(&Owner::CnId(cn(1)), Some(quota)).await.unwrap();
    }
    let newest =
        client.events(EventsQuery { limit: Some(0), ..EventsQuery::default() }).await.unwrap().newest;
    let mut stream = Messages::open(&format!("{}/v1/events/stream", served.url), Some(newest)).await;
    client.restore(&RestoreStore::new(backup)).await.unwrap();
    client.set_quota(&Owner::CnId(cn(1)), Some(20)).await.unwrap();
    // The backup's log is shorter than what this reader has seen.
    let (id, _, event) = stream.next().await;
    assert!(id.is_some_and(|id| id < newest), "{id:?} of {newest}");
    assert_eq!(event["event"], "manager_started");
    let (_, _, event) = stream.next().await;
    assert_eq!((&event["event"], event["bytes"].as_u64()), (&"quota_set".into(), Some(20)));
}

#[tokio::test]
async fn a_stream_says_what_is_no_longer_kept() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let kept = cxloe_gmm_core::manager::EVENTS_KEPT;
    let mut setting = tokio::task::JoinSet::new();
    for worker in 0..64 {
        let client = client.clone();
        setting.spawn(async move {
            for quota in 0..=kept / 64 {
                client.set_quota(&Owner::CnId(cn(worker)), Some(quota)).await.unwrap();
            }
        });
    }
    while let Some(done) = setting.join_next().await {
        done.unwrap();
    }
    let newest =
        client.events(EventsQuery { limit: Some(0), ..EventsQuery::default() }).await.unwrap().newest;
    let mut stream = Messages::open(&format!("{}/v1/events/stream", served.url), Some(2)).await;
    let (id, kind, gap) = stream.next().await;
    let oldest = newest + 1 - kept;
    assert_eq!((id, kind.as_str()), (None, "gap"));
    assert_eq!((gap["first"].as_u64(), gap["last"].as_u64()), (Some(3), Some(oldest - 1)));
    assert_eq!(stream.next().await.0, Some(oldest));
}
