//! Versions of the programs that take part in a comparison, as exactly as the machine can tell: what a program prints,
//! the package that it comes from, and the checksums of its file and of the libraries that it is linked to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::redaction::Redaction;
use super::sum;
use crate::peer::{Peer, Tool};
use crate::stage::find;
use cxloe_lab::{Host, Process, program};

/// Maximum time for a program to print its version.
const LIMIT: Duration = Duration::from_secs(10);
/// Maximum length of a version, in characters.
const LENGTH_MAX: usize = 200;
/// Programs without an option for their version, and another one of the same package that prints it.
const ASKED_INSTEAD: [(&str, [&str; 2]); 2] =
    [("ucx_perftest", ["ucx_info", "-v"]), ("fi_pingpong", ["fi_info", "--version"])];
/// This project's programs that a trial of its own system starts.
const OWN: [&str; 2] = ["gmm", "mn-server"];

/// Program that takes part in a comparison. What the machine does not tell is `None`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramVersion {
    /// Name of the program, without its folder.
    pub program: String,
    /// Line with the version that the program prints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Package and its version, if the program comes from a Debian package.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    /// SHA-256 of the program's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub libraries: Vec<LinkedLibrary>,
}

/// Shared library that a program loads when it starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkedLibrary {
    /// Name of the file, which often contains the version.
    pub file: String,
    pub sha256: String,
}

impl ProgramVersion {
    /// Text by which two versions are told apart.
    pub fn identity(&self) -> String {
        let sum = self.sha256.as_deref().map(|sum| format!("SHA-256 {}", sum.get(..12).unwrap_or(sum)));
        let parts = [self.version.clone(), self.package.clone(), sum];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// Versions of all programs of these peers, and of this one. Programs are asked for their versions; their output goes
/// to a file in `folder`.
pub fn versions(peers: &[&dyn Peer], folder: &Path, redaction: &Redaction) -> Vec<ProgramVersion> {
    let asking = Asking { host: Host::default(), log: folder.join("version.log"), redaction };
    let own = std::env::current_exe().ok();
    let mut all: Vec<ProgramVersion> = own.into_iter().map(|path| asking.own("cxloe-bench", path)).collect();
    if peers.iter().any(|peer| peer.name().starts_with("cxloe")) {
        all.extend(OWN.iter().filter_map(|name| Some(asking.own(name, program(name).ok()?))));
    }
    let mut tools: Vec<&Tool> = peers.iter().flat_map(|peer| peer.tools()).collect();
    tools.sort_by_key(|tool| tool.program);
    tools.dedup_by_key(|tool| tool.program);
    all.extend(tools.into_iter().map(|tool| asking.tool(tool)));
    let _ = fs::remove_file(&asking.log);
    all
}

/// Way to ask programs.
struct Asking<'a> {
    host: Host,
    /// File for the output of the program asked last.
    log: PathBuf,
    redaction: &'a Redaction,
}

impl Asking<'_> {
    /// Version of a program of this project.
    fn own(&self, name: &str, path: PathBuf) -> ProgramVersion {
        let version = self.printed(&path, &["--version"]);
        self.described(name, version, None, Some(path))
    }

    /// Version of a program of another project.
    fn tool(&self, tool: &Tool) -> ProgramVersion {
        let instead = ASKED_INSTEAD.iter().find(|(program, _)| *program == tool.program);
        let [asked, option] = instead.map_or([tool.program, "--version"], |(_, words)| *words);
        let version = find(asked).and_then(|path| self.printed(&path, &[option]));
        let query = ["-W", "-f=${Package} ${Version}\n", tool.package];
        let package = self.printed(Path::new("dpkg-query"), &query);
        let package = package.filter(|line| line.starts_with(&format!("{} ", tool.package)));
        self.described(tool.program, version, package, find(tool.program))
    }

    fn described(
        &self,
        name: &str,
        version: Option<String>,
        package: Option<String>,
        path: Option<PathBuf>,
    ) -> ProgramVersion {
        let content = path.as_deref().and_then(|path| fs::read(path).ok());
        ProgramVersion {
            program: name.to_owned(),
            version: version.map(|line| self.redaction.text(&line)),
            package,
            sha256: content.map(|content| sum(&content)),
            libraries: path.map(|path| self.libraries(&path)).unwrap_or_default(),
        }
    }

    /// First line with a digit that a program prints, whatever its exit status: some call it a failure to be asked for
    /// their version. `None` if the program does not end.
    fn printed(&self, program: &Path, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new(program);
        command.args(arguments);
        let text = self.output(command)?;
        let line = text.lines().find(|line| line.chars().any(|c| c.is_ascii_digit()))?;
        let line = line.trim_start_matches('#').trim();
        Some(line.chars().take(LENGTH_MAX).collect())
    }

    fn output(&self, mut command: Command) -> Option<String> {
        command.env("LC_ALL", "C").env("NO_COLOR", "1");
        Process::log_to(&mut command, &self.log).ok()?;
        let mut process = self.host.spawn(command).ok()?;
        process.wait(LIMIT).ok()?;
        Some(String::from_utf8_lossy(&fs::read(&self.log).ok()?).into_owned())
    }

    fn libraries(&self, path: &Path) -> Vec<LinkedLibrary> {
        let mut list = Command::new("ldd");
        list.arg(path);
        let text = self.output(list).unwrap_or_default();
        let library = |path: &str| {
            // The path is a link to a file whose name often has more of the version.
            let path = fs::canonicalize(path).ok()?;
            let file = path.file_name()?.to_string_lossy().into_owned();
            Some(LinkedLibrary { file, sha256: sum(&fs::read(path).ok()?) })
        };
        text.lines().filter_map(library_path).filter_map(library).collect()
    }
}

/// Path in a line of `ldd`: `libc.so.6 => /lib/libc.so.6 (0x…)` or `/lib64/ld-linux.so.2 (0x…)`.
fn library_path(line: &str) -> Option<&str> {
    let after = line.split_once("=> ").map_or(line.trim(), |(_, path)| path);
    after.split(" (").next().filter(|path| path.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_libraries_are_found() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\tlibgone.so => not found\n";
        let paths: Vec<&str> = text.lines().filter_map(library_path).collect();
        assert_eq!(paths, ["/lib/x/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
    }

    #[test]
    fn a_program_is_known_by_version_checksum_and_libraries() {
        let folder = tempfile::tempdir().unwrap();
        let redaction = Redaction::of(folder.path(), "", &[]);
        let asking = Asking { host: Host::default(), log: folder.path().join("log"), redaction: &redaction };
        let tool = asking.tool(&Tool { program: "tar", package: "tar" });
        let (version, sum) = (tool.version.clone().unwrap(), tool.sha256.clone().unwrap());
        assert!(version.contains("tar"), "{tool:?}");
        assert!(sum.len() == 64 && tool.identity().contains(&sum[..12]), "{tool:?}");
        assert!(tool.libraries.iter().any(|library| library.file.starts_with("libc")), "{tool:?}");
        let absent = asking.tool(&Tool { program: "no-such-program", package: "no-such-package" });
        assert_eq!((absent.version, absent.package, absent.sha256), (None, None, None));
    }

    #[test]
    fn a_version_is_asked_of_another_program_where_it_has_to_be() {
        let asked = |program: &str| {
            ASKED_INSTEAD.iter().find(|(name, _)| *name == program).map(|(_, words)| words[0])
        };
        assert_eq!([asked("ucx_perftest"), asked("redis-server")], [Some("ucx_info"), None]);
    }
}
