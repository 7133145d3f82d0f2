//! The programs of this workspace, for those who start them in a lab: `gmm`, `mn-server`, `cn-agent`.
//!
//! They lie where this program lies, or one folder above it when this is a test. Under Cargo they are brought up to
//! date first, so that a test never meets yesterday's daemon.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::LabError;

/// Each program and its package.
const PROGRAMS: [(&str, &str); 3] =
    [("gmm", "cxloe-gmm"), ("mn-server", "cxloe-mn"), ("cn-agent", "cxloe-cn")];

/// The programs found so far.
static FOUND: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());

/// Where the program `name` is.
///
/// # Errors
/// [`LabError::Program`] when it is not there and cannot be built.
pub fn program(name: &str) -> Result<PathBuf, LabError> {
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = found.get(name) {
        return Ok(path.clone());
    }
    let failed = |reason: String| LabError::Program { program: name.into(), reason };
    let folder = folder().map_err(|e| failed(e.to_string()))?;
    if let Some(cargo) = std::env::var_os("CARGO") {
        build(name, Path::new(&cargo), &folder).map_err(failed)?;
    }
    let path = folder.join(name);
    if !path.exists() {
        return Err(failed(format!("it is not in {}", folder.display())));
    }
    found.insert(name.into(), path.clone());
    Ok(path)
}

/// The folder that Cargo puts programs of this profile in.
fn folder() -> std::io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().unwrap_or(Path::new("."));
    let is_test = folder.file_name().is_some_and(|name| name == "deps");
    Ok(if is_test { folder.parent().unwrap_or(folder) } else { folder }.to_path_buf())
}

fn build(name: &str, cargo: &Path, folder: &Path) -> Result<(), String> {
    let package = PROGRAMS.iter().find(|(program, _)| *program == name).map(|(_, package)| package);
    let package = package.ok_or_else(|| "no package of this workspace makes it".to_owned())?;
    // The folder of a profile has its name, but for this one.
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let target = folder.parent().unwrap_or(folder);
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--offline", "--package", package, "--bin", name, "--profile", profile])
        .args(["--manifest-path", manifest, "--target-dir"])
        .arg(target)
        .output()
        .map_err(|e| format!("running {} failed: {e}", cargo.display()))?;
    if built.status.success() {
        return Ok(());
    }
    // As another user than the one who built everything, what is there has to do.
    let writable = nix::unistd::access(folder, nix::unistd::AccessFlags::W_OK).is_ok();
    if !writable && folder.join(name).exists() {
        return Ok(());
    }
    Err(format!("building it failed: {}", String::from_utf8_lossy(&built.stderr).trim()))
}
