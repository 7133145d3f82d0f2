//! Where pause signals come from, apart from the memory nodes' own Congestion frames: 802.1Qbb frames that reach
//! this host, and the NIC's count of those it kept to itself. And, for programs that follow the manager, what it says of keys.
//!
//! Looking costs three loads from memory. The NIC is asked by a thread of its own, as drivers take their time; so that
//! source is coarse: it knows that there were pauses, some milliseconds late.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cxloe_link::LinkError;
use cxloe_link::ethtool::{DriverCounter, Ethtool};
use cxloe_link::pfc::PfcSocket;
use cxloe_wire::time::Time;

use cxloe_cn_core::engine::Engine;

use crate::following::KeyWatch;

/// How often the NIC is asked.
const NIC_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// A driver that needs long is asked so rarely that it is busy with that for a twentieth of the time at most.
const NIC_SHARE: u32 = 20;

/// Which sources to listen to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalConfig {
    /// The interface.
    pub interface: String,
    /// The PFC class our frames belong to.
    pub class: u8,
    /// The NIC's statistic that counts received PFC frames, `{}` standing for the class; `None`: the one known of its
    /// driver, if any.
    pub nic_counter: Option<String>,
}

/// The sources of one link. The default listens to none.
#[derive(Default)]
pub struct Signals {
    /// What was opened; `None` for none.
    config: Option<SignalConfig>,
    pfc: Option<PfcSocket>,
    nic: Option<NicPauses>,
    keys: Option<Box<KeyWatch>>,
}

impl Signals {
    /// The same, and what is said of keys.
    pub(crate) fn with_keys(self, keys: KeyWatch) -> Signals {
        Signals { keys: Some(Box::new(keys)), ..self }
    }

    /// Opens all sources there are on the interface. A NIC of whose counters nothing is known is none.
    ///
    /// # Errors
    /// The socket for PFC frames, or a counter that was named and does not exist.
    pub fn open(config: &SignalConfig) -> Result<Signals, LinkError> {
        let pfc = PfcSocket::open(&config.interface)?;
        let counter =
            Ethtool::open(&config.interface)?.pfc_counter(config.class, config.nic_counter.as_deref());
        let nic = match counter {
            Ok(counter) => Some(NicPauses::watch(counter)),
            Err(error) if config.nic_counter.is_some() => return Err(error),
            Err(why) => {
                tracing::debug!(%why, "the NIC's own PFC counters are not used");
                None
            }
        };
        Ok(Signals { config: Some(config.clone()), pfc: Some(pfc), nic, keys: None })
    }

    /// Opens the sources again, on an interface that was away and may be called otherwise now. Where that fails there
    /// are none until the next time: the memory nodes' own Congestion frames still come.
    #[cold]
    pub fn reopen(&mut self, interface: &str) {
        let Some(config) = self.config.take() else { return };
        let config = SignalConfig { interface: interface.to_owned(), ..config };
        (self.pfc, self.nic) = (None, None);
        match Signals::open(&config) {
            Ok(signals) => *self = Signals { keys: self.keys.take(), ..signals },
            Err(error) => {
                tracing::warn!(%error, "pauses of the interface are not listened to");
                self.config = Some(config);
            }
        }
    }

    /// Hands what has come to the engine. `now` is asked for only if there is something.
    #[inline]
    pub fn poll(&mut self, engine: &mut Engine, now: impl FnOnce() -> Time) {
        let pfc = self.pfc.as_mut().and_then(PfcSocket::receive);
        let nic = self.nic.as_mut().is_some_and(NicPauses::rose);
        let keys = self.keys.as_deref_mut().filter(|keys| keys.is_due());
        if pfc.is_some() || nic || keys.is_some() {
            let now = now();
            if let Some((_, vector)) = pfc {
                engine.on_pfc(&vector, now);
            }
            if nic {
                engine.on_nic_pause(now);
            }
            if let Some(keys) = keys {
                keys.tell(engine, now);
            }
        }
    }
}

/// A NIC's count of received PFC frames, watched by a thread.
struct NicPauses {
    count: Arc<AtomicU64>,
    seen: u64,
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl NicPauses {
    fn watch(mut counter: DriverCounter) -> NicPauses {
        let count = Arc::new(AtomicU64::new(0));
        let (stop, stopped) = mpsc::channel();
        let shared = Arc::clone(&count);
        let watch = move || {
            tracing::info!(counter = counter.name(), "the NIC's count of PFC frames is watched");
            let mut last = None;
            let mut pause = NIC_POLL_INTERVAL;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let asked = Instant::now();
                match counter.read() {
                    Ok(value) => {
                        let rise = last.replace(value).map_or(0, |before| value.saturating_sub(before));
                        shared.fetch_add(rise, Ordering::Relaxed);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the NIC's count of PFC frames is not watched any more");
                        return;
                    }
                }
                pause = NIC_POLL_INTERVAL.max(asked.elapsed() * NIC_SHARE);
            }
        };
        let thread = thread::Builder::new().name("nic-pauses".into()).spawn(watch);
        NicPauses {
            count,
            seen: 0,
            stop: Some(stop),
            thread: thread.inspect_err(|error| tracing::warn!(%error, "no thread to watch the NIC")).ok(),
        }
    }

    /// Whether there were PFC frames since the last time this was asked.
    #[inline]
    fn rose(&mut self) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        std::mem::replace(&mut self.seen, count) != count
    }
}

impl Drop for NicPauses {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
