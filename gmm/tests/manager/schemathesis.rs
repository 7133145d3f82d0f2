//! [Schemathesis](https://schemathesis.io) makes valid and invalid requests from the OpenAPI document, and checks that
//! a running manager answers each as the document describes: one run per kind of caller, each in all phases. Checks
//! that are left out are in `gmm/tests/schemathesis/exclusions.toml`, with reasons.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::access::{Joining, mac, mn, role};
use crate::common::{ObedientNode, Served, cn, compute_node, memory_node, name};
use cxloe_fabric::Client;
use cxloe_fabric::api::{CreateToken, Join, Party};
use cxloe_fabric::client::Credentials;
use cxloe_fabric::model::{Role, Token};
use serde::Deserialize;
use serde_json::Value;

/// Number of generated requests per operation and phase.
const EXAMPLES: &str = "10";

/// Content of the file with the checks of Schemathesis that are left out.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exclusions {
    exclusion: Vec<Exclusion>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exclusion {
    /// Method and path that the exclusion applies to; none: every operation.
    operation: Option<String>,
    /// Names of this file's tests that the exclusion applies to; none: all of them.
    #[serde(default)]
    callers: Vec<String>,
    /// Checks of Schemathesis that are left out; none: the whole operation is left out.
    #[serde(default)]
    checks: Vec<String>,
    reason: String,
}

/// Caller that the requests come from.
enum Asking {
    Nobody,
    Bearer(CreateToken),
    Node(Party),
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemathesis")
}

/// Path of the program that `deploy/install/need.sh schemathesis` installs, in the build folder.
fn program() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_gmm")).parent().unwrap().parent().unwrap();
    let program = built.join("schemathesis/bin/schemathesis");
    assert!(
        program.exists(),
        "{} is not there: deploy/install/need.sh schemathesis installs it",
        program.display()
    );
    program
}

fn exclusions() -> Vec<Exclusion> {
    let text = std::fs::read_to_string(folder().join("exclusions.toml")).unwrap();
    let Exclusions { exclusion } = toml::from_str(&text).unwrap();
    exclusion
}

/// Configuration file of Schemathesis with the exclusions for a caller.
fn configuration(document: &Value, caller: &str) -> String {
    let (mut everywhere, mut of_operations) = (String::new(), String::new());
    let applies = |exclusion: &Exclusion| {
        exclusion.callers.is_empty() || exclusion.callers.iter().any(|other| other == caller)
    };
    for Exclusion { operation, checks, .. } in exclusions().into_iter().filter(applies) {
        let checks: String = checks.iter().map(|check| format!("checks.{check}.enabled = false\n")).collect();
        let Some(operation) = operation else {
            everywhere.push_str(&checks);
            continue;
        };
        let (method, path) = operation.split_once(' ').unwrap();
        let described = &document["paths"][path][method.to_lowercase()];
        assert!(described.is_object(), "{operation} is excluded, and is not in the document");
        let whole = if checks.is_empty() { "enabled = false\n" } else { "" };
        of_operations.push_str(&format!("[[operations]]\ninclude-name = {operation:?}\n{whole}{checks}"));
    }
    everywhere + &of_operations
}

async fn run(asking: Asking, who: &str) {
    let folder_of_run = tempfile::tempdir().unwrap();
    let place = folder_of_run.path();
    let served = Served::start_guarded(place, &[]);
    let admin = Client::new(&format!("unix:{}", place.join("gmm.sock").display())).unwrap();
    let _node = ObedientNode::start(admin.clone(), memory_node("mn0", 0, 1024)).await;
    admin.register_compute_node(&compute_node("cn0", 1)).await.unwrap();
    let token: Token = admin.create_token(&role(Role::Admin)).await.unwrap().token.parse().unwrap();
    let http = Credentials::of_token(token.clone()).http().build().unwrap();
    let document = http.get(format!("{}/v1/openapi.json", served.url)).bearer_auth(token.reveal());
    let document = document.send().await.unwrap();
    let document: Value = document.json().await.unwrap();
    std::fs::write(place.join("openapi.json"), document.to_string()).unwrap();
    std::fs::write(place.join("configuration.toml"), configuration(&document, who)).unwrap();

    let mut command = Command::new(program());
    command.arg("--config-file").arg(place.join("configuration.toml")).args(["--no-color", "run"]);
    command.arg(place.join("openapi.json")).args(["--url", &served.url]).arg("--tls-verify");
    command.arg(place.join("ca.pem")).args(["--header", "Content-Type: application/json"]);
    command.args(["--phases", "examples,coverage,fuzzing,stateful", "--max-examples", EXAMPLES]);
    command.args(["--workers", "2", "--request-timeout", "30", "--continue-on-failure", "--warnings", "off"]);
    match asking {
        Asking::Nobody => {}
        Asking::Bearer(token) => {
            let token = admin.create_token(&token).await.unwrap().token;
            command.args(["--header", &format!("Authorization: Bearer {token}")]);
        }
        Asking::Node(node) => {
            let joining = Joining::new();
            let macs = match &node {
                Party::MemoryNode(_) => vec![mac(9).into()],
                Party::ComputeNode(cn) => vec![cn.mac()],
                Party::FmClient(_) => Vec::new(),
            };
            let joined = admin.join(&Join { macs, ..joining.request(node, mac(9)) }).await.unwrap();
            let (certificate, key) = (place.join("node.pem"), place.join("node.key"));
            std::fs::write(&certificate, joined.certificate).unwrap();
            std::fs::write(&key, joining.key_pem()).unwrap();
            command.arg("--request-cert").arg(certificate).arg("--request-cert-key").arg(key);
        }
    }
    command.env("SCHEMATHESIS_HOOKS", "hooks").env("PYTHONPATH", folder());
    command.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(place).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("=== {who}\n{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{who}: the manager does not answer as its document says: see above");
    assert!(said.contains("Test cases:") && !said.contains(" 0 generated"), "{who}: nothing was asked");
    admin.health().await.unwrap();
    let log = served.log();
    let wrong: Vec<&str> =
        log.lines().filter(|line| line.contains(" ERROR ") || line.contains("panicked")).collect();
    assert!(wrong.is_empty(), "{who}: {wrong:?}");
}

macro_rules! asked_by {
    ($($test:ident: $asking:expr;)*) => {
        /// Callers for which Schemathesis is run.
        const CALLERS: &[&str] = &[$(stringify!($test)),*];
        $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = "takes minutes: thousands of requests made of the OpenAPI document"]
        async fn $test() {
            run($asking, stringify!($test)).await;
        }
        )*
    };
}

asked_by! {
    an_administrator: Asking::Bearer(role(Role::Admin));
    a_tenant: Asking::Bearer(CreateToken { compute_nodes: vec![cn(1)], ..role(Role::Tenant) });
    a_viewer: Asking::Bearer(role(Role::Viewer));
    a_memory_node: Asking::Node(mn("mn9"));
    a_compute_node: Asking::Node(Party::ComputeNode(cn(9)));
    an_fm_client: Asking::Node(Party::FmClient(name("desk")));
    nobody: Asking::Nobody;
}

#[test]
fn exclusions_have_reasons() {
    for Exclusion { operation, callers, checks, reason } in exclusions() {
        assert!(reason.split(' ').count() > 4, "{operation:?} is excluded without a reason");
        assert!(operation.is_some() || !checks.is_empty(), "no operation is left: {reason}");
        let unknown: Vec<_> = callers.iter().filter(|caller| !CALLERS.contains(&caller.as_str())).collect();
        assert!(unknown.is_empty(), "{unknown:?} are no tests of this file: {reason}");
    }
}
