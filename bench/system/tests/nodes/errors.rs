//! Daemons that cannot start: each prints the failed operation, its object and the remedy, and ends with an exit code
//! that scripts can test.
//!
//! A table of situations, each created for real in a lab, with the words the message must contain. An unreachable
//! manager does not make a node end: the node starts, retries, and reports the manager once.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use cxloe_lab::{Lab, LabPrivilege, Process, program};
use cxloe_system::{Failed, Test};
use cxloe_system::{LIMIT, Outcome, cable::cable, copies::without_rights, ensure, eventually};

/// A situation in which a program must not start.
struct Case {
    name: &'static str,
    program: &'static str,
    /// Arguments of the program; `DIR` stands for a folder that the test has made.
    arguments: &'static str,
    /// Function that prepares the folder `DIR` and the lab.
    before: fn(&Lab, &Path) -> Outcome,
    /// Set if the program runs with the rights of the test; otherwise it runs without capabilities.
    with_rights: bool,
    /// Set if the program runs with `--insecure`.
    insecure: bool,
    exit: i32,
    /// Words that the message has to contain: operation, object, remedy.
    says: &'static [&'static str],
}

const NOTHING: fn(&Lab, &Path) -> Outcome = |_, _| Ok(());

/// Fields that most cases share: with them and with valid arguments, a memory node would start.
const NODE: Case = Case {
    name: "",
    program: "mn-server",
    arguments: "",
    before: NOTHING,
    with_rights: true,
    insecure: true,
    exit: 1,
    says: &[],
};

const CASES: &[Case] = &[
    Case {
        name: "interface_missing",
        arguments: "-i eth7 --pool-size 4M --static-map DIR/map.toml --data-dir DIR",
        exit: 2,
        says: &["no network interface named `eth7`", "`ip link` lists them"],
        ..NODE
    },
    Case {
        name: "interface_down",
        arguments: "-i mn0 --pool-size 4M --static-map DIR/map.toml --data-dir DIR",
        before: |lab, _| Ok(lab.link_down("mn0")?),
        says: &["interface `mn0` is down", "ip link set mn0 up"],
        ..NODE
    },
    Case {
        name: "no_permission",
        arguments: "-i mn0 --pool-size 4M --static-map DIR/map.toml --data-dir DIR",
        with_rights: false,
        exit: 2,
        says: &["no permission to open a packet socket on `mn0`", "CAP_NET_RAW", "run as root"],
        ..NODE
    },
    Case {
        name: "no_permission_for_xdp",
        arguments: "-i mn0 --link xdp --pool-size 4M --static-map DIR/map.toml --data-dir DIR",
        with_rights: false,
        exit: 2,
        says: &["no permission to", "`mn0`", "--link packet"],
        ..NODE
    },
    Case {
        name: "mtu_too_small",
        arguments: "-i mn0 --pool-size 4M --static-map DIR/map.toml --data-dir DIR",
        before: |lab, _| {
            cxloe_system::cable::ip(lab, "mn", &["link", "set", "dev", "mn0", "mtu", "68"]).map(drop)
        },
        says: &["MTU 68 of `mn0` is too small", "ip link set mn0 mtu 1500"],
        ..NODE
    },
    Case {
        name: "hugepages_absent",
        // No test machine has reserved this number of huge pages.
        arguments: "-i mn0 --pool huge2m --pool-size 64T --static-map DIR/map.toml --data-dir DIR",
        says: &["huge pages of 2MiB", "free", "--pool anon"],
        ..NODE
    },
    Case {
        name: "pool_larger_than_memory",
        arguments: "-i mn0 --pool-size 64T --static-map DIR/map.toml --data-dir DIR",
        says: &["a pool of ", "needs more memory than the", "available here", "smaller --pool-size"],
        ..NODE
    },
    Case {
        name: "pool_of_odd_size",
        arguments: "-i mn0 --pool-size 3M --static-map DIR/map.toml --data-dir DIR",
        exit: 2,
        says: &["3MiB is not a whole number of 2MiB extents", "choose a multiple"],
        ..NODE
    },
    Case {
        name: "map_larger_than_pool",
        arguments: "-i mn0 --pool-size 4M --static-map DIR/large.toml --data-dir DIR",
        says: &["the static map asks for 1GiB", "the pool has 4MiB", "enlarge --pool-size"],
        ..NODE
    },
    Case {
        name: "map_missing",
        arguments: "-i mn0 --pool-size 4M --static-map DIR/nothing.toml --data-dir DIR",
        says: &["cannot read the static map", "nothing.toml"],
        ..NODE
    },
    Case {
        name: "option_unknown_in_file",
        arguments: "--config DIR/unknown.toml",
        exit: 2,
        says: &["configuration file", "unknown.toml", "pool-sise"],
        ..NODE
    },
    Case {
        name: "nobody_gives_the_memory_away",
        arguments: "-i mn0",
        exit: 2,
        says: &["option `manager`", "--manager URL", "--static-map FILE"],
        ..NODE
    },
    Case {
        name: "manager_is_no_url",
        arguments: "-i mn0 --manager ftp://somewhere",
        exit: 2,
        says: &["option `manager`", "ftp://somewhere", "https://HOST:PORT"],
        ..NODE
    },
    Case {
        name: "cpus_do_not_match_workers",
        arguments: "-i mn0 --static-map DIR/map.toml --workers 2 --cpus 0",
        exit: 2,
        says: &["option `cpus`", "1 CPUs for 2 workers", "one for each"],
        ..NODE
    },
    Case {
        name: "no_key",
        arguments: "-i mn0 --pool-size 4M --static-map DIR/map.toml --data-dir DIR",
        insecure: false,
        exit: 2,
        says: &["would not be sealed", "mn-server join URL", "--node-key", "--insecure"],
        ..NODE
    },
    Case {
        name: "no_key",
        program: "cn-agent",
        arguments: "run -i mn0 --manager http://127.0.0.1:7440 --data-dir DIR --socket DIR/agent.sock",
        insecure: false,
        exit: 2,
        says: &["would not be sealed", "cn-agent join URL", "--node-key", "--insecure"],
        ..NODE
    },
    Case {
        name: "data_folder_not_writable",
        arguments: "-i mn0 --pool-size 4M --static-map DIR/map.toml --data-dir /proc/nowhere",
        says: &["/proc/nowhere", "--data-dir"],
        ..NODE
    },
    Case {
        name: "gmm_store_not_writable",
        program: "gmm",
        arguments: "serve --listen 127.0.0.1:0 --data-dir /proc/nowhere",
        says: &["/proc/nowhere", "--data-dir"],
        ..NODE
    },
    Case {
        name: "gmm_bad_configuration",
        program: "gmm",
        arguments: "serve --config DIR/unknown.toml",
        exit: 2,
        says: &["configuration file", "unknown.toml", "pool-sise"],
        ..NODE
    },
];

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    let mut tests: Vec<_> = CASES
        .iter()
        .map(|case| Test::new(format!("{}::{}", case.program, case.name), || check(case)))
        .collect();
    tests.push(Test::new("gmm::port_taken", gmm_port_taken));
    tests.push(Test::new("mn-server::manager_unreachable", manager_unreachable));
    tests
}

fn write_files(folder: &Path) -> Outcome {
    let map = |size: &str| format!("[[map]]\ncn = \"02:00:00:00:00:01\"\nsize = \"{size}\"\n");
    fs::write(folder.join("map.toml"), map("2MiB"))?;
    fs::write(folder.join("large.toml"), map("1GiB"))?;
    fs::write(folder.join("unknown.toml"), "pool-sise = \"4MiB\"\n")?;
    Ok(())
}

fn check(case: &Case) -> Outcome {
    let lab = cable().build()?;
    let folder = tempfile::tempdir()?;
    write_files(folder.path())?;
    (case.before)(&lab, folder.path())?;
    let path = program(case.program)?;
    let mut command = if case.with_rights { Command::new(path) } else { without_rights(&path) };
    let here = folder.path().to_string_lossy();
    command.args(case.arguments.split(' ').map(|word| word.replace("DIR", &here)));
    command.args(case.insecure.then_some("--insecure"));
    refuses(&lab, command, case.exit, case.says)
}

/// Checks that a program ends with `exit` and a message that contains `says`, without a panic.
fn refuses(lab: &Lab, mut command: Command, exit: i32, says: &[&str]) -> Outcome {
    // All errors in the daemons' logs are accepted here, because the test itself checks the messages.
    cxloe_lab::expect_error(" ");
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("log");
    Process::log_to(&mut command, &log)?;
    let status = lab.spawn("mn", command)?.wait(LIMIT)?;
    let output_text = fs::read_to_string(&log)?;
    ensure(status.code() == Some(exit), format!("it ended with {status}, not {exit}: {output_text}"))?;
    for words in says {
        ensure(output_text.contains(words), format!("no `{words}` in: {output_text}"))?;
    }
    ensure(!output_text.contains("panicked"), output_text)
}

fn gmm_port_taken() -> Outcome {
    let lab = cable().build()?;
    let folder = tempfile::tempdir()?;
    let taken = lab.enter("mn", || TcpListener::bind("127.0.0.1:0"))??;
    let address = taken.local_addr()?.to_string();
    let mut command = Command::new(program("gmm")?);
    command.args(["serve", "--insecure", "--listen", &address, "--data-dir"]).arg(folder.path());
    refuses(&lab, command, 1, &[&format!("cannot listen on {address}"), "--listen"])
}

fn manager_unreachable() -> Outcome {
    cxloe_lab::expect_error(" ");
    let lab = cable().build()?;
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("log");
    let mut command = Command::new(program("mn-server")?);
    command.args(["-i", "mn0", "--link", "packet", "--pool-size", "4M", "--name", "mn1"]);
    command.args(["--insecure", "--manager", "http://127.0.0.1:7440", "--data-dir"]).arg(folder.path());
    Process::log_to(&mut command, &log)?;
    let mut node = lab.spawn("mn", command)?;
    let output_text = || fs::read_to_string(&log).unwrap_or_default();
    eventually("the node says that there is no manager", || output_text().contains("no manager"))?;
    ensure(node.try_wait()?.is_none(), output_text())?;
    for words in ["serving", "http://127.0.0.1:7440"] {
        ensure(output_text().contains(words), format!("no `{words}` in: {}", output_text()))?;
    }
    // The manager starts later, and the node, which has continued to retry, registers.
    let mut command = Command::new(program("gmm")?);
    command.args(["serve", "--insecure", "--listen", "127.0.0.1:7440", "--data-dir"]).arg(folder.path());
    Process::log_to(&mut command, &folder.path().join("gmm.log"))?;
    let mut manager = lab.spawn("mn", command)?;
    let listed = || -> Result<String, Failed> {
        let gmm = program("gmm")?;
        let output = lab.enter("mn", || {
            Command::new(gmm).args(["list", "-M", "--manager", "http://127.0.0.1:7440"]).output()
        })??;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    eventually("the node registers", || listed().is_ok_and(|list| list.contains("mn1")))?;
    let status = node.terminate(LIMIT)?;
    ensure(status.code() == Some(0), format!("mn-server ended with {status}: {}", output_text()))?;
    let status = manager.terminate(LIMIT)?;
    ensure(status.code() == Some(0), format!("gmm ended with {status}"))
}
