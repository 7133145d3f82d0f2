//! Background copy of extents that are filled from others (clones and snapshots), in a separate thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cxloe_mn_core::translation::PageTable;

/// Pages copied between two pauses: 256 KiB, some 50 us.
const PAGES: usize = 64;
/// Pause between two pieces, so that copying takes a third of a core at most.
const PAUSE: Duration = Duration::from_micros(100);
/// Interval between checks for new copies while there are none.
const IDLE: Duration = Duration::from_millis(50);

/// Thread that copies; ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Copying {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Copying {
    pub fn start(table: Arc<PageTable>) -> io::Result<Copying> {
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        // This thread keeps ordinary priority, because a worker may wait for the page that is being copied.
        let work = move || {
            while !ended.load(Ordering::Relaxed) {
                thread::park_timeout(if table.copy_pages(PAGES) { PAUSE } else { IDLE });
            }
        };
        let thread = thread::Builder::new().name("copying".into()).spawn(work)?;
        Ok(Copying { ends, thread: Some(thread) })
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread never panics, so there is no error to report.
            let _ = thread.join();
        }
    }
}
