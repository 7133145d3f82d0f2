//! Logs for programs: with `--log-format json` every line is an object, and what happened carries its peer, region and
//! cause as fields, not only in words.

use serde_json::Value;

use crate::fabric::rig;
use crate::rig::*;

pub fn logs_are_json_with_fields() -> Outcome {
    let rig = rig()?;
    let (port, _) = rig.written(3)?;
    drop(port);
    // A memory node logs what happened to its sessions twice a second.
    let log = rig.path("mn-server.2.log");
    eventually("the memory node logs its session", || saying(&log, "session started"))?;
    rig.kill(&rig.mn)?;
    rig.attached("scratch", "degraded")?;
    rig.stop(&rig.agent)?;
    rig.stop(&rig.gmm)?;
    let mut lines: Vec<(String, Value)> = Vec::new();
    for entry in std::fs::read_dir(rig.dir.path())? {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != "log") {
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for line in std::fs::read_to_string(&path)?.lines() {
            let object: Value = serde_json::from_str(line).map_err(|e| format!("{name}: {e}: {line}"))?;
            for field in ["timestamp", "level", "target"] {
                ensure(object[field].is_string(), format!("{name}: no {field}: {line}"))?;
            }
            ensure(object["fields"]["message"].is_string(), format!("{name}: no message: {line}"))?;
            lines.push((name.clone(), object["fields"].clone()));
        }
    }
    for (daemon, message, field, value) in [
        ("cn-agent", "session open", "peer", MN),
        ("cn-agent", "region attached", "region", "scratch"),
        ("mn-server", "session started", "peer", CN),
        ("gmm", "memory_node_unreachable", "memory_node", "mn0"),
        ("gmm", "region", "region", "scratch"),
    ] {
        let is = |(name, fields): &&(String, Value)| {
            let said = fields["message"].as_str().is_some_and(|said| said.contains(message));
            name.starts_with(daemon) && said && fields[field] == value
        };
        ensure(
            lines.iter().any(|line| is(&line)),
            format!("{daemon}: no {message} with {field} = {value}: {lines:?}"),
        )?;
    }
    Ok(())
}
