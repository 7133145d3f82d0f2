//! Control of a memory node by a real manager on loopback: regions are created and destroyed, both sides restart, and a
//! compute node's key changes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cxloe_daemon::{Backoff, Connection, StateFile};
use cxloe_fabric::Client;
use cxloe_fabric::api::{CreateRegion, DestroyRegion, RegisterComputeNode};
use cxloe_fabric::client::Destroyed;
use cxloe_fabric::model::{CnId, Health, Name, RegionState, Watermark};
use cxloe_gmm::server::{Config, Server};
use cxloe_mn::control::{KeyRing, ManagerLink, ManagerLinkOptions, Mappings};
use cxloe_mn::pool::{Host, PoolOptions, PoolSpec};
use cxloe_mn_core::translation::{PageTable, Tlb, Unmapped};
use cxloe_wire::frame::{Mac, PublicKey};
use tokio::time::timeout;

const EXTENT: u64 = 2 << 20;
const LIMIT: Duration = Duration::from_secs(30);

async fn serve(store: &Path, port: u16) -> (Server, Client) {
    let config = Config {
        listen: ([127, 0, 0, 1], port).into(),
        insecure: true,
        store: store.to_path_buf().into(),
        node_timeout: Duration::from_millis(600),
        ..Config::default()
    };
    let server = Server::start(config).await.unwrap();
    let client = Client::new(&format!("http://{}", server.address())).unwrap();
    (server, client)
}

fn open(pool: &Path) -> Mappings {
    let options = PoolOptions {
        spec: PoolSpec::File(pool.to_path_buf()),
        bytes: Some(8 * EXTENT),
        ..PoolOptions::default()
    };
    let pool = cxloe_mn::pool::open(&options, &Host::default(), None, &|_, _| {}).unwrap();
    Mappings::open(Arc::new(pool), Watermark::default()).0
}

fn link(mappings: Mappings, client: &Client, state: &Path) -> ManagerLink {
    link_with_keys(mappings, client, state, None)
}

fn link_with_keys(mappings: Mappings, client: &Client, state: &Path, keys: Option<KeyRing>) -> ManagerLink {
    let mut options = ManagerLinkOptions::new(client.url(), "mn0", vec![Mac([2, 0, 0, 0, 0, 9])], 1500);
    options.backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(50));
    options.state = Some(StateFile::at(state).unwrap());
    options.keys = keys;
    ManagerLink::start(mappings, options, Box::new(|| serde_json::json!({"lines_read": 42}))).unwrap()
}

async fn until(link: &ManagerLink, what: impl FnMut(&Connection) -> bool) -> Connection {
    let mut changes = link.watch();
    let found = timeout(LIMIT, changes.wait_for(what)).await.expect("in time").expect("the link lives");
    found.clone()
}

/// Starts a worker that passes a batch boundary every 200 us and translates an address; returns its number of
/// purges.
fn worker(table: &Arc<PageTable>, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<u64> {
    let (table, stop) = (table.clone(), stop.clone());
    let (ready, started) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut passage = table.generation().worker();
        let (mut tlb, mut purges) = (Tlb::new(16), 0);
        passage.pass(|| {});
        ready.send(()).unwrap();
        while !stop.load(Ordering::Relaxed) {
            passage.pass(|| {
                tlb.purge(&table);
                purges += 1;
            });
            let _ = tlb.translate(&table, 0x0200_0000_0001, 0);
            std::thread::sleep(Duration::from_micros(200));
        }
        purges
    });
    started.recv().unwrap();
    thread
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

#[test]
fn regions_come_and_go_and_survive_restarts_of_both_sides() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(4 * LIMIT, story()).await }).expect("the story ends");
}

async fn story() {
    let dir = tempfile::tempdir().unwrap();
    let (store, pool, state) =
        (dir.path().join("gmm.redb"), dir.path().join("pool"), dir.path().join("mn.state"));
    let (server, client) = serve(&store, 0).await;
    let port = server.address().port();
    let owner: CnId = "02:00:00:00:00:01".parse().unwrap();
    let cn = 0x0200_0000_0001;

    let mappings = open(&pool);
    let table = mappings.table().clone();
    let stop = Arc::new(AtomicBool::new(false));
    let busy = worker(&table, &stop);
    let mn = link(mappings, &client, &state);
    until(&mn, |connection| *connection == Connection::Registered).await;

    // When the creation of a region is answered, the region is mapped and reads as zeros.
    let region = client.create_region(&CreateRegion::new(name("a"), 3 * EXTENT, owner)).await.unwrap();
    assert_eq!(region.state, RegionState::Active);
    let base = region.legs[0].cmem_base;
    let mut tlb = Tlb::new(16);
    let first = tlb.translate(&table, cn, base).unwrap();
    for extent in 0..3 {
        tlb.translate(&table, cn, base + extent * EXTENT).unwrap();
    }
    assert_eq!(tlb.translate(&table, cn, base + 3 * EXTENT), Err(Unmapped::Nxm));
    assert_eq!(tlb.translate(&table, cn + 1, base), Err(Unmapped::Denied));
    table.pool().write_lines(first, &[7; 64]);

    // The node's statistics reach the manager.
    let nodes = client.memory_nodes().await.unwrap();
    assert_eq!((nodes[0].node.health, &nodes[0].stats["lines_read"]), (Health::Reachable, &42.into()));

    // When the destruction of a region is answered, the region is unmapped and zeroed.
    client.create_region(&CreateRegion::new(name("b"), EXTENT, owner)).await.unwrap();
    assert_eq!(table.iter().count(), 4);
    let destroy = DestroyRegion { force: true, wait_ms: 10_000, created_ms: None };
    assert_eq!(client.destroy_region(&name("b"), destroy).await.unwrap(), Destroyed::Gone);
    assert_eq!(table.iter().count(), 3);

    // The manager is stopped and started again: all mappings are served meanwhile, and the node registers again.
    server.stop().await.unwrap();
    until(&mn, |connection| matches!(connection, Connection::Away(_))).await;
    assert_eq!(table.lookup(cn, base / EXTENT).map(|extent| table.pool().extent_start(extent)), Some(first));
    let (server, client) = serve(&store, port).await;
    until(&mn, |connection| *connection == Connection::Registered).await;
    let kept = StateFile::<Watermark>::at(&state).unwrap().load().unwrap();
    assert!(kept.term >= 2, "the second start of the manager was noted: {kept:?}");

    // The node is started again with its pool file: incarnation, content and mapping are the same.
    stop.store(true, Ordering::Relaxed);
    assert!(busy.join().unwrap() > 0, "the worker purged its TLB for region b");
    let incarnation = table.pool().incarnation();
    drop((mn.stop(), table));
    let mappings = open(&pool);
    let table = mappings.table().clone();
    assert_eq!((table.pool().incarnation(), table.iter().count()), (incarnation, 3));
    let mn = link(mappings, &client, &state);
    until(&mn, |connection| *connection == Connection::Registered).await;
    let mut line = [0; 64];
    table.pool().read_lines(first, &mut line);
    assert_eq!(line, [7; 64]);
    assert_eq!(client.region(&name("a")).await.unwrap().legs[0].cmem_base, base);

    assert_eq!(client.destroy_region(&name("a"), destroy).await.unwrap(), Destroyed::Gone);
    table.pool().read_lines(first, &mut line);
    assert_eq!((line, table.iter().count()), ([0; 64], 0));

    // The node refuses a manager whose store has fewer changes than the node has seen.
    server.stop().await.unwrap();
    let (other, _) = serve(&dir.path().join("other.redb"), port).await;
    let away =
        until(&mn, |connection| matches!(connection, Connection::Away(why) if why.contains("refused"))).await;
    assert!(matches!(away, Connection::Away(_)));
    drop(mn.stop());
    other.stop().await.unwrap();
}

/// Waits until `check` is true.
async fn wait_for(mut check: impl FnMut() -> bool) {
    let poll = async {
        while !check() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, poll).await.expect("in time");
}

/// Registers a compute node with a key, and returns the key.
async fn register_with_key(client: &Client, cn_id: CnId) -> PublicKey {
    let key = PublicKey([7; 32]);
    let register = RegisterComputeNode {
        cn_id,
        name: name("cn1"),
        udp: None,
        key: Some(key),
        new_key: false,
        instance_id: 5,
        seen: Watermark::default(),
    };
    client.register_compute_node(&register).await.unwrap();
    key
}

#[test]
fn a_key_is_admitted_while_memory_is_zeroed() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(4 * LIMIT, new_key_story()).await }).expect("the story ends");
}

#[test]
fn a_key_is_admitted_while_nothing_can_be_stored() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(4 * LIMIT, full_disk_story()).await }).expect("the story ends");
}

async fn new_key_story() {
    let dir = tempfile::tempdir().unwrap();
    let (server, client) = serve(&dir.path().join("gmm.redb"), 0).await;
    let mappings = open(&dir.path().join("pool"));
    let table = mappings.table().clone();
    let ring = KeyRing::open(BTreeMap::new(), None).unwrap();
    let admitted = ring.admitted();
    let mn = link_with_keys(mappings, &client, &dir.path().join("mn.state"), Some(ring));
    until(&mn, |connection| *connection == Connection::Registered).await;
    let owner: CnId = "02:00:00:00:00:01".parse().unwrap();
    for region in ["a", "b"] {
        client.create_region(&CreateRegion::new(name(region), EXTENT, owner)).await.unwrap();
    }

    // A worker that comes to no batch boundary makes the change last as long as the zeroing of a large region.
    let mut passage = table.generation().worker();
    passage.pass(|| {});
    let destroy = DestroyRegion { force: true, wait_ms: 0, created_ms: None };
    assert!(matches!(client.destroy_region(&name("b"), destroy).await.unwrap(), Destroyed::Draining(_)));
    wait_for(|| table.iter().count() == 1).await;
    let key = register_with_key(&client, owner).await;
    wait_for(|| admitted.of(0x0200_0000_0001) == Some(key)).await;
    assert_eq!(client.region(&name("b")).await.unwrap().state, RegionState::Draining);
    drop((passage, mn.stop()));
    server.stop().await.unwrap();
}

async fn full_disk_story() {
    let dir = tempfile::tempdir().unwrap();
    let (server, client) = serve(&dir.path().join("gmm.redb"), 0).await;
    let (ring, state) = (KeyRing::open(BTreeMap::new(), None).unwrap(), dir.path().join("state"));
    let admitted = ring.admitted();
    let mn = link_with_keys(open(&dir.path().join("pool")), &client, &state.join("mn.state"), Some(ring));
    until(&mn, |connection| *connection == Connection::Registered).await;
    let owner: CnId = "02:00:00:00:00:01".parse().unwrap();
    client.create_region(&CreateRegion::new(name("a"), EXTENT, owner)).await.unwrap();

    // With a file in the place of the folder, nothing can be stored.
    std::fs::rename(&state, dir.path().join("before")).unwrap();
    std::fs::write(&state, "").unwrap();
    let key = register_with_key(&client, owner).await;
    wait_for(|| admitted.of(0x0200_0000_0001) == Some(key)).await;
    drop(mn.stop());
    server.stop().await.unwrap();
}
