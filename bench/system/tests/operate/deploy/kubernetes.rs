//! The manifests for Kubernetes, as far as they can be checked without a cluster: against the schemas that
//! Kubernetes publishes (kubernetes-validate has them), with the images' capabilities, and with the programs,
//! which have to accept the arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cxloe_lab::{Lab, Process, program};
use cxloe_system::command::{output_text, printed};
use cxloe_system::pair::{Outcome, ensure, eventually, run};
use serde_json::Value;

use super::unit::source;

/// Prints the documents of YAML files as one list in JSON.
const TO_JSON: &str = "import json, sys, yaml
print(json.dumps([document for path in sys.argv[1:] for document in yaml.safe_load_all(open(path))]))";

/// A program that `deploy/install/need.sh kubernetes-validate` installs.
fn tool(name: &str) -> Outcome<PathBuf> {
    let built = program("gmm")?;
    let folder = built.parent().and_then(Path::parent).ok_or("no folder of what is built")?;
    let tool = folder.join("kubernetes-validate/bin").join(name);
    ensure(
        tool.exists(),
        format!("{}: deploy/install/need.sh kubernetes-validate installs it", tool.display()),
    )?;
    Ok(tool)
}

fn folder() -> PathBuf {
    source().join("deploy/kubernetes")
}

fn documents(files: &[PathBuf]) -> Outcome<Vec<Value>> {
    let mut python = Command::new(tool("python3")?);
    Ok(serde_json::from_str(&printed(python.args(["-c", TO_JSON]).args(files))?)?)
}

/// Checks manifests against the schemas of the newest Kubernetes in the tool; unknown fields are faults.
fn checked(files: &[PathBuf]) -> Outcome<Output> {
    let mut tool = Command::new(tool("kubernetes-validate")?);
    Ok(tool.arg("--strict").args(files).output()?)
}

/// Text items of a YAML list.
fn words(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// A container of a manifest, with one of this project's programs.
struct Container<'m> {
    container: &'m Value,
    /// The program, which is the image's name.
    program: &'m str,
}

impl<'m> Container<'m> {
    fn of(manifest: &'m Value, kind: &str) -> Vec<Container<'m>> {
        let all = manifest["spec"]["template"]["spec"][kind].as_array().into_iter().flatten();
        let program = |container: &'m Value| container["image"].as_str()?.strip_prefix("cxloe/");
        all.filter_map(|container| Some(Container { container, program: program(container)? })).collect()
    }

    /// The arguments, in which each variable is replaced by the value that it has on a machine. A variable
    /// that the container does not define is an error.
    fn arguments(&self, settings: &Value) -> Outcome<Vec<String>> {
        let mut values = BTreeMap::new();
        for variable in self.container["env"].as_array().into_iter().flatten() {
            let from = &variable["valueFrom"];
            let value = match from["configMapKeyRef"]["key"].as_str() {
                Some(key) => settings["data"][key].as_str().ok_or_else(|| format!("settings lack {key}"))?,
                None if from["fieldRef"]["fieldPath"] == "spec.nodeName" => "machine0",
                None => variable["value"].as_str().ok_or_else(|| format!("{variable} has no value"))?,
            };
            values.insert(variable["name"].as_str().unwrap_or_default(), value);
        }
        let mut arguments = Vec::new();
        for argument in words(&self.container["args"]) {
            let full = values
                .iter()
                .fold(argument.to_owned(), |text, (name, value)| text.replace(&format!("$({name})"), value));
            ensure(!full.contains("$("), format!("{full}: no such variable"))?;
            arguments.push(full);
        }
        Ok(arguments)
    }

    fn capabilities(&self) -> BTreeSet<String> {
        let added = words(&self.container["securityContext"]["capabilities"]["add"]);
        added.into_iter().map(|name| format!("cap_{}", name.to_lowercase())).collect()
    }
}

/// Capabilities that the image gives to a program's file.
fn of_the_image(program: &str) -> Outcome<BTreeSet<String>> {
    let text = fs::read_to_string(source().join("deploy/container/Containerfile"))?;
    let set = text.lines().find_map(|line| {
        let (capabilities, file) = line.split_once("setcap ")?.1.split_once("+ep ")?;
        (file.trim_end_matches('\\').trim() == format!("/out/{program}")).then(|| capabilities.to_owned())
    });
    ensure(text.contains(&format!("AS {program}\n")), format!("the images have no target {program}"))?;
    Ok(set.iter().flat_map(|list| list.split(',')).map(str::to_owned).collect())
}

pub fn manifests_are_ones_that_kubernetes_takes() -> Outcome {
    let [kustomization] = &documents(&[folder().join("kustomization.yaml")])?[..] else {
        return Err("kustomization.yaml is not one document".into());
    };
    let listed: BTreeSet<&str> = words(&kustomization["resources"]).into_iter().collect();
    let mut there: BTreeSet<String> = fs::read_dir(folder())?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    there.remove("kustomization.yaml");
    ensure(
        there.iter().map(String::as_str).eq(listed.iter().copied()),
        format!("{there:?}, not {listed:?}"),
    )?;
    let files: Vec<PathBuf> = listed.iter().map(|name| folder().join(name)).collect();
    // A PodMonitor is a resource of Prometheus, for which Kubernetes publishes no schema.
    let (of_others, own): (Vec<PathBuf>, Vec<PathBuf>) =
        files.iter().cloned().partition(|file| file.ends_with("pod-monitor.yaml"));
    let output = checked(&own)?;
    let told = output_text(&output);
    ensure(output.status.success() && !told.contains("WARN"), &told)?;
    let manifests = documents(&files)?;
    let known = manifests.len() - documents(&of_others)?.len();
    ensure(told.matches(" passed ").count() == known, format!("{known} resources: {told}"))?;

    // The check has to find faults: manifests with a wrong field or a wrong value are refused.
    let dir = tempfile::tempdir()?;
    let wrong = dir.path().join("wrong.yaml");
    for (right, fault) in [("hostNetwork: true", "hostNet: true"), ("runAsUser: 7440", "runAsUser: cxloe")] {
        let text = fs::read_to_string(folder().join("mn-server.yaml"))?;
        ensure(text.contains(right), right)?;
        fs::write(&wrong, text.replacen(right, fault, 1))?;
        ensure(!checked(std::slice::from_ref(&wrong))?.status.success(), format!("{fault} is taken"))?;
    }
    programs_take_their_arguments(&manifests)?;
    figures_are_found(&manifests)
}

/// Each container has the capabilities that its program's file needs, and arguments that the program reads.
fn programs_take_their_arguments(manifests: &[Value]) -> Outcome {
    let settings = manifests.iter().find(|m| m["kind"] == "ConfigMap").ok_or("no settings")?;
    let mut read = BTreeSet::new();
    for manifest in manifests {
        for container in Container::of(manifest, "containers") {
            let name = container.program;
            let needed = of_the_image(name)?;
            ensure(container.capabilities() == needed, format!("{name}: the image has {needed:?}"))?;
            let arguments = container.arguments(settings)?;
            match name {
                "gmm" => a_manager_starts(&arguments)?,
                // The option `--config` is left out, because its file is written by `join` on the machine.
                _ => {
                    let file = arguments.iter().position(|argument| argument.starts_with("--config="));
                    let mut arguments = arguments.clone();
                    arguments.remove(file.ok_or_else(|| format!("{name} has no --config"))?);
                    let manager = ["--manager=https://gmm.cxloe.svc:7440", "--insecure", "--print-config"];
                    let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(manager).collect();
                    let output = run(name, &arguments, None)?;
                    ensure(output.status.success(), output_text(&output))?;
                    let options = String::from_utf8_lossy(&output.stdout).into_owned();
                    ensure(options.contains("name = \"machine0\""), options)?;
                }
            }
            read.insert(name);
        }
        for container in Container::of(manifest, "initContainers") {
            let capabilities = container.capabilities();
            let joins = words(&container.container["command"]).iter().any(|word| word.contains(" join "));
            let needed = of_the_image(container.program)?;
            ensure(!joins || capabilities == needed, format!("{capabilities:?}: the image has {needed:?}"))?;
        }
    }
    ensure(read == BTreeSet::from(["gmm", "mn-server", "cn-agent"]), format!("only {read:?}"))
}

/// Starts the manager with the manifest's arguments, in folders of this test, and asks it as `kubectl exec` would.
fn a_manager_starts(arguments: &[String]) -> Outcome {
    let lab = Lab::builder().namespace("manager").build()?;
    let dir = tempfile::tempdir()?;
    let here = dir.path().display().to_string();
    let arguments: Vec<String> =
        arguments.iter().map(|argument| argument.replace("=/", &format!("={here}/"))).collect();
    for folder in ["var/lib/cxloe", "run/cxloe"] {
        fs::create_dir_all(dir.path().join(folder))?;
    }
    let log = dir.path().join("gmm.log");
    let mut gmm = Command::new(program("gmm")?);
    Process::log_to(gmm.args(&arguments), &log)?;
    let _gmm = lab.spawn("manager", gmm)?;
    let manager = format!("unix:{here}/run/cxloe/gmm.sock");
    let answers = || run("gmm", &["--manager", &manager, "status"], None).ok().filter(|o| o.status.success());
    eventually("the manager answers", answers).map_err(|_| fs::read_to_string(&log).unwrap_or_default())?;
    Ok(())
}

/// The PodMonitor has to name labels and a port that the pods have.
fn figures_are_found(manifests: &[Value]) -> Outcome {
    let monitor = manifests.iter().find(|m| m["kind"] == "PodMonitor").ok_or("no PodMonitor")?;
    let wanted = monitor["spec"]["selector"]["matchLabels"].as_object().ok_or("it selects nothing")?;
    let job = monitor["spec"]["jobLabel"].as_str().ok_or("no label for the job")?;
    let port = &monitor["spec"]["podMetricsEndpoints"][0]["port"];
    let mut jobs = BTreeSet::new();
    for manifest in manifests.iter().filter(|manifest| manifest["spec"]["template"].is_object()) {
        let labels = &manifest["spec"]["template"]["metadata"]["labels"];
        ensure(wanted.iter().all(|(name, value)| labels[name] == *value), format!("{labels}"))?;
        jobs.insert(labels[job].as_str().unwrap_or_default());
        let [container] = &Container::of(manifest, "containers")[..] else {
            return Err(format!("{} has not one container", manifest["metadata"]["name"]).into());
        };
        let ports = container.container["ports"].as_array().ok_or("no ports")?;
        let number = ports.iter().find(|p| p["name"] == *port).ok_or("no port for metrics")?;
        let at = format!("--metrics=0.0.0.0:{}", number["containerPort"]);
        ensure(words(&container.container["args"]).contains(&at.as_str()), at)?;
    }
    // The alerts select the daemons by these names of jobs.
    ensure(jobs == BTreeSet::from(["cxloe-gmm", "cxloe-mn", "cxloe-cn"]), format!("{jobs:?}"))
}
