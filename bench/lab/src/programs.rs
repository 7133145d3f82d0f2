//! Paths of this workspace's programs, for use in a lab: `gmm`, `mn-server`, `cn-agent`, and the libraries
//! that an agent loads into the programs it serves.
//!
//! The programs are in the folder of the running program, or in the folder above if that is a test. Under Cargo they
//! are built first, all in one go like `cargo build --workspace --lib --bins`, so that a test never runs an outdated
//! daemon and nothing is compiled twice. Example programs, in a folder below, are built when the first one is asked for.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nix::unistd::{AccessFlags, access};

use crate::LabError;

/// Environment variable that scripts set after they have built the whole workspace, so that nothing is built
/// again.
const BUILT: &str = "CXLOE_BUILT";

/// Returns the path of the program `name`, built from the current source if Cargo runs this program.
///
/// # Errors
/// Returns [`LabError::Program`] when it is missing and cannot be built.
pub fn program(name: &str) -> Result<PathBuf, LabError> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    find(FOLDER.get_or_init(|| up_to_date_folder(&["--lib", "--bins"])), name)
}

/// Returns the path of the example program `name`, built from the current source if Cargo runs this program.
///
/// # Errors
/// Returns [`LabError::Program`] when it is missing and cannot be built.
pub fn example(name: &str) -> Result<PathBuf, LabError> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    find(FOLDER.get_or_init(|| Ok(up_to_date_folder(&["--examples"])?.join("examples"))), name)
}

fn find(folder: &Result<PathBuf, String>, name: &str) -> Result<PathBuf, LabError> {
    let failed = |reason: String| LabError::Program { program: name.into(), reason };
    let folder = folder.as_ref().map_err(|reason| failed(reason.clone()))?;
    let path = folder.join(name);
    if path.exists() { Ok(path) } else { Err(failed(format!("it is not in {}", folder.display()))) }
}

/// Returns Cargo's folder for programs of this profile. Builds `targets` of all crates first if Cargo has started this
/// program.
fn up_to_date_folder(targets: &[&str]) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let beside = own.parent().unwrap_or(Path::new("."));
    let is_test = beside.file_name().is_some_and(|name| name == "deps");
    let folder = if is_test { beside.parent().unwrap_or(beside) } else { beside };
    // A user who may not write to the folder cannot build. After `make test` has built everything, no build is needed:
    // a build without the tests would select other features and compile everything again.
    let writable = access(folder, AccessFlags::W_OK).is_ok();
    let built = std::env::var_os(BUILT).is_some();
    if let Some(cargo) = std::env::var_os("CARGO").filter(|_| writable && !built) {
        build(Path::new(&cargo), folder, targets)?;
    }
    Ok(folder.to_path_buf())
}

fn build(cargo: &Path, folder: &Path, targets: &[&str]) -> Result<(), String> {
    // A profile's folder has the profile's name; only `dev` has another, `debug`.
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--offline", "--workspace", "--profile", profile])
        .args(targets)
        .args(["--manifest-path", manifest, "--target-dir"])
        .arg(folder.parent().unwrap_or(folder))
        .output()
        .map_err(|e| format!("running {} failed: {e}", cargo.display()))?;
    let said = String::from_utf8_lossy(&built.stderr);
    if built.status.success() { Ok(()) } else { Err(format!("building it failed: {}", said.trim())) }
}
