//! A network block device over TCP: nbdkit's memory plugin, mounted as a file by nbdfuse and mapped, as an unmodified
//! program would use it.
//!
//! ```text
//!   load from the mapping -> page fault -> FUSE -> nbdfuse -> TCP -> nbdkit
//! ```

#![expect(unsafe_code, reason = "a mapped file may change behind its mapping")]

use std::fs::{File, OpenOptions};
use std::path::PathBuf;

use memmap2::{Advice, MmapMut, UncheckedAdvice};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::error::PeerError;
use super::measured::Measured;
use super::pattern::{LINE, PAGE, Plan};
use super::peer::{Facts, Peer, Tool};
use super::site::Site;
use super::stage::{FAR, FAR_ADDRESS, NEAR, Stage, find};
use super::store::{AccessUnit, Store, drive};

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
            figures: "read64 and read4k: first touch of a page, which comes whole; write64: store and msync, which moves \
                      a page; one at a time, so no stream64",
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
        let mut mapped = Mapped::open(&seen, plan.bytes)?;
        // Locals are dropped in reverse order: the mapping before its mount, and the mount before the server.
        drive(&mut mapped, &stage.content, plan, &stage.interrupt)
    }
}

struct Mapped {
    map: MmapMut,
    file: File,
}

impl Mapped {
    fn open(path: &std::path::Path, bytes: usize) -> Result<Mapped, PeerError> {
        let failed = || PeerError::io(format!("mapping {}", path.display()));
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed())?;
        // SAFETY: the file belongs to this trial only; no other process writes or truncates it while it is mapped.
        let map = unsafe { memmap2::MmapOptions::new().len(bytes).map_mut(&file) }.map_err(failed())?;
        Ok(Mapped { map, file })
    }

    /// Drops pages from the page cache, after they have been written back.
    fn drop_pages(&mut self, at: usize, bytes: usize) -> Result<(), PeerError> {
        let failed = || PeerError::io("dropping pages of the mapping");
        // SAFETY: in a shared file mapping, written data stay in the page cache or at the server when pages are
        // dropped.
        unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, at, bytes) }.map_err(failed())?;
        posix_fadvise(&self.file, at as i64, bytes as i64, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
            .map_err(|e| failed()(e.into()))
    }

    fn advise(&mut self, advice: Advice) -> Result<(), PeerError> {
        self.map.advise(advice).map_err(PeerError::io("advising the mapping"))
    }
}

impl Store for Mapped {
    fn read(&mut self, unit: AccessUnit, index: usize, out: &mut [u8]) -> Result<(), PeerError> {
        let at = index * unit.bytes();
        out.copy_from_slice(&self.map[at..at + unit.bytes()]);
        Ok(())
    }

    fn write(&mut self, index: usize, line: &[u8]) -> Result<(), PeerError> {
        let at = index * LINE;
        self.map[at..at + LINE].copy_from_slice(line);
        self.map.flush_range(at, LINE).map_err(PeerError::io("msync of the mapping"))
    }

    fn read_lines(&mut self, _indices: &[usize], _out: &mut [u8]) -> Result<Option<()>, PeerError> {
        Ok(None)
    }

    fn write_lines(&mut self, indices: &[usize], lines: &[u8]) -> Result<(), PeerError> {
        for (index, line) in indices.iter().zip(lines.chunks_exact(LINE)) {
            self.map[index * LINE..(index + 1) * LINE].copy_from_slice(line);
        }
        let Some((first, last)) = indices.iter().min().zip(indices.iter().max()) else { return Ok(()) };
        // Pages between them that are clean cost nothing.
        let (at, bytes) = (first * LINE, (last + 1 - first) * LINE);
        self.map.flush_range(at, bytes).map_err(PeerError::io("msync of the mapping"))
    }

    fn bulk_read(&mut self, out: &mut [u8]) -> Result<(), PeerError> {
        self.drop_pages(0, out.len())?;
        self.advise(Advice::Sequential)?;
        out.copy_from_slice(&self.map);
        // Disables read-ahead, so that a random access reads one page.
        self.advise(Advice::Random)
    }

    fn bulk_write(&mut self, all: &[u8]) -> Result<(), PeerError> {
        self.advise(Advice::Sequential)?;
        self.map.copy_from_slice(all);
        self.map.flush().map_err(PeerError::io("msync of the mapping"))
    }

    fn forget(&mut self, unit: AccessUnit, index: usize) -> Result<(), PeerError> {
        let at = index * unit.bytes() / PAGE * PAGE;
        self.drop_pages(at, PAGE)
    }
}
