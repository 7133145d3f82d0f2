//! Management of a fabric from the command line, over real processes: regions, slices, nodes, and following events.

use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};

use crate::common::patient::{PatientAgent, PatientNode};
use crate::common::{EXTENT, Served, cn, compute_node, eventually, gmm, memory_node, name};
use serde_json::{Value, json};

const LD: u64 = 256 << 20;

async fn ask(url: &str, args: &[&str]) -> Output {
    let mut command = gmm();
    command.args(["--manager", url]).args(args);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

async fn json(url: &str, args: &[&str]) -> Value {
    let output = ask(url, args).await;
    assert_eq!(code(&output), 0, "{args:?}: {}", err(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}"))
}

/// The values of a key in an array of objects.
fn all<'v>(array: &'v Value, key: &str) -> Vec<&'v Value> {
    array.as_array().unwrap().iter().map(|item| &item[key]).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regions_are_made_grown_listed_and_taken_down() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let (url, client) = (served.url.as_str(), served.client());
    let mut nodes = Vec::new();
    for n in 0..4 {
        nodes.push(PatientNode::start(client.clone(), memory_node(&format!("mn{n}"), n, 64)).await);
    }
    let agent = PatientAgent::start(client.clone(), compute_node("cn0", 1)).await;

    let made = json(
        url,
        &["create-region", "-w", "4", "-g", "1K", "-s", "16M", "--owner", "cn0", "--unmapped", "poison"],
    )
    .await;
    assert_eq!(
        (&made["region"], &made["state"], &made["size"]),
        (&"region0".into(), &"active".into(), &(16 << 20).into())
    );
    assert_eq!((&made["interleave_ways"], &made["interleave_granularity"]), (&4.into(), &1024.into()));
    assert_eq!(
        (&made["decode_state"], &made["type"], &made["unmapped"]),
        (&"commit".into(), &"ram".into(), &"poison".into())
    );
    let mut targets: Vec<String> = all(&made["mappings"], "memdev").iter().map(|m| m.to_string()).collect();
    targets.sort();
    assert_eq!(targets, ["\"mn0\"", "\"mn1\"", "\"mn2\"", "\"mn3\""]);
    assert_eq!(all(&made["mappings"], "decoder"), [&json!("region0.0"); 4]);

    let made = json(url, &["create-region", "-s", "2M", "--owner", "cn0", "--on", "mn2", "-u"]).await;
    assert_eq!((&made["region"], &made["size"]), (&"region1".into(), &"2.00 MiB (2.10 MB)".into()));
    assert!(
        made["resource"].as_str().unwrap().starts_with("0x")
            && made["created_ms"].as_str().unwrap().ends_with('Z')
    );
    assert_eq!(made["mappings"][0]["memdev"], "mn2");
    let grown = json(url, &["grow-region", "region1", "-s", "+2M", "--on", "mn3"]).await;
    assert_eq!(
        (&grown["size"], all(&grown["mappings"], "memdev")),
        (&(4 << 20).into(), vec![&json!("mn2"), &json!("mn3")])
    );

    assert_eq!(all(&json(url, &["list", "-R", "-m", "mn0"]).await, "region"), [&json!("region0")]);
    assert_eq!(
        all(&json(url, &["list", "-D", "-r", "region1"]).await, "decoder"),
        [&json!("region1.0"), &json!("region1.1")]
    );
    let decoder = json(url, &["list", "-d", "region0.0"]).await;
    assert_eq!((&decoder[0]["nr_targets"], &decoder[0]["size"]), (&4.into(), &(16 << 20).into()));
    assert_eq!(all(&decoder[0]["targets"], "position"), [&json!(0), &json!(1), &json!(2), &json!(3)]);
    let memdevs = json(url, &["list", "-M", "-c", "cn0"]).await;
    assert_eq!(all(&memdevs, "memdev").len(), 4);
    assert_eq!(
        (&memdevs[0]["ram_size"], &memdevs[0]["host"]),
        (&(64 * EXTENT).into(), &"02:00:00:00:02:00".into())
    );
    assert_eq!(memdevs[0]["serial"], 0x0200_0000_0200_u64);
    let everything = json(url, &["list", "-v"]).await;
    let kinds: Vec<&String> =
        everything.as_array().unwrap().iter().flat_map(|kind| kind.as_object().unwrap().keys()).collect();
    assert_eq!(
        kinds,
        ["memdevs", "compute_nodes", "regions", "decoders", "logical_devices", "bindings", "ports"]
    );
    let ports = json(url, &["list", "-P"]).await;
    assert_eq!(all(&ports, "port"), [&json!(0), &json!(1), &json!(2), &json!(3), &json!(127)]);
    assert_eq!(all(&ports, "link"), [&json!("up"); 5]);

    // With several kinds, `--json` prints one object, and `--cxl` an array. Without either option, the array is printed
    // if the output is no terminal, with a warning.
    let both = json(url, &["list", "-MR", "--json"]).await;
    assert_eq!(both.as_object().unwrap().keys().collect::<Vec<_>>(), ["memdevs", "regions"]);
    let cxl = ask(url, &["list", "-MR", "--cxl"]).await;
    assert!(err(&cxl).is_empty(), "{}", err(&cxl));
    let piped = ask(url, &["list", "-MR"]).await;
    assert!(piped.stdout == cxl.stdout && err(&piped).contains("--cxl"), "{}", err(&piped));

    // `--wait` waits until the owner's agent has received the region. If that agent is not running, the
    // command succeeds with a warning.
    let known = ask(url, &["create-region", "--wait", "-s", "4M", "-o", "cn0", "known"]).await;
    assert_eq!((code(&known), err(&known).as_str()), (0, ""));
    assert!(client.region_status(&name("known")).await.unwrap().owner_knows);
    let nobody =
        ask(url, &["create-region", "--wait", "-s", "4M", "-o", "02:00:00:00:00:77", "nobodys"]).await;
    assert!(code(&nobody) == 0 && err(&nobody).contains("is not there"), "{}", err(&nobody));
    json(url, &["destroy-region", "--force", "known", "nobodys"]).await;

    // Disabled regions are idle: they are listed if named, or with `-i`.
    let disabled = json(url, &["disable-region", "region0", "region1"]).await;
    assert_eq!(all(&disabled, "state"), [&json!("disabled"); 2]);
    let none = ask(url, &["list", "-R"]).await;
    assert_eq!((code(&none), none.stdout.as_slice()), (0, b"[\n]\n".as_slice()));
    assert!(
        err(&none).contains("no regions found") && err(&none).contains("-i shows the 2 idle ones"),
        "{}",
        err(&none)
    );
    assert_eq!(all(&json(url, &["list", "-Ri"]).await, "region").len(), 2);
    assert_eq!(all(&json(url, &["list", "-r", "region1"]).await, "state"), [&json!("disabled")]);
    let enabled = json(url, &["enable-region", "all"]).await;
    assert_eq!(all(&enabled, "state"), [&json!("active"); 2]);
    agent.agent().clings = true;
    let late = ask(url, &["disable-region", "--wait-ms", "20", "region0"]).await;
    assert!(code(&late) == 0 && err(&late).contains("has not released it yet"), "{}", err(&late));
    json(url, &["enable-region", "region0"]).await;

    // A failure for one region does not affect the others.
    let mixed = ask(url, &["destroy-region", "--force", "nothing", "region1", "neither"]).await;
    assert_eq!(code(&mixed), 4);
    assert!(
        err(&mixed).contains("no region nothing") && err(&mixed).contains("no region neither"),
        "{}",
        err(&mixed)
    );
    let destroyed: Value = serde_json::from_slice(&mixed.stdout).unwrap();
    assert_eq!(destroyed, json!([{"region": "region1", "state": "destroyed"}]));
    nodes.iter().for_each(|node| node.orders().zero_only = Some(EXTENT));
    let waiting = ask(url, &["destroy-region", "--force", "--wait-ms", "600", "region0"]).await;
    assert!(code(&waiting) == 0 && err(&waiting).contains("have yet to zero"), "{}", err(&waiting));
    let left: Value = serde_json::from_slice(&waiting.stdout).unwrap();
    assert_eq!((&left["state"], left["zeroed_percent"].as_u64()), (&"draining".into(), Some(50)));
    assert_eq!(json(url, &["list", "-R"]).await[0]["zeroed_percent"], 50);
    nodes.iter().for_each(|node| node.orders().zero_only = None);
    eventually("its end", || async { client.regions().await.unwrap().is_empty().then_some(()) }).await;
    assert_eq!(json(url, &["destroy-region", "all"]).await, json!([]));

    for (args, exit, words) in [
        (&["grow-region", "none", "-s", "1G"][..], 4, "no region none"),
        (&["reset-region", "none"], 4, "no region none"),
        (&["create-region", "-w", "5", "-s", "1G", "-o", "cn0"], 2, "`5`"),
        (&["create-region", "-g", "100", "-s", "1G", "-o", "cn0"], 2, "granularity"),
        (&["create-region", "-w", "8", "-s", "16M", "-o", "cn0"], 5, "8 memory nodes"),
        (&["create-region", "-s", "1G", "-o", "cn0", "--unmapped", "zeros"], 2, "all-ones"),
    ] {
        let output = ask(url, args).await;
        assert!(code(&output) == exit && err(&output).contains(words), "{args:?}: {}", err(&output));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_and_nodes_are_run_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--node-timeout", "300"]);
    let (url, client) = (served.url.as_str(), served.client());
    let node = PatientNode::start(client.clone(), memory_node("mn0", 0, 1024)).await;
    node.orders().stats = json!([{"sessions": [{"cn": cn(1), "streams": 4}]}]);
    let agent = PatientAgent::start(client.clone(), compute_node("cn0", 1)).await;

    let set = json(url, &["set-ld", "mn0", "3", "256M", "512M"]).await;
    assert_eq!(
        (all(&set, "ld"), all(&set, "state")),
        (vec![&json!(3), &json!(4)], vec![&json!("unbound"); 2])
    );
    let bound = json(url, &["bind", "mn0", "3", "--to", "cn0", "-u"]).await;
    assert_eq!((&bound["state"], &bound["size"]), (&"bound".into(), &"256.00 MiB (268.44 MB)".into()));
    let twice = ask(url, &["bind", "mn0", "3", "--to", "cn0"]).await;
    assert!(code(&twice) == 5 && err(&twice).contains("unbind it first"), "{}", err(&twice));
    let bindings = json(url, &["list", "-B"]).await;
    assert_eq!((&bindings[0]["compute_node"], &bindings[0]["memdev"]), (&"cn0".into(), &"mn0".into()));
    assert_eq!((&bindings[0]["vppb"], &bindings[0]["regions"]), (&0.into(), &json!(["mn0-ld3"])));
    assert_eq!(all(&json(url, &["list", "-L"]).await, "ld"), [&json!(3)]);
    assert_eq!(all(&json(url, &["list", "-Li"]).await, "ld"), [&json!(3), &json!(4)]);

    agent.agent().clings = true;
    let clinging = ask(url, &["unbind", "mn0", "3", "--wait-ms", "300"]).await;
    assert!(
        code(&clinging) == 0 && err(&clinging).contains("its compute node to release it"),
        "{}",
        err(&clinging)
    );
    node.orders().zero_only = Some(LD / 4);
    let zeroing = ask(url, &["unbind", "mn0", "3", "--option", "surprise", "--wait-ms", "500"]).await;
    assert!(err(&zeroing).contains("yet to be zeroed"), "{}", err(&zeroing));
    let left: Value = serde_json::from_slice(&zeroing.stdout).unwrap();
    assert_eq!(left, json!({"memdev": "mn0", "ld": 3, "state": "unbound", "zeroed_percent": 25}));
    node.orders().zero_only = None;
    eventually("its memory is zeroed", || async { client.regions().await.unwrap().is_empty().then_some(()) })
        .await;
    json(url, &["bind", "mn0", "--to", "cn0"]).await;
    assert_eq!(json(url, &["unbind", "mn0", "3", "--option", "surprise"]).await["state"], "unbound");
    let again = ask(url, &["unbind", "mn0", "3"]).await;
    assert!(code(&again) == 4 && err(&again).contains("is not bound"), "{}", err(&again));

    assert_eq!(json(url, &["set-quota", "cn0", "4M", "-u"]).await["quota"], "4.00 MiB (4.19 MB)");
    let over = ask(url, &["create-region", "-s", "8M", "-o", "cn0"]).await;
    assert!(code(&over) == 5 && err(&over).contains("gmm set-quota"), "{}", err(&over));
    assert_eq!(json(url, &["set-quota", "cn0", "none"]).await["quota"], Value::Null);
    assert_eq!(json(url, &["hold", "cn0"]).await["held"], true);
    assert_eq!(json(url, &["release", "cn0"]).await["held"], false);
    assert_eq!(code(&ask(url, &["release", "cn9"]).await), 4);
    let sessions = json(url, &["list", "-S", "-m", "mn0"]).await;
    assert_eq!((&sessions[0]["compute_node_name"], &sessions[0]["streams"]), (&"cn0".into(), &4.into()));

    let there = ask(url, &["forget", "mn0"]).await;
    assert!(code(&there) == 5 && err(&there).contains("end its mn-server"), "{}", err(&there));
    drop(node);
    eventually("its silence", || async {
        (client.health().await.unwrap().memory_nodes.reachable == 0).then_some(())
    })
    .await;
    assert_eq!(all(&json(url, &["list", "-m", "mn0"]).await, "state"), [&json!("disabled")]);
    assert_eq!(json(url, &["forget", "mn0"]).await["state"], "forgotten");
    assert_eq!(json(url, &["list", "-Mi"]).await, json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_is_called_done_once_memory_nodes_have_confirmed_it() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let (url, client) = (served.url.as_str(), served.client());
    let node = PatientNode::start(client.clone(), memory_node("mn0", 0, 64)).await;
    let _owner = PatientAgent::start(client.clone(), compute_node("cn0", 1)).await;
    let _reader = PatientAgent::start(client.clone(), compute_node("cn1", 2)).await;
    json(url, &["create-region", "-s", "2M", "--owner", "cn0", "model"]).await;
    assert_eq!(json(url, &["seal-region", "model"]).await["result"], "sealed");
    drop(node);
    let share = ["share-region", "model", "--with", "cn1"];
    let begun = json(url, &[&share[..], &["--no-wait"]].concat()).await;
    assert_eq!((&begun["result"], &begun["readers"]), (&"being shared".into(), &json!([cn(2)])));
    let ending = json(url, &[&share[..], &["--stop", "--no-wait"]].concat()).await;
    assert_eq!((&ending["result"], &ending["readers"]), (&"being ended".into(), &json!([])));
    let _node = PatientNode::start(client.clone(), memory_node("mn0", 0, 64)).await;
    assert_eq!(json(url, &[&share[..], &["--stop"]].concat()).await["result"], "not shared");
    assert_eq!(json(url, &share).await["result"], "shared");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn monitoring_outlives_the_manager() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("gmm.sock");
    let socket = socket.to_str().unwrap();
    let served = Served::start(folder.path(), &["--socket", socket]);
    let client = served.client();
    client.register_memory_node(&memory_node("mn0", 0, 64)).await.unwrap();
    let kinds = "manager_started,quota_set";
    let mut monitor = gmm()
        .args([
            "--manager",
            &format!("unix:{socket}"),
            "monitor",
            "--since",
            "1h",
            "-k",
            kinds,
            "--count",
            "4",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(monitor.stdout.take().unwrap()).lines();
    let mut next = move || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["event"], "manager_started");
    let owner = cxloe_fabric::api::Owner::CnId(cn(1));
    client.set_quota(&owner, Some(1)).await.unwrap();
    assert_eq!(next()["bytes"], 1);
    served.kill();
    let served = Served::start(folder.path(), &["--socket", socket]);
    served.client().set_quota(&owner, Some(2)).await.unwrap();
    let restarted = tokio::task::spawn_blocking(move || [next(), next()]).await.unwrap();
    assert_eq!((&restarted[0]["event"], &restarted[1]["bytes"]), (&"manager_started".into(), &2.into()));
    let output = tokio::task::spawn_blocking(move || monitor.wait_with_output().unwrap()).await.unwrap();
    assert!(output.status.success());
    assert!(err(&output).contains("waiting for it") && err(&output).contains("is back"), "{}", err(&output));

    let url = served.url.as_str();
    let text = ask(url, &["monitor", "--after", "0", "-n", "mn0", "--count", "1", "-u"]).await;
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("Z 2 memory_node_registered ") && text.contains("pool_bytes=128.00 MiB"), "{text}");
    let listed = json(url, &["list", "-E", "-m", "mn0", "-k", "memory_node_registered"]).await;
    assert_eq!(all(&listed, "seq"), [&json!(2)]);
    let since = ask(url, &["list", "-E", "--since", "2100-01-01T00:00:00Z"]).await;
    assert!(code(&since) == 0 && err(&since).contains("no events found"), "{}", err(&since));
    assert_eq!(code(&ask(url, &["monitor", "-k", "nonsense"]).await), 2);
    assert_eq!(code(&ask(url, &["monitor", "--since", "yesterday"]).await), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fabric_comes_up_as_its_file_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fabric.toml");
    let region = |name: &str, owner: &str| {
        format!("[[region]]\nname = '{name}'\nsize = '4M'\nowner = '{owner}'\non = ['mn0']\n")
    };
    let quota = "[[quota]]\ncompute_node = 'cn0'\nbytes = '1G'\n";
    std::fs::write(&file, region("heap", "cn0") + quota).unwrap();
    let path = file.to_str().unwrap();

    let served = Served::start(folder.path(), &["--init", "manager-first", "--fabric", path]);
    let (url, client) = (served.url.as_str(), served.client());
    let agent = PatientAgent::start(client.clone(), compute_node("cn0", 1)).await;
    assert!(agent.agent().held, "held until its region is there");
    let node = PatientNode::start(client.clone(), memory_node("mn0", 0, 64)).await;
    eventually("the agent is released", || async {
        let agent = agent.agent();
        (!agent.held && agent.regions.len() == 1).then_some(())
    })
    .await;
    let nodes = json(url, &["list", "-C"]).await;
    assert_eq!((nodes[0]["quota"].as_u64(), &nodes[0]["held"]), (Some(1 << 30), &false.into()));
    drop((served, agent, node));

    let store = tempfile::tempdir().unwrap();
    let config = store.path().join("gmm.toml");
    std::fs::write(&config, format!("init = 'static'\nfabric = '{path}'\n")).unwrap();
    let served = Served::start(store.path(), &["--config", config.to_str().unwrap()]);
    let (url, client) = (served.url.as_str(), served.client());
    let _node = PatientNode::start(client.clone(), memory_node("mn0", 0, 64)).await;
    let _agent = PatientAgent::start(client.clone(), compute_node("cn0", 1)).await;
    eventually("the declared region", || async {
        let regions = client.regions().await.unwrap();
        regions.iter().any(|region| region.state == cxloe_fabric::model::RegionState::Active).then_some(())
    })
    .await;
    for args in [
        &["create-region", "-s", "2M", "-o", "cn0"][..],
        &["unbind", "mn0", "0"],
        &["destroy-region", "heap"],
    ] {
        let refused = ask(url, args).await;
        assert!(code(&refused) == 5 && err(&refused).contains("static"), "{args:?}: {}", err(&refused));
    }
    drop(served);

    std::fs::write(&file, region("a", "cn0") + &region("b", "cn1")).unwrap();
    let refused = gmm().args(["serve", "--init", "static", "--fabric", path]).output().unwrap();
    assert_eq!(code(&refused), 2);
    assert!(err(&refused).contains("mn0 is named for cn0 and cn1"), "{}", err(&refused));
    assert_eq!(code(&gmm().args(["serve", "--init", "somehow"]).output().unwrap()), 2);
    assert_eq!(code(&gmm().args(["serve", "--fabric", "/nonexistent"]).output().unwrap()), 2);
}
