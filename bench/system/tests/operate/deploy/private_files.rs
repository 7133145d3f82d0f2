//! Files that hold memory, keys or what a daemon remembers are their owner's alone, whatever the umask; one that is not is
//! refused, with a command that mends it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use cxloe_lab::program;
use cxloe_system::command::{output, printed};
use cxloe_system::pair::{Outcome, Pair, ensure, succeeded};

/// Regular files below `folder` and their modes, but for logs, which the test writes.
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
    // The certificate of the authority is for everybody.
    let wide: Vec<_> =
        made.iter().filter(|(path, mode)| mode & 0o077 != 0 && !path.ends_with("ca.pem")).collect();
    ensure(wide.is_empty(), format!("others may open {wide:?}"))?;

    // Once others may open them, the daemons do not start; once their command is carried out, they do.
    for name in ["agent", "mn", "gmm"] {
        rig.stop(name)?;
    }
    let (store, pool) = (rig.path("gmm.redb"), rig.path("pool"));
    let serve = format!("serve --insecure --listen 127.0.0.1:0 --store {}", store.display());
    refused_until_narrow("gmm", &serve, &store)?;
    rig.start_gmm()?;
    let data = rig.dir.path().display();
    let node = format!("--pool file:{} --pool-size 32M --data-dir {data} -i mn0 --name mn0", pool.display());
    refused_until_narrow("mn-server", &format!("{node} --insecure --manager {}", rig.manager_url()), &pool)?;
    rig.start_mn("file")
}

/// Opens `path` to others: `daemon` refuses it, and has it narrowed by the command that it prints.
fn refused_until_narrow(daemon: &str, arguments: &str, path: &Path) -> Outcome {
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))?;
    let mut bounded = Command::new("timeout");
    bounded.arg("20").arg(program(daemon)?).args(arguments.split(' '));
    let refused = output(&mut bounded)?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let command = format!("chmod 600 {}", path.display());
    ensure(!refused.status.success() && said.contains(&command), format!("{daemon}: {said}"))?;
    printed(Command::new("sh").args(["-c", &command])).map(drop)
}
