//! The manager's doors, end to end: nodes join by one command over TLS from another machine, serve, are started again, and
//! are shown out; and what a neighbour tries who has no token, one that is used up, ended or another manager's, or a
//! viewer's.

mod join;
mod member;
mod neighbour;

use std::ops::Deref;
use std::process::{Command, Output, Stdio};

use cxloe_client::client::Client;
use cxloe_client::message::{AttachedRegion, Attaching};
use cxloe_lab::{Standing, program};
use cxloe_system::cable::{cable, with_addresses};
use cxloe_system::command::{output, succeeded};
use cxloe_system::outcome::{Outcome, ensure, eventually};
use cxloe_system::rig::Rig;
use cxloe_system::{Test, tests, text};

pub fn tests(_: Standing) -> Vec<Test> {
    tests![
        join::nodes_join_by_one_command_serve_and_start_again,
        join::a_node_that_is_revoked_is_out_until_it_joins_again,
        member::programs_with_a_link_of_their_own_join_over_tls,
        member::a_program_keeps_its_certificate_for_as_long_as_it_runs,
        member::programs_hear_that_a_memory_node_was_revoked,
        neighbour::a_neighbour_comes_in_with_a_valid_token_only,
        neighbour::a_viewer_changes_nothing,
    ]
}

/// The manager's address: on the compute node's machine, with the memory node's on the other end of the cable.
const ADDRESS: &str = "10.77.0.1";
const CN: &str = "02:00:00:00:00:01";

/// A manager with TLS that both machines reach.
struct Doors {
    rig: Rig,
    url: String,
    /// Seconds that certificates are valid, if not as long as usual.
    certificate_s: Option<u64>,
}

impl Deref for Doors {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.rig
    }
}

impl Doors {
    fn new() -> Outcome<Self> {
        Self::certifying_for(None)
    }

    /// With certificates that are valid for so many seconds.
    fn certifying_for(certificate_s: Option<u64>) -> Outcome<Self> {
        let network = cable().mac("cn0", CN).mac("mn0", "02:00:00:00:00:09");
        let network = with_addresses(network);
        let mut doors = Self { rig: Rig::on(network)?, url: String::new(), certificate_s };
        doors.start_gmm()?;
        Ok(doors)
    }

    fn start_gmm(&mut self) -> Outcome {
        let (store, port) = (self.path("gmm.redb"), self.path("port"));
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

    /// `gmm` on the manager's machine, as root, by its socket.
    fn gmm(&self, words: &[&str]) -> Outcome<String> {
        let mut gmm = Command::new(program("gmm")?);
        gmm.args(["--manager", &self.manager_url()]).args(words).env_remove("CXLOE_TOKEN");
        succeeded(output(&mut gmm)?)
    }

    fn token(&self, words: &[&str]) -> Outcome<String> {
        Ok(self.gmm(&[&["token", "create"], words].concat())?.trim().to_owned())
    }

    /// A token to join with of another manager, which has its own authority.
    fn foreign_token(&self) -> Outcome<String> {
        let mut gmm = Command::new(program("gmm")?);
        gmm.args(["serve", "--listen", "127.0.0.1:0", "--data-dir", text(&self.path("other"))]);
        self.start("other", "cn", gmm)?;
        let url = format!("unix:{}", self.path("other").join("gmm.sock").display());
        eventually("the other manager makes a token", || {
            let mut gmm = Command::new(program("gmm").ok()?);
            gmm.args(["--manager", &url, "token", "create", "--role", "mn"]);
            succeeded(output(&mut gmm).ok()?).ok().map(|token| token.trim().to_owned())
        })
    }

    /// A program on the other machine, to its end.
    fn neighbour(&self, name: &str, token: Option<&str>, words: &[&str]) -> Outcome<Output> {
        let mut command = Command::new(program(name)?);
        command.args(words).stdin(Stdio::null()).env_remove("CXLOE_MANAGER").env_remove("CXLOE_TOKEN");
        command.env("XDG_CONFIG_HOME", self.path("no-config"));
        if let Some(token) = token {
            command.env("CXLOE_TOKEN", token);
        }
        self.lab.enter("mn", || output(&mut command))?
    }

    /// What `mn-server join` is told as the node `name`, besides the token.
    fn join_words(&self, name: &str) -> Vec<String> {
        let at = |what: &str| self.path(&format!("{name}.{what}")).display().to_string();
        let words =
            ["join", &self.url, "-i", "mn0", "--name", name, "--link", "packet", "--pool-size", "32MiB"];
        let places = ["--data-dir", &at("data"), "--socket", &at("sock"), "--config", &at("toml")];
        [&words[..], &places].concat().into_iter().map(str::to_owned).collect()
    }

    /// Has the memory node join and serve, by one command.
    fn join_mn(&self) -> Outcome {
        let mut join = Command::new(program("mn-server")?);
        join.args(self.join_words("mn0")).args(["--prefault", "false", "--run"]);
        join.env("CXLOE_TOKEN", self.token(&["--role", "mn"])?);
        self.start("mn0", "mn", join)?;
        self.says("mn0", "registered with the manager")
    }

    /// The same for the compute node.
    fn join_cn(&self) -> Outcome {
        let at = |what: &str| self.path(&format!("cn0.{what}")).display().to_string();
        let mut join = Command::new(program("cn-agent")?);
        join.args(["join", &self.url, "-i", "cn0", "--name", "cn0", "--link", "packet", "--run"]);
        join.args(["--data-dir", &at("data"), "--socket", &at("sock"), "--config", &at("toml")]);
        join.env("CXLOE_TOKEN", self.token(&["--role", "cn"])?);
        self.start("cn0", "cn", join)?;
        self.says("cn0", "registered with the manager")
    }

    /// Lines through the agent, written and read back.
    fn works(&self, region: &str, seed: u64) -> Outcome {
        let mut port = Client::connect(&self.path("cn0.sock"))?;
        let hpa = eventually("the region is attached", || {
            let regions = cxloe_client::client::regions(&self.path("cn0.sock")).ok()?;
            let usable = |known: &AttachedRegion| {
                known.region.as_str() == region
                    && known.attachment == Attaching::Attached
                    && known.state == "active"
            };
            regions.into_iter().find(usable).map(|known| known.hpa)
        })?;
        // A session may end again.
        eventually("lines are written", || {
            cxloe_system::lines::fill(&mut port, hpa, 64 << 10, seed).ok()?;
            port.flush().ok()
        })?;
        cxloe_system::lines::verify(&mut port, hpa, 64 << 10, seed)
    }
}

/// That a command was refused, and said why.
fn refused(output: &Output, words: &str) -> Outcome {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure(
        !output.status.success() && said.contains(words),
        format!("{words:?} expected: {} {said}", output.status),
    )
}
