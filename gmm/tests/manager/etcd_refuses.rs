//! Refusals by etcd, and addresses at which no member answers: the manager's process continues, reports the
//! cause, and leads again as soon as it can.

mod managers;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use axum::http::StatusCode;
use cxloe_fabric::Client;
use cxloe_gmm::store::etcd::{Attempt, Campaign};
use cxloe_gmm::store::{EtcdPlace, EtcdStore, Store};
use cxloe_gmm_core::manager::{Command, Manager, Options};
use serde_json::{Value, json};

use crate::common::etcd::{Etcd, lead};
use crate::common::proxy::{Fate, Proxy};
use crate::common::{Served, compute_node, eventually};

/// Starts a manager with a store in etcd, where it is the user `gmm`. Returns the manager, and the folder of its log.
fn manager(store: &str) -> (Served, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let more = ["--lease-ttl", "2", "--etcd-user", "gmm"];
    let served = Served::start_over(&["--store", store], folder.path(), &more);
    (served, folder)
}

/// Waits until `client` has changed the store.
async fn changed(client: &Client, cn: u8) {
    let node = compute_node(&format!("cn{cn}"), cn);
    eventually("a change", || async { client.register_compute_node(&node).await.ok() }).await;
}

/// Waits until the manager at `url` does not lead, for a reason that contains `reason`.
async fn waits_for(url: &str, reason: &str) {
    eventually(reason, || async {
        let answer = cxloe_fabric::client::http().build().unwrap();
        let answer = answer.get(format!("{url}/v1/regions")).send().await.unwrap();
        let status = answer.status();
        let body: Value = answer.json().await.unwrap();
        let error = body["error"].as_str().unwrap_or_default();
        (status == StatusCode::SERVICE_UNAVAILABLE && error.contains(reason)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_etcds_users_costs_a_new_token() {
    let secret = tempfile::tempdir().unwrap();
    let key = secret.path().join("key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
    let jwt = format!("jwt,priv-key={},sign-method=HS256,ttl=10m", key.display());
    let mut etcd = Etcd::start_with(&["--auth-token", &jwt]);
    etcd.guard();
    let store = etcd.place("lab").to_string();
    let (served, _folder) = manager(&store);
    let (mut follower, _other_folder) = manager(&store);
    let both = Client::new(&format!("{},{}", served.url, follower.url)).unwrap();
    changed(&both, 1).await;
    let term = both.health().await.unwrap().watermark.term;
    for (number, cn) in [(1, 2), (2, 3)] {
        let user = json!({"name": format!("somebody{number}"), "password": "secret"});
        etcd.ask("/v3/auth/user/add", user).unwrap();
        changed(&both, cn).await;
    }
    assert_eq!(both.health().await.unwrap().watermark.term, term, "the same leader: {}", served.log());
    for (served, folder) in [(&served, "one"), (&follower, "other")] {
        assert!(!served.log().contains("revision of auth store"), "{folder}: {}", served.log());
    }
    assert!(follower.child.try_wait().unwrap().is_none(), "{}", follower.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withdrawn_permission_ends_the_lead_and_not_the_manager() {
    let mut etcd = Etcd::start();
    etcd.guard();
    let (mut served, _folder) = manager(&etcd.place("lab").to_string());
    let client = served.client();
    changed(&client, 1).await;
    etcd.ask("/v3/auth/user/revoke", json!({"name": "gmm", "role": "fabric"})).unwrap();
    // The next write is refused.
    drop(client.register_compute_node(&compute_node("cn2", 2)).await);
    waits_for(&served.url, "etcdctl role get").await;
    assert!(served.child.try_wait().unwrap().is_none(), "{}", served.log());
    etcd.ask("/v3/auth/user/grant", json!({"user": "gmm", "role": "fabric"})).unwrap();
    changed(&client, 3).await;

    // The password is changed, and changed back.
    let password = |password: &str| json!({"name": "gmm", "password": password});
    etcd.ask("/v3/auth/user/changepw", password("other")).unwrap();
    drop(client.register_compute_node(&compute_node("cn4", 4)).await);
    waits_for(&served.url, "authentication failed").await;
    etcd.ask("/v3/auth/user/changepw", password("secret")).unwrap();
    changed(&client, 5).await;
    assert!(served.child.try_wait().unwrap().is_none(), "{}", served.log());
}

/// Compacts etcd during a load, in each run after one more read: the load starts again and succeeds.
#[test]
fn a_compaction_during_a_takeover_begins_the_load_again() {
    let etcd = Arc::new(Etcd::start());
    let place = etcd.place("lab");
    let leadership = lead(&place);
    let left = Arc::new(AtomicI64::new(i64::MAX));
    let plan = {
        let (left, etcd) = (Arc::clone(&left), Arc::clone(&etcd));
        move || {
            if left.fetch_sub(1, Ordering::SeqCst) == 0 {
                etcd.put("elsewhere", "x");
                let now = etcd.ask("/v3/kv/range", json!({"key": "YQ=="})).unwrap();
                etcd.ask("/v3/kv/compaction", json!({"revision": now["header"]["revision"]})).unwrap();
            }
            Fate::Arrive
        }
    };
    let proxy = Proxy::start(etcd.port(), plan);
    let through: EtcdPlace = format!("etcd://127.0.0.1:{}/lab", proxy.port()).parse().unwrap();
    let mut store = EtcdStore::open(&through, leadership.token()).unwrap();
    let (mut manager, outcome) = Manager::take_over(store.load().unwrap(), Options::default(), 1).unwrap();
    store.commit(&outcome.changes).unwrap();
    let mut changes = Vec::new();
    for number in 0..700 {
        let mut node = compute_node(&format!("cn{number}"), 1);
        let [high, low] = u16::to_be_bytes(number);
        node.cn_id = cxloe_fabric::model::CnId::new([2, 0, 0, 1, high, low]).unwrap();
        changes.extend(manager.apply(Command::RegisterComputeNode(node), 2).unwrap().changes);
    }
    store.commit(&changes).unwrap();
    // The recovery at the start of a load takes two requests, and each table at least one more.
    for reads in 2..6 {
        left.store(reads, Ordering::SeqCst);
        assert_eq!(&store.load().unwrap(), manager.state(), "compacted after {reads} requests");
        assert!(left.load(Ordering::SeqCst) < 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_none_do_not_stand_in_the_way() {
    let etcd = Etcd::start();
    let web = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let web_port = web.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(web, axum::Router::new()).await });
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for wrong in [web_port, closed] {
        let store = format!("etcd://127.0.0.1:{wrong},127.0.0.1:{}/lab{wrong}", etcd.port());
        let folder = tempfile::tempdir().unwrap();
        let served = Served::start_over(&["--store", &store], folder.path(), &["--lease-ttl", "2"]);
        changed(&served.client(), 1).await;
    }
    // If the wrong address is the only one, the error names it.
    let folder = tempfile::tempdir().unwrap();
    let store = format!("etcd://127.0.0.1:{web_port}/lab");
    let served = Served::start_over(&["--store", &store], folder.path(), &["--lease-ttl", "2"]);
    waits_for(&served.url, "is no member of this etcd cluster").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_a_cluster_of_its_own_is_not_followed() {
    let (etcd, other) = (Etcd::start(), Etcd::start());
    // Two addresses lead to the cluster, and the third to an etcd that is a cluster of its own.
    let ways = [(); 2].map(|()| Proxy::start(etcd.port(), || Fate::Arrive));
    let [one, two] = ways.each_ref().map(Proxy::port);
    let own = other.port();
    let place: EtcdPlace =
        format!("etcd://127.0.0.1:{own},127.0.0.1:{one},127.0.0.1:{two}/lab").parse().unwrap();
    let campaign = Campaign::new(&place, "http://127.0.0.1:1", 600).unwrap();
    assert!(matches!(campaign.attempt().await, Ok(Attempt::Won(_))));
    let leader = |etcd: &Etcd| {
        let key = json!({"key": base64::Engine::encode(&base64::prelude::BASE64_STANDARD, "lab/leader")});
        etcd.ask("/v3/kv/range", key).unwrap()["count"].as_str().map(str::to_owned)
    };
    assert_eq!((leader(&etcd).as_deref(), leader(&other)), (Some("1"), None));
}

#[test]
fn doctor_asks_etcd_as_the_manager_does() {
    let mut etcd = Etcd::start();
    etcd.guard();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let store = |hosts: &str| format!("etcd://{hosts}/lab");
    let own = format!("127.0.0.1:{}", etcd.port());
    let examined = |store: &str, password: &str| {
        let mut doctor = crate::common::gmm();
        doctor.args(["doctor", "--json", "--listen", "127.0.0.1:0", "--store", store, "--etcd-user", "gmm"]);
        let report = doctor.env("CXLOE_GMM_ETCD_PASSWORD", password).output().unwrap();
        let report: Value = serde_json::from_slice(&report.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap().clone();
        let store = checks.into_iter().find(|check| check["name"] == "store").unwrap();
        (store["level"].clone(), store["found"].as_str().unwrap().to_owned())
    };
    let (level, found) = examined(&store(&own), "secret");
    assert_eq!((level, found.as_str()), (json!("ok"), "1 members of etcd answer this manager"));
    let (level, found) = examined(&store(&own), "wrong");
    assert!(level == "fail" && found.contains("denies access"), "{level} {found}");
    let (level, found) = examined(&store(&format!("{own},127.0.0.1:{closed}")), "secret");
    assert!(
        level == "fail" && found.contains(&format!("etcd does not answer at 127.0.0.1:{closed}")),
        "{found}"
    );
}
