//! Common part of the daemons' doctors: the checks of their options, and requests to a manager. The functions that
//! judge send no requests: the manager's answers are their arguments.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::doctor::{Check, Group};
use crate::options::{ConfigError, Protection};
use crate::{NodeIdentity, NodeIdentityError};

use cxloe_fabric::api::{ErrorCode, ManagerHealth, MemoryNodeStatus};
use cxloe_fabric::model::human_bytes;
use cxloe_fabric::{Client, ClientError};

/// Maximum wait for a manager's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Path of an installed daemon's configuration file. `None` if the file does not exist, or if the command line has
/// options (`given`), because the doctor then judges those.
pub fn installed_config(file: &Path, given: bool) -> Option<PathBuf> {
    (!given && file.exists()).then(|| file.to_path_buf())
}

/// Checks whether a daemon can use its options, which come from the file `from`, or from the command line alone if that
/// is `None`. The advice names the file `installed` as the place for options.
pub fn judge_options(from: Option<&Path>, installed: &Path, error: Option<String>) -> Check {
    let (group, name) = (Group::Configuration, "options");
    let place = from.map_or_else(|| "command line".to_owned(), |path| path.display().to_string());
    match error {
        None => Check::ok(group, name, place),
        Some(error) => {
            let first = error.lines().next().unwrap_or_default().to_owned();
            let rest = error.lines().skip(1).collect::<Vec<_>>().join("\n");
            let advice = match (rest.is_empty(), from) {
                (false, _) => rest,
                (true, Some(file)) => format!("change it in {}; --help names all options", file.display()),
                (true, None) => format!(
                    "give the option with this command, or write it to {}; --help names all options",
                    installed.display()
                ),
            };
            Check::fail(group, name, first, advice)
        }
    }
}

/// Finding for a node without options: the file `installed` does not exist, and the command line names no
/// interface.
pub fn no_options(program: &str, installed: &Path) -> Check {
    let file = installed.display();
    let advice = format!(
        "have the node join, which writes that file: {program} join https://MANAGER:7440 --token TOKEN -i INTERFACE; or write \
         to it the lines interface = \"INTERFACE\" and manager = \"https://MANAGER:7440\"; or name what is to be checked: \
         {program} doctor -i INTERFACE --manager https://MANAGER:7440"
    );
    let found = format!("{file} is not there, and no options are given: the machine alone is checked");
    Check::fail(Group::Configuration, "options", found, advice)
}

/// Checks whether frames are sealed: a warning if the operator has chosen `insecure`, a failure if nothing was chosen.
pub fn judge_protection(protection: Result<Protection, ConfigError>) -> Check {
    let (group, name) = (Group::Configuration, "frames");
    match protection {
        Ok(Protection::NodeKey) => Check::ok(group, name, "sealed by the node's key"),
        Ok(Protection::PreShared) => Check::ok(group, name, "sealed by the pre-shared key"),
        Ok(Protection::Checksum) => {
            let advice = "have the node join, and leave insecure out, unless this is a laboratory";
            Check::warn(group, name, "not sealed (insecure)", advice)
        }
        Err(error) => {
            Check::fail(group, name, "not sealed, and not configured to be insecure", error.to_string())
        }
    }
}

/// Reason why the health of a manager is unknown.
#[derive(Debug)]
pub enum NoHealth {
    /// The file with the node's certificate cannot be used.
    Identity(NodeIdentityError),
    Call(ClientError),
    /// No answer came in time, or the call could not be made.
    Silent(String),
}

impl NoHealth {
    /// Text of the finding, and a remedy.
    fn advise(&self) -> (String, &'static str) {
        const LISTENING: &str = "start it (systemctl start gmm), see whether it listens on an address that this machine \
                                 reaches (`listen` in its gmm.toml), and whether a firewall is in between";
        const UNKNOWN: &str = "the manager runs, and does not accept this node's identity: have the node join (again), with a \
                               token of this manager, or name the file with its certificate (`identity`)";
        match self {
            NoHealth::Silent(reason) => (reason.clone(), LISTENING),
            NoHealth::Identity(error) => (
                error.to_string(),
                "run this as root or as the user of the daemon, which may read it; or have the node join again",
            ),
            NoHealth::Call(error) => {
                let advice = match error {
                    // The TLS handshake has failed, so a server listens at this address.
                    ClientError::Unreachable { reason, .. } if is_of_tls(reason) => UNKNOWN,
                    ClientError::Unreachable { .. } | ClientError::Unanswered { .. } => LISTENING,
                    ClientError::NotPermitted { .. } => "run this as root or as the user of the daemon",
                    ClientError::Refused { body, .. } => match body.code {
                        ErrorCode::Unauthenticated => UNKNOWN,
                        ErrorCode::Forbidden => {
                            "the manager runs, and this node's identity lacks the right to ask it: see which role its token \
                             or certificate has (gmm whoami)"
                        }
                        _ => "the manager runs, and its log says why it refuses (journalctl -u gmm)",
                    },
                    ClientError::BadUrl { .. }
                    | ClientError::Tls { .. }
                    | ClientError::Plain { .. }
                    | ClientError::Protocol { .. } => "correct `manager` in this node's configuration",
                };
                (error.to_string(), advice)
            }
        }
    }
}

/// Whether a failed exchange ended in the handshake of TLS.
fn is_of_tls(reason: &str) -> bool {
    ["certificate", "fatal alert"].iter().any(|words| reason.contains(words))
}

#[derive(Debug)]
pub struct ManagerChecks {
    /// Health of the manager, or the reason why there is none.
    pub health: Result<ManagerHealth, NoHealth>,
    /// Memory nodes that the manager lists; empty if it did not answer.
    pub memory_nodes: Vec<MemoryNodeStatus>,
}

impl ManagerChecks {
    /// Asks the manager at `url`, with the certificate in the file `identity` if there is one.
    pub fn at(url: &str, identity: Option<&Path>) -> ManagerChecks {
        let without = |why: NoHealth| ManagerChecks { health: Err(why), memory_nodes: Vec::new() };
        let silent = |reason: String| without(NoHealth::Silent(reason));
        let identity = match identity.map(NodeIdentity::read).transpose() {
            Ok(identity) => identity,
            Err(error) => return without(NoHealth::Identity(error)),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let asked = async {
            let credentials = identity.map(|identity| identity.credentials()).unwrap_or_default();
            let client = Client::with(url, credentials)?;
            let health = client.health().await?;
            Ok::<_, ClientError>((health, client.memory_nodes().await?))
        };
        let answer = match runtime {
            Ok(runtime) => runtime.block_on(async { tokio::time::timeout(ANSWER_TIMEOUT, asked).await }),
            Err(error) => return silent(format!("cannot start: {error}")),
        };
        match answer {
            Ok(Ok((health, memory_nodes))) => ManagerChecks { health: Ok(health), memory_nodes },
            Ok(Err(error)) => without(NoHealth::Call(error)),
            Err(_) => silent(format!("manager at {url} has not answered for {ANSWER_TIMEOUT:?}")),
        }
    }

    /// Judges the manager, for a daemon of release `version`.
    pub fn judge_manager(&self, url: &str, version: &str) -> Check {
        let (group, name) = (Group::Peers, "manager");
        match &self.health {
            Err(why) => {
                let (found, advice) = why.advise();
                Check::fail(group, name, found, advice)
            }
            Ok(health) if health.read_only.is_some() => {
                let reason = health.read_only.as_deref().unwrap_or_default();
                let found = format!("{url} changes nothing at present: {reason}");
                Check::fail(group, name, found, "make room where its store is; it goes on by itself")
            }
            Ok(health) if !health.refused.is_empty() => {
                let nodes: Vec<String> = health.refused.iter().take(5).map(ToString::to_string).collect();
                let found = format!(
                    "{url} is not followed by {} nodes, since its store lacks what they have seen: {}",
                    health.refused.len(),
                    nodes.join(", ")
                );
                let advice = "start it over its newest store; `gmm adopt-fabric` shows what would be lost with this one";
                Check::fail(group, name, found, advice)
            }
            Ok(health) if health.orphan_bytes > 0 => {
                let found = format!(
                    "{url}: memory nodes keep {} that no region has",
                    human_bytes(health.orphan_bytes)
                );
                let advice = "`gmm list -M` shows which (orphan_bytes), `gmm release-orphans NODE` has it zeroed and given back";
                Check::warn(group, name, found, advice)
            }
            Ok(health) if health.version != version => {
                let found = format!("{url}, release {}, here {version}", health.version);
                let advice = "bring all daemons to one release, the manager first";
                Check::warn(group, name, found, advice)
            }
            Ok(health) => {
                let nodes = &health.memory_nodes;
                let found = format!("{url}, {} of {} memory nodes reachable", nodes.reachable, nodes.known);
                Check::ok(group, name, found)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;
    use cxloe_fabric::api::ErrorBody;

    fn asked(version: &str) -> ManagerChecks {
        let health = serde_json::json!({
            "status": "ok", "version": version, "watermark": {"term": 1, "revision": 2}, "regions": 0,
            "memory_nodes": {"known": 2, "reachable": 1}, "compute_nodes": {"known": 0, "reachable": 0},
        });
        ManagerChecks { health: Ok(serde_json::from_value(health).unwrap()), memory_nodes: vec![] }
    }

    #[test]
    fn managers_are_judged_by_answer_and_release() {
        let well = asked("1.0.0").judge_manager("http://m:1", "1.0.0");
        assert_eq!(
            (well.level, well.found.as_str()),
            (Level::Ok, "http://m:1, 1 of 2 memory nodes reachable")
        );
        assert_eq!(asked("0.9.0").judge_manager("http://m:1", "1.0.0").level, Level::Warn);
        let mut troubled = asked("1.0.0");
        let health = troubled.health.as_mut().unwrap();
        health.orphan_bytes = 4 << 20;
        let judged = |asked: &ManagerChecks| asked.judge_manager("http://m:1", "1.0.0");
        assert!(judged(&troubled).level == Level::Warn && judged(&troubled).found.contains("4.00 MiB"));
        let refused = cxloe_fabric::api::Party::MemoryNode(cxloe_fabric::model::Name::new("mn7").unwrap());
        troubled.health.as_mut().unwrap().refused = vec![refused];
        assert!(judged(&troubled).level == Level::Fail && judged(&troubled).found.contains("mn7"));
        assert!(judged(&troubled).advice.unwrap().contains("gmm adopt-fabric"));
        troubled.health.as_mut().unwrap().read_only = Some("no room".into());
        assert!(judged(&troubled).level == Level::Fail && judged(&troubled).found.contains("no room"));
        let nobody =
            ManagerChecks::at("http://127.0.0.1:1", None).judge_manager("http://127.0.0.1:1", "1.0.0");
        assert_eq!(nobody.level, Level::Fail);
        assert!(nobody.found.contains("unreachable"), "{}", nobody.found);
        assert_eq!(ManagerChecks::at("ftp://x", None).judge_manager("ftp://x", "1.0.0").level, Level::Fail);
    }

    #[test]
    fn a_refusal_is_not_silence() {
        let (url, asked) = ("https://m:1".to_owned(), "show its health".to_owned());
        let refused = |code| ClientError::Refused {
            url: url.clone(),
            asked: asked.clone(),
            body: ErrorBody { error: "no".into(), code, hint: "hint".into() },
        };
        let gone = |reason: &str| ClientError::Unreachable {
            url: url.clone(),
            asked: asked.clone(),
            reason: reason.into(),
        };
        let advice = |why: NoHealth| {
            let checks = ManagerChecks { health: Err(why), memory_nodes: vec![] };
            let check = checks.judge_manager(&url, "1.0.0");
            assert_eq!(check.level, Level::Fail);
            check.advice.unwrap()
        };
        let starts = |error| advice(NoHealth::Call(error)).contains("systemctl start gmm");
        assert!(starts(gone("Connection refused")));
        for (error, words) in [
            (refused(ErrorCode::Unauthenticated), "join (again)"),
            (gone("invalid peer certificate: UnknownIssuer"), "join (again)"),
            (gone("received fatal alert: CertificateExpired"), "join (again)"),
            (refused(ErrorCode::Forbidden), "gmm whoami"),
            (refused(ErrorCode::Unavailable), "journalctl -u gmm"),
            (ClientError::Plain { url: url.clone(), asked: asked.clone() }, "`manager`"),
        ] {
            let advice = advice(NoHealth::Call(error));
            assert!(advice.contains(words) && !advice.contains("systemctl start"), "{advice}");
        }
        assert!(advice(NoHealth::Silent("nothing for 5 s".into())).contains("systemctl start gmm"));
        let unread = ManagerChecks::at(&url, Some(Path::new("/nonexistent/identity")));
        assert!(matches!(unread.health, Err(NoHealth::Identity(_))), "{unread:?}");
        assert!(advice(unread.health.unwrap_err()).contains("as root"));
    }

    #[test]
    fn options_that_cannot_be_used_are_quoted() {
        let from = Path::new("/etc/cxloe/x.toml");
        let installed = Path::new("/etc/cxloe/mn-server.toml");
        let judge = |from, error: Option<&str>| judge_options(from, installed, error.map(str::to_owned));
        assert_eq!(judge(Some(from), None).found, "/etc/cxloe/x.toml");
        let wrong = judge(Some(from), Some("file x: TOML\n  |\n1 | a\n"));
        assert_eq!((wrong.level, wrong.found.as_str()), (Level::Fail, "file x: TOML"));
        assert!(wrong.advice.unwrap().contains("1 | a"));
        assert!(judge(Some(from), Some("wrong")).advice.unwrap().contains("/etc/cxloe/x.toml"));
        let line = judge(None, Some("wrong")).advice.unwrap();
        assert!(line.contains("/etc/cxloe/mn-server.toml") && line.contains("--help"), "{line}");
        let none = no_options("mn-server", installed);
        assert!(
            none.level == Level::Fail && none.found.starts_with("/etc/cxloe/mn-server.toml is not there")
        );
        assert!(none.advice.unwrap().contains("mn-server join https://"));
    }

    #[test]
    fn the_installed_file_is_taken_where_nothing_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("gmm.toml");
        assert_eq!(installed_config(&file, false), None);
        std::fs::write(&file, "").unwrap();
        assert_eq!((installed_config(&file, false), installed_config(&file, true)), (Some(file), None));
    }
}
