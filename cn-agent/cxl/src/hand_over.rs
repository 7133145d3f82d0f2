//! The thread that hands regions over to CXL devices: it looks at what is there whenever there may be monitor, answers for
//! regions of which it is not decided what serves them, brings devices back that regions are on, and has operations fail
//! at once on those that are no longer there.
//!
//! ```text
//!   undecided --- a device fits: locked, mapped, cleared ---------> on the device <--- it is back ---+
//!       |                                                               |                            |
//!       +-- none does: auto: on Ethernet; cxl: waits, and says why      +-- it vanishes: operations fail
//! ```

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cxloe_fabric::model::{ByteSize, Name};

use super::device::{Device, DeviceError};
use super::inventory::{CxlMemory, DaxDevice};
use super::uevents::{MonitorWaker, UeventMonitor};
use super::verdict::{DeviceState, device_state};
use cxloe_cn_core::attachments::Question;
use cxloe_cn_core::backing::{Backing, Memory, Preference, Served};

/// How often to look without monitor.
const SCAN_INTERVAL: Duration = Duration::from_secs(2);
/// How soon to look again while the worker still has a device that a region was on.
const HANDOVER_SCAN_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes cleared between two looks at whether the agent is ending.
const CLEAR_BYTES_MAX: u64 = 64 << 20;
/// Where the kernel says which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Where to look, and what for.
#[derive(Clone, Debug)]
pub struct HandOverOptions {
    /// What regions are to be served by.
    pub preference: Preference,
    /// Where the kernel shows devices.
    pub sysfs_root: PathBuf,
    /// Where device files are.
    pub dev_root: PathBuf,
}

/// Why an answer about a region was not taken.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// It could not be remembered; nothing has changed, and the question comes again.
    #[error("{0}")]
    NotKept(String),
    /// The agent is ending.
    #[error("the agent is ending")]
    Ending,
}

/// The regions of this node, as the thread sees them that looks for devices.
pub trait Regions: Send {
    /// The regions of which somebody has to say what serves them.
    fn questions(&self) -> Vec<Question>;

    /// What serves the region of `question` from now on.
    ///
    /// # Errors
    /// Any [`AnswerError`].
    fn answer(&self, question: &Question, backing: Backing) -> Result<(), AnswerError>;

    /// The regions that devices serve.
    fn served(&self) -> Vec<(Name, Served)>;

    /// The regions that memory nodes serve, and their sizes in bytes.
    fn on_ethernet(&self) -> Vec<(Name, u64)>;

    /// Shows `note` with a region, or that there is nothing to say; whether that is new.
    fn explain(&self, region: &Name, note: Option<String>) -> bool;
}

/// The running thread; ends when dropped.
#[derive(Debug)]
pub struct HandOver {
    stop: Arc<AtomicBool>,
    waker: MonitorWaker,
    thread: Option<JoinHandle<()>>,
}

impl HandOver {
    /// Starts the thread, which answers about `regions`; `waker` is what has `monitor` end a wait.
    ///
    /// # Errors
    /// No thread, or no boot id.
    pub fn start(
        options: HandOverOptions,
        regions: impl Regions + 'static,
        monitor: UeventMonitor,
        waker: MonitorWaker,
    ) -> io::Result<HandOver> {
        let boot = std::fs::read_to_string(BOOT_ID)?.trim().to_owned();
        let stop = Arc::new(AtomicBool::new(false));
        let mut looker = Looker {
            options,
            regions: Box::new(regions),
            boot,
            there: CxlMemory::default(),
            mine: Vec::new(),
            stop: Arc::clone(&stop),
        };
        let thread = thread::Builder::new().name("cxl".into()).spawn(move || {
            while !looker.stop.load(Ordering::Acquire) {
                let again_soon = looker.look();
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

/// What has come of an attempt to take a device.
enum Claim {
    /// It is ours.
    Taken(Arc<Device>),
    /// The worker has not parted with it yet.
    Soon,
    /// Not to be had.
    Not(DeviceError),
}

struct Looker {
    options: HandOverOptions,
    regions: Box<dyn Regions>,
    boot: String,
    /// What was there at the last look.
    there: CxlMemory,
    /// Devices that this process has, or had: those whose regions are gone are used until the worker knows.
    mine: Vec<std::sync::Weak<Device>>,
    stop: Arc<AtomicBool>,
}

impl Looker {
    /// Looks once; whether to look again soon.
    fn look(&mut self) -> bool {
        let there = CxlMemory::scan(&self.options.sysfs_root);
        for problem in there.problems.iter().filter(|p| !self.there.problems.contains(p)) {
            tracing::warn!(%problem, "a CXL device is not looked at");
        }
        self.there = there;
        self.part_with_the_gone();
        let mut again_soon = false;
        for question in self.regions.questions() {
            again_soon |= match &question.known {
                Some(served) => self.bring_back(&question, served),
                None => self.decide(&question),
            };
        }
        self.tell_of_room();
        again_soon
    }

    /// Has operations fail on devices that are there no longer.
    fn part_with_the_gone(&self) {
        for (region, served) in &self.regions.served() {
            let Some(Memory(device)) = &served.memory else { continue };
            let gone = device.is_gone();
            let why = match device_state(served, &self.there, &self.boot) {
                DeviceState::Present(_) if !gone => continue,
                DeviceState::Present(_) => "its memory does not answer".into(),
                DeviceState::Away(why) | DeviceState::Lost(why) => why,
            };
            // Others may have it from here on, and so may we.
            device.give_up();
            self.note(region, why, "the CXL device of a region is gone; operations on it fail");
        }
    }

    /// Shows a note with a region, and logs it if it is new.
    fn note(&self, region: &Name, why: String, what: &'static str) {
        if self.regions.explain(region, Some(why.clone())) {
            tracing::error!(%region, %why, "{what}");
        }
    }

    /// A region's device may be there again.
    fn bring_back(&mut self, question: &Question, served: &Served) -> bool {
        let state = device_state(served, &self.there, &self.boot);
        let (region, away) = (&question.region, "the CXL device of a region is not there");
        let dax = match state {
            DeviceState::Present(dax) => dax.clone(),
            DeviceState::Away(why) => {
                self.note(region, why, away);
                return false;
            }
            DeviceState::Lost(why) => {
                tracing::error!(%region, %why, "what a region held on a CXL device is lost");
                let lost = Served { lost: Some(why), memory: None, ..served.clone() };
                self.settle(question, Backing::Device(lost));
                return false;
            }
        };
        match self.claim(&dax) {
            Claim::Soon => return true,
            Claim::Not(error) => self.note(region, error.to_string(), away),
            Claim::Taken(device) => {
                tracing::info!(%region, device = dax.device, "a region is served from its CXL device again");
                let memory = Some(Memory(device));
                self.settle(
                    question,
                    Backing::Device(Served { device: dax.device, memory, ..served.clone() }),
                );
            }
        }
        false
    }

    /// A region is new: a device serves it, or Ethernet, or nothing does yet.
    fn decide(&mut self, question: &Question) -> bool {
        let Question { region, bytes, .. } = question;
        let taken = self.taken();
        let fitting: Vec<DaxDevice> = self.there.fitting(*bytes, &taken).into_iter().cloned().collect();
        let mut refused = Vec::new();
        for dax in fitting {
            match self.claim(&dax) {
                Claim::Soon => return true,
                Claim::Not(error) => refused.push(error.to_string()),
                Claim::Taken(device) => match self.clear(&device, *bytes) {
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

    fn serve(&self, question: &Question, dax: &DaxDevice, device: Arc<Device>) {
        let Question { region, bytes, .. } = question;
        tracing::info!(
            %region, device = dax.device, size = %ByteSize(dax.size), persistent = dax.persistent,
            "a region is served from a CXL device: what was on it before is overwritten"
        );
        let served = Served {
            device: dax.device.clone(),
            resource: dax.resource.unwrap_or_default(),
            size: dax.size,
            bytes: *bytes,
            boot: (!dax.persistent).then(|| self.boot.clone()),
            lost: None,
            memory: Some(Memory(device)),
        };
        self.settle(question, Backing::Device(served));
    }

    /// The devices that regions are on, there or not.
    fn taken(&self) -> Vec<String> {
        let served = self.regions.served();
        let is_taken = |dax: &&DaxDevice| {
            let mut places = served.iter().map(|(_, served)| (Some(served.resource), served.size));
            places.any(|place| place == (dax.resource, dax.size))
        };
        self.there.dax_devices.iter().filter(is_taken).map(|dax| dax.device.clone()).collect()
    }

    fn claim(&mut self, dax: &DaxDevice) -> Claim {
        self.mine.retain(|device| device.strong_count() > 0);
        match Device::claim(&self.options.dev_root, dax) {
            Ok(device) => {
                let device = Arc::new(device);
                self.mine.push(Arc::downgrade(&device));
                Claim::Taken(device)
            }
            Err(DeviceError::Held { path }) => {
                let mut mine = self.mine.iter().filter_map(std::sync::Weak::upgrade);
                let ours = mine.any(|device| device.path() == path);
                if ours { Claim::Soon } else { Claim::Not(DeviceError::Held { path }) }
            }
            Err(error) => Claim::Not(error),
        }
    }

    /// A new region is empty. `false` if the agent is ending.
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

    fn settle(&self, question: &Question, backing: Backing) {
        match self.regions.answer(question, backing) {
            Ok(()) => {}
            // Tried again at the next look.
            Err(error @ AnswerError::NotKept(_)) => {
                tracing::error!(region = %question.region, %error, "what serves a region cannot be remembered");
            }
            Err(error @ AnswerError::Ending) => {
                tracing::debug!(%error, "what serves a region stays undecided")
            }
        }
    }

    /// Says with each region on Ethernet whether a device could have served it.
    fn tell_of_room(&self) {
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
