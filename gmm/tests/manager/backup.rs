//! Backups: a manager whose machine is lost is restored elsewhere, and accepts the same tokens and
//! certificates.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;

use crate::access::{Joining, mac, mn, role};
use crate::common::etcd::Etcd;
use crate::common::{Served, eventually, gmm};
use cxloe_fabric::client::{Credentials, Identity};
use cxloe_fabric::model::{Role, Token};
use cxloe_fabric::{Client, ClientError};
use serde_json::{Value, json};

/// URL of the socket of the manager that runs in `folder`.
fn socket(folder: &Path) -> String {
    format!("unix:{}", folder.join("gmm.sock").display())
}

/// Runs a command as an administrator of the manager that runs in `folder`.
fn as_admin(folder: &Path, words: &[&str]) -> Output {
    gmm().args(["--manager", &socket(folder), "--json", "--wait-manager", "0s"]).args(words).output().unwrap()
}

/// JSON output of a command that succeeded.
fn printed(output: &Output) -> Value {
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Checks that a command failed with a message that contains `words`.
fn refused(output: &Output, words: &str) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains(words), "{words} expected: {told}");
}

/// An administrator's token, and the credentials of a memory node that has joined.
struct Members {
    token: Token,
    node: Arc<Identity>,
}

impl Members {
    /// Creates an administrator's token and has a memory node join, both at the manager that runs in
    /// `folder`.
    async fn of(served: &Served, folder: &Path) -> Self {
        let admin = Client::new(&socket(folder)).unwrap();
        let token: Token = admin.create_token(&role(Role::Admin)).await.unwrap().token.parse().unwrap();
        let joins: Token = admin.create_token(&role(Role::MemoryNode)).await.unwrap().token.parse().unwrap();
        let node = Joining::new();
        let joining = Client::with(&served.url, Credentials::of_token(joins)).unwrap();
        let joined = joining.join(&node.request(mn("mn0"), mac(1))).await.unwrap();
        let pem = format!("{}{}{}", node.key_pem(), joined.certificate, joined.authority);
        Self { token, node: Identity::parse(&pem).unwrap().into() }
    }

    /// Role of the administrator and name of the memory node, as the manager at `url` identifies them.
    async fn at(&self, url: &str) -> Result<[String; 2], ClientError> {
        let person = Client::with(url, Credentials::of_token(self.token.clone()))?;
        let machine = Client::with(url, Credentials::of_node(Arc::clone(&self.node)))?;
        Ok([person.who_am_i().await?.role, machine.who_am_i().await?.who])
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn a_lost_manager_is_restored_elsewhere_and_is_known_as_the_same() {
    let (lost, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let served = Served::start_guarded(lost.path(), &[]);
    let members = Members::of(&served, lost.path()).await;
    let known = ["admin".to_owned(), "memory node mn0".to_owned()];
    assert_eq!(members.at(&served.url).await.unwrap(), known);
    let file = kept.path().join("gmm.backup");
    let (backup, key) = (file.to_str().unwrap(), kept.path().join("gmm.backup.authority.pem"));
    let written = printed(&as_admin(lost.path(), &["backup", backup]));
    assert_eq!((&written["file"], &written["authority"]), (&json!(file), &json!(key)));
    assert_eq!((mode(&file), mode(&key)), (0o600, 0o600));
    // Only the key file contains the secret: the backup and the log do not.
    let secret = fs::read_to_string(&key).unwrap();
    let line = secret.lines().nth(1).unwrap();
    assert!(!fs::read_to_string(&file).unwrap().contains(line) && !served.log().contains(line));
    // A backup creates no folders.
    let nowhere = kept.path().join("none").join("gmm.backup");
    refused(&as_admin(lost.path(), &["backup", nowhere.to_str().unwrap()]), "there is no folder");
    assert!(!nowhere.parent().unwrap().exists());
    served.kill();
    drop(lost);

    let new = tempfile::tempdir().unwrap();
    let served = Served::start_guarded(new.path(), &[]);
    let strange = members.at(&served.url).await.unwrap_err();
    assert!(strange.to_string().contains("one to trust"), "{strange}");
    // Without the key, or with the key of another fabric, nothing is restored.
    fs::rename(&key, kept.path().join("key")).unwrap();
    refused(&as_admin(new.path(), &["restore", backup]), "--without-authority");
    let own = new.path().join("authority.pem");
    fs::copy(&own, &key).unwrap();
    refused(&as_admin(new.path(), &["restore", backup]), "is not this backup's");
    fs::rename(kept.path().join("key"), &key).unwrap();
    // A key file that other users may read is not used.
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    refused(&as_admin(new.path(), &["restore", backup]), "chmod 600");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    assert_ne!(fs::read_to_string(&own).unwrap(), secret, "nothing was changed");

    let restored = printed(&as_admin(new.path(), &["restore", backup]));
    assert_eq!(restored["authority"], true);
    assert_eq!(members.at(&served.url).await.unwrap(), known);
    assert_eq!((fs::read_to_string(&own).unwrap(), mode(&own)), (secret.clone(), 0o600));
    assert!(!served.log().contains(line));
    served.kill();
    // The restored authority is stored, too: after a restart it is still in use.
    let served = Served::start_guarded(new.path(), &[]);
    assert_eq!(members.at(&served.url).await.unwrap(), known);
    let again = printed(&as_admin(new.path(), &["restore", backup]));
    assert_eq!(again["authority"], false, "it has it already");
    assert_eq!(members.at(&served.url).await.unwrap(), known);
}

#[tokio::test]
async fn a_fabric_whose_authority_is_lost_is_restored_when_that_is_asked_for() {
    let (lost, kept, new) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let served = Served::start_guarded(lost.path(), &[]);
    let members = Members::of(&served, lost.path()).await;
    let file = kept.path().join("gmm.backup");
    let backup = file.to_str().unwrap();
    printed(&as_admin(lost.path(), &["backup", backup]));
    fs::remove_file(kept.path().join("gmm.backup.authority.pem")).unwrap();
    let served = Served::start_guarded(new.path(), &[]);
    let restored = printed(&as_admin(new.path(), &["restore", "--without-authority", backup]));
    assert_eq!(restored["authority"], false);
    assert!(members.at(&served.url).await.is_err());
    assert_eq!(printed(&as_admin(new.path(), &["token", "list"])).as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_manager_without_tls_has_no_authority_in_its_backup() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let file = folder.path().join("gmm.backup");
    let run = |words: &[&str]| gmm().args(["--manager", &served.url, "--json"]).args(words).output().unwrap();
    let backup = file.to_str().unwrap();
    assert_eq!(printed(&run(&["backup", backup]))["authority"], Value::Null);
    let key = folder.path().join("gmm.backup.authority.pem");
    assert!(!key.exists());
    // A key file that lies beside the backup is not sent over a network without TLS.
    fs::copy(folder.path().join("authority.pem"), &key).unwrap();
    let restored = run(&["restore", backup]);
    assert!(String::from_utf8_lossy(&restored.stderr).contains("is not sent to a manager without TLS"));
    assert_eq!(printed(&restored)["authority"], false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fabric_moves_from_a_file_to_etcd_with_its_authority() {
    let (lost, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let served = Served::start_guarded(lost.path(), &[]);
    let members = Members::of(&served, lost.path()).await;
    let file = kept.path().join("gmm.backup");
    let backup = file.to_str().unwrap();
    printed(&as_admin(lost.path(), &["backup", backup]));
    served.kill();

    let etcd = Etcd::start();
    let store = etcd.place("lab").to_string();
    let start = || {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("gmm.sock");
        let more = ["--lease-ttl", "2", "--socket", socket.to_str().unwrap()];
        (Served::start_guarded_over(&["--store", &store], folder.path(), &more), folder)
    };
    let [one, other] = [start(), start()];
    eventually("the leader restores it", || async {
        let told = [&one.1, &other.1].map(|folder| as_admin(folder.path(), &["restore", backup]));
        told.iter().any(|output| output.status.success()).then_some(())
    })
    .await;
    // The leader has the authority at once, and the other manager reads it from etcd.
    for (served, _) in [&one, &other] {
        let known =
            eventually("the members are known", || async { members.at(&served.url).await.ok() }).await;
        assert_eq!(known, ["admin", "memory node mn0"]);
    }
}
