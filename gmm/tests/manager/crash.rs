//! A manager that is killed (SIGKILL) repeatedly, at points that a seed determines, while clients create, grow and
//! destroy regions and memory nodes carry out commands. After each kill, the store is opened and compared with the
//! answers given and with the mappings of the nodes: no extent has two owners, no extent is lost, and every
//! acknowledged change is in the store.
//!
//! The seed is printed. `CXLOE_CRASH_SEED` repeats the decisions of a run, but not the scheduling of the machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::node::Node;
use crate::common::{EXTENT, Served, TEST_TIMEOUT, cn, eventually, gmm, memory_node, name};
use cxloe_fabric::Client;
use cxloe_fabric::api::{CreateRegion, DestroyRegion, ErrorCode, GrowRegion};
use cxloe_fabric::hdm::Ways;
use cxloe_fabric::model::{ByteSize, LegState, RegionState};
use cxloe_gmm::store::{RedbStore, Store};
use cxloe_gmm_core::manager::FabricState;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Number of kills in the usual run.
const KILLS: u32 = 200;
/// Number of kills in the long run.
const KILLS_LONG: u32 = 3000;
const CLIENTS: u8 = 3;
/// Maximum number of regions of a client.
const OWN_MAX: usize = 12;
const NODES: u8 = 3;
/// Number of extents of each memory node.
const EXTENTS: u64 = 4096;

/// State of a region according to the answers that its client has received.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    /// True if the creation was acknowledged.
    created: bool,
    /// Maximum acknowledged size, in bytes.
    size: u64,
    /// Maximum requested size, in bytes.
    size_asked: u64,
    /// True if the destruction was requested.
    destroy_asked: bool,
    /// True if the destruction was acknowledged.
    destroyed: bool,
}

/// Requests that clients have sent, and the answers that they have received.
#[derive(Default)]
struct Ledger {
    regions: Mutex<BTreeMap<String, Told>>,
    answers: AtomicU64,
}

impl Ledger {
    fn note(&self, region: &str, note: impl FnOnce(&mut Told)) {
        note(self.regions.lock().unwrap().entry(region.to_owned()).or_default());
    }

    fn answered(&self, region: &str, answer: impl FnOnce(&mut Told)) {
        self.note(region, answer);
        self.answers.fetch_add(1, Ordering::SeqCst);
    }
}

/// Names of regions with their sizes in extents.
type Regions = Vec<(String, u64)>;

/// Runs one client, which sends requests until the manager has ended. `own` are the regions of its previous
/// run.
async fn ask(
    client: Client,
    ledger: Arc<Ledger>,
    mut random: StdRng,
    prefix: String,
    owner: u8,
    mut own: Regions,
) {
    for number in 0..1000 {
        let wait_ms = if random.random_bool(0.5) { 0 } else { 5000 };
        let pick = (!own.is_empty()).then(|| random.random_range(0..own.len()));
        // A client with more regions than the limit destroys some first.
        let choice = if own.len() > OWN_MAX { 2 } else { random.random_range(0..6) };
        let unreachable = match (choice, pick) {
            (0 | 1, Some(pick)) => {
                let (region, extents) = &mut own[pick];
                let more = *extents + random.random_range(1..8);
                let size = ByteSize(more * EXTENT);
                ledger.note(region, |told| told.size_asked = size.0);
                match client.grow_region(&name(region), &GrowRegion { size, on: Vec::new(), wait_ms }).await {
                    Ok(_) => {
                        *extents = more;
                        ledger.answered(region, |told| told.size = size.0);
                        false
                    }
                    Err(error) => error.is_passing(),
                }
            }
            (2, Some(pick)) => {
                let (region, _) = own.swap_remove(pick);
                ledger.note(&region, |told| told.destroy_asked = true);
                match client
                    .destroy_region(&name(&region), DestroyRegion { force: true, wait_ms, created_ms: None })
                    .await
                {
                    Ok(_) => {
                        ledger.answered(&region, |told| told.destroyed = true);
                        false
                    }
                    Err(error) => error.is_passing(),
                }
            }
            _ => {
                let region = format!("{prefix}-{number}");
                let ways = [1, 1, 2, 3][random.random_range(0..4)];
                let extents = ways * random.random_range(1..6);
                let mut create = CreateRegion::new(name(&region), extents * EXTENT, cn(owner));
                create.ways = Ways::try_from(ways as u32).unwrap();
                create.wait_ms = wait_ms;
                ledger.note(&region, |told| told.size_asked = create.size.0);
                match client.create_region(&create).await {
                    Ok(_) => {
                        ledger.answered(&region, |told| (told.created, told.size) = (true, create.size.0));
                        own.push((region, extents));
                        false
                    }
                    Err(error) => error.is_passing(),
                }
            }
        };
        if unreachable {
            return;
        }
    }
}

/// Compares the store with the answers given and with the mappings of the nodes.
fn check(state: &FabricState, ledger: &Ledger, nodes: &[Node]) {
    let told = ledger.regions.lock().unwrap();
    for (region, told) in told.iter() {
        let Some(found) = state.regions.get(&name(region)) else {
            assert!(
                !told.created || told.destroy_asked,
                "region {region} was acknowledged and is gone: {told:?}"
            );
            continue;
        };
        let draining = found.state == RegionState::Draining;
        assert!(
            !told.destroyed || draining,
            "the end of {region} was acknowledged, and it is {}",
            found.state
        );
        assert!(!draining || told.destroy_asked, "nobody asked for the end of {region}");
        let bytes: u64 = found.decoders.iter().map(|decoder| decoder.size).sum();
        assert!(draining || bytes >= told.size, "{region} has {bytes} bytes: {told:?}");
        assert!(bytes <= told.size_asked, "{region} has {bytes} bytes: {told:?}");
    }
    let unknown = state.regions.keys().find(|region| !told.contains_key(region.as_str()));
    assert_eq!(unknown, None, "nobody asked for this region");

    let mut cmem = BTreeMap::new();
    for node in nodes {
        let known = node.known();
        assert!(known.wrong.is_empty(), "memory node {}: {:?}", node.register.name, known.wrong);
        let mut owned = BTreeMap::new();
        for region in state.regions.values() {
            for leg in region.legs.iter().filter(|leg| leg.memory_node == node.register.name) {
                for (extent, page) in leg.extents.iter().zip(0..) {
                    let place = (region.owner, leg.cmem_base + page * leg.extent_bytes);
                    assert!(extent < EXTENTS, "extent {extent} is not there");
                    let before = owned.insert(extent, (place, leg.state));
                    assert_eq!(before, None, "extent {extent} of {} has two owners", node.register.name);
                    let before = cmem.insert(place, &region.name);
                    assert_eq!(before, None, "CMem {place:?} was given twice");
                }
            }
        }
        for (extent, place) in &known.mapped {
            let owner = owned.get(extent).map(|(owner, _)| owner);
            assert_eq!(owner, Some(place), "{} serves extent {extent}", node.register.name);
        }
        for (extent, (place, leg)) in &owned {
            let served = known.mapped.get(extent);
            assert!(*leg != LegState::Mapped || served == Some(place), "extent {extent} is not served");
        }
    }
}

/// The regions with which client number `client` continues: those whose destruction was not requested.
fn kept(state: &FabricState, ledger: &Ledger, client: u8) -> Regions {
    let told = ledger.regions.lock().unwrap();
    let own = state.regions.values().filter(|region| {
        region.owner == cn(client) && !told.get(region.name.as_str()).is_some_and(|told| told.destroy_asked)
    });
    own.map(|region| {
        let bytes: u64 = region.decoders.iter().map(|decoder| decoder.size).sum();
        (region.name.to_string(), bytes / EXTENT)
    })
    .collect()
}

fn killed_again_and_again(kills: u32) {
    let given = std::env::var("CXLOE_CRASH_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seed: u64 = given.unwrap_or_else(rand::random);
    println!("CXLOE_CRASH_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let nodes: Vec<Node> =
        (0..NODES).map(|node| Node::new(memory_node(&format!("mn{node}"), node, EXTENTS))).collect();
    let ledger = Arc::new(Ledger::default());
    let (mut term, mut state) = (0, FabricState::default());
    for round in 0..kills {
        let jitter = Duration::from_micros(random.random_range(0..4000));
        if random.random_range(0..10) == 0 {
            killed_at_its_start(folder.path(), jitter * 8);
        } else {
            let answers = random.random_range(0..30);
            let clients: Vec<StdRng> = (0..CLIENTS).map(|_| StdRng::seed_from_u64(random.random())).collect();
            let served = Served::start(folder.path(), &[]);
            let links: Vec<_> = nodes.iter().map(|node| node.start(&served.url)).collect();
            let wanted = ledger.answers.load(Ordering::SeqCst) + answers;
            let tasks: Vec<_> = (0..)
                .zip(clients)
                .map(|(client, random)| {
                    let prefix = format!("r{round}-{client}");
                    let own = kept(&state, &ledger, client);
                    runtime.spawn(ask(served.client(), Arc::clone(&ledger), random, prefix, client, own))
                })
                .collect();
            let deadline = Instant::now() + TEST_TIMEOUT;
            while ledger.answers.load(Ordering::SeqCst) < wanted {
                assert!(Instant::now() < deadline, "nothing is answered: {}", served.log());
                std::thread::sleep(Duration::from_micros(200));
            }
            std::thread::sleep(jitter);
            served.kill();
            for task in tasks {
                runtime.block_on(task).unwrap();
            }
            links.into_iter().for_each(|link| drop(link.stop()));
        }
        // A manager killed before its store was complete leaves no store; this call then makes an empty one.
        let mut store = RedbStore::open(&folder.path().join("gmm.redb")).unwrap();
        state = store.load().unwrap();
        let now = state.meta.watermark.term;
        assert!(term <= now && now <= term + 1, "term {now} after {term}");
        term = now;
        check(&state, &ledger, &nodes);
    }
    let answers = ledger.answers.load(Ordering::SeqCst);
    println!("{kills} kills, {answers} answers, {} regions asked for", ledger.regions.lock().unwrap().len());
    assert!(answers > u64::from(kills), "only {answers} answers: the kills tested little");
    everything_can_be_had_back(&runtime, folder.path(), &nodes);
}

/// Starts a manager and kills it after this time, possibly before it serves.
fn killed_at_its_start(folder: &Path, after: Duration) {
    let mut child = gmm()
        .args(["serve", "--insecure", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Checks that no extent is lost: after every region is destroyed, all extents are free, and no node maps any
/// extent.
fn everything_can_be_had_back(runtime: &tokio::runtime::Runtime, folder: &Path, nodes: &[Node]) {
    let served = Served::start(folder, &[]);
    let links: Vec<_> = nodes.iter().map(|node| node.start(&served.url)).collect();
    let client = served.client();
    runtime.block_on(async {
        for region in client.regions().await.unwrap() {
            let destroyed = client
                .destroy_region(&region.name, DestroyRegion { force: true, wait_ms: 0, created_ms: None })
                .await;
            // A region under destruction may have been removed since it was listed.
            let refused = destroyed.is_err_and(|error| error.code() != Some(ErrorCode::NotFound));
            assert!(!refused, "{} cannot be destroyed", region.name);
        }
        let free = eventually("that all is free", || async {
            let nodes = client.memory_nodes().await.unwrap();
            let free: Vec<u64> = nodes.iter().map(|status| status.free_bytes / EXTENT).collect();
            (client.regions().await.unwrap().is_empty() && free.iter().all(|free| *free == EXTENTS))
                .then_some(free)
        });
        assert_eq!(free.await.len(), nodes.len());
    });
    links.into_iter().for_each(|link| drop(link.stop()));
    for node in nodes {
        let known = node.known();
        assert!(known.mapped.is_empty() && known.wrong.is_empty() && known.refused == 0, "{known:?}");
    }
}

#[test]
fn killed_at_any_point_nothing_acknowledged_is_lost_and_nothing_is_owned_twice() {
    killed_again_and_again(KILLS);
}

#[test]
#[ignore = "takes minutes: fifteen times as many kills"]
fn killed_at_any_point_for_minutes() {
    killed_again_and_again(KILLS_LONG);
}
