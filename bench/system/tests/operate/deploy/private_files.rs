//! Files with memory, keys or a daemon's state are accessible to their owner only, whatever the umask. A daemon refuses
//! a file with another mode, and prints a command that corrects the mode.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use cxloe_lab::program;
use cxloe_system::command::{output, printed};
use cxloe_system::pair::{Outcome, Pair, ensure, succeeded};

/// Regular files below `folder` with their modes, except logs, which the test itself makes.
fn files(folder: &Path) -> Outcome<Vec<(PathBuf, u32)>> {
    let (mut folders, mut found) = (vec![folder.to_path_buf()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (path, metadata) = (entry.path(), entry.metadata()?);
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_file() && path.extension().is_none_or(|end| end != "log") {
                found.push((path, metadata.mode() & 0o777));
            }
        }
    }
    Ok(found)
}

pub fn what_daemons_write_is_their_owners() -> Outcome {
    let rig = Pair::with_region("file", &[])?;
    succeeded(rig.cli(&["write", "scratch", "--text", "hello", "--flush"])?)?;
    rig.gmm(&["backup", &rig.path("backup").display().to_string()])?;
    let made = files(rig.dir.path())?;
    for name in ["pool", "gmm.redb", "backup"] {
        ensure(made.iter().any(|(path, _)| path.ends_with(name)), format!("{name} is missing in {made:?}"))?;
    }
    ensure(made.iter().any(|(path, _)| path.extension().is_some_and(|end| end == "state")), "no state file")?;
    // The certificate of the manager's authority is public.
    let wide: Vec<_> =
        made.iter().filter(|(path, mode)| mode & 0o077 != 0 && !path.ends_with("ca.pem")).collect();
    ensure(wide.is_empty(), format!("others may open {wide:?}"))?;

    // Daemons do not start if others may open their files; after the printed command they start.
    for name in ["agent", "mn", "gmm"] {
        rig.stop(name)?;
    }
    let (store, pool) = (rig.path("gmm.redb"), rig.path("pool"));
    let serve = format!("serve --insecure --listen 127.0.0.1:0 --store {}", store.display());
    refused_until_narrow("gmm", &serve, &store)?;
    rig.start_gmm()?;
    let data = rig.dir.path().display();
    let node = format!("--pool file:{} --pool-size 32M --data-dir {data} -i mn0 --name mn0", pool.display());
    let node = format!("{node} --insecure --manager {}", rig.manager_url());
    // The node has to run in the namespace of its interface.
    rig.lab.enter("mn", || refused_until_narrow("mn-server", &node, &pool))??;
    rig.start_mn("file")
}

/// Gives `path` a mode with which other users may read it. `daemon` has to refuse the file, and to print a command that
/// corrects the mode.
fn refused_until_narrow(daemon: &str, arguments: &str, path: &Path) -> Outcome {
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))?;
    let mut bounded = Command::new("timeout");
    bounded.arg("20").arg(program(daemon)?).args(arguments.split(' '));
    let refused = output(&mut bounded)?;
    let output_text = String::from_utf8_lossy(&refused.stderr).into_owned();
    let command = format!("chmod 600 {}", path.display());
    ensure(!refused.status.success() && output_text.contains(&command), format!("{daemon}: {output_text}"))?;
    printed(Command::new("sh").args(["-c", &command])).map(drop)
}
