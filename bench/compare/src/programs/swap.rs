//! Swap areas, removed on drop.
//!
//! An area has the highest priority, so that no page goes to other swap of the machine. Leftovers of a killed process
//! are found by their name and removed at the next start.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::{ProgramsError, tail};
use crate::stage::find;

/// Prefix of the swap files' names.
const NAME: &str = "cxloe-programs-";
/// Highest priority that Linux has for a swap area.
const PRIORITY: &str = "32767";
/// Folder in `/sys` by which compressed devices are allocated.
const ZRAM: &str = "/sys/class/zram-control";

/// Storage under a swap area, to be removed with it.
#[derive(Debug)]
enum SwapStorage {
    File,
    Zram(u32),
    /// Block device that exists independently of the swap area.
    Device,
}

/// Swap area in use; switched off on drop.
#[derive(Debug)]
pub(super) struct Swap {
    path: PathBuf,
    ground: SwapStorage,
    on: bool,
}

impl Swap {
    /// Swaps to a new file of `bytes` bytes in `folder`.
    pub fn file(folder: &Path, bytes: u64) -> Result<Swap, ProgramsError> {
        let path = folder.join(format!("{NAME}{}.swap", std::process::id()));
        let file = fs::File::create(&path);
        let swap = Swap { path, ground: SwapStorage::File, on: false };
        let failed = || ProgramsError::io(format!("making {}", swap.path.display()));
        let file = file.map_err(failed())?;
        file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(failed())?;
        // The kernel refuses swap files with holes.
        let whole = i64::try_from(bytes).unwrap_or(i64::MAX);
        nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, whole)
            .map_err(|error| failed()(error.into()))?;
        swap.started()
    }

    /// Swaps to a new compressed memory device of `bytes` bytes.
    pub fn zram(bytes: u64) -> Result<Swap, ProgramsError> {
        let failed = || ProgramsError::io("making a compressed device (zram)");
        let number = fs::read_to_string(format!("{ZRAM}/hot_add")).map_err(failed())?;
        let number: u32 =
            number.trim().parse().map_err(|_| failed()(std::io::ErrorKind::InvalidData.into()))?;
        let swap = Swap {
            path: PathBuf::from(format!("/dev/zram{number}")),
            ground: SwapStorage::Zram(number),
            on: false,
        };
        fs::write(format!("/sys/block/zram{number}/disksize"), bytes.to_string()).map_err(failed())?;
        swap.started()
    }

    /// Swaps to an existing block device.
    pub fn device(path: PathBuf) -> Result<Swap, ProgramsError> {
        Swap { path, ground: SwapStorage::Device, on: false }.started()
    }

    fn started(mut self) -> Result<Swap, ProgramsError> {
        let path = self.path.as_os_str().to_owned();
        run(Command::new(tool("mkswap")).arg(&path))?;
        run(Command::new(tool("swapon")).args(["--priority", PRIORITY]).arg(&path))?;
        self.on = true;
        Ok(self)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        if self.on {
            let _ = run(Command::new(tool("swapoff")).arg(&self.path));
        }
        match self.ground {
            SwapStorage::File => drop(fs::remove_file(&self.path)),
            SwapStorage::Zram(number) => drop(fs::write(format!("{ZRAM}/hot_remove"), number.to_string())),
            SwapStorage::Device => {}
        }
    }
}

/// Removes what killed runs have left: swap files in `folder` whose process has ended.
pub fn restore_forgotten(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name
            .to_str()
            .is_some_and(|name| is_forgotten(name, |pid| Path::new(&format!("/proc/{pid}")).exists()))
        {
            let _ = run(Command::new(tool("swapoff")).arg(entry.path()));
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// True if `name` is that of a swap file whose process has ended.
fn is_forgotten(name: &str, runs: impl Fn(u32) -> bool) -> bool {
    let pid = name.strip_prefix(NAME).and_then(|rest| rest.strip_suffix(".swap"));
    pid.and_then(|pid| pid.parse().ok()).is_some_and(|pid| !runs(pid))
}

fn tool(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|| name.into())
}

/// Runs a command that prepares or restores something.
pub(super) fn run(command: &mut Command) -> Result<(), ProgramsError> {
    let words = || {
        let all = [command.get_program()].into_iter().chain(command.get_args());
        all.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    };
    let words = words();
    let output = command.output().map_err(ProgramsError::io(format!("running `{words}`")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = tail(&String::from_utf8_lossy(&output.stderr));
    Err(ProgramsError::Command { command: words, status: output.status.to_string(), said })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_runs_that_have_ended_are_forgotten() {
        let runs = |pid| pid == 7;
        assert!(is_forgotten("cxloe-programs-8.swap", runs));
        for name in ["cxloe-programs-7.swap", "cxloe-programs-x.swap", "swapfile", "cxloe-programs-8"] {
            assert!(!is_forgotten(name, runs), "{name}");
        }
    }

    #[test]
    fn a_failed_command_is_reported_with_its_output() {
        let error = run(Command::new("sh").args(["-c", "echo no such area >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("no such area"), "{error}");
        assert!(run(&mut Command::new("true")).is_ok());
    }
}
