//! The REST interface of a real process: a request with a wait returns the operation's result, or its progress if the
//! wait ends first.

use crate::common::patient::{PatientAgent, PatientNode};
use crate::common::{EXTENT, ObedientNode, Served, cn, compute_node, eventually, memory_node, name};
use cxloe_fabric::ClientError;
use cxloe_fabric::api::{
    Bind, ComputeNodeSync, CreateRegion, DestroyRegion, DisableRegion, ErrorCode, GrowRegion, Overview,
    Owner, RegionsPage, RestoreStore, SetLdAllocations, Unbind,
};
use cxloe_fabric::client::{Destroyed, Unbound};
use cxloe_fabric::hdm::Ways;
use cxloe_fabric::model::{ByteSize, Region, RegionState, UnbindOption};

/// A wait longer than any operation takes, in milliseconds.
const LONG_MS: u64 = 20_000;
/// A wait shorter than any delayed operation takes, in milliseconds.
const SHORT_MS: u64 = 50;
const LD: u64 = 256 << 20;

fn owner(node: &str) -> Owner {
    Owner::Name(name(node))
}

fn grow(size: u64) -> GrowRegion {
    GrowRegion { size: ByteSize(size), on: Vec::new(), wait_ms: LONG_MS }
}

fn unbind(option: UnbindOption, wait_ms: u64) -> Unbind {
    Unbind { memory_node: name("mn0"), ld: 3, option, wait_ms }
}

#[tokio::test]
async fn a_region_grows_or_stays_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let node = PatientNode::start(client.clone(), memory_node("mn0", 0, 64)).await;
    client.create_region(&CreateRegion::new(name("r"), 4 * EXTENT, cn(1))).await.unwrap();

    let grown = client.grow_region(&name("r"), &grow(10 * EXTENT)).await.unwrap();
    assert_eq!((grown.size, grown.decoders.len(), grown.state), (10 * EXTENT, 2, RegionState::Active));
    let error = client.grow_region(&name("r"), &grow(10 * EXTENT)).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::BadRequest), "{error}");

    node.orders().refuse = Some("page table full".into());
    let error = client.grow_region(&name("r"), &grow(12 * EXTENT)).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NodeRefused), "{error}");
    assert!(error.to_string().contains("page table full"), "{error}");
    eventually("what was added is given back", || async {
        let region = client.region(&name("r")).await.unwrap();
        (region.growing() == 0).then(|| assert_eq!((region.size, region.decoders.len()), (10 * EXTENT, 2)))
    })
    .await;
}

#[tokio::test]
async fn growing_goes_on_without_the_one_who_asked() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let register = memory_node("mn0", 0, 64);
    let (node, registered) = ObedientNode::start(client.clone(), register.clone()).await;
    client.create_region(&CreateRegion::new(name("r"), EXTENT, cn(1))).await.unwrap();
    drop(node);
    let asked = GrowRegion { wait_ms: SHORT_MS, ..grow(2 * EXTENT) };
    let growing = client.grow_region(&name("r"), &asked).await.unwrap();
    assert_eq!((growing.size, growing.growing()), (EXTENT, EXTENT));
    let (_node, again) = ObedientNode::start(client.clone(), register).await;
    assert!(again.registration > registered.registration);
    eventually("the growth", || async {
        (client.region(&name("r")).await.unwrap().size == 2 * EXTENT).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_owner_releases_a_region_and_regains_it() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let _node = PatientNode::start(client.clone(), memory_node("mn0", 0, 64)).await;
    let agent = PatientAgent::start(client.clone(), compute_node("cn0", 1)).await;
    let before = client.create_region(&CreateRegion::new(name("r"), EXTENT, cn(1))).await.unwrap();

    agent.agent().clings = true;
    let short = DisableRegion { wait_ms: SHORT_MS };
    assert_eq!(client.disable_region(&name("r"), short).await.unwrap().state, RegionState::Releasing);
    agent.agent().clings = false;
    let long = DisableRegion { wait_ms: LONG_MS };
    assert_eq!(client.disable_region(&name("r"), long).await.unwrap().state, RegionState::Disabled);
    let after = client.enable_region(&name("r")).await.unwrap();
    assert_eq!((after.state, &after.legs), (RegionState::Active, &before.legs));

    agent.agent().clings = true;
    let disabling = tokio::spawn({
        let client = client.clone();
        async move { client.disable_region(&name("r"), long).await }
    });
    eventually("releasing", || async {
        (client.region(&name("r")).await.unwrap().state == RegionState::Releasing).then_some(())
    })
    .await;
    client.enable_region(&name("r")).await.unwrap();
    let error = disabling.await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::WrongState), "{error}");
    assert_eq!(client.enable_region(&name("x")).await.unwrap_err().code(), Some(ErrorCode::NotFound));
}

#[tokio::test]
async fn a_slice_is_bound_and_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let node = PatientNode::start(client.clone(), memory_node("mn0", 0, 1024)).await;
    let agent = PatientAgent::start(client.clone(), compute_node("cn0", 1)).await;

    let set = SetLdAllocations { first: 3, reserved: vec![ByteSize(LD), ByteSize(2 * LD)] };
    let devices = client.set_ld_allocations(&name("mn0"), &set).await.unwrap();
    assert_eq!(
        devices.iter().map(|ld| (ld.device.id, ld.capacity)).collect::<Vec<_>>(),
        [(3, LD), (4, 2 * LD)]
    );
    let odd = SetLdAllocations { first: 3, reserved: vec![ByteSize(EXTENT)] };
    let error = client.set_ld_allocations(&name("mn0"), &odd).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::BadRequest), "{error}");

    let bind = Bind {
        compute_node: owner("cn0"),
        memory_node: name("mn0"),
        ld: Some(3),
        vppb: Some(7),
        wait_ms: LONG_MS,
    };
    let bound = client.bind(&bind).await.unwrap();
    assert_eq!(
        (bound.used_bytes, bound.unbound_percent, &bound.regions[..]),
        (LD, None, &[name("mn0-ld3")][..])
    );
    assert_eq!(client.region(&name("mn0-ld3")).await.unwrap().state, RegionState::Active);
    assert_eq!(client.logical_devices().await.unwrap().len(), 2);
    let error = client.bind(&Bind { ld: Some(4), vppb: Some(8), ..bind.clone() }).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::WrongState), "{error}");

    node.orders().zero_only = Some(LD / 2);
    agent.agent().clings = true;
    let Unbound::Unbinding(left) = client.unbind(&unbind(UnbindOption::Managed, SHORT_MS)).await.unwrap()
    else {
        panic!("the agent has not let go");
    };
    assert!(left.waits_for_owner && left.unbound_percent == Some(0));
    agent.agent().clings = false;
    let freed = client.unbind(&unbind(UnbindOption::Managed, LONG_MS)).await;
    // The device may have been removed between the two calls.
    assert!(matches!(&freed, Ok(Unbound::Free)) || freed.unwrap_err().code() == Some(ErrorCode::NotFound));
    // The device is free before its memory is zeroed.
    eventually("half of it zeroed", || async {
        let statuses = client.region_statuses().await.unwrap();
        (statuses[0].zeroed_percent == Some(50) && statuses[0].region.state == RegionState::Draining)
            .then_some(())
    })
    .await;
    node.orders().zero_only = None;
    eventually("its end", || async { client.regions().await.unwrap().is_empty().then_some(()) }).await;
    let devices = client.logical_devices().await.unwrap();
    assert!(devices.iter().all(|ld| ld.device.binding.is_none() && ld.capacity > 0));

    node.orders().refuse = Some("page table full".into());
    let error = client.bind(&bind).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NodeRefused), "{error}");
    assert!(error.to_string().contains("page table full"), "{error}");
}

#[tokio::test]
async fn destroying_tells_how_far_it_has_come() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let node = PatientNode::start(client.clone(), memory_node("mn0", 0, 64)).await;
    client.create_region(&CreateRegion::new(name("r"), 4 * EXTENT, cn(1))).await.unwrap();
    node.orders().zero_only = Some(3 * EXTENT);
    let short = DestroyRegion { force: true, wait_ms: SHORT_MS, created_ms: None };
    assert!(matches!(client.destroy_region(&name("r"), short).await.unwrap(), Destroyed::Draining(_)));
    eventually("three quarters", || async {
        let status = client.region_status(&name("r")).await.unwrap();
        (status.zeroed_percent == Some(75)).then_some(())
    })
    .await;
    node.orders().zero_only = None;
    let long = DestroyRegion { force: true, wait_ms: LONG_MS, created_ms: None };
    match client.destroy_region(&name("r"), long).await {
        Ok(destroyed) => assert_eq!(destroyed, Destroyed::Gone),
        Err(error) => assert_eq!(error.code(), Some(ErrorCode::NotFound), "{error}"),
    }
}

#[tokio::test]
async fn the_wait_for_an_owner_is_one_long_poll() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let _node = PatientNode::start(client.clone(), memory_node("mn0", 0, 64)).await;
    client.create_region(&CreateRegion::new(name("absent"), EXTENT, cn(2))).await.unwrap();
    assert!(!client.region_at_owner(&name("absent"), LONG_MS).await.unwrap().owner_knows, "no agent runs");
    assert_eq!(
        client.region_at_owner(&name("none"), LONG_MS).await.unwrap_err().code(),
        Some(ErrorCode::NotFound)
    );

    let registered = client.register_compute_node(&compute_node("cn0", 1)).await.unwrap();
    client.create_region(&CreateRegion::new(name("r"), EXTENT, cn(1))).await.unwrap();
    assert!(!client.region_at_owner(&name("r"), SHORT_MS).await.unwrap().owner_knows, "it has not synced");
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.region_at_owner(&name("r"), LONG_MS).await }
    });
    let mut sync = ComputeNodeSync {
        registration: registered.registration,
        after_event: registered.after_event,
        released: Vec::new(),
        quiet: 0,
        settled: false,
        wait_ms: 0,
    };
    // The answer to a sync contains the region; the next sync acknowledges it.
    for _ in 0..2 {
        sync.after_event = client.sync_compute_node(cn(1), &sync).await.unwrap().after_event;
    }
    assert!(waiting.await.unwrap().unwrap().owner_knows);
}

#[tokio::test]
async fn nodes_are_limited_held_and_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--node-timeout", "300"]);
    let client = served.client();
    let node = PatientNode::start(client.clone(), memory_node("mn0", 0, 64)).await;
    let agent = PatientAgent::start(client.clone(), compute_node("cn0", 1)).await;

    assert_eq!(client.set_quota(&owner("cn0"), Some(4 * EXTENT)).await.unwrap().quota, Some(4 * EXTENT));
    client.create_region(&CreateRegion::new(name("r"), 3 * EXTENT, cn(1))).await.unwrap();
    let error = client.create_region(&CreateRegion::new(name("s"), 2 * EXTENT, cn(1))).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::OverQuota), "{error}");
    assert_eq!(client.set_quota(&Owner::CnId(cn(1)), None).await.unwrap().quota, None);
    client.create_region(&CreateRegion::new(name("s"), 2 * EXTENT, cn(1))).await.unwrap();

    assert!(client.hold(&owner("cn0")).await.unwrap().held);
    eventually("the agent hears of it", || async { agent.agent().held.then_some(()) }).await;
    assert!(!client.release(&owner("cn0")).await.unwrap().held);
    eventually("the agent hears of it", || async { (!agent.agent().held).then_some(()) }).await;
    assert_eq!(client.hold(&owner("nobody")).await.unwrap_err().code(), Some(ErrorCode::NotFound));

    let error = client.forget_memory_node(&name("mn0"), true).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::WrongState), "it is there: {error}");
    drop(node);
    eventually("its being gone", || async {
        (client.health().await.unwrap().memory_nodes.reachable == 0).then_some(())
    })
    .await;
    let error = client.forget_memory_node(&name("mn0"), false).await.unwrap_err();
    assert!(error.to_string().contains("regions lie on it"), "{error}");
    client.forget_memory_node(&name("mn0"), true).await.unwrap();
    assert!(client.memory_nodes().await.unwrap().is_empty() && client.regions().await.unwrap().is_empty());
}

#[tokio::test]
async fn sessions_are_those_that_memory_nodes_report() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let node = PatientNode::start(client.clone(), memory_node("mn0", 0, 64)).await;
    client.register_compute_node(&compute_node("cn0", 1)).await.unwrap();
    let session = |last: u8| serde_json::json!({"cn": cn(last), "streams": 4, "counters": {"executed": 9}});
    node.orders().stats = serde_json::json!([
        {"sessions": [session(1)], "tlb_hits": 1},
        {"sessions": [session(2), {"cn": "nonsense"}]},
    ]);
    let sessions = eventually("the report", || async {
        let sessions = client.sessions().await.unwrap();
        (!sessions.is_empty()).then_some(sessions)
    })
    .await;
    let seen: Vec<_> =
        sessions.iter().map(|s| (s.worker, s.compute_node, s.compute_node_name.clone())).collect();
    assert_eq!(seen, [(0, cn(1), Some(name("cn0"))), (1, cn(2), None)]);
    assert_eq!((&sessions[0].memory_node, &sessions[0].counters["streams"]), (&name("mn0"), &4.into()));
}

#[tokio::test]
async fn the_overview_says_who_has_what_and_finds_regions() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let first = PatientNode::start(client.clone(), memory_node("mn-a", 0, 1024)).await;
    let _second = PatientNode::start(client.clone(), memory_node("mn-b", 1, 64)).await;
    client.register_compute_node(&compute_node("Alpha", 1)).await.unwrap();
    let create = |region: &str, extents: u64, owner: u8, on: &[&str]| CreateRegion {
        on: on.iter().copied().map(name).collect(),
        ways: Ways::try_from(on.len() as u32).unwrap(),
        ..CreateRegion::new(name(region), extents * EXTENT, cn(owner))
    };
    for region in [
        create("heap", 4, 1, &["mn-a", "mn-b"]),
        create("Heap-2", 10, 2, &["mn-a"]),
        create("x", 6, 2, &["mn-b"]),
    ] {
        client.create_region(&region).await.unwrap();
    }
    let worker = |executed: u64| {
        let session = serde_json::json!({"cn": cn(2), "counters": {"executed": executed}});
        serde_json::json!({"link": {"rx_bytes": 100}, "requests": {"executed": executed}, "sessions": [session]})
    };
    first.orders().stats = serde_json::json!([worker(5), worker(7)]);

    let http = cxloe_fabric::client::http().build().unwrap();
    let ask = async |query: &str| {
        let url = format!("{}/v1/overview{query}", served.url);
        http.get(url).send().await.unwrap().error_for_status().unwrap()
    };
    let overview = eventually("its report", || async {
        let overview: Overview = ask("").await.json().await.unwrap();
        overview.memory_nodes[0].traffic.is_some().then_some(overview)
    })
    .await;
    let [a, b] = &overview.memory_nodes[..] else { panic!("{overview:?}") };
    assert_eq!((a.name.as_str(), a.regions, a.free_bytes), ("mn-a", 2, (1024 - 12) * EXTENT));
    let shares = [(cn(1), 2 * EXTENT), (cn(2), 10 * EXTENT)];
    assert_eq!(a.owners.iter().map(|share| (share.compute_node, share.bytes)).collect::<Vec<_>>(), shares);
    let traffic = a.traffic.unwrap();
    assert_eq!((traffic.requests, traffic.rx_bytes, traffic.sessions), (12, 200, 2));
    assert!(a.reported_ms.unwrap() <= overview.time_ms && b.traffic.is_none());
    let nodes: Vec<_> =
        overview.compute_nodes.iter().map(|node| (node.cn_id, node.bytes, node.requests)).collect();
    assert_eq!(nodes, [(cn(1), 4 * EXTENT, None), (cn(2), 16 * EXTENT, Some(12))]);
    let [total] = overview.regions[..] else { panic!("{overview:?}") };
    assert_eq!((total.state, total.regions, total.bytes), (RegionState::Active, 3, 20 * EXTENT));

    let table: [(&str, u64, &[&str]); 11] = [
        ("", 3, &["Heap-2", "heap", "x"]),
        ("?sort=size", 3, &["Heap-2", "x", "heap"]),
        ("?sort=size&limit=1", 3, &["Heap-2"]),
        ("?text=HEAP", 2, &["Heap-2", "heap"]),
        ("?text=alph", 1, &["heap"]),
        ("?text=mn-B", 2, &["heap", "x"]),
        ("?text=02:00:00:00:01:02", 2, &["Heap-2", "x"]),
        ("?owner=Alpha", 1, &["heap"]),
        ("?owner=nobody", 0, &[]),
        ("?memory_node=mn-a&text=-2", 1, &["Heap-2"]),
        ("?state=lost", 0, &[]),
    ];
    for (query, matching, names) in table {
        let page: RegionsPage = ask(&format!("/regions{query}")).await.json().await.unwrap();
        let found: Vec<_> = page.regions.iter().map(|region| region.name.as_str()).collect();
        assert_eq!((page.matching, &found[..]), (matching, names), "{query}");
    }
}

#[tokio::test]
async fn the_page_comes_with_a_policy_that_lets_nothing_else_in() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let http = cxloe_fabric::client::http().build().unwrap();
    for (path, kind) in
        [("/", "text/html"), ("/ui/main.js", "text/javascript"), ("/ui/style.css", "text/css")]
    {
        let answer = http.get(format!("{}{path}", served.url)).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("content-type"), format!("{kind}; charset=utf-8"));
        assert_eq!(header("x-content-type-options"), "nosniff");
        let policy = header("content-security-policy");
        for part in
            ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for"]
        {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe") && !answer.text().await.unwrap().is_empty());
    }
    let missing = http.get(format!("{}/ui/none.js", served.url)).send().await.unwrap();
    assert_eq!(missing.status(), 404);
}

#[tokio::test]
async fn a_backup_is_taken_and_put_back_while_the_manager_runs() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let _node = PatientNode::start(client.clone(), memory_node("mn0", 0, 64)).await;
    client.create_region(&CreateRegion::new(name("kept"), 4 * EXTENT, cn(1))).await.unwrap();
    let backup = String::from_utf8(client.backup().await.unwrap()).unwrap();
    client.create_region(&CreateRegion::new(name("late"), 4 * EXTENT, cn(1))).await.unwrap();
    let names = || async {
        let regions = client.regions().await.unwrap();
        regions.into_iter().map(|region| region.name.to_string()).collect::<Vec<_>>()
    };
    let restore = RestoreStore::new;
    for (text, words) in [
        (backup[..backup.len() / 2].to_owned(), "no backup of a manager's store"),
        (backup.replacen("\"fabric\":", "\"fabric\":1", 1), "no backup of a manager's store"),
        ("{}".to_owned(), "no backup of a manager's store"),
    ] {
        let error = client.restore(&restore(text)).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::BadRequest), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    assert_eq!(names().await, ["kept", "late"], "nothing was changed");
    let restored = client.restore(&restore(backup.clone())).await.unwrap();
    assert!(restored.restored.revision < restored.before.revision, "{restored:?}");
    assert_eq!(names().await, ["kept"]);

    // The backup of another fabric is restored only if that is requested; a new fabric may begin with it.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Served::start(elsewhere.path(), &[]);
    let theirs = other.client();
    theirs.restore(&restore(backup.clone())).await.unwrap();
    assert_eq!(theirs.regions().await.unwrap().len(), 1);
    let third = tempfile::tempdir().unwrap();
    let third = Served::start(third.path(), &[]);
    let _node = PatientNode::start(third.client(), memory_node("mn0", 0, 64)).await;
    let error = third.client().restore(&restore(backup.clone())).await.unwrap_err();
    assert!(error.to_string().contains("another fabric's"), "{error}");
    third.client().restore(&RestoreStore { other_fabric: true, ..RestoreStore::new(backup) }).await.unwrap();
}

#[tokio::test]
async fn a_memory_node_is_named_once_in_a_request() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let _node = ObedientNode::start(client.clone(), memory_node("mn0", 0, 64)).await;
    let refused = |result: Result<Region, ClientError>| {
        let error = result.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::BadRequest), "{error}");
        assert!(error.to_string().contains("mn0 is named twice"), "{error}");
    };
    let create =
        CreateRegion { on: vec![name("mn0"); 16], ..CreateRegion::new(name("r"), 16 * EXTENT, cn(1)) };
    refused(client.create_region(&CreateRegion { ways: Ways::Sixteen, ..create.clone() }).await);
    refused(client.create_region(&create).await);
    client.create_region(&CreateRegion { on: vec![name("mn0")], ..create }).await.unwrap();
    let grow = GrowRegion { size: ByteSize(32 * EXTENT), on: vec![name("mn0"); 2], wait_ms: 0 };
    refused(client.grow_region(&name("r"), &grow).await);
}
