//! The thread that hands regions over to CXL devices. It scans sysfs after each announcement of the kernel and at an
//! interval, decides on regions without a backing, reopens devices that serve regions, and makes operations on vanished
//! devices fail at once.
//!
//! ```text
//!   undecided --- a device fits: locked, mapped, cleared ---------> on the device <--- it is back ---+
//!       |                                                               |                            |
//!       +-- none does: auto: on Ethernet; cxl: waits, with the reason   +-- it vanishes: operations fail
//! ```

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cxloe_fabric::model::{ByteSize, Name};

use super::device::{Device, DeviceError};
use super::device_state::{DeviceState, device_state};
use super::inventory::{CxlMemory, DaxDevice};
use super::uevents::{MonitorWaker, UeventMonitor};
use cxloe_cn_core::attachments::BackingQuery;
use cxloe_cn_core::backing::{Backing, DevicePlacement, Preference, UsedDevice};

/// Interval of scans without an announcement.
const SCAN_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of scans while the worker still uses the former device of a region.
const HANDOVER_SCAN_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes that are cleared between two checks whether the agent is ending.
const CLEAR_BYTES_MAX: u64 = 64 << 20;
/// File with the identifier of this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[derive(Clone, Debug)]
pub struct HandOverOptions {
    /// Preferred backing of new regions.
    pub preference: Preference,
    pub sysfs_root: PathBuf,
    pub dev_root: PathBuf,
}

/// Reason why the decision on a region was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The decision could not be stored; nothing has changed, and the region is decided on again.
    #[error("{0}")]
    NotKept(String),
    #[error("the agent is ending")]
    Ending,
}

/// This node's regions, as the thread accesses them.
pub trait Regions: Send {
    /// Regions that have no backing yet, or whose device has to be reopened.
    fn questions(&self) -> Vec<BackingQuery>;

    /// Records the decision about a region: it gets this backing.
    fn answer(&self, question: &BackingQuery, backing: Backing) -> Result<(), AnswerError>;

    /// Regions that devices serve, with their devices.
    fn served(&self) -> Vec<(Name, DevicePlacement)>;

    /// Regions that memory nodes serve, with their sizes in bytes.
    fn on_ethernet(&self) -> Vec<(Name, u64)>;

    /// Sets the note that is shown with a region, or clears it with `None`; returns whether the note has changed.
    fn explain(&self, region: &Name, note: Option<String>) -> bool;
}

/// The running thread, which ends when this is dropped.
#[derive(Debug)]
pub struct HandOver {
    stop: Arc<AtomicBool>,
    waker: MonitorWaker,
    thread: Option<JoinHandle<()>>,
}

impl HandOver {
    /// Starts the thread, which decides on `regions`; `waker` ends a wait of `monitor`.
    ///
    /// # Errors
    /// No thread could be started, or the boot's identifier could not be read.
    pub fn start(
        options: HandOverOptions,
        regions: impl Regions + 'static,
        monitor: UeventMonitor,
        waker: MonitorWaker,
    ) -> io::Result<HandOver> {
        let boot = std::fs::read_to_string(BOOT_ID)?.trim().to_owned();
        let stop = Arc::new(AtomicBool::new(false));
        let mut looker = DeviceScanner {
            options,
            regions: Box::new(regions),
            boot,
            there: CxlMemory::default(),
            mine: Vec::new(),
            stop: Arc::clone(&stop),
        };
        let thread = thread::Builder::new().name("cxl".into()).spawn(move || {
            while !looker.stop.load(Ordering::Acquire) {
                let again_soon = looker.scan();
                monitor.wait(if again_soon { HANDOVER_SCAN_INTERVAL } else { SCAN_INTERVAL });
            }
        })?;
        Ok(HandOver { stop, waker, thread: Some(thread) })
    }
}

impl Drop for HandOver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

enum DeviceClaim {
    Taken(Arc<Device>),
    /// The worker still uses the device of a former region; a later attempt may succeed.
    Soon,
    Not(DeviceError),
}

struct DeviceScanner {
    options: HandOverOptions,
    regions: Box<dyn Regions>,
    boot: String,
    /// Inventory of the last scan.
    there: CxlMemory,
    /// Devices that this process has claimed. A device whose region is gone stays in use until the worker has dropped
    /// it.
    mine: Vec<std::sync::Weak<Device>>,
    stop: Arc<AtomicBool>,
}

impl DeviceScanner {
    /// Scans once; returns whether the next scan is due soon.
    fn scan(&mut self) -> bool {
        let there = CxlMemory::scan(&self.options.sysfs_root);
        for problem in there.problems.iter().filter(|p| !self.there.problems.contains(p)) {
            tracing::warn!(%problem, "a CXL device is ignored");
        }
        self.there = there;
        self.fail_vanished();
        let mut again_soon = false;
        for question in self.regions.questions() {
            again_soon |= match &question.known {
                Some(served) => self.reopen_device(&question, served),
                None => self.decide(&question),
            };
        }
        self.note_room();
        again_soon
    }

    /// Makes operations on vanished devices fail.
    fn fail_vanished(&self) {
        for (region, served) in &self.regions.served() {
            let Some(UsedDevice(device)) = &served.memory else { continue };
            let gone = device.is_gone();
            let why = match device_state(served, &self.there, &self.boot) {
                DeviceState::Present(_) if !gone => continue,
                DeviceState::Present(_) => "its memory does not answer".into(),
                DeviceState::Away(why) | DeviceState::Lost(why) => why,
            };
            // After the device has been given up, this process or another can claim it again.
            device.give_up();
            self.note(region, why, "the CXL device of a region is gone; operations on it fail");
        }
    }

    fn note(&self, region: &Name, why: String, what: &'static str) {
        if self.regions.explain(region, Some(why.clone())) {
            tracing::error!(%region, %why, "{what}");
        }
    }

    /// Reopens the device of a region if it is present again; returns whether to scan again soon.
    fn reopen_device(&mut self, question: &BackingQuery, served: &DevicePlacement) -> bool {
        let state = device_state(served, &self.there, &self.boot);
        let (region, away) = (&question.region, "the CXL device of a region is not there");
        let dax = match state {
            DeviceState::Present(dax) => dax.clone(),
            DeviceState::Away(why) => {
                self.note(region, why, away);
                return false;
            }
            DeviceState::Lost(why) => {
                tracing::error!(%region, %why, "the content of a region on a CXL device is lost");
                let lost = DevicePlacement { lost: Some(why), memory: None, ..served.clone() };
                self.settle(question, Backing::Device(lost));
                return false;
            }
        };
        match self.claim(&dax) {
            DeviceClaim::Soon => return true,
            DeviceClaim::Not(error) => self.note(region, error.to_string(), away),
            DeviceClaim::Taken(device) => {
                tracing::info!(%region, device = dax.device, "a region is served from its CXL device again");
                let memory = Some(UsedDevice(device));
                self.settle(
                    question,
                    Backing::Device(DevicePlacement { device: dax.device, memory, ..served.clone() }),
                );
            }
        }
        false
    }

    /// Decides on a new region: a device, Ethernet, or no backing yet; returns whether to scan again soon.
    fn decide(&mut self, question: &BackingQuery) -> bool {
        let BackingQuery { region, bytes, .. } = question;
        let taken = self.taken();
        let fitting: Vec<DaxDevice> = self.there.fitting(*bytes, &taken).into_iter().cloned().collect();
        let mut refused = Vec::new();
        for dax in fitting {
            match self.claim(&dax) {
                DeviceClaim::Soon => return true,
                DeviceClaim::Not(error) => refused.push(error.to_string()),
                DeviceClaim::Taken(device) => match self.clear(&device, *bytes) {
                    Ok(true) => {
                        self.serve(question, &dax, device);
                        return false;
                    }
                    Ok(false) => return false,
                    Err(error) => refused.push(error.to_string()),
                },
            }
        }
        let why = if refused.is_empty() { self.there.why_none(*bytes, &taken) } else { refused.join("; ") };
        match self.options.preference {
            Preference::Cxl => {
                let what = "no CXL device can serve a region, and Ethernet is not to; it is not attached";
                self.note(region, format!("no CXL device can serve it: {why}"), what);
            }
            Preference::Auto | Preference::Ethernet => {
                tracing::info!(%region, %why, "no CXL device can serve a region: it goes over Ethernet, and stays there");
                self.settle(question, Backing::Ethernet);
            }
        }
        false
    }

    fn serve(&self, question: &BackingQuery, dax: &DaxDevice, device: Arc<Device>) {
        let BackingQuery { region, bytes, .. } = question;
        tracing::info!(
            %region, device = dax.device, size = %ByteSize(dax.size), persistent = dax.persistent,
            "a region is served from a CXL device: what was on it before is overwritten"
        );
        let served = DevicePlacement {
            device: dax.device.clone(),
            resource: dax.resource.unwrap_or_default(),
            size: dax.size,
            bytes: *bytes,
            boot: (!dax.persistent).then(|| self.boot.clone()),
            lost: None,
            memory: Some(UsedDevice(device)),
        };
        self.settle(question, Backing::Device(served));
    }

    /// Names of the devices that serve regions, whether present or not.
    fn taken(&self) -> Vec<String> {
        let served = self.regions.served();
        let is_taken = |dax: &&DaxDevice| {
            let mut places = served.iter().map(|(_, served)| (Some(served.resource), served.size));
            places.any(|place| place == (dax.resource, dax.size))
        };
        self.there.dax_devices.iter().filter(is_taken).map(|dax| dax.device.clone()).collect()
    }

    fn claim(&mut self, dax: &DaxDevice) -> DeviceClaim {
        self.mine.retain(|device| device.strong_count() > 0);
        match Device::claim(&self.options.dev_root, dax) {
            Ok(device) => {
                let device = Arc::new(device);
                self.mine.push(Arc::downgrade(&device));
                DeviceClaim::Taken(device)
            }
            Err(DeviceError::Held { path }) => {
                let mut mine = self.mine.iter().filter_map(std::sync::Weak::upgrade);
                let ours = mine.any(|device| device.path() == path);
                if ours { DeviceClaim::Soon } else { DeviceClaim::Not(DeviceError::Held { path }) }
            }
            Err(error) => DeviceClaim::Not(error),
        }
    }

    /// Clears the part of a device that a new region uses; returns `false` if the agent is ending.
    fn clear(&self, device: &Device, bytes: u64) -> Result<bool, DeviceError> {
        let mut from = 0;
        while from < bytes {
            if self.stop.load(Ordering::Acquire) {
                return Ok(false);
            }
            let part = CLEAR_BYTES_MAX.min(bytes - from);
            device.clear(from, part)?;
            from += part;
        }
        Ok(true)
    }

    fn settle(&self, question: &BackingQuery, backing: Backing) {
        match self.regions.answer(question, backing) {
            Ok(()) => {}
            // Nothing else is done about this failure: the next scan decides on the region again.
            Err(error @ AnswerError::NotKept(_)) => {
                tracing::error!(region = %question.region, %error, "the backing of a region cannot be stored");
            }
            Err(error @ AnswerError::Ending) => {
                tracing::debug!(%error, "what serves a region stays undecided")
            }
        }
    }

    /// Sets a note for each region on Ethernet: whether a device could have served the region.
    fn note_room(&self) {
        let taken = self.taken();
        for (region, bytes) in self.regions.on_ethernet() {
            let device = self.there.fitting(bytes, &taken).first().map(|dax| dax.device.clone());
            let note = device.as_ref().map(|device| {
                format!("it was attached before {device} could serve it, and stays on Ethernet until it is created anew")
            });
            if self.regions.explain(&region, note)
                && let Some(device) = device
            {
                tracing::info!(%region, device, "a CXL device could serve a region, which stays on Ethernet");
            }
        }
    }
}
