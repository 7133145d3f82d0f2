//! `gmm doctor`: checks whether this machine is ready for a manager with these options, and whether one runs. Findings
//! are judged in functions without I/O.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use cxloe_daemon::Unit;
use cxloe_daemon::command_line::doctor::{ManagerChecks, installed_config, judge_options};
use cxloe_daemon::doctor::permissions::Process;
use cxloe_daemon::doctor::quota::CpuQuota;
use cxloe_daemon::doctor::{Check, Group, Host, Output, Report, folder_for_files, machine::Machine};
use cxloe_gmm::server::Config;
use cxloe_gmm::store::StorePlace;
use cxloe_gmm::store::etcd::{self, EtcdMember};
use tokio::net::TcpSocket;

use super::serve::ServeArgs;

/// Configuration file of an installed manager, checked if the command line has no options of `gmm serve`.
const INSTALLED: &str = "/etc/cxloe/gmm.toml";
/// Free space that a store needs, in bytes: compaction writes the whole store again.
const STORE_BYTES: u64 = 256 << 20;

#[derive(Debug, Args)]
#[command(after_help = "\
Without options, those of /etc/cxloe/gmm.toml are checked, if it exists.

Exit codes:
  0  all is well        1  something could be better        2  something does not work

Examples:
  gmm doctor                                 as it is installed
  gmm doctor --config /etc/cxloe/gmm.toml --json | jq '.checks[] | select(.level != \"ok\")'
  gmm doctor --listen 10.0.0.1:7440          before it is started so")]
pub struct DoctorArgs {
    #[command(flatten)]
    serve: ServeArgs,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs all checks and prints the report. The worst finding determines the exit code.
pub fn run(args: DoctorArgs) -> ExitCode {
    let DoctorArgs { mut serve, json } = args;
    if let Some(file) = installed_config(Path::new(INSTALLED), serve.is_given()) {
        serve.set_file(file);
    }
    let from = serve.file().map(PathBuf::from);
    let host = Host::default();
    let unit = from.as_deref().and_then(|file| Unit::find("gmm", file));
    let process = unit.as_ref().map_or_else(|| Process::read(&host), Process::of_unit);
    let mut checks = vec![
        Machine::read(&host).judge_clock(),
        CpuQuota::read(&host, unit.as_ref()).judge(process.unit.as_deref()),
        process.judge_whose(),
    ];
    let installed = Path::new(INSTALLED);
    match serve.resolve() {
        Ok(config) => {
            checks.push(judge_options(from.as_deref(), installed, None));
            checks.extend(examine(&config, &process));
        }
        Err(failure) => checks.push(judge_options(from.as_deref(), installed, Some(failure.message))),
    }
    let output = if json { Output::Json } else { Output::Table };
    Report::new("gmm", env!("CARGO_PKG_VERSION"), checks).print(output)
}

fn examine(config: &Config, process: &Process) -> Vec<Check> {
    let mut checks = Vec::new();
    // Beyond the connections, 64 open files are for the store and the runtime.
    checks.push(process.judge_files(config.connections_max as u64 + 64));
    match &config.store {
        StorePlace::File(path) => {
            let folder =
                path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            checks.push(folder_for_files("store", folder, STORE_BYTES, "--data-dir"));
        }
        StorePlace::Etcd(place) => checks.push(match etcd::examine(place) {
            Ok(members) => judge_etcd(&members),
            Err(error) => {
                Check::fail(Group::Peers, "store", error.to_string(), "look at the options for etcd")
            }
        }),
    }
    let bound = bind(config.listen).map_err(|error| error.kind());
    // The socket is preferred, since it needs no token.
    let url = match &config.socket {
        Some(socket) if !config.insecure => format!("unix:{}", socket.display()),
        _ if config.insecure => format!("http://{}", reachable(config.listen)),
        _ => format!("https://{}", reachable(config.listen)),
    };
    let asked = matches!(bound, Err(ErrorKind::AddrInUse)).then(|| ManagerChecks::at(&url, None));
    let running = asked.as_ref().is_some_and(|asked| asked.health.is_ok());
    checks.push(judge_address(config.listen, bound, running));
    checks.push(match &asked {
        Some(asked) if running => asked.judge_manager(&url, env!("CARGO_PKG_VERSION")),
        _ => Check::ok(Group::Daemon, "manager", "not running"),
    });
    checks
}

/// Binds a socket to an address and closes it. The socket does not listen, so that a manager that starts
/// meanwhile still gets the address.
fn bind(address: SocketAddr) -> std::io::Result<()> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)
}

/// A local address at which a client reaches a listener on `address`.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() {
            [127, 0, 0, 1].into()
        } else {
            std::net::Ipv6Addr::LOCALHOST.into()
        });
    }
    address
}

/// Judges the store in etcd: its members must have room and belong to one cluster, and a majority must
/// answer.
fn judge_etcd(members: &[EtcdMember]) -> Check {
    let (group, name) = (Group::Peers, "store");
    if let Some(full) = members.iter().find(|member| member.full) {
        let advice = "compact it, defragment it and disarm its alarm: see `etcd is full` on the page `Several managers`";
        return Check::fail(group, name, format!("etcd at {} has no room for changes", full.host), advice);
    }
    let clusters: BTreeSet<u64> = members.iter().filter_map(|member| member.cluster).collect();
    let failed: Vec<&EtcdMember> = members.iter().filter(|member| member.failed.is_some()).collect();
    let mut found: Vec<String> =
        failed.iter().filter_map(|member| member.failed.as_ref().map(ToString::to_string)).collect();
    if clusters.len() > 1 {
        let each = members
            .iter()
            .filter_map(|member| member.cluster.map(|cluster| format!("{} to {cluster:x}", member.host)));
        let each = each.collect::<Vec<_>>().join(", ");
        found.push(format!("the members belong to {} clusters: {each}", clusters.len()));
    }
    if found.is_empty() {
        return Check::ok(group, name, format!("{} members of etcd answer this manager", members.len()));
    }
    let (found, advice) = (found.join("; "), "mend what the text names; see the page `Several managers`");
    // etcd writes as long as a majority of its members is up, so a failed minority is only a warning.
    if clusters.len() <= 1 && (members.len() - failed.len()) * 2 > members.len() {
        Check::warn(group, name, found, advice)
    } else {
        Check::fail(group, name, found, advice)
    }
}

/// Judges the listen address: `bound` is the result of a bind, `running` whether a manager answers there.
fn judge_address(address: SocketAddr, bound: Result<(), ErrorKind>, running: bool) -> Check {
    let (group, name) = (Group::Interface, "address");
    match bound {
        Err(ErrorKind::AddrInUse) if !running => Check::fail(
            group,
            name,
            format!("{address} is taken, and not by a manager that answers"),
            format!(
                "see which program listens there (ss -ltnp 'sport = :{}'), or choose another with --listen",
                address.port()
            ),
        ),
        Err(ErrorKind::AddrInUse) | Ok(()) if address.ip().is_unspecified() => Check::warn(
            group,
            name,
            format!("{address}: every address of this machine"),
            "every client of one of them can manage all memory: listen on that of the fabric's own network",
        ),
        Err(ErrorKind::AddrInUse) | Ok(()) => Check::ok(group, name, address.to_string()),
        Err(ErrorKind::AddrNotAvailable) => Check::fail(
            group,
            name,
            format!("{address} is no address of this machine"),
            "choose one that `ip address` lists, with --listen",
        ),
        Err(kind) => {
            Check::fail(group, name, format!("{address}: {kind}"), "choose another address with --listen")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_daemon::doctor::Level;
    use cxloe_gmm::store::etcd::EtcdError;

    #[test]
    fn an_address_is_free_or_the_managers_own() {
        let level =
            |address: &str, bound, running| judge_address(address.parse().unwrap(), bound, running).level;
        assert_eq!(level("127.0.0.1:7440", Ok(()), false), Level::Ok);
        assert_eq!(level("127.0.0.1:7440", Err(ErrorKind::AddrInUse), true), Level::Ok);
        assert_eq!(level("127.0.0.1:7440", Err(ErrorKind::AddrInUse), false), Level::Fail);
        assert_eq!(level("0.0.0.0:7440", Ok(()), false), Level::Warn);
        assert_eq!(level("[::]:7440", Err(ErrorKind::AddrInUse), true), Level::Warn);
        for error in [ErrorKind::AddrNotAvailable, ErrorKind::PermissionDenied] {
            assert_eq!(level("10.0.0.1:7440", Err(error), false), Level::Fail);
        }
    }

    #[test]
    fn etcd_needs_a_majority_of_one_cluster_that_answers_this_manager() {
        let member = |cluster, failed: bool| EtcdMember {
            host: "a:1".to_owned(),
            cluster: Some(cluster),
            full: false,
            failed: failed.then(|| EtcdError::Denied { host: "a:1".to_owned(), reason: "no".to_owned() }),
        };
        let judged = |members: &[(u64, bool)]| {
            judge_etcd(&members.iter().map(|(cluster, failed)| member(*cluster, *failed)).collect::<Vec<_>>())
        };
        let level = |members: &[(u64, bool)]| judged(members).level;
        assert_eq!(level(&[(7, false); 3]), Level::Ok);
        assert_eq!(level(&[(7, false), (7, false), (7, true)]), Level::Warn);
        assert_eq!(level(&[(7, false), (7, true), (7, true)]), Level::Fail);
        assert_eq!((level(&[(7, true)]), level(&[(7, false), (7, true)])), (Level::Fail, Level::Fail));
        assert_eq!(level(&[(7, false), (7, false), (8, false)]), Level::Fail);
        assert!(judged(&[(7, true)]).found.contains("denies access"));
        let full = EtcdMember { full: true, ..member(7, false) };
        assert!(judge_etcd(&[full]).found.contains("no room"));
    }

    #[test]
    fn what_listens_everywhere_is_asked_here() {
        assert_eq!(reachable("0.0.0.0:1".parse().unwrap()).to_string(), "127.0.0.1:1");
        assert_eq!(reachable("[::]:1".parse().unwrap()).to_string(), "[::1]:1");
        assert_eq!(reachable("10.0.0.1:1".parse().unwrap()).to_string(), "10.0.0.1:1");
    }
}
