//! Execution of the first steps: the shell blocks of a page run one after the other in one shell, in isolated
//! namespaces.
//!
//! For an ordinary user they run in a user namespace, in which an agent may not follow forks: the step with `cn-agent
//! exec` requires root.
//!
//! The network, mount and PID namespaces are removed when the shell ends. The nodes' data and sockets are in memory.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::page::Page;
use crate::tree;

/// Commands that prepare the namespaces before the first step. The page starts in an empty folder.
const BEFORE: &str = "set -eu
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
ip link set lo up
cd /run
";
/// Limit on the whole run, in seconds; a run takes about fifteen seconds.
const LIMIT_S: &str = "180";

/// Runs the shell blocks of a page.
pub fn run(page: &Page) {
    let root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let blocks = page.blocks().into_iter().filter(|block| block.language == "sh");
    let blocks =
        blocks.filter(|block| root || !block.lines.iter().any(|line| line.text.contains("cn-agent exec")));
    let steps: Vec<String> = blocks.flat_map(|block| block.lines).map(|line| line.text).collect();
    assert!(steps.len() > 10, "{} has no steps", page.path.display());
    let script = format!("{BEFORE}set -x\n{}\n", steps.join("\n"));
    let programs = tree::programs("gmm")[0].parent().expect("a program is in a folder").to_path_buf();
    // All programs must come from the same build; a test run of the workspace builds all of them.
    for name in ["mn-server", "cn-agent"] {
        assert!(tree::programs(name)[0].starts_with(&programs));
    }
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let output = Command::new("timeout")
        .args(["--kill-after=5", LIMIT_S, "unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc"])
        .arg("--kill-child")
        .args(if root { &[][..] } else { &["--user", "--map-root-user"] })
        .args(["bash", "-c", &script])
        .env("PATH", path)
        .env_remove("CXLOE_MANAGER")
        .output()
        .expect("timeout and unshare");
    let output_text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {}\n{output_text}", page.path.display(), output.status);
    // The page shows this line as the expected output.
    assert!(output_text.contains("|hello, remote me|"), "{output_text}");
}
