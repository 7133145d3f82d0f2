//! An etcd for one test: one member on free ports of the loopback interface, with its files in a temporary folder. It
//! ends with the test.

#![expect(unsafe_code, reason = "etcd is tied to the test between fork and exec")]

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cxloe_gmm::store::EtcdPlace;
use cxloe_gmm::store::etcd::{Attempt, Campaign, Leadership};
use serde_json::{Value, json};

use super::TEST_TIMEOUT;

/// Maximum number of tries with other ports, since another process may take a free port first.
const PORT_TRIES: u32 = 5;

/// A running etcd. Dropping it ends the process.
pub struct Etcd {
    child: Option<Child>,
    client_port: u16,
    peer_port: u16,
    folder: tempfile::TempDir,
    more: Vec<String>,
    /// Credentials for the test's own requests to etcd; none until access control is turned on.
    user: Option<(String, String)>,
}

impl Etcd {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts an etcd with further options.
    pub fn start_with(more: &[&str]) -> Self {
        for _ in 0..PORT_TRIES {
            let free = || TcpListener::bind("127.0.0.1:0").unwrap();
            let (client, peer) = (free(), free());
            let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
            let (client_port, peer_port) = (port(&client), port(&peer));
            drop((client, peer));
            let folder = tempfile::tempdir().unwrap();
            let more = more.iter().map(|option| (*option).to_owned()).collect();
            let mut etcd = Self { child: None, client_port, peer_port, folder, more, user: None };
            if etcd.run() {
                return etcd;
            }
        }
        panic!("etcd did not start {PORT_TRIES} times");
    }

    /// Starts etcd, possibly after [`Etcd::kill`]. Returns true if it answers.
    pub fn run(&mut self) -> bool {
        let log = self.log_path();
        let (client, peer) = (
            format!("http://127.0.0.1:{}", self.client_port),
            format!("http://127.0.0.1:{}", self.peer_port),
        );
        let mut command = Command::new("etcd");
        command
            .arg("--data-dir")
            .arg(self.folder.path().join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args([
                "--initial-cluster",
                &format!("default={peer}"),
                "--logger",
                "zap",
                "--log-level",
                "error",
            ])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .args(&self.more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap());
        // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?));
        }
        let mut child = command.spawn().expect("etcd is installed: deploy/install/need.sh etcd");
        let deadline = Instant::now() + TEST_TIMEOUT;
        while self.ask_as(None, "/v3/maintenance/status", json!({})).is_none() {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(
                Instant::now() < deadline,
                "etcd does not answer: {}",
                std::fs::read_to_string(&log).unwrap()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        // Another process that took the port first may have answered.
        let ours = child.try_wait().unwrap().is_none();
        self.child = Some(child);
        ours
    }

    /// Kills etcd, as a power failure would; its files stay.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }

    /// Stops the process of etcd: connections stay open, requests get no answer.
    pub fn freeze(&self) {
        self.signal(nix::sys::signal::Signal::SIGSTOP);
    }

    /// Continues the stopped process.
    pub fn thaw(&self) {
        self.signal(nix::sys::signal::Signal::SIGCONT);
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = self.child.as_ref().unwrap().id().try_into().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    pub fn port(&self) -> u16 {
        self.client_port
    }

    /// Location of a store in this etcd, with its keys under `prefix`.
    pub fn place(&self, prefix: &str) -> EtcdPlace {
        format!("etcd://127.0.0.1:{}/{prefix}", self.client_port).parse().unwrap()
    }

    /// Sends a request to etcd directly, not through the code under test.
    pub fn ask(&self, path: &str, question: Value) -> Option<Value> {
        let token = self.user.as_ref().map(|(name, password)| {
            let user = json!({"name": name, "password": password});
            let given = self.ask_as(None, "/v3/auth/authenticate", user).unwrap();
            given["token"].as_str().unwrap().to_owned()
        });
        self.ask_as(token, path, question)
    }

    /// Turns access control on: user `root` may do everything, and user `gmm`, with the role `fabric`,
    /// everything below `lab/`.
    pub fn guard(&mut self) {
        let ask = |path: &str, question: Value| self.ask(path, question).unwrap_or_else(|| panic!("{path}"));
        for (user, role) in [("root", "root"), ("gmm", "fabric")] {
            ask("/v3/auth/role/add", json!({"name": role}));
            ask("/v3/auth/user/add", json!({"name": user, "password": "secret"}));
            ask("/v3/auth/user/grant", json!({"user": user, "role": role}));
        }
        let all = json!({"permType": "READWRITE", "key": base64("lab/"), "range_end": base64("lab0")});
        ask("/v3/auth/role/grant", json!({"name": "fabric", "perm": all}));
        ask("/v3/auth/enable", json!({}));
        self.user = Some(("root".to_owned(), "secret".to_owned()));
    }

    fn ask_as(&self, token: Option<String>, path: &str, question: Value) -> Option<Value> {
        let url = format!("http://127.0.0.1:{}{path}", self.client_port);
        // The request runs in a separate thread, because some tests already run within an async runtime.
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let client = cxloe_fabric::client::http().timeout(Duration::from_secs(5)).build();
                    let mut request = client.unwrap().post(url).json(&question);
                    if let Some(token) = token {
                        request = request.header("Authorization", token);
                    }
                    let answer = request.send().await.ok()?;
                    if answer.status().is_success() { answer.json().await.ok() } else { None }
                })
            });
            asked.join().unwrap()
        })
    }

    /// Deletes the leader's key, as an operator could.
    pub fn depose(&self, place: &EtcdPlace) {
        self.ask("/v3/kv/deleterange", json!({"key": base64(&place.key("leader"))})).unwrap();
    }

    /// Sets a key, as only an operator could.
    pub fn put(&self, key: &str, value: &str) {
        self.ask("/v3/kv/put", json!({"key": base64(key), "value": base64(value)})).unwrap();
    }

    /// Every key under a prefix, with its value.
    pub fn content(&self, place: &EtcdPlace, folder: &str) -> Vec<(String, String)> {
        let question = json!({
            "key": base64(&place.key(&format!("{folder}/"))),
            "range_end": base64(&place.key(&format!("{folder}0"))),
        });
        let answer = self.ask("/v3/kv/range", question).unwrap();
        let text = |value: &Value| {
            String::from_utf8(BASE64_STANDARD.decode(value.as_str().unwrap_or_default()).unwrap()).unwrap()
        };
        let found = answer["kvs"].as_array().cloned().unwrap_or_default();
        found.iter().map(|kv| (text(&kv["key"]), text(&kv["value"]))).collect()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn base64(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

/// Becomes the leader of the managers that share `place`, with a lease that outlasts the test unless the leader
/// resigns.
pub fn lead(place: &EtcdPlace) -> Leadership {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let campaign = Campaign::new(place, "http://127.0.0.1:1", 600).unwrap();
    // While the disk is busy, etcd may not answer in time, so the attempt is repeated, as a manager would do.
    for _ in 0..20 {
        match runtime.block_on(campaign.attempt()) {
            Ok(Attempt::Won(leadership)) => return leadership,
            Ok(held) => panic!("the leader's key is there already: {held:?}"),
            Err(error) => eprintln!("trying again: {error}"),
        }
    }
    panic!("etcd has not answered");
}
