//! Three managers over one etcd: real processes, one of which leads. Whatever happens to the leader, another manager
//! continues with all acknowledged changes, nodes and clients find the new leader by themselves, and a former leader
//! cannot change anything.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::etcd::Etcd;
use crate::common::node::Node;
use crate::common::{EXTENT, Served, cn, compute_node, eventually, gmm, memory_node, name};
use cxloe_daemon::Connection;
use cxloe_fabric::Client;
use cxloe_fabric::api::CreateRegion;
use cxloe_fabric::model::{Mapping, NodeAction, NodeCommand, RegionState};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// Managers that share one store; each has a folder for its log.
struct Managers {
    store: String,
    served: Vec<(Served, tempfile::TempDir)>,
}

impl Managers {
    fn start(etcd: &Etcd, count: usize) -> Self {
        let mut managers = Self { store: etcd.place("lab").to_string(), served: Vec::new() };
        (0..count).for_each(|_| managers.add());
        managers
    }

    fn add(&mut self) {
        let folder = tempfile::tempdir().unwrap();
        let served = Served::start_over(&["--store", &self.store], folder.path(), &["--lease-ttl", "2"]);
        self.served.push((served, folder));
    }

    fn urls(&self) -> String {
        let urls: Vec<&str> = self.served.iter().map(|(served, _)| served.url.as_str()).collect();
        urls.join(",")
    }

    fn client(&self) -> Client {
        Client::new(&self.urls()).unwrap()
    }

    /// Index of the leader, after waiting for one.
    async fn leader(&self) -> usize {
        let client = self.client();
        let leader = eventually("a leader", || async { client.health().await.ok()?.leader }).await;
        self.served.iter().position(|(served, _)| served.url == leader).expect("one of these leads")
    }

    /// Removes the manager with this index from the list, for the test to end it.
    fn take(&mut self, index: usize) -> (Served, tempfile::TempDir) {
        self.served.remove(index)
    }
}

/// Sends a request to one manager without following redirections. Returns status, location and body.
async fn ask(
    method: Method,
    url: &str,
    path: &str,
    body: Option<Value>,
) -> (StatusCode, Option<String>, Value) {
    let client = cxloe_fabric::client::http().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let mut request = client.request(method, format!("{url}{path}")).timeout(Duration::from_secs(60));
    if let Some(body) = body {
        request = request.json(&body);
    }
    let answer = request.send().await.unwrap();
    let location = answer.headers().get("location").map(|url| url.to_str().unwrap().to_owned());
    (answer.status(), location, answer.json().await.unwrap_or_default())
}

async fn create(client: &Client, region: &str) -> Option<RegionState> {
    let create = CreateRegion::new(name(region), 4 * EXTENT, cn(1));
    client.create_region(&create).await.ok().map(|region| region.state)
}

fn signal(served: &Served, signal: Signal) {
    kill(Pid::from_raw(served.child.id().try_into().unwrap()), signal).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_manager_leads_after_the_leader_is_killed_or_stopped() {
    let etcd = Etcd::start();
    let mut managers = Managers::start(&etcd, 3);
    let urls = managers.urls();
    let client = managers.client();
    let mut leader = managers.leader().await;
    let term = client.health().await.unwrap().watermark.term;
    assert_eq!(term, 1, "one manager took over, not each of them");
    let node = Node::new(memory_node("mn0", 0, 1024));
    let link = node.start(&urls);
    client.register_compute_node(&compute_node("cn0", 1)).await.unwrap();
    let first = eventually("a region", || create(&client, "first")).await;
    assert_eq!(first, RegionState::Active);

    // Followers redirect every method and path to the leader; clients follow the redirection.
    for (index, (served, _)) in managers.served.iter().enumerate() {
        let leading = managers.served[leader].0.url.as_str();
        if index != leader {
            for (method, path) in
                [(Method::GET, "/v1/regions?x=1"), (Method::POST, "/v1/regions"), (Method::GET, "/")]
            {
                let (status, location, body) = ask(method, &served.url, path, Some(json!({"name": 1}))).await;
                assert_eq!(
                    (status, location),
                    (StatusCode::TEMPORARY_REDIRECT, Some(format!("{leading}{path}")))
                );
                assert_eq!(body["code"], "not_leader");
            }
            let seen = served.client().regions().await.unwrap();
            assert_eq!(seen.iter().map(|region| region.name.as_str()).collect::<Vec<_>>(), ["first"]);
        }
        let status = gmm().args(["--manager", &served.url, "status"]).output().unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&status.stdout).unwrap()["leader"], leading);
    }

    let asked = Instant::now();
    managers.take(leader).0.kill();
    eventually("another leader", || create(&client, "second")).await;
    println!("killed: a region was created on the next leader after {:?}", asked.elapsed());
    let health = client.health().await.unwrap();
    assert_eq!((health.watermark.term, health.regions), (2, 2));
    eventually("that the node follows", || async { (node.known().seen.term == 2).then_some(()) }).await;
    assert_eq!(link.connection(), Connection::Registered);
    let found = client.region(&name("first")).await.unwrap();
    assert_eq!(found.state, RegionState::Active);

    // A node that has seen the second leader refuses late commands of the first one.
    let mapping = Mapping {
        cn: cn(9),
        region: name("stale"),
        cmem_base: 0,
        extent_bytes: EXTENT,
        extents: [1000].into_iter().collect(),
        sealed: false,
        cn_key: None,
    };
    let stale = NodeCommand { seq: 99, term: 1, revision: 1 << 40, action: NodeAction::MapCmem(mapping) };
    {
        let mut known = node.known();
        known.carry_out(&stale);
        assert_eq!((known.refused, known.mapped.contains_key(&1000)), (1, false));
    }

    leader = managers.leader().await;
    managers.add();
    let asked = Instant::now();
    let (mut ending, _folder) = managers.take(leader);
    assert!(ending.signal(Signal::SIGTERM).success(), "{}", ending.log());
    let rest = managers.client();
    eventually("another leader", || create(&rest, "third")).await;
    println!("SIGTERM: a region was created on the next leader after {:?}", asked.elapsed());
    assert_eq!(rest.health().await.unwrap().watermark.term, 3);
    let regions = rest.regions().await.unwrap();
    assert_eq!(
        regions.iter().map(|region| region.name.as_str()).collect::<Vec<_>>(),
        ["first", "second", "third"]
    );
    assert_eq!(node.known().wrong, Vec::<String>::new());
    drop(link);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_leader_resumes_without_effect() {
    let etcd = Etcd::start();
    let mut managers = Managers::start(&etcd, 2);
    let node = Node::new(memory_node("mn0", 0, 1024));
    let link = node.start(&managers.urls());
    let client = managers.client();
    eventually("a region", || create(&client, "before")).await;
    let stopped = managers.leader().await;
    let (stopped, _folder) = managers.take(stopped);
    signal(&stopped, Signal::SIGSTOP);

    // Requests sent while the leader is stopped: two read the manager's state, two change it.
    let url = stopped.url.clone();
    let body = json!({"name": "stale", "size": EXTENT, "owner": "02:00:00:00:01:01", "wait_ms": 0});
    let asked: Vec<_> = [
        (Method::GET, "/v1/regions", None),
        (Method::GET, "/v1/health", None),
        (Method::POST, "/v1/regions", Some(body)),
        (Method::DELETE, "/v1/regions/before?force=true&wait_ms=0", None),
    ]
    .into_iter()
    .map(|(method, path, body)| {
        let url = url.clone();
        tokio::spawn(async move { ask(method, &url, path, body).await })
    })
    .collect();

    let rest = managers.client();
    eventually("another leader", || async {
        let create = CreateRegion::new(name("after"), 4 * EXTENT, cn(1));
        rest.create_region(&CreateRegion { wait_ms: 0, ..create }).await.ok()
    })
    .await;
    eventually("that the node follows", || async { (node.known().seen.term == 2).then_some(()) }).await;
    signal(&stopped, Signal::SIGCONT);
    for answer in asked {
        let (status, _, body) = answer.await.unwrap();
        assert!(!status.is_success(), "a leader of the past answered {status}: {body}");
    }
    let leader = managers.served[0].0.url.clone();
    eventually("that it follows", || async {
        let (status, location, _) = ask(Method::GET, &url, "/v1/regions", None).await;
        assert!(!status.is_success(), "it answers as if it led");
        (location == Some(format!("{leader}/v1/regions"))).then_some(())
    })
    .await;
    let regions = eventually("that both regions are there for use", || async {
        let regions = rest.regions().await.unwrap();
        regions.iter().all(|region| region.state == RegionState::Active).then_some(regions)
    })
    .await;
    assert_eq!(regions.iter().map(|region| region.name.as_str()).collect::<Vec<_>>(), ["after", "before"]);
    // The former leader loses the lead by the end of its lease or by a refused write, whichever comes first.
    let log = stopped.log();
    assert!(log.contains("has lost the lead") || log.contains("no longer leads"), "{log}");
    assert_eq!(node.known().seen.term, 2);

    // The manager that led first becomes the leader again later.
    managers.take(0).0.kill();
    let again = Client::new(&url).unwrap();
    eventually("that it leads again", || create(&again, "again")).await;
    assert_eq!(again.health().await.unwrap().watermark.term, 3);
    assert_eq!(again.regions().await.unwrap().len(), 3);
    assert_eq!(node.known().wrong, Vec::<String>::new());
    drop(link);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_may_be_away_for_a_while() {
    let mut etcd = Etcd::start();
    let managers = Managers::start(&etcd, 2);
    let node = Node::new(memory_node("mn0", 0, 1024));
    let link = node.start(&managers.urls());
    let client = managers.client();
    eventually("a region", || create(&client, "before")).await;

    etcd.kill();
    for (served, _) in &managers.served {
        let said = eventually("that it says so", || async {
            let (status, _, body) = ask(Method::GET, &served.url, "/v1/regions", None).await;
            let error = body["error"].as_str().unwrap_or_default();
            (status == StatusCode::SERVICE_UNAVAILABLE && error.contains("etcd does not answer"))
                .then_some(body)
        })
        .await;
        assert_eq!(
            (&said["code"], said["hint"].as_str().unwrap().is_empty()),
            (&json!("unavailable"), false)
        );
    }
    let status =
        gmm().args(["--manager", &managers.urls(), "--wait-manager", "0s", "status"]).output().unwrap();
    let told = String::from_utf8(status.stderr).unwrap();
    assert!(!status.status.success() && told.contains("no manager leads") && told.contains("etcd"), "{told}");

    let mut waiting = gmm()
        .args(["--manager", &managers.urls(), "--wait-manager", "60s", "status"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = String::new();
    BufReader::new(waiting.stderr.take().unwrap()).read_line(&mut told).unwrap();
    assert!(told.contains("Waiting up to 60 s") && told.contains("etcd"), "{told}");

    assert!(etcd.run());
    assert!(waiting.wait().unwrap().success(), "a command waits for the next leader");
    eventually("that one leads again", || create(&client, "after")).await;
    let regions = client.regions().await.unwrap();
    assert_eq!(regions.iter().map(|region| region.name.as_str()).collect::<Vec<_>>(), ["after", "before"]);

    // During an outage shorter than the lease, the leader keeps the lead, or another manager becomes the leader.
    etcd.kill();
    assert!(etcd.run());
    eventually("a region after a restart", || create(&client, "later")).await;
    drop(link);
    let known = node.known();
    assert!(known.wrong.is_empty() && known.refused == 0, "{known:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_fate_is_unknown_is_not_called_undone() {
    let etcd = Etcd::start();
    let managers = Managers::start(&etcd, 1);
    let url = managers.served[0].0.url.clone();
    managers.leader().await;
    etcd.freeze();
    let node = serde_json::to_value(compute_node("cn1", 1)).unwrap();
    let (status, _, body) = ask(Method::POST, &url, "/v1/compute-nodes", Some(node.clone())).await;
    assert_eq!((status, &body["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("may_be_done")), "{body}");
    // After the end of its lease, the manager carries out nothing, so that this request has no effect.
    let (status, _, body) = ask(Method::POST, &url, "/v1/compute-nodes", Some(node)).await;
    assert_eq!((status, &body["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("unavailable")), "{body}");
    etcd.thaw();
}

/// Answers to `GET /v1/health` from those managers that lead.
async fn leading(managers: &Managers) -> Vec<String> {
    let mut leading = Vec::new();
    for (served, _) in &managers.served {
        let (status, _, body) = ask(Method::GET, &served.url, "/v1/health", None).await;
        if status.is_success() {
            leading.push(body["leader"].as_str().unwrap().to_owned());
        }
    }
    leading
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loss_of_the_leaders_key_ends_the_lead_of_an_idle_manager() {
    let etcd = Etcd::start();
    let place = etcd.place("lab");
    let mut managers = Managers { store: place.to_string(), served: Vec::new() };
    // The lease is longer than the test, so a manager can detect the loss of the key only by its watch on etcd.
    for _ in 0..2 {
        let folder = tempfile::tempdir().unwrap();
        let more = ["--lease-ttl", "600"];
        let served = Served::start_over(&["--store", &managers.store], folder.path(), &more);
        managers.served.push((served, folder));
    }
    let client = managers.client();
    for term in 1..3 {
        let health = eventually("a leader of the next term", || async {
            client.health().await.ok().filter(|health| health.watermark.term == term)
        })
        .await;
        let leader = health.leader.unwrap();
        etcd.depose(&place);
        eventually("the end of the former lead", || async {
            let (served, _) = managers.served.iter().find(|(served, _)| served.url == leader).unwrap();
            served.log().contains("deleted the key lab/leader").then_some(())
        })
        .await;
        eventually("one leader", || async { (leading(&managers).await.len() == 1).then_some(()) }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaders_key_that_no_manager_wrote_is_named_with_the_command_that_mends_it() {
    let etcd = Etcd::start();
    let mut managers = Managers::start(&etcd, 2);
    let client = managers.client();
    let leader = managers.leader().await;
    let url = managers.served[leader].0.url.clone();
    let key = etcd.place("lab").key("leader");
    let written = json!({"url": url, "instance": 5}).to_string();
    for (value, said) in [("somebody", "does not contain what managers"), (written.as_str(), "has no lease")]
    {
        // etcd does not delete a key without a lease, even after the leader has ended.
        etcd.put(&key, value);
        for (served, _) in &managers.served {
            eventually("each manager says so", || async {
                let (status, _, body) = ask(Method::GET, &served.url, "/v1/regions", None).await;
                let error = body["error"].as_str().unwrap_or_default();
                let command = format!("etcdctl --endpoints=http://127.0.0.1:{} del lab/leader", etcd.port());
                let named = error.contains(said) && error.contains(&command);
                (status == StatusCode::SERVICE_UNAVAILABLE && named).then_some(())
            })
            .await;
        }
        etcd.depose(&etcd.place("lab"));
        managers.leader().await;
    }
    managers.take(0).0.kill();
    eventually("the other one leads", || async { managers.client().health().await.ok() }).await;
    drop(client);
}

#[test]
fn what_several_managers_need_is_asked_for() {
    let serve = |arguments: &[&str]| {
        let output = gmm().arg("serve").args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let store = "etcd://127.0.0.1:1/lab";
    let (code, told) = serve(&["--listen", "0.0.0.0:0", "--store", store]);
    assert!(code == Some(1) && told.contains("--advertise") && told.contains(store), "{told}");
    let (code, told) = serve(&["--store", "etcd://127.0.0.1:1"]);
    assert!(code == Some(2) && told.contains("PREFIX"), "{told}");
    let (code, told) = serve(&["--store", store, "--lease-ttl", "1"]);
    assert!(code == Some(2) && told.contains("lease-ttl"), "{told}");
    let (code, told) = serve(&["--store", store, "--advertise", "nowhere"]);
    assert!(code == Some(2) && told.contains("https://HOST:PORT"), "{told}");
}
