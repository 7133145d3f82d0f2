//! Clients made from the OpenAPI documents of a running manager by generators that others maintain:
//! [openapi-python-client](https://pypi.org/project/openapi-python-client) makes a client that works, and the
//! document of OpenAPI 3.0 meets the requirements of [progenitor](https://crates.io/crates/progenitor).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::access::role;
use crate::common::{ObedientNode, Served, compute_node, memory_node};
use cxloe_fabric::Client;
use cxloe_fabric::client::Credentials;
use cxloe_fabric::model::{Role, Token};
use openapiv3::{OpenAPI, Operation, ReferenceOr, StatusCode};
use serde_json::Value;

/// Paths of the documents: of OpenAPI 3.1, and of 3.0.
const DOCUMENTS: [&str; 2] = ["/v1/openapi.json", "/v1/openapi-3.0.json"];

/// Path of a program that `deploy/install/need.sh openapi-python-client` installs, in the build folder.
fn program(name: &str) -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_gmm")).parent().unwrap().parent().unwrap();
    let program = built.join("openapi-python-client/bin").join(name);
    assert!(
        program.exists(),
        "{} is not there: deploy/install/need.sh openapi-python-client installs it",
        program.display()
    );
    program
}

/// Runs a command. If it fails, the test fails with the command's output.
async fn run(mut command: Command) {
    command.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let [said, wrong] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}\n{said}\n{wrong}", output.status);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_python_client_is_generated_of_each_document_and_manages_regions() {
    for document in DOCUMENTS {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path();
        let served = Served::start_guarded(place, &[]);
        let admin = Client::new(&format!("unix:{}", place.join("gmm.sock").display())).unwrap();
        let _node = ObedientNode::start(admin.clone(), memory_node("mn0", 0, 1024)).await;
        admin.register_compute_node(&compute_node("cn0", 1)).await.unwrap();
        let token: Token = admin.create_token(&role(Role::Admin)).await.unwrap().token.parse().unwrap();
        let http = Credentials::of_token(token.clone()).http().build().unwrap();
        let asked = http.get(format!("{}{document}", served.url)).bearer_auth(token.reveal());
        let text = asked.send().await.unwrap().error_for_status().unwrap().text().await.unwrap();
        std::fs::write(place.join("openapi.json"), text).unwrap();
        // Without this, the generator runs a formatter, which need not be installed here.
        std::fs::write(place.join("configuration.yml"), "post_hooks: []\n").unwrap();

        let mut generate = Command::new(program("openapi-python-client"));
        generate.args(["generate", "--fail-on-warning", "--meta", "none", "--output-path", "client"]);
        generate.args(["--path", "openapi.json", "--config", "configuration.yml"]).current_dir(place);
        run(generate).await;

        let mut script = Command::new(program("python"));
        script.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/generated/regions.py"));
        script.arg(&served.url).arg(place.join("ca.pem")).arg(token.reveal()).arg(place);
        run(script).await;
        let left = admin.regions().await.unwrap();
        assert_eq!(left.len(), 1, "{document}: {left:?}");
    }
}

/// JSON schemas of those answers of `operation` whose status `is_of_kind` accepts; `None` stands for an
/// answer that is not JSON.
fn types(operation: &Operation, is_of_kind: fn(&StatusCode) -> bool) -> BTreeSet<Option<String>> {
    let answers = operation.responses.responses.iter().filter(|(status, _)| is_of_kind(status));
    let of = |answer: &ReferenceOr<openapiv3::Response>| {
        let schema = answer.as_item().unwrap().content.get("application/json")?.schema.as_ref()?;
        Some(serde_json::to_string(schema).unwrap())
    };
    answers.map(|(_, answer)| of(answer)).collect()
}

/// The document of OpenAPI 3.0 is valid, and meets progenitor's further requirements: each operation has a
/// name, one type of success and one of failure.
#[tokio::test]
async fn the_document_of_openapi_3_0_is_one_that_progenitor_takes() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let http = cxloe_fabric::client::http().build().unwrap();
    let [newer, older] = DOCUMENTS.map(|document| http.get(format!("{}{document}", served.url)).send());
    let newer: Value = newer.await.unwrap().json().await.unwrap();
    let older: Value = older.await.unwrap().json().await.unwrap();
    let of = |document: &Value| -> BTreeSet<String> {
        let paths = document["paths"].as_object().unwrap();
        let methods = |(path, item): (&String, &Value)| {
            let methods = item.as_object().unwrap().keys().map(|method| format!("{method} {path}"));
            methods.collect::<Vec<_>>()
        };
        paths.iter().flat_map(methods).collect()
    };
    assert_eq!(of(&older), of(&newer));

    let document: OpenAPI = serde_json::from_value(older).unwrap();
    assert!(document.openapi.starts_with("3.0."), "{}", document.openapi);
    let mut typed = 0;
    for (path, method, operation) in document.operations() {
        assert!(operation.operation_id.is_some(), "{method} {path}");
        assert!(operation.responses.default.is_none(), "{method} {path}: a success or a failure?");
        let success = types(operation, |status| matches!(status, StatusCode::Code(200..=299)));
        let failure = types(operation, |status| {
            matches!(status, StatusCode::Code(400..=599) | StatusCode::Range(4 | 5))
        });
        assert_eq!((success.len(), failure.len()), (1, 1), "{method} {path}: {success:?}, {failure:?}");
        typed += success.iter().flatten().count();
    }
    assert!(typed > 30, "{typed} operations answer with JSON");
    // The parser reads a schema that OpenAPI 3.0 cannot express as one that allows any value; there must be none.
    let components = document.components.unwrap();
    let untyped = |schema: &ReferenceOr<openapiv3::Schema>| {
        let kind = &schema.as_item().unwrap().schema_kind;
        matches!(kind, openapiv3::SchemaKind::Any(_))
    };
    let untyped: Vec<&String> =
        components.schemas.iter().filter(|(_, schema)| untyped(schema)).map(|(name, _)| name).collect();
    assert_eq!(untyped, [] as [&String; 0]);
}
