//! Sources of pause signals other than memory nodes' Congestion frames: 802.1Qbb frames that reach this host, and the
//! NIC's count of frames that it handled itself. In programs that receive changes from the manager, changed keys of
//! memory nodes are a source too. Polling costs three loads from memory. A separate thread reads the NIC's count,
//! because drivers are slow; this source therefore reports pauses some milliseconds late.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cxloe_link::ethtool::Ethtool;
use cxloe_link::pfc::PfcSocket;
use cxloe_link::{LinkError, dpdk};
use cxloe_wire::time::Time;

use cxloe_cn_core::engine::Engine;

use crate::following::KeyWatch;

/// Interval at which the NIC's count is read.
const NIC_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Minimum ratio of the polling interval to the time that the driver needs for one reading: a slow driver is read less
/// often.
const NIC_SHARE: u32 = 20;

/// Sources of pause signals to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalConfig {
    /// Name of the interface.
    pub interface: String,
    /// PFC class of this program's frames.
    pub class: u8,
    /// Name of the NIC's statistic that counts received PFC frames, with `{}` for the class; `None`: the one known
    /// for the NIC's driver, if any.
    pub nic_counter: Option<String>,
}

/// Open sources of one link. The default has none.
#[derive(Default)]
pub struct Signals {
    /// Configuration of the open sources; `None` if none are open.
    config: Option<SignalConfig>,
    pfc: Option<PfcSocket>,
    nic: Option<NicPauses>,
    keys: Option<Box<KeyWatch>>,
}

impl Signals {
    /// Adds changes of memory nodes' keys as a source.
    pub(crate) fn with_keys(self, keys: KeyWatch) -> Signals {
        Signals { keys: Some(Box::new(keys)), ..self }
    }

    /// Opens all sources that the interface has. A NIC without a known statistic is no source, and a device of DPDK
    /// passes no PFC frames to this program.
    ///
    /// # Errors
    /// Failure to open the socket for PFC frames, or an explicitly named counter that does not exist.
    pub fn open(config: &SignalConfig) -> Result<Signals, LinkError> {
        let pfc = match dpdk::is_device(&config.interface) {
            true => None,
            false => Some(PfcSocket::open(&config.interface)?),
        };
        let nic = match NicPauses::of(config) {
            Ok(nic) => Some(nic),
            Err(error) if config.nic_counter.is_some() => return Err(error),
            Err(why) => {
                tracing::debug!(%why, "the NIC's own PFC counters are not used");
                None
            }
        };
        Ok(Signals { config: Some(config.clone()), pfc, nic, keys: None })
    }

    /// Opens the sources again, on an interface that was absent and may have another name now. On failure no source
    /// is open until the next call; memory nodes' Congestion frames still arrive.
    #[cold]
    pub fn reopen(&mut self, interface: &str) {
        let Some(config) = self.config.take() else { return };
        let config = SignalConfig { interface: interface.to_owned(), ..config };
        (self.pfc, self.nic) = (None, None);
        match Signals::open(&config) {
            Ok(signals) => *self = Signals { keys: self.keys.take(), ..signals },
            Err(error) => {
                tracing::warn!(%error, "pause frames of the interface are not monitored");
                self.config = Some(config);
            }
        }
    }

    /// Passes new signals to the engine. `now` is called only if there are new ones.
    #[inline]
    pub fn poll(&mut self, engine: &mut Engine, now: impl FnOnce() -> Time) {
        let pfc = self.pfc.as_mut().and_then(PfcSocket::receive);
        let nic = self.nic.as_mut().is_some_and(NicPauses::has_new_pfc);
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
                keys.apply(engine, now);
            }
        }
    }
}

/// A NIC's count of received PFC frames, which a thread reads.
struct NicPauses {
    count: Arc<AtomicU64>,
    seen: u64,
    /// Dropping the sender ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl NicPauses {
    /// Watches the count that the driver of the interface keeps.
    ///
    /// # Errors
    /// The driver has no such statistic, or none is known for it.
    fn of(config: &SignalConfig) -> Result<NicPauses, LinkError> {
        let (interface, class, name) = (&config.interface, config.class, config.nic_counter.as_deref());
        // Some drivers of DPDK leave the card to the kernel, whose driver counts its PFC frames.
        let in_kernel = match dpdk::is_device(interface) {
            true => dpdk::kernel_interface(interface),
            false => Some(interface.clone()),
        };
        if let Some(interface) = in_kernel {
            let mut counter = Ethtool::open(&interface)?.pfc_counter(class, name)?;
            return Ok(NicPauses::watch(counter.name().to_owned(), move || counter.read()));
        }
        let mut counter = dpdk::pfc_counter(interface, class, name)?;
        Ok(NicPauses::watch(counter.name().to_owned(), move || counter.read()))
    }

    fn watch(name: String, mut read: impl FnMut() -> Result<u64, LinkError> + Send + 'static) -> NicPauses {
        let count = Arc::new(AtomicU64::new(0));
        let (stop, stopped) = mpsc::channel();
        let shared = Arc::clone(&count);
        let watch = move || {
            tracing::info!(counter = %name, "the NIC's count of PFC frames is watched");
            let mut last = None;
            let mut pause = NIC_POLL_INTERVAL;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let asked = Instant::now();
                match read() {
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

    /// Whether PFC frames were counted since the last call.
    #[inline]
    fn has_new_pfc(&mut self) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_rise_of_the_count_is_a_pause() {
        let (values, next) = mpsc::channel();
        let end = || LinkError::Down("eth9".into());
        let mut nic = NicPauses::watch("rx_pause".into(), move || next.recv().map_err(|_| end()));
        // The first value is that of earlier times, and a NIC that was reset counts from the beginning.
        for value in [7, 7, 3, 5] {
            values.send(value).unwrap();
        }
        drop(values);
        // The thread ends by the error of a count that cannot be read any more.
        if let Some(thread) = nic.thread.take() {
            thread.join().unwrap();
        }
        assert_eq!(nic.count.load(Ordering::Relaxed), 2);
        assert!(nic.has_new_pfc() && !nic.has_new_pfc());
    }
}
