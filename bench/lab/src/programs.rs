//! The programs of this workspace, for those who start them in a lab: `gmm`, `mn-server`, `cn-agent`, and
//! the libraries that agents give to programs.
//!
//! They lie where this program lies, or one folder above it when this is a test. Under Cargo they are brought up to
//! date first, all in one go as `cargo build --workspace --lib --bins` does, so that a test never meets yesterday's daemon
//! and nothing is compiled twice.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nix::unistd::{AccessFlags, access};

use crate::LabError;

/// Set by who has just built the whole workspace.
const BUILT: &str = "CXLOE_BUILT";

/// Where the program `name` is.
///
/// # Errors
/// [`LabError::Program`] when it is not there and cannot be built.
pub fn program(name: &str) -> Result<PathBuf, LabError> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let failed = |reason: String| LabError::Program { program: name.into(), reason };
    let folder = FOLDER.get_or_init(up_to_date_folder).as_ref().map_err(|reason| failed(reason.clone()))?;
    let path = folder.join(name);
    if path.exists() { Ok(path) } else { Err(failed(format!("it is not in {}", folder.display()))) }
}

/// The folder that Cargo puts programs of this profile in, built if Cargo has started this one.
fn up_to_date_folder() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let beside = own.parent().unwrap_or(Path::new("."));
    let is_test = beside.file_name().is_some_and(|name| name == "deps");
    let folder = if is_test { beside.parent().unwrap_or(beside) } else { beside };
    // As another user than the one who built everything, what is there has to do; so it has where everything was just
    // built together (`make test`), for without the tests Cargo would build it once more with other features.
    let writable = access(folder, AccessFlags::W_OK).is_ok();
    let built = std::env::var_os(BUILT).is_some();
    if let Some(cargo) = std::env::var_os("CARGO").filter(|_| writable && !built) {
        build(Path::new(&cargo), folder)?;
    }
    Ok(folder.to_path_buf())
}

fn build(cargo: &Path, folder: &Path) -> Result<(), String> {
    // The folder of a profile has its name, but for this one.
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--offline", "--workspace", "--lib", "--bins", "--profile", profile])
        .args(["--manifest-path", manifest, "--target-dir"])
        .arg(folder.parent().unwrap_or(folder))
        .output()
        .map_err(|e| format!("running {} failed: {e}", cargo.display()))?;
    let said = String::from_utf8_lossy(&built.stderr);
    if built.status.success() { Ok(()) } else { Err(format!("building it failed: {}", said.trim())) }
}
