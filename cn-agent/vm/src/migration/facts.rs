//! Facts of a machine that have to be equal at the source and the target of a move: QEMU's version, the
//! machine type, the CPU model, the backends of memory.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::qmp::{Qmp, QmpError};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryBackend {
    /// QEMU's name of the backend.
    pub id: String,
    /// Size of the backend in bytes.
    pub bytes: u64,
    pub shared: bool,
}

/// Facts of a machine, as QEMU reports them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineFacts {
    pub qemu: String,
    /// Machine type with its version, as `pc-q35-7.2-machine`.
    pub machine: String,
    /// CPU model, as `qemu64-x86_64-cpu`.
    pub cpu: String,
    pub cpus: usize,
    pub memory: Vec<MemoryBackend>,
    /// Reasons why this machine cannot move at all.
    pub obstacles: Vec<String>,
}

impl MachineFacts {
    /// Asks QEMU for the facts of its machine.
    pub fn ask(qmp: &mut Qmp) -> Result<MachineFacts, QmpError> {
        let version = qmp.execute("query-version", json!({}))?;
        let number = |part: &str| version["qemu"][part].as_u64().unwrap_or(0);
        let qemu = format!("{}.{}.{}", number("major"), number("minor"), number("micro"));
        let machine = qmp.execute("qom-get", json!({ "path": "/machine", "property": "type" }))?;
        let cpus = qmp.execute("query-cpus-fast", json!({}))?;
        let first = cpus[0]["qom-path"].as_str().unwrap_or_default().to_owned();
        let cpu = qmp.execute("qom-get", json!({ "path": first, "property": "type" }))?;
        let memory = qmp.execute("query-memdev", json!({}))?;
        let capabilities = qmp.execute("query-migrate-capabilities", json!({}))?;
        let devices = qmp.execute("query-memory-devices", json!({}))?;
        Ok(MachineFacts {
            qemu,
            machine: text(&machine),
            cpu: text(&cpu),
            cpus: list(&cpus).count(),
            memory: list(&memory).map(backend).collect(),
            obstacles: obstacles(&capabilities, &devices),
        })
    }

    /// Reasons why a machine with these facts, and a region of `bytes` bytes, cannot continue as the machine
    /// `there`; empty if it can.
    pub fn differences(&self, there: &MachineFacts, bytes: u64) -> Vec<String> {
        let mut reasons = self.obstacles.clone();
        let mut compare = |what: &str, here: &str, there: &str| {
            if here != there {
                reasons.push(format!("{what} is {here} here and {there} there"));
            }
        };
        compare("QEMU's version", &self.qemu, &there.qemu);
        compare("the machine type", &self.machine, &there.machine);
        compare("the CPU model", &self.cpu, &there.cpu);
        compare("the number of vCPUs", &self.cpus.to_string(), &there.cpus.to_string());
        let show = |memory: &[MemoryBackend]| {
            let parts = memory.iter().map(|part| {
                let kind = if part.shared { "shared" } else { "private" };
                format!("{} ({} bytes, {kind})", part.id, part.bytes)
            });
            parts.collect::<Vec<_>>().join(", ")
        };
        compare("guest memory", &show(&self.memory), &show(&there.memory));
        if !self.memory.iter().any(|part| part.shared && part.bytes == bytes) {
            reasons.push(format!("no shared backend of guest memory has the region's {bytes} bytes"));
        }
        reasons
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn backend(value: &Value) -> MemoryBackend {
    MemoryBackend {
        id: text(&value["id"]),
        bytes: value["size"].as_u64().unwrap_or(0),
        shared: value["share"].as_bool().unwrap_or(false),
    }
}

fn obstacles(capabilities: &Value, devices: &Value) -> Vec<String> {
    let mut reasons = Vec::new();
    let is_on = |capability: &&Value| {
        capability["capability"] == "postcopy-ram" && capability["state"].as_bool() == Some(true)
    };
    if list(capabilities).any(|capability| is_on(&capability)) {
        reasons
            .push("the capability postcopy-ram is on, which excludes the move of shared memory".to_owned());
    }
    if list(devices).any(|device| device["type"] == "virtio-mem") {
        reasons.push("it has a virtio-mem device, whose memory does not go along".to_owned());
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> MachineFacts {
        let ram = MemoryBackend { id: "ram".into(), bytes: 1 << 29, shared: true };
        MachineFacts {
            qemu: "7.2.22".into(),
            machine: "pc-q35-7.2-machine".into(),
            cpu: "qemu64-x86_64-cpu".into(),
            cpus: 2,
            memory: vec![ram],
            obstacles: Vec::new(),
        }
    }

    #[test]
    fn each_difference_is_named() {
        assert_eq!(facts().differences(&facts(), 1 << 29), [""; 0]);
        let there = MachineFacts { qemu: "8.1.0".into(), cpus: 4, memory: Vec::new(), ..facts() };
        let reasons = facts().differences(&there, 1 << 29);
        assert_eq!(reasons.len(), 3, "{reasons:?}");
        assert_eq!(reasons[0], "QEMU's version is 7.2.22 here and 8.1.0 there");
        let reasons = facts().differences(&facts(), 1 << 30);
        assert_eq!(reasons, ["no shared backend of guest memory has the region's 1073741824 bytes"]);
    }

    #[test]
    fn obstacles_are_found() {
        let capabilities = json!([
            { "capability": "postcopy-ram", "state": true },
            { "capability": "events", "state": false },
        ]);
        assert_eq!(obstacles(&capabilities, &json!([{ "type": "virtio-mem", "data": {} }])).len(), 2);
        assert_eq!(obstacles(&json!([]), &json!([{ "type": "dimm" }])).len(), 0);
    }
}
