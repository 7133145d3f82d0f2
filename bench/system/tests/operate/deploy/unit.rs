//! The systemd units in the source tree: their security rating by systemd, and the rights that they give to daemons.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cxloe_lab::program;

use cxloe_system::pair::{Outcome, ensure, succeeded};

/// Root folder of the source tree.
pub fn source() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Name of each unit, its program, and the highest permitted exposure level of `systemd-analyze security`, times ten.
pub const UNITS: [(&str, &str, u32); 4] = [
    ("gmm", "gmm", 15),
    ("mn-server", "mn-server", 25),
    ("mn-server@", "mn-server", 25),
    ("cn-agent", "cn-agent", 30),
];

/// Text of a unit file.
pub struct Unit(String);

impl Unit {
    pub fn read(name: &str) -> Outcome<Unit> {
        Ok(Unit(fs::read_to_string(source().join(format!("deploy/systemd/{name}.service")))?))
    }

    /// Values assigned to a setting, in order.
    pub fn values<'u>(&'u self, setting: &'u str) -> impl Iterator<Item = &'u str> + 'u {
        self.0.lines().filter_map(move |line| line.strip_prefix(setting)?.strip_prefix('='))
    }

    /// Capabilities of the unit's daemon, as `setpriv` spells them.
    pub fn capabilities(&self) -> Vec<String> {
        let names = self.values("CapabilityBoundingSet").flat_map(str::split_whitespace);
        names.map(|name| name.trim_start_matches("CAP_").to_lowercase()).collect()
    }
}

/// Copies the units to `folder`, with the programs of this build in their command lines; returns paths and exposure
/// levels.
fn startable(folder: &Path) -> Outcome<Vec<(PathBuf, u32)>> {
    let copy = |(name, daemon, limit): (&str, &str, u32)| {
        let Unit(text) = Unit::read(name)?;
        let built = program(daemon)?;
        let path = folder.join(format!("{name}.service"));
        fs::write(&path, text.replace(&format!("/usr/bin/{daemon}"), &built.display().to_string()))?;
        Ok((path, limit))
    };
    UNITS.into_iter().map(copy).collect()
}

pub fn units_are_ones_that_systemd_takes() -> Outcome {
    let dir = tempfile::tempdir()?;
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=one"]);
    for (path, _) in startable(dir.path())? {
        // A template is verified as one of its instances.
        let instance = PathBuf::from(path.display().to_string().replace("@.", "@enp3s0f0."));
        if instance != path {
            fs::copy(&path, &instance)?;
        }
        verify.arg(&instance);
    }
    let output = verify.output()?;
    let output_text = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.success(), format!("{}: {output_text}", output.status))?;
    // The command succeeds even if a unit has unknown settings; it only prints a warning.
    let ours: Vec<&str> = output_text
        .lines()
        .filter(|line| line.contains("gmm") || line.contains("mn-") || line.contains("cn-"))
        .collect();
    ensure(ours.is_empty(), format!("{ours:?}"))
}

pub fn units_expose_little() -> Outcome {
    let dir = tempfile::tempdir()?;
    for (path, limit) in startable(dir.path())? {
        let threshold = format!("--threshold={limit}");
        let mut judged = Command::new("systemd-analyze");
        judged.args(["security", "--offline=true", "--no-pager", &threshold]).arg(&path);
        let output = judged.output()?;
        let output_text = String::from_utf8_lossy(&output.stdout);
        let overall = output_text.lines().last().unwrap_or_default();
        ensure(output.status.success(), format!("{}: {overall}\n{output_text}", path.display()))?;
        ensure(overall.contains("exposure level"), format!("not judged: {output_text}"))?;
    }
    Ok(())
}

/// The daemons accept the shipped configuration files, to which the units refer, with every option that is commented
/// out there.
pub fn shipped_configuration_is_read() -> Outcome {
    let dir = tempfile::tempdir()?;
    for (daemon, arguments) in [("mn-server", &["run"][..]), ("cn-agent", &["run"])] {
        let Unit(unit) = Unit::read(daemon)?;
        let shipped = fs::read_to_string(source().join(format!("deploy/config/{daemon}.toml")))?;
        ensure(unit.contains(&format!("--config /etc/cxloe/{daemon}.toml")), "the unit reads another file")?;
        let path = dir.path().join(format!("{daemon}.toml"));
        // Options that are commented out in the shipped file are activated; all of them have to be valid.
        let lines = shipped.lines().map(|line| match line.strip_prefix('#') {
            Some(option) if !option.starts_with(' ') && option.contains(" = ") => option,
            _ => line,
        });
        fs::write(&path, lines.collect::<Vec<_>>().join("\n"))?;
        let mut read = Command::new(program(daemon)?);
        read.args(arguments).arg("--config").arg(&path).arg("--print-config");
        let options = succeeded(read.output()?)?;
        for option in
            ["interface = \"enp3s0f0\"", "key-file = \"/etc/cxloe/key\"", "priority = 3", "wait = \"busy\""]
        {
            ensure(options.contains(option), format!("{daemon}: no {option} in\n{options}"))?;
        }
    }
    Ok(())
}
