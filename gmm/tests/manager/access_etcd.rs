//! Access to managers that share a store in etcd: one authority for all of them, and etcd itself with TLS.

#![expect(unsafe_code, reason = "etcd is tied to the test between fork and exec")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::etcd::Etcd;
use crate::common::{Served, eventually};
use cxloe_fabric::Client;
use cxloe_fabric::api::CreateToken;
use cxloe_fabric::client::Credentials;
use cxloe_fabric::model::{Role, Token};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// Starts a manager with the store that the arguments `store` select, and with its socket in a separate folder.
fn manager(store: &[&str]) -> (Served, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("gmm.sock");
    let more = ["--lease-ttl", "2", "--socket", socket.to_str().unwrap()];
    (Served::start_guarded_over(store, folder.path(), &more), folder)
}

/// A token, created by an administrator on the leader's machine.
async fn token(folders: &[&tempfile::TempDir]) -> Token {
    let ask = CreateToken { role: Role::Admin, ttl_s: None, compute_nodes: Vec::new(), quota: None };
    eventually("a token", || async {
        for folder in folders {
            let url = format!("unix:{}", folder.path().join("gmm.sock").display());
            if let Ok(made) = Client::new(&url).unwrap().create_token(&ask).await {
                return made.token.parse().ok();
            }
        }
        None
    })
    .await
}

#[tokio::test]
async fn managers_that_share_a_store_are_one_to_who_has_a_token() {
    let etcd = Etcd::start();
    let store = etcd.place("lab").to_string();
    let ((one, one_folder), (other, other_folder)) =
        (manager(&["--store", &store]), manager(&["--store", &store]));
    let token = token(&[&one_folder, &other_folder]).await;
    for url in [&one.url, &other.url] {
        // A follower redirects to the leader, whose certificate the same authority has signed.
        let client = Client::with(url, Credentials::of_token(token.clone())).unwrap();
        assert_eq!(client.who_am_i().await.unwrap().role, "admin", "{url}");
    }
}

/// An etcd that requires client certificates. Dropping it ends the process.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Writes an authority, and a certificate that it signed, to `folder`: `ca.pem`, `cert.pem`, `key.pem`.
fn certify(folder: &Path) {
    let ca_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(params, ca_key);
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &issuer).unwrap();
    fs::write(folder.join("ca.pem"), ca.pem()).unwrap();
    fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
    let pem = key.serialize_pem();
    cxloe_private::write(&folder.join("key.pem"), pem.as_bytes(), cxloe_private::Existing::Keep).unwrap();
}

#[tokio::test]
async fn etcd_is_reached_over_tls_with_a_certificate() {
    let folder = tempfile::tempdir().unwrap();
    certify(folder.path());
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (port, peer) = (free(), format!("http://127.0.0.1:{}", free()));
    let client = format!("https://127.0.0.1:{port}");
    let mut etcd = Command::new("etcd");
    etcd.args([
        "--data-dir",
        &at("data"),
        "--listen-client-urls",
        &client,
        "--advertise-client-urls",
        &client,
    ]);
    etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    etcd.args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"]);
    etcd.args(["--cert-file", &at("cert.pem"), "--key-file", &at("key.pem")]);
    etcd.args(["--trusted-ca-file", &at("ca.pem"), "--client-cert-auth"]);
    etcd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(at("etcd.log")).unwrap());
    // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
    unsafe {
        etcd.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?));
    }
    let _etcd = Guarded(etcd.spawn().expect("etcd is installed: deploy/install/need.sh etcd"));
    let store = format!("etcd://127.0.0.1:{port}/lab");
    let tls = ["--etcd-ca", &at("ca.pem"), "--etcd-cert", &at("cert.pem"), "--etcd-key", &at("key.pem")];
    let (served, own) = manager(&[&["--store", &store], &tls[..]].concat());
    let token = token(&[&own]).await;
    let client = Client::with(&served.url, Credentials::of_token(token)).unwrap();
    assert_eq!(client.who_am_i().await.unwrap().role, "admin");
    // etcd refuses a manager without a certificate, and the manager reports that.
    let (outside, _folder) = manager(&["--store", &store, "--etcd-ca", &at("ca.pem")]);
    eventually("it says that it cannot reach the store", || async {
        outside.log().contains("trying again").then_some(())
    })
    .await;
}
