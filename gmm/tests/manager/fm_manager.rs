//! The FM API of a real manager process: `gmm fm` uses it, and the REST interface shows the effects.

use std::path::Path;
use std::process::Output;
use std::time::Duration;
use std::time::Instant;

use crate::common::patient::{PatientAgent, PatientNode};
use crate::common::{EXTENT, Served, TEST_TIMEOUT, cn, compute_node, eventually, gmm, memory_node, name};
use cxloe_fabric::api::VppbError;
use cxloe_fabric::model::{DeviceKind, RegionState};
use cxloe_fm::client::{FmClient, Recipient};
use cxloe_fm::component::BackgroundStatus;
use cxloe_fm::dcd::{GetExtents, InitiateAdd, selection};
use cxloe_fm::event_record::{EventContent, Events, GetEvents};
use cxloe_fm::fabric::LDS_MAX;
use cxloe_fm::header::{Dialect, ReturnCode};
use cxloe_fm::opcode::Opcode;
use cxloe_fm::virtual_switch::VppbStatus;
use serde_json::{Value, json};

/// A manager with the FM API, and the FM API's addresses.
fn serve(folder: &Path, more: &[&str]) -> (Served, Vec<String>) {
    let usual =
        ["--fm-listen", "127.0.0.1:0", "--fm-answer-within-ms", "20000", "--node-timeout-ms", "60000"];
    let served = Served::start(folder, &[usual.as_slice(), more].concat());
    let addresses = |log: &str| -> Vec<String> {
        let lines = log.lines().filter(|line| line.contains("FM API of switch"));
        // The log line ends with "on ADDRESS" and further fields.
        let address = |line: &str| Some(line.rsplit_once(" on ")?.1.split_whitespace().next()?.to_owned());
        lines.filter_map(address).collect()
    };
    let deadline = Instant::now() + TEST_TIMEOUT;
    while addresses(&served.log()).is_empty() {
        assert!(Instant::now() < deadline, "the FM API is not served: {}", served.log());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let addresses = addresses(&served.log());
    (served, addresses)
}

async fn ask(address: &str, args: &[&str]) -> Output {
    let (address, args) = (address.to_owned(), args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
    let asked = move || gmm().args(["fm", "--connect", &address]).args(&args).output().unwrap();
    tokio::task::spawn_blocking(asked).await.unwrap()
}

#[track_caller]
fn ends(output: &Output, code: i32) -> String {
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{err}");
    err
}

async fn json_of(address: &str, args: &[&str]) -> Value {
    let output = ask(address, &[args, &["--json"]].concat()).await;
    ends(&output, 0);
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

/// The FM API numbers a switch's ports in the order in which nodes first registered, so listings, and the log entry of
/// a refused request, name the node at each port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_at_which_port_is_listed_and_said_where_a_port_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let (served, addresses) = serve(folder.path(), &[]);
    let (client, fm) = (served.client(), addresses[0].as_str());
    let _second = PatientNode::start(client.clone(), memory_node("mn1", 1, 1024)).await;
    let _first = PatientNode::start(client.clone(), memory_node("mn0", 0, 1024)).await;
    let _agent = PatientAgent::start(client.clone(), compute_node("cn0", 1)).await;
    json_of(fm, &["ld-alloc", "--port", "1", "--first", "2", "--set", "512M"]).await;

    for (wrong, said) in [
        (
            "bind --vcs 0 --vppb 1 --port 5 --ld 2",
            "no memory node is at port 5; port 0 is mn1, port 1 is mn0",
        ),
        ("ld-alloc --port 6", "no memory node is at port 6; port 0 is mn1, port 1 is mn0"),
        ("--port 7 config --ld 2 0", "no memory node is at port 7; port 0 is mn1, port 1 is mn0"),
        ("bind --vcs 9 --vppb 1 --port 1 --ld 2", "no compute node is VCS 9; VCS 0 is cn0"),
    ] {
        let args: Vec<&str> = wrong.split(' ').collect();
        let err = ends(&ask(fm, &args).await, 5);
        assert!(err.contains("`gmm list -LPi`"), "{err}");
        // The manager may write the log line only after it has sent the answer.
        let mut log = served.log();
        for _ in 0..250 {
            if log.contains(said) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            log = served.log();
        }
        let line = log.lines().find(|line| line.contains(said)).unwrap_or_else(|| panic!("{wrong}: {log}"));
        assert!(line.contains("FM API: refused: ") && line.contains("FM API of switch 0"), "{line}");
    }

    json_of(fm, &["bind", "--vcs", "0", "--vppb", "1", "--port", "1", "--ld", "2"]).await;
    let device = client.logical_devices().await.unwrap().remove(0);
    assert_eq!((device.device.memory_node, device.device.id), (name("mn0"), 2));
    assert_eq!((device.switch, device.port), (Some(0), Some(1)));
    let listed = |kind: &'static str| {
        let output = gmm().args(["--manager", &served.url, "list", kind, "--json"]).output().unwrap();
        ends(&output, 0);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let places = |kind: &'static str, fields: [&str; 3]| {
        let listed = listed(kind);
        // Only one kind of object is listed, so the answer has one key.
        let items = listed.as_object().unwrap().values().flat_map(|items| items.as_array().unwrap());
        items.map(|item| json!(fields.map(|field| item[field].clone()))).collect::<Vec<_>>()
    };
    assert_eq!(places("-M", ["memdev", "switch", "port"]), [json!(["mn0", 0, 1]), json!(["mn1", 0, 0])]);
    assert_eq!(places("-C", ["name", "switch", "vcs"]), [json!(["cn0", 0, 0])]);
    assert_eq!(places("-L", ["memdev", "ld", "port"]), [json!(["mn0", 2, 1])]);
    assert_eq!(places("-B", ["memdev", "ld", "port"]), [json!(["mn0", 2, 1])]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fabric_is_driven_from_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let (served, addresses) = serve(folder.path(), &[]);
    let (client, fm) = (served.client(), addresses[0].as_str());
    let node = PatientNode::start(client.clone(), memory_node("mn0", 0, 1024)).await;
    node.orders().stats = json!([{"congested": true}, {"congested": false}]);
    let whole = cxloe_fabric::api::RegisterMemoryNode { kind: DeviceKind::Sld, ..memory_node("mn1", 1, 128) };
    let _whole = PatientNode::start(client.clone(), whole).await;
    let agent = PatientAgent::start(client.clone(), compute_node("cn0", 1)).await;

    let switch = json_of(fm, &["identify"]).await;
    assert_eq!(switch["switch"]["active_ports"], json!([0, 1, 127]));
    assert_eq!(json_of(fm, &["--port", "0", "identify"]).await["serial"], json!(0x0200_0000_0200u64));
    let ports = json_of(fm, &["ports"]).await;
    let devices: Vec<_> = ports.as_array().unwrap().iter().map(|port| &port["device"]).collect();
    assert_eq!(devices, ["MLD", "SLD", "host"]);
    let table = String::from_utf8(ask(fm, &["ports"]).await.stdout).unwrap();
    assert!(table.contains("downstream") && table.contains("LDs"), "{table}");

    // Reserves 512 MiB each for LD 2 and LD 5, then binds LD 2 to the compute node.
    let allocations =
        json_of(fm, &["ld-alloc", "--port", "0", "--first", "2", "--set", "512M", "0", "0", "512M"]).await;
    let reserved: Vec<_> =
        allocations.as_array().unwrap().iter().map(|ld| ld["reserved"].as_u64().unwrap()).collect();
    assert_eq!((reserved.len(), reserved[2], reserved[5]), (usize::from(LDS_MAX), 512 << 20, 512 << 20));
    assert_eq!(reserved.iter().sum::<u64>(), 1 << 30);
    let bound = json_of(fm, &["bind", "--vcs", "0", "--vppb", "1", "--port", "0", "--ld", "2"]).await;
    assert_eq!((&bound["operation"], &bound["result"]), (&json!("Bind vPPB"), &json!("success")));
    let region = client.region(&name("mn0-ld2")).await.unwrap();
    assert_eq!((region.state, region.size, region.owner), (RegionState::Active, 512 << 20, cn(1)));
    let vcs = json_of(fm, &["vcs"]).await;
    assert_eq!(vcs[0]["vppbs"], json!([{"vppb": 1, "status": "bound", "port": 0, "ld": 2}]));
    for wrong in ["--vppb 1 --ld 5", "--vppb 2 --ld 2", "--vppb 2"] {
        let args = [vec!["bind", "--vcs", "0", "--port", "0"], wrong.split(' ').collect()].concat();
        assert!(ends(&ask(fm, &args).await, 5).contains("invalid input"), "{wrong}");
    }

    // Extents and registers of the LD.
    let extents = json_of(fm, &["--port", "0", "dcd", "extents", "--ld", "2"]).await;
    assert_eq!(extents["extents"], json!([{"dpa": 0, "length": 512 << 20, "tag": "mn0-ld2"}]));
    ends(
        &ask(fm, &["--port", "0", "dcd", "add", "--ld", "2", "--size", "256M", "--tag", "scratch"]).await,
        0,
    );
    eventually("the added capacity", || async {
        let extents = json_of(fm, &["--port", "0", "dcd", "extents", "--ld", "2"]).await;
        (extents["total"] == 2).then_some(())
    })
    .await;
    assert_eq!(client.region(&name("scratch")).await.unwrap().size, 256 << 20);
    let again =
        ask(fm, &["--port", "0", "dcd", "add", "--ld", "2", "--size", "256M", "--tag", "scratch"]).await;
    ends(&again, 5);
    ends(&ask(fm, &["--port", "0", "dcd", "add", "--ld", "9", "--size", "256M"]).await, 5);
    // The compute node's agent releases the capacity when it is asked to.
    ends(&ask(fm, &["--port", "0", "dcd", "release", "--ld", "2", "--tag", "scratch"]).await, 0);
    eventually("the release", || async { client.region(&name("scratch")).await.is_err().then_some(()) })
        .await;
    assert_eq!(json_of(fm, &["--port", "0", "dcd"]).await["capacity"], json!(2u64 << 30));
    assert_eq!(
        json_of(fm, &["--port", "0", "dcd", "regions", "--ld", "2"]).await["regions"][0]["block_size"],
        json!(EXTENT)
    );
    assert_eq!(json_of(fm, &["--port", "0", "config", "--ld", "2", "8"]).await["bytes"], "00100205");
    let decoder = json_of(fm, &["--port", "0", "registers", "--ld", "2", "1110", "--length", "20"]).await;
    assert_eq!(
        decoder["bytes"], "0000000000000000000000200000000004160000",
        "512 MiB, 1 way, 4 KiB, committed"
    );
    ends(&ask(fm, &["--port", "0", "config", "--ld", "2", "4", "--write", "6"]).await, 0);
    assert_eq!(json_of(fm, &["--port", "0", "config", "--ld", "2", "4"]).await["bytes"], "06001000");

    let qos = json_of(
        fm,
        &["--port", "0", "qos", "--moderate", "20", "--severe", "30", "--ld", "2", "--limit", "64"],
    )
    .await;
    assert_eq!(
        (&qos["moderate"], &qos["limit"][2], &qos["backpressure"]),
        (&json!(20), &json!(64), &json!(50))
    );
    ends(&ask(fm, &["--port", "0", "qos", "--moderate", "99"]).await, 5);
    ends(&ask(fm, &["--port", "1", "qos"]).await, 1);

    // Binds the memory node that the manager allocates as a whole.
    json_of(fm, &["bind", "--vcs", "0", "--vppb", "3", "--port", "1"]).await;
    let vcs = json_of(fm, &["vcs", "0"]).await;
    assert_eq!(vcs[0]["vppbs"][1], json!({"vppb": 3, "status": "bound", "port": 1, "ld": null}));

    // The events are in the switch's log, and can be cleared.
    let logs = json_of(fm, &["events", "--log", "0", "--clear"]).await;
    let told: Vec<_> = logs[0]["records"].as_array().unwrap().iter().map(|record| &record["event"]).collect();
    assert!(told.contains(&&json!("vPPB 1 of VCS 0 bound to port 0, LD 2")), "{told:?}");
    assert!(told.contains(&&json!("vPPB 3 of VCS 0 bound to port 1")), "{told:?}");
    assert_eq!(json_of(fm, &["events", "--log", "0"]).await[0]["records"], json!([]));

    json_of(fm, &["port-control", "--port", "127", "assert"]).await;
    assert!(client.compute_nodes().await.unwrap()[0].held);
    assert_eq!(json_of(fm, &["ports", "127"]).await[0]["link"], "held in reset");
    json_of(fm, &["port-control", "--port", "127", "deassert"]).await;
    ends(&ask(fm, &["port-control", "--port", "0", "assert"]).await, 1);
    ends(&ask(fm, &["aer", "--vcs", "0", "--vppb", "1", "--error", "4000"]).await, 0);
    eventually("the error at the compute node", || async {
        (agent.agent().errors == [VppbError { vppb: 1, aer: 0x4000 }]).then_some(())
    })
    .await;

    let unbound = json_of(fm, &["unbind", "--vcs", "0", "--vppb", "1"]).await;
    assert_eq!((&unbound["operation"], &unbound["percent"]), (&json!("Unbind vPPB"), &json!(100)));
    eventually("its memory is zeroed", || async {
        client.region(&name("mn0-ld2")).await.is_err().then_some(())
    })
    .await;
    assert_eq!(
        json_of(fm, &["--port", "0", "config", "--ld", "2", "4"]).await["bytes"],
        "00001000",
        "nobody's now"
    );

    let raw = ask(fm, &["raw", "0003"]).await;
    assert_eq!((ends(&raw, 0).as_str(), raw.stdout.as_slice()), ("", b"success: 11\n".as_slice()));
    ends(&ask(fm, &["raw", "beef"]).await, 1);
    ends(&ask(fm, &["raw", "5101", "abc"]).await, 2);
    ends(&ask(fm, &["ld-info"]).await, 2);
    let log = json_of(fm, &["log"]).await;
    assert!(
        log.as_array()
            .unwrap()
            .iter()
            .any(|entry| entry["command"] == "Bind vPPB" && entry["effects"] == 0x142)
    );
    drop(served);
    assert!(ends(&ask(fm, &["identify"]).await, 3).contains("--fm-listen"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unbinding_goes_on_where_it_was_after_a_restart_and_waits_for_no_memory_node() {
    let folder = tempfile::tempdir().unwrap();
    let (served, addresses) = serve(folder.path(), &["--fm-dialect", "spec"]);
    let client = served.client();
    let node = PatientNode::start(client.clone(), memory_node("mn0", 0, 1024)).await;
    let agent = PatientAgent::start(client.clone(), compute_node("cn0", 1)).await;
    let fm = |args: &str| format!("--dialect spec {args}").split(' ').map(str::to_owned).collect::<Vec<_>>();
    let run = async |address: &str, args: &str, code: i32| {
        let args = fm(args);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        ends(&ask(address, &args).await, code)
    };
    let address = addresses[0].as_str();
    run(address, "ld-alloc --port 0 --set 512M", 0).await;
    run(address, "bind --vcs 0 --vppb 0 --port 0 --ld 0", 0).await;
    run(address, "--port 0 qos --severe 60", 0).await;

    // The agent does not release the memory, so a managed hot-remove waits for it at 0 percent.
    agent.agent().clings = true;
    run(address, "unbind --vcs 0 --vppb 0 --no-wait", 0).await;
    assert!(run(address, "unbind --vcs 0 --vppb 0", 5).await.contains("busy"));
    let status = async |address: &str| -> BackgroundStatus {
        let mut fm = FmClient::connect(address, Dialect::Spec).await.unwrap();
        fm.background().await.unwrap()
    };
    let asked = status(address).await;
    assert_eq!((asked.running, asked.percent, asked.opcode), (true, 0, 0x5202));
    // The FM client can abort the unbinding.
    run(address, "background --abort", 0).await;
    assert_eq!(status(address).await.code, ReturnCode::Aborted);
    assert_eq!(client.region(&name("mn0-ld0")).await.unwrap().state, RegionState::Active);
    run(address, "unbind --vcs 0 --vppb 0 --no-wait --option wait", 0).await;

    let mut fm_client = FmClient::connect(address, Dialect::Spec).await.unwrap();
    let log = GetEvents { log: 0 };
    let before: Events = fm_client.ask(Recipient::Switch, Opcode::GetEventRecords, &log).await.unwrap();
    assert!(before.records.len() > 2, "{before:?}");
    run(address, "events --log 0 --clear", 0).await;
    drop((node, agent));
    served.kill();
    let (served, addresses) = serve(folder.path(), &["--fm-dialect", "spec"]);
    let (address, client) = (addresses[0].as_str(), served.client());
    let asked = status(address).await;
    assert_eq!((asked.running, asked.opcode), (true, 0x5202));
    assert!(run(address, "bind --vcs 0 --vppb 1 --port 0 --ld 0", 5).await.contains("refused"));
    // The cleared log is still empty after the restart of the manager.
    let mut fm_client = FmClient::connect(address, Dialect::Spec).await.unwrap();
    let after: Events = fm_client.ask(Recipient::Switch, Opcode::GetEventRecords, &log).await.unwrap();
    assert_eq!((after.records.len(), after.overflow), (0, None));
    // The unbinding ends when the link is down, even though the memory node is unreachable and nothing is zeroed.
    run(address, "port-control --port 127 assert", 0).await;
    run(address, "background --wait", 0).await;
    let done = status(address).await;
    let code = ReturnCode::Success;
    assert_eq!(done, BackgroundStatus { running: false, percent: 100, opcode: 0x5202, code, vendor: 0 });
    let region = client.region_status(&name("mn0-ld0")).await.unwrap();
    assert_eq!((region.region.state, region.zeroed_percent), (RegionState::Draining, Some(0)));
    let node = PatientNode::start(client.clone(), memory_node("mn0", 0, 1024)).await;
    eventually("its memory is zeroed", || async { client.regions().await.unwrap().is_empty().then_some(()) })
        .await;
    let mut fm = FmClient::connect(address, Dialect::Spec).await.unwrap();
    let qos: cxloe_fm::mld_component::QosControl =
        fm.ask(Recipient::Device(0), Opcode::GetQosControl, &()).await.unwrap();
    assert_eq!(qos.severe, 60);

    // A binding fails if the memory node refuses to map its region.
    node.orders().refuse = Some("no".to_owned());
    run(address, "bind --vcs 0 --vppb 1 --port 0 --ld 0", 1).await;
    assert_eq!(status(address).await.code, ReturnCode::InternalError);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_have_their_places_on_several_switches() {
    let folder = tempfile::tempdir().unwrap();
    let (served, addresses) = serve(folder.path(), &["--fm-switches", "2"]);
    assert_eq!(addresses.len(), 2);
    let client = served.client();
    // Compute nodes 0 to 127: the last is VCS 0 of the second switch.
    for last in 0..128 {
        client.register_compute_node(&compute_node(&format!("cn{last}"), last)).await.unwrap();
    }
    let _node = PatientNode::start(client.clone(), memory_node("mn0", 0, 256)).await;
    let first = json_of(&addresses[0], &["identify"]).await;
    let second = json_of(&addresses[1], &["identify"]).await;
    assert_eq!(first["switch"]["active_virtual_switches"].as_array().unwrap().len(), 127);
    assert_eq!(
        (&second["switch"]["active_ports"], first["serial"].as_u64().unwrap() + 1),
        (&json!([127]), second["serial"].as_u64().unwrap())
    );
    // The last compute node gets a region on a memory node of the first switch: the region is bound to the node, but at
    // no vPPB of the node's switch.
    let create = cxloe_fabric::api::CreateRegion::new(name("far"), 64 << 20, cn(127));
    client.create_region(&create).await.unwrap();
    assert_eq!(json_of(&addresses[1], &["vcs"]).await[0]["vppbs"], json!([]));

    let mut fm = FmClient::connect(&addresses[0], Dialect::Tools).await.unwrap();
    let request = GetExtents { host: 0, count: 8, first: 0 };
    let extents: cxloe_fm::dcd::Extents =
        fm.ask(Recipient::Device(0), Opcode::GetDcExtents, &request).await.unwrap();
    assert_eq!(
        (extents.extents.len(), extents.extents[0].length, &extents.extents[0].tag[..4]),
        (1, 64 << 20, b"far\0".as_slice())
    );
    // Adds capacity to the same LD twice: with a second tag, and without a tag. Without a tag, the manager chooses the
    // region's name.
    let add = InitiateAdd {
        host: 0,
        policy: selection::FREE,
        region: 0,
        length: 2 * EXTENT,
        tag: [0xAB; 16],
        extents: vec![],
    };
    fm.ask::<()>(Recipient::Device(0), Opcode::InitiateDcAdd, &add).await.unwrap();
    fm.ask::<()>(Recipient::Device(0), Opcode::InitiateDcAdd, &InitiateAdd { tag: [0; 16], ..add })
        .await
        .unwrap();
    let mut names: Vec<String> =
        client.regions().await.unwrap().iter().map(|region| region.name.to_string()).collect();
    names.sort();
    assert_eq!(names, ["dc-abababababababababababababababab", "dc-mn0-0-1", "far"]);
    // The device's log has the events of added capacity; the switch's log does not.
    let events: Events = eventually("the events of all three", || async {
        let mut fm = FmClient::connect(&addresses[0], Dialect::Tools).await.unwrap();
        let request = GetEvents { log: 4 };
        let events: Events = fm.ask(Recipient::Device(0), Opcode::GetEventRecords, &request).await.unwrap();
        (events.records.len() >= 3).then_some(events)
    })
    .await;
    assert!(
        events
            .records
            .iter()
            .all(|record| matches!(record.happening, EventContent::Capacity { change: 0, host: 0, .. }))
    );
    let switch: Events =
        fm.ask(Recipient::Switch, Opcode::GetEventRecords, &GetEvents { log: 0 }).await.unwrap();
    let bound = |record: &&cxloe_fm::event_record::EventRecord| {
        matches!(record.happening, EventContent::Binding { status: VppbStatus::BoundLd, .. })
    };
    assert_eq!(switch.records.iter().filter(bound).count(), 0, "the host is on another switch");
}
