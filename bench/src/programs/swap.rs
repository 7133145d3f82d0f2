//! Areas that the kernel swaps to, taken away again when this is dropped.
//!
//! An area has the highest priority, so that nothing goes to other swap of the machine. What a process that was killed has
//! left behind is found by its name and taken away at the next start.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::{ProgramsError, tail};
use crate::compare::stage::find;

/// Names of our files of swap begin so.
const NAME: &str = "cxloe-programs-";
/// The highest priority there is.
const PRIORITY: &str = "32767";
/// Where compressed devices are asked for.
const ZRAM: &str = "/sys/class/zram-control";

/// What is below an area.
#[derive(Debug)]
enum Ground {
    File,
    Zram(u32),
    /// Somebody else's device.
    Device,
}

/// An area in use.
#[derive(Debug)]
pub(super) struct Swap {
    path: PathBuf,
    ground: Ground,
    on: bool,
}

impl Swap {
    /// A file of so many bytes in `folder`.
    pub fn file(folder: &Path, bytes: u64) -> Result<Swap, ProgramsError> {
        let path = folder.join(format!("{NAME}{}.swap", std::process::id()));
        let file = fs::File::create(&path);
        let swap = Swap { path, ground: Ground::File, on: false };
        let failed = || ProgramsError::io(format!("making {}", swap.path.display()));
        let file = file.map_err(failed())?;
        file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(failed())?;
        // Without holes, which the kernel would refuse.
        let whole = i64::try_from(bytes).unwrap_or(i64::MAX);
        nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, whole)
            .map_err(|error| failed()(error.into()))?;
        swap.started()
    }

    /// Compressed memory for so many bytes.
    pub fn zram(bytes: u64) -> Result<Swap, ProgramsError> {
        let failed = || ProgramsError::io("making a compressed device (zram)");
        let number = fs::read_to_string(format!("{ZRAM}/hot_add")).map_err(failed())?;
        let number: u32 =
            number.trim().parse().map_err(|_| failed()(std::io::ErrorKind::InvalidData.into()))?;
        let swap = Swap {
            path: PathBuf::from(format!("/dev/zram{number}")),
            ground: Ground::Zram(number),
            on: false,
        };
        fs::write(format!("/sys/block/zram{number}/disksize"), bytes.to_string()).map_err(failed())?;
        swap.started()
    }

    /// A block device that is there.
    pub fn device(path: PathBuf) -> Result<Swap, ProgramsError> {
        Swap { path, ground: Ground::Device, on: false }.started()
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
            Ground::File => drop(fs::remove_file(&self.path)),
            Ground::Zram(number) => drop(fs::write(format!("{ZRAM}/hot_remove"), number.to_string())),
            Ground::Device => {}
        }
    }
}

/// Takes away what earlier runs could not: files of swap in `folder` whose process has ended.
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

/// Whether a file of this name is of a run that has ended.
fn is_forgotten(name: &str, runs: impl Fn(u32) -> bool) -> bool {
    let pid = name.strip_prefix(NAME).and_then(|rest| rest.strip_suffix(".swap"));
    pid.and_then(|pid| pid.parse().ok()).is_some_and(|pid| !runs(pid))
}

fn tool(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|| name.into())
}

/// Runs a command that readies or restores something.
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
    fn a_command_that_fails_is_told_with_what_it_said() {
        let error = run(Command::new("sh").args(["-c", "echo no such area >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("no such area"), "{error}");
        assert!(run(&mut Command::new("true")).is_ok());
    }
}
