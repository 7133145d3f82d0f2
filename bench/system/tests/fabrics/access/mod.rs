//! Access control of the manager, end to end: nodes join by one command over TLS from another machine, serve,
//! are restarted, and are removed. Further tests are attempts of a neighbour without a token, or with a token
//! that was used already, has expired, belongs to another manager, or gives the role of a viewer.

mod join;
mod member;
mod neighbour;
mod restore;

use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use cxloe_client::client::Client;
use cxloe_client::message::{AttachedRegion, Attaching};
use cxloe_lab::{LabPrivilege, program};
use cxloe_system::cable::{cable, with_addresses};
use cxloe_system::command::{output, succeeded};
use cxloe_system::outcome::{Outcome, ensure, eventually};
use cxloe_system::rig::Rig;
use cxloe_system::{Test, tests, text};

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![
        join::nodes_join_by_one_command_serve_and_start_again,
        join::a_node_that_is_revoked_is_out_until_it_joins_again,
        join::the_configuration_gets_an_address_that_works,
        join::a_wrong_scheme_is_named,
        member::programs_with_a_link_of_their_own_join_over_tls,
        member::a_program_does_not_rename_its_node,
        member::a_program_keeps_its_certificate_for_as_long_as_it_runs,
        member::programs_get_errors_after_a_memory_node_was_revoked,
        neighbour::a_neighbour_comes_in_with_a_valid_token_only,
        neighbour::a_viewer_changes_nothing,
        restore::a_lost_manager_is_restored_and_nodes_follow_by_themselves,
    ]
}

/// IP address of the manager, which runs on the compute node's machine; the memory node is at the other end of the
/// cable.
const ADDRESS: &str = "10.77.0.1";
pub const CN: &str = "02:00:00:00:00:01";

/// A fabric whose manager has TLS and is reachable from both machines.
pub struct Doors {
    rig: Rig,
    /// URL of the manager, with https.
    pub url: String,
    /// Folder of the manager's store.
    folder: PathBuf,
    /// Validity of certificates in seconds; `None` for the default.
    certificate_s: Option<u64>,
}

impl Deref for Doors {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.rig
    }
}

impl Doors {
    pub fn new() -> Outcome<Self> {
        Self::certifying_for(None)
    }

    /// Starts a manager whose certificates are valid for this number of seconds.
    fn certifying_for(certificate_s: Option<u64>) -> Outcome<Self> {
        let network = cable().mac("cn0", CN).mac("mn0", "02:00:00:00:00:09");
        let network = with_addresses(network);
        let rig = Rig::on(network)?;
        let folder = rig.path("");
        let mut doors = Self { rig, url: String::new(), folder, certificate_s };
        doors.start_gmm()?;
        Ok(doors)
    }

    fn start_gmm(&mut self) -> Outcome {
        let (store, port) = (self.folder.join("gmm.redb"), self.path("port"));
        drop(std::fs::remove_file(&port));
        let listen = match self.url.rsplit_once(':') {
            Some((_, port)) => format!("{ADDRESS}:{port}"),
            None => format!("{ADDRESS}:0"),
        };
        let mut gmm = Command::new(program("gmm")?);
        gmm.args(["serve", "--listen", &listen, "--node-timeout-ms", "1000"]);
        gmm.args([
            "--store",
            text(&store),
            "--socket",
            text(&self.path("gmm.sock")),
            "--port-file",
            text(&port),
        ]);
        if let Some(seconds) = self.certificate_s {
            gmm.args(["--certificate-s", &seconds.to_string()]);
        }
        self.start("gmm", "cn", gmm)?;
        let address = eventually("the manager listens", || std::fs::read_to_string(&port).ok())?;
        self.url = format!("https://{}", address.trim());
        Ok(())
    }

    /// Runs `gmm` as root on the manager's machine, through the manager's socket.
    pub fn gmm(&self, words: &[&str]) -> Outcome<String> {
        let mut gmm = Command::new(program("gmm")?);
        gmm.args(["--manager", &self.manager_url()]).args(words).env_remove("CXLOE_TOKEN");
        succeeded(output(&mut gmm)?)
    }

    pub fn token(&self, words: &[&str]) -> Outcome<String> {
        Ok(self.gmm(&[&["token", "create"], words].concat())?.trim().to_owned())
    }

    /// Starts another manager, on the compute node's machine and reachable only there; returns the URL of its socket.
    fn start_other(&self, more: &[&str]) -> Outcome<String> {
        let mut gmm = Command::new(program("gmm")?);
        gmm.args(["serve", "--listen", "127.0.0.1:7441", "--data-dir", text(&self.path("other"))]);
        gmm.args(more);
        self.start("other", "cn", gmm)?;
        Ok(format!("unix:{}", self.path("other").join("gmm.sock").display()))
    }

    /// A join token of another manager, which has its own authority.
    fn foreign_token(&self) -> Outcome<String> {
        let url = self.start_other(&[])?;
        eventually("the other manager makes a token", || {
            let mut gmm = Command::new(program("gmm").ok()?);
            gmm.args(["--manager", &url, "token", "create", "--role", "mn"]);
            succeeded(output(&mut gmm).ok()?).ok().map(|token| token.trim().to_owned())
        })
    }

    /// Runs a program on the memory node's machine to its end.
    fn neighbour(&self, name: &str, token: Option<&str>, words: &[&str]) -> Outcome<Output> {
        let mut command = Command::new(program(name)?);
        command.args(words).stdin(Stdio::null()).env_remove("CXLOE_MANAGER").env_remove("CXLOE_TOKEN");
        command.env("XDG_CONFIG_HOME", self.path("no-config"));
        if let Some(token) = token {
            command.env("CXLOE_TOKEN", token);
        }
        self.lab.enter("mn", || output(&mut command))?
    }

    /// Arguments of `mn-server join` for the node `name`, except the token.
    fn join_words(&self, name: &str) -> Vec<String> {
        let at = |what: &str| self.path(&format!("{name}.{what}")).display().to_string();
        let words =
            ["join", &self.url, "-i", "mn0", "--name", name, "--link", "packet", "--pool-size", "32MiB"];
        let places = ["--data-dir", &at("data"), "--socket", &at("sock"), "--config", &at("toml")];
        [&words[..], &places].concat().into_iter().map(str::to_owned).collect()
    }

    /// Joins the memory node to the fabric and starts it, by one command.
    pub fn join_mn(&self) -> Outcome {
        let mut join = Command::new(program("mn-server")?);
        join.args(self.join_words("mn0")).args(["--prefault", "false", "--run"]);
        join.env("CXLOE_TOKEN", self.token(&["--role", "mn"])?);
        self.start("mn0", "mn", join)?;
        self.says("mn0", "registered with the manager")
    }

    /// Joins the compute node to the fabric and starts it, by one command.
    fn join_cn(&self) -> Outcome {
        self.join_cn_by(&self.token(&["--role", "cn"])?)
    }

    /// Like [`join_cn`](Self::join_cn), with this token.
    pub fn join_cn_by(&self, token: &str) -> Outcome {
        let at = |what: &str| self.path(&format!("cn0.{what}")).display().to_string();
        let mut join = Command::new(program("cn-agent")?);
        join.args(["join", &self.url, "-i", "cn0", "--name", "cn0", "--link", "packet", "--run"]);
        join.args(["--data-dir", &at("data"), "--socket", &at("sock"), "--config", &at("toml")]);
        join.env("CXLOE_TOKEN", token);
        self.start("cn0", "cn", join)?;
        self.says("cn0", "registered with the manager")
    }

    /// A client of the agent, and the region's HPA once the region is attached.
    pub fn attached(&self, region: &str) -> Outcome<(Client, u64)> {
        let port = Client::connect(&self.path("cn0.sock"))?;
        let hpa = eventually("the region is attached", || {
            let regions = cxloe_client::client::regions(&self.path("cn0.sock")).ok()?;
            let usable = |known: &AttachedRegion| {
                known.region.as_str() == region
                    && known.attachment == Attaching::Attached
                    && known.state == "active"
            };
            regions.into_iter().find(usable).map(|known| known.hpa)
        })?;
        Ok((port, hpa))
    }

    /// Writes lines through the agent and reads them back.
    fn works(&self, region: &str, seed: u64) -> Outcome {
        let (mut port, hpa) = self.attached(region)?;
        // Writes are repeated until they succeed, because the session may be replaced once more.
        eventually("lines are written", || {
            cxloe_system::lines::fill(&mut port, hpa, 64 << 10, seed).ok()?;
            port.flush().ok()
        })?;
        cxloe_system::lines::verify(&mut port, hpa, 64 << 10, seed)
    }
}

/// Checks that a command has failed with an error that contains `words`.
fn refused(output: &Output, words: &str) -> Outcome {
    let output_text = String::from_utf8_lossy(&output.stderr);
    ensure(
        !output.status.success() && output_text.contains(words),
        format!("{words:?} expected: {} {output_text}", output.status),
    )
}
