//! NVMe over TCP, by the kernel at both ends: its target in the far namespace, with a file in memory behind it, and its
//! host in the near one, whose block device is mapped as an unmodified program would use it.
//!
//! ```text
//!   load from the mapping -> page fault -> nvme-tcp -> TCP -> nvmet-tcp -> file in memory
//! ```
//!
//! The kernel opens its sockets in the namespace of the thread that writes the configuration.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};

use super::error::PeerError;
use super::mapped::Mapped;
use super::measured::Measured;
use super::peer::{Facts, Peer};
use super::plan::Plan;
use super::site::Site;
use super::stage::{FAR, FAR_ADDRESS, Stage};
use super::store::drive;
use cxloe_lab::{Lab, LabPrivilege};

const PORT: u16 = 4420;
/// Name of the target's subsystem, by which the host asks for it.
const NQN: &str = "nqn.2026-11.org.example:cxloe-compare";
/// Number of the target's port in its configuration; another one than people give by hand.
const ENTRY: &str = "7421";
/// File by which the host is told to connect.
const FABRICS: &str = "/dev/nvme-fabrics";
const TARGET_MODULE: &str = "/sys/module/nvmet_tcp";
/// Folder of files in memory.
const IN_MEMORY: &str = "/dev/shm";
/// Maximum time from the connection until the block device is there.
const READY: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);

pub struct Nvme;

impl Peer for Nvme {
    fn name(&self) -> &'static str {
        "nvme-tcp"
    }

    fn facts(&self) -> Facts {
        Facts {
            what: "the kernel's NVMe over TCP at both ends, a file in memory behind it, the block device mapped",
            waits: "the thread that touches a page sleeps until the kernel has it; the target works in the kernel",
            copies: "target's page cache, socket buffers, the host's page cache; a load needs none further",
            verified: "every byte read",
            figures: "read64 and read4k: first touch of a page, which comes whole, so that lines in order mostly find theirs; \
                      many in flight: the kernel is asked for them ahead (madvise); loads: one at a time; write64: \
                      store and msync, which moves a page",
        }
    }

    fn hindrance(&self, site: &Site) -> Option<String> {
        if site.standing == LabPrivilege::UserNamespace {
            return Some("the kernel's NVMe target obeys root only: run the same with sudo".into());
        }
        let is_loaded = Path::new(TARGET_MODULE).exists() && Path::new(FABRICS).exists();
        let missing = "the kernel's NVMe over TCP is not loaded: modprobe -a nvme-tcp nvmet-tcp, on a kernel that was \
                       built with CONFIG_NVME_TCP and CONFIG_NVME_TARGET_TCP, as Debian's is";
        (!is_loaded).then(|| missing.into())
    }

    fn trial(&self, stage: &Stage, plan: &Plan) -> Result<Vec<Measured>, PeerError> {
        let _target = Target::start(stage, plan.bytes)?;
        let host = Connection::open(stage)?;
        let mut mapped = Mapped::open(&host.device(stage)?, plan.bytes, plan.depth)?;
        // Locals are dropped in reverse order: the mapping, then the connection, then the target.
        drive(&mut mapped, &stage.content, plan, &stage.interrupt)
    }
}

/// Target that serves a file in memory; dropping the value removes both.
struct Target<'a> {
    lab: &'a Lab,
    /// Place at which threads of the far namespace see the kernel's configuration.
    place: PathBuf,
    file: PathBuf,
}

impl<'a> Target<'a> {
    fn start(stage: &'a Stage, bytes: usize) -> Result<Target<'a>, PeerError> {
        let memory = Path::new(IN_MEMORY);
        let folder = if memory.is_dir() { memory } else { &stage.folder };
        let file = folder.join(format!("cxloe-compare-{}", std::process::id()));
        let place = stage.folder.join("config");
        let failed = || PeerError::io("configuring the kernel's NVMe target");
        fs::create_dir_all(&place).map_err(failed())?;
        let target = Target { lab: &stage.lab, place, file };
        File::create(&target.file).and_then(|file| file.set_len(bytes as u64)).map_err(failed())?;
        let settings = target.configured(|nvmet| {
            // What an earlier run that was killed has left would be in the way.
            remove(nvmet);
            serve(nvmet, &target.file)
        });
        stage.journal.settings(settings.map_err(failed())?);
        Ok(target)
    }

    /// Runs `work` with the folder of the target's configuration, in the far namespace.
    fn configured<T: Send>(&self, work: impl FnOnce(&Path) -> io::Result<T> + Send) -> io::Result<T> {
        let place = &self.place;
        let entered = self.lab.enter(FAR, || {
            // The thread has a /sys of its own without it. The mount is seen by this thread only, and goes with it.
            mount(Some("none"), place, Some("configfs"), MsFlags::empty(), None::<&str>)?;
            work(&place.join("nvmet"))
        });
        entered.map_err(io::Error::other)?
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        let _ = self.configured(|nvmet| {
            remove(nvmet);
            Ok(())
        });
        let _ = fs::remove_file(&self.file);
    }
}

/// Configures the target, and returns the settings as text.
fn serve(nvmet: &Path, file: &Path) -> io::Result<String> {
    let subsystem = format!("subsystems/{NQN}");
    let namespace = format!("{subsystem}/namespaces/1");
    let port = format!("ports/{ENTRY}");
    let (address, service, file) = (FAR_ADDRESS.to_string(), PORT.to_string(), file.display().to_string());
    let mut settings = String::new();
    for (folder, values) in [
        (&subsystem, &[("attr_allow_any_host", "1")][..]),
        (&namespace, &[("device_path", file.as_str()), ("buffered_io", "1"), ("enable", "1")][..]),
        (
            &port,
            &[
                ("addr_trtype", "tcp"),
                ("addr_adrfam", "ipv4"),
                ("addr_traddr", address.as_str()),
                ("addr_trsvcid", service.as_str()),
            ][..],
        ),
    ] {
        fs::create_dir(nvmet.join(folder))?;
        for (name, value) in values {
            fs::write(nvmet.join(folder).join(name), value)?;
            settings += &format!("nvmet/{folder}/{name} {value}\n");
        }
    }
    // The link makes the target listen.
    let link = format!("{port}/subsystems/{NQN}");
    symlink(nvmet.join(&subsystem), nvmet.join(&link))?;
    Ok(settings + &format!("nvmet/{link} -> {subsystem}\n{FABRICS} {}\n", order()))
}

/// Removes all that [`serve`] makes, as far as it is there.
fn remove(nvmet: &Path) {
    let subsystem = nvmet.join("subsystems").join(NQN);
    let port = nvmet.join("ports").join(ENTRY);
    let namespace = subsystem.join("namespaces/1");
    let _ = fs::remove_file(port.join("subsystems").join(NQN));
    let _ = fs::remove_dir(port);
    let _ = fs::write(namespace.join("enable"), "0");
    let _ = fs::remove_dir(namespace);
    let _ = fs::remove_dir(subsystem);
}

/// Order to the host to connect.
fn order() -> String {
    format!("transport=tcp,traddr={FAR_ADDRESS},trsvcid={PORT},nqn={NQN}")
}

/// Connection of the host to the target; dropping the value ends it.
struct Connection {
    /// Number of the host's controller.
    instance: u32,
}

impl Connection {
    /// Connects in the namespace of the calling thread.
    fn open(stage: &Stage) -> Result<Connection, PeerError> {
        stage.interrupt.check()?;
        let ask = || -> io::Result<String> {
            let mut fabrics = OpenOptions::new().read(true).write(true).open(FABRICS)?;
            fabrics.write_all(order().as_bytes())?;
            let mut answer = String::new();
            fabrics.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = ask().map_err(PeerError::io("connecting the kernel's NVMe host"))?;
        let instance = instance(&answer)
            .ok_or(PeerError::Protocol { expected: "the number of a controller", found: answer })?;
        Ok(Connection { instance })
    }

    /// Path of the block device, which appears some time after the connection.
    fn device(&self, stage: &Stage) -> Result<PathBuf, PeerError> {
        let deadline = Instant::now() + READY;
        loop {
            stage.interrupt.check()?;
            if let Some(path) = device(Path::new("/sys/class/block"), Path::new("/dev")) {
                return Ok(path);
            }
            if Instant::now() > deadline {
                let what = "the block device of the NVMe host".into();
                return Err(PeerError::Timeout { what, limit: READY, log: String::new() });
            }
            thread::sleep(POLL);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = fs::write(format!("/sys/class/nvme/nvme{}/delete_controller", self.instance), "1");
    }
}

/// Number of the controller in the host's answer: `instance=0,cntlid=1`.
fn instance(answer: &str) -> Option<u32> {
    answer.split(',').find_map(|part| part.trim().strip_prefix("instance=")?.parse().ok())
}

/// Block device of the target's subsystem. A device without a file in `files` is one of several ways to it.
fn device(blocks: &Path, files: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(blocks).ok()?.flatten();
    let is_ours = |name: &PathBuf| {
        let nqn = fs::read_to_string(blocks.join(name).join("device/subsysnqn")).unwrap_or_default();
        nqn.trim() == NQN
    };
    let names = entries.map(|entry| PathBuf::from(entry.file_name())).filter(is_ours);
    names.map(|name| files.join(name)).find(|file| file.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_and_its_device_are_found() {
        assert_eq!(instance("instance=3,cntlid=1\n"), Some(3));
        assert_eq!(instance("cntlid=1"), None);
        let folder = tempfile::tempdir().unwrap();
        let (blocks, files) = (folder.path().join("block"), folder.path().join("dev"));
        for (name, nqn) in [("nvme0n1", "nqn.of.others"), ("nvme1c1n1", NQN), ("nvme1n1", NQN), ("sda", "")] {
            fs::create_dir_all(blocks.join(name).join("device")).unwrap();
            fs::write(blocks.join(name).join("device/subsysnqn"), format!("{nqn}\n")).unwrap();
        }
        fs::create_dir(&files).unwrap();
        assert_eq!(device(&blocks, &files), None);
        for name in ["nvme0n1", "nvme1n1"] {
            fs::write(files.join(name), "").unwrap();
        }
        assert_eq!(device(&blocks, &files), Some(files.join("nvme1n1")));
    }

    #[test]
    fn the_subsystem_is_made_before_its_namespace() {
        let folder = tempfile::tempdir().unwrap();
        let nvmet = folder.path();
        // The kernel makes these folders with those above them.
        fs::create_dir_all(nvmet.join("ports")).unwrap();
        fs::create_dir_all(nvmet.join("subsystems")).unwrap();
        let error = serve(nvmet, Path::new("/dev/shm/x")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "here nobody makes `namespaces`");
        assert_eq!(
            fs::read_to_string(nvmet.join("subsystems").join(NQN).join("attr_allow_any_host")).unwrap(),
            "1"
        );
        assert!(order().contains("traddr=10.77.0.2,trsvcid=4420,nqn=nqn."), "{}", order());
    }

    #[test]
    fn what_is_missing_is_named_with_what_provides_it() {
        let site = |standing| Site { standing, rdma: None, insecure: false };
        let user = Nvme.hindrance(&site(LabPrivilege::UserNamespace)).unwrap();
        assert!(user.contains("sudo"), "{user}");
        let root = Nvme.hindrance(&site(LabPrivilege::Root));
        let is_loaded = Path::new(TARGET_MODULE).exists() && Path::new(FABRICS).exists();
        assert_eq!(root.is_none(), is_loaded);
        assert!(root.is_none_or(|why| why.contains("modprobe -a nvme-tcp nvmet-tcp")));
    }
}
