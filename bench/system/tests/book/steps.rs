//! The first steps, taken: the shell blocks of that page, one after the other in one shell, on a machine of their own.
//!
//! An ordinary user gets a user namespace for it, in which an agent may not follow forks: the step with `cn-agent exec` is
//! root's.
//!
//! That machine is this one with network, mounts and processes of its own, so that all of it is gone when the shell ends,
//! however it ends. What nodes keep and where they meet lies in memory.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::page::Page;
use crate::tree;

/// What the machine needs before the first step. The page is followed from an empty folder.
const BEFORE: &str = "set -eu
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
ip link set lo up
cd /run
";
/// A bound on all of it; it takes some fifteen seconds.
const LIMIT_S: &str = "180";

/// Runs the steps of a page.
pub fn run(page: &Page) {
    let root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let blocks = page.blocks().into_iter().filter(|block| block.language == "sh");
    let blocks =
        blocks.filter(|block| root || !block.lines.iter().any(|line| line.text.contains("cn-agent exec")));
    let steps: Vec<String> = blocks.flat_map(|block| block.lines).map(|line| line.text).collect();
    assert!(steps.len() > 10, "{} has no steps", page.path.display());
    let script = format!("{BEFORE}set -x\n{}\n", steps.join("\n"));
    let programs = tree::programs("gmm")[0].parent().expect("a program is in a folder").to_path_buf();
    // Of one build with the others: the test of a workspace builds them all.
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
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {}\n{said}", page.path.display(), output.status);
    // What the page shows has to come.
    assert!(said.contains("|hello, remote me|"), "{said}");
}
