//! Options of rate control: the controller's parameters, and how they are applied to a link.

use std::path::Path;
use std::time::Duration;

use cxloe_cc::Config;
use cxloe_link::ethtool::Ethtool;
use cxloe_link::limit::Rate;
use cxloe_link::{LinkError, LinkInfo, dpdk};
use cxloe_wire::time::Time;

use crate::signals::{SignalConfig, Signals};
use cxloe_cn_core::engine::{BUCKET_DEFAULT, Engine, Pacing};

/// Assumed rate of a link whose interface reports none, as is usual for virtual interfaces.
const LINK_RATE_UNKNOWN: Rate = Rate::gbit_per_s(10);
/// Assumed rate of a link whose datagrams do not leave by a physical interface of this machine.
const LINK_RATE_NO_WIRE: Rate = Rate::gbit_per_s(100);
/// Permitted range of the controller's times.
const TIMES: std::ops::RangeInclusive<Duration> = Duration::from_micros(1)..=Duration::from_secs(10);
/// Permitted range of the bucket in bytes: from a frame to more than any queue holds.
const BUCKETS: std::ops::RangeInclusive<u64> = 1_500..=16 << 20;

/// Parameters of rate control. The default is the paper's controller at the interface's speed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateControl {
    /// Rate of the link; `None`: the rate that the interface reports.
    pub link: Option<Rate>,
    /// Times t1 to t6 of the paper's controller; `None`: the paper's values.
    pub times: [Option<Duration>; 6],
    /// Step by which the controller raises its rate to explore; `None`: a hundredth of the link's rate (in the paper, 1
    /// Gbit/s of 100 Gbit/s).
    pub increment: Option<Rate>,
    /// Maximum number of bytes that may be sent at once after idle time.
    pub bucket: u64,
    /// Whether requests are also slowed down by 802.1Qbb frames seen at the interface, and by the NIC's count of
    /// them. These are not authenticated: any station on the cable can send them.
    pub trust_pfc: bool,
    /// Name of the NIC's statistic that counts PFC frames, if these are trusted; `None`: the one known for the NIC's
    /// driver.
    pub nic_counter: Option<String>,
}

impl Default for RateControl {
    fn default() -> Self {
        RateControl {
            link: None,
            times: [None; 6],
            increment: None,
            bucket: BUCKET_DEFAULT,
            trust_pfc: false,
            nic_counter: None,
        }
    }
}

impl RateControl {
    /// Checks the parameters.
    ///
    /// # Errors
    /// The name of the wrong option, and its valid range.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        const NAMES: [&str; 6] = ["cc-t1", "cc-t2", "cc-t3", "cc-t4", "cc-t5", "cc-t6"];
        for (name, time) in NAMES.iter().zip(self.times) {
            if time.is_some_and(|time| !TIMES.contains(&time)) {
                return Err((name, "choose 1us to 10s".into()));
            }
        }
        if self.nic_counter.is_some() && !self.trust_pfc {
            let why = "it counts PFC frames, which slow this node down only with --pfc trust";
            return Err(("pfc-counter", why.into()));
        }
        if !BUCKETS.contains(&self.bucket) {
            return Err(("cc-bucket", format!("{} bytes is out of range; choose 1500 to 16M", self.bucket)));
        }
        Ok(())
    }

    /// The controller's configuration on a link of `rate`.
    pub fn config(&self, rate: Rate) -> Config {
        let mut config = Config::for_link(rate.get());
        let Config { t1, t2, t3, t4, t5, t6, .. } = &mut config;
        for (time, set) in [t1, t2, t3, t4, t5, t6].into_iter().zip(self.times) {
            *time = set.unwrap_or(*time);
        }
        if let Some(increment) = self.increment {
            config.increment = increment.get().min(config.link);
        }
        config
    }

    /// Makes `engine` pace its requests over `link`, whose frames have the PFC class `class`. Returns the sources of
    /// pause signals. To be called in the link's network namespace.
    ///
    /// # Errors
    /// [`LinkError`] if a source of pause signals cannot be opened.
    pub fn apply(
        &self,
        engine: &mut Engine,
        link: &LinkInfo,
        class: u8,
        now: Time,
    ) -> Result<Signals, LinkError> {
        let speed = || match dpdk::is_device(&link.interface) {
            true => dpdk::speed(&link.interface),
            false => Ethtool::open(&link.interface).ok().and_then(|ethtool| ethtool.speed()),
        };
        let over_udp = link.backend == "udp";
        let rate = match self.link {
            Some(rate) => rate,
            // A virtual interface may report a rate, but the datagrams do not pass a wire of that rate.
            None if over_udp && !has_device(&link.interface) => LINK_RATE_NO_WIRE,
            None => speed().unwrap_or(LINK_RATE_UNKNOWN),
        };
        let control = self.config(rate);
        engine.set_pacing(Some(Pacing { control, bucket: self.bucket, class }), now);
        tracing::info!(interface = %link.interface, %rate, class, "rate control is on");
        if over_udp || !self.trust_pfc {
            // Pause frames at the interface do not apply to a link over UDP, which only the memory nodes' Congestion
            // frames slow down.
            return Ok(Signals::default());
        }
        Signals::open(&SignalConfig {
            interface: link.interface.clone(),
            class,
            nic_counter: self.nic_counter.clone(),
        })
    }
}

/// Whether an interface belongs to a physical device.
fn has_device(interface: &str) -> bool {
    Path::new("/sys/class/net").join(interface).join("device").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_set_is_the_papers() {
        let rate = Rate::gbit_per_s(100);
        assert_eq!(RateControl::default().config(rate), Config::for_link(rate.get()));
        let us = Duration::from_micros;
        let set = RateControl {
            times: [None, None, None, Some(us(400)), None, Some(us(7))],
            increment: Some(Rate::gbit_per_s(5)),
            ..RateControl::default()
        };
        let paper = Config::for_link(rate.get());
        assert_eq!(set.config(rate), Config { t4: us(400), t6: us(7), increment: 5_000_000_000, ..paper });
        assert_eq!(set.check(), Ok(()));
        // By default only stations with a session can slow down a node.
        assert!(!RateControl::default().trust_pfc);
        let counts = RateControl { nic_counter: Some("rx_pause".into()), ..RateControl::default() };
        assert!(
            counts.check().is_err_and(|(name, why)| name == "pfc-counter" && why.contains("--pfc trust"))
        );
        assert_eq!(RateControl { trust_pfc: true, ..counts }.check(), Ok(()));
    }
}
