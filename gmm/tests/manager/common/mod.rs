//! Shared parts of the tests over real processes and sockets: a `gmm serve` process that ends with the test, nodes that
//! register, and waits with a time-out.

pub mod etcd;
pub mod node;
pub mod patient;
pub mod proxy;

use std::fs::File;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cxloe_fabric::Client;
use cxloe_fabric::api::{MemoryNodeRegistered, MemoryNodeSync, RegisterComputeNode, RegisterMemoryNode};
use cxloe_fabric::model::{CnId, CommandResult, DeviceKind, Name, NodeAction, Watermark};

pub const EXTENT: u64 = 2 << 20;

/// Time-out of every wait, after which the test fails.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn cn(last: u8) -> CnId {
    CnId::new([2, 0, 0, 0, 1, last]).unwrap()
}

pub fn gmm() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gmm"));
    command
        .env_remove("CXLOE_MANAGER")
        .env_remove("CXLOE_TOKEN")
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env("CXLOE_LOG", "info")
        // Password of every etcd user in the tests of access control.
        .env("CXLOE_GMM_ETCD_PASSWORD", "secret")
        .stdin(Stdio::null());
    command
}

/// A `gmm serve` process on a free port, with store and log in `folder`. Dropping it kills the process.
pub struct Served {
    pub child: Child,
    pub url: String,
    pub log: PathBuf,
}

impl Served {
    pub fn start(folder: &Path, more: &[&str]) -> Self {
        Self::start_over(&["--data-dir", folder.to_str().unwrap()], folder, more)
    }

    /// Starts a manager with TLS and access control, and with its socket at `gmm.sock` in `folder`.
    pub fn start_guarded(folder: &Path, more: &[&str]) -> Self {
        Self::start_guarded_over(&["--data-dir", folder.to_str().unwrap()], folder, more)
    }

    /// As [`start_guarded`](Self::start_guarded), with `store` as the arguments that select the store.
    pub fn start_guarded_over(store: &[&str], folder: &Path, more: &[&str]) -> Self {
        let mut served = Self::start_as(&[], store, folder, more);
        served.url = served.url.replacen("http:", "https:", 1);
        served
    }

    /// Starts a manager without access control; `store` contains the arguments that select the store.
    pub fn start_over(store: &[&str], folder: &Path, more: &[&str]) -> Self {
        Self::start_as(&["--insecure"], store, folder, more)
    }

    fn start_as(how: &[&str], store: &[&str], folder: &Path, more: &[&str]) -> Self {
        let (port_file, log) = (folder.join("port"), folder.join("log"));
        // The port file of an earlier manager must not be mistaken for that of this one.
        drop(std::fs::remove_file(&port_file));
        let mut child = gmm()
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(how)
            .args(store)
            .arg("--port-file")
            .arg(&port_file)
            .args(more)
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + TEST_TIMEOUT;
        let address = loop {
            if let Ok(address) = std::fs::read_to_string(&port_file) {
                break address;
            }
            let ended = child.try_wait().unwrap();
            let text = || std::fs::read_to_string(&log).unwrap();
            assert!(ended.is_none(), "gmm serve ended with {ended:?}: {}", text());
            assert!(Instant::now() < deadline, "gmm serve does not listen: {}", text());
            std::thread::sleep(Duration::from_millis(2));
        };
        Self { child, url: format!("http://{}", address.trim()), log }
    }

    pub fn client(&self) -> Client {
        Client::new(&self.url).unwrap()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Kills the process, as a power failure would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&mut self, signal: nix::sys::signal::Signal) -> std::process::ExitStatus {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "gmm serve does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub fn memory_node(node: &str, last: u8, extents: u64) -> RegisterMemoryNode {
    RegisterMemoryNode {
        name: name(node),
        macs: vec![[2, 0, 0, 0, 2, last].into()],
        udp: None,
        key: None,
        rack: None,
        pool_bytes: extents * EXTENT,
        extent_bytes: EXTENT,
        incarnation: 11,
        instance_id: 1,
        started_ms: 0,
        mtu: 1500,
        kind: DeviceKind::default(),
        seen: Watermark::default(),
    }
}

pub fn compute_node(node: &str, last: u8) -> RegisterComputeNode {
    RegisterComputeNode {
        cn_id: cn(last),
        name: name(node),
        udp: None,
        key: None,
        new_key: false,
        instance_id: 1,
        seen: Watermark::default(),
    }
}

/// A memory node that confirms every command, until it is dropped.
pub struct ObedientNode {
    task: tokio::task::JoinHandle<()>,
}

impl ObedientNode {
    pub async fn start(client: Client, node: RegisterMemoryNode) -> (Self, MemoryNodeRegistered) {
        let registered = client.register_memory_node(&node).await.unwrap();
        let first = MemoryNodeSync {
            registration: registered.registration,
            acked_seq: registered.acked_seq,
            results: Vec::new(),
            progress: None,
            fills: Vec::new(),
            stats: serde_json::json!({"frames": 7}),
            wait_ms: 1000,
        };
        let task = tokio::spawn(async move {
            let mut sync = first;
            loop {
                match client.sync_memory_node(&node.name, &sync).await {
                    Ok(synced) => {
                        sync.results.clear();
                        for command in synced.commands {
                            assert!(matches!(
                                command.action,
                                NodeAction::MapCmem(_) | NodeAction::UnmapCmem(_)
                            ));
                            sync.acked_seq = command.seq;
                            sync.results.push(CommandResult::done(command.seq));
                        }
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
        (Self { task }, registered)
    }
}

impl Drop for ObedientNode {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Repeats `ask` until the answer is `Some`; `what` names the awaited condition in the failure.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what} did not come about");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
