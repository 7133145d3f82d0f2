//! A network block device over TCP: nbdkit's memory plugin, mounted as a file by nbdfuse and mapped, as an unmodified
//! program would use it.
//!
//! ```text
//!   load from the mapping -> page fault -> FUSE -> nbdfuse -> TCP -> nbdkit
//! ```

use std::fs::OpenOptions;
use std::path::PathBuf;

use super::error::PeerError;
use super::mapped::Mapped;
use super::measured::Measured;
use super::peer::{Facts, Peer, Tool};
use super::plan::Plan;
use super::site::Site;
use super::stage::{FAR, FAR_ADDRESS, NEAR, Stage, find};
use super::store::drive;

const PORT: u16 = 10809;

pub struct Nbd;

impl Peer for Nbd {
    fn name(&self) -> &'static str {
        "nbd-mapped"
    }

    fn facts(&self) -> Facts {
        Facts {
            what: "nbdkit's memory over TCP, a file through nbdfuse, mapped",
            waits: "the thread that touches a page sleeps until the kernel has it; servers sleep",
            copies: "nbdkit, socket buffers, nbdfuse, the kernel's page cache; a load needs none further",
            verified: "every byte read",
            figures: "read64 and read4k: first touch of a page, which comes whole, so that lines in order mostly find theirs; \
                      many in flight: the kernel is asked for them ahead (madvise); loads: one at a time; write64: \
                      store and msync, which moves a page",
        }
    }

    fn tools(&self) -> &'static [Tool] {
        &[Tool { program: "nbdkit", package: "nbdkit" }, Tool { program: "nbdfuse", package: "libnbd-bin" }]
    }

    fn hindrance(&self, _site: &Site) -> Option<String> {
        let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        fuse.err().map(|e| format!("/dev/fuse cannot be opened ({e}): modprobe fuse, and run as root"))
    }

    fn trial(&self, stage: &Stage, plan: &Plan) -> Result<Vec<Measured>, PeerError> {
        let mut server = stage.pinned(false, find("nbdkit").unwrap_or_else(|| "nbdkit".into()));
        server.args(["--foreground", "--exit-with-parent", "--no-sr"]);
        server.args(["--port", &PORT.to_string(), "--ipaddr", &FAR_ADDRESS.to_string()]);
        server.args(["memory", &plan.bytes.to_string()]);
        let _server = stage.serve(FAR, "nbdkit", PORT, server)?;

        let file = stage.folder.join("disk");
        std::fs::write(&file, b"").map_err(PeerError::io("making a file to mount on"))?;
        // The threads of nbdfuse run on the client's core; the thread that touches pages sleeps while they work.
        let mut fuse = stage.pinned(true, find("nbdfuse").unwrap_or_else(|| "nbdfuse".into()));
        fuse.arg(&file).arg(format!("nbd://{FAR_ADDRESS}:{PORT}"));
        let mut fuse = stage.start(NEAR, "nbdfuse", fuse)?;
        // The mount is visible only in the mount namespace of nbdfuse.
        let seen = PathBuf::from(format!("/proc/{}/root{}", fuse.process.id(), file.display()));
        let bytes = plan.bytes as u64;
        stage.until(&mut fuse, |_| std::fs::metadata(&seen).is_ok_and(|found| found.len() == bytes))?;
        let mut mapped = Mapped::open(&seen, plan.bytes, plan.depth)?;
        // Locals are dropped in reverse order: the mapping before its mount, and the mount before the server.
        drive(&mut mapped, &stage.content, plan, &stage.interrupt)
    }
}
