//! The `gmm` command as used by people and scripts.

use std::process::Output;
use std::time::Instant;

use crate::common::proxy::{Fate, Proxy};
use crate::common::{EXTENT, ObedientNode, Served, TEST_TIMEOUT, compute_node, gmm, memory_node, name};
use cxloe_fabric::api::{NotFollowed, Party};
use cxloe_fabric::model::Watermark;
use nix::sys::signal::Signal;
use serde_json::Value;

fn ask(url: &str, args: &[&str]) -> Output {
    gmm().args(["--manager", url]).args(args).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(output: &Output) -> Value {
    assert_eq!(code(output), 0, "{}", err(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The answer to the request that destroys a region is lost, and a region of the same name is created before the request is
/// repeated. The repetition must not destroy that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_destroy_does_not_reach_a_later_region() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let (_node, _) = ObedientNode::start(client.clone(), memory_node("mn0", 0, 1024)).await;
    client.register_compute_node(&compute_node("cn0", 1)).await.unwrap();
    let url = served.url.clone();
    let create = move || ask(&url, &["create-region", "-s", "128M", "--owner", "cn0", "scratch"]);
    let created = create();
    assert!(created.status.success(), "{}", err(&created));
    let first = client.region(&name("scratch")).await.unwrap();
    let mut requests = 0;
    let port = served.url.rsplit(':').next().unwrap().trim_end_matches('/').parse().unwrap();
    let proxy = Proxy::start(port, move || {
        requests += 1;
        match requests {
            // The look at the region.
            1 => Fate::Arrive,
            2 => Fate::LoseAnswer,
            _ => {
                let deadline = Instant::now() + TEST_TIMEOUT;
                while !create().status.success() {
                    assert!(Instant::now() < deadline, "the first region is not destroyed");
                }
                Fate::Arrive
            }
        }
    });
    let through = format!("http://127.0.0.1:{}", proxy.port());
    let destroyed = tokio::task::block_in_place(|| ask(&through, &["destroy-region", "--force", "scratch"]));
    assert_eq!(json(&destroyed)["state"], "destroyed", "{}", err(&destroyed));
    assert!(err(&destroyed).contains("the answer was lost"), "{}", err(&destroyed));
    let later = client.region(&name("scratch")).await.unwrap();
    assert!(later.created_ms > first.created_ms, "{first:?} {later:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fabric_is_run_from_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let url = served.url.as_str();
    let client = served.client();

    let empty = ask(url, &["list"]);
    assert_eq!((code(&empty), empty.stdout.as_slice()), (0, b"[\n]\n".as_slice()));
    assert!(
        err(&empty).contains("Warning: no memory nodes, compute nodes, regions found"),
        "{}",
        err(&empty)
    );

    let (_node, _) = ObedientNode::start(client.clone(), memory_node("mn0", 0, 1024)).await;
    client.register_compute_node(&compute_node("cn0", 1)).await.unwrap();
    let created = json(&ask(url, &["create-region", "-s", "512M", "--owner", "cn0", "-u", "scratch"]));
    assert_eq!(created["size"], "512.00 MiB (536.87 MB)");
    assert_eq!((&created["state"], &created["legs"][0]["cmem_base"]), (&"active".into(), &"0x0".into()));
    assert_eq!(created["legs"][0]["macs"][0], "02:00:00:00:02:00");

    let nodes = json(&ask(url, &["list", "-M"]));
    assert_eq!((&nodes[0]["name"], nodes[0]["free_bytes"].as_u64()), (&"mn0".into(), Some(768 * EXTENT)));
    let human = json(&ask(url, &["list", "-M", "-u"]));
    assert_eq!(human[0]["pool_bytes"], "2.00 GiB (2.15 GB)");
    let both = json(&ask(url, &["list", "-CR"]));
    assert_eq!(
        (&both[0]["compute_nodes"][0]["cn_id"], &both[1]["regions"][0]["name"]),
        (&"02:00:00:00:01:01".into(), &"scratch".into())
    );
    assert_eq!(json(&ask(url, &["list", "-r", "other"])), serde_json::json!([]));
    let events = json(&ask(url, &["list", "-E"]));
    assert_eq!((&events[0]["event"], &events[0]["seq"]), (&"manager_started".into(), &1.into()));
    let status = json(&ask(url, &["status"]));
    assert_eq!((&status["regions"], &status["memory_nodes"]["reachable"]), (&1.into(), &1.into()));
    assert!(String::from_utf8(ask(url, &["status", "-u"]).stdout).unwrap().contains("1.50 GiB"));

    let monitored = ask(url, &["monitor", "--after", "1", "--count", "2"]);
    let lines: Vec<Value> = monitored
        .stdout
        .split(|b| *b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect();
    assert_eq!(lines.iter().map(|line| line["seq"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 3]);

    let polite = ask(url, &["destroy-region", "scratch"]);
    assert_eq!(code(&polite), 5);
    assert!(err(&polite).contains("force"), "{}", err(&polite));
    assert_eq!(json(&ask(url, &["destroy-region", "--force", "scratch"]))["state"], "destroyed");
    assert_eq!(code(&ask(url, &["destroy-region", "scratch"])), 4);
    assert_eq!(code(&ask(url, &["reset-region", "scratch"])), 4);
    let full = ask(url, &["create-region", "-s", "4G", "-o", "cn0", "big"]);
    assert_eq!(code(&full), 5);
    assert!(err(&full).contains("2.00 GiB") && err(&full).contains("mn-server"), "{}", err(&full));
}

/// A request for more memory than is free fails, and the message names the nodes that the manager refuses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_nodes_are_named_to_who_lacks_their_memory() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let (url, client) = (served.url.as_str(), served.client());
    let (_node, _) = ObedientNode::start(client.clone(), memory_node("mn0", 0, 1024)).await;
    client.register_compute_node(&compute_node("cn0", 1)).await.unwrap();
    json(&ask(url, &["create-region", "-s", "512M", "--owner", "cn0", "r"]));
    let full = ask(url, &["create-region", "-s", "4G", "-o", "cn0", "big"]);
    assert!(code(&full) == 5 && !err(&full).contains("not followed"), "{}", err(&full));

    let seen = Watermark { term: 9, revision: 9, run: 9 };
    let node = Party::MemoryNode("mn9".parse().unwrap());
    client.not_followed(&NotFollowed { node, seen, holds: Vec::new() }).await.unwrap();
    for args in [&["create-region", "-s", "4G", "-o", "cn0", "big"][..], &["grow-region", "r", "-s", "4G"]] {
        let full = ask(url, args);
        assert_eq!(code(&full), 5);
        assert!(err(&full).contains("not followed by memory node mn9"), "{}", err(&full));
    }
}

/// A socket that this user has no permission for is reported as such, and not as a missing manager.
#[test]
fn who_may_not_use_the_socket_is_not_told_to_start_a_manager() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gmm.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    // Root without capabilities is bound by file permissions like any other user.
    let mut command = std::process::Command::new("setpriv");
    if nix::unistd::geteuid().is_root() {
        command.args(["--bounding-set=-all", "--inh-caps=-all"]);
    }
    command.arg(gmm().get_program()).args(["--manager", &format!("unix:{}", path.display()), "list"]);
    let refused = command.output().unwrap();
    assert_eq!(code(&refused), 5, "{}", err(&refused));
    let said = err(&refused);
    assert!(said.contains("may not use the manager") && !said.contains("gmm serve"), "{said}");
}

/// Tests the completion script in bash: it offers the names that the manager has, and nothing without a manager.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bash_completes_the_names_that_the_manager_has() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let (_node, _) = ObedientNode::start(client.clone(), memory_node("mn0", 0, 1024)).await;
    client.register_compute_node(&compute_node("cn0", 1)).await.unwrap();
    json(&ask(&served.url, &["create-region", "-s", "512M", "--owner", "cn0", "heap"]));
    json(&ask(&served.url, &["create-region", "-s", "512M", "--owner", "cn0", "hash"]));
    let script = gmm().args(["completions", "bash"]).output().unwrap().stdout;
    // The script is too long for an argument of bash, so it is read from a file.
    let path = folder.path().join("gmm.bash");
    std::fs::write(&path, script).unwrap();
    let path = path.display().to_string();
    let program = gmm().get_program().to_str().unwrap().to_owned();
    let complete = |url: &str, words: &[&str]| {
        let last = words.len();
        let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let run = format!(
            "source '{path}'\nCOMP_WORDS=('{program}' {})\nCOMP_CWORD={last}\n\
             $(complete -p gmm | sed 's/.*-F \\([^ ]*\\) .*/\\1/') '{program}' \
             \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last}-1]}}\"\necho \"${{COMPREPLY[*]}}\"",
            words.join(" ")
        );
        let mut bash = std::process::Command::new("bash");
        let ran = bash.args(["-c", &run]).env("CXLOE_MANAGER", url).output().unwrap();
        assert_eq!(err(&ran), "");
        let mut offered: Vec<String> =
            String::from_utf8(ran.stdout).unwrap().split_whitespace().map(String::from).collect();
        offered.sort();
        offered
    };
    let url = served.url.as_str();
    assert_eq!(complete(url, &["destroy-region", "--force", ""]), ["hash", "heap"]);
    assert_eq!(complete(url, &["grow-region", "he"]), ["heap"]);
    assert_eq!(complete(url, &["create-region", "-s", "1G", "--on", ""]), ["mn0"]);
    assert_eq!(complete(url, &["create-region", "--owner", "c"]), ["cn0"]);
    assert_eq!(complete(url, &["revoke", ""]), ["cn0", "mn0"]);
    let named = &["--manager", url, "drain", "m"];
    assert_eq!(complete("http://127.0.0.1:1", named), ["mn0"], "the manager of the command line");
    let without = complete("http://127.0.0.1:1", &["destroy-region", "he"]);
    assert!(!without.contains(&"heap".to_owned()), "{without:?}");
}

#[test]
fn wrong_arguments_and_missing_managers_have_exit_codes_of_their_own() {
    let nowhere = "http://127.0.0.1:1";
    let unreachable = ask(nowhere, &["list"]);
    assert_eq!(code(&unreachable), 3);
    assert!(
        err(&unreachable).contains(nowhere) && err(&unreachable).contains("gmm serve"),
        "{}",
        err(&unreachable)
    );
    for args in [
        &["create-region", "x"][..],
        &["create-region", "-s", "1.5G", "-o", "cn0", "x"],
        &["create-region", "-s", "1G", "-o", "cn0", "a/b"],
        &["frobnicate"],
        &["--manager", "nonsense", "list"],
        &["serve", "--listen", "nowhere"],
        &["serve", "--config", "/nonexistent/gmm.toml"],
        &["serve", "--store", "a", "--data-dir", "b"],
    ] {
        let output = gmm().args(args).output().unwrap();
        assert_eq!(code(&output), 2, "{args:?}: {}", err(&output));
        assert!(!err(&output).is_empty());
    }
}

#[test]
fn help_teaches_with_examples() {
    let commands = gmm().arg("--help").output().unwrap();
    let commands = String::from_utf8(commands.stdout).unwrap();
    let listed = commands.split_once("Commands:").unwrap().1.split_once("Options:").unwrap().0;
    let listed: Vec<&str> = listed
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|command| *command != "help" && *command != "fm")
        .collect();
    assert!(listed.len() >= 19 && listed.contains(&"grow-region"), "{listed:?}");
    for command in listed {
        let output = gmm().args([command, "--help"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("Example") && text.contains(&format!("gmm {command}")), "{command}: {text}");
    }
    let top = String::from_utf8(gmm().arg("--help").output().unwrap().stdout).unwrap();
    assert!(top.contains("Exit codes") && top.contains("manager unreachable"), "{top}");
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("new").join("man1");
    assert!(gmm().args(["man", "--dir"]).arg(&pages).output().unwrap().status.success());
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    assert!(
        page("gmm.1").contains("EXIT CODES") && page("gmm-grow-region.1").contains("gmm grow\\-region heap")
    );
    let nowhere = gmm().args(["man", "--dir", "/proc/nonexistent"]).output().unwrap();
    assert!(code(&nowhere) == 1 && err(&nowhere).contains("--dir"), "{}", err(&nowhere));
    let completions = gmm().args(["completions", "bash"]).output().unwrap();
    assert!(String::from_utf8(completions.stdout).unwrap().contains("create-region"));
}

#[test]
fn serving_ends_in_order_on_signals() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let folder = tempfile::tempdir().unwrap();
        let mut served = Served::start(folder.path(), &["--log", "json"]);
        let status = served.signal(signal);
        assert!(status.success(), "{status}: {}", served.log());
        for line in served.log().lines() {
            serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        }
        assert!(served.log().contains("listening on 127.0.0.1:"), "{}", served.log());
        assert!(!folder.path().join("port").exists());
    }
}

#[test]
fn what_keeps_a_manager_from_serving_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let address = served.url.trim_start_matches("http://");
    let serve = |args: &[&str]| gmm().arg("serve").args(args).output().unwrap();
    let store = |folder: &tempfile::TempDir| folder.path().join("gmm.redb").to_str().unwrap().to_owned();

    let taken = serve(&["--listen", address, "--store", &store(&other)]);
    assert_eq!(code(&taken), 1);
    assert!(
        err(&taken).contains(address) && err(&taken).contains("another process listens"),
        "{}",
        err(&taken)
    );
    let locked = serve(&["--listen", "127.0.0.1:0", "--store", &store(&folder)]);
    assert!(code(&locked) == 1 && err(&locked).contains("in use by another process"), "{}", err(&locked));
    let no_folder = serve(&["--listen", "127.0.0.1:0", "--data-dir", "/proc/nonexistent"]);
    assert!(code(&no_folder) == 1 && err(&no_folder).contains("/proc/nonexistent"), "{}", err(&no_folder));
    let not_here = serve(&["--listen", "192.0.2.1:0", "--store", &store(&other)]);
    assert!(
        code(&not_here) == 1 && err(&not_here).contains("does not have that address"),
        "{}",
        err(&not_here)
    );
    let no_port_file =
        serve(&["--listen", "127.0.0.1:0", "--store", &store(&other), "--port-file", "/proc/x"]);
    assert!(code(&no_port_file) == 1 && err(&no_port_file).contains("--port-file"), "{}", err(&no_port_file));
    let short = serve(&["--listen", "127.0.0.1:0", "--store", &store(&other), "--node-timeout", "1"]);
    assert!(code(&short) == 1 && err(&short).contains("too short"), "{}", err(&short));
}

#[test]
fn flags_outweigh_the_configuration_file() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("gmm.toml");
    let text = "listen = \"127.0.0.1:1\"\ndata_dir = \"/proc/nonexistent\"\nnode_timeout_ms = 60000\nlog = \"json\"\n";
    std::fs::write(&config, text).unwrap();
    let served = Served::start(folder.path(), &["--config", config.to_str().unwrap()]);
    assert!(served.log().lines().all(|line| line.starts_with('{')), "{}", served.log());
    drop(served);

    std::fs::write(&config, "lisen = \"127.0.0.1:0\"\n").unwrap();
    let output = gmm().args(["serve", "--config", config.to_str().unwrap()]).output().unwrap();
    assert_eq!(code(&output), 2);
    assert!(err(&output).contains("lisen"), "{}", err(&output));
}
