//! Three managers over etcd with ten thousand records: the fabric is restored from a backup, and etcd is
//! disturbed in several ways in turn while clients create regions. Every acknowledged region must exist
//! exactly once.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use cxloe_fabric::Client;
use cxloe_fabric::api::CreateRegion;
use cxloe_fabric::model::CnId;
use serde_json::json;

use super::manager;
use crate::common::etcd::Etcd;
use crate::common::node::Node;
use crate::common::{EXTENT, Served, compute_node, eventually, gmm, memory_node};

/// Number of compute nodes in the backup.
const RECORDS: u16 = 10_000;
/// Number of concurrent requests that fill the store.
const AT_ONCE: u16 = 16;
/// Number of clients that create regions.
const CREATORS: u32 = 8;
/// Number of creates that must be acknowledged between two disturbances.
const BETWEEN: usize = 40;
/// Pause of a client after a refusal, and of the test between two reads of the number of creates.
const PAUSE: Duration = Duration::from_millis(50);

/// Outcomes of the creates. Each create has a unique number, which becomes the user id of its region.
#[derive(Default)]
struct Creates {
    next: AtomicU32,
    acknowledged: std::sync::Mutex<Vec<u32>>,
    /// Numbers of the creates whose answers were lost.
    unknown: std::sync::Mutex<Vec<u32>>,
    refused: AtomicUsize,
    stop: AtomicBool,
}

impl Creates {
    fn acknowledged(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    async fn create(self: Arc<Self>, managers: String) {
        let client = Client::new(&managers).unwrap();
        while !self.stop.load(Ordering::SeqCst) {
            let number = self.next.fetch_add(1, Ordering::SeqCst) + 1;
            // The regions have many owners, so that each owner has few decoders.
            let owner = record((number % u32::from(RECORDS)) as u16);
            let nameless = CreateRegion::nameless(EXTENT, owner);
            let create = CreateRegion { uid: Some(number), wait_ms: 0, ..nameless };
            // A refused create is repeated: a refusal means that the manager has changed nothing.
            while !self.stop.load(Ordering::SeqCst) {
                match client.create_region(&create).await {
                    Ok(_) => self.acknowledged.lock().unwrap().push(number),
                    Err(lost) if lost.may_be_done() => self.unknown.lock().unwrap().push(number),
                    Err(_) => {
                        self.refused.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                }
                break;
            }
        }
    }
}

/// CN id of compute node `number` in the backup.
fn record(number: u16) -> CnId {
    let [high, low] = number.to_be_bytes();
    CnId::new([2, 0, 0, 9, high, low]).unwrap()
}

/// A backup of a fabric with [`RECORDS`] compute nodes, in `folder`.
async fn backup(folder: &std::path::Path) -> String {
    let served = Served::start(folder, &[]);
    let client = Arc::new(served.client());
    let fill = |first: u16| {
        let client = Arc::clone(&client);
        tokio::spawn(async move {
            for number in (first..RECORDS).step_by(AT_ONCE.into()) {
                let mut node = compute_node(&format!("cn{number}"), 1);
                node.cn_id = record(number);
                client.register_compute_node(&node).await.unwrap();
            }
        })
    };
    for filled in (0..AT_ONCE).map(fill).collect::<Vec<_>>() {
        filled.await.unwrap();
    }
    let file = folder.join("gmm.backup").to_str().unwrap().to_owned();
    let written = gmm().args(["--manager", &served.url, "backup", &file]).output().unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: ten thousand records and a dozen elections"]
async fn whatever_etcd_does_no_create_is_lost_or_done_twice() {
    let kept = tempfile::tempdir().unwrap();
    let backup = backup(kept.path()).await;
    let mut etcd = Etcd::start();
    etcd.guard();
    let wrong = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (place, store) =
        (etcd.place("lab"), format!("etcd://127.0.0.1:{wrong},127.0.0.1:{}/lab", etcd.port()));
    let mut managers = [(); 3].map(|()| manager(&store));
    let urls = |managers: &[(Served, tempfile::TempDir); 3]| {
        managers.each_ref().map(|(served, _)| served.url.clone()).join(",")
    };
    let all = urls(&managers);
    let restored = gmm().args(["--manager", &all, "restore", &backup]).output().unwrap();
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    let client = Client::new(&all).unwrap();
    assert_eq!(client.compute_nodes().await.unwrap().len(), usize::from(RECORDS));

    let node = Node::new(memory_node("mn0", 0, 1 << 20));
    let link = node.start(&all);
    eventually("the memory node is there", || async { client.memory_nodes().await.ok()?.pop() }).await;
    let creates = Arc::new(Creates::default());
    let creators: Vec<_> =
        (0..CREATORS).map(|_| tokio::spawn(Arc::clone(&creates).create(all.clone()))).collect();
    let go_on = async |after: &str| {
        let wanted = creates.acknowledged() + BETWEEN;
        eventually(&format!("creates after {after}"), || async {
            tokio::time::sleep(PAUSE).await;
            (creates.acknowledged() >= wanted).then_some(())
        })
        .await;
        println!("{after}: {} creates acknowledged", creates.acknowledged());
    };
    let refused = async |why: &str| {
        let before = creates.refused.load(Ordering::SeqCst);
        eventually(why, || async { (creates.refused.load(Ordering::SeqCst) > before).then_some(()) }).await;
    };
    go_on("the restore").await;

    etcd.ask("/v3/auth/user/add", json!({"name": "somebody", "password": "secret"})).unwrap();
    go_on("a change of etcd's users").await;
    let now = etcd.ask("/v3/kv/range", json!({"key": "YQ=="})).unwrap();
    etcd.ask("/v3/kv/compaction", json!({"revision": now["header"]["revision"]})).unwrap();
    go_on("a compaction").await;
    etcd.depose(&place);
    go_on("the loss of the leader's key").await;
    etcd.put(&place.key("leader"), "nobody");
    refused("a refusal while a stranger leads").await;
    etcd.depose(&place);
    go_on("a stranger in the leader's key").await;
    etcd.ask("/v3/auth/user/revoke", json!({"name": "gmm", "role": "fabric"})).unwrap();
    refused("a refusal without a permission").await;
    etcd.ask("/v3/auth/user/grant", json!({"user": "gmm", "role": "fabric"})).unwrap();
    go_on("a permission withdrawn and granted").await;
    let alarm = |action: u32| json!({"action": action, "memberID": "0", "alarm": 1});
    etcd.ask("/v3/maintenance/alarm", alarm(1)).unwrap();
    refused("a refusal of a full etcd").await;
    let armed = etcd.ask("/v3/maintenance/alarm", json!({"action": 0})).unwrap();
    for of in armed["alarms"].as_array().unwrap() {
        let disarm = json!({"action": 2, "memberID": of["memberID"], "alarm": 1});
        etcd.ask("/v3/maintenance/alarm", disarm).unwrap();
    }
    go_on("an etcd without room").await;
    etcd.freeze();
    refused("a refusal while etcd is stopped").await;
    etcd.thaw();
    go_on("a stop of etcd").await;
    etcd.kill();
    refused("a refusal without etcd").await;
    assert!(etcd.run());
    go_on("a restart of etcd").await;
    for (number, (served, _)) in managers.iter_mut().enumerate() {
        assert!(served.child.try_wait().unwrap().is_none(), "manager {number} has ended: {}", served.log());
    }
    let leader = client.health().await.unwrap().leader;
    let place_of_leader = managers.iter().position(|(served, _)| Some(&served.url) == leader.as_ref());
    managers[place_of_leader.unwrap_or(0)].0.child.kill().unwrap();
    go_on("the leader's end").await;

    creates.stop.store(true, Ordering::SeqCst);
    for creator in creators {
        creator.await.unwrap();
    }
    let regions = eventually("the regions", || async { client.regions().await.ok() }).await;
    let count = |number: &u32| regions.iter().filter(|region| region.uid == Some(*number)).count();
    let acknowledged = creates.acknowledged.lock().unwrap().clone();
    let lost: Vec<_> = acknowledged.iter().filter(|number| count(number) == 0).collect();
    let doubled: Vec<_> =
        (1..=creates.next.load(Ordering::SeqCst)).filter(|number| count(number) > 1).collect();
    let unknown = creates.unknown.lock().unwrap().clone();
    let done = unknown.iter().filter(|number| count(number) == 1).count();
    println!(
        "{} creates acknowledged, {} lost, {} doubled; {} answers lost, {done} of them done; {} refusals",
        acknowledged.len(),
        lost.len(),
        doubled.len(),
        unknown.len(),
        creates.refused.load(Ordering::SeqCst)
    );
    assert!(lost.is_empty() && doubled.is_empty(), "lost: {lost:?}; doubled: {doubled:?}");
    assert_eq!(client.compute_nodes().await.unwrap().len(), usize::from(RECORDS));
    drop(link.stop());
    assert!(node.known().wrong.is_empty(), "{:?}", node.known().wrong);
}
